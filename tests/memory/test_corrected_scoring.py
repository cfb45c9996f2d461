"""Known defects of the published scoring rules: kept by ``published``, mended otherwise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.workloads.memory.conversation.definitions import Definition, Exchange, Message
from manyhands.workloads.memory.datasets.answers.matching import mentions
from manyhands.workloads.memory.datasets.answers.settling import settles_on
from manyhands.workloads.memory.datasets.builtin.instructions import QUOTES
from manyhands.workloads.memory.datasets.builtin.jokes import ago
from manyhands.workloads.memory.datasets.builtin.spy_meeting import TOPICS
from manyhands.workloads.memory.datasets.registry import create, rule_judge


def score(dataset_id: str, rules: Any, definition: Definition, *answers: str, **arguments: Any) -> float:
    messages = tuple(Message(definition.unique_id, "?", answer, True, 0, 0) for answer in answers)
    steps = create(dataset_id, arguments, rules).evaluate(Exchange(definition, messages))
    try:
        ask = next(steps)
        while True:
            ask = steps.send(rule_judge(ask))
    except StopIteration as end:
        return float(round(end.value.share, 4))


def about(told: Sequence[str], expected: Any, dataset: str = "X", **more: Any) -> Definition:
    return Definition(dataset, "0", tuple(told), (False,) * (len(told) - 1) + (True,), (), expected, **more)


COLOURS = about(("Tan it is.", "Now Blue.", "Red is best.", "Which?"), ["Red"])


@pytest.mark.parametrize(
    ("answer", "published", "mended"),
    [
        ("Red.", 1, 1),
        ("red", 1, 1),
        ("Your favourite colour is RED. Earlier you said tan and blue.", 1, 1),
        ("Red (before that, tan)", 1, 1),
        ("You shared several.", 1, 0),
        ("Tan, blue and red; which do you mean?", 1, 0),
        ("1. Tan\n2. Blue\n3. Red", 1, 0),
        ("Blue.", 0, 0),
        ("", 0, 0),
    ],
)
def test_colours(answer: str, published: float, mended: float) -> None:
    assert score("colours", "published", COLOURS, answer) == published
    assert score("colours", "mended", COLOURS, answer) == mended


def test_names_are_whole_words() -> None:
    definition = about(("I am Ivo.", "What is my name?"), ["Ivo"])
    assert score("names", "published", definition, "You are an ivory tower.") == 1
    assert score("names", "mended", definition, "You are an ivory tower.") == 0


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        ('["Ann", "ben", "CID", "Dora"]', 1.0),
        ('["Ann", "Ben"]', 0.5),
        ('["Ann", "Ann", "Ann", "Ann"]', 0.25),
        ('["Ann", "Ben", "Cid", "Dora", "Eve"]', 0.8),
        ("Ann, Ben, Cid, Dora", 0.0),
        ('{"names": ["Ann"]}', 0.0),
        ("[1, 2]", 0.0),
    ],
)
def test_name_lists(answer: str, share: float) -> None:
    for rules in ("published", "mended"):
        assert score("name_list", rules, about(("…", "?"), ["Ann", "Ben", "Cid", "Dora"]), answer) == share


def bought(*items: tuple[str, int]) -> str:
    return json.dumps([{"item": item, "quantity": number} for item, number in items])


@pytest.mark.parametrize(
    ("answer", "published", "mended"),
    [
        (bought(("Milk", 2), ("Potato", 3)), 1, 1),
        (bought(("milk", 2), ("Potatoes", 3)), 1, 1),
        (bought(("coconut milk", 2), ("potatoes", 3)), 1, 0.3333),
        (bought(("milk", 2), ("milk", 2), ("milk", 2), ("potato", 3)), 1.6667, 0.6667),
        (bought(("milk", 1)), 0.5, 0.5),
        (bought(("milk", 2), ("potato", 3), ("soap", 1)), 0.6667, 0.6667),
        ('[{"item": "milk", "quantity": "2"}]', 0, 0.6667),
        ('[{"item": "milk", "quantity": "two cartons"}, {"item": "potato", "quantity": 3.0}]', 0, 1),
        ('[{"item": "milk", "quantity": "2x"}, {"item": "potato", "quantity": "a few"}]', 0, 0.8333),
        ('[{"item": "milk", "quantity": 0}, {"item": "potato", "quantity": 0}]', 0.6667, 0),
        ('[{"item": "milk", "quantity": null}]', 0, 0),
        ("{}", 0, 0),
        ("The list is empty.", 0, 0),
        ('[{"name": "milk", "quantity": 2}]', 0, 0),
        ('{"milk": 2}', 0, 0),
        ("nothing", 0, 0),
        ("[]", 0.3333, 0),
    ],
)
def test_shopping_lists(answer: str, published: float, mended: float) -> None:
    definition = about(("…", "?"), [["milk", 2], ["potato", 3]])
    assert score("shopping", "published", definition, answer) == published
    assert score("shopping", "mended", definition, answer) == mended


def test_an_empty_shopping_list_can_be_right() -> None:
    definition = about(("…", "?"), [])
    for empty in (
        "[]",
        "{}",
        "null",
        "Nothing.",
        "Your shopping list is empty.",
        "There is nothing on the list",
        "```json\n[]\n```",
    ):
        assert score("shopping", "mended", definition, empty) == 1, empty
    for other in ("", "I don't remember.", "Nothing but milk", '{"milk": 1}'):
        assert score("shopping", "mended", definition, other) == 0, other
    assert score("shopping", "mended", definition, bought(("milk", 2))) == 0
    assert score("shopping", "published", definition, "[]") == 0


@pytest.mark.parametrize(
    ("answer", "mended"),
    [
        ('{"answer": "chest"}', 1),
        ('{"answer": "Chest"}', 1),
        ('{"answer": "the chest"}', 1),
        ('{"answer": null}', 0),
        ('{"answer": {"place": "chest"}}', 0),
        ('["chest"]', 0),
        ('"chest"', 0),
        ("chest", 0),
    ],
)
def test_where_somebody_looks(answer: str, mended: float) -> None:
    assert score("sallyanne", "mended", about(("…", "?"), ["chest"]), answer) == mended


JOKES = about(
    ("Two fish are in a tank.", "It takes balls to golf, I’d say.", "One more."),
    ["It takes balls to golf, I’d say."],
    is_temporal=True,
)


@pytest.mark.parametrize(
    ("answer", "published", "mended"),
    [
        ("You said: It takes balls to golf, I’d say.", 1, 1),
        ("it takes balls to golf, I'd say", 1, 1),
        ("Two fish are in a tank. It takes balls to golf, I’d say. One more.", 1, 0),
        ("Two fish are in a tank.", 0, 0),
        ("No idea.", 0, 0),
    ],
)
def test_jokes(answer: str, published: float, mended: float) -> None:
    assert score("jokes", "published", JOKES, answer) == published
    assert score("jokes", "mended", JOKES, answer) == mended


def asked_after(seconds: float, rules: Any) -> str:
    return create("jokes", {}, rules).temporal_question(JOKES, [0.0, 1000.0, 2000.0], 1000.0 + seconds)


def test_how_long_ago_a_joke_was_told() -> None:
    assert (
        asked_after(2 * 3600 + 21 * 60 + 7, "published") == "Which joke did I tell you about 2 hours 21 minutes  ago?"
    )
    assert asked_after(59, "published") == "Which joke did I tell you about  ago?"
    assert asked_after(86400 + 60, "published") == "Which joke did I tell you about 1 minutes  ago?"
    assert asked_after(3600, "published") == "Which joke did I tell you about 1 hours 0 minutes  ago?"
    assert asked_after(86400 + 60, "mended").startswith("About 1 day and 1 minute ago ")
    assert [ago(seconds) for seconds in (0, 59, 60, 3600, 90061, 200_000)] == [
        *("less than a minute", "less than a minute", "1 minute", "1 hour"),
        *("1 day, 1 hour and 1 minute", "2 days, 7 hours and 33 minutes"),
    ]


SPY = about(
    ("…", "A: We see each other when shadows are shortest.", "?"),
    [["noon", "midday"], ["compass"], ["bakery", "baker", "mill"]],
)


@pytest.mark.parametrize(
    ("answer", "published", "mended"),
    [
        ("At noon with a compass in the bakery.", 1, 1),
        ("Noon, Compass, Bakery", 0, 1),
        ("At noon with compasses in the mills.", 0.3333, 0.6667),
        ("At noon with a compass in the bakery, or in the harbour.", 0.6667, 0.6667),
        ("At midnight in the library.", 0, 0),
        ("In the afternoon.", 0, 0),
    ],
)
def test_spies(answer: str, published: float, mended: float) -> None:
    assert score("spy_meeting", "published", SPY, answer) == published
    assert score("spy_meeting", "mended", SPY, answer) == mended


def test_older_word_lists_of_a_code_are_not_counted_as_confusion() -> None:
    older = about(("…", "?"), [["noon"], ["compass"], ["bakery"]])
    assert score("spy_meeting", "published", older, "At noon, that is midday, with a compass, in the bakery") == 0.6667
    assert score("spy_meeting", "mended", older, "At noon, that is midday, with a compass, in the bakery") == 1


def test_repeating_a_coded_message_gives_nothing() -> None:
    codes = [code for topic in TOPICS for code in topic]
    assert [len(topic) for topic in TOPICS] == [5, 4, 5]
    for code in codes:
        assert not [word for other in codes for word in other.words if mentions(code.message, word)]
        assert not {word for other in codes if other is not code for word in other.words} & set(code.words)


# --- A quotation in a later reply

QUOTE, AUTHOR = QUOTES[0]
LATER = about(("the quotation", "add it to the third"), [[QUOTE, AUTHOR, 3]], "Prospective Memory", uses_callback=True)


def heard(*replies: str) -> list[Message]:
    first = Message(LATER.unique_id, LATER.script[-1], replies[0], True, 0, 0)
    return [first, *(Message("", "filler", reply, False, 0, 0) for reply in replies[1:])]


@pytest.mark.parametrize(
    ("replies", "published", "mended"),
    [
        (("yes", "a", f"b. {QUOTE.upper()}!"), 1, 1),
        (("yes", "a", "b"), 0, 0),
        (("yes", f"{QUOTE}", "b"), 0, 0),
        (("yes", "a", f"b {QUOTE}", f"c {QUOTE}"), 0, 0),
        ((f"I will add {QUOTE}", "a", f"b {QUOTE}"), 0, 1),
        (("yes", f"a {QUOTE}", f"b {QUOTE}"), 0, 0),
    ],
)
def test_a_quotation_at_its_place(replies: Sequence[str], published: float, mended: float) -> None:
    for rules, expected in (("published", published), ("mended", mended)):
        verdict = create("prospective_memory", {}, rules).callback(LATER, heard(*replies))  # type: ignore[arg-type]
        assert verdict.finished
        assert verdict.evaluation.share == expected


def test_before_its_time_nothing_is_won() -> None:
    for rules, provisional in (("published", 1), ("mended", 0)):
        verdict = create("prospective_memory", {}, rules).callback(LATER, heard("yes", "a"))  # type: ignore[arg-type]
        assert not verdict.finished
        assert verdict.evaluation.share == provisional


# --- Sentences, directions

RULE = about(("…", "it rains", "it rains"), ["Take the green umbrella", "Take the green umbrella"])


def test_a_sentence_on_each_occasion() -> None:
    good, near, bad = "take the GREEN umbrella!", "Please take the green umbrellas", "It rains."
    assert score("trigger_response", "mended", RULE, good, near) == 1
    assert score("trigger_response", "mended", RULE, good, bad) == 0.5
    assert score("trigger_response", "mended", RULE, good) == 0.5
    assert score("trigger_response", "mended", RULE, bad, "") == 0


def test_places_are_recognised_with_an_article() -> None:
    way = "(…)\nFrom Old Mill, go 2km North to Harbour."
    definition = about(("…", "?"), [way])
    said = "From the old mill, go 2km North to the harbour."
    assert score("locations_directions", "mended", definition, said) == 1
    assert score("locations_directions", "published", definition, said) == 0
    for wrong in (
        "From Old Mill, go 3km North to Harbour.",
        "From Old Mill, go 2km East to Harbour.",
        "From Old Mill, go 0km East to Harbour.",
        "From Old Mill, go 2km Upwards to Harbour.",
        "From Old Mill, go 2km North to Zoo.",
        "I don't know.",
    ):
        assert score("locations_directions", "mended", definition, wrong) == 0
    detour = "From Old Mill, go 3km North to Harbour.\nFrom Harbour, go 1km South to Harbour."
    assert score("locations_directions", "mended", definition, detour) == 1


def test_settling_on_one_of_several() -> None:
    assert settles_on("It is red. Not blue.", "red", ["red", "blue"])
    assert not settles_on("It is red or blue.", "red", ["blue"])
    assert not mentions("shared", "red")
    assert mentions("RED!", "red")


@pytest.mark.parametrize(
    ("dataset_id", "arguments", "line"),
    [
        (
            "colours",
            {"colour_change": 3},
            "dataset 'colours': unknown argument colour_change; did you mean colour_changes?",
        ),
        (
            "colours",
            {"colour_changes": 0},
            "dataset 'colours': colour_changes must be greater than or equal to 1, not 0",
        ),
        (
            "jokes",
            {"minutes_low": 9, "minutes_high": 1},
            "dataset 'jokes': minutes_low must not be more than minutes_high",
        ),
        ("jokes", {"uses_callback": True}, "dataset 'jokes': uses_callback can't be changed: it is False"),
        ("color", {}, "unknown dataset 'color'; did you mean colours?"),
    ],
)
def test_wrong_arguments(dataset_id: str, arguments: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as raised:
        create(dataset_id, arguments)
    assert str(raised.value) == line
