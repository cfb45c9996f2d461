"""The end of a run of evaluations in words and tables, and its exit code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from manyhands.cli.console import err, out, print_usage, resume_command
from manyhands.cli.plain import one_line, printable, shown_path
from manyhands.core.errors import UserError
from manyhands.core.jsonio import loads
from manyhands.core.text import are, counted, have
from manyhands.runs.execution import RunResult
from manyhands.workloads.evals.batch.reports import said
from manyhands.workloads.evals.items import FAILED, GRADER_ERROR, INVALID, PASSED, SKIPPED, UNGRADED
from manyhands.workloads.evals.results.records import NO_ID, WITHOUT_SCORE, TestResult
from manyhands.workloads.evals.results.summary import statuses
from manyhands.workloads.evals.results.workspaces import hook_problems
from manyhands.workloads.evals.results.writing import RESULTS, SUMMARY, named_outputs, results_in
from manyhands.workloads.evals.settings import EvalSpec

LISTED = 20
"""Tests that are named, of each kind; with no more in all, every test is."""
LONGEST_ID = 120
"""Characters of a test's id that lines for a person show."""
_MEANING = {
    "passed": "at or above the limit of {limit:g}",
    "failed": "below the limit of {limit:g}",
    "errors": "the target gave no answer that could be graded: no score",
    "grader_errors": "a grader broke: no score",
    "skipped": "a test that it depends on is an error: no score",
    "ungraded": "no graders, or none that had anything to compare: no score",
    "invalid": "left out, as it can't be run",
    "pending": "not ended: resume to go on",
}
_WIDEST = 1000
_SEVERE = ("errors", "grader_errors", "skipped", "pending")
Figures = Mapping[str, Any]


def exit_code(result: RunResult, figures: Figures, fail_on: str, *, ungraded: bool = False) -> int:
    """0: all that was wanted; 1: tests below the limit, all tests left out, or the results could not be written; 2: something can't be used
    as it is; 3: tests without a score because of errors, or not run, or with nothing to grade them by, or a command for all tests that
    failed; 130: interrupted. ``fail_on``: see the setting; ``ungraded``: tests that nothing graded are fine."""
    if result.interrupted and not result.done:
        return 130
    if isinstance(result.error, UserError):
        return 2
    if result.error is not None:
        return 1
    tests = figures["tests"]
    failed = any(command["failure"] is not None for command in figures["commands"])
    severe = _SEVERE if ungraded else (*_SEVERE, "ungraded")
    if fail_on in ("any", "error") and (failed or any(tests[name] for name in severe)):
        return 3
    if result.nothing_kept is not None and fail_on != "never":
        return 1
    return 1 if fail_on in ("any", "failed") and tests["failed"] else 0


def print_report(result: RunResult, options: EvalSpec) -> Figures:
    """Print how a run ended; its figures."""
    console, errors = out(), err()
    figures: Figures = loads((result.folder / SUMMARY).read_bytes())
    _print_tests(console, errors, result.folder, figures)
    _print_targets(console, figures)
    _print_counts(console, figures)
    if result.summary["usage"]["calls"]:
        print_usage(console, result.summary)
    _print_trials(console, figures)
    _print_files(console, result.folder, options)
    _print_ending(console, errors, result, figures)
    return figures


def print_unwritten(result: RunResult) -> None:
    """Print how a run ended whose results could not be written."""
    errors = err()
    errors.print(f"manyhands: error: {result.error}", markup=False, soft_wrap=True)
    errors.print(f"To write the results, and to go on:  {resume_command(result.folder)}", markup=False, soft_wrap=True)


# --- Tests


def _print_tests(console: Console, errors: Console, folder: Path, figures: Figures) -> None:
    tests, naming = figures["tests"], _Naming(len(figures["eval_files"]) > 1, len(figures["targets"]) > 1)
    if tests["in"] - tests["pending"] <= LISTED:
        for result in results_in(folder / RESULTS):
            console.print(_test_line(result, naming), markup=False, soft_wrap=True)
            for notice in result.notices or ():
                errors.print(one_line(f"  {result.test_id}: {notice}"), markup=False, soft_wrap=True)
        return
    for statuses_, name in (((FAILED,), "failed"), (WITHOUT_SCORE, "errors"), ((SKIPPED,), "skipped")):
        count = tests["errors"] + tests["grader_errors"] if name == "errors" else tests[name]
        wanted = (result for result in results_in(folder / RESULTS) if result.status in statuses_)
        for result in islice(wanted, LISTED if count else 0):
            errors.print(_test_line(result, naming), markup=False, soft_wrap=True)
        if count > LISTED:
            errors.print(f"… and {count - LISTED:,} more ({name}), all of them in {RESULTS}", markup=False)


@dataclass(frozen=True, slots=True)
class _Naming:
    """What names a test besides its id."""

    datasets: bool
    targets: bool

    def name(self, result: TestResult) -> str:
        test_id = one_line(result.test_id or NO_ID, LONGEST_ID)
        name = f"{result.dataset}/{test_id}" if self.datasets else test_id
        return f"{name} @ {result.target}" if self.targets and result.target else name


def _test_line(result: TestResult, naming: _Naming) -> str:
    status, score = result.status, result.score
    mark = {PASSED: "✓", FAILED: "✗", SKIPPED: "-", UNGRADED: "-", INVALID: "-"}.get(status, "!")
    label = " (simulated)" if result.simulated else " (simulated judge)" if result.simulated_scores else ""
    if score is not None:
        said = [f"{score:.3f}", *(result.misses[:1] if status == FAILED else [])]
    elif status == GRADER_ERROR:
        said = [f"grader error: {result.error}"]
    else:
        said = [status if result.error is None else f"{status}: {result.error}"]
    return one_line(f"{mark} {naming.name(result)}{label}  {'  '.join(said)}")


# --- Tables


def _print_targets(console: Console, figures: Figures) -> None:
    level = figures["confidence"]
    intervals = "" if level is None else f", with intervals of {100 * level:g} %"
    table = Table(title=f"Scores{intervals}", title_justify="left", box=None, pad_edge=False)
    priced = bool(figures["cost_usd"]["sum"])
    table.add_column("target")
    for column in ("tests", "scored", "passed"):
        table.add_column(column, justify="right")
    for column in ("pass rate", "mean score"):
        table.add_column(column)
    if priced:
        table.add_column("cost", justify="right")
    rows = [(each["target"], each) for each in figures["targets"]]
    if len(rows) != 1:
        rows.append(("all", figures))
    for name, each in rows:
        table.add_row(*_target_row(name, each, priced=priced))
    # On a terminal that is too narrow, long lines are easier to read than columns of letters.
    wanted = Measurement.get(console, console.options.update(max_width=_WIDEST), table).maximum
    console.print(table, width=max(wanted, console.width), crop=False, soft_wrap=True)


def _target_row(name: str, figures: Figures, *, priced: bool) -> list[str]:
    tests, cost, simulated = figures["tests"], figures["cost_usd"], figures["simulated"]
    label = "" if not simulated else " (simulated)" if simulated == tests["in"] else " (partly simulated)"
    known = f"${cost['sum']:.4f}" if cost["tests_with_cost"] else "-"
    return [
        printable(name) + label,
        f"{tests['in']:,}",
        f"{tests['passed'] + tests['failed']:,}",
        f"{tests['passed']:,}",
        _estimate(figures["pass_rate"], "{:.1f}", 100, " %"),
        _estimate(figures["mean_score"], "{:.3f}", 1, ""),
        *([known] if priced else []),
    ]


def _estimate(found: Figures, shape: str, scale: int, unit: str) -> str:
    """A figure with its interval."""
    if found["value"] is None:
        return "-"
    value, interval = shape.format(scale * found["value"]) + unit, found.get("interval")
    if interval is None:
        return value
    return f"{value} [{shape.format(scale * interval['low'])} … {shape.format(scale * interval['high'])}]"


def _print_counts(console: Console, figures: Figures) -> None:
    table = Table(title="Ledger", title_justify="left", box=None, pad_edge=False)
    table.add_column("tests")
    table.add_column("", justify="right")
    table.add_column("")
    for name, count in statuses(figures):
        if count or name not in ("skipped", "ungraded", "invalid", "pending"):
            table.add_row(name.replace("_", " "), f"{count:,}", _meaning(name, figures))
    table.add_row("in all", f"{figures['tests']['in']:,}", "= the sum of these")
    console.print(table)


def _meaning(name: str, figures: Figures) -> str:
    own = sum(figures["tests_with_other_limits"].values())
    text = _MEANING[name].format(limit=figures["pass_limit"])
    return (
        f"{text} ({counted(own, 'test')} {have(own)} another limit)" if own and name in ("passed", "failed") else text
    )


def _print_trials(console: Console, figures: Figures) -> None:
    for target in figures["targets"]:
        trials = target.get("trials")
        if trials is None:
            continue
        parts = [
            f"k={k}: {trials['pass_at_k'][k]:.3f} / {_share(trials['pass_power_k'][k])} ({counted(count, 'test')})"
            for k, count in trials["tests"].items()
        ]
        text = f"pass@k / pass^k, {target['target']}: {', '.join(parts)}"
        console.print(text, markup=False, soft_wrap=True)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


# --- Files and what to do next


def _print_files(console: Console, folder: Path, options: EvalSpec) -> None:
    for path in (folder / RESULTS, *named_outputs(options)):
        console.print(f"Results:  {shown_path(path)}", markup=False, soft_wrap=True)
    console.print(f"Summary:  {shown_path(folder / SUMMARY)}", markup=False, soft_wrap=True)


def _print_ending(console: Console, errors: Console, result: RunResult, figures: Figures) -> None:
    commands = (line for command in figures["commands"] for line in said(command))
    for note in (*_edited(figures), *_left_out(figures), *commands, *hook_problems(result.folder)):
        errors.print(f"note: {note}", markup=False, soft_wrap=True)
    if result.error is not None:
        errors.print(f"manyhands: error: {result.error}", markup=False, soft_wrap=True)
    elif result.stopped is not None and not result.done:
        errors.print(f"manyhands: stopped: {result.stopped}", markup=False, soft_wrap=True)
    elif result.nothing_kept is not None:
        errors.print(f"manyhands: error: {result.nothing_kept}", markup=False, soft_wrap=True)
    for text in _next_steps(result, figures):
        console.print(text, markup=False, soft_wrap=True)


def _edited(figures: Figures) -> Iterator[str]:
    for each in figures.get("edited", ()):
        if each["problem"] is not None:
            yield (
                f"{each['path']} could not be compared with the run's tests ({each['problem']}); "
                "these are results of the tests as they were"
            )
            continue
        counts = ", ".join(f"{count:,} {what}" for what, count in each["tests"].items() if count)
        about = f"tests: {counts}" if counts else "what holds for all its tests"
        yield f"{each['path']} has been edited since the run was made ({about}); these are results of the tests as they were"


def _left_out(figures: Figures) -> Iterator[str]:
    found = figures.get("graders_left_out", {})
    for name, tests in islice(found.items(), LISTED):
        of = "its score" if tests == 1 else "their scores"
        yield f"grader {one_line(name, LONGEST_ID)} had nothing to compare in {counted(tests, 'test')}, and was left out of {of}"
    if len(found) > LISTED:
        yield f"… and {len(found) - LISTED:,} more graders that had nothing to compare, all of them in {SUMMARY}"


def _next_steps(result: RunResult, figures: Figures) -> Iterator[str]:
    tests, command = figures["tests"], resume_command(result.folder)
    if tests["pending"]:
        yield f"{counted(tests['pending'], 'test')} {are(tests['pending'])} left. To go on:  {command}"
    if broken := tests["errors"] + tests["grader_errors"]:
        kinds = figures["target_kinds"]
        missing = any(report["missing"] and kinds.get(report["target"]) == "cli" for report in figures["commands"])
        command += " --retry_errors" + (" --rerun=missing" if missing else "")
        yield f"{counted(broken, 'test')} ended in errors. To try {'it' if broken == 1 else 'them'} again:  {command}"
