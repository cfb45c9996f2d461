"""The results of a run of evaluations, read: from its journal, with the items that each is made of, or from the files that were written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, loads
from manyhands.engine.contract import ItemRow, RunReader
from manyhands.workloads.evals.prepared import PreparedEval, regraded_folder
from manyhands.workloads.evals.results.result_lines import TestResult, grouped_results

RESULTS = "results.jsonl"


def grouped_results_of(reader: RunReader, prepared: PreparedEval) -> Iterator[tuple[list[ItemRow], TestResult]]:
    """The same with the items that each is made of, and without what is in the run folder (kept workspaces, what hooks printed)."""
    found = grouped_results(reader.items(), prepared.thresholds, reader.replaced_outcomes())
    if prepared.options.regrade is not None:
        found = _with_rerolls(found, regraded_folder(prepared.options))
    return found


def _with_rerolls(
    found: Iterable[tuple[list[ItemRow], TestResult]], regraded: Path
) -> Iterator[tuple[list[ItemRow], TestResult]]:
    """Results of answers that are graded again, which say of those that were no first tries that they were none."""
    rerolled = dict[tuple[str, str | None, str | None], TestResult]()
    if (regraded / RESULTS).is_file():
        before = (each for each in results_in(regraded / RESULTS) if each.rerolls is not None)
        rerolled = {(each.dataset, each.test_id, each.target): each for each in before}
    for rows, result in found:
        if (of := rerolled.get((result.dataset, result.test_id, result.target))) is not None:
            result.rerolls, result.first_status, result.first_score = of.rerolls, of.first_status, of.first_score
        yield rows, result


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
    """The objects with the numbers of their lines."""
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
