"""What has been said and spent in a session: its events, messages, tests under way and counters. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from manyhands.memory.conversation import Conversation
from manyhands.memory.course import Run, ScheduledTest
from manyhands.memory.events import Event, EventType
from manyhands.memory.filler import FillerWriter
from manyhands.memory.model import Evaluation, Json, Message
from manyhands.memory.schedule_model import Counters, EndedTest


class Ledger:
    """``events``: the master log; ``runs``: the tests that have begun, by id; ``total_tokens``: of all messages and replies. Each text is
    counted once, by ``token_len``."""

    def __init__(self, filler: FillerWriter, token_len: Callable[[str], int]) -> None:
        self.events: list[Event] = []
        self.conversation = Conversation()
        self.runs: dict[str, Run] = {}
        self.total_tokens = 0
        self._agent_tokens = 0
        self._duration = 0.0
        self._filler = filler
        self._token_len = token_len

    @property
    def counters(self) -> Counters:
        return Counters(self.total_tokens, self._agent_tokens, self._duration, self._filler.state)

    def restore(self, events: Sequence[Event], counters: Counters) -> None:
        """Begin with the events of an earlier session and with what it had spent when it was saved last."""
        self.events.extend(events)
        self.total_tokens, self._agent_tokens = counters.total_tokens, counters.agent_tokens
        self._duration = counters.duration
        if counters.filler_state is not None:
            self._filler.restore(counters.filler_state)

    def begin(self, test: ScheduledTest, start_tokens: int) -> Run:
        """A test begins."""
        run = self.runs[test.id] = Run(test, start_tokens)
        return run

    def log(self, kind: EventType, now: float, test_id: str = "", **data: Json) -> None:
        """Something happened."""
        self.events.append(Event(kind, now, test_id, data))

    def exchanged(self, message: Message) -> None:
        """A message was sent and replied to."""
        kinds = (EventType.SEND_MESSAGE, EventType.RESPONSE_MESSAGE)
        if not message.test_id:
            kinds = (EventType.SEND_FILL, EventType.RESPONSE_FILL)
        is_question = message.is_question
        self.log(kinds[0], message.sent_at, message.test_id, message=message.text, is_question=is_question)
        self.log(kinds[1], message.replied_at, message.test_id, message=message.reply, is_question=is_question)
        tokens, reply_tokens = self.note(message)
        self.total_tokens += tokens
        self._agent_tokens += reply_tokens
        self._duration += message.replied_at - message.sent_at

    def note(self, message: Message) -> tuple[int, int]:
        """Take a message into the conversation, and into its test if that is under way; its tokens in all, and those of its reply."""
        reply_tokens = self._token_len(message.reply) if message.reply else 0
        tokens = reply_tokens + (self._token_len(message.text) if message.text else 0)
        if run := self.runs.get(message.test_id):
            if run.first is None:
                run.first = len(self.conversation)
            if run.first_question is None and message.is_question:
                run.first_question = len(self.conversation)
            run.messages.append(message)
            run.last_reply, run.reply = reply_tokens, message.reply
        self.conversation.append(message, tokens)
        return tokens, reply_tokens

    def ended(self, run: Run, evaluation: Evaluation) -> EndedTest:
        """A test ends with the next event."""
        last = len(self.conversation)
        first = last if run.first is None else run.first
        return EndedTest(
            test=run.test,
            evaluation=evaluation,
            exchange=run.exchange,
            first=first,
            last=last,
            ended=len(self.events),
            tokens=self.conversation.tokens(first, last),
            characters=self.conversation.characters(first, last),
        )
