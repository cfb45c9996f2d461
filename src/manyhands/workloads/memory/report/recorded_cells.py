"""Conversations in tables: of one that has ended what is recorded, of one that goes on what its files have so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from manyhands.runs.shown.blocks import Cell, Column, Fact, Link, Table, Tone
from manyhands.runs.shown.cells import ITEM, OPEN, SHOW, SHOWN
from manyhands.workloads.memory.report.formatting import NOTHING, brief, duration, money, whole
from manyhands.workloads.memory.report.recorded import Recorded
from manyhands.workloads.memory.report.schedule import score_cell

COLUMNS: Sequence[Column] = (
    Column("tests", "tests", is_number=True, about="that have ended; in brackets those without a score"),
    Column("conversation", "tokens", is_number=True, about="of the conversation: messages and replies, with filler"),
    Column("replying", "replying", is_number=True, about="time in which the agent replied"),
    Column("agent_cost", "agent", is_number=True, about="US dollars for the agent"),
    Column("judge_cost", "judge", is_number=True, about="US dollars for the judge and other models of the benchmark"),
)
"""What a table of conversations has of each, besides the scores of datasets."""
TONES: Mapping[str, Tone] = {"completed": "good", "failed": "bad", "running": "active", "cancelled": "warn"}


def conversation_fact(each: Recorded, page: str, *, is_chosen: bool) -> Fact:
    """What leads to a page about another conversation."""
    link = None if is_chosen else Link(page=page, query={"item": str(each.row.number)})
    words = SHOWN if is_chosen else SHOW
    return Fact(
        brief(each.row.key), Cell(f"{words}, {each.row.state.value}", tone=TONES.get(each.row.state, ""), link=link)
    )


_AGENTS = (
    Column("agent", "agent"),
    Column("state", "state"),
    Column("score", "score", is_number=True, about="sum of the datasets' mean scores"),
    *COLUMNS,
)


def agents_table(found: Sequence[Recorded], pages: Sequence[str]) -> Table:
    """A row for each conversation. ``pages``: those about it, by name."""
    rows = []
    for each in found:
        cells = conversation_cells(each)
        item = str(each.row.number)
        rows.append(
            [
                Cell(brief(each.row.key), link=Link(item=each.row.number)),
                Cell(each.row.state.value, tone=TONES.get(each.row.state, "")),
                _sum_cell(each.record),
                *(cells.get(column.name, Cell(NOTHING)) for column in COLUMNS),
                *(Cell(OPEN, link=Link(page=page, query={ITEM: item})) for page in pages),
            ]
        )
    return Table([*_AGENTS, *(Column(f"page {page}", page) for page in pages)], rows)


def _sum_cell(record: Mapping[str, Any]) -> Cell:
    score, most = _figure(record, "score"), _figure(record, "max_score")
    if score is None or not most:
        return Cell(NOTHING)
    return Cell(f"{score:.2f} of {most:g}", score, share=min(1.0, max(0.0, score / most)))


def _figure(record: Mapping[str, Any], name: str) -> float | None:
    value = record.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def conversation_cells(found: Recorded) -> dict[str, Cell]:
    """The cells of a conversation: of its record, or else of what its files have so far."""
    record = found.record
    if not record:
        return _so_far(found)
    tests = record.get("tests")
    number = len(tests) if isinstance(tests, list) else None
    unscored = _figure(record, "unscored")
    said = NOTHING if number is None else f"{number:,} ({unscored:.0f})" if unscored else f"{number:,}"
    cells = {
        "tests": Cell(said, number),
        **_spent(
            _figure(record, "total_tokens"),
            _figure(record, "duration"),
            _figure(record, "agent_cost"),
            _figure(record, "judge_cost"),
        ),
    }
    datasets = record.get("datasets")
    for name, value in datasets.items() if isinstance(datasets, Mapping) else ():
        if isinstance(value, (int, float)):
            cells[f"dataset {name}"] = score_cell(float(value))
    return cells


def _so_far(found: Recorded) -> dict[str, Cell]:
    number = found.ended_tests
    cells = {"tests": Cell(f"{number:,} so far", number, "active" if number else "muted")}
    if (stats := found.stats) is not None:
        cells |= _spent(stats.total_tokens, stats.duration, stats.agent_costs_usd, stats.managing_costs_usd)
    return cells


def _spent(tokens: float | None, seconds: float | None, agent: float | None, judge: float | None) -> dict[str, Cell]:
    return {
        "conversation": Cell(whole(tokens), tokens),
        "replying": Cell(NOTHING if seconds is None else duration(seconds), seconds),
        "agent_cost": Cell(money(agent), agent),
        "judge_cost": Cell(money(judge), judge),
    }
