"""Going on from a master log and saved counters, as the GoodAI LTM Benchmark does it.

Our own conversations don't need it: the engine replays their recorded steps, and nothing is lost. It is what published logs with resumes
are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from manyhands.core.errors import UserError
from manyhands.workloads.memory.conversation.definitions import Ask, Json, Message, Say, Step, Wait
from manyhands.workloads.memory.conversation.events import SENDS, Event, EventType
from manyhands.workloads.memory.conversation.schedule import (
    CALLBACK_WAIT,
    Counters,
    FillerWriter,
    RunningTest,
    ScheduledTest,
    SchedulerSettings,
    Travel,
)
from manyhands.workloads.memory.conversation.scheduler import Actions, Scheduler

_OF_A_TEST = (EventType.BEGIN, EventType.SEND_MESSAGE, EventType.RESPONSE_MESSAGE, EventType.WAIT)


class ResumableFiller(FillerWriter, Protocol):
    """Filler whose generator can be set."""

    def restore(self, state: Json) -> None:
        """Set the generator's state. Raises ValueError if it is none."""
        ...


class ResumableScheduler(Scheduler):
    """A scheduler that can be brought to where a log ends."""

    def __init__(
        self,
        tests: Sequence[ScheduledTest],
        settings: SchedulerSettings,
        filler: ResumableFiller,
        token_len: Callable[[str], int],
    ) -> None:
        super().__init__(tests, settings, filler, token_len)
        self._resumable_filler = filler
        self.skipped: set[str] = set()
        """Those of the remaining tests that had ended before."""
        self.known_answers: dict[str, list[str]] = {}
        """Answers of the benchmark's model that the log holds already, by test."""

    def restore(self, events: Sequence[Event], counters: Counters) -> None:
        """Begin with the events of an interrupted session and with what it had spent when it was saved last."""
        transcript = self.transcript
        transcript.events.extend(events)
        transcript.total_tokens, transcript.agent_tokens = counters.total_tokens, counters.agent_tokens
        transcript.duration = counters.duration
        if counters.filler_state is not None:
            self._resumable_filler.restore(counters.filler_state)
        self.skipped = {event.test_id for event in events if event.type is EventType.END} & self.tests.keys()
        for test_id in self.skipped:
            transcript.begun[test_id] = RunningTest(self.tests[test_id], 0, finished=True)

    def _introduce(self) -> Actions:
        if not self.events:
            yield from super()._introduce()
            return
        if self.events[-1].timestamp > self._now:
            yield Travel(self.events[-1].timestamp)
        self._log(EventType.SUITE_RESET, "")

    def _turn(self, test: ScheduledTest) -> Actions:
        if test.id not in self.skipped:
            yield from super()._turn(test)

    def _ask(self, running: RunningTest, ask: Ask) -> Actions:
        if known := self.known_answers.get(running.test.id):
            running.reply = known.pop(0)
        else:
            yield from super()._ask(running, ask)

    def _finish(self, running: RunningTest) -> Actions:
        if running.test.id not in self.skipped:
            yield from super()._finish(running)


def resume(scheduler: ResumableScheduler, events: Sequence[Event], counters: Counters, now: float) -> None:
    """Bring a fresh scheduler to where a log ends.

    ``counters``: as they were saved last, which may be before the log's end: what was spent since is forgotten.
    Callbacks of tests that have not ended are registered again, which is logged. Raises UserError for a log that the tests' definitions
    don't give.
    """
    if scheduler.events:
        raise RuntimeError("the session has begun")
    _FastForward(scheduler, events, now).go(counters)


class _FastForward:
    def __init__(self, scheduler: ResumableScheduler, events: Sequence[Event], now: float) -> None:
        self._scheduler = scheduler
        self._events = events
        self._now = now
        self._sent: Event | None = None

    def go(self, counters: Counters) -> None:
        scheduler = self._scheduler
        scheduler.restore(self._events, counters)
        for index, event in enumerate(self._events):
            if event.type in _OF_A_TEST and event.test_id not in scheduler.skipped:
                self._follow(event, index)
            if event.type in SENDS:
                self._sent = event
            elif event.type in (EventType.RESPONSE_MESSAGE, EventType.RESPONSE_FILL):
                self._hear(event, index)

    def _follow(self, event: Event, index: int) -> None:
        scheduler = self._scheduler
        scheduler.waiting.drop(event.test_id)
        if event.type is EventType.BEGIN:
            self._begin(event, index)
            return
        running = scheduler.transcript.begun.get(event.test_id)
        if running is None:
            raise _mismatch(index, f"test {event.test_id!r} has not begun")
        if event.type is EventType.SEND_MESSAGE:
            self._send(running, event, index)
        elif event.type is EventType.WAIT:
            self._wait(running, event, index)

    def _begin(self, event: Event, index: int) -> None:
        test = self._scheduler.tests.get(event.test_id)
        if test is None:
            raise _mismatch(index, f"there is no test {event.test_id!r}")
        self._scheduler.transcript.begin(test, int(event.data.get("tokens", 0)))
        self._scheduler.known_answers[test.id] = [
            str(each.data["response"])
            for each in self._events
            if each.type is EventType.LLM_CALL and each.test_id == event.test_id
        ]

    def _send(self, running: RunningTest, event: Event, index: int) -> None:
        step = self._step(running, event, index)
        if not isinstance(step, Say):
            if event.message != self._scheduler.settings.reset_message(running.test):
                raise _mismatch(index, f"test {running.test.id!r} would not send a message here")
            running.finished = True
            return
        is_made_when_asked = len(running.messages) >= len(running.test.definition.script) > 0
        if event.is_question != step.is_question or not (is_made_when_asked or event.message == step.message):
            raise _mismatch(index, f"test {running.test.id!r} would send {step.message!r}")
        if step.register:
            self._scheduler.register(running, self._now)

    def _step(self, running: RunningTest, event: Event, index: int) -> Step | None:
        """The test's next step that the log shows."""
        while True:
            step = running.step(event.timestamp)
            if isinstance(step, Ask):
                known = self._scheduler.known_answers[running.test.id]
                if not known:
                    raise _mismatch(index, f"test {running.test.id!r} would ask a model before this")
                running.reply = known.pop(0)
            elif not isinstance(step, Wait) or step is CALLBACK_WAIT or not self._scheduler.settings.isolated:
                return step

    def _wait(self, running: RunningTest, event: Event, index: int) -> None:
        step = self._step(running, event, index)
        if not isinstance(step, Wait) or int(step.seconds) != int(event.data["time"]):
            raise _mismatch(index, f"test {running.test.id!r} would not wait so here")
        self._scheduler.wait(running, step, event.timestamp)

    def _hear(self, event: Event, index: int) -> None:
        sent = self._sent
        if sent is None or sent.test_id != event.test_id:
            raise _mismatch(index, "a reply to no message")
        self._sent = None
        message = Message(sent.test_id, sent.message, event.message, sent.is_question, sent.timestamp, event.timestamp)
        self._scheduler.transcript.note(message)


def _mismatch(index: int, problem: str) -> UserError:
    return UserError(f"master log, line {index + 1}: can't be resumed: {problem}")
