"""Agents of a person's own: what they are called, what they are made with, how they count tokens, and whether they can forget."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from manyhands.core.errors import UserError
from manyhands.workloads.memory.agents.choice import choose_agent
from manyhands.workloads.memory.conversation.events import MESSAGES, RESPONSES, read_master_log
from tests.support.commands import run
from tests.support.memory_benchmarks import opened, performed, records_of, write_configuration

AGENTS = '''
import sys, time
from dataclasses import dataclass, field

class Plain:
    def reply(self, user_message, agent_response=None):
        return "ok"

@dataclass
class Original:
    """As agents of the GoodAI LTM Benchmark are written."""
    run_name: str
    max_prompt_size: int = 100
    costs_usd: float = 0
    is_local: bool = False

    @property
    def name(self):
        return f"{self.__class__.__name__} - v2 - {self.max_prompt_size}"

    def token_len(self, text):
        return len(text.split())

    def reply(self, user_message, agent_response=None):
        self.costs_usd += 0.001
        return "I see"

    def reset(self): ...

class Passing(Original):
    def __init__(self, *args, label="x", **kwargs):
        super().__init__(*args, **kwargs)

class Named(Plain):
    name = "My/agent"

class NamedInside(Plain):
    def __init__(self, label="x", size=1):
        self.name = f"called {label}"

class Sized(Plain):
    def __init__(self, max_prompt_size):
        self.size = max_prompt_size

class Uncountable(Plain):
    def token_len(self, text):
        return "many"

class Broken(Plain):
    def __init__(self, max_prompt_size=None):
        self.name = "x" + max_prompt_size

class NameMethod(Plain):
    def name(self):
        return "said by a method"

class Slow(Plain):
    def __init__(self):
        self.name = "slow"
        time.sleep(60)

class SlowCount(Plain):
    def token_len(self, text):
        time.sleep(60)

class Leaving(Plain):
    def __init__(self):
        self.name = sys.exit(0)

class Abstract(Plain):
    def reset(self):
        raise NotImplementedError

class Forgetting(Plain):
    def reset(self):
        with open(__file__ + ".resets", "a") as file:
            file.write("x")
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_configuration(tmp_path)
    (tmp_path / "agents.py").write_text(AGENTS)
    return tmp_path


def agent(folder: Path, name: str) -> str:
    return f"python:{folder}/agents.py:{name}"


def names(folder: Path, *agents: str, **options: Any) -> list[str]:
    run_ = opened(folder, [agent(folder, each) for each in agents], **options)
    return [each["name"] for each in run_.workload.spec["sessions"] if each.get("performed", True)]


# --- Names and arguments


def test_what_a_class_calls_itself_is_its_name(folder: Path) -> None:
    assert names(folder, "Plain") == ["Plain"]
    assert names(folder, "Original", max_prompt_size=4096) == ["Original - v2 - 4096"]
    assert names(folder, "Passing", max_prompt_size=7) == [
        "Passing - v2 - 7"
    ]  # **kwargs go to the class that it is made from
    assert names(folder, "Named") == ["My-agent"]
    assert names(folder, "NamedInside(label='y')") == ["called y"]
    assert names(folder, "NamedInside(label='y', size=7)") == ["called y - size=7"]


def test_one_class_at_two_sizes_is_two_agents(folder: Path) -> None:
    made = names(folder, "Original(max_prompt_size=4096)", "Original(max_prompt_size=8192)")
    assert made == ["Original - v2 - 4096", "Original - v2 - 8192"]
    assert names(folder, "Sized(max_prompt_size=1)", "Sized(max_prompt_size=2)") == [
        "Sized - max_prompt_size=1",
        "Sized - max_prompt_size=2",
    ]
    assert [*names(folder, "Sized", max_prompt_size=10), *names(folder, "Sized", max_prompt_size=20)] == [
        "Sized - 10",
        "Sized - 20",
    ]


async def test_two_sizes_have_two_folders_and_two_columns(folder: Path) -> None:
    run_ = opened(folder, [agent(folder, f"Original(max_prompt_size={size})") for size in (4096, 8192)])
    assert (await performed(run_)).exit_code == 0
    assert sorted(records_of(run_.folder)) == ["Original - v2 - 4096", "Original - v2 - 8192"]
    assert sorted(each.name for each in (run_.folder / "results").iterdir()) == sorted(records_of(run_.folder))
    report = run("memory", "report", str(run_.folder), "--json")
    assert [each["label"] for each in json.loads(report.out)["agents"]] == sorted(records_of(run_.folder))


def test_a_conversation_of_an_earlier_version_keeps_its_name(folder: Path) -> None:
    from manyhands.workloads.memory.agents.factory import agent_name
    from manyhands.workloads.memory.opening import _kept_name
    from manyhands.workloads.memory.workload import ConversationEntry

    choice = choose_agent(agent(folder, "Original"))
    assert agent_name(choice, 5, "r", 60) == "Original - v2 - 5"
    recorded: ConversationEntry = {"agent": choice.id, "limit": 5, "name": "Original", "round": 0, "start_time": None}
    assert _kept_name(choice, 5, "Original - v2 - 5", [recorded]) == "Original"
    assert _kept_name(choice, 6, "Original - v2 - 6", [recorded]) == "Original - v2 - 6"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("Sized(size=1)", "takes max_prompt_size"),
        ("Original(1)", "each needs its name"),
        ("Original(max_prompt_size=open('x'))", "plain values"),
        ("Original(max_prompt_size=", "must be python:MODULE:CLASS"),
        ("Original(a=1", "must be python:MODULE:CLASS"),
        ("Original(**{})", "each needs its name"),
        ("Broken(max_prompt_size=3)", "can't be made: TypeError"),
    ],
)
def test_arguments_that_can_not_be_are_refused_in_one_line(folder: Path, name: str, line: str) -> None:
    with pytest.raises(UserError) as error:
        opened(folder, agent(folder, name))
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_arguments_may_hold_anything_plain() -> None:
    found = choose_agent("python:a.b:C(url='http://x:80/(y)', sizes=[1, 2], more={'a': None}, flag=True)")
    assert found.target == "a.b:C"
    assert found.arguments == {"url": "http://x:80/(y)", "sizes": [1, 2], "more": {"a": None}, "flag": True}
    assert found.name(None) == "C"


# --- Tokens


async def test_the_tokens_of_a_class_are_counted_by_it(folder: Path) -> None:
    own, plain = (
        opened(folder, agent(folder, "Original")),
        opened(folder, agent(folder, "Plain"), data_dir=str(folder / "b")),
    )
    assert (await performed(own)).exit_code == 0
    assert (await performed(plain)).exit_code == 0
    (place,) = (own.folder / "results").iterdir()
    about = json.loads((place / "session.json").read_bytes())
    assert (about["tokenizer"], about["tokens_are_exact"], about["agent"]) == ("Original.token_len", True, place.name)
    (record,) = records_of(own.folder).values()
    said = [event for event in read_master_log(place / "master_log.jsonl") if event.type in MESSAGES]
    assert record["total_tokens"] == sum(len(event.message.split()) for event in said)
    assert record["agent_tokens"] == 2 * len([event for event in said if event.type in RESPONSES])  # "I see"


async def test_a_count_that_is_none_ends_the_session_in_one_line(folder: Path) -> None:
    run_ = opened(folder, agent(folder, "Uncountable"))
    assert (await performed(run_)).exit_code == 1


async def test_a_count_that_takes_too_long_ends_the_session(folder: Path) -> None:
    run_ = opened(folder, agent(folder, "SlowCount"), message_timeout=0.2)
    assert (await performed(run_)).exit_code == 1


def test_a_class_has_only_so_long_to_say_its_name(folder: Path) -> None:
    assert names(folder, "NameMethod") == ["said by a method"]
    with pytest.raises(
        UserError, match=r"took longer than 0.2 seconds to be made and to say its name \(--message_timeout\)"
    ):
        names(folder, "Slow", message_timeout=0.2)
    with pytest.raises(UserError, match=r"can.t be made: RuntimeError: it called sys\.exit"):
        names(folder, "Leaving")


# --- Forgetting


def test_a_class_without_reset_is_refused_in_isolated_sessions(folder: Path) -> None:
    with pytest.raises(
        UserError, match=r"^--isolated: Plain has no method reset, so that it can't forget one test before the next$"
    ):
        opened(folder, agent(folder, "Plain"), isolated=True)


def words(folder: Path, name: str) -> list[str]:
    options = [f"--data_dir={folder / 'data'}", "--yes", "--quiet", "--isolated", "--tokenizer=estimate"]
    return ["memory", "run", f"-c={folder / 'small.yml'}", f"-a={name}", *options]


def refused(folder: Path, name: str, why: str) -> None:
    ended = run(*words(folder, name))
    assert ended.code == 1
    (line,) = [each for each in ended.errors if "--isolated" in each]
    assert "can't forget one test before the next" in line
    assert why in line


def test_one_that_can_not_reset_is_refused_not_assumed(folder: Path) -> None:
    refused(folder, agent(folder, "Abstract"), "its reset raised NotImplementedError")
    program = folder / "program.py"
    body = "import json, sys\nfor line in sys.stdin:\n    said = json.loads(line)\n"
    said = folder / "said.txt"
    seen = f"    open({str(said)!r}, 'a').write(said['type'] + '\\n')\n"
    program.write_text(body + seen + "    print(json.dumps({'text': 'ok'}), flush=True)\n")
    refused(folder, f"command:{sys.executable} {program}", "it answered reset as if that were a message")
    assert said.read_text() == "reset\n"  # nothing was paid
    program.write_text(
        body
        + "    print(json.dumps({'text': 'ok'} if said['type'] == 'message' else {'error': 'what?'}), flush=True)\n"
    )
    refused(folder, f"command:{sys.executable} {program} again", "the program says: what?")


async def test_one_that_can_is_reset_after_every_test(folder: Path) -> None:
    run_ = opened(folder, agent(folder, "Forgetting"), isolated=True)
    assert (await performed(run_)).exit_code == 0
    made = (folder / "agents.py.resets").read_text()
    assert len(made) == 1 + len(run_.workload.benchmark.definitions)


Answer = Callable[[dict[str, Any]], web.Response]


@asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[tuple[str, list[str]]]:
    seen: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        said = await request.json()
        seen.append(said["type"])
        return answer(said)

    app = web.Application()
    app.router.add_post("/agent", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/agent", seen
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("status", [400, 404, 405, 422, 501])
async def test_a_server_that_does_not_know_reset_is_refused(folder: Path, status: int) -> None:
    def answer(said: dict[str, Any]) -> web.Response:
        return web.json_response({"text": "ok"}) if said["type"] == "message" else web.Response(status=status)

    async with server(answer) as (url, seen):
        isolated = opened(folder, url, isolated=True)
        assert (await performed(isolated)).exit_code == 1
        assert seen == ["reset"]
        assert (await performed(opened(folder, url))).exit_code == 0  # where nothing rests on it, it need not


async def test_a_server_that_resets_is_taken(folder: Path) -> None:
    async with server(lambda said: web.json_response({"text": "ok"} if said["type"] == "message" else {})) as (
        url,
        seen,
    ):
        run_ = opened(folder, url, isolated=True)
        assert (await performed(run_)).exit_code == 0
        assert seen.count("reset") == 1 + len(run_.workload.benchmark.definitions)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("(a=1)(b=2)", "more than one pair of brackets"),
        ("(a=1).x(b=2)", "more than one pair of brackets"),
        ("(a=1, a=2)", "one is named twice"),
        ("(a={'x', 'y'})", "none that JSON has"),
        ("(a=1e999)", "none that JSON has"),
        ("(a=__import__('os'))", "plain values"),
        ("(a=" + "-" * 100_000 + "1)", "plain values"),
    ],
)
def test_arguments_are_plain_values_and_nothing_else(written: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        choose_agent(f"python:m.py:K{written}")
