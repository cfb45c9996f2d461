"""What a target did, step by step, and how steps are looked for: for graders of the ``trajectory:`` kinds.

===========  ========================================================================================================
kind         what it is
===========  ========================================================================================================
tool         a call of a tool
command      a call of a shell (``COMMANDS``) with a command; it is found by the command, by its first word, and by the tool's name
message      a message that says something, other than a tool's result
reasoning    such a message that is marked as reasoning
search,      what traces of other systems have; records of targets have none
span
===========  ========================================================================================================

Names are looked for as patterns: ``*`` is any text, ``?`` one character, upper and lower case are the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BeforeValidator

from manyhands.core.errors import GraderError
from manyhands.core.jsonio import Json, loads_outside
from manyhands.graders.messages import tool_uses_of
from manyhands.graders.protocol import Candidate, MessageJson, ToolUse
from manyhands.io.keys import Entry, SomeWords, key, snake
from manyhands.io.locations import Location

KINDS = ("tool", "command", "message", "reasoning", "search", "span")
CALLS = ("tool", "command")
"""Those that are calls of tools."""
UNKNOWN = ("search", "span")
"""Those that no record of a target has."""
COMMANDS = frozenset(("exec_command", "local_shell", "shell"))
"""Tools that run a command: the names that agents give them, as AgentV's traces have them."""
_COMMAND_KEYS = ("cmd", "command", "commands")


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that an agent did."""

    kind: str
    names: tuple[str, ...]
    """What it may be called."""
    args: Json = None
    """Of a call; ``{}`` where it has none."""

    def __str__(self) -> str:
        return self.names[0]


def _kinds(value: Any) -> tuple[str, ...]:
    words = (value,) if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not words:
        raise ValueError(f"must be one of {', '.join(KINDS)}, or a list of these")
    found = tuple(snake(word) if isinstance(word, str) else "" for word in words)
    if not all(word in KINDS for word in found):
        raise ValueError(f"must be one of {', '.join(KINDS)}, or a list of these")
    return found


class StepEntry(Entry):
    """How steps are looked for."""

    name: SomeWords | None = key(None, "What it is called: a text with * and ?.")
    pattern: SomeWords | None = key(None, "The same; it counts where both are given.")
    type: Annotated[tuple[str, ...], BeforeValidator(_kinds, json_schema_input_type=str | list[str])] | None = key(
        None, f"What it is: one or several of {', '.join(KINDS)}."
    )


def count_of(value: Any) -> int:
    """A number of times. Raises ValueError for anything else than a whole number of 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("must be a whole number of 0 or more")
    return value


Count = Annotated[int, BeforeValidator(count_of)]


def within(count: int, minimum: int, maximum: int | None) -> tuple[bool, str]:
    """Whether a number of times is within bounds, and these in words. ``maximum``: None if there is no upper bound."""
    if maximum is None:
        return minimum <= count, f"at least {minimum}"
    return minimum <= count <= maximum, f"{minimum} to {maximum}"


def used_and_not(there: Sequence[str], missing: Sequence[str], verb: str) -> str:
    """What of several was used and what was not, in words."""
    parts = [f"{', '.join(there)} {verb}"] if there else []
    return ", ".join([*parts, f"{', '.join(missing)} not {verb}"] if missing else parts)


@dataclass(frozen=True, slots=True)
class Matcher:
    """What to look for."""

    pattern: str | None
    """None for any name."""
    kinds: tuple[str, ...]
    """The kinds of steps that are looked for."""

    @classmethod
    def of(
        cls, entry: StepEntry | str, location: Location, *, kinds: Sequence[str] = CALLS, named: bool = True
    ) -> Matcher:
        """``kinds``: that may be looked for; ``named``: whether a name is needed. Raises UserError."""
        if isinstance(entry, str):
            return cls(entry, tuple(kinds))
        pattern = entry.name if entry.pattern is None else entry.pattern
        if named and pattern is None:
            raise location.error("name or pattern is required")
        wrong = [kind for kind in entry.type or () if kind not in kinds]
        if wrong:
            raise location.at("type").error(f"must be of {', '.join(kinds)} here, not {wrong[0]}")
        return cls(pattern, entry.type or tuple(kinds))

    def fits(self, step: Step) -> bool:
        """Whether a step is one of those."""
        if step.kind not in self.kinds:
            return False
        return self.pattern is None or any(like(name, self.pattern) for name in step.names)

    def __str__(self) -> str:
        if self.pattern is not None:
            return self.pattern
        return "steps" if len(self.kinds) == len(KINDS) else f"steps of the kind {' or '.join(self.kinds)}"


def like(name: str, pattern: str) -> bool:
    """Whether a name fits a pattern."""
    return _compiled(pattern).fullmatch(name) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern.replace("[", "[[]")), re.IGNORECASE)


def calls_of(candidate: Candidate) -> list[Step] | None:
    """The calls of tools, in order; None if nothing is known about them.

    Raises GraderError if there is but a trace that counts them.
    """
    if not candidate.tool_uses and candidate.output is None:
        if candidate.trace is None:
            return None
        if candidate.trace.get("event_count"):
            raise GraderError("the trace only counts the tool calls; here the calls themselves are needed")
    return [_call(use) for use in candidate.tool_uses]


def steps_of(candidate: Candidate) -> list[Step] | None:
    """All steps, in order. Otherwise as ``calls_of``."""
    calls = calls_of(candidate)
    return None if calls is None else list(_steps(candidate.output or (), calls))


def _steps(messages: Sequence[MessageJson], calls: Sequence[Step]) -> Iterator[Step]:
    waiting = iter(calls)
    for message in messages:
        content = message.get("content")
        if content and message.get("role") != "tool":
            yield _message(message)
        for _ in tool_uses_of((message,)):
            yield from _next(waiting)
    yield from waiting


def _next(steps: Iterator[Step]) -> Iterator[Step]:
    step = next(steps, None)
    if step is not None:
        yield step


def _message(message: MessageJson) -> Step:
    metadata = message.get("metadata")
    marked = isinstance(metadata, Mapping) and metadata.get("codex.item.type") == "reasoning"
    kind = "reasoning" if marked else "message"
    return Step(kind, (kind, str(message.get("role"))))


def _call(use: ToolUse) -> Step:
    args = _read(use.input)
    command = _command(args) if use.tool.lower() in COMMANDS else ""
    if not command:
        return Step("tool", (use.tool,), args)
    return Step("command", tuple(dict.fromkeys((command, use.tool, command.split()[0]))), args)


def _read(value: Json) -> Json:
    """What a call was given; a text that is JSON is read."""
    if value is None or value == "":
        return {}
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return loads_outside(value)
    except (ValueError, RecursionError):
        return value


def _command(args: Json) -> str:
    if not isinstance(args, Mapping):
        return ""
    name = next((name for name in _COMMAND_KEYS if args.get(name)), "")
    given = args.get(name)
    if isinstance(given, (list, tuple)):
        return ("; " if name == "commands" else " ").join(str(part).strip() for part in given).strip()
    return given.strip() if isinstance(given, str) else ""
