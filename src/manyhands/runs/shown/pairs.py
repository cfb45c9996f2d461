"""The items of two runs beside each other: those of one key, a page of them at a time, with their figures and how these differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from manyhands.engine.contract import ItemRow
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.shown.blocks import Block, Cell, Column, Facts, Link, Note, Section, Table
from manyhands.runs.shown.cells import STATE_TONES, VERDICT_TONES, pager, position_in, value_cell

COMPARE: Final = "compare"
"""The page that compares runs, in links. Its query names them: by ``RUNS`` their ``run_id`` with commas between them."""
RUNS: Final = "runs"
MAX_OTHERS = 3
"""Runs that a run is compared with at once."""
MAX_SHOWN = 100
"""Rows of a table of differences."""
Pair = tuple[ItemRow, ItemRow]


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of items that is compared."""

    name: str
    label: str
    form: str = ",.0f"
    """As of ``format``."""
    mean_form: str = ",.2f"
    """The same of its mean."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What is compared of an item."""

    label: str
    """What people call it."""
    verdict: str | None = None
    figures: Mapping[str, float | None] = field(default_factory=dict)
    """By the names of measures."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Items of one run that another one has as well."""

    found: Sequence[Pair]
    first: int
    """The position of the first item that was looked at, from 0."""
    looked_at: int
    """Items of the first run that were looked at."""
    following: int | None
    """The position behind which the next ones begin; None after the last."""

    @property
    def shown(self) -> str:
        """Which items these are, in words."""
        if not self.looked_at:
            return "no rows"
        return f"rows {self.first + 1:,} to {self.first + self.looked_at:,}, of which both have {len(self.found):,}"


def pairs_of(reader: JournalReader, other: JournalReader, behind: int, limit: int) -> Pairs:
    """The items of the next ``limit`` ones behind a position that another run has under the same key."""
    rows = list(islice(reader.items(behind), limit + 1))
    following = rows[limit - 1].position if len(rows) > limit else None
    rows = rows[:limit]
    there = ((row, other.item_by_key(row.key)) for row in rows)
    return Pairs(
        [(row, found) for row, found in there if found is not None],
        rows[0].position if rows else 0,
        len(rows),
        following,
    )


def compare_pager(
    reader: JournalReader, others: Sequence[JournalReader], query: Mapping[str, str], pairs: Pairs
) -> Facts:
    """Which items are compared, and where the first and the next ones are."""
    runs = ",".join(str(each.meta("run_id")) for each in (reader, *others))
    return pager(COMPARE, {**query, RUNS: runs}, pairs.shown, pairs.following)


def item_link(here: ItemRow, there: ItemRow, other: JournalReader) -> Link:
    """To the difference between an item and that of another run."""
    return Link(item=here.number, versus=there.number, versus_run=str(other.meta("run_id")))


def side_by_side(
    reader: JournalReader,
    others: Sequence[JournalReader],
    query: Mapping[str, str],
    measures: Sequence[Measure],
    seen: Callable[[ItemRow], Seen],
    *,
    limit: int = 1000,
) -> Iterator[Section]:
    """A section for each other run: means over the items that both have, and those that differ most. ``limit``: how many items are looked
    at for a page. Raises KeyError, at once, if no item is in both."""
    behind = position_in(query)
    found = [(other, pairs_of(reader, other, behind, limit)) for other in others[:MAX_OTHERS]]
    if behind < 0 and not any(pairs.found for _, pairs in found):
        raise KeyError(COMPARE)
    return (
        _compared(reader, other, pairs, compare_pager(reader, others, query, pairs), measures, seen)
        for other, pairs in found
    )


def _compared(
    reader: JournalReader,
    other: JournalReader,
    pairs: Pairs,
    where: Facts,
    measures: Sequence[Measure],
    seen: Callable[[ItemRow], Seen],
) -> Section:
    blocks: list[Block] = [where]
    compared = [_Compared(here, there, seen(here), seen(there)) for here, there in pairs.found]
    title = f"{reader.folder.name} and {other.folder.name}"
    if not compared:
        return Section(title, [*blocks, Note("None of these rows is in both runs.", "muted")])
    blocks.append(_means(reader, other, compared, measures))
    differing = sorted((each for each in compared if each.differs(measures)), key=lambda each: each.order(measures))
    blocks.append(_differing(other, differing[:MAX_SHOWN], len(differing), measures))
    return Section(title, blocks, about="Rows of the same content in both runs.")


@dataclass(frozen=True, slots=True)
class _Compared:
    here: ItemRow
    there: ItemRow
    left: Seen
    right: Seen

    def difference(self, measure: Measure) -> float | None:
        one, two = self.left.figures.get(measure.name), self.right.figures.get(measure.name)
        return None if one is None or two is None else two - one

    def differs(self, measures: Sequence[Measure]) -> bool:
        return (
            self.here.state != self.there.state
            or self.left.verdict != self.right.verdict
            or any(self.difference(measure) for measure in measures)
        )

    def order(self, measures: Sequence[Measure]) -> tuple[float, ...]:
        """The larger the difference the smaller: another state, then the measures in their order, then as in the input."""
        sizes = (-abs(self.difference(measure) or 0.0) for measure in measures)
        return (self.here.state == self.there.state, *sizes, self.here.position)


def _means(
    reader: JournalReader, other: JournalReader, compared: Sequence[_Compared], measures: Sequence[Measure]
) -> Table:
    columns = (
        Column("measure", "Mean of"),
        Column("pairs", "Rows", is_number=True, about="Rows of which both runs have the figure."),
        Column("here", reader.folder.name, is_number=True),
        Column("there", other.folder.name, is_number=True),
        Column("difference", "Difference", is_number=True),
    )
    rows = [row for measure in measures if (row := _mean_row(compared, measure))]
    return Table(columns, rows, title="Means over these rows")


def _mean_row(compared: Sequence[_Compared], measure: Measure) -> list[Cell]:
    """Empty where no row has the figure in both runs."""
    both = [
        (one, two)
        for each in compared
        if (one := each.left.figures.get(measure.name)) is not None
        and (two := each.right.figures.get(measure.name)) is not None
    ]
    if not both:
        return []
    one, two = (sum(values) / len(both) for values in zip(*both, strict=True))
    form = measure.mean_form
    return [
        Cell(measure.label),
        Cell(f"{len(both):,}", value=len(both)),
        Cell(format(one, form), value=one),
        Cell(format(two, form), value=two),
        Cell(format(two - one, f"+{form}"), value=two - one),
    ]


def _differing(
    other: JournalReader, compared: Sequence[_Compared], count: int, measures: Sequence[Measure]
) -> Table | Note:
    if not compared:
        return Note("These rows do not differ.", "good")
    used = [measure for measure in measures if any(each.difference(measure) is not None for each in compared)]
    verdicts = any(each.left.verdict or each.right.verdict for each in compared)
    columns = [
        Column("row", "Row"),
        Column("state", "State"),
        *([Column("verdict", "Verdict")] if verdicts else ()),
        *(Column(measure.name, measure.label, is_number=True, about="Sorted by the difference.") for measure in used),
    ]
    rows = [
        [
            value_cell(each.left.label, link=item_link(each.here, each.there, other)),
            _words(each.here.state.value, each.there.state.value),
            *([_words(each.left.verdict, each.right.verdict)] if verdicts else ()),
            *(_change(each, measure) for measure in used),
        ]
        for each in compared
    ]
    most = "" if count == len(compared) else f" Of {count:,}, the {len(compared):,} that differ most."
    about = f"Before the arrow this run, behind it {other.folder.name}.{most}"
    return Table(columns, rows, title="Rows that differ", about=about)


def _words(one: str | None, two: str | None) -> Cell:
    left, right = one or "-", two or "-"
    if left == right:
        return Cell(left, tone="muted")
    tone = VERDICT_TONES.get(right) or STATE_TONES.get(right) or ""
    return Cell(f"{left} → {right}", tone=tone)


def _change(compared: _Compared, measure: Measure) -> Cell:
    one, two = compared.left.figures.get(measure.name), compared.right.figures.get(measure.name)
    left, right = ("-" if each is None else format(each, measure.form) for each in (one, two))
    if one == two:
        return Cell(left, value=0.0, tone="muted")
    return Cell(f"{left} → {right}", value=compared.difference(measure))
