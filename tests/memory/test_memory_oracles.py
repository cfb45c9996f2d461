"""What tests expect, worked out a second time from nothing but the text of their scripts."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.core.digests import Draws
from manyhands.workloads.memory.conversation.definitions import Definition
from manyhands.workloads.memory.datasets.builtin.sallyanne import FIRST_NAMES, tell
from manyhands.workloads.memory.datasets.registry import create

SEEDS = st.integers(0, 2**32)
CHANGED = re.compile(
    r"(?P<more>another )?(?P<number>\d+) (?P<item>[A-Z][A-Za-z ]*?)(?=( on my| off my| to what| after all|,))"
)
DISTANCE = re.compile(r"(\d+) km (North|East|South|West)")
STEPS = {"North": 1j, "South": -1j, "East": 1, "West": -1}


def made(dataset_id: str, seed: int, **arguments: Any) -> Definition:
    steps = create(dataset_id, arguments).generate(1, seed, 10_000)
    try:
        next(steps)
    except StopIteration as end:
        definition: Definition = end.value[0]
        return definition
    raise AssertionError("no model is needed for this")


@settings(deadline=None)
@given(SEEDS, st.integers(1, 40))
def test_shopping(seed: int, changes: int) -> None:
    definition = made("shopping", seed, item_changes=changes)
    cart: dict[str, int] = {}
    for line in definition.script[:-1]:
        found = CHANGED.search(line)
        assert found is not None, line
        item, number = found["item"].lower(), int(found["number"])
        off = "off my" in line or "after all" in line
        assert off or bool(found["more"]) == (item in cart)
        cart[item] = cart.get(item, 0) + (-number if off else number)
        assert cart[item] >= 0
        if not cart[item]:
            del cart[item]
    assert definition.expected_responses == [[item, number] for item, number in cart.items()]


def walked(definition: Definition) -> complex:
    """Where the last place is, in kilometres to the east and, imaginary, to the north of the first."""
    legs = [found for line in definition.script[:-1] for found in DISTANCE.findall(line)]
    return sum(int(distance) * STEPS[direction] for distance, direction in legs)


@settings(deadline=None)
@given(SEEDS, st.integers(2, 12))
def test_locations(seed: int, places: int) -> None:
    definition = made("locations", seed, known_locations=places)
    there = walked(definition)
    assert there.real == 0 or there.imag == 0
    (answer,) = definition.expected_responses
    back = sum(int(distance) * STEPS[direction] for distance, direction in DISTANCE.findall(answer))
    assert back + there == 0
    assert there != 0


@settings(deadline=None)
@given(SEEDS, st.integers(2, 12))
def test_directions(seed: int, places: int) -> None:
    definition = made("locations_directions", seed, known_locations=places)
    (answer,) = definition.expected_responses
    legs = re.findall(r"From .*, go (\d+)km (\w+) to ", answer)
    assert sum(int(distance) * STEPS[direction] for distance, direction in legs) == walked(definition)
    assert len(legs) == places - 1
    stops = [sum((int(distance) * STEPS[direction] for distance, direction in legs[:n]), 0j) for n in range(places)]
    assert len(set(stops)) == places, "no two places are at the same spot"


def believed(lines: list[str], thing: str, who: set[str]) -> str | None:
    """Where the thing was put the last time when all of these people were there; None: never."""
    present: set[str] = set()
    place = None
    for line in lines:
        name = line.split()[0]
        if " enters the " in line:
            present.add(name)
        elif " leaves the " in line:
            present.remove(name)
        elif found := re.search(rf"(?:puts the {thing} into|^The {thing} (?:is|are) in) the (\w+)", line):
            place = found[1] if who <= present else place
    return place


@settings(deadline=None)
@given(SEEDS)
def test_stories(seed: int) -> None:
    story = tell(Draws("story", seed))
    lines = story.lines()
    queries = list(story.queries())
    assert {query.kind for query in queries} == {"world_model", "theory_of_mind"}
    assert any(query.mistaken for query in queries) or len(set(believed_by(lines, story.thing))) <= 1
    for query in queries:
        people = {word.strip("?") for word in query.text.split()} & set(FIRST_NAMES)
        if query.kind == "theory_of_mind":
            assert query.answer == believed(lines, story.thing, people), (lines, query)
            assert query.mistaken == (query.answer != believed(lines, story.thing, set()))
        elif "beginning" in query.text:
            assert query.answer in next(line for line in lines if line.startswith(f"The {story.thing}"))
        else:
            assert query.answer == believed(lines, story.thing, set())


@settings(deadline=None)
@given(SEEDS)
def test_only_who_knows_where_a_thing_is_puts_it_elsewhere(seed: int) -> None:
    story = tell(Draws("story", seed))
    lines = story.lines()
    for at, line in enumerate(lines):
        if f" puts the {story.thing} into " in line:
            told = lines[:at]
            assert believed(told, story.thing, {line.split()[0]}) == believed(told, story.thing, set()), lines


def believed_by(lines: list[str], thing: str) -> list[str | None]:
    people = {line.split()[0] for line in lines} & set(FIRST_NAMES)
    return [believed(lines, thing, {person}) for person in people]


def test_most_questions_about_beliefs_are_about_errors() -> None:
    wrong = 0
    for seed in range(200):
        definition = made("sallyanne", seed, question_type="theory_of_mind")
        lines = [line.removeprefix("(On TV) ") for line in definition.script[1:-1]]
        (thing,) = {found[1] for line in lines if (found := re.match(r"The (\w+) (?:is|are) in", line))}
        wrong += definition.expected_responses[0] != believed(lines, thing, set())
    assert 100 < wrong < 190


@settings(deadline=None)
@given(SEEDS, st.integers(1, 30))
def test_names_are_told_once_each(seed: int, changes: int) -> None:
    definition = made("name_list", seed, name_changes=changes)
    assert len(set(definition.expected_responses)) == changes
    assert all(name in line for name, line in zip(definition.expected_responses, definition.script, strict=False))
