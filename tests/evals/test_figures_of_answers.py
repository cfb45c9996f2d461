"""Every figure that answers are declared to have stands wherever results have their columns, and each at its place."""

import json
from dataclasses import fields, replace
from io import BytesIO
from pathlib import Path

import pytest

from manyhands.workloads.evals.results.figures import EvalFigures
from manyhands.workloads.evals.results.result_lines import TestResult, TrialRecord
from manyhands.workloads.evals.results.writing import write_trace
from manyhands.workloads.evals.targets.answer_figures import FIGURES, NUMBERS, AnswerFigures, Figure, SummaryFigures
from manyhands.workloads.evals.targets.answers import read_record

DOCS = Path(__file__).parents[2] / "docs"
NAMES = [each.name for each in FIGURES]
PINNED = ("token_usage", "cost_usd", "duration_ms")
"""Those whose order and form in files is held here; others come besides."""
RESULT = TestResult(
    timestamp=None,
    test_id="one",
    dataset="d",
    score=1,
    status="passed",
    hits=[],
    misses=[],
    answer="a",
    target="t",
    input=[],
    output=[],
    token_usage={"input": 10, "output": 2},
    cost_usd=0.1,
    duration_ms=30,
    notices=["n"],
)


def test_figures_are_declared_once_in_each_shape() -> None:
    assert [each.name for each in fields(AnswerFigures)] == NAMES
    assert set(NAMES) == SummaryFigures.__annotations__.keys()
    assert TrialRecord.__annotations__.keys() >= set(NUMBERS)


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_is_documented(name: str) -> None:
    for schema in ("result", "eval_summary"):
        assert name in json.loads((DOCS / "schemas" / "evals" / f"{schema}.schema.json").read_text())["properties"]
    assert f"`{name}`" in (DOCS / "reference" / "eval-results.md").read_text()


@pytest.mark.parametrize("figure", FIGURES, ids=lambda each: each.name)
def test_a_figure_of_a_record_is_that_of_the_answer(figure: Figure) -> None:
    name = figure.name
    given = 2.5 if figure.is_number else {"input": 3, "output": 4}
    assert getattr(read_record({"text": "a", name: given}), name) == given


def test_lines_have_figures_behind_the_output() -> None:
    names = list(RESULT.to_json())
    assert names[names.index("output") :] == ["output", "token_usage", "cost_usd", "duration_ms", "notices"]


def test_traces_have_figures_in_their_order() -> None:
    written = BytesIO()
    write_trace(written, [RESULT])
    found = json.loads(written.getvalue())
    for name in set(NAMES).difference(PINNED):
        del found[name]
    assert json.dumps(found) == (
        '{"test_id": "one", "dataset": "d", "target": "t", "status": "passed", "score": 1, "duration_ms": 30, "cost_usd": 0.1, '
        '"token_usage": {"input": 10, "output": 2}, "spans": []}'
    )


def test_a_summary_has_what_figures_come_to_of_each_target_and_of_all() -> None:
    other = replace(
        RESULT, target="u", token_usage={"input": 1, "output": 1, "cached": 4}, cost_usd=0.2, duration_ms=50
    )
    bare = replace(RESULT, target="u", token_usage=None, cost_usd=None, duration_ms=None)
    figures = EvalFigures(None, 0)
    for result in (RESULT, other, bare):
        figures.add(result)
    summary = figures.to_json(0.8)
    assert [name for name in summary if name in PINNED] == ["cost_usd", "token_usage", "duration_ms"]
    assert json.dumps({name: value for name, value in summary.items() if name in PINNED}) == (
        '{"cost_usd": {"sum": 0.3, "tests_with_cost": 2}, '
        '"token_usage": {"input": 11, "output": 3, "cached": 4, "tests_with_usage": 2}, '
        '"duration_ms": {"tests_with_duration": 2, "median": 40.0, "p90": 48.0, "max": 50.0}}'
    )
    first, second = summary["targets"]
    assert first["duration_ms"] == {"tests_with_duration": 1, "median": 30, "p90": 30, "max": 30}
    assert second["cost_usd"] == {"sum": 0.2, "tests_with_cost": 1}
