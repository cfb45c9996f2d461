"""The points of rubrics as files hold them, and what the numbers that they are given mean."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator

from manyhands.core.settings import Flag, OptionalText, Text, number, optional_number
from manyhands.core.statistics import exact
from manyhands.graders.registry import Setup
from manyhands.io.keys import Entry, key, read, respelled, share_of_one
from manyhands.io.locations import Location

MAX_WEIGHT = 10.0
"""Points that one may get at most."""
Range = tuple[float, float, str]
"""From and to, both included, and what it takes."""


def _ranges(value: Any) -> tuple[Range, ...]:
    if value is None:
        return ()
    if isinstance(value, Mapping):
        return _from_bounds(value)
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError("must be a list of ranges, or a mapping of lower bounds to texts")
    found = sorted(map(_range, value))
    edges = [(low, high) for low, high, _ in found]
    joined = all(after[0] == before[1] + 1 for before, after in pairwise(edges))
    if edges[0][0] != 0 or edges[-1][1] != MAX_WEIGHT or not joined:
        raise ValueError("must cover 0 to 10 without gaps, each number once")
    return tuple(found)


def _range(value: Any) -> Range:
    bounds = value.get("score_range", value.get("scoreRange")) if isinstance(value, Mapping) else None
    if not isinstance(bounds, (list, tuple)) or len(bounds) != 2 or not all(map(_is_points, bounds)):
        raise ValueError("must be a list of mappings with score_range, as in [0, 3], and outcome")
    text = value.get("outcome", value.get("expected_outcome"))
    if not isinstance(text, str) or not text.strip() or bounds[0] > bounds[1]:
        raise ValueError("each range must go up, and have an outcome")
    return float(bounds[0]), float(bounds[1]), text


def _from_bounds(value: Mapping[Any, Any]) -> tuple[Range, ...]:
    try:
        lower = sorted((int(str(bound)), text) for bound, text in value.items())
    except ValueError:
        raise ValueError("must be a mapping of whole numbers from 0 to 10 to texts") from None
    bounds = [bound for bound, _ in lower]
    if not lower or bounds[0] != 0 or bounds[-1] > MAX_WEIGHT or len(set(bounds)) != len(bounds):
        raise ValueError("must be a mapping of lower bounds, from 0 on and up to 10, to texts")
    if not all(isinstance(text, str) and text.strip() for _, text in lower):
        raise ValueError("must be a mapping of lower bounds to texts")
    ends = [*(bound - 1 for bound in bounds[1:]), MAX_WEIGHT]
    return tuple((float(low), float(high), text) for (low, text), high in zip(lower, ends, strict=True))


def _is_points(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_WEIGHT


def _share(value: Any) -> float:
    return share_of_one(value, problem="must be a number above 0 and up to 1, the share of the 10 points")


def _item(value: Any) -> Any:
    return {"outcome": value} if isinstance(value, str) else value


def _items(value: Any) -> list[Any]:
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, (list, tuple)) or not entries:
        raise ValueError("must be a list of texts or of mappings")
    return [_item(entry) for entry in entries]


class RubricItem(Entry):
    """One point."""

    spellings: ClassVar[Mapping[str, str]] = {
        "description": "outcome",
        "expected_outcome": "outcome",
        "criteria": "outcome",
    }
    id: Text | None = key(None, "What results call it; rubric-1 and so on by default.")
    operator: Literal["correctness", "contradiction"] | None = key(
        None,
        "How the answer is held against the outcome: `correctness` (it must say or do it), or `contradiction` (it must say nothing that "
        "contradicts it, and need not mention it).",
    )
    outcome: OptionalText = key(None, "What the answer must be or do.")
    weight: Annotated[float, number(minimum=0)] = key(1.0, "How much it counts, 0 or more.")
    required: Flag | None = key(
        None, "Whether the verdict is fail without it; true by default where there are no ranges."
    )
    min_score: Annotated[float, BeforeValidator(_share)] | None = key(
        None, "The share of the 10 points, up to 1, below which the verdict is fail."
    )
    required_min_score: Annotated[float | None, optional_number(minimum=0, maximum=10)] = key(
        None, "The same in points, of 10; min_score counts where both are given."
    )

    @property
    def minimum(self) -> float | None:
        """The points that it must get, 0 to 10; None if it names no minimum."""
        return self.required_min_score if self.min_score is None else float(exact(self.min_score) * 10)

    score_ranges: Annotated[Any, BeforeValidator(_ranges)] = key((), "What the numbers from 0 to 10 mean.")


RubricList = Annotated[tuple[RubricItem, ...], BeforeValidator(_items)]


def points_of(values: Sequence[Any], location: Location, setup: Setup) -> tuple[RubricItem, ...]:
    """The points of a list that stands elsewhere than under ``criteria``. Raises UserError."""
    parts = [(_item(value), location.at(index)) for index, value in enumerate(values)]
    for part, at in parts:
        if not isinstance(part, Mapping):
            raise at.error("must be a text or a mapping")
    spelled = (respelled(RubricItem, part, at, setup.notices, unknown=setup.unknown) for part, at in parts)
    return tuple(read(RubricItem, part, at) for part, (_, at) in zip(spelled, parts, strict=True))


def _filled_value(value: Any) -> Any:
    if value is not None and (
        not isinstance(value, (str, Mapping, list, tuple)) or not value or not str(value).strip()
    ):
        raise ValueError("must be a text, a list of points, or an object")
    return value


RubricValue = Annotated[
    Any, BeforeValidator(_filled_value, json_schema_input_type=str | list[Any] | dict[str, Any] | None)
]
"""What ``llm-rubric`` and its like are given: a list of points, or what counts instead of a test's criteria."""


def rubrics_or_value(
    rubrics: tuple[RubricItem, ...] | None, value: Any, location: Location, setup: Setup
) -> tuple[tuple[RubricItem, ...] | None, Location]:
    """The points of an entry, None if it has none, and where they stand. Raises UserError if it has them under both keys."""
    if not isinstance(value, (list, tuple)):
        return rubrics, location.at("rubrics")
    if rubrics is not None:
        raise location.at("value").error("gives points, which rubrics does too")
    return points_of(value, location.at("value"), setup), location.at("value")


def criteria_in(value: Any) -> str | None:
    """What a value that is no list of points puts in the place of a test's criteria; None without one."""
    if value is None or isinstance(value, (list, tuple)):
        return None
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, default=str)
