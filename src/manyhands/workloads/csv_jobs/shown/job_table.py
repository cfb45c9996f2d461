"""A job's table as people know it: the cells of a row, then what was reported of it, with the rules that a refused report broke."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.text import cut
from manyhands.engine.contract import ItemRow
from manyhands.runs.shown.blocks import Cell, Column, Tone
from manyhands.runs.shown.cells import value_cell
from manyhands.workloads.csv_jobs.rows.export import Leaf, leaves_of
from manyhands.workloads.csv_jobs.rows.planning import JobRow
from manyhands.workloads.csv_jobs.rows.stage_states import (
    COMPLETED,
    FAILED,
    PENDING,
    RESULT,
    SKIPPED,
    entries_of,
)
from manyhands.workloads.csv_jobs.stages.row_stages import value_path

MAX_INPUTS = 12
"""Columns of the table that are shown beside each other."""
MAX_REPORTED = 12
"""The same of reported values."""
_MAX_LABEL = 40
REPORTED = "reported"
"""What the column of a reported value says that it is."""
_LAST_REPORT, _VIOLATIONS = "last_report", "violations"
_PLACE = re.compile(r"\$(?:\.([^.\[:]+)|\[(?:'((?:[^'\\]|\\.)*)'|(\d+))\])?")
"""The beginning of a violation: ``$``, then the property by its name, or in brackets."""
_MISSING = re.compile(r"\$: '((?:[^'\\]|\\.)*)' is a required property")


@dataclass(frozen=True, slots=True)
class ReportedColumn:
    """A reported value that is shown as a column."""

    column: Column
    leaf: Leaf
    """Where it is: in the result, or in the result of its stage."""
    stage: str | None = None
    """Of a job with stages: which of them reports it."""


class JobTable:
    """The columns of one job, and the cells of its rows under them. ``spec``: as it is recorded."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._options: Mapping[str, Any] = spec["options"]
        self.headers: Sequence[str] = spec["table"]["headers"]

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """What a result must look like; None for a job with stages, and where any object will do."""
        schema: Mapping[str, Any] | None = self._options.get("output_schema")
        return schema

    @property
    def instruction(self) -> str:
        """The template; empty for a job with stages."""
        return self._options.get("instruction") or ""

    @property
    def stages(self) -> Sequence[Mapping[str, Any]]:
        """The definitions of its stages, in order."""
        stages: Sequence[Mapping[str, Any]] = self._options.get("stages") or ()
        return stages

    @property
    def left_out(self) -> int:
        """Columns of the table that are not shown."""
        return max(0, len(self.headers) - MAX_INPUTS)

    @cached_property
    def columns(self) -> Sequence[Column]:
        """The first columns of the table, then those of reported values."""
        inputs = [
            Column(f"input.{name}", cut(name, _MAX_LABEL), about="a column of the table")
            for name in self.headers[:MAX_INPUTS]
        ]
        return (*inputs, *(each.column for each in self.reported))

    @cached_property
    def reported(self) -> Sequence[ReportedColumn]:
        """The values that are reported: of each stage its value, or the properties that the output schema names, or else the whole."""
        if self.stages:
            return [_of_stage(stage) for stage in self.stages[:MAX_REPORTED]]
        names = list(dict.fromkeys(leaf.path[0] for leaf in _leaves(self.schema)))
        if not names or len(names) > MAX_REPORTED:
            names = names[: MAX_REPORTED - 1]
            whole = [ReportedColumn(Column("reported", "result", about=f"{REPORTED}, as a whole"), Leaf((), None))]
        else:
            whole = []
        found = [
            ReportedColumn(Column(f"reported.{name}", cut(name, _MAX_LABEL), about=REPORTED), Leaf((name,), None))
            for name in names
        ]
        return [*found, *whole]

    def cells(self, row: ItemRow) -> Mapping[str, Cell]:
        """The cells of a row, by the names of ``columns``."""
        values = JobRow.of(row.item).cells
        cells = {
            f"input.{name}": value_cell(value) for name, value in zip(self.headers[:MAX_INPUTS], values, strict=False)
        }
        return {**cells, **{each.column.name: self._reported(row, each) for each in self.reported}}

    def inputs(self, row: ItemRow) -> Iterator[tuple[str, Json]]:
        """All cells of a row, with the names of their columns."""
        return zip(self.headers, JobRow.of(row.item).cells, strict=False)

    def values(self, row: ItemRow) -> Iterator[tuple[str, Json]]:
        """What was reported of a row and accepted, under the labels of its columns; None for what is not there."""
        for each in self.reported:
            yield each.column.label, self._value(row, each)

    def failed_stage(self, row: ItemRow) -> str | None:
        """The stage at which a row failed."""
        entries = entries_of(row.record) if self.stages else {}
        return next((name for name, entry in entries.items() if entry.get("state") == FAILED), None)

    def _value(self, row: ItemRow, reported: ReportedColumn) -> Json:
        record = row.record or {}
        if reported.stage is None:
            return reported.leaf.of(record.get(RESULT))
        return reported.leaf.of(entries_of(record).get(reported.stage, {}).get(RESULT))

    def _reported(self, row: ItemRow, reported: ReportedColumn) -> Cell:
        record = row.record or {}
        if reported.stage is not None:
            return self._of_stage(record, reported, reported.stage)
        if RESULT in record:
            return _accepted(reported.leaf.of(record[RESULT]))
        return _refused(record, reported.leaf)

    def _of_stage(self, record: Mapping[str, Any], reported: ReportedColumn, stage: str) -> Cell:
        entry = entries_of(record).get(stage, {})
        state = entry.get("state", PENDING)
        if state == COMPLETED:
            return _accepted(reported.leaf.of(entry.get(RESULT)))
        if state == SKIPPED:
            return Cell("skipped", tone="muted", about="The condition of the stage does not hold for this row.")
        if state != FAILED:
            return Cell("", tone="muted")
        problems = "; ".join(record.get(_VIOLATIONS) or ())
        shown = value_cell(reported.leaf.of(record.get(_LAST_REPORT)), tone="bad", about=problems)
        return shown if shown.text else Cell("failed", tone="bad", about=problems or str(entry.get("error", "")))


def violations_of(record: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """What did not fit of the last report of a row: pairs of a place in it (``$.score``) and what is wrong there."""
    found = []
    for each in (record or {}).get(_VIOLATIONS) or ():
        place, _, problem = str(each).partition(": ")
        found.append((place, problem) if problem else ("$", place))
    return found


def last_report_of(record: Mapping[str, Any] | None) -> Json:
    """The last report of a row that was refused; None if none was."""
    return (record or {}).get(_LAST_REPORT)


def _of_stage(stage: Mapping[str, Any]) -> ReportedColumn:
    name = str(stage["name"])
    column = Column(f"stage.{name}", cut(name, _MAX_LABEL), about=f"{REPORTED} in the stage {name}")
    return ReportedColumn(column, Leaf(value_path(name, stage["output_schema"]), None), name)


def _leaves(schema: Mapping[str, Any] | None) -> Sequence[Leaf]:
    try:
        return leaves_of(schema or {})
    except UserError:  # more properties than anybody could look at
        return ()


def _accepted(value: Json) -> Cell:
    return value_cell(value, tone="good" if value is not None else "muted")


def _refused(record: Mapping[str, Any], leaf: Leaf) -> Cell:
    """A value of a report that was refused: with the rules that it broke, if it did."""
    if _LAST_REPORT not in record:
        return Cell("", tone="muted")
    broken = _by_property(record.get(_VIOLATIONS) or ())
    rules = [rule for each in broken.values() for rule in each] if not leaf.path else broken[leaf.path[0]]
    tone: Tone = "bad" if rules else "muted"
    about = "; ".join(rules) or "The report that this is of was refused."
    shown = value_cell(leaf.of(record[_LAST_REPORT]), tone=tone, about=about)
    return shown if shown.text or not rules else Cell("missing", tone="bad", about=about)


def _by_property(violations: Sequence[str]) -> defaultdict[str, list[str]]:
    """Violations by the property of the result that they are about; by an empty name where they are about none."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for each in violations:
        match = _MISSING.match(each) or _PLACE.match(each)
        name = "" if match is None else next((part for part in match.groups() if part is not None), "")
        found[name.replace("\\'", "'")].append(each)
    return found
