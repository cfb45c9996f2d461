"""What a server sent is kept in the step of every kind of call, wherever it was changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from manyhands.agents.loop import settings_digest
from manyhands.agents.run_settings import chat_settings
from manyhands.core.usage import Reserve
from manyhands.engine.contract import CallReport
from manyhands.engine.limits.shared import SharedLimits
from manyhands.graders.protocol import Candidate
from manyhands.models.openai.client import OpenAIChatModel
from manyhands.models.openai.response import parse_completion
from manyhands.models.pricing import PriceTable
from manyhands.models.protocol import ChatSettings
from manyhands.testing.context import MemoryContext, MemoryJournal
from manyhands.testing.grader_doubles import NamedJudges, graders_of, make_grading
from manyhands.testing.scripted_server import ScriptedServer, chat_response
from manyhands.workloads.csv_jobs.spec import JobSpec
from manyhands.workloads.evals.targets.kinds.model_keys import AgentTargetOptions
from manyhands.workloads.memory.agents.model_calls import ModelCaller
from manyhands.workloads.memory.settings import MemorySpec
from manyhands.workloads.trajectories.spec import BatchSpec
from tests.support.batches import ServerThread, run_command

CALL = {"id": "a", "type": "function", "function": {"name": "t", "arguments": "{}"}}


def extra_of(message: dict[str, Any], **options: Any) -> dict[str, Any]:
    payload = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}
    return parse_completion(payload, model="m", prices=PriceTable(), request_size=1, **options).extra


@pytest.mark.parametrize(
    "message",
    [
        {"content": "x"},
        {"content": None, "tool_calls": [CALL]},
        {"content": None, "tool_calls": [{**CALL, "index": 0}]},
        {"content": "a </think> b", "reasoning": "r"},
        {"content": "x", "reasoning_content": "r", "reasoning": "r", "refusal": None},
        {"content": "x", "reasoning": "r", "reasoning_details": [{"type": "reasoning.text", "text": "r"}]},
        {"content": "<REASONING_SCRATCHPAD>a</REASONING_SCRATCHPAD>b"},
        {"content": ""},
    ],
)
def test_what_is_as_it_was_sent_is_not_kept_twice(message: dict[str, Any]) -> None:
    assert "raw" not in extra_of(message)


@pytest.mark.parametrize(
    ("message", "names"),
    [
        ({"content": "<think>a</think>b"}, {"content"}),
        ({"content": [{"type": "text", "text": "x"}]}, {"content"}),
        ({"content": "x", "reasoning": "r\n"}, {"reasoning"}),
        ({"content": "x", "reasoning": "a", "reasoning_content": "b"}, {"reasoning", "reasoning_content"}),
        ({"content": "x", "reasoning_details": "r"}, {"reasoning_details"}),
        ({"content": None, "refusal": "No."}, {"refusal"}),
        ({"content": "x", "refusal": "No."}, {"refusal"}),
        ({"tool_calls": [{**CALL, "id": ""}]}, {"tool_calls"}),
        ({"tool_calls": [{"id": "a", "function": {"name": "t", "arguments": {"x": 1}}}, 3]}, {"tool_calls"}),
        ({"function_call": {"name": "t", "arguments": "{}"}}, {"function_call"}),
    ],
)
def test_what_was_changed_is_kept_as_it_was_sent(message: dict[str, Any], names: set[str]) -> None:
    assert extra_of(message)["raw"] == {name: message[name] for name in names}


def test_a_lone_closing_tag_is_noted_or_read() -> None:
    message = {"content": "plan</think>x"}
    assert extra_of(message) == {"unbegun_reasoning": True, **extra_of({"content": "x"})}
    assert extra_of(message, implied_think=True)["raw"] == message


@asynccontextmanager
async def answered(**message: Any) -> AsyncIterator[OpenAIChatModel]:
    """A model that answers so to everything."""
    async with ScriptedServer([chat_response(**message)]) as server:
        model = OpenAIChatModel(server.base_url, "k")
        yield model
        await model.close()


@pytest.mark.parametrize(
    ("sent", "content", "raw"),
    [
        ({"content": "Use <think>x</think> so"}, "Use <think>x</think> so", None),
        ({"content": "<think>x</think>Use </think>"}, "Use </think>", {"content": "<think>x</think>Use </think>"}),
        ({"content": "<think>x</think>y", "reasoning": "r"}, "<think>x</think>y", None),
        ({"content": " y\n", "reasoning": "r"}, "y", {"content": " y\n"}),
    ],
)
async def test_an_agent_of_the_memory_benchmark(sent: dict[str, Any], content: str, raw: Any) -> None:
    journal: MemoryJournal = {}
    async with answered(**sent) as model:
        caller = ModelCaller(model, ChatSettings("m"))
        message, _ = await caller.ask(MemoryContext(journal), [{"role": "user", "content": "?"}], added=[])
    assert message["content"] == content
    (step,) = journal.values()
    assert step.output.get("extra") == (None if raw is None else {"raw": raw})


async def test_a_judge() -> None:
    text = '<think>{"score": 0}</think>{"score": 1, "hits": [], "misses": [], "reasoning": "fine"}'
    journal: MemoryJournal = {}
    async with answered(content=text) as model:
        (grader,) = graders_of({"type": "llm_judge"})
        grading = make_grading(MemoryContext(journal), judges=NamedJudges(model))
        score = await grader.grade(Candidate("t", "x", criteria="c"), grading)
    assert score.value == 1
    (step,) = journal.values()
    assert step.output["extra"] == {"raw": {"content": text}}


# --- The option


@pytest.mark.parametrize("options", [BatchSpec, JobSpec, MemorySpec, AgentTargetOptions])
def test_every_workload_has_the_option(options: Any) -> None:
    assert not chat_settings(options.unchecked().for_model("own/model")).implied_think
    assert chat_settings(options.unchecked(implied_think=True).for_model("own/model")).implied_think
    assert options.about("implied_think").identity


def test_the_option_makes_no_call_another_call() -> None:
    assert settings_digest(ChatSettings("m", implied_think=True)) == settings_digest(ChatSettings("m"))


def test_a_target_of_an_evaluation_has_it_too(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text("tests: [{id: a, input: x, assert: [{type: equals, value: Yes.}]}]\n")
    with ServerThread([chat_response("plan\n</think>\n\nYes.")]) as server:
        target = f"provider: openai, base_url: '{server.base_url}', model: m"
        (tmp_path / "targets.yaml").write_text(f"targets: {{a: {{{target}}}, b: {{{target}, implied_think: true}}}}\n")
        plain = run_command(tmp_path, "eval", "e.yaml", "--run_name=a", "--target=a", "--quiet")
        read = run_command(tmp_path, "eval", "e.yaml", "--run_name=b", "--target=b", "--quiet")
    assert (plain.code, read.code) == (1, 0), (plain, read)
    assert ("--implied_think" in plain.err, "--implied_think" in read.err) == (True, False)


async def test_remarks_are_told_once_each() -> None:
    told: list[str] = []
    limits = SharedLimits(notice=told.append)
    for remark in ("a", None, "b", "a", "b"):
        limits.release(await limits.acquire("key", Reserve(0, 0.0)), CallReport(remark=remark))
    assert told == ["a", "b"]
