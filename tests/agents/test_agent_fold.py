"""The steps of a conversation, folded, are the conversation: whatever the model does, and wherever it crashed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.agents.task import CLOCK, AgentResult
from manyhands.agents.trajectory import describe_step, fold, fold_transcript
from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.usage import Usage
from manyhands.engine.contract import RecordedStep
from manyhands.models.protocol import ChatRequest, Completion
from manyhands.testing.agent_doubles import FakeBackend, FakeTool, Folder, ScriptedModel, hold
from manyhands.testing.context import Crash, CrashPoint, MemoryContext, MemoryJournal
from manyhands.tools.protocol import ToolResult

NAMES = ["terminal", "todo", "Todo", "no_such_thing"]
ARGUMENTS = ['{"n": 1}', "", "{", "null", '{"n": [1, {"m": "ü"}]}']
CALLS = st.lists(
    st.builds(
        lambda call_id, name, arguments: {
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        },
        st.sampled_from(["", "a", "b"]),
        st.sampled_from(NAMES),
        st.sampled_from(ARGUMENTS),
    ),
    max_size=3,
)
CONTENT = st.sampled_from([None, "", "Text.", "<think>a</think>", "<REASONING_SCRATCHPAD>b", "<think>a</think>Text."])
FINISH = st.sampled_from(["stop", "stop", "tool_calls", "length", "content_filter"])


@st.composite
def completions(draw: st.DrawFn) -> Completion | ItemError:
    if draw(st.integers(0, 19)) == 0:
        return ItemError(Cause.CONTEXT_OVERFLOW, "too long")
    message: Any = {"role": "assistant", "content": draw(CONTENT)}
    if calls := draw(CALLS):
        message["tool_calls"] = calls
    if draw(st.booleans()):
        message["reasoning"] = "Because."
    return Completion(message, draw(FINISH), Usage(calls=1, output_tokens=3), {"id": draw(st.integers(0, 9))})


def tools() -> list[FakeTool]:
    def answer(arguments: dict[str, Any]) -> Any:
        return ToolResult({"got": arguments}, failed="n" not in arguments)

    return [FakeTool("terminal", answer, changes_world=True), FakeTool("todo", answer)]


class Script:
    """Answers by how many calls were made before, so that a resumed conversation meets the same model."""

    def __init__(self, answers: list[Completion | ItemError], made: int = 0) -> None:
        self.answers = answers
        self.made = made

    def __call__(self, request: ChatRequest) -> Any:
        self.made += 1
        return self.answers[self.made - 1] if self.made <= len(self.answers) else "The end."


async def perform(
    answers: list[Completion | ItemError], journal: MemoryJournal, folder: Folder, crash: CrashPoint | None, **how: Any
) -> AgentResult:
    made = sum(step.kind == "model" for step in journal.values())
    model = ScriptedModel(Script(answers, made))
    context = MemoryContext(journal, crash=crash)
    return await hold(model, tools(), context=context, backend=FakeBackend(folder), max_turns=5, **how)


@given(
    answers=st.lists(completions(), max_size=6),
    step=st.integers(1, 12),
    when=st.sampled_from(["before_effect", "before_recording", "after_recording"]),
    sequential=st.booleans(),
)
async def test_fold_and_resume(answers: list[Completion | ItemError], step: int, when: Any, sequential: bool) -> None:
    journal: MemoryJournal = {}
    how = {"sequential_tools": sequential}
    try:
        expected = await perform(answers, journal, Folder(), None, **how)
    except ItemError:  # the context overflowed before any answer
        return
    transcript = fold_transcript(journal.values())
    assert transcript.messages == expected.messages
    assert transcript.tool_uses == expected.tool_uses
    assert transcript.unknown_tools == expected.unknown_tools
    assert transcript.usage == expected.usage

    other: MemoryJournal = {}
    folder = Folder()
    try:
        await perform(answers, other, folder, CrashPoint(step, when), **how)
    except (Crash, BaseExceptionGroup):
        so_far = fold(other.values())
        assert so_far == expected.messages[: len(so_far)]
    assert await perform(answers, other, folder, None, **how) == expected
    assert {place: each.output for place, each in other.items()} == {
        place: each.output for place, each in journal.items()
    }


async def test_unfinished_attempts_fold_to_the_conversation_so_far() -> None:
    journal: MemoryJournal = {}
    call = {"id": "a", "type": "function", "function": {"name": "todo", "arguments": "{}"}}
    asked = Completion({"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls", Usage())  # type: ignore[list-item]
    with pytest.raises(Crash):
        await perform([asked], journal, Folder(), CrashPoint(2))
    assert [message["role"] for message in fold(journal.values())] == ["user", "assistant"]
    assert fold([]) == []


def test_a_time_is_shown_as_people_write_it() -> None:
    step = RecordedStep(1, "began", 0, CLOCK, {}, 1_700_000_000.25, 0.0, 0.0, {})
    assert list(describe_step(step)) == [(CLOCK, "2023-11-14T22:13:20Z")]
