"""A stand-in for the model that judges: it answers every question of the datasets by rule, without a model.

For trying things out and for tests, where no model is to be had. It understands nothing: an answer is right if the words that were expected
are in it, an order is what of the menu is named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from manyhands.workloads.memory.conversation.definitions import Ask, Json
from manyhands.workloads.memory.datasets.answers.judge_requests import ANSWERS, data_of
from manyhands.workloads.memory.datasets.answers.matching import stem, stems
from manyhands.workloads.memory.datasets.answers.settling import denies, says
from manyhands.workloads.memory.datasets.builtin.generated import CONTENT
from manyhands.workloads.memory.datasets.builtin.instructions import SENTENCE, holds
from manyhands.workloads.memory.datasets.builtin.locations import DIRECTIONS, legs_in
from manyhands.workloads.memory.datasets.builtin.restaurant import NOTICED, ORDER, RECALLS, ROLE, menu_in

_TURNS = re.compile(r"\b(?:not|no|never|or|now|before|was|were|nor|from|after)\b|n['’]t", re.IGNORECASE)
"""Words by which an expected answer itself says no, or tells apart what was and what is."""
_NOW = re.compile(r"\b(?:now|currently|these days)\b")
_PAST = re.compile(r"\b(?:was|were|used to|before|formerly|previously|earlier)\b")
_COMMON = frozenset(stems("a an the in of to with by over is are was were they it what which"))


def rule_judge(ask: Ask) -> str:
    """The reply to what a dataset asks. A purpose that is not known gets an empty object."""
    rule = _RULES.get(ask.purpose)
    return "{}" if rule is None else json.dumps(rule(data_of(ask)), ensure_ascii=False)


def _answers(cases: Json) -> Json:
    return [{"question_nr": case["question_nr"], "checklist": _checklist(case)} for case in cases]


def _checklist(case: Mapping[str, Any]) -> list[str]:
    expected, given = str(case["expected_answer"]), set(stems(str(case["answer_given"])))
    words = [word for word in stems(expected) if word not in _COMMON]
    numbers = re.findall(r"\d+", expected)
    found = (
        bool(words) and all(word in given for word in words) and not _takes_back(str(case["answer_given"]), expected)
    )
    return [_word(found), _word(bool(numbers)), _word(all(number in given for number in numbers) and bool(numbers))]


def _takes_back(answer: str, expected: str) -> bool:
    """Whether an answer that has the expected words denies one of them, offers something else beside it, or says it of the past and
    something else of now."""
    if _TURNS.search(expected) or answer.strip() == expected.strip():
        return False
    named = [word for word in re.findall(r"\w+", expected.lower()) if stem(word) not in _COMMON]
    said = [word for word in re.findall(r"\w+", answer.lower()) if stem(word) in {stem(each) for each in named}]
    if any(denies(answer, word) for word in said):
        return True
    either = "|".join(map(re.escape, sorted(set(said)))) or "(?!)"
    if re.search(
        rf"\b(?:{either})\b\W{{0,3}}\bor\b|\bor\b(?:\W{{1,3}}\w+){{0,3}}?\W{{1,3}}(?:{either})\b", answer.lower()
    ):
        return True
    before_now = _NOW.split(answer.lower(), maxsplit=1)
    return (
        len(before_now) == 2
        and not any(says(before_now[1], word) for word in said)
        and bool(_PAST.search(before_now[0]))
    )


def _word(value: bool) -> str:
    return "yes" if value else "no"


def _directions(data: Json) -> Json:
    keys = ("origin", "kilometers", "direction", "destination")
    return [dict(zip(keys, leg, strict=True)) for leg in legs_in(data["directions"])]


def _role(data: Json) -> Json:
    return {"follows_role": any(says(data["guest"], item) for item in menu_in(data["waiter"]).items)}


def _order(data: Json) -> Json:
    menu = menu_in(data["menu"])
    named = [(number, item) for number, item in enumerate(menu.items, start=1) if says(data["guest"], item)]
    order = [
        {"is_drink": item in menu.drinks, "item": item, "menu_nr": number, "menu_ref": item, "off_menu": False}
        for number, item in named
    ]
    return {"has_ordered_something": bool(order), "order": order}


def _noticed(data: Json) -> Json:
    missing = [dish for dish in data["ordered"] if dish not in data["served"]]
    return {"noticed": any(says(data["guest"], dish) for dish in missing)}


def _recalls(data: Json) -> Json:
    return {"recalls": says(data["guest"], data["drink"])}


def _sentence(data: Json) -> Json:
    present = holds(data["text"], data["sentence"])
    return {"present": present, "sentence": data["sentence"] if present else None}


def _content(data: Json) -> Json:
    numbers = range(1, 11)
    return {
        "content": [f"Box {number} of the shelf holds item {number * 7}." for number in numbers],
        "question": [f"What does box {number} of the shelf hold?" for number in numbers],
        "answer": [f"Item {number * 7}" for number in numbers],
    }


_RULES: Mapping[str, Callable[[Json], Json]] = {
    ANSWERS: _answers,
    DIRECTIONS: _directions,
    ROLE: _role,
    ORDER: _order,
    NOTICED: _noticed,
    RECALLS: _recalls,
    SENTENCE: _sentence,
    CONTENT: _content,
}
