"""One agent in one long conversation: the scheduler says what is next, the agent replies, and all of it is steps.

A message that the agent has answered is never sent again: when the conversation goes on after a crash, the engine gives back what is
recorded, and with it the scheduler, the virtual clock and the built-in agents come to the exact point where they were.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from manyhands.core.digests import digest
from manyhands.core.usage import ZERO, Usage
from manyhands.engine.contract import Context, Effect
from manyhands.workloads.memory.conversation.definitions import Ask, Evaluation
from manyhands.workloads.memory.conversation.schedule import (
    AskModel,
    Done,
    EndedTest,
    Evaluate,
    ResetAgent,
    Save,
    Saved,
    Send,
    Travel,
)
from manyhands.workloads.memory.conversation.scheduler import Scheduler
from manyhands.workloads.memory.conversation.tokens import TokenCounter


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message for an agent."""

    number: int
    """Counts the conversation's messages from 1."""
    text: str
    now: float
    """Virtual time, in seconds since 1970 UTC."""
    expected_reply: str | None = None
    """What the agent may take for its own reply instead of making one (filler); None: it must really reply."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an agent replied, and what its model calls for it used."""

    text: str
    usage: Usage = ZERO


class MemoryAgent(ABC):
    """One agent in one conversation.

    What it does outside, it does as steps of ``context``, so that a conversation that is resumed after a crash gives it the same messages
    again without anything being done or paid twice: its state follows from the messages and the steps' outputs.
    """

    name: str
    """Names the agent and its settings, and its folder of results."""
    simulated: bool
    """Whether what it says is made up by this program."""
    max_message_size: int | None = None
    """Maximum tokens of a message that it takes; None: what the run says."""
    tokens: TokenCounter | None = None
    """How it counts tokens itself; None: as the benchmark does."""

    @abstractmethod
    async def reply(self, context: Context, incoming: Incoming) -> Answer:
        """Take a message and reply. Raises ItemError."""

    async def forward_time(self, context: Context, now: float) -> None:
        """The virtual time has jumped to ``now``. (Each message brings its time, too.)"""
        return

    async def reset(self, context: Context) -> None:
        """Forget everything."""
        return

    async def close(self) -> None:
        """Let go of what it has open."""
        return


REPLIED = "replied"
"""The kind of a step that says how long a reply took."""
RESUMED = "resumed"
"""The kind of a step that says where a conversation was resumed."""
WAITED = "waited"
"""The kind of a step in which time really passed."""
NO_JUDGE = "not scored: a model has to judge answers of this dataset, and none is configured (judge_model)"
ESTIMATE = "not scored: the agent only estimates what one would cost"
TimeTravel = Literal["virtual", "process", "real"]
"""How time passes: agents get the virtual time, the process's own clock shows it, or it really passes."""


def exchange_mark(message: str, reply: str) -> str:
    """What a step keeps of a message and its reply, which are in the log."""
    return digest("exchange", [message, reply]).hex()[:32]


class Judge(Protocol):
    """The benchmark's own model."""

    @property
    def name(self) -> str:
        """As results name it."""
        ...

    async def ask(self, context: Context, ask: Ask) -> tuple[str, Usage]:
        """Its reply, as a step. Raises ItemError."""
        ...


class Watcher(Protocol):
    """Gets to know what happens, to write files and to show it. When a conversation is resumed, it gets to know everything again."""

    def ended(self, conversation: Conversation, test: EndedTest, /) -> None: ...

    def progress(self, conversation: Conversation, /) -> None: ...


@dataclass(slots=True)
class Conversation:
    """A conversation under way."""

    scheduler: Scheduler
    agent: MemoryAgent
    judge: Judge | None
    start: float
    """Virtual time of its beginning, in seconds since 1970 UTC."""
    watcher: Watcher
    travel: TimeTravel = "virtual"
    agent_usage: Usage = ZERO
    """What the agent has used so far."""
    managing_usage: Usage = ZERO
    """What the judge has used so far."""
    unscored: dict[str, str] = field(default_factory=dict)
    """Why tests have no score, by their ids."""
    judged: set[str] = field(default_factory=set)
    """Ids of the tests for which the judge was called."""
    sending: Send | None = None
    """The message that was last sent."""
    is_free: bool = False
    """The agent's costs are not counted."""
    is_estimate: bool = False
    """Nothing is scored, and the judge is not called."""
    real_until: float | None = None
    """The time of day until which real time has to pass now."""
    now: float = field(init=False)
    """Virtual time."""
    _messages: int = field(init=False, default=0)
    _resumed_at: list[int] = field(init=False, default_factory=list)
    _went_on: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.now = self.start

    async def run(self, context: Context) -> None:
        """Run the conversation to its end. Raises ItemError."""
        resumes = context.scope("resumes")
        while resumes.replaying:
            self._resumed_at.append((await self._mark(resumes, 0))["before"])
        benchmark = context.scope("benchmark")
        while True:
            action = self.scheduler.next(self.now)
            match action:
                case Send():
                    await self._exchange(context, resumes, action)
                case AskModel():
                    self.scheduler.answered(await self._ask(benchmark, action.ask, action.test_id), self.now)
                case Evaluate():
                    self.scheduler.evaluated(await self._score(benchmark, action))
                case Travel():
                    await self._travel(context, action.to)
                case ResetAgent():
                    await self.agent.reset(context)
                case Save(Saved.RESULT):
                    ended = self.scheduler.ended[-1]
                    if self.is_estimate:
                        self.unscored[ended.test.id] = ESTIMATE
                    self.watcher.ended(self, ended)
                case Done():
                    break
            self.watcher.progress(self)

    # --- Messages

    async def _exchange(self, context: Context, resumes: Context, send: Send) -> None:
        self._messages += 1
        self.sending = send
        await self._note_resumption(context, resumes)
        began = context.clock.monotonic()
        incoming = Incoming(self._messages, send.message, self.now, send.expected_reply)
        answer = await self.agent.reply(context, incoming)

        async def effect() -> Effect:
            return Effect({"seconds": context.clock.monotonic() - began})

        request = {"number": self._messages, "exchange": exchange_mark(send.message, answer.text)}
        took: dict[str, Any] = await context.step(REPLIED, request, effect)
        self.agent_usage = self.agent_usage + (replace(answer.usage, cost=0.0) if self.is_free else answer.usage)
        sent_at, self.now = self.now, self.now + float(took["seconds"])
        self.scheduler.replied(answer.text, sent_at, self.now)

    async def _note_resumption(self, context: Context, resumes: Context) -> None:
        """Log where the conversation was resumed, now and whenever it is replayed."""
        if context.resumed and not context.replaying and not self._went_on:
            self._went_on = True
            if self._messages not in self._resumed_at:
                await self._mark(resumes, self._messages)
                self._resumed_at.append(self._messages)
        if self._messages in self._resumed_at:
            self.scheduler.mark_reset(self.now)

    async def _mark(self, resumes: Context, before: int) -> dict[str, Any]:
        async def effect() -> Effect:
            return Effect({"before": before})

        output: dict[str, Any] = await resumes.step(RESUMED, {}, effect)
        return output

    # --- Time

    async def _travel(self, context: Context, to: float) -> None:
        if self.travel == "real":
            await self._wait(context, to - self.now)
        self.now = to
        await self.agent.forward_time(context, to)

    async def _wait(self, context: Context, seconds: float) -> None:
        """Let time really pass: from when this was first called, whatever crashes come between."""

        async def begin() -> Effect:
            return Effect(context.clock.now())

        async def wait() -> Effect:
            self.real_until = began + seconds
            await context.clock.sleep(max(0.0, began + seconds - context.clock.now()))
            return Effect({})

        began = float(await context.step(WAITED, {"seconds": seconds, "what": "begin"}, begin))
        try:
            await context.step(WAITED, {"seconds": seconds, "what": "end"}, wait)
        finally:
            self.real_until = None

    # --- Scores

    async def _ask(self, benchmark: Context, ask: Ask, test_id: str) -> str:
        """What the judge replies; where there is none, nothing, and the test has no score."""
        if self.judge is None:
            self.unscored.setdefault(test_id, NO_JUDGE)
            return ""
        text, usage = await self.judge.ask(benchmark, ask)
        self.judged.add(test_id)
        self.managing_usage = self.managing_usage + usage
        return text

    async def _score(self, benchmark: Context, action: Evaluate) -> Evaluation:
        if self.is_estimate:
            return Evaluation(0.0, 1.0, (ESTIMATE,))
        dataset = self.scheduler.begun[action.test_id].test.dataset
        if self.judge is None and getattr(dataset, "is_judged", False):
            self.unscored.setdefault(action.test_id, NO_JUDGE)
            return Evaluation(0.0, 1.0, (NO_JUDGE,))
        scoring: Generator[Ask, str, Evaluation] = dataset.evaluate(action.exchange)
        try:
            ask = next(scoring)
            while action.test_id not in self.unscored:
                ask = scoring.send(await self._ask(benchmark, ask, action.test_id))
        except StopIteration as end:
            evaluation: Evaluation = end.value
            return evaluation
        scoring.close()
        return Evaluation(0.0, 1.0, (NO_JUDGE,))


@dataclass(frozen=True, slots=True)
class WaitingTest:
    """A test that waits."""

    test: str
    tokens: int
    """Tokens of conversation that it still waits for."""
    seconds: float
    """Virtual time that it still waits for."""


@dataclass(frozen=True, slots=True)
class ConversationStatus:
    """How far a conversation is."""

    agent: str
    speaking: str
    """The test whose message was last sent; empty for filler."""
    waiting: tuple[WaitingTest, ...]
    now: float
    """Virtual time, in seconds since 1970 UTC."""
    tokens: int
    """Of the whole conversation."""
    ended: int
    """Tests that have ended."""
    tests: int
    """Tests in all."""
    score: float | None
    """The mean of the tests that have ended and have a score."""
    real_until: float | None = None
    """A time of day, where real time has to pass until then."""


def status_of(conversation: Conversation) -> ConversationStatus:
    """How far it is now."""
    scheduler = conversation.scheduler
    total = scheduler.counters.total_tokens
    waiting = [
        WaitingTest(test, max(0, target.tokens - total), max(0.0, target.time - conversation.now))
        for test, target in scheduler.waiting.items()
    ]
    shares = [each.evaluation.share for each in scheduler.ended if each.test.id not in conversation.unscored]
    return ConversationStatus(
        conversation.agent.name,
        conversation.sending.test_id if conversation.sending is not None else "",
        tuple(sorted(waiting, key=lambda each: (each.tokens, each.seconds))),
        conversation.now,
        total,
        len(scheduler.ended),
        len(scheduler.ended) + len(scheduler.tests),
        sum(shares) / len(shares) if shares else None,
        conversation.real_until,
    )
