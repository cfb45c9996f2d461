"""The built-in agent as a worker: it must report, may correct itself, and loses nothing when it is interrupted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from manyhands.agents.run_settings import NeverCalled
from manyhands.agents.trajectory import fold
from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.messages import Message
from manyhands.models.protocol import ChatModel
from manyhands.models.simulated.model import SimulatedModel
from manyhands.testing.agent_doubles import FakeBackend, FakeTool, Folder, ScriptedModel, assistant, texts, tool_call
from manyhands.testing.context import Crash, CrashPoint, MemoryContext, When
from manyhands.workloads.csv_jobs.rows.prompts import REPORT_TOOL
from manyhands.workloads.csv_jobs.spec import JobSpec
from manyhands.workloads.csv_jobs.workers.agent import REMINDERS, AgentWorker
from manyhands.workloads.csv_jobs.workers.reports import UNREPORTED, Accepted, Assignment
from tests.support.job_rows import JOB_ID, SCORE_SCHEMA, assignment

Turn = Message | str


def report(result: Any, call_id: str = "r", **more: Any) -> Message:
    return assistant(None, reporting(result, call_id, **more))


def reporting(result: Any, call_id: str = "r", **more: Any) -> Any:
    return tool_call(REPORT_TOOL, {"job_id": JOB_ID, "item_id": "row-1", "result": result, **more}, call_id)


def options(schema: dict[str, Any] | None = None, **more: Any) -> JobSpec:
    return JobSpec(csv_path="t.csv", output_schema=schema, model="simulated", **more)


def worker(
    model: ChatModel, schema: dict[str, Any] | None = None, tools: list[FakeTool] | None = None, **more: Any
) -> AgentWorker:
    backend = FakeBackend(Folder()) if tools else NeverCalled()
    return AgentWorker(options(schema, **more), tools or [], model=model, backend=backend, run_folder=Path("run"))


async def perform(
    turns: list[Turn], work: Assignment | None = None, *, context: MemoryContext | None = None, **more: Any
) -> Accepted:
    schema = (work.schema.value if work else None) or None
    made = worker(ScriptedModel(turns), schema, **more)
    return await made.run(context or MemoryContext(), work or assignment())


async def failure(turns: list[Turn], work: Assignment | None = None, **more: Any) -> ItemError:
    with pytest.raises(ItemError) as caught:
        await perform(turns, work, **more)
    return caught.value


async def test_a_report_is_the_end_and_its_time_is_the_recorded_one() -> None:
    context = MemoryContext()
    accepted = await perform([report({"score": 3}, stop=True)], context=context)
    assert (accepted.result, accepted.via, accepted.stop, accepted.corrections) == ({"score": 3}, "tool", True, 0)
    assert [step.kind for step in context.steps] == ["model", "tool"]
    again = await perform([], context=MemoryContext(context.journal))
    assert again == accepted


async def test_the_agent_is_told_what_it_works_on_and_offered_the_report_tool() -> None:
    model = ScriptedModel([report({"score": 3})])
    tool = FakeTool("look")
    made = worker(model, SCORE_SCHEMA, [tool], ephemeral_system_prompt="Be brief.")
    await made.run(MemoryContext(), assignment(SCORE_SCHEMA))
    request = model.requests[0]
    assert [offered["function"]["name"] for offered in request.tools] == ["look", REPORT_TOOL]
    parameters = request.tools[1]["function"]["parameters"]
    assert parameters["properties"]["result"]["properties"] == SCORE_SCHEMA["properties"]
    assert REPORT_TOOL in texts(request.messages, "system")[0]
    assert "Be brief." in texts(request.messages, "system")[0]
    assert f"\nJob ID: {JOB_ID}\nItem ID: row-1\n" in texts(request.messages, "user")[0]


async def test_a_report_that_does_not_fit_is_corrected() -> None:
    context = MemoryContext()
    work = assignment(SCORE_SCHEMA)
    turns: list[Turn] = [report({"score": 30}, "a"), report({"score": 3, "more": 1}, "b"), report({"score": 3}, "c")]
    accepted = await perform(turns, work, context=context)
    assert (accepted.result, accepted.corrections) == ({"score": 3}, 2)
    told = [message for message in fold(context.steps) if message["role"] == "tool"]
    assert "$.score: 30 is greater than the maximum of 10" in told[0]["content"]
    assert "3 corrections are left" in told[0]["content"]
    assert "'more' was unexpected" in told[1]["content"]
    assert "2 corrections are left" in told[1]["content"]
    assert [message.get("_failed") for message in told] == [True, True, False]


async def test_after_the_last_correction_the_row_fails_and_the_last_report_is_kept() -> None:
    turns: list[Turn] = [report({"score": number}, str(number)) for number in (11, 12, 13)]
    error = await failure(turns, assignment(SCORE_SCHEMA, corrections=2))
    assert error.cause is Cause.INVALID_OUTPUT
    assert error.message == "the result does not fit: $.score: 13 is greater than the maximum of 10"
    assert error.record == {
        "last_report": {"score": 13},
        "violations": ["$.score: 13 is greater than the maximum of 10"],
    }


async def test_without_a_correction_the_first_misfit_is_the_end() -> None:
    error = await failure([report({"score": 11})], assignment(SCORE_SCHEMA, corrections=0))
    assert error.record["last_report"] == {"score": 11}


@pytest.mark.parametrize("result", [[1], "text", 3, None, True])
async def test_a_result_that_is_no_object_does_not_fit(result: Any) -> None:
    error = await failure([report(result)], assignment(corrections=0))
    assert error.message == "the result does not fit: result must be a JSON object"


async def test_an_object_written_as_text_is_taken_for_what_it_says() -> None:
    assert (await perform([report('{"score": 3}')])).result == {"score": 3}


async def test_a_report_on_another_item_is_refused_with_the_right_names() -> None:
    context = MemoryContext()
    wrong = tool_call(REPORT_TOOL, {"job_id": "other", "item_id": "row-2", "result": {}}, "w")
    accepted = await perform([assistant(None, wrong), report({})], context=context)
    assert (accepted.result, accepted.corrections) == ({}, 0)
    told = texts(fold(context.steps), "tool")[0]
    assert "'other'" in told
    assert "'row-2'" in told
    assert JOB_ID in told
    assert "'row-1'" in told


async def test_of_two_reports_in_a_turn_one_is_accepted() -> None:
    context = MemoryContext()
    turn = assistant(None, reporting({"score": 1}, "a"), reporting({"score": 2}, "b"))
    accepted = await perform([turn], context=context)
    assert accepted.result == {"score": 1}
    told = [message for message in fold(context.steps) if message["role"] == "tool"]
    assert [message.get("_failed") for message in told] == [False, True]
    assert "accepted for this item already" in told[1]["content"]
    assert await perform([], context=MemoryContext(context.journal)) == accepted


async def test_an_agent_that_only_answers_is_reminded() -> None:
    context = MemoryContext()
    model = ScriptedModel(["I think 3.", "Really 3.", report({"score": 3})])
    accepted = await worker(model).run(context, assignment())
    assert accepted.result == {"score": 3}
    said = texts(model.requests[2].messages, "user")[1:]
    assert len(said) == REMINDERS
    assert all(REPORT_TOOL in text and '"row-1"' in text for text in said)


async def test_an_agent_that_never_reports_fails_with_its_last_words() -> None:
    error = await failure(["One.", "Two.", "The score is 3."])
    assert (error.cause, error.message) == (Cause.INVALID_OUTPUT, UNREPORTED)
    assert error.record == {"last_answer": "The score is 3."}


async def test_out_of_turns_is_said() -> None:
    turns: list[Turn] = [assistant(None, tool_call("look", {}, str(number))) for number in range(3)]
    error = await failure(turns, tools=[FakeTool("look")], max_turns=3)
    assert error.message == f"{UNREPORTED} (max_turns)"


async def test_the_last_misfit_is_kept_if_no_other_report_follows() -> None:
    turns: list[Turn] = [report({"score": 11}), "I give up.", "No.", "No."]
    error = await failure(turns, assignment(SCORE_SCHEMA))
    assert error.message == UNREPORTED
    assert error.record["last_report"] == {"score": 11}
    assert error.record["last_answer"] == "No."


async def test_the_time_limit_is_from_the_launch() -> None:
    async def slow(request: Any) -> str:
        await asyncio.sleep(30)
        return "never"

    with pytest.raises(ItemError) as caught:
        await worker(ScriptedModel(slow)).run(MemoryContext(), assignment(max_seconds=0.1))
    assert (caught.value.cause, caught.value.message) == (Cause.TIMEOUT, "worker exceeded max runtime of 0.1s")


@pytest.mark.parametrize("when", ["before_effect", "before_recording", "after_recording"])
@pytest.mark.parametrize("step", range(1, 9))
async def test_after_any_crash_the_same_report_is_accepted(step: int, when: When) -> None:
    turns: list[Turn] = [
        assistant(None, tool_call("look", {}, "l"), reporting({"score": 11}, "a")),
        "I think so.",
        report({"score": 12}, "b"),
        assistant(None, reporting({"score": 3}, "c"), reporting({"score": 4}, "d")),
    ]
    work = assignment(SCORE_SCHEMA)

    def tools() -> list[FakeTool]:
        return [FakeTool("look", changes_world=True)]

    broken = MemoryContext(crash=CrashPoint(step, when))
    with pytest.raises((Crash, BaseExceptionGroup)):
        await perform(turns, work, context=broken, tools=tools())
    answered = sum(recorded.kind == "model" for recorded in broken.steps)
    context = MemoryContext(broken.journal)
    folder = Folder(open_step=next((f"/{made.seq}" for made in broken.steps if made.kind == "tools"), None))
    again = AgentWorker(
        options(SCORE_SCHEMA),
        tools(),
        model=ScriptedModel(turns[answered:]),
        backend=FakeBackend(folder),
        run_folder=Path("run"),
    )
    accepted = await again.run(context, work)
    assert (accepted.result, accepted.corrections) == ({"score": 3}, 2)
    assert len(context.steps) == 9


async def test_the_simulated_model_reports_what_the_schema_asks_for() -> None:
    schema = {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "score": {"type": "integer", "minimum": 1, "maximum": 10},
            "signals": {"type": "array", "items": {"$ref": "#/$defs/signal"}, "minItems": 1},
            "parent": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        },
        "required": ["path", "score", "signals", "parent"],
        "$defs": {"signal": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}},
    }
    for number, item_id in enumerate(("row-1", "src/a b.rs", 'say "no"\nor not', "job_id: 5", " x ")):
        row = {"path": f"file {number}", "job_id": "an older job", "item_id": "an older item"}
        context = MemoryContext()
        work = assignment(schema, item_id=item_id, row=row)
        accepted = await worker(SimulatedModel(number), schema).run(context, work)
        assert accepted.result.keys() >= {"path", "score", "signals", "parent"}
        assert (accepted.corrections, accepted.stop) == (0, False)
        assert [step.kind for step in context.steps] == ["model", "tool"]


async def test_opened_from_settings(tmp_path: Path) -> None:
    opening = AgentWorker.opened(options(toolsets=("todo",)), mcp=None, run_folder=tmp_path, secrets={})
    async with opening as opened:
        accepted = await opened.run(MemoryContext(), assignment())
    assert accepted.via == "tool"
    unknown = AgentWorker.opened(options(toolsets=("nothing",)), mcp=None, run_folder=tmp_path, secrets={})
    with pytest.raises(UserError, match="nothing"):
        async with unknown:
            pass


async def test_a_replay_needs_neither_model_nor_sandbox(tmp_path: Path) -> None:
    context = MemoryContext()
    accepted = await perform([report({"score": 3})], context=context)
    nowhere = options(sandbox="docker", toolsets=())
    opening = AgentWorker.opened(nowhere, mcp=None, run_folder=tmp_path, secrets={}, replay=True)
    async with opening as opened:
        assert await opened.run(MemoryContext(context.journal), assignment()) == accepted
