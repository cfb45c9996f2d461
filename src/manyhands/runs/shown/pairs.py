"""The items of two runs beside each other: those of one key, a page of them at a time, with their figures and how these differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from manyhands.core.text import counted
from manyhands.engine.contract import ItemRow
from manyhands.engine.journal.reader import ItemOutline, JournalReader
from manyhands.engine.journal.records import DamagedBlob
from manyhands.runs.shown.blocks import Block, Cell, Column, Facts, Link, Note, Section, Table
from manyhands.runs.shown.cells import STATE_TONES, VERDICT_TONES, pager, position_in, value_cell

COMPARE: Final = "compare"
"""The page that compares runs, in links. Its query names them: by ``RUNS`` what they are called in addresses, with commas between them."""
RUNS: Final = "runs"
MAX_OTHERS = 3
"""Runs that a run is compared with at once."""
MAX_LOOKED_AT = 20_000
"""Items that are looked at for a page as long as none of them is in both runs."""
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
    damaged: int = 0
    """Items that both have, of which one can't be read. They are not among ``found``."""

    @property
    def is_nothing(self) -> bool:
        """Whether the runs have nothing in common, so far as was looked."""
        return not (self.found or self.damaged)

    @property
    def shown(self) -> str:
        """Which items these are, in words."""
        if not self.looked_at:
            return "no items"
        both = len(self.found) + self.damaged
        return f"items {self.first + 1:,} to {self.first + self.looked_at:,}, of which both have {both:,}"

    def notes(self) -> Iterator[Note]:
        """What is left out of the comparison, or missing from it."""
        if self.is_nothing:
            yield Note("None of these items is in both runs.", "muted")
        if self.damaged:
            yield Note(f"{counted(self.damaged, 'item')} left out: damaged in one of the runs.", "bad")


def pairs_of(reader: JournalReader, others: Sequence[JournalReader], behind: int, limit: int) -> list[Pairs]:
    """For each other run the items that it has under the same key, of the same part of the items behind a position: of the next ``limit``
    ones, or, if none of these is in any of the others, of the first so many that has one (see ``MAX_LOOKED_AT``)."""
    outlines = chain.from_iterable(reader.outlines(behind))
    gathered = [_Gathered(reader, other) for other in others]
    first, last, looked_at = 0, behind, 0
    for outline in outlines:
        is_full = looked_at and looked_at % limit == 0
        if is_full and (looked_at >= MAX_LOOKED_AT or any(each.found or each.damaged for each in gathered)):
            break
        for each in gathered:
            each.look_for(outline)
        first, last, looked_at = first if looked_at else outline.position, outline.position, looked_at + 1
    else:
        return [Pairs(each.found, first, looked_at, None, each.damaged) for each in gathered]
    return [Pairs(each.found, first, looked_at, last, each.damaged) for each in gathered]


class _Gathered:
    """The items that one other run has as well."""

    def __init__(self, reader: JournalReader, other: JournalReader) -> None:
        self._reader, self._other = reader, other
        self.found: list[Pair] = []
        self.damaged = 0

    def look_for(self, outline: ItemOutline) -> None:
        """Add an item, if the other run has it."""
        try:
            there = self._other.item_by_key(outline.key)
            here = None if there is None else self._reader.item_by_key(outline.key)
        except DamagedBlob:
            self.damaged += 1
            return
        if here is not None and there is not None:
            self.found.append((here, there))


def left_out(others: Sequence[JournalReader], why: str) -> Iterator[Section]:
    """Runs that are not compared; nothing if there are none. ``why``: a sentence that their names follow."""
    if others:
        names = ", ".join(other.folder.name for other in others)
        yield Section("Left out", [Note(f"{why}: {names}", "warn")])


def beyond_the_most(others: Sequence[JournalReader]) -> Iterator[Section]:
    """The runs behind the first ``MAX_OTHERS``, which are compared; nothing if there are none."""
    return left_out(
        others[MAX_OTHERS:], f"A run is compared in detail with {MAX_OTHERS} others at once; not compared are"
    )


def compare_pager(
    reader: JournalReader, others: Sequence[JournalReader], query: Mapping[str, str], pairs: Pairs
) -> Facts:
    """Which items are compared, and where the first and the next ones are."""
    runs = ",".join(ids_of(reader, others, query))
    return pager(COMPARE, {**query, RUNS: runs}, pairs.shown, pairs.following)


def ids_of(reader: JournalReader, others: Sequence[JournalReader], query: Mapping[str, str]) -> list[str]:
    """What a run and those beside it are called in addresses: as ``RUNS`` in the query of the page names them, since copies of a run have
    its ``run_id``; without it by that."""
    readers, named = (reader, *others), list(filter(None, query.get(RUNS, "").split(",")))
    return named if len(named) == len(readers) else [str(each.meta("run_id")) for each in readers]


def item_link(here: ItemRow, there: ItemRow, other: str) -> Link:
    """To the difference between an item and that of another run. ``other``: what that is called in addresses."""
    return Link(item=here.number, versus=there.number, versus_run=other)


def side_by_side(
    reader: JournalReader,
    others: Sequence[JournalReader],
    query: Mapping[str, str],
    measures: Sequence[Measure],
    seen: Callable[[ItemRow], Seen],
    *,
    limit: int = 1000,
) -> Iterator[Section]:
    """A section for each other run: means over the items that both have, and those that differ most; and one for runs that are left out.
    ``limit``: how many items are looked at for a page. Raises KeyError, at once, if no item is in both."""
    behind = position_in(query)
    compared = others[:MAX_OTHERS]
    found = pairs_of(reader, compared, behind, limit)
    if behind < 0 and all(pairs.is_nothing and pairs.following is None for pairs in found):
        raise KeyError(COMPARE)
    ids = ids_of(reader, others, query)[1:]
    sections = (
        _compared(reader, other, run, pairs, compare_pager(reader, others, query, pairs), measures, seen)
        for other, run, pairs in zip(compared, ids, found, strict=False)
    )
    return chain(sections, beyond_the_most(others))


def _compared(
    reader: JournalReader,
    other: JournalReader,
    run: str,
    pairs: Pairs,
    where: Facts,
    measures: Sequence[Measure],
    seen: Callable[[ItemRow], Seen],
) -> Section:
    blocks: list[Block] = [where, *pairs.notes()]
    compared = [_Compared(here, there, seen(here), seen(there)) for here, there in pairs.found]
    title = f"{reader.folder.name} and {other.folder.name}"
    if not compared:
        return Section(title, blocks)
    blocks.append(_means(reader, other, compared, measures))
    differing = sorted((each for each in compared if each.differs(measures)), key=lambda each: each.order(measures))
    blocks.append(_differing(other, run, differing[:MAX_SHOWN], len(differing), measures))
    return Section(title, blocks, about="Items of the same content in both runs.")


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
        Column("pairs", "Items", is_number=True, about="Items of which both runs have the figure."),
        Column("here", reader.folder.name, is_number=True),
        Column("there", other.folder.name, is_number=True),
        Column("difference", "Difference", is_number=True),
    )
    rows = [row for measure in measures if (row := _mean_row(compared, measure))]
    return Table(columns, rows, title="Means over these items")


def _mean_row(compared: Sequence[_Compared], measure: Measure) -> list[Cell]:
    """Empty where no item has the figure in both runs."""
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
    other: JournalReader, run: str, compared: Sequence[_Compared], count: int, measures: Sequence[Measure]
) -> Table | Note:
    if not compared:
        return Note("These items do not differ.", "good")
    used = [measure for measure in measures if any(each.difference(measure) is not None for each in compared)]
    verdicts = any(each.left.verdict or each.right.verdict for each in compared)
    columns = [
        Column("row", "Item"),
        Column("state", "State"),
        *([Column("verdict", "Verdict")] if verdicts else ()),
        *(Column(measure.name, measure.label, is_number=True, about="Sorted by the difference.") for measure in used),
    ]
    rows = [
        [
            value_cell(each.left.label, link=item_link(each.here, each.there, run)),
            _words(each.here.state.value, each.there.state.value),
            *([_words(each.left.verdict, each.right.verdict)] if verdicts else ()),
            *(_change(each, measure) for measure in used),
        ]
        for each in compared
    ]
    most = "" if count == len(compared) else f" Of {count:,}, the {len(compared):,} that differ most."
    about = f"Before the arrow this run, behind it {other.folder.name}.{most}"
    return Table(columns, rows, title="Items that differ", about=about)


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
