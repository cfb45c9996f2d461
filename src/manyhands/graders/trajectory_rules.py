"""What is held against the steps of an answer, for graders of the ``trajectory:`` kinds (see ``trajectory_kinds``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from manyhands.core.jsonio import Json, dumps
from manyhands.graders.found import all_or_nothing, found
from manyhands.graders.protocol import Candidate, Grading, Score
from manyhands.graders.steps import Matcher, Step, calls_of, like, steps_of
from manyhands.graders.trajectory import shown_call
from manyhands.graders.values import equal

_MOST_SHOWN = 20


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
        parts = [f"{', '.join(there)} called"] if there else []
        parts += [f"{', '.join(missing)} not called"] if missing else []
        return not (there if opposite else missing), f"{', '.join(parts)} ({_listed(steps)})"


@dataclass(frozen=True, slots=True)
class Times:
    """How often. ``most``: None if there is no upper bound."""

    what: Matcher
    least: int
    most: int | None

    def check(self, steps: Sequence[Step], *, opposite: bool) -> tuple[bool, str]:
        count = sum(map(self.what.fits, steps))
        bounds = f"at least {self.least}" if self.most is None else f"{self.least} to {self.most}"
        held = self.least <= count and (self.most is None or count <= self.most)
        times = "time" if count == 1 else "times"
        return held is not opposite, f"{self.what}: {count} {times} ({'not ' if opposite else ''}{bounds} expected)"


@dataclass(frozen=True, slots=True)
class InOrder:
    """Tools in an order. ``exact``: and nothing else."""

    tools: Sequence[Matcher]
    exact: bool

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
    """What a tool was given. ``exact``: and nothing else, but for what is in ``defaults`` with its value; ``ignore``: names of
    arguments that are not looked at."""

    tool: Matcher
    args: Json
    exact: bool
    defaults: Mapping[str, Any]
    ignore: Sequence[str]

    def check(self, steps: Sequence[Step], *, opposite: bool) -> tuple[bool, str]:
        calls = [step for step in steps if self.tool.fits(step)]
        held = any(self._fits(call.args) for call in calls)
        return held is not opposite, self._said(calls, held) if calls else f"{self.tool} not called ({_listed(steps)})"

    def _said(self, calls: Sequence[Step], held: bool) -> str:
        given = ", ".join(_json(call.args) for call in calls[:_MOST_SHOWN])
        wanted = f"{'exactly ' if self.exact else ''}{_json(self.args)}"
        return shown_call(f"{self.tool} {'' if held else 'not '}called with {wanted} (calls: {given})")

    def _fits(self, given: Json) -> bool:
        expected, actual = self._kept(self.args), self._kept(given)
        if isinstance(actual, Mapping) and isinstance(expected, Mapping):
            unasked = (name for name in actual if name not in expected and self._is_default(name, actual[name]))
            actual = {name: actual[name] for name in actual.keys() - set(unasked)}
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
    more = f", … and {len(steps) - _MOST_SHOWN} more" if len(steps) > _MOST_SHOWN else ""
    return shown_call(f"calls: {', '.join(map(str, steps[:_MOST_SHOWN]))}{more}")


def _json(value: Json) -> str:
    return shown_call(dumps(value).decode())


@dataclass(frozen=True, slots=True)
class TrajectoryRule:
    """Holds a rule, or its ``opposite``, against the calls of an answer; ``all_steps``: or against all that was done."""

    name: str
    type: str
    rule: Rule
    opposite: bool
    all_steps: bool

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        steps = steps_of(candidate) if self.all_steps else calls_of(candidate)
        if steps is None:
            return found(self, 0.0, misses=("no data about tool calls",))
        passed, text = self.rule.check(steps, opposite=self.opposite)
        return all_or_nothing(self, passed, text, text)
