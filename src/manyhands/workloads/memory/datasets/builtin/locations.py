"""Places of a town, told one relative to the other: which way leads back, and which from the first to the last."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

from pydantic import Field

from manyhands.core.digests import Draws
from manyhands.workloads.memory.conversation.definitions import Definition, Exchange, Json, Scoring
from manyhands.workloads.memory.datasets.answers.judging import BY_MODEL, ask_with_data, judged
from manyhands.workloads.memory.datasets.answers.matching import NotJson, quantity_in, tolerant_json
from manyhands.workloads.memory.datasets.base import (
    BaseDataset,
    DatasetArguments,
    JudgeRule,
    all_or_nothing,
    last_of,
    prompt,
    some_of,
    texts,
)

_TEXTS = texts("locations")
PLACES: tuple[str, ...] = _TEXTS["places"]
STEPS = {"North": (0, 1), "East": (1, 0), "South": (0, -1), "West": (-1, 0)}
FARTHEST = 4
DIRECTIONS = "structure directions"
"""The purpose of asking a model to turn directions into a list."""

_LEG = re.compile(
    r"From (?P<origin>.{1,200}?), go (?P<kilometers>\d{1,9})km (?P<direction>\w{1,20}) to (?P<destination>.+?)\.?$",
    re.MULTILINE,
)

Point = tuple[int, int]
Move = tuple[str, int]
"""Direction and kilometres."""
Leg = tuple[str, int, str, str]
"""Origin, kilometres, direction, destination."""


class LocationArguments(DatasetArguments):
    known_locations: int = Field(default=5, ge=2, le=len(PLACES))
    """How many places are told."""


class Locations(BaseDataset):
    """The way back from the last place to the first is asked for. The last place lies on an axis through the first, so that one
    direction and one distance are the answer. One point by the general judge.

    Mended: the last place is never where the first is (as published, it may be, and the expected answer is then a bare text).
    """

    id = "locations"
    default_name = "Locations"
    default_reset = "I have moved to another town. Please disregard every place that I have described up to now."
    about = "Tells where places are relative to each other, and asks for the way back to the first."
    Arguments: ClassVar[type[DatasetArguments]] = LocationArguments

    def example(self, number: int, draws: Draws) -> Definition:
        places = some_of(draws, PLACES, self.arguments.known_locations)
        told, legs = [_TEXTS["first"].format(place=places[0])], list[Leg]()
        for before, place in pairwise(places):
            direction, distance = self.leg(draws, legs, last=place == places[-1])
            legs.append((before, distance, direction, place))
            told.append(
                draws.pick(_TEXTS["next"]).format(place=place, before=before, distance=distance, direction=direction)
            )
        words = {"first": places[0], "last": places[-1]}
        return self.scripted(number, told, (self.asked(words),), [self.expected(legs)])

    def asked(self, words: dict[str, str]) -> str:
        return str(self.question) or _TEXTS["back"].format(**words)

    def leg(self, draws: Draws, legs: Sequence[Leg], last: bool) -> Move:
        """Direction and distance of the next leg, to a spot where no other place is if there is one."""
        at = end_of(legs)
        taken = {end_of(legs[:number]) for number in range(len(legs) + 1)}
        possible = self.moves(at, last)
        free = [move for move in possible if _moved(at, move) not in taken]
        return draws.pick(free or possible)

    def moves(self, at: Point, last: bool) -> list[Move]:
        """Where the next leg may go."""
        x, y = at
        if last and x and y:
            return [("West" if x > 0 else "East", abs(x)), ("South" if y > 0 else "North", abs(y))]
        along = [name for name, step in STEPS.items() if not last or _on_axis(at, step)]
        return [(name, distance) for name in along for distance in range(1, FARTHEST + 1)]

    def expected(self, legs: Sequence[Leg]) -> str:
        x, y = end_of(legs)
        direction = ("South" if y > 0 else "North") if y else ("West" if x > 0 else "East")
        return f"{abs(x or y)} km {direction}"

    def evaluate(self, exchange: Exchange) -> Scoring:
        expected = exchange.definition.expected_responses
        right = [expected] if isinstance(expected, str) else list(expected)
        return (yield from judged(exchange.questions[-1:], right[:1], exchange.answers[-1:]))


def _directions_by_rule(data: Json) -> Json:
    keys = ("origin", "kilometers", "direction", "destination")
    return [dict(zip(keys, leg, strict=True)) for leg in legs_in(data["directions"])]


class LocationsDirections(Locations):
    """The way from the first place to the last is asked for. A model turns the answer into legs; one point if they add up to the
    way from the first to the last. Which places they pass is not checked. A leg with an unknown place or direction, or whose
    distance is no whole number above 0, gives nothing.

    Mended: places are recognised in capitals or not and with or without an article (as published, only directions are); a distance may be
    a text, as "2 km".
    """

    id = "locations_directions"
    default_name = "Locations Directions"
    default_reset = "I have moved to another town. Please disregard every place that I have described up to now."
    about = "Tells where places are relative to each other, and asks for the way from the first to the last."
    judge_rules: ClassVar[Mapping[str, JudgeRule]] = {DIRECTIONS: _directions_by_rule}

    def asked(self, words: dict[str, str]) -> str:
        return str(self.question) or _TEXTS["route"].format(**words)

    def moves(self, at: Point, last: bool) -> list[Move]:
        return super().moves(at, last=False)

    def expected(self, legs: Sequence[Leg]) -> str:
        return "\n".join((_TEXTS["remark"], *(f"From {leg[0]}, go {leg[1]}km {leg[2]} to {leg[3]}." for leg in legs)))

    def evaluate(self, exchange: Exchange) -> Scoring:
        wanted = legs_in(exchange.definition.expected_responses[0])
        places = list(dict.fromkeys(place for leg in wanted for place in (leg[0], leg[3])))
        data = {"places": places, "directions": last_of(exchange.answers)}
        reply = yield ask_with_data(DIRECTIONS, prompt("locations"), data, max_tokens=1024)
        try:
            given = [_leg(each, places, self.mended) for each in _list(tolerant_json(reply))]
        except (NotJson, ValueError) as error:
            return all_or_nothing(False, f"no directions: {error} {BY_MODEL}")
        right = bool(given) and end_of(given) == end_of(wanted)
        return all_or_nothing(right, f"the directions {'lead' if right else 'do not lead'} there {BY_MODEL}")


def legs_in(text: str) -> list[Leg]:
    """The legs of an expected answer."""
    return [
        (found["origin"], int(found["kilometers"]), found["direction"], found["destination"])
        for found in _LEG.finditer(text)
    ]


def end_of(legs: Sequence[Leg]) -> Point:
    """Where legs lead from the origin of the coordinates, in kilometres to the east and to the north."""
    moves = [(STEPS[direction], distance) for _, distance, direction, _ in legs]
    return sum(step[0] * distance for step, distance in moves), sum(step[1] * distance for step, distance in moves)


def _moved(at: Point, move: Move) -> Point:
    direction, distance = move
    x, y = STEPS[direction]
    return at[0] + x * distance, at[1] + y * distance


def _on_axis(at: Point, step: Point) -> bool:
    """Whether a step from a point on an axis stays on an axis."""
    return (at[0] == 0 and step[0] == 0) or (at[1] == 0 and step[1] == 0)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise NotJson("not a list")
    return value


def _leg(value: Any, places: Sequence[str], mended: bool) -> Leg:
    if not isinstance(value, dict):
        raise NotJson("not a list of objects")
    distance = value.get("kilometers")
    if mended and not isinstance(distance, int):
        distance = quantity_in(distance)
    if not isinstance(distance, int) or isinstance(distance, bool) or distance <= 0:
        raise ValueError(f"{distance!r} is no distance in whole kilometres")
    direction = str(value.get("direction")).strip().title()
    if direction not in STEPS:
        raise ValueError(f"{direction!r} is no direction")
    origin, destination = (_place(str(value.get(key)), places, mended) for key in ("origin", "destination"))
    return origin, distance, direction, destination


def _place(said: str, places: Sequence[str], mended: bool) -> str:
    known = next((place for place in places if _plain(place) == _plain(said)), None) if mended else said
    if known is None or known not in places:
        raise ValueError(f"{said!r} is none of the places")
    return known


def _plain(place: str) -> str:
    return re.sub(r"^the\s+", "", place.strip().lower())
