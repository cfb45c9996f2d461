"""The files of one session, kept up while it goes on: master log, counters, and a result for each test that has ended.

What counts is the journal; these are written from what it holds. Until a session that goes on has come to where it was, nothing is
written; then each file is written whole, and the log is added to from there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import tzinfo
from typing import Any, TextIO

from manyhands.engine.files import written_aside
from manyhands.memory.events import format_event
from manyhands.memory.places import SESSION, ResultPlaces, writing
from manyhands.memory.result_files import result_of, write_result
from manyhands.memory.runstats import runstats_of
from manyhands.memory.schedule_model import EndedTest
from manyhands.memory.session import Session


class SessionFiles:
    """See ``session.Watcher``. ``about``: goes into ``session.json``; ``is_replaying``: whether the session has yet to come to where it
    was; ``zone``: of readable times, None for this machine's own. Must be closed."""

    def __init__(
        self,
        places: ResultPlaces,
        about: dict[str, Any],
        *,
        is_replaying: Callable[[], bool],
        zone: tzinfo | None = None,
    ) -> None:
        self._places = places
        self._about = about
        self._is_replaying = is_replaying
        self._zone = zone
        self._log: TextIO | None = None
        self._written = 0
        self._waiting: list[EndedTest] = []

    def ended(self, session: Session, test: EndedTest) -> None:
        """A test has ended."""
        self._waiting.append(test)

    def progress(self, session: Session) -> None:
        """Something has happened. Raises StorageError if it can't be written."""
        if self._log is None:
            if self._is_replaying():
                return
            self._begin(session)
        self._go_on(session)

    def close(self, session: Session) -> None:
        """Write everything that there is. Raises StorageError."""
        if session.scheduler.events and self._log is None:
            self._begin(session)
        if self._log is None:
            return
        self._go_on(session)
        self._write_counters(session)
        with writing(self._places.master_log):
            self._log.close()
        self._log = None

    def _begin(self, session: Session) -> None:
        with writing(self._places.folder):
            self._places.folder.mkdir(parents=True, exist_ok=True)
        with written_aside(self._places.folder / SESSION) as handle:
            json.dump(self._about, handle, indent=2)
        events = session.scheduler.events
        with written_aside(self._places.master_log) as handle:
            handle.writelines(f"{format_event(event)}\n" for event in events)
        self._written = len(events)
        with writing(self._places.master_log):
            self._log = self._places.master_log.open("a", encoding="utf-8")

    def _go_on(self, session: Session) -> None:
        assert self._log is not None
        events = session.scheduler.events
        if self._written < len(events):
            with writing(self._places.master_log):
                self._log.writelines(f"{format_event(event)}\n" for event in events[self._written :])
                self._log.flush()
            self._written = len(events)
        if self._waiting:
            for test in self._waiting:
                self._write_result(session, test)
            self._waiting.clear()
            self._write_counters(session)

    def _write_result(self, session: Session, test: EndedTest) -> None:
        definition = test.test.definition
        name = definition.unique_id
        judge = session.judge.name if session.judge is not None and name in session.judged else None
        events = session.scheduler.events[: test.ended]
        reset = session.scheduler.settings.reset_message(test.test)
        unscored = session.unscored.get(name)
        result = result_of(test, events, unscored=unscored, judge=judge, reset=reset, zone=self._zone)
        write_result(self._places.result(definition.dataset, definition.example_id), result)

    def _write_counters(self, session: Session) -> None:
        stats = runstats_of(session.scheduler.counters, session.agent_usage.cost, session.managing_usage.cost)
        with suppress(FileNotFoundError), written_aside(self._places.runstats) as handle:
            json.dump(stats.content(), handle)
