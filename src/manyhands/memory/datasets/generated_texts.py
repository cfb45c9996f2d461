"""Our own texts with questions, for tests that a model could write: patterns whose gaps are filled from the seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from manyhands.memory.datasets.base import between, shuffled, some_of
from manyhands.memory.datasets.word_lists import FIRST_NAMES, LAST_NAMES
from manyhands.models.draws import Draws


@dataclass(frozen=True, slots=True)
class Text:
    """What is told, and questions about it with their answers."""

    content: tuple[str, ...]
    questions: tuple[str, ...]
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """A sentence with gaps, a question about it, its answer, and what may be in the gap ``{0}``; ``{name}`` is the same everywhere."""

    told: str
    asked: str
    answer: str
    gap: tuple[str, ...]


_WORLDS = ("Orrelin", "Vashmere", "Tuldoon", "Quillandry", "Lower Ostrey", "Pelluvia", "Brakkenfold", "Ysmeer")
_FACTS = (
    Fact(
        "The capital of {name} is {0}.",
        "What is the capital of {name}?",
        "{0}",
        ("Holm", "Tarrabay", "Duskhaven", "Iolcar", "Merrowick"),
    ),
    Fact(
        "People in {name} pay with {0}.",
        "With what do people pay in {name}?",
        "With {0}",
        ("dried figs", "copper bells", "blue feathers", "whale teeth", "folded paper"),
    ),
    Fact(
        "The year in {name} has {0} days.",
        "How many days has the year in {name}?",
        "{0} days",
        ("212", "404", "97", "531", "288"),
    ),
    Fact(
        "The longest river of {name} is called the {0}.",
        "What is the longest river of {name} called?",
        "The {0}",
        ("Sarn", "Little Ost", "Umber", "Wendel", "Kree"),
    ),
    Fact(
        "Houses in {name} are built of {0}.",
        "What are houses in {name} built of?",
        "Of {0}",
        ("glass bricks", "pressed moss", "ship planks", "white basalt", "woven reeds"),
    ),
    Fact(
        "The national dish of {name} is {0}.",
        "What is the national dish of {name}?",
        "{0}",
        ("smoked thistle", "eel in honey", "black barley pie", "cloudberry soup", "fried seaweed"),
    ),
    Fact(
        "{name} is governed by {0}.",
        "Who governs {name}?",
        "{0}",
        (
            "nine beekeepers",
            "the oldest twins",
            "a council of clockmakers",
            "the winner of a rowing race",
            "three retired pilots",
        ),
    ),
    Fact(
        "It is forbidden in {name} to {0}.",
        "What is forbidden in {name}?",
        "To {0}",
        ("whistle after dark", "own two hats", "count the stars aloud", "paint a door green", "ride a goat on Sundays"),
    ),
    Fact(
        "Ships from {name} are steered by {0}.",
        "By what are ships from {name} steered?",
        "By {0}",
        ("trained otters", "the smell of the coast", "a choir", "magnetic pebbles", "kites"),
    ),
    Fact(
        "The great war of {name} was fought over {0}.",
        "What was the great war of {name} fought over?",
        "Over {0}",
        ("a stolen bell", "the colour of the flag", "a lighthouse", "the price of salt", "an unpaid dinner"),
    ),
)

_DEVICES = ("fog organ", "star sieve", "tide loom", "echo press", "dew mill", "lantern clock")
_STEPS = (
    Fact(
        "Unlock the lid with the {0} key.",
        "Which key unlocks the lid?",
        "The {0} key",
        ("brass", "ivory", "square", "longest", "red"),
    ),
    Fact(
        "Fill the tank with {0}.",
        "What is filled into the tank?",
        "{0}",
        ("rain water", "lamp oil", "salt", "vinegar", "fine sand"),
    ),
    Fact(
        "Turn the crank {0} times.", "How many times is the crank turned?", "{0} times", ("7", "12", "31", "19", "44")
    ),
    Fact(
        "Wait until the needle points to {0}.",
        "What must the needle point to?",
        "{0}",
        ("the moon sign", "sixty", "the green bar", "zero"),
    ),
    Fact(
        "Cover the vents with {0}.",
        "With what are the vents covered?",
        "With {0}",
        ("wet felt", "tin foil", "a wool blanket", "cork"),
    ),
    Fact("Pull the {0} lever.", "Which lever is pulled?", "The {0} lever", ("left", "smallest", "yellow", "uppermost")),
    Fact(
        "Listen for {0}.",
        "What is to be listened for?",
        "{0}",
        ("three clicks", "a low hum", "a whistle", "the sound of drops"),
    ),
    Fact(
        "Empty the tray into {0}.",
        "Into what is the tray emptied?",
        "Into {0}",
        ("a stone jar", "the river", "a linen bag", "the stove"),
    ),
    Fact(
        "Wipe the mirror with {0}.",
        "With what is the mirror wiped?",
        "With {0}",
        ("a silk cloth", "dry bread", "lemon peel", "newspaper"),
    ),
    Fact(
        "Store the {name} in {0}.",
        "Where is the {name} stored?",
        "In {0}",
        ("a dark cupboard", "the attic", "a bed of straw", "ice"),
    ),
)

_PRINCIPLES = (
    ("older", "newer", ("coat", "bicycle", "map", "recipe", "bridge", "violin", "password", "almanac")),
    ("smaller", "larger", ("boat", "room", "loaf", "lamp", "suitcase", "dog", "umbrella", "hammer")),
    ("from farther away", "from nearer by", ("apple", "letter", "doctor", "teapot", "song", "log", "guest", "cheese")),
    ("heavier", "lighter", ("chair", "book", "anchor", "blanket", "knife", "door", "trophy", "bell")),
)

_CHANGES = (
    Fact(
        "I live in {0}.",
        "In which town do I live now?",
        "In {0}",
        ("Ghent", "Turku", "Porto", "Graz", "Bergen", "Leeds"),
    ),
    Fact(
        "My job is that of a {0}.",
        "What is my job now?",
        "{0}",
        ("surveyor", "beekeeper", "tailor", "pilot", "translator", "glazier"),
    ),
    Fact(
        "I drive a {0}.",
        "What do I drive now?",
        "A {0}",
        ("tractor", "milk van", "tandem", "hearse", "moped", "snow plough"),
    ),
    Fact(
        "The animal in my house is a {0}.",
        "Which animal is in my house now?",
        "A {0}",
        ("parrot", "ferret", "tortoise", "goat", "cat"),
    ),
    Fact(
        "In the evenings I play the {0}.",
        "Which instrument do I play now?",
        "The {0}",
        ("tuba", "zither", "cello", "banjo", "oboe"),
    ),
)
_CONSTANT = (
    "I have two sisters.",
    "I can't stand the smell of lavender.",
    "My shoes are size forty-three.",
    "I was born on a Tuesday.",
    "I wear glasses for reading.",
    "I have never been on a ship.",
    "I collect tram tickets.",
)


def facts(draws: Draws) -> Text:
    """Ten facts about a made-up world, and a question for each."""
    name = draws.pick(_WORLDS)
    filled = [_filled(fact, draws.pick(fact.gap), name) for fact in shuffled(draws, _FACTS)]
    return _text(filled, shuffled(draws, range(len(filled))))


def instructions(draws: Draws) -> Text:
    """Ten steps of an instruction, and five questions."""
    name = draws.pick(_DEVICES)
    filled = [_filled(fact, draws.pick(fact.gap), name) for fact in (*shuffled(draws, _STEPS[:-1]), _STEPS[-1])]
    text = _text(filled, some_of(draws, range(len(filled)), 5))
    steps = tuple(f"Step {number}: {line}" for number, line in enumerate(text.content, start=1))
    title = f"How to use the {name}:"
    return Text((title, *steps), tuple(f"Using the {name}: {question}" for question in text.questions), text.answers)


def principle(draws: Draws) -> Text:
    """A principle to choose by, and five choices."""
    prefer, over, things = draws.pick(_PRINCIPLES)
    who = draws.pick(FIRST_NAMES)
    content = (
        f"When you advise {who}, follow this principle, however odd it seems: of two things, {who} takes the one that is "
        f"{prefer}, never the one that is {over}.",
        "Nothing else counts: not the price, not the use, not the looks.",
    )
    questions, answers = [], []
    for thing in some_of(draws, things, 5):
        first, second = shuffled(draws, (prefer, over))
        one, other = some_of(draws, LAST_NAMES, 2)
        fits, unfits = (one, other) if first == prefer else (other, one)
        questions.append(
            f"{one} and {other} each offer {who} {_a(thing)}. That of {one} is {first}, that of {other} is {second}. "
            f"{unfits} asks only half the price. Whose should {who} take? Name just that person."
        )
        answers.append(fits)
    return Text(content, tuple(questions), tuple(answers))


def conflicting(draws: Draws) -> Text:
    """Ten statements about somebody, three of which take back others, and three questions for what holds now."""
    before, after, questions, answers = [], [], [], []
    for fact in some_of(draws, _CHANGES, 3):
        old, new = some_of(draws, fact.gap, 2)
        before.append(fact.told.format(old))
        after.append("By now, things have changed: " + fact.told.format(new))
        questions.append(fact.asked)
        answers.append(fact.answer.format(new))
    constant = some_of(draws, _CONSTANT, 4)
    cut = between(draws, 1, 3)
    first = shuffled(draws, (*before, *constant[:cut]))
    then = shuffled(draws, (*after, *constant[cut:]))
    return Text((*first, *then), tuple(questions), tuple(answers))


def _filled(fact: Fact, gap: str, name: str) -> tuple[str, str, str]:
    return fact.told.format(gap, name=name), fact.asked.format(name=name), _capital(fact.answer.format(gap))


def _text(filled: Sequence[tuple[str, str, str]], asked: Sequence[int]) -> Text:
    told = tuple(line for line, _, _ in filled)
    return Text(told, tuple(filled[place][1] for place in asked), tuple(filled[place][2] for place in asked))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
