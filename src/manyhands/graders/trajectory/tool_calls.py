"""``tool_trajectory``: which tools were called, in what order, with what arguments.

==========  =========================================================================================================
mode        score
==========  =========================================================================================================
any_order   tools that were called as often as ``minimums`` says ÷ tools listed there; 1 if none is listed
in_order    (expected calls that were made, in order, others between them allowed + limits kept) ÷ (expected calls + limits checked)
exact       (positions where the expected call was made + limits kept) ÷ (positions + limits checked); as many positions as the longer
            of both lists has, so a call too many lowers the score as one too few does
superset    expected calls that were made ÷ expected calls; each call counts for one of them, matched so that as many as
            possible are found
subset      calls that are expected ÷ calls; 1 if there were none
==========  =========================================================================================================

A limit is ``max_duration_ms`` of an expected call. That of a call that was not made as expected is not kept; that of a call whose
duration nobody measured is not checked. In order: an expected call is looked for after the one found before it; the first call of
its tool there is taken, and if its arguments are others, the expected call is missed and that call is used up. An expected call whose tool
was not called there at all uses up nothing.

Pairing things so that as many as possible have a partner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator

from manyhands.core.errors import GraderError
from manyhands.core.jsonio import dumps
from manyhands.core.settings import optional_number
from manyhands.core.statistics import exact
from manyhands.core.text import cut
from manyhands.graders.json_values import MISSING, at, equal, steps_of
from manyhands.graders.protocol import Candidate, Grader, Grading, Score, ToolUse, found
from manyhands.graders.registry import Setup
from manyhands.graders.trajectory.metrics import calls_by_name
from manyhands.io.keys import Entry, SomeWords, key, read, snake
from manyhands.io.locations import Location

MODES = ("any_order", "in_order", "exact", "subset", "superset")
_MATCHES = ("exact", "superset", "subset", "ignore")
_EMPTY_MEANS_NONE = ("exact", "subset")
_LIMITED = ("in_order", "exact")
_MAX_SHOWN = 300

ArgsMatch = str | tuple[str, ...]


def _mode(value: Any) -> str:
    if not isinstance(value, str) or snake(value) not in MODES:
        raise ValueError(f"must be one of {', '.join(MODES)}")
    return snake(value)


def _args_match(value: Any) -> ArgsMatch | None:
    if value is None or (isinstance(value, str) and value in _MATCHES):
        return value
    if not isinstance(value, (list, tuple)) or not all(isinstance(path, str) for path in value):
        raise ValueError(f"must be one of {', '.join(_MATCHES)}, or a list of fields")
    for path in value:
        steps_of(path)
    return tuple(value)


def _minimums(value: Any) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of tools to numbers of calls")
    for count in value.values():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ValueError("must be a mapping of tools to whole numbers of 0 or more")
    return {str(tool): count for tool, count in value.items()}


_Match = Annotated[Any, BeforeValidator(_args_match)]


class ExpectedCall(Entry):
    """One call that is expected."""

    spellings: ClassVar[Mapping[str, str]] = {"name": "tool", "arguments": "args"}
    tool: SomeWords = key(..., "The tool's name.")
    args: Any = key(None, "Its arguments; any, or none at all: they are not checked.")
    input: Any = key(None, "Arguments that it has at least: args with args_match: superset, unless that is given.")
    args_match: _Match = key(None, "How arguments are compared: exact, superset, subset, ignore, or a list of fields.")
    max_duration_ms: Annotated[float | None, optional_number(minimum=0)] = key(None, "Milliseconds it may take.")


class TrajectoryEntry(Entry):
    """Settings of ``tool_trajectory``."""

    spellings: ClassVar[Mapping[str, str]] = {"expected_calls": "expected"}
    entries: ClassVar[Mapping[str, type[Entry]]] = {"expected": ExpectedCall}
    mode: Annotated[str, BeforeValidator(_mode)] = key(..., f"One of {', '.join(MODES)}.")
    minimums: Annotated[dict[str, int], BeforeValidator(_minimums)] | None = key(
        None, "How often each tool must be called at least; for any_order."
    )
    expected: tuple[ExpectedCall, ...] | None = key(None, "The calls expected; for all modes but any_order.")
    args_match: _Match = key(None, "How arguments are compared where a call does not say it; exact by default.")


ENTRY = TrajectoryEntry


def parse(entry: Mapping[str, Any], location: Location, setup: Setup) -> Grader:
    """Raises UserError if what the mode needs is not there."""
    settings = read(TrajectoryEntry, entry, location)
    mode, expected = settings.mode, settings.expected
    if mode == "any_order":
        if settings.minimums is None:
            raise location.error("minimums is required in the mode any_order")
        return AnyOrder(entry["name"], entry["type"], settings.minimums)
    if expected is None:
        raise location.error(f"expected is required in the mode {mode}")
    if not expected and mode not in _EMPTY_MEANS_NONE:
        raise location.at("expected").error(f"must not be empty in the mode {mode}")
    for index, call in enumerate(expected):
        if call.args is not None and call.input is not None:
            raise location.at("expected", index, "input").error("must not stand beside args")
        if call.max_duration_ms is not None and mode not in _LIMITED:
            where = location.at("expected", index, "max_duration_ms")
            setup.notices(where.says(f"is checked in the modes {' and '.join(_LIMITED)} only"))
    calls = [Expected.of(call, settings.args_match) for call in expected]
    return Trajectory(entry["name"], entry["type"], mode, calls)


@dataclass(frozen=True, slots=True)
class Expected:
    """One call that is expected, ready to be compared."""

    tool: str
    args: Any
    match: ArgsMatch
    limit: float | None

    @classmethod
    def of(cls, call: ExpectedCall, match: ArgsMatch | None) -> Expected:
        """``match``: where the call does not say it."""
        usual: ArgsMatch = "exact" if call.input is None else "superset"
        own = call.args_match if call.args_match is not None else match
        given = call.args if call.input is None else call.input
        args = None if given == "any" else given
        return cls(
            call.tool, args, "ignore" if args is None else own if own is not None else usual, call.max_duration_ms
        )

    def fits(self, use: ToolUse) -> bool:
        """Whether a call is this one."""
        return use.tool == self.tool and self.fits_args(use)

    def fits_args(self, use: ToolUse) -> bool:
        """Whether its arguments are."""
        return self.match == "ignore" or _args_fit(self.match, self.args, {} if use.input is None else use.input)

    def __str__(self) -> str:
        return self.tool if self.match == "ignore" else _call(self.tool, self.args)


def _args_fit(match: ArgsMatch, expected: Any, actual: Any) -> bool:
    if match == "exact" or not isinstance(expected, Mapping) or not isinstance(actual, Mapping):
        return equal(expected, actual)
    if match == "superset":
        return all(name in actual and equal(value, actual[name]) for name, value in expected.items())
    if match == "subset":
        return all(name in expected and equal(value, expected[name]) for name, value in actual.items())
    defined = [(at(expected, steps), steps) for steps in map(steps_of, match)]
    return all(value is MISSING or equal_there(value, at(actual, steps)) for value, steps in defined)


def equal_there(expected: Any, actual: Any) -> bool:
    """Whether something is there, and equal."""
    return actual is not MISSING and equal(expected, actual)


@dataclass(slots=True)
class _Tally:
    """What was looked at so far."""

    checked: int = 0
    hits: list[str] = field(default_factory=list)
    misses: list[str] = field(default_factory=list)
    unmeasured: list[str] = field(default_factory=list)
    """Limits that could not be checked."""

    def hit(self, text: str) -> None:
        self.checked += 1
        self.hits.append(text)

    def miss(self, text: str) -> None:
        self.checked += 1
        self.misses.append(text)

    def limit(self, expected: Expected, use: ToolUse | None) -> None:
        """Check the limit of an expected call. ``use``: the call that was it, None if there was none."""
        if expected.limit is None:
            return
        text = f"{expected.tool} within {expected.limit:g} ms"
        if use is None:
            self.miss(f"{text}: not called as expected")
        elif use.duration_ms is None:
            self.unmeasured.append(expected.tool)
        elif exact(use.duration_ms) <= exact(expected.limit):
            self.hit(f"{text}: {use.duration_ms:g} ms")
        else:
            self.miss(f"{text}: {use.duration_ms:g} ms")

    def score(self, grader: Any, what: str) -> Score:
        """The share of hits; 1 if nothing was to be checked."""
        value = len(self.hits) / self.checked if self.checked else 1.0
        reasoning = f"{len(self.hits)} of {self.checked} {what}"
        if self.unmeasured:
            reasoning += f"; limits not checked, as no duration is known: {', '.join(self.unmeasured)}"
        return found(grader, value, self.hits, self.misses, reasoning=reasoning)


@dataclass(frozen=True, slots=True)
class AnyOrder:
    """The mode ``any_order``. It needs numbers of calls only, so a trace is enough."""

    name: str
    type: str
    minimums: Mapping[str, int]

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        counts = calls_by_name(candidate)
        if counts is None:
            return _no_data(self)
        tally = _Tally()
        for tool, minimum in self.minimums.items():
            made = counts.get(tool, 0)
            text = f"{tool} called {made} {'time' if made == 1 else 'times'} (at least {minimum} expected)"
            (tally.hit if made >= minimum else tally.miss)(text)
        return tally.score(self, "tools were called often enough")


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The other modes."""

    name: str
    type: str
    mode: str
    expected: Sequence[Expected]

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        uses = candidate.tool_uses
        if not uses and candidate.output is None:
            if (candidate.trace or {}).get("event_count"):
                raise GraderError("the trace only counts the tool calls; for this mode the calls themselves are needed")
            if candidate.trace is None:
                return _no_data(self)
        return _MODES[self.mode](self, uses)


def _no_data(grader: Any) -> Score:
    return found(grader, 0.0, misses=("no data about tool calls",))


def _in_order(grader: Trajectory, uses: Sequence[ToolUse]) -> Score:
    tally, begin = _Tally(), 0
    for expected in grader.expected:
        position = next((index for index in range(begin, len(uses)) if uses[index].tool == expected.tool), None)
        if position is None:
            tally.miss(f"{expected} not called{' any more' if begin else ''}")
            tally.limit(expected, None)
            continue
        begin = position + 1
        _compare(tally, expected, uses[position], f"call {begin}")
    return tally.score(grader, "expectations are met, in order")


def _exact(grader: Trajectory, uses: Sequence[ToolUse]) -> Score:
    tally = _Tally()
    for index, expected in enumerate(grader.expected):
        if index < len(uses):
            _compare(tally, expected, uses[index], f"call {index + 1}")
        else:
            tally.miss(f"call {index + 1}: {expected} expected, but there were {len(uses)} calls")
            tally.limit(expected, None)
    for index in range(len(grader.expected), len(uses)):
        tally.miss(f"call {index + 1}: {_used(uses[index])} is one too many")
    return tally.score(grader, "expectations are met, at their places")


def _compare(tally: _Tally, expected: Expected, use: ToolUse, where: str) -> None:
    if expected.fits(use):
        tally.hit(f"{where}: {expected}")
        tally.limit(expected, use)
    else:
        tally.miss(f"{where}: {expected} expected, not {_used(use)}")
        tally.limit(expected, None)


def _superset(grader: Trajectory, uses: Sequence[ToolUse]) -> Score:
    pairs = max_pairs([[index for index, use in enumerate(uses) if call.fits(use)] for call in grader.expected])
    tally = _Tally()
    for call, position in zip(grader.expected, pairs, strict=True):
        if position is None:
            tally.miss(f"{call} not called")
        else:
            tally.hit(f"call {position + 1}: {call}")
    return tally.score(grader, "expected calls were made")


def _subset(grader: Trajectory, uses: Sequence[ToolUse]) -> Score:
    tally = _Tally()
    for index, use in enumerate(uses):
        text = f"call {index + 1}: {_used(use)}"
        if any(call.fits(use) for call in grader.expected):
            tally.hit(text)
        else:
            tally.miss(f"{text} is not expected")
    return tally.score(grader, "calls are among those expected")


_MODES = {"in_order": _in_order, "exact": _exact, "superset": _superset, "subset": _subset}


def _used(use: ToolUse) -> str:
    return _call(use.tool, use.input)


def _call(tool: str, args: Any) -> str:
    return tool if args is None else shown_call(f"{tool}({dumps(args).decode()})")


def shown_call(text: str) -> str:
    """A call, cut to a length that people read."""
    return cut(text, _MAX_SHOWN)


def max_pairs(partners: Sequence[Sequence[int]]) -> list[int | None]:
    """A largest matching of a bipartite graph: for each left one, given by the right ones it may have, the one that it gets, or None.

    Augmenting paths (C. Berge 1957, H. W. Kuhn 1955), found breadth first. A left one that has a partner never loses it for another,
    it only changes it.
    """
    right_of: list[int | None] = [None] * len(partners)
    left_of: dict[int, int] = {}
    for left in range(len(partners)):
        _augment(left, partners, right_of, left_of)
    return right_of


def _augment(
    start: int, partners: Sequence[Sequence[int]], right_of: list[int | None], left_of: dict[int, int]
) -> None:
    """Give the left one a partner, if others can change theirs for it."""
    reached_from: dict[int, int] = {}
    waiting = deque([start])
    while waiting:
        left = waiting.popleft()
        for right in partners[left]:
            if right in reached_from:
                continue
            reached_from[right] = left
            if right not in left_of:
                _turn(right, reached_from, right_of, left_of)
                return
            waiting.append(left_of[right])


def _turn(free: int, reached_from: dict[int, int], right_of: list[int | None], left_of: dict[int, int]) -> None:
    """Along the path that leads to a free right one, give each left one the right one that it was reached by."""
    right: int | None = free
    while right is not None:
        left = reached_from[right]
        before = right_of[left]
        right_of[left], left_of[right] = right, left
        right = before
