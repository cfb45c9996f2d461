"""What a run's folder holds of its conversations at the moment, whether they have ended, go on, or were left incomplete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.engine.contract import ItemRow
from manyhands.engine.journal.reader import JournalReader
from manyhands.io.json_files import read_object
from manyhands.workloads.memory.conversation.events import Event, events_so_far
from manyhands.workloads.memory.conversation.tokens import TokenCounter, counter_named
from manyhands.workloads.memory.folders import SCORES, SESSION, ResultPaths
from manyhands.workloads.memory.report.formatting import brief
from manyhands.workloads.memory.report.reported_agents import Reported, reported_agent
from manyhands.workloads.memory.results.files import SCORES_FILE, RunStats, read_runstats
from manyhands.workloads.memory.results.timeline import Timeline, timeline_of

MAX_CONVERSATIONS = 100
"""Conversations of a run that are listed."""
MAX_FILES = 10_000
"""Results of a conversation that are counted."""
MAX_JUDGES = 50


@dataclass(frozen=True)
class Recorded:
    """One conversation. What it holds is read when it is first asked for."""

    run: Path
    row: ItemRow

    @property
    def name(self) -> str:
        """What results call the agent."""
        payload = self.row.payload
        return str(payload.get("name", self.row.key)) if isinstance(payload, Mapping) else self.row.key

    @property
    def round(self) -> int:
        """How many conversations with this agent were begun before."""
        payload = self.row.payload
        number = payload.get("round", 0) if isinstance(payload, Mapping) else 0
        return number if isinstance(number, int) else 0

    @property
    def record(self) -> Mapping[str, Any]:
        """What is recorded of a conversation that has ended; else empty."""
        return self.row.record if isinstance(self.row.record, Mapping) else {}

    @property
    def paths(self) -> ResultPaths | None:
        """Where its files are; None if that is outside of the run's folder."""
        paths = ResultPaths.of(self.run, self.name)
        inside = self.run.resolve()
        return (
            paths if all(each.resolve().is_relative_to(inside) for each in (paths.folder, paths.master_log)) else None
        )

    @cached_property
    def log(self) -> tuple[list[Event], str]:
        """Its events, and what is wrong with the log."""
        return ([], "") if self.paths is None else events_so_far(self.paths.master_log)

    @property
    def stats(self) -> RunStats | None:
        """What it has spent, as of the last test that ended; None if that is not recorded."""
        try:
            return None if self.paths is None else read_runstats(self.paths.runstats)
        except UserError:
            return None

    @property
    def ended_tests(self) -> int:
        """How many of its tests have a result."""
        return 0 if self.paths is None else sum(1 for _ in islice(self.paths.folder.glob("*/*.json"), MAX_FILES))

    @cached_property
    def counter(self) -> TokenCounter:
        """What counts the tokens of its messages, each text once."""
        try:
            about = {} if self.paths is None else read_object(self.paths.folder / SESSION, within=self.paths.folder)
        except UserError:
            about = {}
        found = counter_named("estimate" if about.get("tokenizer") == "estimate" else "auto")
        return replace(found, count=cache(found.count))

    @cached_property
    def timeline(self) -> Timeline | None:
        """Where its tests are in the conversation; None if nothing has been said."""
        return timeline_of(self.log[0], self.counter) if self.log[0] else None

    def reported(self, judge: str | None = None, *, with_log: bool = True) -> Reported:
        """Its figures. ``judge``: whose scores, given afterwards, are taken. Raises UserError if nothing is there yet, or what is there is
        damaged."""
        if self.paths is None or not self.paths.folder.is_dir():
            raise UserError("nothing is recorded of this conversation yet")
        found = reported_agent(self.paths.folder, brief(self.name), judge, with_log=False)
        return replace(found, timeline=self.timeline, counted_by=self.counter) if with_log else found


def conversations_of(reader: JournalReader) -> list[Recorded]:
    """The first conversations of a run, in the order of its input."""
    return [Recorded(reader.folder, row) for row in islice(reader.items(), MAX_CONVERSATIONS)]


def unlisted_conversations(reader: JournalReader) -> int:
    """How many more a run has than ``conversations_of`` gives."""
    return max(0, sum(reader.counts().values()) - MAX_CONVERSATIONS)


def is_replaced(conversation: Recorded, others: Sequence[Recorded]) -> bool:
    """Whether its files were put aside for those of a later conversation with the same agent."""
    return any(other.name == conversation.name and other.round > conversation.round for other in others)


def judges_of(run: Path) -> list[str]:
    """The folders of the scores that were given afterwards, by name."""
    return sorted(each.parent.name for each in islice((run / SCORES).glob(f"*/{SCORES_FILE}"), MAX_JUDGES))
