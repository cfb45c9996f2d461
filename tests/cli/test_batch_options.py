"""Every option of ``manyhands batch`` through the command line, each with an effect that can be seen from outside.

One check an option, registered under the option's name; an option without a check fails.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import datasets
import openpyxl
import pytest

from manyhands.cli.options import options_of
from manyhands.models.factory import KEY_VARIABLES, OWN_KEY_VARIABLE
from manyhands.models.settings import EFFORTS
from manyhands.testing.scripted_server import Handler, RecordedRequest, Reply, ScriptedResponse, chat_response
from manyhands.workloads.trajectories.spec import BatchSpec
from tests.support.batches import REASONED, BatchFolder, ServerThread, prompt_of, run_command, without_times
from tests.support.commands import PROGRAM, environment
from tests.support.forked import forked_program
from tests.support.image_doubles import NAME as BOXES
from tests.support.image_doubles import Boxes, boxes, pin_of
from tests.support.made_tasks import make_task
from tests.support.own_agent import installed
from tests.support.ssh_servers import REFUSED, ssh_server
from tests.support.tool_checks import TOOL_CHECKS
from tests.support.web_checks import WEB_CHECKS
from tests.support.world_checks import WORLD_CHECKS

Check = Callable[[BatchFolder], None]
CHECKS: dict[str, Check] = {}
MCP_SERVER = Path(__file__).parent.parent / "tools" / "mcp_server_for_tests.py"
UNREASONED = chat_response("Done.")


def option(name: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        CHECKS[name] = check
        return check

    return register


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BatchFolder:
    for variable in (*KEY_VARIABLES.values(), OWN_KEY_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    return BatchFolder(tmp_path)


@pytest.mark.parametrize("name", options_of(BatchSpec))
def test_the_option_does_what_it_says(name: str, folder: BatchFolder) -> None:
    CHECKS[name](folder)


def test_there_is_no_check_of_an_option_that_is_gone() -> None:
    assert set(CHECKS) <= set(options_of(BatchSpec))


# --- Helpers


def asked(
    folder: BatchFolder,
    *words: str,
    responses: Iterable[Reply] | Handler = (REASONED,),
    openrouter: bool = False,
    code: int = 0,
) -> list[dict[str, Any]]:
    """The request bodies of a batch that ends well, or with another exit code."""
    with ServerThread(responses) as server:
        ran = folder.batch(f"--base_url={server.openrouter_url if openrouter else server.base_url}", *words)
        assert ran.code == code, ran
        return server.bodies


def refused(folder: BatchFolder, *words: str) -> str:
    """What is said about a command line that is refused before anything is made."""
    ran = folder.batch("--base_url=http://127.0.0.1:9/v1", "--run_name=refused", *words)
    assert (ran.code, ran.out, folder.run("refused").exists()) == (2, "", False), ran
    return ran.err


def tool_call(name: str, number: int = 0, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_{number}", "type": "function", "function": function}


def calling(*calls: dict[str, Any]) -> dict[str, Any]:
    return chat_response(None, reasoning="Let me see.", tool_calls=list(calls))


def shell(command: str) -> dict[str, Any]:
    return calling(tool_call("terminal", command=command))


def first_then(response: Reply, rest: Reply = REASONED) -> Callable[[RecordedRequest], Reply]:
    """Every conversation gets ``response`` first, and then ``rest``."""

    def reply(request: RecordedRequest) -> Reply:
        return (
            rest if any(message["role"] in ("tool", "assistant") for message in request.body["messages"]) else response
        )

    return reply


def results(bodies: list[dict[str, Any]]) -> list[str]:
    """The tool results that the model was shown, in order."""
    return [message["content"] for message in bodies[-1]["messages"] if message["role"] == "tool"]


def everything_in(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file())


class Crowd:
    """Answers only when so many requests are there at the same time (or nobody comes any more)."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._here = 0
        self.most = 0

    async def __call__(self, _request: RecordedRequest) -> Reply:
        self._here += 1
        self.most = max(self.most, self._here)
        for _ in range(100):
            if self.most >= self._size:
                break
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.1)  # time for one too many to show up
        self._here -= 1
        return REASONED


# --- Required


@option("dataset_file")
def _dataset_file(folder: BatchFolder) -> None:
    folder.write_rows(["alpha", "beta"], "other.jsonl")
    bodies = asked(folder, "--dataset_file=other.jsonl")
    assert sorted(body["messages"][-1]["content"] for body in bodies) == ["alpha", "beta"]
    assert "missing.jsonl" in refused(folder, "--dataset_file=missing.jsonl")


@option("prompt_column")
def _prompt_column(folder: BatchFolder) -> None:
    folder.write_rows([{"question": "why", "prompt": "not this"}])
    bodies = asked(folder, "--prompt_column=question")
    assert bodies[0]["messages"][-1]["content"] == "why"
    assert json.loads(folder.lines()[0]["metadata"]["source"]) == {"prompt": "not this"}
    folder.write_rows([{"question": "how"}])
    assert "give --prompt_column=question" in refused(folder)
    with ServerThread() as server:
        ran = folder.batch("--resume", f"--base_url={server.base_url}")
        assert (ran.code, server.bodies[0]["messages"][-1]["content"]) == (0, "how")
        again = folder.batch("--resume", f"--base_url={server.base_url}", "--prompt_column=prompt")
        assert (again.code, "--override=prompt_column" in again.err) == (2, True)


@option("system_column")
def _system_column(folder: BatchFolder) -> None:
    folder.write_rows([{"prompt": "one", "role": "Be a poet."}])
    bodies = asked(folder, "--system_column=role")
    assert bodies[0]["messages"][0] == {"role": "system", "content": "Be a poet."}
    assert "--system_column names" in refused(folder, "--system_column=rule")


@option("split")
def _split(folder: BatchFolder) -> None:
    splits = {name: datasets.Dataset.from_dict({"prompt": [f"of {name}"]}) for name in ("train", "test")}
    datasets.DatasetDict(splits).save_to_disk(str(folder.path / "hf"))
    bodies = asked(folder, "--dataset_file=hf", "--split=test")
    assert bodies[0]["messages"][-1]["content"] == "of test"
    assert "its splits are: test, train" in refused(folder, "--dataset_file=hf", "--split=dev")


@option("batch_size")
def _batch_size(folder: BatchFolder) -> None:
    folder.write_rows(["slow", "b", "c", "d", "e"])
    others: set[str] = set()

    async def reply(request: RecordedRequest) -> Reply:
        if prompt_of(request) != "slow":
            others.add(prompt_of(request))
            return REASONED
        for _ in range(100):
            if len(others) == 4:
                return REASONED
            await asyncio.sleep(0.05)
        return chat_response("Nobody else was let in.", reasoning="Alas.")

    asked(folder, "--batch_size=2", "--num_workers=2", responses=reply)
    for number, prompts in enumerate(([0, 1], [2, 3], [4])):
        lines = folder.lines(f"batch_{number}.jsonl")
        assert sorted(line["prompt_index"] for line in lines) == prompts
        assert {line["metadata"]["batch_num"] for line in lines} == {number}
    assert "Done." in folder.lines()[0]["conversations"][-1]["value"]
    statistics = folder.json("statistics.json")
    assert (statistics["batch_size"], statistics["total_batches"]) == (2, 3)


@option("run_name")
def _run_name(folder: BatchFolder) -> None:
    for name in ("2024", "1e5", "007", "run#1", "my run"):
        asked(folder, f"--run_name={name}", "--max_samples=1")
        assert folder.json("statistics.json", name)["run_name"] == name
    for name in ("../up", "/tmp/x", "..", ""):
        assert "--run_name" in refused(folder, f"--run_name={name}")


# --- Table


def table_prompts(folder: BatchFolder, content: bytes, *words: str, name: str = "table.csv") -> list[str]:
    """The prompts that are sent of a dataset with this content."""
    (folder.path / name).write_bytes(content)
    return sorted(body["messages"][-1]["content"] for body in asked(folder, f"--dataset_file={name}", *words))


@option("encoding")
def _encoding(folder: BatchFolder) -> None:
    content = "prompt,n\nGröße,1\n".encode("cp1252")
    assert table_prompts(folder, content, "--encoding=cp1252") == ["Größe"]
    assert "klingon" in refused(folder, "--dataset_file=table.csv", "--encoding=klingon")


@option("delimiter")
def _delimiter(folder: BatchFolder) -> None:
    assert table_prompts(folder, b"prompt~n\nsay ho~1\n", "--delimiter=~") == ["say ho"]
    assert "can't be used" in refused(folder, "--dataset_file=table.csv", "--delimiter=ab")


@option("header_row")
def _header_row(folder: BatchFolder) -> None:
    assert table_prompts(folder, b"Prompts,Numbers\nprompt,n\nsay hi,1\n", "--header_row=2") == ["say hi"]
    assert "below line 9" in refused(folder, "--dataset_file=table.csv", "--header_row=9")


@option("sheet")
def _sheet(folder: BatchFolder) -> None:
    book = openpyxl.Workbook()
    sheet = book.create_sheet("Two")
    sheet.append(["prompt"])
    sheet.append(["say hi"])
    book.save(folder.path / "table.xlsx")
    content = (folder.path / "table.xlsx").read_bytes()
    assert table_prompts(folder, content, "--sheet=Two", name="table.xlsx") == ["say hi"]
    assert "no sheet 'Three'" in refused(folder, "--dataset_file=table.xlsx", "--sheet=Three")


# --- Model and provider


@option("model")
def _model(folder: BatchFolder) -> None:
    bodies = asked(folder, "--model=vendor/name-1")
    assert {body["model"] for body in bodies} == {"vendor/name-1"}
    assert {line["metadata"]["model"] for line in folder.lines()} == {"vendor/name-1"}
    assert folder.json("statistics.json")["model"] == "vendor/name-1"
    assert asked(folder, "--run_name=default")[0]["model"] == "anthropic/claude-sonnet-4.6"


@option("api_key")
def _api_key(folder: BatchFolder) -> None:
    key = "sk-or-v1-0123456789abcdef"
    echo = ScriptedResponse({"error": {"message": f"not allowed for {key}"}}, status=400)
    with ServerThread(first_then(shell("env"), echo)) as server:
        ran = folder.batch(f"--base_url={server.base_url}", f"--api_key={key}", "--verbose", "--executor=processes")
        assert {request.headers["Authorization"] for request in server.requests} == {f"Bearer {key}"}
        assert folder.json("summary.json")["ledger"]["failed"] == 3
        assert key.encode() not in everything_in(folder.path)
        assert key not in ran.out + ran.err
        assert folder.lines("failures.jsonl")[0]["message"].endswith("not allowed for [redacted]")


@option("base_url")
def _base_url(folder: BatchFolder) -> None:
    with ServerThread() as server:
        assert folder.batch(f"--base_url={server.base_url}").code == 0
        assert folder.batch(f"--base_url={server.base_url}/", "--api_key=k-1234", "--run_name=key").code == 0
        keys = [request.headers.get("Authorization") for request in server.requests]
        assert keys == [None] * 3 + ["Bearer k-1234"] * 3
        assert {request.path for request in server.requests} == {"/v1/chat/completions"}
    ran = folder.batch("--run_name=needs-key")
    assert (ran.code, folder.run("needs-key").exists()) == (2, False)
    assert "OPENROUTER_API_KEY" in ran.err
    assert "--base_url" in refused(folder, "--base_url=localhost:80")


@option("max_tokens")
def _max_tokens(folder: BatchFolder) -> None:
    assert {body["max_tokens"] for body in asked(folder, "--max_tokens=321")} == {321}
    assert "max_tokens" not in asked(folder, "--run_name=without")[0]


@option("reasoning_effort")
def _reasoning_effort(folder: BatchFolder) -> None:
    for effort in EFFORTS:
        sent = {"effort": "none"} if effort == "none" else {"enabled": True, "effort": effort}
        words = (f"--reasoning_effort={effort}", "--max_samples=1")
        assert asked(folder, *words, f"--run_name=or-{effort}", openrouter=True)[0]["reasoning"] == sent
        assert asked(folder, *words, f"--run_name={effort}")[0]["reasoning_effort"] == effort
    default = asked(folder, "--run_name=default", openrouter=True)[0]
    assert default["reasoning"] == {"enabled": True, "effort": "medium"}
    elsewhere = asked(folder, "--run_name=elsewhere")[0]
    assert not {"reasoning", "reasoning_effort"} & set(elsewhere)
    assert "--reasoning_effort must be one of none" in refused(folder, "--reasoning_effort=huge")


@option("header")
def _header(folder: BatchFolder) -> None:
    secret = "0123456789abcdef"
    words = ("--header", "X-Team: mine", f"--header=X-Api-Key: {secret}", "--executor=processes")
    with ServerThread(first_then(shell("env; echo mine"), chat_response(f"{secret} is mine", reasoning="r"))) as server:
        ran = folder.batch(f"--base_url={server.base_url}", *words)
        assert ran.code == 0, ran
        sent = {(each.headers["X-Team"], each.headers["X-Api-Key"]) for each in server.requests}
        assert sent == {("mine", secret)}
        assert secret.encode() not in everything_in(folder.path)
        assert "[redacted] is mine" in folder.lines()[0]["conversations"][-1]["value"]
        lacking = run_command(folder.path, "resume", "r")
        assert lacking.code == 2
        assert "give them again, --header='X-Team: …' --header='X-Api-Key: …'" in lacking.err
        again = run_command(folder.path, "resume", "r", "--header=X-Team: other", "--quiet")
        assert again.code == 0, again
    assert secret not in refused(folder, f"--header=X-Key {secret}")
    assert "belongs to the connection" in refused(folder, "--header=Host: x")


@option("send_reasoning")
def _send_reasoning(folder: BatchFolder) -> None:
    def sent(*words: str) -> set[str]:
        bodies = asked(folder, *words, "--max_samples=1", responses=first_then(shell("true")))
        return {name for body in bodies for each in body["messages"] for name in each if "reasoning" in name}

    assert sent() == {"reasoning"}
    assert sent("--send_reasoning=never", "--run_name=never") == set()
    assert sent("--send_reasoning=reasoning_content", "--run_name=field") == {"reasoning_content"}
    assert "must be auto, always, never, or a field" in refused(folder, "--send_reasoning=sometimes")


@option("stop")
def _stop(folder: BatchFolder) -> None:
    assert asked(folder, "--stop=a,b", "--stop= ")[0]["stop"] == ["a,b", " "]
    assert asked(folder, '--stop=["\\n\\n", "x"]', "--run_name=json")[0]["stop"] == ["\n\n", "x"]
    assert "stop" not in asked(folder, "--run_name=without")[0]


@option("tool_choice")
def _tool_choice(folder: BatchFolder) -> None:
    bodies = asked(folder, "--tool_choice=terminal", "--max_samples=1", responses=first_then(shell("true")))
    chosen = {"type": "function", "function": {"name": "terminal"}}
    assert [body.get("tool_choice") for body in bodies] == [chosen, None]
    bodies = asked(folder, "--tool_choice=none", "--run_name=none", "--max_samples=1")
    assert [body["tool_choice"] for body in bodies] == ["none"]
    assert "no toolset has the tool terminale" in refused(folder, "--tool_choice=terminale")


@option("extra_body")
def _extra_body(folder: BatchFolder) -> None:
    extra = {"chat_template_kwargs": {"enable_thinking": False}}
    assert asked(folder, f"--extra_body={json.dumps(extra)}")[0]["chat_template_kwargs"] == {"enable_thinking": False}
    (folder.path / "extra.json").write_text('{"top_k": 5}')
    assert asked(folder, "--extra_body=extra.json", "--run_name=file")[0]["top_k"] == 5
    for field in ("messages", "stream", "tools", "n"):
        assert f"can't set {field}" in refused(folder, f'--extra_body={{"{field}": 1}}')
    assert "give --temperature" in refused(folder, '--extra_body={"temperature": 1}')
    assert "is not JSON" in refused(folder, "--extra_body={top_k: 1}")
    ran = folder.batch("--resume", "--run_name=file", "--extra_body={}")
    assert "extra_body was {'top_k': 5}" in ran.err


@option("implied_think")
def _implied_think(folder: BatchFolder) -> None:
    responses = [chat_response("plan</think>Yes.")]
    asked(folder, "--implied_think", responses=responses)
    assert {line["conversations"][-1]["value"] for line in folder.lines()} == {"<think>\nplan\n</think>\nYes."}
    asked(folder, "--run_name=without", responses=responses, code=1)
    assert folder.lines(name="without") == []


@option("reasoning_disabled")
def _reasoning_disabled(folder: BatchFolder) -> None:
    words = ("--reasoning_disabled", "--reasoning_effort=high")
    assert asked(folder, *words, openrouter=True)[0]["reasoning"] == {"effort": "none"}
    assert asked(folder, *words, "--run_name=elsewhere")[0]["reasoning_effort"] == "none"


@option("temperature")
def _temperature(folder: BatchFolder) -> None:
    assert {body["temperature"] for body in asked(folder, "--temperature", "0.7")} == {0.7}
    assert "temperature" not in asked(folder, "--run_name=without")[0]


@option("top_p")
def _top_p(folder: BatchFolder) -> None:
    assert {body["top_p"] for body in asked(folder, "--top-p=.9")} == {0.9}
    assert "top_p" not in asked(folder, "--run_name=without")[0]


@option("seed")
def _seed(folder: BatchFolder) -> None:
    def seeds(name: str, *words: str) -> dict[str, Any]:
        bodies = asked(folder, f"--run_name={name}", *words)
        return {body["messages"][-1]["content"]: body.get("seed") for body in bodies}

    first = seeds("first", "--seed=7")
    assert len(set(first.values())) == 3
    assert seeds("again", "--seed=7") == first
    assert set(first.values()).isdisjoint(seeds("other", "--seed=8").values())
    assert set(seeds("without").values()) == {None}
    assert {line["metadata"]["seed"] for line in folder.lines(name="first")} == set(first.values())


def _routed(folder: BatchFolder, *words: str) -> dict[str, Any]:
    body = asked(folder, *words, openrouter=True)[0]
    assert "provider" not in asked(folder, *words, "--run_name=elsewhere")[0]
    provider: dict[str, Any] = body["provider"]
    return provider


@option("providers_allowed")
def _providers_allowed(folder: BatchFolder) -> None:
    assert _routed(folder, "--providers_allowed=anthropic,google") == {"only": ["anthropic", "google"]}


@option("providers_ignored")
def _providers_ignored(folder: BatchFolder) -> None:
    assert _routed(folder, "--providers_ignored", "together, deepinfra") == {"ignore": ["together", "deepinfra"]}


@option("providers_order")
def _providers_order(folder: BatchFolder) -> None:
    assert _routed(folder, "--providers-order=deep-infra,x-ai,openai") == {"order": ["deep-infra", "x-ai", "openai"]}


@option("provider_sort")
def _provider_sort(folder: BatchFolder) -> None:
    for order in ("price", "throughput", "latency"):
        words = (f"--provider_sort={order}", f"--run_name={order}")
        assert asked(folder, *words, openrouter=True)[0]["provider"] == {"sort": order}


@option("simulated_latency")
def _simulated_latency(folder: BatchFolder) -> None:
    assert folder.batch("--model=simulated", "--simulated_latency=0.2", "--max_samples=1").code == 0
    (line,) = folder.lines()
    assert line["metadata"]["duration_seconds"] >= 0.2 * line["api_calls"]
    assert line["metadata"]["simulated"] is True


# --- Conversation


@option("agent")
def _agent(folder: BatchFolder) -> None:
    with installed(folder.path):
        bodies = asked(folder, "--agent=careful", "--max_samples=1", "--keep_synthetic")
    assert len(bodies) == 2
    (line,) = folder.lines()
    assert [turn["from"] for turn in line["conversations"]] == ["system", "human", "gpt", "human", "gpt"]
    assert "no agent is called 'careful'" in refused(folder, "--agent=careful")


@option("max_turns")
def _max_turns(folder: BatchFolder) -> None:
    bodies = asked(folder, "--max_turns=3", "--max_samples=1", responses=[shell("true")])
    (line,) = folder.lines()
    assert (len(bodies), line["api_calls"], line["completed"]) == (3, 3, False)
    assert line["metadata"]["stop_reason"] == "max_turns"
    assert len(asked(folder, "--run_name=ten", "--max_samples=1", responses=[shell("true")])) == 10


@option("ephemeral_system_prompt")
def _ephemeral_system_prompt(folder: BatchFolder) -> None:
    text = "Think like a zebra, yes, no."
    bodies = asked(folder, f"--ephemeral_system_prompt={text}", responses=first_then(shell("true")))
    assert all(body["messages"][0]["role"] == "system" and text in body["messages"][0]["content"] for body in bodies)
    for file in ("trajectories.jsonl", "batch_0.jsonl", "batch_1.jsonl"):
        assert text not in (folder.run() / file).read_text()


@option("prefill_messages_file")
def _prefill_messages_file(folder: BatchFolder) -> None:
    prefill = [{"role": "user", "content": "What is 2+2?"}, {"role": "assistant", "content": "A prefilled four."}]
    (folder.path / "prefill.json").write_text(json.dumps(prefill))
    responses = first_then(REASONED)
    bodies = asked(folder, "--prefill_messages_file=prefill.json", responses=responses)
    for body in bodies:
        assert [(message["role"], message["content"]) for message in body["messages"][1:-1]] == [
            (message["role"], message["content"]) for message in prefill
        ]
    for file in ("trajectories.jsonl", "batch_0.jsonl"):
        assert "prefilled" not in (folder.run() / file).read_text()
        assert "2+2" not in (folder.run() / file).read_text()
    for content in ('{"role": "user"}', '["text"]', "[{", '[{"role": "nobody", "content": "x"}]'):
        (folder.path / "bad.json").write_text(content)
        assert "bad.json" in refused(folder, "--prefill_messages_file=bad.json")


@option("keep_synthetic")
def _keep_synthetic(folder: BatchFolder) -> None:
    half = chat_response("The first half", reasoning="Long.")
    half["choices"][0]["finish_reason"] = "length"
    rest = chat_response(", and the rest.", reasoning="Go on.")
    for name, words, turns in (
        ("without", (), ["human", "gpt"]),
        ("with", ("--keep_synthetic",), ["human", "gpt"] * 2),
    ):
        asked(folder, f"--run_name={name}", *words, responses=first_then(half, rest))
        assert [turn["from"] for turn in folder.lines(name=name)[0]["conversations"][1:]] == turns
    assert folder.lines(name="without")[0]["conversations"][-1]["value"].endswith("The first half, and the rest.")


# --- Tools and sandbox


def _offered(bodies: list[dict[str, Any]]) -> set[str]:
    return {tool["function"]["name"] for tool in bodies[0].get("tools", ())}


@option("distribution")
def _distribution(folder: BatchFolder) -> None:
    bodies = asked(folder, "--distribution=terminal_only")
    assert _offered(bodies) == {"terminal", "process", "read_file", "write_file", "patch", "search_files"}
    assert folder.lines()[0]["toolsets_used"] == ["terminal", "file"]
    assert folder.json("statistics.json")["distribution"] == "terminal_only"
    folder.write_rows([f"prompt {number}" for number in range(12)])
    asked(folder, "--distribution=balanced", "--run_name=balanced")
    drawn = {tuple(line["toolsets_used"]) for line in folder.lines(name="balanced")}
    assert len(drawn) > 3  # each prompt has a draw of its own
    assert "terminal_only" in refused(folder, "--distribution=terminal_onyl")


@option("list_distributions")
def _list_distributions(folder: BatchFolder) -> None:
    ran = folder.batch("--list_distributions")
    assert ran.code == 0
    assert not folder.run().exists()
    for name in ("default", "terminal_only", "science", "mixed_tasks", "browser_use"):
        assert name in ran.out


@option("distributions_file")
def _distributions_file(folder: BatchFolder) -> None:
    (folder.path / "own.yaml").write_text(
        "toolsets:\n  shell:\n    description: A shell only\n    tools: [terminal]\n"
        "mine:\n  description: My own\n  toolsets:\n    shell: 100\n"
    )
    words = ("--distributions_file=own.yaml", "--distribution=mine")
    assert _offered(asked(folder, *words)) == {"terminal"}
    assert folder.lines()[0]["toolsets_used"] == ["shell"]
    assert "My own" in folder.batch("--distributions_file=own.yaml", "--list_distributions").out
    assert "mine" in refused(folder, "--distribution=mine")


@option("tools")
def _tools(folder: BatchFolder) -> None:
    (folder.path / "prices.py").write_text(
        "CALLS = []\n"
        "def price(thing: str, amount: int = 1) -> dict:\n"
        "    'The price of something.'\n"
        "    CALLS.append(thing)\n"
        "    return {'total': 21 * amount, 'calls': len(CALLS)}\n"
    )
    responses = first_then(calling(tool_call("price", thing="nut", amount=2)))
    (folder.path / "own.yaml").write_text("mine: {toolsets: {search: 100}}\n")
    drawn = ("--distributions_file=own.yaml", "--distribution=mine")  # which has no tool, as no service is set up
    bodies = asked(folder, "--tools=prices.py", *drawn, "--max_samples=1", responses=responses)
    assert _offered(bodies) == {"price"}
    assert json.loads(results(bodies)[0]) == {"total": 42, "calls": 1}
    line = folder.lines()[0]
    assert json.loads(line["metadata"]["other_tool_stats"]) == {"price": {"count": 1, "success": 1, "failure": 0}}
    assert line["metadata"]["toolsets_offered"] == "prices"
    with ServerThread() as server:
        (folder.path / "prices.py").write_text("def price(thing: str) -> str:\n    'Another one.'\n    return ''\n")
        ran = folder.batch("--resume", f"--base_url={server.base_url}", "--max_samples=2", *drawn)
        assert ran.code == 0, ran
        assert "prices.py changed since the run was made" in ran.err
        assert "thing" in server.bodies[-1]["tools"][0]["function"]["parameters"]["required"]
    assert "there is no file" in refused(folder, "--tools=none.py")


@option("mcp_config")
def _mcp_config(folder: BatchFolder) -> None:
    command, *args = forked_program(MCP_SERVER, "stdio")
    servers = {"math": {"command": command, "args": args, "tools": ["add"]}}
    (folder.path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    (folder.path / "own.yaml").write_text("mine:\n  description: My own\n  toolsets:\n    math: 100\n")
    words = ("--mcp_config=mcp.json", "--distributions_file=own.yaml", "--distribution=mine", "--max_samples=1")
    bodies = asked(folder, *words, responses=first_then(calling(tool_call("math__add", a=2, b=40))))
    assert _offered(bodies) == {"math__add"}
    assert "42" in results(bodies)[0]
    line = folder.lines()[0]
    assert json.loads(line["metadata"]["other_tool_stats"]) == {"math__add": {"count": 1, "success": 1, "failure": 0}}
    assert "math__add" not in line["tool_stats"]
    assert (line["toolsets_used"], line["metadata"]["toolsets_offered"]) == (["math"], "math")


@option("sandbox")
def _sandbox(folder: BatchFolder) -> None:
    (folder.path / "secret.txt").write_text("on the host")
    look = first_then(shell(f"cat {folder.path}/secret.txt; echo looked"))
    assert "on the host" in results(asked(folder, "--sandbox=local", "--max_samples=1", responses=look))[0]
    for name in ("bubblewrap", "auto"):
        bodies = asked(folder, f"--sandbox={name}", f"--run_name={name}", "--max_samples=1", responses=look)
        assert "looked" in results(bodies)[0]
        assert "on the host" not in results(bodies)[0]
    assert "bubblewrap" in refused(folder, "--sandbox=bubblewarp")


def _check_refused_ssh(folder: BatchFolder, name: str) -> None:
    words, said = REFUSED[name]
    assert said in refused(folder, "--sandbox=ssh", *words)


@option("ssh_host")
def _ssh_host(folder: BatchFolder) -> None:
    _check_refused_ssh(folder, "ssh_host")


@option("ssh_user")
def _ssh_user(folder: BatchFolder) -> None:
    _check_refused_ssh(folder, "ssh_user")


@option("ssh_port")
def _ssh_port(folder: BatchFolder) -> None:
    _check_refused_ssh(folder, "ssh_port")


@option("ssh_key")
def _ssh_key(folder: BatchFolder) -> None:
    _check_refused_ssh(folder, "ssh_key")


@option("ssh_config")
def _ssh_config(folder: BatchFolder) -> None:
    _check_refused_ssh(folder, "ssh_config")


@option("ssh_dir")
def _ssh_dir(folder: BatchFolder) -> None:
    with ssh_server() as server:
        bodies = asked(folder, *server.options, "--max_samples=1", responses=first_then(shell("pwd; echo $HOME")))
        assert results(bodies)[0].count(f"{server.worlds}/files/") == 2
        assert list((server.worlds / "snapshots").iterdir()) == []


@option("network")
def _network(folder: BatchFolder) -> None:
    for name, words, said in (("without", (), "closed"), ("with", ("--network",), "open")):
        responses: list[Reply] = []

        def reply(request: RecordedRequest, responses: list[Reply] = responses) -> Reply:
            return first_then(responses[0])(request)

        with ServerThread(reply) as server:
            port = server.base_url.rpartition(":")[2].partition("/")[0]
            responses.append(shell(f"(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo open || echo closed"))
            where = (f"--base_url={server.base_url}", "--sandbox=bubblewrap", "--max_samples=1", f"--run_name={name}")
            assert folder.batch(*where, *words).code == 0
            assert json.loads(results(server.bodies)[0])["output"].strip() == said


@option("network_allow")
def _network_allow(folder: BatchFolder) -> None:
    for name, rule, said in (("listed", "127.0.0.1", "200"), ("other", "10.0.0.0/8,files.example", "403")):
        responses: list[Reply] = []

        def reply(request: RecordedRequest, responses: list[Reply] = responses) -> Reply:
            return first_then(responses[0])(request)

        with ServerThread(reply) as server:
            port = server.base_url.rpartition(":")[2].partition("/")[0]
            ask = f"CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\n\\r\\n"
            responses.append(
                shell(f"exec 3<>/dev/tcp/127.0.0.1/13128; printf '{ask}' >&3; head -n 1 <&3 | cut -d ' ' -f 2")
            )
            where = (
                f"--base_url={server.base_url}",
                "--sandbox=bubblewrap",
                f"--network_allow={rule}",
                "--max_samples=1",
                f"--run_name={name}",
            )
            assert folder.batch(*where).code == 0
            assert json.loads(results(server.bodies)[0])["output"].strip() == said
    shown = run_command(folder.path, "show", str(folder.run("other")), "1")
    assert "127.0.0.1 1 refused" in shown.out
    assert run_command(folder.path, "check", str(folder.run("listed"))).code == 0
    assert "--network_allow 'a.example:80' names a port" in refused(folder, "--network_allow=b.example,a.example:80")
    assert "give --network or --network_allow, not both" in refused(folder, "--network_allow=b.example", "--network")
    assert "the local sandbox can't keep" in refused(folder, "--network_allow=b.example", "--sandbox=local")


@option("sandbox_disk")
def _sandbox_disk(folder: BatchFolder) -> None:
    fill = first_then(shell("head -c 15000000 /dev/zero >large; ls"))
    bodies = asked(folder, "--sandbox_disk=0.01", "--max_samples=1", responses=fill)
    assert "disk quota exceeded: 14.3 MiB of 10.2 MiB; remove files" in results(bodies)[0]
    assert "disk quota" not in results(asked(folder, "--run_name=roomy", "--max_samples=1", responses=fill))[0]
    assert "--sandbox_disk" in refused(folder, "--sandbox_disk=0")


@option("min_free")
def _min_free(folder: BatchFolder) -> None:
    fill = shell("head -c 55000000 /dev/zero >large; sleep 1.5; ls")
    mount = (
        'mkdir disk && mount -t tmpfs -o size=64m small disk && "$@"; code=$?; cp disk/r/failures.jsonl .; exit $code'
    )
    alone = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    for words, code in (("--min_free=0.03",), 1), ((), 0):
        shutil.rmtree(folder.path / "disk", ignore_errors=True)  # the place of a disk that is gone
        with ServerThread(first_then(fill)) as server:
            where = (
                "--data_dir=disk",
                "--run_name=r",
                f"--base_url={server.base_url}",
                "--max_samples=1",
                "--batch_size=1",
            )
            command = [
                *PROGRAM,
                "batch",
                "--dataset_file=d.jsonl",
                "--distribution=terminal_only",
                *where,
                *words,
            ]
            ran = subprocess.run(
                [*alone, "sh", "-c", mount, "sh", *command, "--model=m", "--quiet"],
                cwd=folder.path,
                env=environment(),
                capture_output=True,
                timeout=60,
                check=False,
            )
        assert ran.returncode == code, ran
        assert ("sandbox_limit" in (folder.path / "failures.jsonl").read_text()) is bool(code)
    assert "--min_free" in refused(folder, "--min_free=-1")


@option("sequential_tools")
def _sequential_tools(folder: BatchFolder) -> None:
    calls = calling(
        tool_call("terminal", 0, command="sleep 0.5; cat made.txt || echo none"),
        tool_call("write_file", 1, path="made.txt", content="written meanwhile"),
    )
    parallel = asked(folder, "--max_samples=1", responses=first_then(calls))
    assert "written meanwhile" in results(parallel)[0]
    sequential = asked(folder, "--max_samples=1", "--run_name=s", "--sequential_tools", responses=first_then(calls))
    assert "none" in results(sequential)[0]
    assert "written meanwhile" not in results(sequential)[0]


@option("keep_workspaces")
def _keep_workspaces(folder: BatchFolder) -> None:
    write = first_then(calling(tool_call("write_file", path="made.txt", content="made")))
    asked(folder, responses=write)
    assert not list(folder.run().rglob("made.txt"))
    asked(folder, "--run_name=kept", "--keep_workspaces", responses=write)
    assert len(list(folder.run("kept").rglob("made.txt"))) == 3


# --- Container images


def _seen(folder: BatchFolder, registry: Boxes, name: str, *words: str) -> list[str]:
    """Which image the agent of each row saw around it, in a run of that name, all images being pulled anew."""
    registry.forget()
    asked(folder, f"--sandbox={BOXES}", f"--run_name={name}", *words, responses=first_then(shell("echo box=$BOX=")))
    calls = [line["conversations"] for line in folder.lines(name=name)]
    return [next(turn["value"] for turn in turns if turn["from"] == "tool").split("box=")[1][:20] for turns in calls]


@option("image")
def _image(folder: BatchFolder) -> None:
    with boxes(folder.path / "double") as registry:
        registry.publish("own:1", "base:1")
        folder.write_rows([{"prompt": "one", "image": "own:1"}, "two"])
        assert _seen(folder, registry, "r", "--image=base:1") == [pin_of("own:1")[:20], pin_of("base:1")[:20]]
        assert "base:2" in refused(folder, f"--sandbox={BOXES}", "--image=base:2")
        assert "image was 'base:1'" in folder.batch("--resume", "--image=own:1").err


@option("image_field")
def _image_field(folder: BatchFolder) -> None:
    with boxes(folder.path / "double") as registry:
        registry.publish("own:1")
        folder.write_rows([{"prompt": "one", "image": "a picture", "box": "own:1"}])
        assert _seen(folder, registry, "r", "--image_field=box") == [pin_of("own:1")[:20]]


@option("image_template")
def _image_template(folder: BatchFolder) -> None:
    with boxes(folder.path / "double") as registry:
        registry.publish("sweb.a_1776_b:1")
        folder.write_rows([{"prompt": "one", "name": "A__b"}])
        found = _seen(folder, registry, "r", "--image_template=sweb.{name|swebench}:1")
        assert found == [pin_of("sweb.a_1776_b:1")[:20]]
        assert "no text in" in refused(folder, f"--sandbox={BOXES}", "--image_template={nobody}")


@option("skip_missing_images")
def _skip_missing_images(folder: BatchFolder) -> None:
    with boxes(folder.path / "double") as registry:
        registry.publish("own:1")
        folder.write_rows([{"prompt": "one", "image": "own:1"}, {"prompt": "two", "image": "gone:1"}])
        assert "gone:1 (row 2)" in refused(folder, f"--sandbox={BOXES}")
        assert _seen(folder, registry, "r", "--skip_missing_images") == [pin_of("own:1")[:20]]
        assert "gone:1" in json.dumps(folder.lines("failures.jsonl"))


@option("ignore_images")
def _ignore_images(folder: BatchFolder) -> None:
    folder.write_rows([{"prompt": "one", "image": "gone:1"}])
    assert "--ignore_images" in refused(folder)
    assert len(asked(folder, "--ignore_images")) == 1


@option("pull")
def _pull(folder: BatchFolder) -> None:
    with boxes(folder.path / "double") as registry:
        registry.publish("own:1")
        folder.write_rows([{"prompt": "one", "image": "own:1"}])
        assert "not here, and --pull is never" in refused(folder, f"--sandbox={BOXES}", "--pull=never")
        for how, newest in (("missing", False), ("always", True)):
            _seen(folder, registry, how, f"--pull={how}")
            assert ("find newest own:1" in registry.asked) is newest
        assert registry.counts("pull") == {pin_of("own:1"): 2}
        assert "--pull" in refused(folder, "--pull=sometimes")


@option("image_cache")
def _image_cache(folder: BatchFolder) -> None:
    with boxes(folder.path / "double") as registry:
        registry.publish("own:1", "own:2", "own:3", size=3_000_000)
        folder.write_rows([{"prompt": name, "image": name} for name in ("own:1", "own:2", "own:3")])
        _seen(folder, registry, "large", "--max_concurrency=1", "--image_cache=1GB")
        assert registry.counts("remove") == {}
        _seen(folder, registry, "small", "--max_concurrency=1", "--image_cache=7MB")
        assert sum(registry.counts("remove").values()) == 1
        assert "--image_cache" in refused(folder, "--image_cache=much")


def _engine_options(folder: BatchFolder, *words: str) -> set[str]:
    """What an engine is told of a run: runtime, checkpoints, their limit, whether they outlive the machine."""
    with boxes(folder.path / "double") as registry:
        registry.publish("own:1")
        folder.write_rows([{"prompt": "one", "image": "own:1"}])
        _seen(folder, registry, "r", *words)
        return set(registry.counts("options"))


@option("container_runtime")
def _container_runtime(folder: BatchFolder) -> None:
    assert _engine_options(folder, "--container_runtime=runsc") == {"runsc True 67108864 False"}


@option("checkpoints")
def _checkpoints(folder: BatchFolder) -> None:
    assert _engine_options(folder, "--no-checkpoints") == {"None False 67108864 False"}


@option("checkpoint_limit")
def _checkpoint_limit(folder: BatchFolder) -> None:
    assert _engine_options(folder, "--checkpoint_limit=1GiB") == {"None True 1073741824 False"}
    assert "--checkpoint_limit" in refused(folder, "--checkpoint_limit=-1")


@option("durable_worlds")
def _durable_worlds(folder: BatchFolder) -> None:
    assert _engine_options(folder, "--durable_worlds") == {"None True 67108864 True"}


@option("unenforced_limits")
def _unenforced_limits(folder: BatchFolder) -> None:
    with boxes(folder.path / "double") as registry:
        registry.publish("own:1")
        (registry.folder / "unenforced").write_text("memory cpu_seconds")
        folder.write_rows([{"prompt": "one", "image": "own:1"}])
        assert "can't enforce the limits of memory, cpu seconds" in refused(folder, f"--sandbox={BOXES}")
        assert len(_seen(folder, registry, "r", "--unenforced_limits")) == 1


# --- What an item's sandbox is given


class WorldRuns:
    """Batches for ``WORLD_CHECKS``."""

    def __init__(self, folder: BatchFolder) -> None:
        self.path = folder.path
        self._folder = folder
        self._runs = 0

    def collected(self, *words: str, row: Mapping[str, object] | None = None) -> str | None:
        self._runs += 1
        name = f"w{self._runs}"
        self._folder.write_rows([{"prompt": "one", "name": "a", **(row or {})}])
        with ServerThread([REASONED]) as server:
            ran = self._folder.batch(f"--base_url={server.base_url}", f"--run_name={name}", *words)
        assert ran.code in (0, 1), ran
        assert len(server.requests) == 1 - ran.code
        return None if ran.code else str(self._folder.lines(name=name)[0]["metadata"]["collected"])

    def refused(self, *words: str) -> str:
        return refused(self._folder, *words)


def _check_of_world(check: Callable[[WorldRuns], None]) -> Check:
    return lambda folder: check(WorldRuns(folder))


for _name in WORLD_CHECKS:
    option(_name)(_check_of_world(WORLD_CHECKS[_name]))


# --- Tools of the web


class WebRuns:
    """Batches for ``WEB_CHECKS`` and ``TOOL_CHECKS``."""

    def __init__(self, folder: BatchFolder) -> None:
        self.path = folder.path
        self._folder = folder
        self._runs = 0

    def result(self, tool: str, arguments: Mapping[str, Any], *words: str, toolset: str = "web") -> str:
        self._runs += 1
        usual = (f"--run_name=web{self._runs}", f"--tools={toolset}", "--max_samples=1")
        responses = first_then(calling(tool_call(tool, **arguments)))
        bodies = asked(self._folder, *usual, *words, responses=responses)
        (found,) = (str(each["content"]) for each in bodies[-1]["messages"] if each["role"] == "tool")
        return found

    def refused(self, *words: str) -> str:
        return refused(self._folder, *words)


def _check_of_web(check: Callable[[WebRuns], None]) -> Check:
    return lambda folder: check(WebRuns(folder))


for _name, _web_check in {**WEB_CHECKS, **TOOL_CHECKS}.items():
    option(_name)(_check_of_web(_web_check))


# --- Task folders


def _task(folder: BatchFolder, run: str, *words: str, code: int = 0, **parts: Any) -> list[dict[str, Any]]:
    """The trajectories of a batch of the folder ``tasks``, which has a task ``a``: its score is what the file ``out`` says."""
    test = "#!/bin/bash\ncp out /logs/verifier/reward.txt\n"
    make_task(folder.path / "tasks" / "a", **{"test": test, **parts})
    ran = folder.batch("--dataset_file=tasks", "--sandbox=bubblewrap", f"--run_name={run}", *words)
    assert ran.code == code, ran
    return folder.lines(name=run) if folder.run(run).exists() else []


@option("agent_command")
def _agent_command(folder: BatchFolder) -> None:
    command = "cat >read; cmp read {instruction_file} && echo 0.5 >out; echo {instruction}"
    (line,) = _task(folder, "r", f"--agent_command={command}", instruction="It's this.\n")
    assert line["metadata"]["score"] == 0.5
    assert "It's this." in line["conversations"][-1]["value"]
    assert "task folders" in refused(folder, "--agent_command=true")


@option("task_env")
def _task_env(folder: BatchFolder) -> None:
    toml = '[environment.env]\nWORD = "${NOT_SET_ANYWHERE}"\n'
    assert _task(folder, "r", "--agent_command=echo $WORD >out", code=2, toml=toml) == []
    (line,) = _task(folder, "r", "--agent_command=echo $WORD >out", "--task_env=NOT_SET_ANYWHERE=0.75", toml=toml)
    assert line["metadata"]["score"] == 0.75
    assert "task folders" in refused(folder, "--task_env=A=b")


@option("reward")
def _reward(folder: BatchFolder) -> None:
    test = '#!/bin/bash\necho \'{"x": 0.25, "y": 0.75}\' >/logs/verifier/reward.json\n'
    (line,) = _task(folder, "r", "--agent_command=true", "--reward=y", test=test)
    assert line["metadata"]["score"] == 0.75
    assert "task folders" in refused(folder, "--reward=y")


@option("skip_invalid")
def _skip_invalid(folder: BatchFolder) -> None:
    make_task(folder.path / "tasks" / "bad", toml="[environment]\ngpus = 2\n")
    assert _task(folder, "strict", "--agent_command=echo 1 >out", code=2) == []
    assert len(_task(folder, "lenient", "--agent_command=echo 1 >out", "--skip_invalid")) == 1
    assert "gpus" in json.dumps(folder.lines("failures.jsonl", name="lenient"))


def _score_of_slow_agent(folder: BatchFolder, run: str, *words: str) -> float:
    """0 if the agent's time ended before the agent did; the task gives it a second."""
    slow = "--agent_command=echo 0 >out; sleep 2; echo 1 >out"
    (line,) = _task(folder, run, slow, *words, toml="[agent]\ntimeout_sec = 1\n")
    return float(line["metadata"]["score"])


@option("timeout_multiplier")
def _timeout_multiplier(folder: BatchFolder) -> None:
    assert _score_of_slow_agent(folder, "once") == 0
    assert _score_of_slow_agent(folder, "longer", "--timeout_multiplier=60") == 1
    assert "--timeout_multiplier" in refused(folder, "--timeout_multiplier=0")


@option("end_processes")
def _end_processes(folder: BatchFolder) -> None:
    left = "--agent_command=mkfifo served; (echo 1 >served) >/dev/null 2>&1 &"
    words: dict[str, Any] = {
        "toml": "[verifier]\ntimeout_sec = 20\n",
        "test": "#!/bin/bash\ntimeout 3 cat served >/logs/verifier/reward.txt || echo 0 >/logs/verifier/reward.txt\n",
    }
    (line,) = _task(folder, "kept", left, **words)
    assert line["metadata"]["score"] == 1
    (line,) = _task(folder, "ended", left, "--end_processes", **words)
    assert line["metadata"]["score"] == 0


@option("override_task")
def _override_task(folder: BatchFolder) -> None:
    assert _score_of_slow_agent(folder, "task", "--time_limit=60") == 0
    assert _score_of_slow_agent(folder, "run", "--time_limit=60", "--override_task") == 1


@option("time_limit")
def _time_limit(folder: BatchFolder) -> None:
    def reply(request: RecordedRequest) -> Reply:
        return ScriptedResponse(REASONED, delay=20.0) if len(request.body["messages"]) > 2 else shell("echo begun")

    with ServerThread(reply) as server:
        words = (f"--base_url={server.base_url}", "--max_samples=1", "--time_limit=2")
        began = time.monotonic()
        ran = folder.batch(*words)
        assert time.monotonic() - began < 18
    assert ran.code == 0, ran
    (line,) = folder.lines()
    assert not line["completed"]
    assert "begun" in next(turn["value"] for turn in line["conversations"] if turn["from"] == "tool")
    assert "--time_limit" in refused(folder, "--time_limit=0")


@option("id_field")
def _id_field(folder: BatchFolder) -> None:
    folder.write_rows([{"prompt": "one", "id": 1, "key": "first"}, {"prompt": "two", "id": 2, "key": "second"}])
    asked(folder, "--id_field=key")
    assert [line["metadata"]["item"] for line in folder.lines()] == ["id:first#0", "id:second#0"]
    assert "nowhere" in refused(folder, "--id_field=nowhere")


@option("tool_timeout")
def _tool_timeout(folder: BatchFolder) -> None:
    bodies = asked(folder, "--tool_timeout=0.3", "--max_samples=1", responses=first_then(shell("sleep 30")))
    assert "0.3" in results(bodies)[0]
    assert folder.lines()[0]["tool_error_counts"]["terminal"] == 1


# --- Concurrency


@option("num_workers")
def _num_workers(folder: BatchFolder) -> None:
    folder.write_rows([f"prompt {number}" for number in range(6)])
    crowd = Crowd(3)
    asked(folder, "--num_workers=3", "--executor=processes", responses=crowd)
    assert crowd.most == 3
    assert "--num_workers" in refused(folder, "--num_workers=0")


@option("concurrency")
def _concurrency(folder: BatchFolder) -> None:
    folder.write_rows([f"prompt {number}" for number in range(8)])
    crowd = Crowd(4)
    asked(folder, "--num_workers=1", "--concurrency=4", responses=crowd)
    assert crowd.most == 4
    crowd = Crowd(2)
    asked(folder, "--num_workers=2", "--run_name=alone", responses=crowd)
    assert crowd.most == 2


@option("max_concurrency")
def _max_concurrency(folder: BatchFolder) -> None:
    folder.write_rows([f"prompt {number}" for number in range(8)])
    for number, words in enumerate((("--num_workers=1",), ("--num_workers=2", "--concurrency=8"))):
        crowd = Crowd(3)
        asked(folder, "--max_concurrency=3", f"--run_name=c{number}", *words, responses=crowd)
        assert crowd.most == 3
    assert "--max_concurrency" in refused(folder, "--max_concurrency=0")


@option("executor")
def _executor(folder: BatchFolder) -> None:
    for name, processes in (("local", False), ("processes", True)):
        asked(folder, f"--executor={name}", f"--run_name={name}", "--max_samples=1")
        assert (folder.run(name) / "workers.log").exists() is processes
    assert "--executor" in refused(folder, "--executor=threads")


# What these do on a cluster, tests/cluster shows.


@option("ray_address")
def _ray_address(folder: BatchFolder) -> None:
    assert "--executor=ray" in refused(folder, "--ray_address=127.0.0.1:1")
    ran = folder.batch("--base_url=http://127.0.0.1:9/v1", "--executor=ray", "--ray_address=127.0.0.1:1")
    assert (ran.code, "--ray_address=127.0.0.1:1: there is no Ray cluster" in ran.err) == (2, True)


@option("ray_resources")
def _ray_resources(folder: BatchFolder) -> None:
    assert "--executor=ray" in refused(folder, '--ray_resources={"num_cpus": 2}')
    assert "num_cpus must be a number" in refused(folder, "--executor=ray", '--ray_resources={"num_cpus": "two"}')


@option("ray_listen")
def _ray_listen(folder: BatchFolder) -> None:
    assert "--executor=ray" in refused(folder, "--ray_listen=127.0.0.1:7400")


# --- Limits


def _stopped(folder: BatchFolder, usage: dict[str, Any], *words: str) -> None:
    """A batch of five stops before its end, exits with 1, and can be resumed."""
    folder.write_rows([f"prompt {number}" for number in range(5)])
    answer = {**REASONED, "usage": {"prompt_tokens": 2000, "completion_tokens": 5, "total_tokens": 2005, **usage}}
    with ServerThread([answer]) as server:
        base = (f"--base_url={server.base_url}", "--num_workers=1", "--max_tokens=10")
        ran = folder.batch(*base, *words)
        ledger = folder.json("summary.json")["ledger"]
        assert (ran.code, ledger["failed"]) == (1, 0)
        assert 0 < ledger["completed"] < 5
        assert ledger["completed"] + ledger["pending"] == 5
        assert "manyhands resume data/r" in ran.out
        assert len(server.requests) == ledger["completed"]
        name = words[0].partition("=")[0]
        assert folder.batch(*base, "--resume", f"{name}=1000000").code == 0
        assert len(server.requests) == 5


@option("max_cost")
def _max_cost(folder: BatchFolder) -> None:
    _stopped(folder, {"cost": 1.0}, "--max_cost=2.5")
    assert folder.json("statistics.json")["cost"] == 5.0


@option("max_total_tokens")
def _max_total_tokens(folder: BatchFolder) -> None:
    _stopped(folder, {}, "--max_total_tokens=7000")


@option("max_seconds")
def _max_seconds(folder: BatchFolder) -> None:
    folder.write_rows([f"prompt {number}" for number in range(8)])
    with ServerThread([ScriptedResponse(REASONED, delay=0.3)]) as server:
        ran = folder.batch(f"--base_url={server.base_url}", "--num_workers=1", "--max_seconds=0.5")
    ledger = folder.json("summary.json")["ledger"]
    assert ran.code == 1
    assert 0 < ledger["completed"] < 8


@option("item_timeout")
def _item_timeout(folder: BatchFolder) -> None:
    def reply(request: RecordedRequest) -> Reply:
        return ScriptedResponse(REASONED, delay=20.0 if prompt_of(request) == "two" else 0.0)

    with ServerThread(reply) as server:
        ran = folder.batch(f"--base_url={server.base_url}", "--item_timeout=0.5")
    assert ran.code == 1
    (failure,) = folder.lines("failures.jsonl")
    assert (failure["prompt"], failure["state"], failure["cause"]) == ("two", "failed", "timeout")
    assert len(folder.lines()) == 2


@option("call_timeout")
def _call_timeout(folder: BatchFolder) -> None:
    responses: list[Reply] = [ScriptedResponse(REASONED, delay=20.0), REASONED]
    bodies = asked(folder, "--call_timeout=0.3", "--max_samples=1", responses=responses)
    assert len(bodies) == 2


@option("max_attempts")
def _max_attempts(folder: BatchFolder) -> None:
    for name, performances in (("one", 1), ("two", 2)):
        folder.run(name).mkdir(parents=True)
        (folder.run(name) / "workspaces").write_text("in the way of every sandbox")
        with ServerThread([shell("true")]) as server:
            where = (f"--base_url={server.base_url}", f"--run_name={name}", "--max_samples=1")
            assert folder.batch(*where, f"--max_attempts={performances}").code == 1
        (failure,) = folder.lines("failures.jsonl", name)
        assert (failure["cause"], failure["performances"]) == ("sandbox_lost", performances)


@option("prices")
def _prices(folder: BatchFolder) -> None:
    (folder.path / "prices.yaml").write_text("own/model:\n  input: 1000000\n  output: 2000000\n")
    asked(folder, "--prices=prices.yaml", "--model=own/model")
    assert folder.json("statistics.json")["cost"] == 3 * (10 + 2 * 5)
    assert folder.lines()[0]["metadata"]["cost"] == 20.0
    (folder.path / "prices.yaml").write_text("own/model:\n  input: much\n  output: 2\n")
    assert "prices.yaml, line 2" in refused(folder, "--prices=prices.yaml")
    assert "no such file" in refused(folder, "--prices=elsewhere.yaml")


# --- Grading


def _by_length(request: RecordedRequest) -> Reply:
    """The answer to each prompt is the prompt."""
    return chat_response(f"About {prompt_of(request)}.", reasoning="Indeed.")


@option("grade")
def _grade(folder: BatchFolder) -> None:
    (folder.path / "checks.yaml").write_text("- {type: contains, value: two, name: says_two}\n")
    asked(folder, "--grade=checks.yaml", responses=_by_length)
    scores = [(line["metadata"]["score"], line["metadata"]["verdict"]) for line in folder.lines()]
    assert scores == [(0.0, "fail"), (1.0, "pass"), (0.0, "fail")]
    assert json.loads(folder.lines()[1]["metadata"]["scores"])["says_two"]["score"] == 1.0
    asked(folder, "--run_name=without")
    plain = folder.lines(name="without")[0]["metadata"]
    assert (plain["score"], plain["verdict"], plain["scores"]) == (-1.0, "", "{}")
    (folder.path / "checks.yaml").write_text("- type: contians\n  value: two\n")
    said = refused(folder, "--grade=checks.yaml")
    assert "checks.yaml, line 1" in said
    assert "contains" in said
    assert "nowhere.yaml" in refused(folder, "--grade=nowhere.yaml")


@option("min_score")
def _min_score(folder: BatchFolder) -> None:
    (folder.path / "checks.yaml").write_text("- {type: contains, value: two}\n")
    asked(folder, "--grade=checks.yaml", "--min_score=0.5", responses=_by_length)
    assert [line["prompt_index"] for line in folder.lines()] == [1]
    assert [(line["prompt"], line["cause"]) for line in folder.lines("failures.jsonl")] == [
        ("one", "low_score"),
        ("three", "low_score"),
    ]
    assert folder.json("summary.json")["ledger"]["by_cause"]["discarded"] == {"low_score": 2}
    assert "--min_score" in refused(folder, "--grade=checks.yaml", "--min_score=1.5")
    assert "--grade" in refused(folder, "--min_score=0.5")


@option("best_of")
def _best_of(folder: BatchFolder) -> None:
    asks: dict[str, int] = {}

    def reply(request: RecordedRequest) -> Reply:
        prompt = prompt_of(request)
        asks[prompt] = asks.get(prompt, 0) + 1
        return chat_response("Good." if asks[prompt] == 2 else "Bad.", reasoning="Well.")

    (folder.path / "checks.yaml").write_text("- {type: contains, value: Good}\n")
    asked(folder, "--grade=checks.yaml", "--samples=3", "--best_of", responses=reply)
    assert [(line["prompt_index"], line["metadata"]["score"]) for line in folder.lines()] == [
        (prompt, 1.0) for prompt in range(3)
    ]
    assert {line["cause"] for line in folder.lines("failures.jsonl")} == {"not_best"}
    assert len(folder.lines("failures.jsonl")) == 6
    assert "--samples" in refused(folder, "--grade=checks.yaml", "--best_of")
    assert "--grade" in refused(folder, "--samples=2", "--best_of")


# --- Samples and resume


@option("resume")
def _resume(folder: BatchFolder) -> None:
    with ServerThread() as server:
        where = f"--base_url={server.base_url}"
        assert folder.batch(where).code == 0
        for off in ([], ["--resume=false"], ["--resume", "false"], ["--no-resume"], ["--resume=0"], ["--resume=no"]):
            ran = folder.batch(where, *off)
            assert ran.code == 2
            assert "--resume" in ran.err
            assert "--run_name=" in ran.err
        for on in (["--resume"], ["--resume=true"], ["--resume", "True"], ["--resume=1"], ["--resume=yes"]):
            assert folder.batch(where, *on).code == 0
        assert len(server.requests) == 3
    assert folder.batch(where, "--resume=maybe").code == 2


@option("dry_run")
def _dry_run(folder: BatchFolder) -> None:
    before = {path.name for path in folder.path.iterdir()}
    ran = folder.batch("--dry_run", "--samples=2", "--model=gpt-5-mini")
    assert (ran.code, ran.err) == (0, "")
    for part in ("3 prompts, 2 samples of each", "model calls   about ", "dollars       about $0.", "estimated by"):
        assert part in ran.out
    assert {path.name for path in folder.path.iterdir()} == before
    assert "none.jsonl" in refused(folder, "--dry_run", "--dataset_file=none.jsonl")
    (folder.path / "table.csv").write_text("Report\n\nprompt;n\none, two;1\nthree;2\n")
    ran = folder.batch("--dry_run", "--dataset_file=table.csv")
    for part in ("separated by semicolons", "left out as a title", "--header_row sets"):
        assert part in ran.err, ran


@option("max_samples")
def _max_samples(folder: BatchFolder) -> None:
    bodies = asked(folder, "--max_samples=2", "--num_workers=1")
    assert [body["messages"][-1]["content"] for body in bodies] == ["one", "two"]
    assert folder.json("statistics.json")["total_prompts"] == 2
    for wrong in ("0", "-1", "2.5", "all"):
        assert "--max_samples" in refused(folder, f"--max_samples={wrong}")


@option("samples")
def _samples(folder: BatchFolder) -> None:
    bodies = asked(folder, "--samples=2")
    assert len(bodies) == 6
    lines = [(line["prompt_index"], line["metadata"]["sample"]) for line in folder.lines()]
    assert lines == [(prompt, sample) for prompt in range(3) for sample in range(2)]
    assert folder.json("statistics.json")["total_prompts"] == 3
    assert folder.json("checkpoint.json")["completed_prompts"] == [0, 1, 2]


@option("override")
def _override(folder: BatchFolder) -> None:
    with ServerThread() as server:
        where = f"--base_url={server.base_url}"
        assert folder.batch(where, "--max_samples=1", "--temperature=0.5").code == 0
        ran = folder.batch(where, "--max_samples=3", "--temperature=0.9", "--resume")
        assert ran.code == 2
        assert "temperature was 0.5 and is now 0.9" in ran.err
        assert "--override=temperature" in ran.err
        assert len(server.requests) == 1
        assert (
            folder.batch(where, "--max_samples=3", "--temperature=0.9", "--resume", "--override=temperature").code == 0
        )
        assert [body["temperature"] for body in server.bodies] == [0.5, 0.9, 0.9]
    assert folder.batch(where, "--resume", "--override=temprature").code == 2


@option("on_divergence")
def _on_divergence(folder: BatchFolder) -> None:
    answer = {**shell("true"), "usage": {"prompt_tokens": 1, "completion_tokens": 1, "cost": 1.0}}
    for name in ("fresh", "stop"):
        with ServerThread(first_then(answer)) as server:
            where = (f"--base_url={server.base_url}", f"--run_name={name}", "--max_samples=1")
            assert folder.batch(*where, "--max_cost=1").code == 1  # in the middle of a conversation
            changed = ("--resume", "--ephemeral_system_prompt=Other.", "--override=all", "--max_cost=9")
            ran = folder.batch(*where, *changed, f"--on_divergence={name}")
            if name == "fresh":
                assert (ran.code, len(server.requests)) == (0, 3)
                assert "fresh attempt" in ran.err
                assert folder.lines(name=name)[0]["metadata"]["attempt"] == 2
            else:
                assert (ran.code, len(server.requests)) == (1, 1)
                assert "--on_divergence=fresh" in ran.err


# --- Output


@option("verbose")
def _verbose(folder: BatchFolder) -> None:
    with ServerThread(first_then(shell("echo hello"))) as server:
        quiet = folder.batch(f"--base_url={server.base_url}")
        verbose = folder.batch(f"--base_url={server.base_url}", "--verbose", "--run_name=v")
        assert not list(folder.run("v").glob("run.db-*"))
    assert "toolsets" not in quiet.err
    for number in range(3):
        assert f"[P{number}] completed (answered), toolsets terminal, file" in verbose.err
        assert f'[P{number}]   terminal({{"command": "echo hello"}}) -> ' in verbose.err


@option("log_prefix_chars")
def _log_prefix_chars(folder: BatchFolder) -> None:
    with ServerThread(first_then(shell("echo hello"))) as server:
        ran = folder.batch(f"--base_url={server.base_url}", "--verbose", "--log_prefix_chars=9")
    assert '  terminal({"command…) -> ' in ran.err
    assert "hello" not in ran.err


@option("keep_unreasoned")
def _keep_unreasoned(folder: BatchFolder) -> None:
    asked(folder, responses=[UNREASONED], code=1)
    assert folder.lines() == []
    assert {line["cause"] for line in folder.lines("failures.jsonl")} == {"no_reasoning"}
    assert folder.json("statistics.json")["discarded_no_reasoning"] == 3
    asked(folder, "--keep_unreasoned", "--run_name=kept", responses=[UNREASONED])
    assert len(folder.lines(name="kept")) == 3


@option("keep_unknown_tools")
def _keep_unknown_tools(folder: BatchFolder) -> None:
    responses = first_then(calling(tool_call("summon_demon")))
    asked(folder, responses=responses, code=1)
    assert {line["cause"] for line in folder.lines("failures.jsonl")} == {"unknown_tool"}
    asked(folder, "--keep_unknown_tools", "--run_name=kept", responses=responses)
    assert {line["metadata"]["unknown_tools"] for line in folder.lines(name="kept")} == {"summon_demon"}
    assert "summon_demon" not in folder.lines(name="kept")[0]["tool_stats"]


@option("batch_files")
def _batch_files(folder: BatchFolder) -> None:
    asked(folder, "--run_name=both")
    asked(folder, "--run_name=once", "--no-batch_files")
    assert [path.name for path in folder.run("both").glob("batch_*")]
    assert not [*folder.run("once").glob("batch_*")]
    assert [without_times(line) for line in folder.lines(name="once")] == [
        without_times(line) for line in folder.lines(name="both")
    ]


@option("tags_in_values")
def _tags_in_values(folder: BatchFolder) -> None:
    responses = [chat_response("It ends with <|im_end|>.", reasoning="Why?")]
    for how, texts in (
        ("escape", ["It ends with <\\|im_end|>."] * 3),
        ("keep", ["It ends with <|im_end|>."] * 3),
        ("discard", []),
    ):
        asked(folder, f"--tags_in_values={how}", f"--run_name={how}", responses=responses, code=0 if texts else 1)
        lines = [line["conversations"][-1]["value"] for line in folder.lines(name=how)]
        assert lines == [f"<think>\nWhy?\n</think>\n{text}" for text in texts]


@option("system_template")
def _system_template(folder: BatchFolder) -> None:
    (folder.path / "template.txt").write_text("My own wording.\n{tools}\nThat {is} all.")
    bodies = asked(folder, "--system_template=template.txt")
    turn = folder.lines()[0]["conversations"][0]
    assert turn["from"] == "system"
    assert turn["value"].startswith('My own wording.\n[{"name": "patch"')
    assert turn["value"].endswith("]\nThat {is} all.")
    assert "My own wording" not in json.dumps(bodies)
    (folder.path / "template.txt").write_text("No place for tools.")
    assert "{tools}" in refused(folder, "--system_template=template.txt")


@option("data_dir")
def _data_dir(folder: BatchFolder) -> None:
    asked(folder, "--data_dir=else/where")
    assert (folder.path / "else" / "where" / "r" / "trajectories.jsonl").exists()
    assert not (folder.path / "data").exists()


@option("on_end")
def _on_end(folder: BatchFolder) -> None:
    asked(folder, "--on_end=cat > told.json")
    assert json.loads((folder.path / "told.json").read_text())["ledger"]["completed"] == 3


@option("view")
def _view(folder: BatchFolder) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder.path / "cache"))
        shown = folder.batch("--model=simulated", "--simulated_latency=3", "--view")
    assert "In a browser, while this command runs:  http://127." in shown.err, shown
    assert "In a browser" not in folder.batch("--model=simulated", "--run_name=other").err


@option("quiet")
def _quiet(folder: BatchFolder) -> None:
    with ServerThread() as server:
        quiet = folder.batch(f"--base_url={server.base_url}")
        loud = folder.batch(f"--base_url={server.base_url}", "--no-quiet", "--run_name=loud")
    assert "3 of 3 ended" not in quiet.err
    assert "loud: 3 of 3 ended" in loud.err
    assert "\x1b" not in loud.err + loud.out
