"""The pages of a run as sections: its overview, and the pages of its workload, with those that go on from page to page in one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from manyhands.core.text import counted
from manyhands.engine.journal.browsing import UNREADABLE, JournalBrowser
from manyhands.runs.shown.blocks import Block, Fact, Facts, Link, Note, Section, Table
from manyhands.runs.shown.cells import AFTER, ITEM, SHOWN, position_in
from manyhands.runs.shown.run_view import PageInfo, RunView
from manyhands.runs.summaries import RunStatus
from manyhands.view.pages.run import overview_sections, sections_of


@dataclass(frozen=True, slots=True)
class WorkloadPage:
    """A page of the workload's own, all of it."""

    info: PageInfo
    sections: Sequence[Section]


def overview(reader: JournalBrowser, view: RunView, status: RunStatus) -> list[Section]:
    """What stands on the page of the run."""
    return [
        *sections_of(view.head),
        *overview_sections(reader, status, sections_of(view.files), is_passed_on=True),
    ]


def workload_pages(view: RunView, most: int) -> Iterator[WorkloadPage]:
    """The pages of the workload, one after the other. ``most``: how many pages of rows each is made of at most; what is behind them is
    said to be left out."""
    for info in view.pages():
        yield WorkloadPage(info, list(_joined(view, info.name, most)))


@dataclass(slots=True)
class _Branch:
    """The pages of rows about one of the items that a page can be about."""

    label: str
    waiting: list[Mapping[str, str]]
    sections: list[Section] = field(default_factory=list)


def _joined(view: RunView, name: str, most: int) -> Iterator[Section]:
    branches = [_Branch("", [{}])]
    seen, made = [_canonical({})], 0
    for branch in branches:  # the first page adds further ones
        while branch.waiting and made < most:
            query = branch.waiting.pop(0)
            made += 1
            sections = _looked_at(view, name, query)
            for fact, link in _onward(sections, name, query):
                if (asked := _canonical(link.query)) not in seen:
                    seen.append(asked)
                    if AFTER in link.query:
                        branch.waiting.append(link.query)
                    else:
                        branches.append(_Branch(fact.label, [link.query]))
            branch.label = branch.label or _chosen(sections, name)
            _add(branch.sections, [_without_steering(section, name) for section in sections])
    for branch in branches:
        for section in branch.sections:
            parts = (section.title, branch.label if len(branches) > 1 else "")
            yield replace(section, title=" · ".join(filter(None, parts)))
    if any(branch.waiting for branch in branches):
        yield Section("", [Note(f"More than {counted(made, 'page')} of rows: the others are left out.", "warn")])


def _looked_at(view: RunView, name: str, query: Mapping[str, str]) -> list[Section]:
    try:
        return list(view.page(name, query))
    except UNREADABLE as error:
        problem = f"This page can't be made of what is recorded ({error!r}), nor any page that it would lead to."
        return [Section("", [Note(problem, "bad")])]


def _canonical(query: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in query.items() if value and (name, value) != (AFTER, "0"))


def _onward(sections: Iterable[Section], name: str, query: Mapping[str, str]) -> Iterator[tuple[Fact, Link]]:
    """The links of a page to its next rows and, on the first page, to the same page about each of the items that it can be about. Of links
    that skip rows, as one to the last page does, only the one that skips none: the pages between lead there in order."""
    following: dict[frozenset[tuple[str, str]], tuple[Fact, Link]] = {}
    for section in sections:
        for block in section.blocks:
            for fact, link in _steering(block, name):
                after = position_in(link.query)
                if after > position_in(query):
                    rest = _canonical({key: value for key, value in link.query.items() if key != AFTER})
                    known = following.get(rest)
                    if known is None or after < position_in(known[1].query):
                        following[rest] = fact, link
                elif not query and AFTER not in link.query and ITEM in link.query:
                    yield fact, link
    yield from following.values()


def _chosen(sections: Iterable[Section], name: str) -> str:
    """What a page is about, where it leads to others of itself."""
    blocks = (block for section in sections for block in section.blocks if isinstance(block, Facts))
    facts = (fact for block in blocks if any(_steering(block, name)) for fact in block.facts)
    return next((fact.label for fact in facts if fact.cell.link is None and fact.cell.text.startswith(SHOWN)), "")


def _steering(block: Block, name: str) -> Iterator[tuple[Fact, Link]]:
    """The links of a block to other rows or other filters of the same page."""
    for fact in block.facts if isinstance(block, Facts) else ():
        link = fact.cell.link
        if link is not None and link.page == name and link.item is None:
            yield fact, link


def _without_steering(section: Section, name: str) -> Section:
    """A section without what leads to other rows or other filters of the same page, which stand there too or can't be had."""
    return replace(section, blocks=[block for block in section.blocks if not any(_steering(block, name))], name="")


def _add(found: list[Section], more: Sequence[Section]) -> None:
    """Add the sections of a further page: rows to the table that they go on from, anything else behind it."""
    for section in more:
        same = next((place for place in range(len(found) - 1, -1, -1) if found[place].title == section.title), None)
        if same is None:
            found.append(section)
            continue
        found[same] = replace(found[same], blocks=_continued(found[same].blocks, section.blocks))


def _continued(blocks: Sequence[Block], more: Sequence[Block]) -> list[Block]:
    joined = list(blocks)
    for block in more:
        if isinstance(block, Table) and (place := _same_table(joined, block)) is not None:
            table = joined[place]
            assert isinstance(table, Table)
            rows, names = [*table.rows, *block.rows], [*table.row_names, *block.row_names]
            joined[place] = replace(table, rows=rows, row_names=names)
        elif block not in joined:
            joined.append(block)
    return joined


def _same_table(blocks: Sequence[Block], table: Table) -> int | None:
    places = (
        place
        for place, block in enumerate(blocks)
        if isinstance(block, Table)
        and (list(block.columns), block.title) == (list(table.columns), table.title)
        and (block.about, bool(block.row_names)) == (table.about, bool(table.row_names))
        and list(block.rows) != list(table.rows)
    )
    return next(places, None)
