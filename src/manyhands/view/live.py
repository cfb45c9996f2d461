"""What changes on pages while runs go on: looked for twice a second in each run that somebody looks at, and sent to all who look at it.

Pages get server-sent events (see the HTML standard, section 9.2): ``part`` with HTML for a part of the page, ``row`` with a row of a table,
``changed`` where the page must be asked for again, as rows have changed that are not sent, ``ended`` at the end of the run. What is sent is
made once for all who look at a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from time import monotonic, time

from aiohttp import web

from manyhands.core.errors import ManyhandsError
from manyhands.core.jsonio import line
from manyhands.engine.journal.browsing import JournalBrowser
from manyhands.view.pages.item_table import ShownItem, shown_items
from manyhands.view.pages.page import view_for
from manyhands.view.source import Runs, ShownRun, explained

TICK = 0.5
"""Seconds between two looks at a run."""
SLOW_TICK = 5.0
"""The same where readers hinder the owner: a journal without a write-ahead log, as on network disks."""
MAX_ROWS = 100
"""Changed items that are sent at once."""
_MAX_LEFT = 50 * MAX_ROWS
"""Changed items that wait to be sent. Beyond that, pages are told to ask for what they show."""
CHANGED = "changed"
MAX_LISTENERS = 100
_MAX_WAITING = 20
"""Looks whose events a page which reads slowly may have waiting; beyond that it is cut off, and comes back."""
_PING_SECONDS = 5.0
"""After which a page that was sent nothing is sent an empty line, by which it is known whether it is still there."""
_BEFORE = 10.0
"""Seconds from which on items are sent that ended before a page began to listen: they may have changed since it was made."""
_LOOKS_BETWEEN_STEPS = 4
"""Looks between two at the figures of items that go on."""
_LOOKS_BETWEEN = 10
"""Ticks between two looks at all runs."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event for pages."""

    name: str
    data: str
    """JSON, on one line."""
    about: str = ""
    """What it replaces: of the events of one name about the same thing, only those that say something new are sent."""
    number: int = 0

    def encoded(self) -> bytes:
        """As it is sent."""
        return f"id: {self.number}\nevent: {self.name}\ndata: {self.data}\n\n".encode()


@dataclass(slots=True)
class Watched:
    """A run, or the list of runs, that somebody looks at."""

    listeners: set[asyncio.Queue[bytes | None]] = field(default_factory=set)
    task: asyncio.Task[None] | None = None
    sent: dict[str, str] = field(default_factory=dict)
    """What was sent of each part last."""
    number: int = 0
    is_new: bool = True
    """Whether somebody has begun to listen since the last look."""

    def unsent(self, events: Iterable[Event]) -> Iterator[bytes]:
        """The events that say something new, as they are sent."""
        for event in events:
            key = f"{event.name} {event.about}"
            if self.sent.get(key) != event.data or event.name == CHANGED:
                self.sent[key] = event.data
                self.number += 1
                yield replace(event, number=self.number).encoded()


Written = Callable[[ShownRun, Sequence[ShownItem], JournalBrowser], Iterable[Event]]
"""What is sent of a run and of some of its items."""


class Live:
    """Sends what changes. Nothing is read of runs that nobody looks at."""

    def __init__(self, runs: Runs, of_run: Written, of_list: Callable[[ShownRun, bool], Event]) -> None:
        """``of_run``: the events of a run that goes on; ``of_list``: that of a run in the list, and whether it is new there."""
        self._runs = runs
        self._of_run = of_run
        self._of_list = of_list
        self._watched: dict[str, Watched] = {}

    async def close(self) -> None:
        """Let go of everybody."""
        for watched in list(self._watched.values()):
            if watched.task is not None:
                watched.task.cancel()
                with suppress(asyncio.CancelledError):
                    await watched.task
            for queue in watched.listeners:
                with suppress(asyncio.QueueFull):
                    queue.put_nowait(None)

    async def send(self, request: web.Request, name: str) -> web.StreamResponse:
        """Answer a page that listens to a run, by its ``run_id``, or to all runs (an empty name), until it goes away."""
        if sum(len(each.listeners) for each in self._watched.values()) >= MAX_LISTENERS:
            raise web.HTTPServiceUnavailable(text=f"{MAX_LISTENERS} pages are listening already")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if request.method != "HEAD":
            async for events in self._listen(name):
                await response.write(events)
        return response

    async def _listen(self, name: str) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(_MAX_WAITING)
        watched = self._watched.setdefault(name, Watched())
        watched.listeners.add(queue)
        watched.sent.clear()  # whoever comes gets everything once
        watched.is_new = True
        if watched.task is None or watched.task.done():
            watched.task = asyncio.ensure_future(self._watch(name, watched))
        try:
            while True:
                try:
                    events = await asyncio.wait_for(queue.get(), _PING_SECONDS)
                except TimeoutError:
                    events = b":\n\n"
                if events is None:
                    return
                yield events
        finally:
            watched.listeners.discard(queue)
            if not watched.listeners:
                watched.task.cancel()
                self._watched.pop(name, None)

    def _tell(self, watched: Watched, events: Iterable[Event]) -> None:
        found = b"".join(watched.unsent(events))
        for queue in list(watched.listeners) if found else ():
            try:
                queue.put_nowait(found)
            except asyncio.QueueFull:
                watched.listeners.discard(queue)
                queue.get_nowait()
                queue.put_nowait(None)
        if len(watched.sent) > 50 * MAX_ROWS:
            watched.sent.clear()

    async def _watch(self, name: str, watched: Watched) -> None:
        try:
            if name:
                await self._watch_run(name, watched)
            else:
                await self._watch_list(watched)
        except ManyhandsError as error:
            self._tell(watched, [Event("problem", line(str(error)))])
        finally:
            for queue in watched.listeners:
                with suppress(asyncio.QueueFull):
                    queue.put_nowait(None)

    async def _watch_run(self, run_id: str, watched: Watched) -> None:
        looker = Looker(self._runs, run_id, self._of_run)
        try:
            while True:
                begun = monotonic()
                is_new, watched.is_new = watched.is_new, False
                events, ended = await self._runs.in_thread(partial(looker.look, is_new=is_new))
                self._tell(watched, events)
                if ended:
                    self._tell(watched, [Event("ended", line(run_id))])
                    return
                await asyncio.sleep(max(0.05, looker.tick - (monotonic() - begun)))
        finally:
            await self._runs.in_thread(looker.close)

    async def _watch_list(self, watched: Watched) -> None:
        known: dict[str, ShownRun] | None = None
        while True:
            runs = {run.id: run for run in await self._runs.in_thread(self._runs.listed) if run.id}
            if known is not None:
                self._tell(
                    watched,
                    [self._of_list(run, name not in known) for name, run in runs.items() if known.get(name) is not run],
                )
            known = runs
            await asyncio.sleep(2 * TICK)


class Looker:
    """Looks at one run again and again, with one connection."""

    def __init__(self, runs: Runs, run_id: str, written: Written) -> None:
        self._runs = runs
        self._run_id = run_id
        self._written = written
        self._reader: JournalBrowser | None = None
        self._version = -1
        self._step = self._failure = 0
        self._running: set[int] = set()
        self._going_on: set[int] = set()
        """Items with new steps that have not been sent, as they have not ended."""
        self._left: dict[int, None] = {}
        """Items that have changed, and were too many to be sent."""
        self._is_too_much = False
        """Whether more has happened since the last look than was looked at."""
        self._ledger: tuple[int, int] | None = None
        self._looks = 0
        self._lock = Lock()
        self._is_closed = False
        self.tick = TICK

    def close(self) -> None:
        """Wait for a look that goes on, and look no more."""
        with self._lock:
            self._is_closed = True
            if self._reader is not None:
                self._reader.close()

    def look(self, *, is_new: bool) -> tuple[list[Event], bool]:
        """What to send, and whether the run has ended. ``is_new``: whether somebody has begun to listen."""
        with self._lock:
            return ([], True) if self._is_closed else self._look(is_new=is_new)

    def _look(self, *, is_new: bool) -> tuple[list[Event], bool]:
        if self._reader is None:
            self._reader = self._runs.open(self._run_id, any_thread=True)
            self.tick = TICK if self._reader.hinders_nobody() else SLOW_TICK
        reader = self._reader
        self._looks += 1
        version = reader.data_version()
        is_due = self._going_on and self._looks % _LOOKS_BETWEEN_STEPS == 0
        if version == self._version and self._looks % _LOOKS_BETWEEN and not (is_new or is_due or self._left):
            return [], False
        self._version = version
        with reader.limited(1.0), explained(reader.folder):
            if is_new:
                self._step, self._failure = reader.ends_before(time() - _BEFORE)
            run = self._runs.shown(self._run_id)
            events = [Event(CHANGED, line(self._run_id))] if self._has_changed_unseen(run) else []
            numbers = self._changed(reader)
            if self._is_too_much or len(self._left) > _MAX_LEFT:
                self._left.clear()
                events = [Event(CHANGED, line(self._run_id))]
            items = shown_items(reader, view_for(reader), reader.items_of(numbers))
            return [*self._written(run, items, reader), *events], not (run.is_live or self._left)

    def _has_changed_unseen(self, run: ShownRun) -> bool:
        """Whether items may have changed without a step: some were cancelled, or are pending again."""
        assert run.summary is not None
        ledger = run.summary["ledger"]
        before, self._ledger = self._ledger, (ledger["cancelled"], ledger["pending"])
        return before is not None and any(now > then for now, then in zip(self._ledger, before, strict=True))

    def _changed(self, reader: JournalBrowser) -> list[int]:
        """Items that may have changed since the last looks: those with new steps or failures, and those that have begun or ended. More
        than can be sent are left for the next looks."""
        running = set(reader.first_running_items(MAX_ROWS))
        step, failure = reader.ends_before(None)
        active = reader.items_active_behind(self._step, self._failure, _MAX_LEFT)
        self._is_too_much = max(step - self._step, failure - self._failure) > _MAX_LEFT
        begun, gone = running - self._running, self._running - running
        self._step, self._failure, self._running = step, failure, running
        self._going_on = (self._going_on | {*active}) & running
        found = dict.fromkeys([*gone, *(each for each in reversed(active) if each not in running), *begun])
        found |= self._left
        if self._looks % _LOOKS_BETWEEN_STEPS == 0:
            found |= dict.fromkeys(self._going_on)
            self._going_on = set()
        numbers = list(found)
        self._left = dict.fromkeys(numbers[MAX_ROWS:])
        return numbers[:MAX_ROWS]
