"""Requests to models where answers can't be compared by a rule: requests with the data as JSON, and how their replies are read.

The checklist of the general judge is that of the GoodAI LTM Benchmark, in other words. All that a model decided is marked so in the
reasons. Where there is no model, ``answers_by_rule`` fills in the checklist.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from manyhands.workloads.memory.conversation.definitions import Ask, Evaluation, Json, Scoring
from manyhands.workloads.memory.datasets.answers.matching import NotJson, quantity_in, stem, stems, tolerant_json
from manyhands.workloads.memory.datasets.answers.settling import denies, says
from manyhands.workloads.memory.datasets.base import prompt

_SAID_YES = re.compile(r"\W*(?:yes|true|y)\b", re.IGNORECASE)
BY_MODEL = "(judged by a model)"
ANSWERS = "judge answers"
"""The purpose of asking the general judge."""


def ask_with_data(purpose: str, task: str, data: Json, **more: Any) -> Ask:
    """A request with instructions for the model and data that it is about."""
    messages = ({"role": "system", "content": task}, {"role": "user", "content": json.dumps(data, ensure_ascii=False)})
    return Ask(messages, purpose, **more)


def data_of(ask: Ask) -> Json:
    """The data of such a request."""
    return json.loads(ask.messages[-1]["content"])


def judged(questions: Sequence[str], expected: Sequence[str], answers: Sequence[str]) -> Scoring:
    """Score answers by the general judge: a point for each. ``answers`` may be fewer, where a test ended early."""
    cases = [
        {"question_nr": number, "question": question, "expected_answer": right, "answer_given": answer}
        for number, (question, right, answer) in enumerate(zip(questions, expected, answers, strict=False))
    ]
    if not cases:
        return Evaluation(0.0, float(len(expected) or 1), ("nothing was answered",))
    reply = yield ask_with_data(ANSWERS, prompt("judge"), cases, temperature=0.01, max_tokens=256 + 64 * len(cases))
    verdicts = _checklists(reply)
    if verdicts is None:
        return Evaluation(0.0, float(len(expected) or 1), (f"JSON parse error {BY_MODEL}",))
    found = [_verdict(verdicts.get(number)) for number in range(len(cases))]
    reasons = tuple(f"{reason} {BY_MODEL}" for _, reason in found)
    return Evaluation(float(sum(right for right, _ in found)), float(len(expected) or 1), reasons)


def object_in(reply: str) -> Mapping[str, Any] | None:
    """The JSON object in a model's reply; None if there is none."""
    try:
        value = tolerant_json(reply)
    except NotJson:
        return None
    return value if isinstance(value, dict) else None


def yes(value: Any) -> bool:
    """Whether a model said yes."""
    return value is True or (isinstance(value, str) and _SAID_YES.match(value) is not None)


def flag_in(reply: str, name: str) -> bool:
    """A flag of the object that a model replied; False if the reply can't be read."""
    value = object_in(reply)
    return value is not None and yes(value.get(name))


def _checklists(reply: str) -> dict[int, list[Any]] | None:
    """The checklists by number of question; None if the reply can't be read."""
    try:
        value = tolerant_json(reply)
    except NotJson:
        return None
    entries = [value] if isinstance(value, dict) else value
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return None
    return {
        number: entry["checklist"]
        for entry in entries
        if (number := quantity_in(entry.get("question_nr"))) is not None and isinstance(entry.get("checklist"), list)
    }


def _verdict(checklist: list[Any] | None) -> tuple[bool, str]:
    """A point if the answer says what was expected, and the same number where it is one."""
    if checklist is None or len(checklist) < 3:
        return False, "the judge said nothing about this answer"
    refers, number, same = (yes(entry) for entry in checklist[:3])
    if not refers:
        return False, "the answer does not say what was expected"
    if number and not same:
        return False, "the number is another one"
    return True, "the answer says what was expected"


# --- By rule, without a model

_TURNS = re.compile(r"\b(?:not|no|never|or|now|before|was|were|nor|from|after)\b|n['’]t", re.IGNORECASE)
"""Words by which an expected answer itself says no, or tells apart what was and what is."""
_NOW = re.compile(r"\b(?:now|currently|these days)\b")
_PAST = re.compile(r"\b(?:was|were|used to|before|formerly|previously|earlier)\b")
_COMMON = frozenset(stems("a an the in of to with by over is are was were they it what which"))


def answers_by_rule(cases: Json) -> Json:
    """What rules reply in place of the general judge."""
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
