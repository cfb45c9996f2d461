"""Runs of the memory benchmark: made, continued, begun anew, and what they leave."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from manyhands.core.errors import ManyhandsError, RunError, UserError
from manyhands.core.outcomes import ItemState
from manyhands.engine.contract import ItemRow
from manyhands.engine.journal.lock import RunLock
from manyhands.runs.execution import Controls, RunResult
from manyhands.runs.making import Opened
from manyhands.workloads.memory.agents.simulated import ReadingModel
from manyhands.workloads.memory.workload import MemoryWorkload
from tests.support.commands import alive
from tests.support.forked import path_of_tests
from tests.support.memory_benchmarks import (
    WITHOUT_MODEL,
    log_of,
    opened,
    performed,
    records_of,
    rows_of,
    steps_of,
    write_configuration,
)

CHAT = "LLMChatSession - simulated - 600"


def results(folder: Path) -> set[str]:
    return {place.name for place in (folder / "data/tests/small/results").iterdir()}


# --- What must be shown: scores


async def test_memory_is_what_is_scored(tmp_path: Path) -> None:
    """One run of five sessions: all, nothing, and in between what the memory brings before the same reader."""
    datasets = [{"name": each, "args": {"num_kv_pairs": 8} if each == "kv" else {}} for each in WITHOUT_MODEL]
    write_configuration(tmp_path, datasets, span=2500, incompatibilities=[["names", "name_list"]])
    agents = ["perfect", "forgetful", "simulated", "retrieval(simulated)", "scratchpad(simulated)"]
    run = opened(tmp_path, agents, max_prompt_size=2400, max_response_tokens=100, judge_model="simulated")
    result = await performed(run)
    assert result.exit_code == 0
    found = records_of(run.folder)
    scores = {name.partition(" ")[0]: record["score"] for name, record in found.items()}
    assert {record["max_score"] for record in found.values()} == {len(WITHOUT_MODEL)}
    assert all(record["unscored"] == 0 for record in found.values())
    assert found["PerfectAgent"]["datasets"] == dict.fromkeys(found["PerfectAgent"]["datasets"], 1.0)
    assert max(found["ForgetfulAgent"]["datasets"].values()) <= 0.2
    assert scores["ForgetfulAgent"] < 0.5
    assert scores["ForgetfulAgent"] < scores["LLMChatSession"] < len(WITHOUT_MODEL) / 2
    assert scores["RetrievalAgent"] > scores["LLMChatSession"] + 0.5
    assert scores["ScratchpadAgent"] > scores["ForgetfulAgent"]
    assert all(record["simulated"] for record in found.values())


# --- Making and continuing


async def test_a_second_agent_leaves_the_first_alone(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    await performed(opened(tmp_path, "simulated", max_prompt_size=600))
    folder = tmp_path / "data/tests/small"
    before = {path: path.stat().st_mtime_ns for path in (folder / "results").rglob("*.json*")}
    run = opened(tmp_path, "forgetful", max_prompt_size=600)
    result = await performed(run)
    assert result.exit_code == 0
    assert results(tmp_path) == {CHAT, "ForgetfulAgent"}
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [row.state for row in rows_of(folder)] == [ItemState.COMPLETED] * 2


async def test_the_same_again_does_nothing(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    first = opened(tmp_path, "simulated")
    await performed(first)
    calls = len(steps_of(first.folder))
    again = opened(tmp_path, "simulated")
    assert (await performed(again)).exit_code == 0
    assert len(steps_of(first.folder)) == calls


async def test_beginning_anew_keeps_what_was_there(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    first = opened(tmp_path, "simulated", max_prompt_size=600)
    await performed(first)
    log = log_of(first.folder)
    notices: list[str] = []
    second = opened(tmp_path, "simulated", max_prompt_size=600, restart=True, notices=notices)
    assert results(tmp_path) == {f"{CHAT} (earlier 1)"}
    assert any("(earlier 1)" in text for text in notices)
    await performed(second)
    assert log_of(second.folder, CHAT) == log
    assert len(rows_of(second.folder)) == 2
    assert len(records_of(second.folder)) == 1


async def test_new_tests_put_the_whole_run_aside(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    await performed(opened(tmp_path, "forgetful"))
    notices: list[str] = []
    run = opened(tmp_path, "forgetful", regenerate=True, notices=notices)
    await performed(run)
    assert {place.name for place in run.folder.parent.iterdir()} == {"small", "small (earlier 1)"}
    assert (run.folder.parent / "small (earlier 1)/results/ForgetfulAgent/master_log.jsonl").is_file()


async def test_results_that_no_run_made_are_put_aside(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    old = tmp_path / "data/tests/small/results/ForgetfulAgent"
    old.mkdir(parents=True)
    (old / "master_log.jsonl").write_text("the original's")
    await performed(opened(tmp_path, "forgetful"))
    assert (old.parent / "ForgetfulAgent (earlier 1)/master_log.jsonl").read_text() == "the original's"


async def test_questions_are_asked_and_their_answers_heeded(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    asked: list[tuple[str, bool]] = []
    answers: list[bool] = []

    def ask(question: str, default: bool) -> bool:
        asked.append((question, default))
        return answers.pop(0)

    await performed(opened(tmp_path, "forgetful", yes=False, ask=ask))
    assert not asked
    answers[:] = [True, True]
    opened(tmp_path, "forgetful", yes=False, ask=ask)
    assert [default for _, default in asked] == [True, True]
    answers[:] = [False, False]
    with pytest.raises(UserError, match="nothing was changed"):
        opened(tmp_path, "forgetful", yes=False, ask=ask)
    answers[:] = [True, False, False]
    with pytest.raises(UserError, match="nothing was changed"):
        opened(tmp_path, "forgetful", yes=False, ask=ask)
    assert results(tmp_path) == {"ForgetfulAgent"}
    answers[:] = [True, False, True]
    opened(tmp_path, "forgetful", yes=False, ask=ask)
    assert results(tmp_path) == {"ForgetfulAgent (earlier 1)"}
    answers[:] = [False, True]
    opened(tmp_path, "forgetful", yes=False, ask=ask)
    assert (tmp_path / "data/tests/small (earlier 1)").is_dir()


async def test_isolated_sessions_have_the_same_tests(tmp_path: Path) -> None:
    write_configuration(tmp_path, ("colours", "shopping"))
    await performed(opened(tmp_path, "simulated"))
    run = opened(tmp_path, "simulated", isolated=True)
    assert run.folder.name == "small (isolated)"
    assert (await performed(run)).exit_code == 0
    ours = {path.name: path.read_text() for path in (run.folder / "definitions").rglob("*.def.json")}
    assert ours == {path.name: path.read_text() for path in (tmp_path / "data/tests/small/definitions").rglob("*.json")}
    log = log_of(run.folder)
    assert not [event for event in log if event[0] in (3, 5, 6)]  # no filler, no waits
    assert next(iter(records_of(run.folder).values()))["score"] == 2.0


# --- What is refused


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"agent_name": ["perfect", "perfect "]}, None),
        ({"agent_name": ["a/b", "a-b"]}, "same folder of results"),
        ({"reuse": True, "regenerate": True}, "not both"),
        ({"resume": True, "restart": True}, "not both"),
        ({"agent_name": ["some-model"]}, "OPENROUTER_API_KEY"),
        ({"agent_name": ["embeddings(simulated)"]}, "OPENROUTER_API_KEY"),
        ({"judge_model": "gpt-4o", "judge_base_url": "https://api.openai.com/v1"}, "OPENAI_API_KEY"),
        ({"agent_name": ["command:/no/such/program"]}, "no program"),
        ({"agent_name": ["python:no_such_module_here:Agent"]}, "can't be loaded"),
        ({"configuration": "/no/such/file.yml"}, "/no/such/file.yml"),
        ({"tokenizer": "abacus"}, "abacus"),
        ({"start_time": "yesterday"}, "start_time"),
        ({"start_time": "9999999-01-01"}, "start_time"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_made(
    tmp_path: Path, options: dict[str, Any], says: str | None
) -> None:
    write_configuration(tmp_path)
    options = {"max_prompt_size": 600, "agent_name": ["forgetful"], **options}
    agents = options.pop("agent_name")
    if says is None:
        assert len(opened(tmp_path, agents, **options).workload.spec["sessions"]) == 1
        return
    with pytest.raises(ManyhandsError, match=says) as caught:
        opened(tmp_path, agents, **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()


async def test_another_setting_is_refused_by_name(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    opened(tmp_path, "forgetful")
    changes: dict[str, Any]
    for changes in ({"max_message_size": 512}, {"local": True}, {"judge_model": "simulated"}):
        (name,) = changes
        with pytest.raises(RunError, match=name):
            opened(tmp_path, "forgetful", **changes)
    opened(tmp_path, "forgetful", judge_model="simulated", override="judge_model")
    opened(tmp_path, "forgetful", message_timeout=5, concurrency=3)


def test_a_session_goes_on_only_with_its_own_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two classes of one name have one folder; the second must not go on with the first one's session."""
    monkeypatch.chdir(tmp_path)
    write_configuration(tmp_path)
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text(
            "class Agent:\n    def reply(self, text, agent_response=None):\n        return text\n"
        )
    opened(tmp_path, "python:one.py:Agent")
    with pytest.raises(RunError, match=r"python:one\.py:Agent"):
        opened(tmp_path, "python:two.py:Agent")
    with pytest.raises(RunError, match="--max_prompt_size"):
        opened(tmp_path, "python:one.py:Agent", max_prompt_size=7)
    run = opened(tmp_path, "python:two.py:Agent", restart=True)
    assert run.workload.spec["sessions"][0]["agent"] == "python:two.py:Agent"


def test_nothing_is_moved_while_another_process_performs_the_run(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    run = opened(tmp_path, "forgetful")
    lock = RunLock(run.folder)
    try:
        with pytest.raises(RunError, match="being executed by"):
            opened(tmp_path, "forgetful", regenerate=True)
        with pytest.raises(RunError, match="being executed by"):
            opened(tmp_path, "forgetful", restart=True)
    finally:
        lock.release()
    assert {place.name for place in run.folder.parent.iterdir()} == {"small"}


def test_a_moment_keeps_its_time_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_configuration(tmp_path)
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        run = opened(tmp_path, "forgetful", start_time="2024-11-03T01:30:00")  # there are two of them
        started = run.workload.spec["sessions"][0]["start_time"]
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        again = opened(tmp_path, "forgetful", start_time=None)
        assert again.workload.spec["sessions"][0]["start_time"] == started == "2024-11-03T01:30:00-04:00"
    finally:
        monkeypatch.undo()
        time.tzset()


# --- Agents in a run


AGENT = """
import json, pathlib, sys, os
kept = pathlib.Path(os.environ["KEPT"])
crash_at = os.environ.get("CRASH_AT")
for line in sys.stdin:
    said = json.loads(line)
    with kept.open("a") as file:
        file.write(json.dumps([said["type"], said.get("number"), said["session"]]) + "\\n")
    if said["type"] == "message" and str(said["number"]) == crash_at and not pathlib.Path(str(kept) + ".crashed").exists():
        pathlib.Path(str(kept) + ".crashed").touch()
        os._exit(9)
    print(json.dumps({"text": "I see.", "cost_usd": 0.01} if said["type"] == "message" else {}), flush=True)
"""


async def test_a_program_that_crashes_is_started_again_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_configuration(tmp_path)
    (tmp_path / "agent.py").write_text(AGENT)
    monkeypatch.setenv("KEPT", str(tmp_path / "kept"))
    monkeypatch.setenv("CRASH_AT", "5")
    run = opened(tmp_path, f"command:python {tmp_path / 'agent.py'}")
    result = await performed(run)
    assert result.exit_code == 0, [row.message for row in rows_of(run.folder)]
    row = rows_of(run.folder)[0]
    assert (row.attempt, row.record["agent_cost"]) == (1, pytest.approx(0.01 * len(log_of_replies(run.folder))))
    said = [json.loads(line) for line in (tmp_path / "kept").read_text().splitlines()]
    messages = [number for kind, number, _ in said if kind == "message"]
    assert messages == sorted([*range(1, messages[-1] + 1), 5])  # the one in flight came twice
    after = said[[number for _, number, _ in said].index(5) + 1 :]
    assert [kind for kind, _, _ in after[:5]] == ["load"] + ["exchange"] * 4
    assert len({session for _, _, session in said}) == 1


def log_of_replies(folder: Path) -> list[Any]:
    return [event for event in log_of(folder) if event[0] in (4, 5)]


class Keeper:
    """Keeps its messages in a file, and looks for it as soon as it is made, as some agents do."""

    made: list[list[str]] = []  # noqa: RUF012 - what the objects of this class found

    def __init__(self, save_path: Path) -> None:
        self.path = save_path / "kept.json"
        self.known: list[str] = json.loads(self.path.read_text()) if self.path.exists() else []
        Keeper.made.append(list(self.known))

    def reply(self, text: str, agent_response: str | None = None) -> str:
        self.known.append(text)
        return agent_response or "yes"

    def save(self) -> None:
        self.path.write_text(json.dumps(self.known))

    def load(self) -> None:
        pass


async def test_a_session_begun_anew_does_not_know_the_one_before(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    Keeper.made.clear()
    agent = f"python:{__name__}:Keeper"
    await performed(opened(tmp_path, agent))
    await performed(opened(tmp_path, agent, restart=True))
    await performed(opened(tmp_path, agent, regenerate=True))
    assert Keeper.made == [[], [], []]
    kept = sorted(place.name for place in (tmp_path / "data/persistence").iterdir())
    assert kept == ["small - Keeper", "small - Keeper (earlier 1)", "small - Keeper (earlier 2)"]


class Clock:
    """Says what time its process has."""

    def reply(self, text: str, agent_response: str | None = None) -> str:
        return f"it is {time.time()}"


async def test_time_travel_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", path_of_tests())
    write_configuration(tmp_path, ["jokes"])
    run = opened(tmp_path, f"python:{__name__}:Clock", time_travel="process")
    began = time.time()
    assert (await performed(run)).exit_code == 0, [row.message for row in rows_of(run.folder)]
    events = [json.loads(line) for line in (run.folder / "results/Clock/master_log.jsonl").read_text().splitlines()]
    pairs = [
        (sent["timestamp"], float(reply["data"]["message"].removeprefix("it is ")))
        for sent, reply in pairwise(events)
        if sent["type"] in (0, 3)
    ]
    assert len(pairs) > 4
    assert all(abs(told - shown) < 20 for told, shown in pairs)
    assert pairs[-1][1] - pairs[0][1] > 1800 > time.time() - began
    for step in steps_of(run.folder):  # the journal's own times are those of the world
        assert abs(step.started_at - began) < 300, step.kind


async def test_an_estimate_is_scored_by_nobody(tmp_path: Path) -> None:
    write_configuration(tmp_path, ("colours", "locations", "restaurant"))
    run = opened(tmp_path, "cost(1,2)", max_prompt_size=2000, judge_model="simulated")
    assert (await performed(run)).exit_code == 0
    (record,) = records_of(run.folder).values()
    assert (record["unscored"], record["score"], record["judge_cost"]) == (3, 0, 0.0)
    assert record["agent_cost"] > 0.1
    test = json.loads((run.folder / "results").glob("*/Colours/0_0.json").__next__().read_text())
    assert (test["score"], test["status"]) == (None, "unscored")


async def test_tests_without_a_judge_are_unscored_and_counted(tmp_path: Path) -> None:
    write_configuration(tmp_path, ("colours", "locations"))
    run = opened(tmp_path, "perfect")
    await performed(run)
    (record,) = records_of(run.folder).values()
    assert (record["score"], record["max_score"], record["unscored"]) == (1.0, 1, 1)
    result = json.loads((run.folder / "results/PerfectAgent/Locations/0_0.json").read_text())
    assert (result["score"], result["status"]) == (None, "unscored")
    assert "judge_model" in result["reasoning"][0]


# --- A model behind a server


class ModelServer:
    """Speaks chat completions: the reader of the benchmark, and a judge that finds nothing right.
    ``fail_at``: the number of the call that is refused for good."""

    def __init__(self, workload: Any, fail_at: int = 0) -> None:
        tests = workload.benchmark.tests
        self._reading = ReadingModel([(test.definition, test.dataset) for test in tests])
        self.asked: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.fail_at = fail_at

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        self.keys.add(request.headers.get("Authorization"))
        if len(self.asked) == self.fail_at:
            return web.json_response({"error": {"message": "no such model"}}, status=404)
        texts = [str(each["content"]) for each in body["messages"]]
        last = self._reading._answer(texts[-1], "\n".join(texts[:-1])) if body["model"] == "agent" else "{}"
        choice = {"index": 0, "message": {"role": "assistant", "content": last}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "cost": 0.001}
        return web.json_response({"id": "1", "model": body["model"], "choices": [choice], "usage": usage})


@asynccontextmanager
async def serving(server: ModelServer) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}/v1"
    finally:
        await runner.cleanup()


def held(folder: Path) -> ItemRow:
    """The session that is in the run's input."""
    return next(row for row in rows_of(folder) if not row.left_input)


async def test_failures_and_budgets_stop_and_nothing_is_paid_twice(tmp_path: Path) -> None:
    write_configuration(tmp_path, ("colours", "locations", "restaurant"))
    # A judge of its own endpoint, so that it must not see the agent's key.
    probe = opened(tmp_path, "forgetful")
    agent_server, judge_server = ModelServer(probe.workload, fail_at=4), ModelServer(probe.workload)
    async with serving(agent_server) as url, serving(judge_server) as judge_url:

        def run(**options: Any) -> Any:
            settings = {"base_url": url, "judge_base_url": judge_url, "judge_model": "judge", "override": "judge_model"}
            return opened(
                tmp_path,
                "agent",
                api_key="sk-very-secret",
                environ={"MANYHANDS_API_KEY": "sk-judge"},
                **settings,
                **options,
            )

        first = run()
        result = await performed(first)
        assert result.exit_code == 1
        row = held(first.folder)
        assert (row.state, row.cause) == (ItemState.FAILED, "model_refused")
        stopped = await performed(run(max_cost=0.006))
        assert (stopped.exit_code, stopped.stopped is None) == (1, False)
        final = await performed(run(max_cost=50.0))
        assert final.exit_code == 0, held(first.folder).message
        row = held(first.folder)
        assert row.attempt == 1
        for server, refused in ((agent_server, 1), (judge_server, 0)):
            bodies = [json.dumps(body["messages"]) for body in server.asked]
            assert len(bodies) - len(set(bodies)) == refused
        assert judge_server.asked
        assert row.record["judge_cost"] == pytest.approx(0.001 * len(judge_server.asked))
        assert row.record["agent_cost"] == pytest.approx(0.001 * (len(agent_server.asked) - 1))
        assert agent_server.keys == {"Bearer sk-very-secret"}
        assert judge_server.keys == {"Bearer sk-judge"}
    written = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert b"sk-very-secret" not in written
    assert b"sk-judge" not in written
    located = json.loads(next(first.folder.glob("results/LLM*/Locations/0_0.json")).read_text())
    assert located["judge"] == "judge"


async def interrupted(run: Opened[MemoryWorkload], events: int) -> RunResult:
    """Hold its one session until so many events are in its log."""
    controls = Controls()

    async def interrupt() -> None:
        while not run.workload.watching or len(run.workload.watching[0].scheduler.events) < events:
            await asyncio.sleep(0.01)
        controls.stop()

    result, _ = await asyncio.gather(performed(run, controls=controls), interrupt())
    return result


async def test_an_interrupted_session_goes_on(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    whole = opened(tmp_path, "simulated")
    await performed(whole)
    expected = log_of(whole.folder)
    run = opened(tmp_path, "simulated", restart=True, simulated_latency=0.05)
    assert (await interrupted(run, 8)).exit_code == 130
    name = "LLMChatSession - simulated - 0"
    assert 7 <= len(log_of(run.folder, name)) < len(expected)
    again = opened(tmp_path, "simulated")
    assert (await performed(again)).exit_code == 0
    assert log_of(run.folder, name) == expected


async def test_tests_that_were_changed_meanwhile_stop_the_session(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    run = opened(tmp_path, "simulated", simulated_latency=0.05)
    await interrupted(run, 8)
    definition = next((run.folder / "definitions").glob("Colours/*.json"))
    content = json.loads(definition.read_text())
    content["script"][0] = "My favourite colour is none of your business."
    definition.write_text(json.dumps(content))
    stopped = await performed(opened(tmp_path, "simulated"))
    assert stopped.exit_code == 1
    assert "--on_divergence=fresh" in str(stopped.error)
    assert "\n" not in str(stopped.error)
    fresh = await performed(opened(tmp_path, "simulated", on_divergence="fresh"))
    assert fresh.exit_code == 0
    assert held(run.folder).attempt == 2
    log = log_of(run.folder)
    assert sum(data.get("message") == content["script"][0] for _, _, data in log) == 1


async def test_the_smallest_context(tmp_path: Path) -> None:
    """Of one token: whatever is asked goes beyond it, and nothing breaks."""
    write_configuration(tmp_path)
    agents = [form.format("simulated") for form in ("{}", "ts-{}", "retrieval({})", "scratchpad({})")] + ["cost(1,1)"]
    run = opened(tmp_path, agents, max_prompt_size=1)
    assert (await performed(run)).exit_code == 0
    assert {record["score"] for record in records_of(run.folder).values()} == {0}


async def test_a_free_agent_costs_nothing(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    run = opened(tmp_path, "cost(1,1)", local=True)
    await performed(run)
    stats = json.loads(next(run.folder.glob("results/*/runstats.json")).read_text())
    assert stats["agent_costs_usd"] == 0


async def test_twenty_sessions_at_once(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    agents = [f"cost({number},1)" for number in range(1, 11)] + [f"simulated/{number}" for number in range(10)]
    run = opened(tmp_path, agents)
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, len(run.workload.watching))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    result = await performed(run)
    watching.cancel()
    assert result.exit_code == 0
    assert most == 20
    assert len(results(tmp_path)) == 20


async def test_a_full_disk_is_said_and_leaves_a_session_that_goes_on(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    run = opened(tmp_path, "forgetful")
    place = run.folder / "results"
    place.write_text("a file where a folder should be")
    result = await performed(run)
    assert result.exit_code != 0
    place.unlink()
    assert (await performed(opened(tmp_path, "forgetful"))).exit_code == 0


def test_no_process_of_an_agent_is_left() -> None:
    """Of those that the tests above have started."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if b"agent.py" in command and f"pytest-of-{os.environ.get('USER', 'root')}".encode() in command:
            assert not alive(int(entry.name)) or os.getppid() == 1, command
