"""The results of a run of evaluations on the terminal, and ``manyhands eval report``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rich.measure import Measurement
from rich.table import Table

from manyhands.cli.console import Console, err, out, print_usage, resume_command
from manyhands.cli.execution import print_reason
from manyhands.cli.plain import add_run, parser, shown_path
from manyhands.core.errors import UserError
from manyhands.core.jsonio import loads
from manyhands.core.text import are, counted, have, one_line, printable
from manyhands.runs.execution import RunResult
from manyhands.runs.folders import find_run
from manyhands.workloads.evals.items import FAILED, GRADER_ERROR, INVALID, PASSED, SKIPPED, UNGRADED
from manyhands.workloads.evals.results.figures import MeanFigure, ResultFigures
from manyhands.workloads.evals.results.reading import RESULTS, results_in
from manyhands.workloads.evals.results.result_lines import NO_ID, WITHOUT_SCORE, TestResult
from manyhands.workloads.evals.results.summary import (
    MAX_LISTED,
    SUMMARY,
    EvalSummary,
    notes,
    records_are_missing,
    statuses,
)
from manyhands.workloads.evals.results.writing import (
    check_output,
    hook_problems,
    named_outputs,
    write_output,
)
from manyhands.workloads.evals.settings import ENDINGS, EvalSpec

MAX_ID = 120
"""Characters of a test's id that are shown."""
_MEANING = {
    "passed": "at or above the threshold of {threshold:g}",
    "failed": "below the threshold of {threshold:g}",
    "errors": "the target gave no answer that could be graded: no score",
    "grader_errors": "a grader broke: no score",
    "skipped": "a test that it depends on is an error: no score",
    "ungraded": "no graders, or none that had anything to compare: no score",
    "invalid": "left out, as it can't be run",
    "pending": "not ended: resume to continue",
}
_MAX_WIDTH = 1000
"""Characters up to which a table may be wider than the terminal."""


def print_report(result: RunResult, options: EvalSpec) -> EvalSummary:
    """Print how a run ended; its figures."""
    console, errors = out(), err()
    figures: EvalSummary = loads((result.folder / SUMMARY).read_bytes())
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
    print_reason(result)
    errors.print_line(f"To write the results, and to continue:  {resume_command(result.folder)}")


# --- Tests


def _print_tests(console: Console, errors: Console, folder: Path, figures: EvalSummary) -> None:
    tests, naming = figures["tests"], _Naming(len(figures["eval_files"]) > 1, len(figures["targets"]) > 1)
    if tests["in"] - tests["pending"] <= MAX_LISTED:
        for result in results_in(folder / RESULTS):
            console.print_line(_test_line(result, naming))
            for notice in result.notices or ():
                errors.print_line(one_line(f"  {result.test_id}: {notice}"))
        return
    for statuses_, name in (((FAILED,), "failed"), (WITHOUT_SCORE, "errors"), ((SKIPPED,), "skipped")):
        count = tests["errors"] + tests["grader_errors"] if name == "errors" else tests[name]
        wanted = (result for result in results_in(folder / RESULTS) if result.status in statuses_)
        for result in islice(wanted, MAX_LISTED if count else 0):
            errors.print_line(_test_line(result, naming))
        if count > MAX_LISTED:
            errors.print(f"… and {count - MAX_LISTED:,} more ({name}), all of them in {RESULTS}")


@dataclass(frozen=True, slots=True)
class _Naming:
    """What names a test besides its id."""

    datasets: bool
    targets: bool

    def name(self, result: TestResult) -> str:
        test_id = one_line(result.test_id or NO_ID, MAX_ID)
        name = f"{result.dataset}/{test_id}" if self.datasets else test_id
        return f"{name} @ {result.target}" if self.targets and result.target else name


def _test_line(result: TestResult, naming: _Naming) -> str:
    status, score = result.status, result.score
    mark = {PASSED: "✓", FAILED: "✗", SKIPPED: "-", UNGRADED: "-", INVALID: "-"}.get(status, "!")
    labels = [text for text in (result.simulated_label, result.reroll_label) if text is not None]
    label = f" ({'; '.join(labels)})" if labels else ""
    if score is not None:
        said = [f"{score:.3f}", *(result.misses[:1] if status == FAILED else [])]
    elif status == GRADER_ERROR:
        said = [f"grader error: {result.error}"]
    else:
        said = [status if result.error is None else f"{status}: {result.error}"]
    return one_line(f"{mark} {naming.name(result)}{label}  {'  '.join(said)}")


# --- Tables


def _print_targets(console: Console, figures: EvalSummary) -> None:
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
    rows: list[tuple[str, ResultFigures]] = [(each["target"], each) for each in figures["targets"]]
    if len(rows) != 1:
        rows.append(("all", figures))
    for name, each in rows:
        table.add_row(*_target_row(name, each, priced=priced))
    # On a terminal that is too narrow, long lines are easier to read than columns of letters.
    wanted = Measurement.get(console.rich, console.rich.options.update(max_width=_MAX_WIDTH), table).maximum
    console.print(table, width=max(wanted, console.rich.width), crop=False, soft_wrap=True)


def _target_row(name: str, figures: ResultFigures, *, priced: bool) -> list[str]:
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


def _estimate(found: MeanFigure, shape: str, scale: int, unit: str) -> str:
    """A figure with its interval."""
    if found["value"] is None:
        return "-"
    value, interval = shape.format(scale * found["value"]) + unit, found.get("interval")
    if interval is None:
        return value
    return f"{value} [{shape.format(scale * interval['low'])} … {shape.format(scale * interval['high'])}]"


def _print_counts(console: Console, figures: EvalSummary) -> None:
    table = Table(title="Ledger", title_justify="left", box=None, pad_edge=False)
    table.add_column("tests")
    table.add_column("", justify="right")
    table.add_column("")
    for name, count in statuses(figures):
        if count or name not in ("skipped", "ungraded", "invalid", "pending"):
            table.add_row(name.replace("_", " "), f"{count:,}", _meaning(name, figures))
    table.add_row("in all", f"{figures['tests']['in']:,}", "= the sum of these")
    console.print(table)


def _meaning(name: str, figures: EvalSummary) -> str:
    own = sum(figures["tests_with_other_limits"].values())
    text = _MEANING[name].format(threshold=figures["pass_limit"])
    return (
        f"{text} ({counted(own, 'test')} {have(own)} another threshold)"
        if own and name in ("passed", "failed")
        else text
    )


def _print_trials(console: Console, figures: EvalSummary) -> None:
    for target in figures["targets"]:
        trials = target.get("trials")
        if trials is None:
            continue
        parts = [
            f"k={k}: {trials['pass_at_k'][k]:.3f} / {_share(trials['pass_power_k'][k])} ({counted(count, 'test')})"
            for k, count in trials["tests"].items()
        ]
        text = f"pass@k / pass^k, {target['target']}: {', '.join(parts)}"
        console.print_line(text)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


# --- Files and what to do next


def _print_files(console: Console, folder: Path, options: EvalSpec) -> None:
    for path in (folder / RESULTS, *named_outputs(options)):
        console.print_line(f"Results:  {shown_path(path)}")
    console.print_line(f"Summary:  {shown_path(folder / SUMMARY)}")


def _print_ending(console: Console, errors: Console, result: RunResult, figures: EvalSummary) -> None:
    for note in (*notes(figures), *hook_problems(result.folder)):
        errors.print_line(f"note: {note}")
    print_reason(result)
    for text in _next_steps(result, figures):
        console.print_line(text)


def _next_steps(result: RunResult, figures: EvalSummary) -> Iterator[str]:
    tests, command = figures["tests"], resume_command(result.folder)
    if tests["pending"]:
        yield f"{counted(tests['pending'], 'test')} {are(tests['pending'])} left. To continue:  {command}"
    if broken := tests["errors"] + tests["grader_errors"]:
        command += " --retry_errors" + (" --rerun=missing" if records_are_missing(figures) else "")
        yield f"{counted(broken, 'test')} ended in errors. To retry {'it' if broken == 1 else 'them'}:  {command}"


def write_report(argv: list[str]) -> int:
    """Write the files and name them."""
    result = parser("eval report", "Write the results of a run to files, each in the format of its suffix.")
    add_run(result, required=True)
    result.add_argument(
        "-o",
        "--output",
        action="append",
        metavar="FILE",
        help=f"output file: {', '.join(ENDINGS)} (repeatable; default: report.html in the run's folder)",
    )
    options = result.parse_args(argv)
    folder = find_run(options.run, options.data_dir)
    if not (folder / RESULTS).is_file() or not (folder / SUMMARY).is_file():
        raise UserError(f"{folder}: no run of evaluations with results; manyhands resume writes them")
    summary = loads((folder / SUMMARY).read_bytes())
    named = [Path(each) for each in options.output or [str(folder / "report.html")]]
    for path in named:
        if path.suffix.lower() not in ENDINGS:
            raise UserError(f"--output {path}: must end in one of {', '.join(ENDINGS)}")
        check_output(path, folder)
    for path in named:
        write_output(folder, summary, path)
        out().print_line(shown_path(path))
    return 0
