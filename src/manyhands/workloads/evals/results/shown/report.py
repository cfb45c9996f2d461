"""The results of an evaluation as one document, made of its result files alone: no journal is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice

from manyhands.core.text import are, counted, have
from manyhands.runs.shown.blocks import Block, Cell, Fold, Note, Section
from manyhands.workloads.evals.items import PASSED
from manyhands.workloads.evals.results.result_lines import PENDING, TestResult
from manyhands.workloads.evals.results.shown.graded import TextBudget, result_blocks
from manyhands.workloads.evals.results.shown.result_cells import name_text, score_cell, status_cell, tone_of
from manyhands.workloads.evals.results.shown.scores import (
    about_facts,
    command_failures,
    distribution_sections,
    further_notes,
    scores_section,
)
from manyhands.workloads.evals.results.summary import EvalSummary

MAX_TESTS = 5000
"""Tests that a document shows."""
MAX_CHARACTERS = 20_000_000
"""Characters of tests' texts that a document holds, about; each test gets its share of them."""
_AT_ONCE = 100
"""Tests of a section, so that a document can be written as it is made."""
Results = Callable[[], Iterator[TestResult]]
"""Gives the results, from the first one on, each time it is called."""


def report_sections(results: Results, summary: EvalSummary) -> Iterator[Section]:
    """Everything that is shown of a run's results: what it is, scores, failures of commands, distributions, and the tests, streamed. Tests
    that did not pass come first. The tests of all sections are one list, whose folds have the filters ``status`` and ``target``."""
    yield Section(
        "Evaluation", [about_facts(summary), *command_failures(summary), *further_notes(summary)], name="about"
    )
    yield scores_section(summary)
    yield from distribution_sections(summary)
    yield from _tests(results, summary)


def _tests(results: Results, summary: EvalSummary) -> Iterator[Section]:
    counts = summary["tests"]
    ended = counts["in"] - counts["pending"]
    share = MAX_CHARACTERS // max(1, min(ended, MAX_TESTS))
    several = len(summary["targets"]) > 1
    shown = islice(chain(_chosen(results, has_passed=False), _chosen(results, has_passed=True)), MAX_TESTS)
    notes: list[Block] = [*_left_out(ended, counts["pending"])]
    folds = (_fold(number, result, share, several=several) for number, result in enumerate(shown, 1))
    first = 1
    while part := list(islice(folds, _AT_ONCE)):
        title = "Tests" if ended <= _AT_ONCE else f"Tests {first:,} to {first + len(part) - 1:,}"
        yield Section(title, [*notes, *part], name="tests" if first == 1 else f"tests-{first}")
        first, notes = first + len(part), []
    if notes:
        yield Section("Tests", notes, name="tests")


def _chosen(results: Results, *, has_passed: bool) -> Iterator[TestResult]:
    return (each for each in results() if each.status != PENDING and (each.status == PASSED) is has_passed)


def _left_out(ended: int, pending: int) -> Iterator[Note]:
    if ended > MAX_TESTS:
        yield Note(
            f"{ended:,} tests ended; {MAX_TESTS:,} of them are shown, and those that passed only where there is room. "
            "All are in results.jsonl.",
            "warn",
        )
    if pending:
        yield Note(f"{counted(pending, 'test')} {have(pending)} not ended and {are(pending)} not shown.", "warn")


def _fold(number: int, result: TestResult, share: int, *, several: bool) -> Fold:
    """A test that opens at a click. ``several``: there are several targets, so that its own is named."""
    name = name_text(result.test_id) + (f" @ {name_text(result.target)}" if several and result.target else "")
    cells = [status_cell(result.status), score_cell(result.score, tone_of(result.status))]
    cells += [Cell(label, tone="warn") for label in (result.simulated_label, result.reroll_label) if label is not None]
    filters = {"status": result.status.replace("_", " "), "target": result.target or ""}
    return Fold(name, [*result_blocks(result, TextBudget(share))], f"test-{number}", cells, filters)
