"""Going on from a master log and saved counters, as the original does it.

Our own sessions don't need it: the engine replays their recorded steps, and nothing is lost. It is what makes a folder of published results
resumable, and what published logs with resumes are compared with.
"""

from __future__ import annotations

from collections.abc import Sequence

from manyhands.core.errors import UserError
from manyhands.workloads.memory.conversation.definitions import Ask, Message, Say, Step, Wait
from manyhands.workloads.memory.conversation.events import SENDS, Event, EventType, ended_tests
from manyhands.workloads.memory.conversation.running_tests import CALLBACK_WAIT, Run
from manyhands.workloads.memory.conversation.schedule import Counters
from manyhands.workloads.memory.conversation.scheduler import Scheduler

_OF_A_TEST = (EventType.BEGIN, EventType.SEND_MESSAGE, EventType.RESPONSE_MESSAGE, EventType.WAIT)


def resume(scheduler: Scheduler, events: Sequence[Event], counters: Counters, now: float) -> None:
    """Bring a fresh scheduler to where a log ends.

    ``counters``: as they were saved last, which may be before the log's end: what was spent since is forgotten, as the original forgets it.
    Callbacks of tests that have not ended are registered again, which is logged. Raises UserError for a log that the tests' definitions
    don't give.
    """
    if scheduler.events:
        raise RuntimeError("the session has begun")
    _FastForward(scheduler, events, now).go(counters)


class _FastForward:
    def __init__(self, scheduler: Scheduler, events: Sequence[Event], now: float) -> None:
        self._scheduler = scheduler
        self._events = events
        self._now = now
        self._sent: Event | None = None

    def go(self, counters: Counters) -> None:
        scheduler = self._scheduler
        scheduler.ledger.restore(self._events, counters)
        scheduler.skipped = ended_tests(self._events) & scheduler.tests.keys()
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
        run = scheduler.ledger.runs.get(event.test_id)
        if run is None:
            raise _mismatch(index, f"test {event.test_id!r} has not begun")
        if event.type is EventType.SEND_MESSAGE:
            self._send(run, event, index)
        elif event.type is EventType.WAIT:
            self._wait(run, event, index)

    def _begin(self, event: Event, index: int) -> None:
        test = self._scheduler.tests.get(event.test_id)
        if test is None:
            raise _mismatch(index, f"there is no test {event.test_id!r}")
        run = self._scheduler.ledger.begin(test, int(event.data.get("tokens", 0)))
        run.known_answers = [
            str(each.data["response"])
            for each in self._events
            if each.type is EventType.LLM_CALL and each.test_id == event.test_id
        ]

    def _send(self, run: Run, event: Event, index: int) -> None:
        step = self._step(run, event, index)
        if not isinstance(step, Say):
            if event.message != self._scheduler.settings.reset_message(run.test):
                raise _mismatch(index, f"test {run.test.id!r} would not send a message here")
            run.finished = True
            return
        is_made_when_asked = len(run.messages) >= len(run.test.definition.script) > 0
        if event.is_question != step.is_question or not (is_made_when_asked or event.message == step.message):
            raise _mismatch(index, f"test {run.test.id!r} would send {step.message!r}")
        if step.register:
            self._scheduler.register(run, self._now)

    def _step(self, run: Run, event: Event, index: int) -> Step | None:
        """The test's next step that the log shows."""
        while True:
            step = run.step(event.timestamp)
            if isinstance(step, Ask):
                if not run.known_answers:
                    raise _mismatch(index, f"test {run.test.id!r} would ask a model before this")
                run.reply = run.known_answers.pop(0)
            elif not isinstance(step, Wait) or step is CALLBACK_WAIT or not self._scheduler.settings.isolated:
                return step

    def _wait(self, run: Run, event: Event, index: int) -> None:
        step = self._step(run, event, index)
        if not isinstance(step, Wait) or int(step.seconds) != int(event.data["time"]):
            raise _mismatch(index, f"test {run.test.id!r} would not wait so here")
        self._scheduler.wait(run, step, event.timestamp)

    def _hear(self, event: Event, index: int) -> None:
        sent = self._sent
        if sent is None or sent.test_id != event.test_id:
            raise _mismatch(index, "a reply to no message")
        self._sent = None
        message = Message(sent.test_id, sent.message, event.message, sent.is_question, sent.timestamp, event.timestamp)
        self._scheduler.ledger.note(message)


def _mismatch(index: int, problem: str) -> UserError:
    return UserError(f"master log, line {index + 1}: can't be resumed: {problem}")
