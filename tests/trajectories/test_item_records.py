"""Which trajectories are kept."""

from __future__ import annotations

import pytest

from manyhands.core.messages import Message
from manyhands.testing.agent_doubles import assistant
from manyhands.workloads.trajectories.records import ReasoningCounts, count_reasoning, discard_reason, nowhere_known

SOME = ReasoningCounts(3, 1)
NONE = ReasoningCounts(3, 0)


def test_reasoning_is_counted_per_assistant_turn() -> None:
    messages: list[Message] = [
        {"role": "user", "content": "<REASONING_SCRATCHPAD>"},
        assistant("a", reasoning="because"),
        assistant("b", reasoning="  "),
        assistant("<REASONING_SCRATCHPAD>c</REASONING_SCRATCHPAD>"),
        assistant(None),
    ]
    counts = count_reasoning(messages)
    assert counts.to_json() == {
        "total_assistant_turns": 4,
        "turns_with_reasoning": 2,
        "turns_without_reasoning": 2,
    }


def test_tools_that_exist_but_were_not_drawn_are_no_inventions() -> None:
    assert nowhere_known(["teleport", "terminal", "fly", "teleport"], {"terminal"}) == ["teleport", "fly"]


@pytest.mark.parametrize(
    ("reasoning", "invented", "unreasoned", "unknown", "reason"),
    [
        (SOME, [], False, False, None),
        (NONE, [], False, False, "no_reasoning"),
        (ReasoningCounts(0, 0), [], False, False, "no_reasoning"),
        (NONE, [], True, False, None),
        (SOME, ["fly"], False, False, "unknown_tool"),
        (SOME, ["fly"], False, True, None),
        (NONE, ["fly"], False, False, "no_reasoning"),
        (NONE, ["fly"], True, False, "unknown_tool"),
    ],
)
def test_discard_reason(
    reasoning: ReasoningCounts, invented: list[str], unreasoned: bool, unknown: bool, reason: str | None
) -> None:
    given = discard_reason(reasoning, invented, keep_unreasoned=unreasoned, keep_unknown_tools=unknown)
    assert given == reason
