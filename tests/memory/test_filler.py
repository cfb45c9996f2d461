"""Filler: how much of it there is, from which facts, and what replies it expects."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.workloads.memory.conversation.filler import Fact, FactFiller, builtin_facts, read_facts
from manyhands.workloads.memory.conversation.tokens import estimate
from tests.memory.replay.logged import PublishedFiller
from tests.support.memory_schedules import FACTS, WORDING, count_words

COUNT = estimate()


def by_the_rules(facts: list[Fact], random: Random, limit: int) -> tuple[str, list[str]]:
    """Filler as the specification has it, counting all of the answers after every line."""
    text, answers, tokens = WORDING.filler_preamble, list[str](), COUNT(WORDING.filler_preamble)
    while not answers or tokens + COUNT(json.dumps(answers, ensure_ascii=False)) < limit:
        fact = random.choice(facts)
        line = WORDING.filler_line(fact.question, fact.answer)
        text, tokens = text + line, tokens + COUNT(line)
        answers.append(fact.answer)
    return text, answers


ANSWERS = st.text(min_size=1, max_size=12)


@given(
    st.lists(st.builds(Fact, ANSWERS, ANSWERS), min_size=1, max_size=5),
    st.lists(st.integers(1, 400), min_size=1, max_size=5),
)
def test_filler_is_as_long_as_the_rules_have_it(facts: list[Fact], limits: list[int]) -> None:
    filler, random = FactFiller(facts, WORDING, COUNT), Random(0)
    for limit in limits:
        text, answers = by_the_rules(facts, random, limit)
        made = filler.write(limit)
        assert made.message == text
        assert json.loads(made.expected_reply) == answers


def test_the_published_reply_is_a_python_list() -> None:
    fact = [Fact("Which?", "O'Hara")]
    assert PublishedFiller(fact, WORDING, count_words).write(1).expected_reply == '["O\'Hara"]'
    assert PublishedFiller([Fact("Which?", "é")], WORDING, count_words).write(1).expected_reply == "['é']"
    assert FactFiller([Fact("Which?", "é")], WORDING, count_words).write(1).expected_reply == '["é"]'


def test_the_generator_goes_on_from_its_state() -> None:
    first, second = FactFiller(FACTS, WORDING, count_words), FactFiller(FACTS, WORDING, count_words)
    first.write(100)
    second.restore(json.loads(json.dumps(first.state)))
    assert first.write(100) == second.write(100)
    for wrong in (None, [3, [1, 2], None], "state", [3]):
        with pytest.raises(ValueError, match="not the state"):
            second.restore(wrong)


def test_no_facts_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one fact"):
        FactFiller([], WORDING, count_words)


def test_texts_are_counted_once() -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return COUNT(text)

    filler = FactFiller(builtin_facts(), WORDING, count)
    for _ in range(100):
        filler.write(4096)
    lines = [text for text in counted if text.endswith("\n")]
    lists = [text for text in counted if text.startswith("[")]
    assert len(lines) == len(set(lines))
    assert len(lists) < 100 * 12


# --- Sources


def test_our_facts_are_many_and_each_is_there_once() -> None:
    facts = builtin_facts()
    assert len(facts) >= 1000
    assert len({fact.question for fact in facts}) == len(facts)
    for fact in facts:
        assert fact.question.endswith(("?", ".")), fact
        assert fact.question[0].isupper(), fact
        assert fact.answer == fact.answer.strip() != "", fact
        assert len(fact.question) < 120, fact
        assert len(fact.answer) < 60, fact
        assert "\t" not in fact.question + fact.answer, fact


def test_both_layouts_of_triviaqa_are_read(tmp_path: Path) -> None:
    path = tmp_path / "trivia.json"
    entries = [
        {"Question": "One?", "AnswerValue": "1"},
        {"Question": "Two?", "QuestionId": "x", "Answer": {"Value": "2", "Aliases": ["II"]}},
    ]
    path.write_text(json.dumps({"Data": entries, "Version": 1.0}), encoding="utf-8")
    assert read_facts(path) == (Fact("One?", "1"), Fact("Two?", "2"))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "not JSON"),
        ("[]", "Data: not a list"),
        ('{"Data": []}', "holds no questions"),
        ('{"Data": [1]}', r"Data\[0\]: not an object"),
        ('{"Data": [{"Question": "One?"}]}', r"Data\[0\]\.AnswerValue: not a text"),
        ('{"Data": [{"Question": "One?", "Answer": {}}]}', r"Data\[0\]\.Answer\.Value: not a text"),
        ('{"Data": [{"AnswerValue": "1"}]}', r"Data\[0\]\.Question: not a text"),
    ],
)
def test_a_wrong_source_names_its_field(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "trivia.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=rf"trivia\.json: {problem}"):
        read_facts(path)


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"other\.json: can't be read"):
        read_facts(tmp_path / "other.json")


def test_a_hugging_face_dataset_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"question": ["One?", "Two?"], "answer": [{"value": "1"}, {"value": "2"}]}
    datasets.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "trivia"))
    assert read_facts(tmp_path / "trivia") == (Fact("One?", "1"), Fact("Two?", "2"))
    with pytest.raises(UserError, match="not a readable Hugging Face dataset"):
        read_facts(tmp_path)
