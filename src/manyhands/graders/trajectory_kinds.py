"""Graders of what was done, by the names that promptfoo and later versions of AgentV have for them.

============================  =======================================================================================
kind                          passes when
============================  =======================================================================================
trajectory:tool_used          each of the tools of ``value`` was called; or one was called ``min`` to ``max`` times
trajectory:tool_sequence      the tools of ``steps`` were called in that order: others may stand between (``in_order``), or there is
                              nothing else (``exact``)
trajectory:tool_args_match    a call of the tool had these arguments: among others (``partial``), or no others (``exact``)
trajectory:step_count         there were ``min`` to ``max`` steps of that kind and name
============================  =======================================================================================

Each scores 1 or 0. ``negate`` (or ``not-`` before the kind) is the opposite: of a list of tools, that none of them was called. What
nobody knows anything about is a miss either way. How steps are looked for: ``steps``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator

from manyhands.core.places import Place
from manyhands.core.settings import shown
from manyhands.graders.entry import Entry, EntryType, key, read, respelled, snake
from manyhands.graders.protocol import Grader
from manyhands.graders.registry import Setup
from manyhands.graders.steps import KINDS, UNKNOWN, Count, Matcher, StepEntry
from manyhands.graders.trajectory_rules import AllUsed, Args, InOrder, Rule, Times, TrajectoryRule


def _words(value: Any) -> tuple[str, ...]:
    words = (value,) if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) and word.strip() for word in words):
        raise ValueError("must be a text or a list of texts")
    return tuple(words)


def _one_of(*words: str) -> BeforeValidator:
    def check(value: Any) -> str:
        word = snake(value) if isinstance(value, str) else ""
        if word not in words:
            raise ValueError(f"must be {' or '.join(words)}")
        return word

    return BeforeValidator(check, json_schema_input_type=str)


class ToolCount(StepEntry):
    """A tool, and how often it is to be called."""

    min: Count | None = key(None, "Calls at least; 1 by default, and 0 with max: 0.")
    max: Count | None = key(None, "Calls at most.")


class SequenceValue(Entry):
    """Tools in an order."""

    entries: ClassVar[Mapping[str, type[Entry]]] = {"steps": StepEntry}
    steps: list[Any] = key(..., "The tools: names, or mappings with name or pattern.")
    mode: Annotated[str, _one_of("in_order", "exact")] = key("in_order", "in_order or exact.")


class ArgsValue(StepEntry):
    """A tool, and what it is to be given."""

    spellings: ClassVar[Mapping[str, str]] = {"arguments": "args"}
    args: Any = key(..., "The arguments.")
    mode: Annotated[str, _one_of("partial", "exact")] = key("partial", "partial or exact.")
    defaults: Mapping[str, Any] | None = key(None, "Arguments that may be there, with these values, unasked for.")
    ignore: Annotated[tuple[str, ...], BeforeValidator(_words, json_schema_input_type=str | list[str])] = key(
        (), "Arguments that are not looked at: names, with * and ?."
    )


class StepCount(StepEntry):
    """Steps, and how many of them there may be."""

    min: Count | None = key(None, "Steps at least.")
    max: Count | None = key(None, "Steps at most.")


def _anything(value: Any) -> Any:
    return value


class ToolUsedEntry(Entry):
    """Settings of ``trajectory:tool_used``."""

    negates: ClassVar[bool] = True
    entries: ClassVar[Mapping[str, type[Entry]]] = {"value": ToolCount}
    value: Annotated[Any, BeforeValidator(_anything, json_schema_input_type=str | list[str] | ToolCount)] = key(
        ..., "A tool's name, a list of them, or a mapping with name or pattern and min, max."
    )


class ToolSequenceEntry(Entry):
    """Settings of ``trajectory:tool_sequence``."""

    negates: ClassVar[bool] = True
    value: Annotated[Any, BeforeValidator(_anything, json_schema_input_type=list[str | StepEntry] | SequenceValue)] = (
        key(..., "A list of tools, or a mapping with steps and mode.")
    )


class ToolArgsEntry(Entry):
    """Settings of ``trajectory:tool_args_match``."""

    negates: ClassVar[bool] = True
    entries: ClassVar[Mapping[str, type[Entry]]] = {"value": ArgsValue}
    value: ArgsValue = key(..., "A mapping with name or pattern, and args.")


class StepCountEntry(Entry):
    """Settings of ``trajectory:step_count``."""

    negates: ClassVar[bool] = True
    entries: ClassVar[Mapping[str, type[Entry]]] = {"value": StepCount}
    value: StepCount = key(..., "A mapping with min or max, and perhaps type and name or pattern.")


ENTRIES: dict[str, type[Entry]] = {
    "trajectory:tool_used": ToolUsedEntry,
    "trajectory:tool_sequence": ToolSequenceEntry,
    "trajectory:tool_args_match": ToolArgsEntry,
    "trajectory:step_count": StepCountEntry,
}


def parse(entry: Mapping[str, Any], place: Place, setup: Setup) -> Grader:
    """A grader of one of the kinds of ``ENTRIES``. Raises UserError for a value that can't be meant."""
    settings = read(ENTRIES[entry["type"]], {name: value for name, value in entry.items() if name != "negate"}, place)
    rule = _rule(settings, place.at("value"), setup)
    counts = isinstance(settings, StepCountEntry)
    return TrajectoryRule(entry["name"], entry["type"], rule, opposite=bool(entry.get("negate")), all_steps=counts)


def _rule(settings: Entry, place: Place, setup: Setup) -> Rule:
    if isinstance(settings, ToolUsedEntry):
        return _used(settings.value, place, setup)
    if isinstance(settings, ToolSequenceEntry):
        return _sequence(settings.value, place, setup)
    if isinstance(settings, ToolArgsEntry):
        value = settings.value
        return Args(Matcher.of(value, place), value.args, value.mode == "exact", value.defaults or {}, value.ignore)
    assert isinstance(settings, StepCountEntry)
    return _count(settings.value, place, setup)


def _used(value: Any, place: Place, setup: Setup) -> Rule:
    if isinstance(value, Mapping):
        count = _within(ToolCount, value, place, setup)
        least = (0 if count.max == 0 else 1) if count.min is None else count.min
        _check_bounds(least, count.max, place)
        return Times(Matcher.of(count, place), least, count.max)
    return AllUsed([Matcher.of(name, place) for name in _names(value, place)])


def _names(value: Any, place: Place) -> tuple[str, ...]:
    try:
        names = _words(value)
    except ValueError:
        names = ()
    if not names:
        raise place.error(
            f"must be a tool's name, a list of them, or a mapping with name or pattern, not {shown(value)}"
        )
    return names


def _sequence(value: Any, place: Place, setup: Setup) -> Rule:
    at = place
    if isinstance(value, Mapping):
        sequence, at = _within(SequenceValue, value, place, setup), place.at("steps")
    elif isinstance(value, (list, tuple)):
        sequence = SequenceValue(steps=list(value))
    else:
        raise place.error(f"must be a list of tools, or a mapping with steps, not {shown(value)}")
    if not sequence.steps:
        raise at.error("must not be empty")
    steps = [_step(step, at.at(index), setup) for index, step in enumerate(sequence.steps)]
    return InOrder(steps, sequence.mode == "exact")


def _step(value: Any, place: Place, setup: Setup) -> Matcher:
    if isinstance(value, Mapping):
        return Matcher.of(_within(StepEntry, value, place, setup), place)
    if not isinstance(value, str) or not value.strip():
        raise place.error(f"must be a tool's name, or a mapping with name or pattern, not {shown(value)}")
    return Matcher.of(value, place)


def _count(value: StepCount, place: Place, setup: Setup) -> Rule:
    if value.min is None and value.max is None:
        raise place.error("min or max is required")
    _check_bounds(value.min or 0, value.max, place)
    for kind in value.type or ():
        if kind in UNKNOWN:
            setup.notices(place.at("type").says(f"what targets report has no steps of the kind {kind}, so there are 0"))
    return Times(Matcher.of(value, place, kinds=KINDS, named=False), value.min or 0, value.max)


def _check_bounds(least: int, most: int | None, place: Place) -> None:
    if most is not None and most < least:
        raise place.at("max").error(f"must be at least min, which is {least}, not {most}")


def _within(model: type[EntryType], value: Mapping[str, Any], place: Place, setup: Setup) -> EntryType:
    return read(model, respelled(model, value, place, setup.notices), place)
