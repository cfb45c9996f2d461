"""The results of a run of evaluations, written from its journal: as often as wanted, and never half.

``results.jsonl`` has a line for each test that ended, ``eval_summary.json`` the figures of all; ``--out`` and ``--output`` name further
files of the same results, ``--trace_file`` one with what each test took.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from manyhands.core.errors import StorageError, UserError
from manyhands.core.jsonio import Json, compact_line, line, loads, pretty
from manyhands.engine.contract import RunReader
from manyhands.engine.journal.lock import LOCK
from manyhands.engine.journal.reader import JOURNAL
from manyhands.graders.messages import tool_uses_of
from manyhands.io.files import bytes_written_aside, written_aside
from manyhands.processes.strays import remove_asides
from manyhands.runs.execution import SUMMARY as ENGINE_SUMMARY
from manyhands.runs.ledger import timestamp
from manyhands.workloads.evals.batch.reports import target_reports
from manyhands.workloads.evals.edits import Edits
from manyhands.workloads.evals.prepared import PreparedEval
from manyhands.workloads.evals.results.formats import write_as
from manyhands.workloads.evals.results.records import PENDING, TestResult, results
from manyhands.workloads.evals.results.summary import EvalFigures
from manyhands.workloads.evals.results.workspaces import with_workspaces
from manyhands.workloads.evals.settings import EvalSpec, ending_of_out

RESULTS, SUMMARY = "results.jsonl", "eval_summary.json"


@dataclass(frozen=True, slots=True)
class Summary:
    """What was written. ``figures``: as they are in ``eval_summary.json``."""

    figures: dict[str, Any]
    files: tuple[Path, ...]


def write_results(reader: RunReader, prepared: PreparedEval, folder: Path, edits: Sequence[Edits] = ()) -> Summary:
    """Write ``results.jsonl`` (every test that ended, in order) and ``eval_summary.json`` into the run folder, and what ``--out`` and
    ``--output`` name. All are streamed, and each takes its place when it is whole. ``edits``: what is different in the eval files since
    the run was made.

    Raises StorageError if one can't be written; the old one is then still there.
    """
    options = prepared.options
    with reader.snapshot():
        datasets = {file.path: file.dataset for file in prepared.files}
        found = with_workspaces(results(reader.items(), prepared.limits), folder, datasets)
        figures = _write_lines(found, folder, EvalFigures(options.score_interval, options.bootstrap_seed))
        about = _about(reader, prepared, folder)
    summary = {
        **about,
        **({"edited": [each.to_json() for each in edits]} if edits else {}),
        **figures.to_json(prepared.pass_limit),
    }
    _write_json(folder / SUMMARY, summary)
    named = named_outputs(options)
    for path in named:
        if options.trace_file is not None and path == Path(options.trace_file):
            _write_trace(folder, path)
        else:
            is_out = options.out is not None and path == Path(options.out)
            write_output(folder, summary, path, ending=ending_of_out(path, options.output_format) if is_out else None)
    return Summary(summary, (folder / RESULTS, folder / SUMMARY, *named))


def named_outputs(options: EvalSpec) -> list[Path]:
    """The files that the settings name."""
    return [Path(path) for path in (options.out, *(options.output or ()), options.trace_file) if path]


def write_output(folder: Path, summary: dict[str, Any], path: Path, *, ending: str | None = None) -> None:
    """Write a run's results to another file, in the format that its ending names, or another ones ``ending``.

    Raises UserError for a file that must not be replaced, StorageError if it can't be written.
    """
    target = _usable(path, folder)
    with bytes_written_aside(target) as handle:
        write_as(ending or path.suffix.lower(), handle, lambda: results_in(folder / RESULTS), summary)


def _write_trace(folder: Path, path: Path) -> None:
    with bytes_written_aside(_usable(path, folder)) as handle:
        write_trace(handle, results_in(folder / RESULTS))


def results_in(path: Path) -> Iterator[TestResult]:
    """The results in a ``results.jsonl``, streamed. Raises UserError, naming the line, for what is none."""
    for number, record in _numbered_records(path):
        try:
            yield TestResult.from_json(record)
        except ValueError as error:
            raise UserError(f"{path}, line {number}: {error}") from error


def records_in(path: Path) -> Iterator[dict[str, Json]]:
    """The objects in a JSON Lines file, which another program may have written, streamed. Raises UserError, naming the line, for what is
    none."""
    return (record for _, record in _numbered_records(path))


def _numbered_records(path: Path) -> Iterator[tuple[int, dict[str, Json]]]:
    """The objects with their lines' numbers."""
    try:
        with path.open("rb") as handle:
            yield from _records(handle, path)
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror or error})") from error


def _records(handle: Iterable[bytes], path: Path) -> Iterator[tuple[int, dict[str, Json]]]:
    for number, text in enumerate(handle, 1):
        if not text.strip():
            continue
        try:
            record = loads(text)
        except ValueError as error:
            raise UserError(f"{path}, line {number}: not JSON: {error}") from error
        if not isinstance(record, dict):
            raise UserError(f"{path}, line {number}: must be an object")
        yield number, record


def _about(reader: RunReader, prepared: PreparedEval, folder: Path) -> dict[str, Any]:
    usage = reader.usage()
    targets = {target.name: target.kind for file in prepared.files for target in file.targets}
    return {
        "run_name": folder.name,
        "run_id": reader.meta("run_id"),
        "version": reader.meta("version"),
        "created_at": timestamp(reader.meta("created_at")),
        "working_seconds": round(reader.working_seconds(), 3),
        "eval_files": [{"path": file.path, "dataset": file.dataset} for file in prepared.files],
        "target_kinds": targets,
        "commands": [_brief(report) for report in target_reports(folder)],
        "model_usage": {**usage.to_json(), "total_tokens": usage.total_tokens, "cost": round(usage.cost, 6)},
    }


def _brief(report: dict[str, Any]) -> dict[str, Any]:
    """How a command for all tests went, without what may be long."""
    wanted = (
        "dataset",
        "target",
        "trial",
        "invocations",
        "exit_code",
        "timed_out",
        "seconds",
        "failure",
        "notices",
        "records",
    )
    return {**{name: report[name] for name in wanted}, "missing": len(report["missing"])}


def check_output(named: Path, folder: Path) -> Path:
    """Where a file of results will be, symbolic links followed. Raises UserError if what is there is not to be replaced, or if nothing can
    be written there."""
    path = Path(os.path.realpath(named))
    own = [JOURNAL, f"{JOURNAL}-wal", f"{JOURNAL}-shm", LOCK, RESULTS, SUMMARY, ENGINE_SUMMARY]
    if path in {Path(os.path.realpath(folder)) / name for name in own}:
        raise UserError(f"{named}: a file of the run itself, whose place no other may take")
    if named.exists() and not named.is_file():
        raise UserError(f"{named}: not a regular file, so that results can't take its place")
    there = next(each for each in path.parents if each.exists())
    if not there.is_dir():
        raise UserError(f"{named}: can't be written, as {there} is no folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"{named}: can't be written, as nothing can be made in {there}")
    return path


def _usable(named: Path, folder: Path) -> Path:
    """The like, its folder made."""
    path = check_output(named, folder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_asides(path.parent, path.name)
    except OSError as error:
        raise StorageError(f"{path.parent}: the folder can't be written ({error.strerror or error})") from error
    return path


def _write_json(path: Path, value: Any) -> None:
    with written_aside(path) as handle:
        handle.write(pretty(value))
        handle.write("\n")


def _write_lines(results: Iterable[TestResult], folder: Path, figures: EvalFigures) -> EvalFigures:
    """Write a run's ``results.jsonl``: a line for each test that ended. Returns ``figures``, in which all are counted.

    The file takes its place when it is whole. Raises StorageError if it can't be written; the old one is then still there.
    """
    with bytes_written_aside(folder / RESULTS) as handle:
        for result in results:
            figures.add(result)
            if result.status != PENDING:
                handle.write(compact_line(result.to_json()))
    return figures


_FIGURES = ("score", "duration_ms", "cost_usd", "token_usage")


def write_trace(handle: BinaryIO, results: Iterable[TestResult]) -> None:
    """A line for each result: ``test_id``, ``dataset``, ``target``, ``status``, ``score``, ``duration_ms``, ``cost_usd``, ``token_usage``
    (null where not known), and ``spans``: the tool calls in order."""
    for result in results:
        handle.write(line(_trace(result)).encode() + b"\n")


def _trace(result: TestResult) -> dict[str, Any]:
    figures = {name: getattr(result, name) for name in ("test_id", "dataset", "target", "status", *_FIGURES)}
    uses = tool_uses_of(result.output or ())
    return {**figures, "spans": [{"type": "tool", "name": use.tool, "duration_ms": use.duration_ms} for use in uses]}
