"""Graders of which skills an agent used, found by its tool calls.

A skill is a folder ``skills/NAME`` with a file ``SKILL.md`` that an agent reads when it needs it. It was used where

* the tool ``Skill`` was called with its name (``skill``, or ``name``; behind it ``Using skill: NAME``, as one agent calls the tool);
* its ``SKILL.md`` was read by a tool, or stands in a command of a shell, or in what a tool gave back.

``skill_used`` holds names, patterns and numbers of times against these; ``skill_trigger``, the older
kind, asks of one skill, and takes any file in its folder for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator

from manyhands.core.errors import GraderError
from manyhands.core.jsonio import as_text
from manyhands.core.settings import Flag, shown
from manyhands.graders.protocol import Candidate, Grader, Grading, Score, ToolUse, all_or_nothing, found
from manyhands.graders.registry import Setup
from manyhands.graders.trajectory.steps import Count, like, used_and_not, within
from manyhands.io.keys import Entry, SomeWords, key, read
from manyhands.io.locations import Location

_READERS = frozenset(("read", "readfile", "readtextfile", "read file", "read_file", "view"))
_SHELLS = frozenset(
    ("bash", "shell", "exec_command", "local_shell", "command_execution", "runterminalcommand", "terminal")
)
_PATHS = ("file_path", "path", "filePath", "target_file")
_COMMANDS = ("command", "cmd")
_PREFIX = "Using skill: "
_NAME = r"[A-Za-z0-9._:-]+"
_SKILL_FILE = re.compile(rf"(?:^|[/\\\s\"'`(\[])skills[/\\]({_NAME})[/\\]SKILL\.md(?![A-Za-z0-9._-])")


class SkillCount(Entry):
    """A skill, and how often it is to be used."""

    name: SomeWords | None = key(None, "The skill's name.")
    pattern: SomeWords | None = key(None, "A text with * and ? that its name fits.")
    min: Count | None = key(None, "Times at least; 1 by default, 0 where max is given.")
    max: Count | None = key(None, "Times at most.")


def _skill_value(value: Any) -> Any:
    words = [value] if isinstance(value, str) else value
    if isinstance(words, (list, tuple)) and words and all(isinstance(word, str) and word.strip() for word in words):
        return tuple(word.strip() for word in words)
    if not isinstance(value, Mapping):
        raise ValueError("must be a skill's name, a list of them, or a mapping with name or pattern")
    return value


class SkillUsedEntry(Entry):
    """Settings of ``skill_used``."""

    negates: ClassVar[bool] = True
    entries: ClassVar[Mapping[str, type[Entry]]] = {"value": SkillCount}
    value: Annotated[Any, BeforeValidator(_skill_value, json_schema_input_type=str | list[str] | SkillCount)] = key(
        ..., "A skill's name, a list of them, or a mapping with name or pattern and min, max."
    )


class SkillTriggerEntry(Entry):
    """Settings of ``skill_trigger``."""

    skill: SomeWords = key(..., "The skill's name.")
    should_trigger: Flag = key(True, "Whether it should be used, or should not.")


ENTRIES: dict[str, type[Entry]] = {"skill_used": SkillUsedEntry, "skill_trigger": SkillTriggerEntry}


def parse(entry: Mapping[str, Any], location: Location, setup: Setup) -> Grader:
    """A grader of one of the kinds of ``ENTRIES``. Raises UserError for numbers of times that can't be meant."""
    if entry["type"] == "skill_trigger":
        trigger = read(SkillTriggerEntry, entry, location)
        return SkillTrigger(entry["name"], entry["type"], trigger.skill.strip(), trigger.should_trigger)
    opposite = bool(entry.get("negate"))
    settings = read(SkillUsedEntry, {name: value for name, value in entry.items() if name != "negate"}, location)
    if isinstance(settings.value, tuple):
        return SkillsUsed(entry["name"], entry["type"], settings.value, opposite)
    count = read(SkillCount, settings.value, location.at("value"))
    return _counted(entry, count, location.at("value"), opposite)


def _counted(entry: Mapping[str, Any], count: SkillCount, location: Location, opposite: bool) -> Grader:
    if count.name is None and count.pattern is None:
        raise location.error("name or pattern is required")
    minimum = (1 if count.max is None else 0) if count.min is None else count.min
    if count.max is not None and count.max < minimum:
        raise location.at("max").error(f"must be at least min, which is {minimum}, not {count.max}")
    if not opposite:
        return SkillTimes(entry["name"], entry["type"], count.name, count.pattern, minimum, count.max)
    if count.min is not None or count.max:
        raise location.error("where the opposite is meant there are no numbers of times, but max: 0")
    return SkillTimes(entry["name"], entry["type"], count.name, count.pattern, 0, 0)


# --- What was used


def skills_of(candidate: Candidate) -> list[str] | None:
    """The skills that were used, in order, each call of the tool and each file once; None if nothing is known about tool calls.

    Raises GraderError if there is but a trace that counts them.
    """
    if not _known(candidate):
        return None
    return list(_skills(candidate.tool_uses))


def _known(candidate: Candidate) -> bool:
    if candidate.tool_uses or candidate.output is not None:
        return True
    if (candidate.trace or {}).get("event_count"):
        raise GraderError("the trace only counts the tool calls; for skills the calls themselves are needed")
    return candidate.trace is not None


def _skills(uses: Sequence[ToolUse]) -> Iterator[str]:
    seen: set[str] = set()
    for use in uses:
        called = _called(use)
        if called is not None:
            yield called
            continue
        for path in _mentioned(use):
            name = path[1]
            if name not in seen:
                seen.add(name)
                yield name


def _called(use: ToolUse) -> str | None:
    """The skill that the tool of skills was called with; None for calls of other tools."""
    if use.tool.startswith(_PREFIX):
        return use.tool.removeprefix(_PREFIX).strip()
    if use.tool.lower() != "skill":
        return None
    given = use.input if isinstance(use.input, Mapping) else {}
    name = given.get("skill") or given.get("name")
    return name.strip() if isinstance(name, str) and name.strip() else None


def _mentioned(use: ToolUse) -> Iterator[re.Match[str]]:
    """Where files of skills stand in a call: in the path that is read, in a command, or in what came back."""
    for text in (*_given(use), as_text(use.output or "")):
        yield from _SKILL_FILE.finditer(text)


def _given(use: ToolUse) -> Iterator[str]:
    tool = use.tool.lower()
    names = _PATHS if tool in _READERS or tool.startswith("viewing ") else _COMMANDS if tool in _SHELLS else ()
    if isinstance(use.input, Mapping):
        yield from (as_text(use.input[name]) for name in names if use.input.get(name))


# --- Graders


@dataclass(frozen=True, slots=True)
class SkillsUsed:
    """Whether each of several skills was used."""

    name: str
    type: str
    skills: Sequence[str]
    opposite: bool
    """Whether none of them may have been."""

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        used = skills_of(candidate)
        if used is None:
            return _no_data(self)
        there = [skill for skill in self.skills if skill in used]
        missing = [skill for skill in self.skills if skill not in used]
        text = f"{used_and_not(there, missing, 'used')} ({_listed(used)})"
        return all_or_nothing(self, not (there if self.opposite else missing), text, text)


@dataclass(frozen=True, slots=True)
class SkillTimes:
    """How often skills of a name or a pattern were used."""

    name: str
    type: str
    skill: str | None
    pattern: str | None
    min_count: int
    max_count: int | None
    """None if there is no upper bound."""

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        used = skills_of(candidate)
        if used is None:
            return _no_data(self)
        count = sum(map(self._fits, used))
        held, bounds = within(count, self.min_count, self.max_count)
        what = self.pattern or self.skill
        text = f"{what} used {count} {'time' if count == 1 else 'times'} ({bounds} expected; {_listed(used)})"
        return all_or_nothing(self, held, text, text)

    def _fits(self, skill: str) -> bool:
        return (self.skill is None or skill == self.skill) and (self.pattern is None or like(skill, self.pattern))


@dataclass(frozen=True, slots=True)
class SkillTrigger:
    """Whether a skill was used."""

    name: str
    type: str
    skill: str
    wanted: bool
    """False: whether it was not."""

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        if not _known(candidate):
            return _no_data(self)
        evidence = next((text for use in candidate.tool_uses if (text := self._evidence(use))), None)
        text = evidence or f"{self.skill} not found in {len(candidate.tool_uses)} tool calls"
        return all_or_nothing(self, (evidence is not None) is self.wanted, text, text)

    def _evidence(self, use: ToolUse) -> str | None:
        called = _called(use)
        if called is not None:
            return f"{use.tool} called with {called}" if self.skill in called else None
        folder = f"skills/{self.skill}/"
        for text in _given(use):
            if folder in text.replace("\\", "/"):
                return f"{use.tool} called with {shown(text)}"
        return f"{folder} in what {use.tool} gave" if folder in as_text(use.output or "").replace("\\", "/") else None


def _no_data(grader: Any) -> Score:
    return found(grader, 0.0, misses=("no data about tool calls",))


def _listed(used: Sequence[str]) -> str:
    return f"skills: {', '.join(used)}" if used else "no skill was used"
