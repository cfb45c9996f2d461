"""Which test speaks next: the interleaving of tests in one conversation, as a pure state machine.

A driver calls ``next`` with the virtual time, does what the action says, and tells the result by ``replied``, ``answered`` or
``evaluated``. The same tests, settings, times and results give the same actions and events; nothing else is read and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from manyhands.workloads.memory.conversation.definitions import Ask, Evaluation, Json, Message, Say, Wait
from manyhands.workloads.memory.conversation.events import Event, EventType
from manyhands.workloads.memory.conversation.schedule import (
    Action,
    AskModel,
    Compatibility,
    Counters,
    Done,
    EndedTest,
    Evaluate,
    FillerWriter,
    ResetAgent,
    RunningTest,
    Save,
    Saved,
    ScheduledTest,
    SchedulerSettings,
    Send,
    Target,
    Travel,
    WaitList,
    tokens_to_wait,
)
from manyhands.workloads.memory.conversation.transcript import Messages, Transcript

CALLBACK_FILLER = 100
"""Tokens of filler that are sent in isolated mode while a callback has yet to be done."""
AFTER_TRAVEL = 1.0
"""Seconds beyond the time that a test waits for to which the clock is set."""

Actions = Generator[Action, "Message | str | Evaluation | None", None]


class Stuck(RuntimeError):
    """No test can go on: the clock that the driver gives went back, or never reached the time that it was set to."""


class Scheduler:
    """The schedule of one conversation."""

    def __init__(
        self,
        tests: Sequence[ScheduledTest],
        settings: SchedulerSettings,
        filler: FillerWriter,
        token_len: Callable[[str], int],
    ) -> None:
        """``token_len``: tokens of a text; it is called once for each text that is sent or replied. Raises ValueError for two tests with
        one name."""
        self.settings = settings
        self.transcript = Transcript(filler, token_len)
        self.ended: list[EndedTest] = []
        self.callbacks: list[RunningTest] = []
        self.waiting = WaitList()
        self.tests = {test.id: test for test in sorted(tests, key=lambda test: test.id)}
        """Those that remain, in the order in which they begin."""
        if len(self.tests) != len(tests):
            raise ValueError("two tests have the same name")
        self._all_tests = dict(self.tests)
        self._filler = filler
        self._compatible = Compatibility(settings.incompatibilities)
        self._now = 0.0
        self._pending: Action | None = None
        self._given: Message | str | Evaluation | None = None
        self._actions = self._run_tests()

    # --- For the driver

    @property
    def events(self) -> list[Event]:
        """Everything that has happened, in order."""
        return self.transcript.events

    @property
    def conversation(self) -> Messages:
        """All messages with their replies."""
        return self.transcript.conversation

    @property
    def begun(self) -> dict[str, RunningTest]:
        """The tests that have begun, by id."""
        return self.transcript.begun

    @property
    def counters(self) -> Counters:
        """What the conversation has spent."""
        return self.transcript.counters

    def next(self, now: float) -> Action:
        """What to do next. ``now``: virtual time, in seconds since 1970 UTC. Raises RuntimeError if the action before is still open,
        Stuck if no test can go on."""
        if isinstance(self._pending, Send | AskModel | Evaluate | Done):
            raise RuntimeError(f"{type(self._pending).__name__} is not dealt with")
        self._now = now
        given, self._given = self._given, None
        self._pending = self._actions.send(given)
        return self._pending

    def replied(self, text: str, sent_at: float, replied_at: float) -> None:
        """The agent's reply to the message that was to be sent. Times are virtual."""
        sent = self._take(Send)
        assert isinstance(sent, Send)
        message = Message(sent.test_id, sent.message, text, sent.is_question, sent_at, replied_at)
        self.transcript.exchanged(message)
        self._now = replied_at
        self._given = message

    def answered(self, text: str, answered_at: float) -> None:
        """The benchmark's own model's answer to what a dynamic test asked."""
        question = self._take(AskModel)
        assert isinstance(question, AskModel)
        self._now = answered_at
        self._log(EventType.LLM_CALL, question.test_id, response=text)
        self._given = text

    def evaluated(self, evaluation: Evaluation) -> None:
        """How the test that was to be evaluated was answered."""
        self._take(Evaluate)
        self._given = evaluation

    def mark_reset(self, now: float) -> None:
        """Log that the conversation was resumed, having lost nothing."""
        self.transcript.log(EventType.SUITE_RESET, now)

    def register(self, running: RunningTest, now: float) -> None:
        """A test's callback is called after each turn from now on."""
        self._now = now
        self.callbacks.append(running)
        self._log(EventType.REGISTER_CALLBACK, running.test.id)

    def wait(self, running: RunningTest, wait: Wait, now: float) -> int:
        """Put a test on the wait list; the number of tokens it waits for."""
        elapsed = self.transcript.total_tokens - running.start_tokens
        memory_span = running.test.memory_span or self.settings.memory_span
        tokens = tokens_to_wait(wait, memory_span, elapsed, running.last_reply)
        self.waiting.put(running.test.id, Target(self.transcript.total_tokens + tokens, now + wait.seconds))
        return tokens

    # --- The actions

    def _run_tests(self) -> Actions:
        yield from self._introduce()
        while self.tests:
            test = yield from self._pick()
            self.waiting.drop(test.id)
            yield from self._turn(test)
            self._call_back()
            while self.settings.isolated and self.callbacks:
                yield from self._fill(CALLBACK_FILLER)
                self._call_back()
            if self.transcript.begun[test.id].finished:
                yield from self._finish(self.transcript.begun[test.id])
                if self.settings.isolated:
                    yield ResetAgent()
                del self.tests[test.id]
                self.waiting.drop(test.id)
        yield Done()

    def _introduce(self) -> Actions:
        """Send the introduction, after which the log of the GoodAI LTM Benchmark has a reset."""
        if not self.settings.isolated:
            yield from self._send("", self.settings.introduction)
            self._log(EventType.SUITE_RESET, "")

    def _pick(self) -> Generator[Action, Message | str | Evaluation | None, ScheduledTest]:
        """The test whose turn it is; time passes, and then filler is sent, only if no test can speak without."""
        if found := self.waiting.reached(self.transcript.total_tokens, self._now):
            return self._all_tests[found]
        if test := self._startable():
            return test
        while found := self.waiting.next_in_time(self._now):
            yield Travel(self.waiting[found].time + AFTER_TRAVEL)
            if self.waiting[found].is_reached(self.transcript.total_tokens, self._now):
                return self._all_tests[found]
        while found := self.waiting.next_in_tokens(self.transcript.total_tokens):
            yield from self._fill(self.waiting[found].tokens - self.transcript.total_tokens)
            if self.waiting[found].is_reached(self.transcript.total_tokens, self._now):
                return self._all_tests[found]
        raise Stuck(f"no test can go on; {len(self.waiting)} wait")

    def _startable(self) -> ScheduledTest | None:
        """The first test that doesn't wait and may run beside all that do."""
        others = {self._all_tests[test_id].dataset.id for test_id in self.waiting}
        possible = (test for test in self.tests.values() if test.id not in self.waiting)
        return next((test for test in possible if self._compatible.allows(test.dataset.id, others)), None)

    def _turn(self, test: ScheduledTest) -> Actions:
        """Let the test speak until it waits or ends."""
        running = self.transcript.begun.get(test.id)
        if running is None:
            running = self.transcript.begin(test, self.transcript.total_tokens)
            self._log(EventType.BEGIN, test.id, tokens=self.transcript.total_tokens)
        goes_on = True
        while goes_on and (step := running.step(self._now)):
            if isinstance(step, Ask):
                yield from self._ask(running, step)
                continue
            if isinstance(step, Wait):
                goes_on = yield from self._pause(running, step)
            else:
                goes_on = yield from self._say(running, step)
            yield Save(Saved.PROGRESS)

    def _ask(self, running: RunningTest, ask: Ask) -> Actions:
        answer = yield AskModel(running.test.id, ask)
        assert isinstance(answer, str)
        running.reply = answer

    def _pause(self, running: RunningTest, wait: Wait) -> Generator[Action, Message | str | Evaluation | None, bool]:
        """Wait; whether the test goes on at once, which it does in isolated mode."""
        if self.settings.isolated:
            if wait.seconds > 0:
                yield Travel(self._now + wait.seconds)
            return True
        tokens = self.wait(running, wait, self._now)
        self._log(EventType.WAIT, running.test.id, tokens=tokens, time=int(wait.seconds))
        return False

    def _say(self, running: RunningTest, step: Say) -> Generator[Action, Message | str | Evaluation | None, bool]:
        """Send a message of the test; whether the test goes on."""
        yield from self._send(running.test.id, step.message, step.is_question)
        if step.register:
            self.register(running, self._now)
        return not (step.register and self.settings.isolated)

    def _call_back(self) -> None:
        """Call every callback, and let go of those that are done."""
        for running in list(self.callbacks):
            dataset, definition = running.test.dataset, running.test.definition
            verdict = dataset.callback(definition, self.transcript.conversation.tail(self._heard_from(running)))
            running.evaluation = verdict.evaluation
            if verdict.finished:
                running.finished = True
                self.callbacks.remove(running)
                self._log(EventType.DEREGISTER_CALLBACK, running.test.id)

    def _heard_from(self, running: RunningTest) -> int:
        """Where the conversation begins for a test's callback: at its first question. By the published rules, at the first message of any
        test that contains this question's text."""
        if running.heard_from is None:
            running.heard_from = running.first_question or 0
            if running.test.dataset.scoring == "published":
                question = self.transcript.conversation.messages[running.heard_from].text
                running.heard_from = self.transcript.conversation.first_with(question)
        return running.heard_from

    def _finish(self, running: RunningTest) -> Actions:
        """End a test: take back what it told the agent, score it, log it."""
        test = running.test
        if reset := self.settings.reset_message(test):
            yield from self._send(test.id, reset)
        if running.evaluation is None:
            given = yield Evaluate(test.id, test.definition, running.exchange)
            assert isinstance(given, Evaluation)
            running.evaluation = given
        self.ended.append(self.transcript.ended(running, running.evaluation))
        yield Save(Saved.RESULT)
        self._log(EventType.END, test.id)
        yield Save(Saved.AGENT)

    # --- Messages

    def _fill(self, tokens: int) -> Actions:
        """Send filler until this many tokens are used up."""
        remaining = tokens
        while remaining > 0:
            filler = self._filler.write(min(remaining, self.settings.max_message_size))
            before = self.transcript.total_tokens
            expected = None if self.callbacks else filler.expected_reply
            yield from self._send("", filler.message, expected_reply=expected, is_filler=True)
            remaining -= max(1, self.transcript.total_tokens - before)

    def _send(
        self,
        test_id: str,
        message: str,
        is_question: bool = False,
        *,
        is_filler: bool = False,
        expected_reply: str | None = None,
    ) -> Actions:
        yield Send(test_id, message, is_question, is_filler, expected_reply)

    def _log(self, kind: EventType, test_id: str, **data: Json) -> None:
        self.transcript.log(kind, self._now, test_id, **data)

    def _take(self, wanted: type[Action]) -> Action:
        pending, self._pending = self._pending, None
        if not isinstance(pending, wanted):
            self._pending = pending
            raise RuntimeError(f"no {wanted.__name__} is open")
        return pending
