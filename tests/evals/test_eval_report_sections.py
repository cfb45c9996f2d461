"""A run's results as the sections of a document: everything that results hold is in them, whatever texts hold, within bounds."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.runs.shown.blocks import Chart, Fold, Messages, Note, Section, Table, Text, block_json
from manyhands.workloads.evals.results.figures import EvalFigures
from manyhands.workloads.evals.results.reading import RESULTS, results_in
from manyhands.workloads.evals.results.result_lines import TestResult as Result
from manyhands.workloads.evals.results.shown.report import MAX_TESTS, report_sections
from tests.support.eval_runs import EvalRun, perform_eval
from tests.support.shown_blocks import named, parts, rows, text_in

OWN = """\
def answer(asked):
    if asked["id"] == "broken":
        raise ValueError("no luck <b>42</b>")
    said = "yes" if asked["trial"] else "no, 17 times no"
    call = {"tool": "look", "input": {"depth": 31}, "output": "57 found", "duration_ms": 83}
    output = [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "assistant", "content": said}]
    return {"output": output, "cost_usd": 0.0123, "duration_ms": 1234, "token_usage": {"input": 567, "output": 89}}

def other(asked):
    return {"text": "yes and 23 more"}

def measured(test):
    return {"score": 0.625, "hits": ["hit 71"], "misses": ["miss 72"], "reasoning": "because of 73", "details": {"seen": 74}}
"""
CRASHING = [sys.executable, "-c", "raise SystemExit(9)"]
COMMAND = {"provider": "cli", "command": f"{sys.executable} -c 'raise SystemExit(7)' {{EVAL_FILE}} {{OUTPUT_FILE}}"}
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def suite() -> dict[str, Any]:
    known = [{"name": name, "provider": "python", "function": f"own.py:{name}"} for name in ("answer", "other")]
    batching = {"name": "batching", **COMMAND, "provider_batching": True}
    graders = [
        {"type": "contains", "value": "yes", "weight": 3},
        {
            "type": "composite",
            "name": "both",
            "aggregator": "weighted_average",
            "assert": [
                {"type": "regex", "value": "17"},
                {"type": "python", "name": "measured", "function": "own.py:measured", "weight": 2},
            ],
        },
    ]
    expected = [{"role": "assistant", "content": {"decision": 64}}]
    return {
        "targets": [*known, batching],
        "execution": {"targets": ["answer", "other", "batching"], "trials": {"count": 2, "strategy": "mean"}},
        "assert": graders,
        "tests": [
            {"id": "first-101", "input": "Is it 61?", "criteria": "says 62", "expected_output": expected},
            {"id": "broken", "input": "hi", "criteria": "c"},
            {"id": "other limit", "input": "hi", "criteria": "c", "execution": {"threshold": 0.35}},
            {
                "id": "ungradable",
                "input": "hi",
                "criteria": "c",
                "assert": [{"type": "code_judge", "name": "crashing", "script": CRASHING}],
            },
        ],
    }


@pytest.fixture
async def run(tmp_path: Path) -> EvalRun:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "suite.yaml").write_text(json.dumps(suite()))
    return await perform_eval(tmp_path, max_attempts=1)


def sections_of(results: Sequence[Result], summary: Any) -> list[Section]:
    return list(report_sections(lambda: iter(results), summary))


def figures_of(results: Sequence[Result]) -> Any:
    found = EvalFigures(0.95, 0)
    for each in results:
        found.add(each)
    return {"run_name": "r", **found.to_json(0.8)}


def result(test_id: str, **values: Any) -> Result:
    known: dict[str, Any] = {
        "timestamp": None, "test_id": test_id, "dataset": "d", "score": 1.0, "status": "passed", "hits": [], "misses": [],
        "answer": "", "target": "t", "input": [{"role": "user", "content": "hi"}], "threshold": 0.8,
    }  # fmt: skip
    return Result(**{**known, **values})


async def test_all_that_was_said_is_in_the_sections(run: EvalRun) -> None:
    results, summary = list(results_in(run.folder / RESULTS)), run.summary
    assert {each.status for each in results} == {"passed", "failed", "error", "grader_error"}
    sections = sections_of(results, summary)
    shown = text_in(sections)
    texts = ("no luck <b>42</b>", "hit 71", "miss 72", "because of 73", "says 62", "57 found", "23 more", "crashing")
    assert all(text in shown for text in texts)
    figures = ["0.0123", "567", "89", "61", "64", "31", "17", "0.625", "0.35"]
    assert [each for each in figures if each not in NUMBER.findall(shown)] == []
    assert "failed" in next(
        note.text for note in parts(named(sections, "about"), Note) if "The command of" in note.text
    )


async def test_the_parts_of_a_report(run: EvalRun) -> None:
    results, summary = list(results_in(run.folder / RESULTS)), run.summary
    sections = sections_of(results, summary)
    names = ["about", "scores", "distribution", "intervals", "trials", "commands", "answers", "tests"]
    assert [each.name for each in sections] == names
    scores = {row["target"].text: row for row in rows(parts(named(sections, "scores"), Table)[0])}
    assert list(scores) == ["answer", "other", "batching", "all"]
    for figures in [*summary["targets"], {**summary, "target": "all"}]:
        row = scores[figures["target"]]
        assert row["tests"].value == figures["tests"]["in"]
        assert [row[name].value for name in ("passed", "failed", "errors", "grader_errors")] == [
            figures["tests"][name] for name in ("passed", "failed", "errors", "grader_errors")
        ]
        assert row["pass_rate"].value == figures["pass_rate"]["value"]
        assert row["mean_score"].value == figures["mean_score"]["value"]
    charts = parts(named(sections, "distribution"), Chart)
    assert [[y for _, y in chart.series[0].points] for chart in charts] == [
        each["distribution"]["counts"] for each in summary["targets"] if sum(each["distribution"]["counts"])
    ]
    assert [mark.value for chart in charts for mark in chart.marks] == [0.8] * len(charts)
    rates, means = parts(named(sections, "intervals"), Chart)
    for chart, name in ((rates, "pass_rate"), (means, "mean_score")):
        expected = [each[name] for each in summary["targets"]]
        assert [y for _, y in chart.series[0].points] == [each["value"] for each in expected]
        assert list(chart.series[0].low) == [(each["interval"] or {"low": None})["low"] for each in expected]
        assert list(chart.series[0].high) == [(each["interval"] or {"high": None})["high"] for each in expected]
    folds = [block for block in named(sections, "tests").blocks if isinstance(block, Fold)]
    assert len(folds) == len(results)
    assert {(fold.filters["status"], fold.filters["target"]) for fold in folds} == {
        (each.status.replace("_", " "), each.target) for each in results
    }
    has_passed = [fold.filters["status"] == "passed" for fold in folds]
    assert has_passed == sorted(has_passed), "what passed comes last"


async def test_graders_are_nested_and_all_is_said_of_them(run: EvalRun) -> None:
    results, summary = list(results_in(run.folder / RESULTS)), run.summary
    folds = parts(named(sections_of(results, summary), "tests"), Fold)
    both = next(fold for fold in folds if fold.title == "both")
    inner = [block for block in both.blocks if isinstance(block, Fold)]
    assert [fold.title for fold in inner] == ["regex-17", "measured"]
    found = text_in(inner[1])
    assert all(
        text in found for text in ("✓", "hit 71", "✗", "miss 72", "because of 73", "seen", "74", "0.625", "weight 2")
    )


def test_a_page_of_many_tests_is_bounded_and_failures_come_first() -> None:
    many = [result(f"p{number}", answer="x" * 30_000) for number in range(MAX_TESTS + 300)]
    failed = [result(f"f{number}", score=0.1, status="failed") for number in range(400)]
    results = [*many, *failed, result("later", status="pending", score=None)]
    sections = sections_of(results, figures_of(results))
    folds = [block for each in sections for block in each.blocks if isinstance(block, Fold)]
    assert len(folds) == MAX_TESTS
    assert [fold.filters["status"] for fold in folds[:401]] == [*["failed"] * 400, "passed"]
    assert len(text_in(folds)) < 30_000_000
    notes = [note.text for note in parts(named(sections, "tests"), Note) if "ended" in note.text]
    assert notes[0].startswith("5,700 tests ended; 5,000 of them are shown")
    assert notes[1] == "1 test has not ended and is not shown."
    assert len({fold.name for fold in folds}) == MAX_TESTS
    assert max(len(each.blocks) for each in sections) <= 102


def test_long_texts_are_cut_and_findings_are_not_cut_first() -> None:
    score = {
        "name": "g",
        "type": "llm_judge",
        "score": 0.0,
        "weight": 1.0,
        "verdict": "fail",
        "hits": [],
        "misses": ["m" * 900],
    }
    long = result("long", answer="a" * 100_000, scores=[score], status="failed", score=0.0)
    sections = sections_of([long], figures_of([long]))
    (answer,) = [text for text in parts(sections, Text) if text.title == "Answer"]
    assert answer.text.startswith("a" * 20_000 + "… (80,000 more characters)")
    assert "m" * 900 in text_in(sections)
    output = [{"role": "assistant", "content": "b" * 9_000_000} for _ in range(3)]
    several = [replace(long, test_id=f"t{number}", output=output) for number in range(2000)]
    sections = sections_of(several, figures_of(several))
    assert len(text_in(sections)) < 40_000_000
    assert any("more" in note.text for note in parts(sections, Note))


def test_nothing_ended() -> None:
    pending = [result("a", status="pending", score=None)]
    sections = sections_of(pending, figures_of(pending))
    assert "1 test has not ended and is not shown." in text_in(named(sections, "tests"))
    assert "distribution" not in [each.name for each in sections]
    assert sections_of([], figures_of([]))


ANY_TEXT = st.text(st.characters(exclude_categories=[]), max_size=40)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)
MESSAGE = st.fixed_dictionaries({}, optional={"role": ANY_JSON, "content": ANY_JSON, "tool_calls": ANY_JSON})


@settings(max_examples=settings().max_examples, deadline=None)
@given(ANY_TEXT, st.lists(MESSAGE, max_size=3), st.dictionaries(ANY_TEXT, ANY_JSON, max_size=3))
def test_any_text_and_any_messages(text: str, messages: list[dict[str, Any]], value: dict[str, Any]) -> None:
    score = {"name": text, "type": text, "score": 0.5, "weight": 1.0, "verdict": text, "hits": [text], "misses": [text]}
    scores: Any = [{**score, "details": value, "reasoning": text, "error": text, "scores": [score]}]
    results = [
        result(
            text, input=messages, output=messages, expected_output=messages, answer=text, scores=scores, metadata=value
        ),
        result(
            "b", target=text, status="error", score=None, error=text, notices=[text], file_changes=text, tags=[text]
        ),
    ]
    sections = sections_of(results, figures_of(results))
    assert block_json(sections)
    assert all(message["role"] in ("system", "user", "assistant", "tool") or message["role"] is not None
               for each in parts(sections, Messages) for message in each.messages)  # fmt: skip
