"""What graders get to see of an imported conversation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from manyhands.core.usage import ZERO
from manyhands.export.conversations import Conversation, Turn
from manyhands.graders.conversations.grading import ended_conversation
from manyhands.graders.messages import figures_of
from manyhands.graders.protocol import Candidate


def candidate_of(key: str, conversation: Conversation, folder: Path) -> Candidate:
    """A conversation to be graded. What comes before its first answer is what the agent was given; what nobody said that it used or took
    is not known. ``folder``: what relative paths of graders start from."""
    own = [turn for turn in conversation.turns if "_given" not in turn.message]
    given = [turn for turn in conversation.turns if "_given" in turn.message]
    opening = [*given, *takewhile(lambda turn: turn.role != "assistant", own)]
    asked = (turn.message.get("content") for turn in reversed(opening) if turn.role == "user")
    return ended_conversation(
        key,
        [turn.message for turn in own],
        question=next(asked, None),
        input=tuple({name: value for name, value in turn.message.items() if name[:1] != "_"} for turn in opening),
        source=conversation.source,
        figures=_figures(conversation),
        failed=_failed(conversation.turns),
        folder=folder,
    )


def _figures(conversation: Conversation) -> dict[str, Any]:
    started, finished, usage = conversation.started_at, conversation.finished_at, conversation.usage
    known = started is not None and finished is not None and finished >= started
    duration = round(1000 * (finished - started), 3) if known and finished is not None and started is not None else None
    if usage == ZERO:
        return {"token_usage": None, "cost_usd": None, "duration_ms": duration}
    return {**figures_of(usage, 0.0), "duration_ms": duration}


def _failed(turns: Sequence[Turn]) -> int:
    return sum(bool(turn.message.get("_failed")) for turn in turns)
