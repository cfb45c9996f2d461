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

What is held against the steps of an answer, for graders of the ``trajectory:`` kinds (see ``registry.TRAJECTORY``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import BeforeValidator

from manyhands.core.jsonio import Json, dumps
from manyhands.core.settings import shown
from manyhands.graders.json_values import equal
from manyhands.graders.protocol import Candidate, Grader, Grading, Score, all_or_nothing, found
from manyhands.graders.registry import Setup
from manyhands.graders.trajectory.steps import (
    KINDS,
    UNKNOWN,
    Count,
    Matcher,
    Step,
    StepEntry,
    calls_of,
    like,
    steps_of,
    used_and_not,
    within,
)
from manyhands.graders.trajectory.tool_calls import shown_call
from manyhands.io.keys import Entry, EntryType, key, read, respelled, snake
from manyhands.io.locations import Location


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
    defaults: Mapping[str, Any] | None = key(
        None, "Arguments that may be there, with these values, without being expected."
    )
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


def parse(entry: Mapping[str, Any], location: Location, setup: Setup) -> Grader:
    """A grader of one of the kinds of ``ENTRIES``. Raises UserError for a value that can't be meant."""
    settings = read(
        ENTRIES[entry["type"]], {name: value for name, value in entry.items() if name != "negate"}, location
    )
    rule = _rule(settings, location.at("value"), setup)
    counts = isinstance(settings, StepCountEntry)
    return TrajectoryRule(entry["name"], entry["type"], rule, opposite=bool(entry.get("negate")), all_steps=counts)


def _rule(settings: Entry, location: Location, setup: Setup) -> Rule:
    if isinstance(settings, ToolUsedEntry):
        return _used(settings.value, location, setup)
    if isinstance(settings, ToolSequenceEntry):
        return _sequence(settings.value, location, setup)
    if isinstance(settings, ToolArgsEntry):
        value = settings.value
        return Args(Matcher.of(value, location), value.args, value.mode == "exact", value.defaults or {}, value.ignore)
    assert isinstance(settings, StepCountEntry)
    return _count(settings.value, location, setup)


def _used(value: Any, location: Location, setup: Setup) -> Rule:
    if isinstance(value, Mapping):
        count = _within(ToolCount, value, location, setup)
        minimum = (0 if count.max == 0 else 1) if count.min is None else count.min
        _check_bounds(minimum, count.max, location)
        return Times(Matcher.of(count, location), minimum, count.max)
    return AllUsed([Matcher.of(name, location) for name in _names(value, location)])


def _names(value: Any, location: Location) -> tuple[str, ...]:
    try:
        names = _words(value)
    except ValueError:
        names = ()
    if not names:
        raise location.error(
            f"must be a tool's name, a list of them, or a mapping with name or pattern, not {shown(value)}"
        )
    return names


def _sequence(value: Any, location: Location, setup: Setup) -> Rule:
    at = location
    if isinstance(value, Mapping):
        sequence, at = _within(SequenceValue, value, location, setup), location.at("steps")
    elif isinstance(value, (list, tuple)):
        sequence = SequenceValue(steps=list(value))
    else:
        raise location.error(f"must be a list of tools, or a mapping with steps, not {shown(value)}")
    if not sequence.steps:
        raise at.error("must not be empty")
    steps = [_step(step, at.at(index), setup) for index, step in enumerate(sequence.steps)]
    return InOrder(steps, sequence.mode == "exact")


def _step(value: Any, location: Location, setup: Setup) -> Matcher:
    if isinstance(value, Mapping):
        return Matcher.of(_within(StepEntry, value, location, setup), location)
    if not isinstance(value, str) or not value.strip():
        raise location.error(f"must be a tool's name, or a mapping with name or pattern, not {shown(value)}")
    return Matcher.of(value, location)


def _count(value: StepCount, location: Location, setup: Setup) -> Rule:
    if value.min is None and value.max is None:
        raise location.error("min or max is required")
    _check_bounds(value.min or 0, value.max, location)
    for kind in value.type or ():
        if kind in UNKNOWN:
            setup.notices(
                location.at("type").says(f"what targets report has no steps of the kind {kind}, so there are 0")
            )
    return Times(Matcher.of(value, location, kinds=KINDS, named=False), value.min or 0, value.max)


def _check_bounds(minimum: int, maximum: int | None, location: Location) -> None:
    if maximum is not None and maximum < minimum:
        raise location.at("max").error(f"must be at least min, which is {minimum}, not {maximum}")


def _within(model: type[EntryType], value: Mapping[str, Any], location: Location, setup: Setup) -> EntryType:
    return read(model, respelled(model, value, location, setup.notices, unknown=setup.unknown), location)


_MAX_SHOWN = 20


class Rule(Protocol):
    """What is held against steps."""

    def check(self, steps: Sequence[Step], *, opposite: bool) -> tuple[bool, str]:
        """Whether it holds, or its opposite does, and one line that says what there was."""
        ...


@dataclass(frozen=True, slots=True)
class AllUsed:
    """Each of several tools. Its opposite: none of them."""

    tools: Sequence[Matcher]

    def check(self, steps: Sequence[Step], *, opposite: bool) -> tuple[bool, str]:
        there = [str(tool) for tool in self.tools if any(map(tool.fits, steps))]
        missing = [str(tool) for tool in self.tools if not any(map(tool.fits, steps))]
        text = f"{used_and_not(there, missing, 'called')} ({_listed(steps)})"
        return not (there if opposite else missing), text


@dataclass(frozen=True, slots=True)
class Times:
    """How often a step was taken."""

    what: Matcher
    min_count: int
    max_count: int | None
    """None if there is no upper bound."""

    def check(self, steps: Sequence[Step], *, opposite: bool) -> tuple[bool, str]:
        count = sum(map(self.what.fits, steps))
        held, bounds = within(count, self.min_count, self.max_count)
        times = "time" if count == 1 else "times"
        return held is not opposite, f"{self.what}: {count} {times} ({'not ' if opposite else ''}{bounds} expected)"


@dataclass(frozen=True, slots=True)
class InOrder:
    """Tools in an order."""

    tools: Sequence[Matcher]
    exact: bool
    """Whether nothing else may have been called."""

    def check(self, steps: Sequence[Step], *, opposite: bool) -> tuple[bool, str]:
        held, text = self._exactly(steps) if self.exact else self._among(steps)
        return held is not opposite, f"{text} ({_listed(steps)})"

    def _exactly(self, steps: Sequence[Step]) -> tuple[bool, str]:
        held = len(steps) == len(self.tools) and all(map(Matcher.fits, self.tools, steps))
        return held, f"{', '.join(map(str, self.tools))} and nothing else {'' if held else 'not '}called, in this order"

    def _among(self, steps: Sequence[Step]) -> tuple[bool, str]:
        met = 0
        for step in steps:
            if met < len(self.tools) and self.tools[met].fits(step):
                met += 1
        if met == len(self.tools):
            return True, f"{', '.join(map(str, self.tools))} called in this order"
        return False, f"{self.tools[met]} not called{f' after {self.tools[met - 1]}' if met else ''}"


@dataclass(frozen=True, slots=True)
class Args:
    """What a tool was given."""

    tool: Matcher
    args: Json
    exact: bool
    """Whether there may be no other arguments, but for those in ``defaults`` with their values."""
    defaults: Mapping[str, Any]
    ignore: Sequence[str]
    """The names of arguments that are not looked at."""

    def check(self, steps: Sequence[Step], *, opposite: bool) -> tuple[bool, str]:
        calls = [step for step in steps if self.tool.fits(step)]
        held = any(self._fits(call.args) for call in calls)
        return held is not opposite, self._said(calls, held) if calls else f"{self.tool} not called ({_listed(steps)})"

    def _said(self, calls: Sequence[Step], held: bool) -> str:
        given = ", ".join(_json(call.args) for call in calls[:_MAX_SHOWN])
        wanted = f"{'exactly ' if self.exact else ''}{_json(self.args)}"
        return shown_call(f"{self.tool} {'' if held else 'not '}called with {wanted} (calls: {given})")

    def _fits(self, given: Json) -> bool:
        expected, actual = self._kept(self.args), self._kept(given)
        if isinstance(actual, Mapping) and isinstance(expected, Mapping):
            undeclared = (name for name in actual if name not in expected and self._is_default(name, actual[name]))
            actual = {name: actual[name] for name in actual.keys() - set(undeclared)}
        return equal(expected, actual) if self.exact else _contained(expected, actual)

    def _kept(self, args: Json) -> Json:
        if not isinstance(args, Mapping):
            return args
        return {name: value for name, value in args.items() if not any(_named(name, word) for word in self.ignore)}

    def _is_default(self, name: str, value: Json) -> bool:
        return name in self.defaults and equal(self.defaults[name], value)


def _named(name: str, word: str) -> bool:
    return like(name, word) if "*" in word or "?" in word else name == word


def _contained(expected: Json, actual: Json) -> bool:
    """Whether all that is expected is there: of objects the keys named, of lists every item."""
    if isinstance(expected, Mapping):
        return isinstance(actual, Mapping) and all(
            name in actual and _contained(value, actual[name]) for name, value in expected.items()
        )
    if isinstance(expected, (list, tuple)):
        return (
            isinstance(actual, (list, tuple))
            and len(actual) == len(expected)
            and all(map(_contained, expected, actual))
        )
    return equal(expected, actual)


def _listed(steps: Sequence[Step]) -> str:
    """The calls there were."""
    if not steps:
        return "no tool was called"
    more = f", … and {len(steps) - _MAX_SHOWN} more" if len(steps) > _MAX_SHOWN else ""
    return shown_call(f"calls: {', '.join(map(str, steps[:_MAX_SHOWN]))}{more}")


def _json(value: Json) -> str:
    return shown_call(dumps(value).decode())


@dataclass(frozen=True, slots=True)
class TrajectoryRule:
    """Holds a rule, or its ``opposite``, against the calls of an answer."""

    name: str
    type: str
    rule: Rule
    opposite: bool
    all_steps: bool
    """Hold it against all that was done, not only the calls."""

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        steps = steps_of(candidate) if self.all_steps else calls_of(candidate)
        if steps is None:
            return found(self, 0.0, misses=("no data about tool calls",))
        passed, text = self.rule.check(steps, opposite=self.opposite)
        return all_or_nothing(self, passed, text, text)
