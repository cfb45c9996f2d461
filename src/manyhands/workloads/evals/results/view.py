"""What there is to see of an evaluation besides what all runs have: tests × targets, distributions, scores of answers, comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, cast

from manyhands.core.errors import UserError
from manyhands.engine.contract import ItemRow, RecordedStep
from manyhands.engine.journal.reader import JournalReader
from manyhands.engine.journal.records import DamagedBlob
from manyhands.io.json_files import read_object
from manyhands.runs.shown.blocks import Block, Cell, Column, Fact, Facts, Fold, Link, Note, Section, Table, Value
from manyhands.runs.shown.cells import damaged_cell
from manyhands.runs.shown.pairs import RUNS, ids_of
from manyhands.runs.shown.run_view import OF_FORMER_SESSION, PageInfo, RunView
from manyhands.runs.summaries import ItemSummary
from manyhands.workloads.evals.items import item_key
from manyhands.workloads.evals.prepared import PreparedEval, regraded_folder
from manyhands.workloads.evals.results.result_lines import PENDING, TestResult, grouped_results, result_of
from manyhands.workloads.evals.results.shown.comparison import (
    TARGETS,
    Side,
    choice_section,
    chosen_target,
    run_sections,
    target_sections,
)
from manyhands.workloads.evals.results.shown.graded import category_of, result_blocks, trial_blocks
from manyhands.workloads.evals.results.shown.matrix import (
    GROUPS,
    MATRIX,
    all_group_sections,
    deciding,
    matrix_sections,
    replaced_outcomes,
    targets_of,
)
from manyhands.workloads.evals.results.shown.result_cells import name_cell, result_cell, status_cell
from manyhands.workloads.evals.results.shown.scores import (
    command_failures,
    distribution_sections,
    further_notes,
    is_summary,
    scores_section,
)
from manyhands.workloads.evals.results.summary import SUMMARY, EvalSummary
from manyhands.workloads.evals.results.writing import summary_of

MAX_COMPUTED = 2000
"""Items of a run up to which its figures are made of the items, where its files do not have them as they are now."""
MAX_TRIALS = 50
"""Trials of a test that the page of an item leads to."""
MAX_OTHERS = 20
"""Other targets of its test that it leads to."""
MAX_LABEL = 80
"""Characters of a label."""
_DISTRIBUTION = "distribution"
_PAGES = (
    PageInfo(MATRIX, "Matrix", "What came of each test at each target."),
    PageInfo(
        _DISTRIBUTION, "Distribution", "How scores are distributed, how sure the figures are, what trials come to."
    ),
    PageInfo(GROUPS, "Categories", "What the tests of each category and tag come to."),
)
_COMPARING = PageInfo(TARGETS, "Targets compared", "Whether one target does better than another, and how sure that is.")


class EvalView(RunView):
    """The pages, columns and parts of an evaluation."""

    columns: ClassVar[Sequence[Column]] = (
        Column("target", "target"),
        Column("dataset", "dataset", about="what the eval file is called"),
        Column("category", "category", about="of the test's metadata"),
        Column("tags", "tags"),
        Column("sample", "trial", is_number=True, about="which of several trials of the test it is"),
        Column("verdict", "verdict", about="passed, failed, or why there is no score"),
        Column("turns", "turns", is_number=True, about="turns of a conversation, or messages of the target"),
    )
    item_tab: ClassVar[str] = "Scores"

    @cached_property
    def prepared(self) -> PreparedEval:
        """What the run records as its spec."""
        return PreparedEval.from_json(self.spec, self.reader.folder.parent)

    def cells(self, rows: Sequence[ItemRow], summaries: Sequence[ItemSummary]) -> list[Mapping[str, Cell]]:
        return [self._cells(row, summary) for row, summary in zip(rows, summaries, strict=True)]

    def _cells(self, row: ItemRow, summary: ItemSummary) -> Mapping[str, Cell]:
        found = {name: name_cell(text) for name, text in self._names(row).items()}
        if (trials := row.payload.get("trials", 1)) > 1:
            sample = row.payload["trial"] + 1
            found["sample"] = Cell(f"{sample} of {trials}", sample)
        turns = _turns(row.record or {})
        if turns:
            found["turns"] = Cell(f"{turns:,}", turns)
        return {**found, "verdict": status_cell(summary["verdict"] or PENDING)}

    def labels(self, row: ItemRow) -> Mapping[str, str]:
        return {name: text[:MAX_LABEL] for name, text in self._names(row).items()}

    def _names(self, row: ItemRow) -> dict[str, str]:
        payload = row.payload
        test = payload.get("test", {})
        names = {
            "target": payload.get("target") or "",
            "dataset": payload["dataset"],
            "category": category_of(test.get("metadata")),
            "tags": ", ".join(map(str, test.get("tags") or ())),
        }
        return {name: text for name, text in names.items() if text}

    # --- Pages

    def pages(self) -> Sequence[PageInfo]:
        return (*_PAGES, _COMPARING) if len(targets_of(self.prepared)) > 1 else _PAGES

    def page(self, name: str, query: Mapping[str, str]) -> Iterator[Section]:
        if name == MATRIX:
            return matrix_sections(self.reader, self.prepared, query)
        if name == GROUPS:
            return all_group_sections(self.reader, self.prepared)
        if name == TARGETS:
            return target_sections(self.reader, self.prepared, query)
        if name == _DISTRIBUTION:
            return self._distribution()
        raise KeyError(name)

    def head(self) -> Iterable[Section]:
        summary, note = self._figures
        if summary is None:
            return [Section("Scores", note, name="scores")]
        scores = scores_section(summary)
        blocks = [*note, *scores.blocks, *command_failures(summary), *further_notes(summary)]
        return [Section(scores.title, blocks, name=scores.name)]

    def _distribution(self) -> Iterator[Section]:
        summary, note = self._figures
        if note:
            yield Section("Distribution of scores", note)
        if summary is not None:
            yield from distribution_sections(summary)

    @cached_property
    def _figures(self) -> tuple[EvalSummary | None, list[Block]]:
        """The figures of the run, and what is to be known of them: those of its summary, unless it has none that can be used or a session
        has not ended, and it is so small that they can be made of the items."""
        written = self._written()
        if written is not None and not self.has_open_session:
            return written, []
        if sum(self.reader.counts().values()) <= MAX_COMPUTED:
            return summary_of(self.reader, self.prepared, self.reader.folder), []
        if written is not None:
            return written, [OF_FORMER_SESSION]
        if (self.reader.folder / SUMMARY).exists():
            return None, [
                Note(f"{SUMMARY} is damaged, or another version wrote it: its figures can't be shown.", "warn")
            ]
        return None, [Note("The figures of a run of this size are there when its session ends.", "muted")]

    def _written(self) -> EvalSummary | None:
        folder = self.reader.folder
        try:
            found = read_object(folder / SUMMARY, within=folder)
        except UserError:
            return None
        return cast(EvalSummary, found) if is_summary(found) else None

    # --- Items

    def item_blocks(self, row: ItemRow, steps: Sequence[RecordedStep]) -> Iterable[Block]:
        has_test = "test" in row.payload
        if has_test:
            yield from self._whole_test(row)
        yield from result_blocks(self._result(row))
        if has_test:
            yield from self._other_targets(row)
            if graders := row.payload["test"].get("graders"):
                yield Fold("Graders as they are defined", [Value(graders)])

    def _result(self, row: ItemRow) -> TestResult:
        """The result of one item, with what it had come to before, if it is no first try."""
        replaced = list(replaced_outcomes(self.reader, row.number)) if row.performances > 1 else []
        found = next((result for _, result in grouped_results([row], self.prepared.thresholds, replaced)), None)
        result = result_of(row, self.prepared.thresholds) if found is None else found
        if self.prepared.options.regrade is not None:
            self._note_rerolls(row, result)
        return result

    def _note_rerolls(self, row: ItemRow, result: TestResult) -> None:
        """An answer that is graded again is no first try if it was none in the run that it is of."""
        try:
            reader = JournalReader(regraded_folder(self.prepared.options))
        except UserError:  # it is gone
            return
        try:
            graded = reader.item_by_key(row.key)
            if graded is None or graded.performances <= 1:
                return
            replaced = replaced_outcomes(reader, graded.number)
            for _, before in grouped_results([graded], self.prepared.thresholds, replaced):
                result.rerolls, result.first_status, result.first_score = (
                    before.rerolls,
                    before.first_status,
                    before.first_score,
                )
        finally:
            reader.close()

    def _whole_test(self, row: ItemRow) -> Iterator[Block]:
        """What the trials of an item's test come to together at its target, where there are several."""
        if row.payload.get("trials", 1) < 2:
            return
        try:
            rows = self._trials(row, row.payload["target"])
        except DamagedBlob as error:
            yield Note(f"What all trials of the test come to together can't be told: {error}", "bad")
            return
        links = {each.payload["trial"]: Link(item=each.number) for each in rows if each.number != row.number}
        for _, result in grouped_results(rows, self.prepared.thresholds):
            if row.payload["trials"] <= MAX_TRIALS:
                yield Facts([Fact("all trials together", result_cell(result))])
            yield from trial_blocks(result, links=links)

    def _trials(self, row: ItemRow, target: str) -> list[ItemRow]:
        """The trials of an item's test at a target. Raises DamagedBlob if one of them can't be read."""
        payload = row.payload
        numbers = range(min(payload.get("trials", 1), MAX_TRIALS))
        keys = (item_key(payload["dataset"], payload["test"]["id"], target, number) for number in numbers)
        return [found for key in keys if (found := self.reader.item_by_key(key)) is not None]

    def _other_targets(self, row: ItemRow) -> Iterator[Block]:
        """What came of the same test at other targets."""
        names = [each.name for each in self.prepared.files[row.payload["file"]].targets]
        rows = []
        for name in [name for name in names if name != row.payload["target"]][:MAX_OTHERS]:
            try:
                trials = self._trials(row, name)
            except DamagedBlob as error:
                rows.append([name_cell(name), damaged_cell(str(error)), Cell("")])
                continue
            for planned, result in grouped_results(trials, self.prepared.thresholds):
                number = deciding(planned, result).number
                beside = Cell("side by side", link=Link(item=row.number, versus=number))
                rows.append([name_cell(name), result_cell(result, Link(item=number)), beside])
        if rows:
            columns = [Column("target", "target"), Column("result", "result"), Column("beside", "")]
            yield Table(columns, rows, "The same test at other targets")

    # --- Runs

    def compared(self, others: Sequence[JournalReader], query: Mapping[str, str]) -> Iterator[Section]:
        """This run as the base, beside others as candidates, or two of its targets if there are none. ``query``: ``baseline``, a target of
        this run, and ``target``, one of the others."""
        if not others:
            return target_sections(self.reader, self.prepared, query)
        return self._compared(others, query)

    def _compared(self, others: Sequence[JournalReader], query: Mapping[str, str]) -> Iterator[Section]:
        base = Side(self.reader, self.prepared, chosen_target(targets_of(self.prepared), query, "baseline"))
        ids = ids_of(self.reader, others, query)
        for reader, run in zip(others, ids[1:], strict=True):
            prepared = PreparedEval.from_json(reader.meta("spec"), reader.folder.parent)
            target = chosen_target(targets_of(prepared), query, "target")
            candidate = Side(reader, prepared, target, run)
            yield from choice_section(base, candidate, {**query, RUNS: ",".join(ids)})
            yield from run_sections(base, candidate)


def _turns(record: Mapping[str, Any]) -> int:
    """Turns of a conversation, else the target's messages."""
    if record.get("turns"):
        return len(record["turns"])
    return sum(message.get("role") == "assistant" for message in record.get("output") or ())
