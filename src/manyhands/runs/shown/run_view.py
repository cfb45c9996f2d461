"""What a workload has to show of its runs besides what all runs have. Its own is a subclass of ``RunView``, which the registry names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from manyhands.engine.contract import ItemRow, RecordedStep, import_attribute
from manyhands.engine.journal.lock import is_owned
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.registry import view_target
from manyhands.runs.shown.blocks import Block, Cell, Column, Note, Section
from manyhands.runs.summaries import ItemSummary

OF_FORMER_SESSION = Note(
    "These figures are of the end of an earlier session: the latest one goes on, or was killed.", "warn"
)
"""What is said of figures from a file that is written at the end of a session; see ``RunView.has_open_session``."""


@dataclass(frozen=True, slots=True)
class PageInfo:
    """A page of a workload's own about a run."""

    name: str
    """In its address: small letters and hyphens."""
    label: str
    """In the navigation."""
    about: str
    """What it shows, in one line."""


class RunView:
    """Gives the pages, columns and parts of a run. This one has none; a workload's own is a subclass. It only reads, and is made anew for
    each look at a run, so that making it must take no longer than reading some facts of the journal."""

    columns: ClassVar[Sequence[Column]] = ()
    """Columns of the workload's own in the table of items, behind those that all runs have."""
    item_tab: ClassVar[str] = "Result"
    """What the tab of an item with ``item_blocks`` is called."""

    def __init__(self, reader: JournalReader) -> None:
        self.reader = reader
        self.spec: Any = reader.meta("spec")
        """As it is recorded: other versions may have made it."""

    @property
    def has_open_session(self) -> bool:
        """Whether a process executes the run, or did so until it was killed: what is written at the end of a session is then of a former
        one, or not there."""
        session = self.reader.last_session()
        return is_owned(self.reader.folder) or (session is not None and session.ended_at is None)

    def run_columns(self) -> Sequence[Column]:
        """``columns``, and those that only this run has (the columns of its table, for instance)."""
        return self.columns

    def cells(self, rows: Sequence[ItemRow], summaries: Sequence[ItemSummary]) -> list[Mapping[str, Cell]]:
        """Of each of some items, some hundreds at most, its cells by the names of ``run_columns``."""
        return [{} for _ in rows]

    def labels(self, row: ItemRow) -> Mapping[str, str]:
        """By what else items are filtered: values by names, such as a target or a category. Short, and few of them."""
        return {}

    def pages(self) -> Sequence[PageInfo]:
        """The pages of the workload's own, the most important first."""
        return ()

    def page(self, name: str, query: Mapping[str, str]) -> Iterator[Section]:
        """A page of the workload's own. ``query``: what its address asks for; whatever is wrong in it is ignored. Raises KeyError if there
        is no such page."""
        raise KeyError(name)

    def head(self) -> Iterable[Section]:
        """What stands on the page of the run besides what all runs have: must not go through all items."""
        return ()

    def files(self) -> Iterable[Section]:
        """What is said of the run's files in the place of a plain list of them."""
        return ()

    def item_blocks(self, row: ItemRow, steps: Sequence[RecordedStep]) -> Iterable[Block]:
        """What stands in the tab ``item_tab`` of an item: how it was scored, what was reported. ``steps``: of its latest attempt, without
        those that are very large."""
        return ()

    def compared(self, others: Sequence[JournalReader], query: Mapping[str, str]) -> Iterator[Section]:
        """This run beside others of the same workload. ``query``: what the address of the page asks for; see ``pairs.ids_of`` for what the
        runs are called in addresses. Raises KeyError if the workload has nothing to say to that."""
        raise KeyError("compare")


def view_of(reader: JournalReader) -> RunView:
    """What a run's workload has to show of it."""
    target = view_target(str(reader.meta("workload")))
    kind: type[RunView] = RunView if target is None else import_attribute(target)
    return kind(reader)
