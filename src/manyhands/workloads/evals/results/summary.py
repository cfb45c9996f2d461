"""The summary of an evaluation, as ``eval_summary.json`` has it, and what follows from it: the exit code, notes, views."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, NotRequired, TypedDict

from manyhands.core.errors import UserError
from manyhands.core.text import counted, one_line
from manyhands.core.usage import UsageFigures
from manyhands.engine.contract import ItemRow
from manyhands.runs.execution import RunResult
from manyhands.runs.exit_codes import ExitCode
from manyhands.runs.progress import ItemSandbox, item_sandbox
from manyhands.runs.summaries import Figure, ItemFacts, Summarizer, figure, number_in
from manyhands.sandboxes.images.pins import NO_PINS
from manyhands.workloads.evals.batch.reports import CommandFigures, report_lines
from manyhands.workloads.evals.prepared import PreparedEval
from manyhands.workloads.evals.results.figures import MAX_NAMED, ResultFigures, RunFigures, count_name
from manyhands.workloads.evals.results.result_lines import NO_ID, STATUSES, TestResult, result_of
from manyhands.workloads.evals.targets.definitions import identity
from manyhands.workloads.evals.targets.kinds.registry import KINDS

SUMMARY = "eval_summary.json"
"""The file in the run folder."""
MAX_LISTED = 20
"""Tests, and graders, that are named to a person."""
MAX_GRADER_NAME = 120
"""Characters of a grader's name that are shown."""
_SEVERE = ("errors", "grader_errors", "skipped", "pending")
"""Counts of tests without which a run is not well."""


class EvalFileSummary(TypedDict):
    """An eval file of a run."""

    path: str
    dataset: str
    """What results call it."""


class ModelUsage(UsageFigures):
    """What the run's own model calls took, those of judges included; the cost has what commands report, too."""

    total_tokens: int


class EvalSummary(RunFigures):
    """A run of evaluations: ``eval_summary.json``."""

    run_name: str
    run_id: str
    version: str
    """Of this program, when the run was made."""
    created_at: str
    """RFC 3339, UTC."""
    working_seconds: float
    """How long sessions have executed it."""
    eval_files: list[EvalFileSummary]
    target_kinds: dict[str, str]
    """By the names of targets."""
    commands: list[CommandFigures]
    """How the commands went that answer all tests."""
    model_usage: ModelUsage
    edited: NotRequired[list[dict[str, Any]]]
    """Of a run that went on after its eval files were edited: what is different in each."""


def statuses(summary: ResultFigures) -> Iterator[tuple[str, int]]:
    """The counts of a summary, by the names that they have there, in order."""
    for status in STATUSES:
        yield count_name(status), summary["tests"][count_name(status)]


def exit_code(result: RunResult, summary: EvalSummary | None, fail_on: str, *, ungraded: bool = False) -> ExitCode:
    """The exit code of a session. ``summary``: None if the results could not be written; ``fail_on``: see the setting; ``ungraded``: tests
    that nothing graded are fine.

    DONE: all that was wanted; FAILED: tests below the threshold, all tests left out, or the results could not be written; USAGE: something
    can't be used as it is; NO_SCORE: tests without a score because of errors, or not run, or with nothing to grade them by, or a command
    for all tests that failed.
    """
    if result.interrupted and not result.done:
        return ExitCode.INTERRUPTED
    if isinstance(result.error, UserError):
        return ExitCode.USAGE
    if result.error is not None or summary is None:
        return ExitCode.FAILED
    tests = summary["tests"]
    failed = any(command["failure"] is not None for command in summary["commands"])
    severe = _SEVERE if ungraded else (*_SEVERE, "ungraded")
    if fail_on in ("any", "error") and (failed or any(tests[name] for name in severe)):
        return ExitCode.NO_SCORE
    if result.nothing_kept is not None and fail_on != "never":
        return ExitCode.FAILED
    return ExitCode.FAILED if fail_on in ("any", "failed") and tests["failed"] else ExitCode.DONE


def records_are_missing(summary: EvalSummary) -> bool:
    """Whether a command wrote no usable record for some of its tests, so that invoking it again for these may help."""
    kinds = summary["target_kinds"]
    batching = {name for name, kind in kinds.items() if kind in KINDS and KINDS[kind].batches}
    return any(command["missing"] and command["target"] in batching for command in summary["commands"])


def notes(summary: EvalSummary) -> Iterator[str]:
    """What a person should know besides the figures, a line each."""
    if (line := reroll_line(summary)) is not None:
        yield line
    yield from _edited(summary.get("edited", ()))
    yield from _left_out(summary.get("graders_left_out", {}))
    for command in summary.get("commands", ()):
        yield from report_lines(command)


def reroll_line(figures: ResultFigures) -> str | None:
    """Which scores are no first tries, and what all tests came to at first; None if all are."""
    found = figures.get("rerolled")
    if found is None:
        return None
    ids = [one_line(each, MAX_GRADER_NAME) for each in found["ids"]]
    named = ", ".join(ids) + (", …" if found["tests"] > len(ids) >= MAX_NAMED else "")
    first, mean = f"{found['first_passed']:,} of {figures['tests']['in']:,} passed", found["first_mean_score"]
    scored = "" if mean is None else f", mean score {mean:.3f}"
    return f"{found['tests']:,} re-rolled: {named}; first results: {first}{scored}"


def _edited(files: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for file in files:
        if file["problem"] is not None:
            yield (
                f"{file['path']} could not be compared with the run's tests ({file['problem']}); "
                "these are results of the tests as they were"
            )
            continue
        counts = ", ".join(f"{count:,} {what}" for what, count in file["tests"].items() if count)
        about = f"tests: {counts}" if counts else "what holds for all its tests"
        yield f"{file['path']} has been edited since the run was made ({about}); these are results of the tests as they were"


def _left_out(graders: Mapping[str, int]) -> Iterator[str]:
    for name, tests in islice(graders.items(), MAX_LISTED):
        of = "its score" if tests == 1 else "their scores"
        yield f"grader {one_line(name, MAX_GRADER_NAME)} had nothing to compare in {counted(tests, 'test')}, and was left out of {of}"
    if len(graders) > MAX_LISTED:
        yield f"… and {len(graders) - MAX_LISTED:,} more graders that had nothing to compare, all of them in {SUMMARY}"


# --- For views over all workloads


class EvalSummarizer(Summarizer):
    """What a test asked, what its target answered, and what graders found."""

    def facts(self, row: ItemRow) -> ItemFacts:
        result = result_of(row, self._thresholds)
        test_id = result.test_id or NO_ID
        return ItemFacts(
            test_id if result.target is None else f"{test_id} @ {result.target}",
            row.payload.get("trial", 0),
            result.score,
            result.status,
            _question(result),
            result.error or result.answer,
        )

    def sandbox(self, row: ItemRow) -> ItemSandbox | None:
        payload = row.payload
        target = self._prepared.target_of(payload["file"], payload["target"])
        task = payload["test"].get("task") or {}
        if not (task or (target.facts.calls_models and target.settings.get("toolsets"))):
            return None
        pins = self._prepared.pins.get(identity(target), NO_PINS)
        return item_sandbox(target.settings, pins.to_json(), task.get("image"))

    def figures(self) -> list[Figure]:
        found = self.read_results(SUMMARY)
        if not found:
            return []
        return [
            figure("pass_rate", number_in(found, "pass_rate", "value"), ".1%"),
            figure("mean_score", number_in(found, "mean_score", "value"), ".3f"),
            figure("passed", number_in(found, "tests", "passed"), ","),
            figure("failed", number_in(found, "tests", "failed"), ",", label="below the threshold"),
        ]

    @cached_property
    def _thresholds(self) -> Sequence[float]:
        """Of each eval file."""
        return self._prepared.thresholds

    @cached_property
    def _prepared(self) -> PreparedEval:
        return PreparedEval.from_json(self.spec, self.reader.folder.parent)


def _question(result: TestResult) -> object:
    """What the person said last."""
    said = (message.get("content") for message in reversed(result.input) if message.get("role") == "user")
    return next(said, None)
