"""What an answer settles on, where it names several things: quantities and verdicts that are written in other ways."""

from __future__ import annotations

from typing import Any

import pytest

from manyhands.workloads.memory.conversation.definitions import Ask, Definition, Exchange, Message
from manyhands.workloads.memory.datasets.answers.judging import yes
from manyhands.workloads.memory.datasets.answers.matching import quantity_in
from manyhands.workloads.memory.datasets.answers.settling import denies, says, settles_on
from manyhands.workloads.memory.datasets.registry import create, rule_judge

TOLD = ("Olive", "Red", "Purple")
RIGHT = (
    "It was Olive before, but now it is Purple.",
    "not Olive but Purple",
    "Purple, formerly Olive",
    "no longer Olive; it's Purple",
    "It's no longer Olive, it's Purple.",
    "It used to be Olive, but it is Purple.",
    "You used to like Olive. Now you like Purple.",
    "Purple (formerly Olive)",
    "Purple, not Olive.",
    "Not Olive, Purple.",
    "It is not Olive, Red or anything else. It's Purple.",
    "Purple instead of Olive",
    "Your favourite changed from Olive to Purple.",
    "You went from Red to Olive to Purple.",
    "First Red, then Olive, and now Purple.",
    "First you told me Red. Then you told me Olive. Finally, you told me Purple.",
    "You told me Red, then Olive. It is Purple.",
    "As you told me earlier, your favourite colour is Purple.",
    "The last colour you told me was Purple.",
    "Your favourite colour was Purple.",
    "**Purple**",
    "Purple",
    "Your favourite colour now:\nPurple",
    "Old: Olive\nNew: Purple",
    "Previous colours: Red, Olive. Current: Purple.",
    "It is Purple. Before that, it was Olive.",
    "If I'm not mistaken, it is Purple.",
    "I'm not sure, but I think Purple.",
    "Purple. You told me Olive too.",
    "Neither Olive nor Red: it is Purple.",
    "It was Olive until you changed it to Purple.",
    "It was Olive and then changed to Purple.",
    "Purple has replaced Olive.",
    "Olive was replaced by Purple.",
    "Purple, after Olive and Red.",
    "Your favourite is now Purple, rather than Olive.",
    "It isn't Olive anymore. It is Purple.",
    "Olive is no longer your favourite; Purple is.",
    "Purple now, Olive before.",
    "Purple? It is Purple.",
    "Your favourite colour is Purple; you liked Olive before.",
    "It is Purple, isn't it?",
    "You previously liked Olive, and Red before that, but your current favourite is Purple.",
    "At first it was Red, later Olive, and most recently Purple.",
    "While you liked Olive earlier, it's Purple now.",
    "Purple. It was Olive and Red before.",
    "Your favourite colour used to be Olive, but it's Purple now.",
    "Olive → Purple",
    "My answer is Purple, because you changed from Olive.",
    "Purple is your favourite colour now (it was Olive before).",
    "Earlier you said Olive, but your favourite colour is Purple.",
    "I recall that Olive was your favourite, but you have since changed it to Purple.",
    "Was it Olive? No, it is Purple.",
    "It was Olive, but it is now Purple.",
    "It was Olive. Now it is Purple!",
    '"Purple" (previously "Olive")',
    "_Purple_",
    "Red, then Olive, then Purple.",
    "I remember you liked Olive, then Purple.",
    "Olive... no, wait, Purple.",
    "Olive. Correction: Purple.",
    "I said Olive but that was wrong; it's Purple.",
    "You might think it's Olive, but it's Purple.",
    "You swapped Olive for Purple.",
    "You've abandoned Olive in favour of Purple.",
    "You prefer Purple to Olive now.",
    "You like Purple better than Olive these days.",
    "No colour pleases you more than Purple.",
    "Purple has taken the place of Olive.",
    "Olive had been your favourite before Purple.",
    "Purple, preceded by Olive.",
    "Olive became Purple.",
    "It's been Purple since you changed it from Olive.",
    '{"favourite_colour": "Purple", "previous_colours": ["Red", "Olive"]}',
    "1. Red\n2. Olive\n3. Purple (current)",
    "You first said Red. Then Olive. Then Purple.\n\nPurple",
    "Without a doubt, Purple.",
    "Don't forget that your favourite is Purple.",
    "Purple?",
    "From our earlier conversation: Purple.",
    "Your old favourite was Olive, and your new favourite is Purple.",
)
WRONG = (
    "It is Purple? or Olive?",
    "Purple? or Olive?",
    "Purple? Or Olive?",
    "Purple or Olive",
    "either Purple or Olive",
    "It is either Purple or Olive.",
    "It was Purple before, but now it is Olive",
    "It was Purple before. Now it is Olive.",
    "Olive, formerly Purple",
    "not Purple but Olive",
    "It is not Purple.",
    "It's no longer Purple.",
    "Red, Olive, Purple",
    "It is Red, Olive and Purple.",
    "Now it is Red, Olive, and Purple",
    "Red. Olive. Purple.",
    "Purple. Or Olive?",
    "It is Purple, or maybe it is Olive.",
    "It is Purple, but maybe Olive.",
    "Purple? Olive?",
    "Olive instead of Purple",
    "It changed from Purple to Olive.",
    "You used to like Purple, now it's Olive",
    "Purple used to be your favourite, Olive is now.",
    "Neither Purple nor Olive.",
    "Olive",
    "I don't know.",
    "Is it Purple or Olive?",
    "It could be Purple or Olive. Which one?",
    "Purple/Olive",
    "Purple and Olive",
    "Purple was replaced by Olive",
    "Olive replaced Purple.",
    "It was Olive, then Red. I can't say whether it is Purple or Red now.",
    "1. Red\n2. Olive\n3. Purple",
    "- Olive\n- Purple",
    "It isn't Purple, it is Olive",
    "Purple isn't your favourite anymore.",
    "Either Purple, or Olive.",
    "Purple... or Olive",
    "Purple. But it might be Olive.",
    "Purple. Possibly Olive.",
    "Purple. No, Olive.",
    "Purple... no, wait, Olive.",
    "I said Purple but that was wrong; it's Olive.",
    "You prefer Olive to Purple.",
    "Anything but Purple.",
    "You hate Purple.",
    "I doubt it's Purple.",
    "I don't know if it is Purple.",
    "I'm not sure whether it's Purple.",
    "I cannot confirm that it's Purple.",
    "Purple is wrong.",
    "Is it Purple?",
    "Didn't you say Purple?",
    "Your old favourite is Purple.",
    "Previously, Purple.",
    "It used to be Purple.",
    "It was Purple before, but I don't know what it is now.",
    "It was Purple, but you changed it.",
)


def definition(dataset: str, *script: str, expected: Any) -> Definition:
    asked = tuple(number == len(script) - 1 for number in range(len(script)))
    return Definition(dataset, "0", script, asked, expected_responses=expected)


def score(dataset_id: str, test: Definition, answer: str, rules: Any = "mended") -> float:
    message = Message(test.unique_id, test.script[-1], answer, True, 0.0, 0.0)
    scoring = create(dataset_id, {}, rules).evaluate(Exchange(test, (message,)))
    try:
        next(scoring)
    except StopIteration as end:
        return float(end.value.share)
    raise AssertionError("a model was asked")


COLOURS = definition("Colours", "Red it is.", "Olive it is.", "Now Purple.", "Which?", expected=["Purple"])
NAMES = definition("Names", "Call me Agnes.", "I go by Boris.", "My name is Clara.", "Who am I?", expected=["Clara"])


@pytest.mark.parametrize("answer", RIGHT)
def test_what_was_so_before_does_not_spoil_what_is_so_now(answer: str) -> None:
    assert settles_on(answer, "Purple", TOLD)
    assert score("colours", COLOURS, answer) == 1
    names = answer.replace("Purple", "Clara").replace("Olive", "Boris").replace("Red", "Agnes")
    assert score("names", NAMES, names) == 1


@pytest.mark.parametrize("answer", WRONG)
def test_several_or_another_one_is_not_the_one(answer: str) -> None:
    assert not settles_on(answer, "Purple", TOLD)
    assert score("colours", COLOURS, answer) == 0
    names = answer.replace("Purple", "Clara").replace("Olive", "Boris").replace("Red", "Agnes")
    assert score("names", NAMES, names) == 0


def test_by_the_published_rules_any_mention_counts() -> None:
    assert score("colours", COLOURS, "Purple? or Olive?", "published") == 1


def test_a_value_of_several() -> None:
    one, other = "0a1b2c3d-0000-1111-2222-333344445555", "ffffffff-0000-1111-2222-333344445555"
    test = definition("Key-Value Pairs", f'{{"a": "{one}", "b": "{other}"}}', "Which for b?", expected=[other])
    assert score("kv", test, f"It is {other}.") == 1
    assert score("kv", test, f"Not {one} but {other}") == 1
    for wrong in (one, f"{one} or {other}", f"{one}, {other}", f"not {other}"):
        assert score("kv", test, wrong) == 0, wrong
    assert score("kv", test, f"{one}, {other}", "published") == 1


def test_the_number_of_a_chapter() -> None:
    test = definition("ChapterBreak", "…", "Which?", expected=["2"])
    for right in ("2", "Number 2.", "2, not 3", "I first thought 3, but it is 2."):
        assert score("chapterbreak", test, right) == 1, right
    for wrong in ("3", "not 2", "2 or 3", "2? or 3?", "2, 3", "", "It was 2, now it is 3"):
        assert score("chapterbreak", test, wrong) == 0, wrong


def test_what_is_denied_is_not_said() -> None:
    meeting = definition("Spy Meeting", "…", "When?", expected=[["noon"], ["compass"], ["library"]])
    assert score("spy_meeting", meeting, "At noon, not at midnight, with a compass in the library") == 1
    assert score("spy_meeting", meeting, "With a compass in the library, not at noon") == pytest.approx(2 / 3)
    assert says("no tea, but coffee", "coffee")
    assert denies("no tea, but coffee", "tea")
    assert not denies("coffee", "tea")


def test_a_place_in_other_words() -> None:
    test = definition("SallyAnne", "…", "Where?", expected=["basket"])
    for right in ("basket", "the basket.", "In the basket", "a basket"):
        assert score("sallyanne", test, f'{{"answer": "{right}"}}') == 1
    for wrong in ("basket or chest", "basketball", "the chest"):
        assert score("sallyanne", test, f'{{"answer": "{wrong}"}}') == 0


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (2, 2), (2.0, 2), ("2", 2), ("two", 2), ("2x", 2), ("x2", 2), ("2 cartons", 2), ("two cartons", 2), ("a dozen", 12),
        ("half a dozen", 6), ("two dozen", 24), ("a pair of", 2), ("one", 1), ("A bottle", 1), ("2 (two)", 2), ("2.0", 2),
        ("2-3", None), ("2 or 3", None), ("2 to 3", None), ("some", None), ("", None), (None, None), (True, None), (2.5, None),
        ("2.5", None), ("9" * 50, None), ([2], None), ("half", None), ("2 boxes of 6", None), ("1 dozen", 12), ("1 pair", 2),
        ("-2", None), (10**30, None),
    ],
)  # fmt: skip
def test_quantities(value: Any, number: int | None) -> None:
    assert quantity_in(value) == number


@pytest.mark.parametrize(
    ("expected", "given", "right"),
    [
        ("Holm", "It is Holm, I think", True),
        ("Holm", "Not Berg, but Holm", True),
        ("Berg", "It was Holm before, but now it is Berg", True),
        ("3 km South", "Go 3 km South.", True),
        ("Never press it before noon", "Never press it before noon!", True),
        ("Holm", "Holm or Berg", False),
        ("Holm", "Berg or Holm", False),
        ("Holm", "not Holm but Berg", False),
        ("Holm", "It was Holm before, but now it is Berg", False),
        ("3 km South", "3 km South or 3 km North", False),
        ("3 km South", "3 km North, not South", False),
    ],
)
def test_the_rules_that_stand_in_for_a_judge(expected: str, given: str, right: bool) -> None:
    data = f'[{{"question_nr": 0, "expected_answer": "{expected}", "answer_given": "{given}"}}]'
    assert ('["yes"' in rule_judge(Ask(({"role": "user", "content": data},), "judge answers"))) is right


def test_a_judges_yes_in_other_words() -> None:
    agreed: tuple[Any, ...] = (True, "yes", "Yes.", " YES", "true", "yes, it does")
    denied: tuple[Any, ...] = (False, None, "no", "not yes", "yesterday", 1, "")
    assert all(map(yes, agreed))
    assert not any(map(yes, denied))
