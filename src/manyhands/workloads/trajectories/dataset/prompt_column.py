"""Which column of a dataset the prompts are in, where it is not the one called "prompt"."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence

from manyhands.io.tables.base import known_columns

PROMPT = "prompt"
_USUAL = frozenset(
    (
        "prompt",
        "prompts",
        "question",
        "questions",
        "instruction",
        "instructions",
        "query",
        "problem",
        "problem_statement",
        "task",
        "goal",
        "request",
        "input",
        "text",
        "user",
        "user_prompt",
        "message",
        "content",
    )
)
"""What data sets call the column of their prompts, in lower case."""


def remedy(wanted: str, columns: Sequence[str], others: Collection[str]) -> str:
    """What to do about a column ``wanted`` that is not there, to stand behind a message. ``others``: columns that mean something else."""
    if wanted != PROMPT:
        return known_columns(wanted, columns)
    usual = [name for name in columns if name.strip().casefold() in _USUAL]
    free = usual or [name for name in columns if name not in others]
    if len(free) == 1:
        return f"; give --prompt_column={shlex.quote(free[0])}"
    return f"; --prompt_column=NAME names the one that holds the prompts{known_columns(wanted, free)}" if free else ""
