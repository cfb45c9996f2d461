"""One agent in one long conversation: the scheduler says what is next, the agent replies, and all of it is steps.

A message that the agent has answered is never sent again: when the conversation goes on after a crash, the engine gives back what is
recorded, and with it the scheduler, the virtual clock and the built-in agents come to the exact point where they were.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from manyhands.core.digests import digest
from manyhands.core.usage import ZERO, Usage
from manyhands.engine.contract import Context, Effect
from manyhands.workloads.memory.conversation.agent import Incoming, MemoryAgent
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

REPLIED = "replied"
"""The kind of a step that says how long a reply took."""
RESUMED = "resumed"
"""The kind of a step that says where a session went on."""
WAITED = "waited"
"""The kind of a step in which time really passed."""
NO_JUDGE = "not scored: a model has to judge answers of this dataset, and none is configured (judge_model)"
ESTIMATE = "not scored: the agent only estimates what one would cost"
TimeTravel = Literal["virtual", "process", "real"]


def exchange_mark(message: str, reply: str) -> str:
    """What a step keeps of a message and its reply, which are in the log."""
    return digest("exchange", [message, reply]).hex()[:32]


class Judge(Protocol):
    """The benchmark's own model. ``name``: as results name it."""

    @property
    def name(self) -> str: ...

    async def ask(self, context: Context, ask: Ask) -> tuple[str, Usage]:
        """Its reply, as a step. Raises ItemError."""
        ...


class Watcher(Protocol):
    """Gets to know what happens, to write files and to show it. What it is told is told again when a session goes on."""

    def ended(self, session: Conversation, test: EndedTest) -> None: ...

    def progress(self, session: Conversation) -> None: ...


@dataclass(slots=True)
class Conversation:
    """A conversation under way. ``judge``: None if there is none; ``travel``: how time passes.

    ``agent_usage``, ``managing_usage``: what the agent and the judge have used so far; ``unscored``: why tests have no score, by id;
    ``judged``: ids of the tests that the judge was asked about; ``sending``: the message that was last sent; ``now``: virtual time;
    ``is_free``: the agent's costs are not counted; ``is_estimate``: nothing is scored, and the judge is not asked;
    ``real_until``: the time of day until which real time has to pass now.
    """

    scheduler: Scheduler
    agent: MemoryAgent
    judge: Judge | None
    start: float
    watcher: Watcher
    travel: TimeTravel = "virtual"
    agent_usage: Usage = ZERO
    managing_usage: Usage = ZERO
    unscored: dict[str, str] = field(default_factory=dict)
    judged: set[str] = field(default_factory=set)
    sending: Send | None = None
    is_free: bool = False
    is_estimate: bool = False
    real_until: float | None = None
    now: float = field(init=False)
    _messages: int = field(init=False, default=0)
    _resumed_at: list[int] = field(init=False, default_factory=list)
    _went_on: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.now = self.start

    async def run(self, context: Context) -> None:
        """Hold the conversation to its end. Raises ItemError."""
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
                    self.scheduler.answered(await self._asked(benchmark, action.ask, action.test_id), self.now)
                case Evaluate():
                    self.scheduler.evaluated(await self._scored(benchmark, action))
                case Travel():
                    await self._travelled(context, action.to)
                case ResetAgent():
                    await self.agent.reset(context)
                case Save(what):
                    if what is Saved.RESULT:
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
        """Log where the session went on, now and whenever it is gone through again."""
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

    async def _travelled(self, context: Context, to: float) -> None:
        if self.travel == "real":
            await self._waited(context, to - self.now)
        self.now = to
        await self.agent.forward_time(context, to)

    async def _waited(self, context: Context, seconds: float) -> None:
        """Let time really pass: from when this was first asked for, whatever crashes come between."""

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

    async def _asked(self, benchmark: Context, ask: Ask, test_id: str) -> str:
        """What the judge replies; where there is none, nothing, and the test has no score."""
        if self.judge is None:
            self.unscored.setdefault(test_id, NO_JUDGE)
            return ""
        text, usage = await self.judge.ask(benchmark, ask)
        self.judged.add(test_id)
        self.managing_usage = self.managing_usage + usage
        return text

    async def _scored(self, benchmark: Context, action: Evaluate) -> Evaluation:
        if self.is_estimate:
            return Evaluation(0.0, 1.0, (ESTIMATE,))
        dataset = self.scheduler.runs[action.test_id].test.dataset
        if self.judge is None and getattr(dataset, "is_judged", False):
            self.unscored.setdefault(action.test_id, NO_JUDGE)
            return Evaluation(0.0, 1.0, (NO_JUDGE,))
        scoring: Generator[Ask, str, Evaluation] = dataset.evaluate(action.exchange)
        try:
            ask = next(scoring)
            while action.test_id not in self.unscored:
                ask = scoring.send(await self._asked(benchmark, ask, action.test_id))
        except StopIteration as end:
            evaluation: Evaluation = end.value
            return evaluation
        scoring.close()
        return Evaluation(0.0, 1.0, (NO_JUDGE,))


@dataclass(frozen=True, slots=True)
class WaitingTest:
    """A test that waits. ``tokens``: of conversation that it still waits for; ``seconds``: of virtual time."""

    test: str
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ConversationStatus:
    """``speaking``: the test whose message was last sent, empty for filler; ``now``: virtual time, in seconds since 1970 UTC;
    ``tokens``: of the whole conversation; ``ended``, ``tests``: how many tests have ended, and how many there are; ``score``: the mean of
    those that have; ``real_until``: a time of day, where real time has to pass until then."""

    agent: str
    speaking: str
    waiting: tuple[WaitingTest, ...]
    now: float
    tokens: int
    ended: int
    tests: int
    score: float | None
    real_until: float | None = None


def status_of(session: Conversation) -> ConversationStatus:
    """Where it stands now."""
    scheduler = session.scheduler
    total = scheduler.counters.total_tokens
    waiting = tuple(
        WaitingTest(test, max(0, target.tokens - total), max(0.0, target.time - session.now))
        for test, target in ((test, scheduler.waiting[test]) for test in scheduler.waiting)
    )
    shares = [each.evaluation.share for each in scheduler.ended if each.test.id not in session.unscored]
    return ConversationStatus(
        session.agent.name,
        session.sending.test_id if session.sending is not None else "",
        tuple(sorted(waiting, key=lambda each: (each.tokens, each.seconds))),
        session.now,
        total,
        len(scheduler.ended),
        len(scheduler.ended) + len(scheduler.tests),
        sum(shares) / len(shares) if shares else None,
        session.real_until,
    )
