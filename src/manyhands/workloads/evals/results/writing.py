"""The results of a run of evaluations, written from its journal: as often as wanted, and never half.

``results.jsonl`` has a line for each test that ended, ``eval_summary.json`` the figures of all; ``--out`` and ``--output`` name further
files of the same results, ``--trace_file`` one with what each test took.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from manyhands.core.errors import UserError
from manyhands.core.jsonio import compact_line, line, pretty
from manyhands.engine.contract import RunReader
from manyhands.engine.journal.lock import LOCK
from manyhands.engine.journal.reader import JOURNAL
from manyhands.graders.messages import tool_uses_of
from manyhands.io.files import bytes_written_aside, written_aside
from manyhands.processes.strays import make_way
from manyhands.runs.execution import SUMMARY as ENGINE_SUMMARY
from manyhands.runs.ledger import timestamp
from manyhands.workloads.evals.batch.reports import command_figures
from manyhands.workloads.evals.edits import Edits
from manyhands.workloads.evals.prepared import PreparedEval
from manyhands.workloads.evals.results.figures import EvalFigures
from manyhands.workloads.evals.results.formats import write_as
from manyhands.workloads.evals.results.reading import RESULTS, grouped_results_of, results_in
from manyhands.workloads.evals.results.result_lines import PENDING, TestResult
from manyhands.workloads.evals.results.summary import SUMMARY, EvalSummary
from manyhands.workloads.evals.settings import EvalSpec, ending_of_out
from manyhands.workloads.evals.targets.answer_figures import FIGURES
from manyhands.workloads.evals.workspaces.templates import template_states


def write_results(reader: RunReader, prepared: PreparedEval, folder: Path, edits: Sequence[Edits] = ()) -> None:
    """Write ``results.jsonl`` (every test that ended, in order) and ``eval_summary.json`` into the run folder, and what ``--out`` and
    ``--output`` name. All are streamed, and each takes its place when it is whole. ``edits``: what is different in the eval files since
    the run was made.

    Raises StorageError if one can't be written; the old one is then still there.
    """
    options = prepared.options
    figures = EvalFigures(options.score_interval, options.bootstrap_seed)
    with reader.snapshot(), bytes_written_aside(folder / RESULTS) as handle:
        for result in results_of(reader, prepared, folder):
            figures.add(result)
            if result.status != PENDING:
                handle.write(compact_line(result.to_json()))
        summary = _summary(reader, prepared, folder, figures, edits)
    with written_aside(folder / SUMMARY) as text:
        text.write(pretty(summary) + "\n")
    for path in named_outputs(options):
        if options.trace_file is not None and path == Path(options.trace_file):
            with bytes_written_aside(_usable(path, folder)) as handle:
                write_trace(handle, results_in(folder / RESULTS))
        else:
            is_out = options.out is not None and path == Path(options.out)
            write_output(folder, summary, path, ending=ending_of_out(path, options.output_format) if is_out else None)


def results_of(reader: RunReader, prepared: PreparedEval, folder: Path) -> Iterator[TestResult]:
    """The result of each test and target, also of those that have not ended, streamed."""
    datasets = {file.path: file.dataset for file in prepared.files}
    found = (result for _, result in grouped_results_of(reader, prepared))
    return with_workspaces(found, folder, datasets)


def summary_of(reader: RunReader, prepared: PreparedEval, folder: Path) -> EvalSummary:
    """The summary of the tests as they are now; goes through all of them."""
    figures = EvalFigures(prepared.options.score_interval, prepared.options.bootstrap_seed)
    with reader.snapshot():
        for _, result in grouped_results_of(reader, prepared):
            figures.add(result)
        return _summary(reader, prepared, folder, figures)


def named_outputs(options: EvalSpec) -> list[Path]:
    """The files that the settings name."""
    return [Path(path) for path in (options.out, *(options.output or ()), options.trace_file) if path]


def write_output(folder: Path, summary: EvalSummary, path: Path, *, ending: str | None = None) -> None:
    """Write a run's results to another file, in the format that its ending names, or another ones ``ending``.

    Raises UserError for a file that must not be replaced, StorageError if it can't be written.
    """
    target = _usable(path, folder)
    with bytes_written_aside(target) as handle:
        write_as(ending or path.suffix.lower(), handle, lambda: results_in(folder / RESULTS), summary)


def _summary(
    reader: RunReader, prepared: PreparedEval, folder: Path, figures: EvalFigures, edits: Sequence[Edits] = ()
) -> EvalSummary:
    usage = reader.usage()
    targets = {target.name: target.kind for file in prepared.files for target in file.targets}
    about = {
        "run_name": folder.name,
        "run_id": reader.meta("run_id"),
        "version": reader.meta("version"),
        "created_at": timestamp(reader.meta("created_at")),
        "working_seconds": round(reader.working_seconds(), 3),
        "eval_files": [{"path": file.path, "dataset": file.dataset} for file in prepared.files],
        "target_kinds": targets,
        "commands": command_figures(folder),
        "model_usage": {**usage.to_json(), "total_tokens": usage.total_tokens, "cost": round(usage.cost, 6)},
    }
    edited = {"edited": [each.to_json() for each in edits]} if edits else {}
    return cast(EvalSummary, {**about, **edited, **figures.to_json(prepared.threshold)})


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
    """Where a file of results will be; its folder is made. Raises what ``check_output`` raises, and StorageError."""
    path = check_output(named, folder)
    make_way(path)
    return path


def with_workspaces(
    results: Iterable[TestResult], run_folder: Path, datasets: Mapping[str, str]
) -> Iterator[TestResult]:
    """Results with the paths of workspaces that are kept, and what hooks printed that run once: in the first result of their eval file
    that has a workspace. ``datasets``: of each eval file's path, what results call it."""
    printed = _printed(run_folder, datasets)
    for result in results:
        if result.workspace_path is not None:
            path = (run_folder / result.workspace_path).absolute()
            kept = str(path) if path.is_dir() else None
            outputs = printed.pop(result.dataset, {})
            result = replace(
                result,
                workspace_path=kept,
                before_all_output=outputs.get("before_all_output"),
                after_all_output=outputs.get("after_all_output"),
            )
        yield result


def hook_problems(run_folder: Path) -> Iterator[str]:
    """What a person should know of hooks that ran after all tests."""
    for _, state in template_states(run_folder):
        if state.problem is not None:
            yield f"{state.eval_file}: {state.problem}"


def _printed(run_folder: Path, datasets: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Outputs of hooks that run once, by dataset. Those of several templates stand one below the other."""
    found: dict[str, dict[str, str]] = {}
    for _, state in template_states(run_folder):
        outputs = found.setdefault(datasets.get(state.eval_file, ""), {})
        for name in ("before_all_output", "after_all_output"):
            output = getattr(state, name)
            if output is not None:
                outputs[name] = "\n".join(filter(None, (outputs.get(name), output)))
    return found


_TRACED = ("test_id", "dataset", "target", "status", "score", *(each.name for each in reversed(FIGURES)))


def write_trace(handle: BinaryIO, results: Iterable[TestResult]) -> None:
    """A line for each result: ``test_id``, ``dataset``, ``target``, ``status``, ``score``, ``duration_ms``, ``cost_usd``, ``token_usage``
    (null where not known), and ``spans``: the tool calls in order."""
    for result in results:
        handle.write(line(_trace(result)).encode() + b"\n")


def _trace(result: TestResult) -> dict[str, Any]:
    figures = {name: getattr(result, name) for name in _TRACED}
    uses = tool_uses_of(result.output or ())
    return {**figures, "spans": [{"type": "tool", "name": use.tool, "duration_ms": use.duration_ms} for use in uses]}
