"""Tests × targets: what came of each test at each target, a page at a time, and what the tests of a category or tag come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from manyhands.core.outcomes import ItemState
from manyhands.core.text import counted
from manyhands.engine.contract import ItemRow, ReplacedOutcome
from manyhands.engine.journal.browsing import DamagedRow
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.shown.blocks import Block, Cell, Column, Fact, Facts, Link, Note, Section, Table
from manyhands.runs.shown.cells import AFTER, DAMAGED, SHOW, SHOWN, damaged_cell, position_in
from manyhands.workloads.evals.items import FAILED, PASSED
from manyhands.workloads.evals.prepared import PreparedEval
from manyhands.workloads.evals.results.result_lines import WITHOUT_SCORE, TestResult, grouped_results
from manyhands.workloads.evals.results.shown.graded import category_of
from manyhands.workloads.evals.results.shown.result_cells import name_cell, name_text, result_cell
from manyhands.workloads.evals.results.shown.scores import MAX_TARGETS

MATRIX, GROUPS = "matrix", "groups"
"""Names of pages."""
MAX_TESTS = 200
"""Tests of a page."""
MAX_READ = 6000
"""Items that are looked at for a page, about: where a filter fits few of them, the page has fewer tests."""
MAX_GROUPED = 20_000
"""Items that are looked at for the averages of categories and tags."""
MAX_GROUPS = 300
"""Categories and tags that have a row."""
_KINDS = ("category", "tag", "dataset")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a test at a target, without what was said."""

    number: int
    """Of the item that stands for it: of several trials, the one that decides."""
    status: str
    score: float | None
    cell: Cell
    is_flaky: bool
    """Whether some of its trials passed, and some did not."""

    @classmethod
    def of(cls, row: ItemRow, result: TestResult) -> Outcome:
        passed = sum(trial["status"] == PASSED for trial in result.trials or ())
        cell = result_cell(result, Link(item=row.number))
        return cls(row.number, result.status, result.score, cell, 0 < passed < len(result.trials or ()))

    @classmethod
    def of_damaged(cls, row: ItemRow) -> Outcome:
        """Of an item that can't be read."""
        return cls(row.number, DAMAGED, None, damaged_cell(row.message, Link(item=row.number)), False)


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """A test at each target that it was run with."""

    test_id: str | None
    dataset: str
    """Empty for an item whose payload can't be read."""
    category: str
    tags: Sequence[str]
    outcomes: Mapping[str | None, Outcome]
    """By target; None for a test that no target was run with, and for an item whose payload can't be read."""
    position: int
    """Of its last item in the input; of an item that stands by itself, of the last one of the test that it follows."""
    items: int
    """How many items it has."""

    @property
    def is_unknown(self) -> bool:
        """Whether it is an item whose payload can't be read."""
        return not self.dataset

    @property
    def statuses(self) -> list[str]:
        return [each.status for each in self.outcomes.values()]

    def groups(self) -> Iterator[tuple[str, str]]:
        """What it belongs to, as (kind, name)."""
        if self.category:
            yield "category", self.category
        yield from (("tag", tag) for tag in self.tags)
        if self.dataset:
            yield "dataset", self.dataset


FILTERS: Mapping[str, tuple[str, Callable[[MatrixRow], bool]]] = {
    "all": ("all tests", lambda _: True),
    "failures": ("tests below the threshold at a target", lambda test: FAILED in test.statuses),
    "errors": (
        "tests without a score because of an error",
        lambda test: any(s in (*WITHOUT_SCORE, DAMAGED) for s in test.statuses),
    ),
    "different": ("tests whose targets have not the same status", lambda test: len(set(test.statuses)) > 1),
    "flaky": (
        "tests some of whose trials passed, and some did not",
        lambda test: any(each.is_flaky for each in test.outcomes.values()),
    ),
}
"""What tests a page may show, with what they are."""


def matrix_rows(reader: JournalReader, prepared: PreparedEval, behind: int = -1) -> Iterator[MatrixRow]:
    """The tests of a run in order of the input, behind a position, streamed. What became of a test at a target can't be told where one of
    its items there is damaged; an item of which not even the test can be read stands by itself, behind the test that it follows."""
    before: list[ItemRow] = []
    for rows in _by_test(row for row in reader.shown_items(behind) if not row.left_input):
        known = [row for row in rows if row.payload is not None]
        unknown = [row for row in rows if row.payload is None]
        position = max(row.position for row in rows)
        if known:
            yield _matrix_row(reader, prepared, known, [*before, *unknown], position)
        for row in unknown:
            yield MatrixRow(row.key, "", "", (), {None: Outcome.of_damaged(row)}, position, 1)
        before = unknown


def _matrix_row(
    reader: JournalReader, prepared: PreparedEval, rows: Sequence[ItemRow], unknown: Sequence[ItemRow], position: int
) -> MatrixRow:
    """The row of a test. ``rows``: all its items whose payload can be read; ``unknown``: items around them whose payload can't be read,
    which may be the test's own."""
    payload = rows[0].payload
    test = payload.get("test", {})
    damaged = {row.payload.get("target"): Outcome.of_damaged(row) for row in rows if isinstance(row, DamagedRow)}
    if unknown:
        trials = Counter(row.payload.get("target") for row in rows)
        lacking = [
            row.payload.get("target")
            for row in rows
            if trials[row.payload.get("target")] < row.payload.get("trials", 1)
        ]
        damaged = {**dict.fromkeys(lacking, Outcome.of_damaged(unknown[0])), **damaged}
    sound = [row for row in rows if row.payload.get("target") not in damaged]
    found = grouped_results(sound, prepared.thresholds, _replaced(reader, sound))
    return MatrixRow(
        test.get("id", payload.get("id")),
        payload["dataset"],
        category_of(test.get("metadata")),
        [str(tag) for tag in test.get("tags") or ()],
        {result.target: Outcome.of(deciding(planned, result), result) for planned, result in found} | damaged,
        position,
        len(rows),
    )


def _by_test(rows: Iterable[ItemRow]) -> Iterator[list[ItemRow]]:
    """The items of each test; those of which not even the test can be read are with those before them."""
    same: list[ItemRow] = []
    test = None
    for row in rows:
        before, test = test, test if row.payload is None else _test_of(row)
        if same and test != before:
            yield same
            same = []
        same.append(row)
    if same:
        yield same


def _test_of(row: ItemRow) -> tuple[Any, ...]:
    payload = row.payload
    return (payload["file"], payload["test"]["id"]) if "test" in payload else (payload["file"], None, row.key)


def _replaced(reader: JournalReader, rows: Sequence[ItemRow]) -> Iterator[ReplacedOutcome]:
    for row in rows:
        if row.performances > 1:
            yield from replaced_outcomes(reader, row.number)


def replaced_outcomes(reader: JournalReader, number: int) -> Iterator[ReplacedOutcome]:
    """What one item had come to each time before it was executed again on request."""
    requests = {(each.attempt, each.ended_at): each.reason for each in reader.attempts(number)}
    for each in reader.earlier_outcomes(number):
        state = ItemState(each.state)
        reason, cause = (each.why, None) if state is ItemState.DISCARDED else (None, each.why)
        why = requests.get((each.attempt, each.reopened_at))
        yield ReplacedOutcome(
            number, each.attempt, state, reason, cause, each.message, each.record, each.finished_at, why
        )


def deciding(planned: Sequence[ItemRow], result: TestResult) -> ItemRow:
    """Of the items of a result the one that decides: the best of the trials that have its status, else the best of all."""
    trials = [each for each in result.trials or () if each["status"] == result.status] or result.trials
    if not trials:
        return planned[0]
    best = max(trials, key=lambda each: each.get("score", -1.0))
    return next(row for row in planned if row.payload["trial"] == best["attempt"])


def targets_of(prepared: PreparedEval) -> list[str]:
    """The names of the targets of a run, in order of its files."""
    return list(dict.fromkeys(target.name for file in prepared.files for target in file.targets))


# --- The matrix


@dataclass(slots=True)
class _Page:
    """The tests of a page."""

    tests: list[MatrixRow]
    seen: int
    """Tests that were looked at."""
    after: int | None
    """The position behind which the next page begins; None if there is none."""


def matrix_sections(reader: JournalReader, prepared: PreparedEval, query: Mapping[str, str]) -> Iterator[Section]:
    """A page of the matrix. ``query``: ``show`` (see ``FILTERS``), ``category``, ``tag``, ``dataset``, and ``after``, the position in the
    input behind which the page begins."""
    show = query.get("show", "all") if query.get("show") in FILTERS else "all"
    chosen = {kind: query[kind] for kind in _KINDS if query.get(kind)}
    after = position_in(query)
    page = _page(reader, prepared, after, show, chosen)
    targets = targets_of(prepared)
    blocks: list[Block] = [_filters(show, chosen), _table(page.tests, targets)]
    if len(targets) > MAX_TARGETS:
        blocks.append(Note(f"The first {MAX_TARGETS} of {len(targets):,} targets.", "muted"))
    if unreadable := sum(test.statuses.count(DAMAGED) for test in page.tests):
        blocks.append(Note(f"{counted(unreadable, 'result')} on this page can't be told: items are damaged.", "bad"))
    blocks.append(_position_facts(page, after, {"show": show, **chosen}))
    yield Section("Tests and targets", blocks, "Each cell leads to the test at that target. " + _LEGEND, name=MATRIX)
    if show == "all" and after < 0 and page.after is None:
        yield from group_sections(page.tests, targets)


_LEGEND = "✓ passed, ✗ failed, ! error, – no score, … not ended; trials: ● passed, ○ not passed."


def _page(reader: JournalReader, prepared: PreparedEval, after: int, show: str, chosen: Mapping[str, str]) -> _Page:
    fits, page, read = FILTERS[show][1], _Page([], 0, None), 0
    for test in matrix_rows(reader, prepared, after):
        if (len(page.tests) >= MAX_TESTS or read >= MAX_READ) and test.position != after:
            page.after = after
            break
        after, read = test.position, read + test.items
        page.seen += 1
        if fits(test) and set(test.groups()).issuperset(chosen.items()):
            page.tests.append(test)
    return page


def _filters(show: str, chosen: Mapping[str, str]) -> Facts:
    found = [
        Fact(
            name,
            Cell(SHOWN, tone="active") if name == show else Cell(SHOW, link=_link({"show": name, **chosen})),
            about,
        )
        for name, (about, _) in FILTERS.items()
    ]
    found += [
        Fact(f"{kind} {name_text(name)}", Cell("any", link=_link({"show": show, **_without(chosen, kind)})))
        for kind, name in chosen.items()
    ]
    return Facts(found, "Show")


def _without(chosen: Mapping[str, str], kind: str) -> dict[str, str]:
    return {name: value for name, value in chosen.items() if name != kind}


def _link(query: Mapping[str, str]) -> Link:
    return Link(page=MATRIX, query={name: value for name, value in query.items() if (name, value) != ("show", "all")})


def _position_facts(page: _Page, after: int, query: Mapping[str, str]) -> Facts:
    said = counted(page.seen, "test") + " looked at" if page.seen != len(page.tests) else ""
    found = [Fact("on this page", Cell(counted(len(page.tests), "test"), len(page.tests), about=said))]
    if after >= 0:
        found.append(Fact("back", Cell("first page", link=_link(query))))
    if page.after is not None:
        found.append(Fact("more", Cell("next page", link=_link({**query, AFTER: str(page.after)})), said))
    return Facts(found)


def _table(tests: Sequence[MatrixRow], targets: Sequence[str]) -> Table:
    datasets = {test.dataset for test in tests}
    optional = {
        "dataset": len(datasets) > 1,
        "category": any(test.category for test in tests),
        "tags": any(test.tags for test in tests),
    }
    named = [name for name, is_wanted in optional.items() if is_wanted]
    shown = targets[:MAX_TARGETS]
    columns = [Column("test", "test"), *(Column(name, name) for name in named)]
    columns += [Column(f"target:{name}", name_text(name)) for name in shown]
    missing = Cell("", about="not run with this target")
    if any(test.is_unknown for test in tests):
        missing = Cell("", about="not run with this target, as far as the items can be read")
    rows = [
        [name_cell(test.test_id, Link(item=_first(test).number)), *_about(test, named), *_cells(test, shown, missing)]
        for test in tests
    ]
    return Table(columns, rows, row_names=[" ".join(dict.fromkeys(test.statuses)) for test in tests])


def _about(test: MatrixRow, named: Iterable[str]) -> list[Cell]:
    texts = {"dataset": test.dataset, "category": test.category, "tags": ", ".join(test.tags)}
    return [name_cell(texts[name]) if texts[name] else Cell("") for name in named]


def _first(test: MatrixRow) -> Outcome:
    return next(iter(test.outcomes.values()))


def _cells(test: MatrixRow, targets: Sequence[str], missing: Cell) -> list[Cell]:
    if None in test.outcomes:
        return [test.outcomes[None].cell for _ in targets]
    return [missing if (found := test.outcomes.get(target)) is None else found.cell for target in targets]


# --- Categories and tags


@dataclass(slots=True)
class _Sums:
    """The results of the tests of a group at one target."""

    scored: int = 0
    passed: int = 0
    without: int = 0
    """Tests without a score."""
    total: float = 0.0
    """The sum of the scores."""

    def add(self, result: Outcome) -> None:
        self.passed += result.status == PASSED
        self.without += result.score is None
        if result.score is not None:
            self.scored += 1
            self.total += result.score

    def cell(self) -> Cell:
        """The mean score, and how many passed; without a score apart."""
        if not self.scored:
            return Cell("–", about=f"{self.without:,} without a score" if self.without else "")
        mean = self.total / self.scored
        about = (
            f"{self.passed:,} of {counted(self.scored, 'test')} with a score passed; {self.without:,} without a score"
        )
        return Cell(f"{mean:.3f}  {self.passed:,}/{self.scored:,} ✓", mean, about=about, share=mean)


def all_group_sections(reader: JournalReader, prepared: PreparedEval) -> Iterator[Section]:
    """What the tests of each category, tag and dataset come to, over the whole run, or as much of it as may be read for a page."""
    tests = _within(matrix_rows(reader, prepared), MAX_GROUPED)
    is_part = sum(reader.counts().values()) > MAX_GROUPED
    yield from group_sections(tests, targets_of(prepared), is_part=is_part)


def _within(tests: Iterable[MatrixRow], items: int) -> Iterator[MatrixRow]:
    for test in tests:
        if items <= 0:
            return
        items -= test.items
        yield test


def group_sections(tests: Iterable[MatrixRow], targets: Sequence[str], *, is_part: bool = False) -> Iterator[Section]:
    """A table for categories, one for tags and one for datasets, as far as the tests have any. ``is_part``: there are further tests."""
    sums: dict[tuple[str, str], dict[str, _Sums]] = {}
    sizes: dict[tuple[str, str], int] = {}
    seen, unknown, shown = 0, 0, targets[:MAX_TARGETS]
    for test in tests:
        if test.is_unknown:
            unknown += 1
            continue
        seen += 1
        for group in test.groups():
            sizes[group] = sizes.get(group, 0) + 1
            of = sums.setdefault(group, {})
            for target, outcome in test.outcomes.items():
                if target is not None:
                    of.setdefault(target, _Sums()).add(outcome)
    blocks: list[Block] = []
    for kind in _KINDS:
        found = [group for group in sums if group[0] == kind]
        if found and not (kind == "dataset" and len(found) == 1):
            blocks += _group_table(kind, found, sums, sizes, shown)
    if unknown:
        blocks.append(Note(f"{counted(unknown, 'damaged item')} in no group: what they are can't be read.", "bad"))
    about = f"Mean score, and how many of the tests with a score passed; of {'the first ' if is_part else ''}{counted(seen, 'test')}."
    yield Section(
        "Categories and tags",
        blocks or [Note("The tests have no categories and no tags.", "muted")],
        about,
        name=GROUPS,
    )


def _group_table(
    kind: str,
    groups: Sequence[tuple[str, str]],
    sums: Mapping[tuple[str, str], Mapping[str, _Sums]],
    sizes: Mapping[tuple[str, str], int],
    targets: Sequence[str],
) -> Iterator[Block]:
    largest = sorted(groups, key=lambda group: -sizes[group])
    columns = [Column(kind, kind), Column("tests", "tests", is_number=True)]
    columns += [Column(f"target:{name}", name_text(name), is_number=True) for name in targets]
    rows = [
        [
            name_cell(group[1], Link(page=MATRIX, query={kind: group[1]})),
            Cell(f"{sizes[group]:,}", sizes[group]),
            *(sums[group].get(target, _Sums()).cell() for target in targets),
        ]
        for group in islice(largest, MAX_GROUPS)
    ]
    yield Table(columns, rows)
    if len(groups) > MAX_GROUPS:
        yield Note(f"the largest {MAX_GROUPS} of {len(groups):,}", "muted")
