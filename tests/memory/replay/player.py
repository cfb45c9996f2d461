"""Feeds the replies of a log to the scheduler and compares what it does with what the log shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from manyhands.core.errors import UserError
from manyhands.workloads.memory.conversation.events import RESPONSES, SENDS, Event, EventType
from manyhands.workloads.memory.conversation.schedule import (
    Action,
    AskModel,
    Counters,
    Done,
    Evaluate,
    Save,
    Saved,
    Send,
    Travel,
)
from manyhands.workloads.memory.conversation.scheduler import Stuck
from tests.memory.replay.logged import UNSCORED
from tests.memory.replay.result import Difference
from tests.memory.replay.resuming import ResumableScheduler, resume

_COMPARED = ("message", "is_question", "tokens", "time", "response")
_EARLIER_SAVES = 3
"""How many of the last saves are tried as the one that an interrupted session was resumed from."""
_MOST_PARTS = 100
"""Stretches that are replayed in all while trying."""


@dataclass
class Log:
    """A log that is being replayed. ``scheduler``: the one that is under way; datasets and filler that follow the log ask it what comes."""

    events: Sequence[Event]
    scheduler: ResumableScheduler | None = None

    def upcoming(self) -> Event | None:
        """The event that the scheduler has to produce next; None at the end."""
        at = 0 if self.scheduler is None else len(self.scheduler.events)
        return self.events[at] if at < len(self.events) else None


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of the log between two resumes, as it was replayed. ``agreeing``: events from the log's beginning that agree;
    ``saves``: the counters at each save, those at its beginning first; ``spent``: the counters when it stopped; ``is_scored``: whether the
    test that was to be scored then may have been, so that ``spent`` was saved too."""

    agreeing: int
    difference: Difference | None
    is_done: bool
    saves: Sequence[Counters]
    spent: Counters
    is_scored: bool = False

    @property
    def possible_saves(self) -> list[Counters]:
        """What a session that was interrupted here may have been resumed from, the likely first."""
        latest = _latest(self.saves)
        return [*latest, self.spent] if self.is_scored else latest


@dataclass(frozen=True, slots=True)
class Played:
    """The whole log as it was replayed."""

    part: Part
    resumes: int = 0
    tokens_lost: int = 0


@dataclass
class Player:
    """``make_scheduler``: a fresh one, for all tests of the session; ``ends_well``: whether the counters at the log's end are those
    that were saved; ``is_isolated``: the session's mode."""

    log: Log
    make_scheduler: Callable[[], ResumableScheduler]
    ends_well: Callable[[Counters], bool]
    is_isolated: bool = False
    _resets: list[int] = field(init=False)
    _parts_left: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        events = self.log.events
        resets = [at for at, event in enumerate(events) if event.type is EventType.SUITE_RESET]
        starts_with_introduction = bool(events) and events[0].type is EventType.SEND_FILL
        self._resets = [at for at in resets if not (starts_with_introduction and at == 2)]

    def play(self) -> Played:
        """Replay the log. A session that was resumed is taken to have lost what the GoodAI LTM Benchmark loses; if the log disagrees,
        to have lost nothing, as ours do; what gets further counts."""
        losing = self._play_losing()
        if self._agrees(losing) or not self._resets:
            return losing
        lossless = Played(self._play_part(self._begin(), len(self.log.events), marks=True), len(self._resets))
        return max(losing, lossless, key=self._rank)

    def _begin(self) -> ResumableScheduler:
        self.log.scheduler = self.make_scheduler()
        return self.log.scheduler

    def _play_losing(self) -> Played:
        ends = [*(self._interrupted_at(at) for at in self._resets), len(self.log.events)]
        self._parts_left = _MOST_PARTS
        return self._continue(self._play_part(self._begin(), ends[0]), ends, 0, 0)

    def _continue(self, part: Part, ends: Sequence[int], number: int, lost: int) -> Played:
        """Go on after so many resumes, with each of the last saves until one leads to the log's end."""
        if part.difference is not None or number == len(self._resets):
            return Played(part, len(self._resets), lost)
        best: Played | None = None
        for counters in part.possible_saves:
            if best is not None and (self._agrees(best) or self._parts_left <= 0):
                break
            resumed = self._go_on(ends[number], ends[number + 1], counters)
            forgotten = part.spent.total_tokens - counters.total_tokens
            played = self._continue(resumed, ends, number + 1, lost + forgotten)
            best = played if best is None else max(best, played, key=self._rank)
        assert best is not None
        return best

    def saved(self, part: Part) -> Counters:
        """What was saved last. Where the log of an unfinished session ends, that may have been a little earlier."""
        possible = [part.saves[-1]] if part.is_done else part.possible_saves
        return next((counters for counters in possible if self.ends_well(counters)), part.saves[-1])

    def _agrees(self, played: Played) -> bool:
        return played.part.difference is None and self.ends_well(self.saved(played.part))

    def _rank(self, played: Played) -> tuple[bool, int]:
        return self._agrees(played), played.part.agreeing

    def _go_on(self, end: int, next_end: int, counters: Counters) -> Part:
        self._parts_left -= 1
        scheduler = self._begin()
        events = self.log.events
        now = events[end].timestamp
        try:
            resume(scheduler, events[:end], counters, now)
        except UserError as error:
            problem = Difference(end, "", "resume", events[end].type.name, str(error))
            return Part(end, problem, False, [counters], counters)
        return self._play_part(scheduler, next_end, counters)

    def _interrupted_at(self, reset: int) -> int:
        """The log's length when the session was interrupted that a SUITE_RESET resumed: before it come the callbacks that were registered
        again, one for each question that the tests with callbacks had asked and that had not ended."""
        events = self.log.events
        before = reset
        while before and events[before - 1].type is EventType.REGISTER_CALLBACK:
            before -= 1
        ended = {event.test_id for event in events[:before] if event.type is EventType.END}
        with_callback = {test.id for test in self.make_scheduler().tests.values() if test.definition.uses_callback}
        again = sum(
            event.type is EventType.SEND_MESSAGE
            and event.is_question
            and event.test_id in with_callback
            and event.test_id not in ended
            for event in events[:before]
        )
        return max(before, reset - again)

    # --- One stretch

    def _play_part(
        self, scheduler: ResumableScheduler, end: int, start: Counters | None = None, *, marks: bool = False
    ) -> Part:
        """Replay up to the event ``end``. ``marks``: events SUITE_RESET within it only say that the session went on."""
        saves = [start or scheduler.counters]
        compared = len(scheduler.events) if start is None else end_of_prefix(scheduler, self.log.events)
        action: Action | None = None
        while True:
            try:
                action = scheduler.next(self._now(after=action))
            except Stuck as stuck:
                return Part(compared, self._where(compared, str(stuck)), False, saves, scheduler.counters)
            difference, compared = self._compare(scheduler, compared, end)
            if difference is not None:
                return Part(compared, difference, False, saves, scheduler.counters)
            if marks and isinstance(action, Send | AskModel | Evaluate) and self._is_marked(scheduler, compared):
                scheduler.mark_reset(self.log.events[compared].timestamp)
                compared += 1
            if isinstance(action, Done) or len(scheduler.events) > end:
                return self._stopped(action, scheduler, compared, end, saves)
            if isinstance(action, Save) and action.what is not Saved.AGENT:
                saves.append(scheduler.counters)
            elif isinstance(action, Send | AskModel | Evaluate):
                if len(scheduler.events) >= end:
                    return Part(compared, None, False, saves, scheduler.counters, isinstance(action, Evaluate))
                difference = self._supply(action, scheduler, len(scheduler.events))
                if difference is not None:
                    return Part(compared, difference, False, saves, scheduler.counters)

    def _is_marked(self, scheduler: ResumableScheduler, at: int) -> bool:
        return at == len(scheduler.events) and at in self._resets

    def _stopped(
        self, action: Action, scheduler: ResumableScheduler, compared: int, end: int, saves: list[Counters]
    ) -> Part:
        difference = self._where(compared, None) if isinstance(action, Done) and compared < end else None
        return Part(compared, difference, isinstance(action, Done), saves, scheduler.counters)

    def _where(self, at: int, replayed: str | None) -> Difference:
        """The log goes on with an event and the scheduler does not."""
        event = self.log.events[at] if at < len(self.log.events) else None
        return Difference(at, event.test_id if event else "", "event", _named(event), replayed)

    def _now(self, after: Action | None) -> float:
        """The time of the next event. In isolated mode it alone counts: sessions are published in which the clock was never set."""
        event = self.log.upcoming() or self.log.events[-1]
        if isinstance(after, Travel) and not self.is_isolated:
            return max(after.to, event.timestamp)
        return event.timestamp

    def _compare(self, scheduler: ResumableScheduler, start: int, end: int) -> tuple[Difference | None, int]:
        """Compare the scheduler's new events with the log's, up to ``end``."""
        last = min(len(scheduler.events), end)
        for at in range(start, last):
            if difference := compare_event(at, self.log.events[at], scheduler.events[at]):
                return difference, at
        return None, max(start, last)

    def _supply(self, action: Send | AskModel | Evaluate, scheduler: ResumableScheduler, at: int) -> Difference | None:
        """Give the scheduler what the log has as the result of an action; the difference if the log has another event there."""
        if isinstance(action, Evaluate):
            scheduler.evaluated(UNSCORED)
            return None
        event = self.log.events[at]
        if isinstance(action, AskModel):
            if event.type is not EventType.LLM_CALL or event.test_id != action.test_id:
                return Difference(at, event.test_id, "event", _named(event), f"LLM_CALL of {action.test_id!r}")
            scheduler.answered(str(event.data["response"]), event.timestamp)
            return None
        kind = EventType.SEND_MESSAGE if action.test_id else EventType.SEND_FILL
        data = {"message": action.message, "is_question": action.is_question}
        if difference := compare_event(at, event, Event(kind, event.timestamp, action.test_id, data)):
            return difference
        reply = self.log.events[at + 1] if at + 1 < len(self.log.events) else None
        if reply is None or reply.type is not RESPONSES[SENDS.index(kind)] or reply.test_id != action.test_id:
            return Difference(at + 1, action.test_id, "event", _named(reply), RESPONSES[SENDS.index(kind)].name)
        scheduler.replied(reply.message, event.timestamp, reply.timestamp)
        return None


def end_of_prefix(scheduler: ResumableScheduler, events: Sequence[Event]) -> int:
    """How many of a resumed scheduler's events come from the log itself."""
    at = 0
    while at < len(scheduler.events) and at < len(events) and scheduler.events[at] is events[at]:
        at += 1
    return at


def compare_event(at: int, logged: Event, replayed: Event) -> Difference | None:
    """The first difference between two events; times of events are not compared."""
    if (logged.type, logged.test_id) != (replayed.type, replayed.test_id):
        return Difference(at, logged.test_id or replayed.test_id, "event", _named(logged), _named(replayed))
    for name in _COMPARED:
        one, other = logged.data.get(name), replayed.data.get(name)
        if one != other:
            return Difference(at, logged.test_id, f"{logged.type.name} {name}", one, other)
    return None


def _named(event: Event | None) -> str | None:
    if event is None:
        return None
    return f"{event.type.name} of {event.test_id!r}" if event.test_id else event.type.name


def _latest(saves: Sequence[Counters]) -> list[Counters]:
    """The last saves that differ, the latest first."""
    found: list[Counters] = []
    for counters in reversed(saves):
        if not found or counters.total_tokens != found[-1].total_tokens:
            found.append(counters)
        if len(found) == _EARLIER_SAVES:
            break
    return found
