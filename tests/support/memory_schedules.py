"""Tests of memory that do as they are told, and a driver that holds a session without an agent."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from manyhands.workloads.memory.conversation.definitions import (
    Ask,
    Definition,
    Evaluation,
    Exchange,
    Message,
    Play,
    Say,
    Scoring,
    Step,
    Verdict,
    Wait,
)
from manyhands.workloads.memory.conversation.filler import Fact, FactFiller, Wording
from manyhands.workloads.memory.conversation.schedule import (
    Action,
    AskModel,
    Done,
    Evaluate,
    ScheduledTest,
    SchedulerSettings,
    Send,
    Travel,
)
from tests.memory.replay.resuming import ResumableScheduler

WORDING = Wording("Hello.", "Answers as a list, please:\n", "<Question> <AnswerValue>\n", {})
FACTS = tuple(Fact(f"question {number}?", f"answer {number}") for number in range(50))
MIDDLE = Evaluation(0.5, 1.0, ("half",))


def count_words(text: str) -> int:
    """Tokens, as these doubles count them."""
    return len(text.split())


@dataclass
class ToldDataset:
    """``called_for``: replies after which a callback is done; ``steps``: of its tests if they are dynamic. ``conversations`` and
    ``heard``: what its callbacks were given, and how many messages that had then."""

    id: str
    called_for: int = 1
    steps: Sequence[Step] | None = None
    scoring: str = "mended"
    description: str = "a double"
    conversations: list[Sequence[Message]] = field(default_factory=list)
    heard: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.id.title()

    def test(
        self, example: int, script: Sequence[str], waits: Sequence[Wait] = (), *, calls_back: bool = False
    ) -> ScheduledTest:
        """A test whose last line is a question."""
        asked = tuple(at == len(script) - 1 for at in range(len(script)))
        definition = Definition(
            self.name,
            str(example),
            tuple(script),
            asked,
            tuple(waits) or (Wait(),) * len(script),
            uses_callback=calls_back,
        )
        return ScheduledTest(definition, self)

    def generate(self, examples: int, seed: int, memory_span: int) -> Generator[Ask, str, Sequence[Definition]]:
        yield from ()
        return []

    def temporal_question(self, definition: Definition, sent_at: Sequence[float], now: float) -> str:
        return f"What did you hear {now - sent_at[0]:.0f} seconds ago?"

    def callback(self, definition: Definition, conversation: Sequence[Message]) -> Verdict:
        self.conversations.append(conversation)
        self.heard.append(len(conversation))
        return Verdict(MIDDLE, len(conversation) >= self.called_for)

    def play(self, definition: Definition) -> Play | None:
        return None if self.steps is None else _play(self.steps)

    def evaluate(self, exchange: Exchange) -> Scoring:
        yield from ()
        return MIDDLE


def _play(steps: Sequence[Step]) -> Play:
    for step in steps:
        _ = yield step
    return MIDDLE


def scheduler_of(
    tests: Sequence[ScheduledTest],
    memory_span: int = 100,
    *,
    incompatibilities: Sequence[frozenset[str]] = (),
    isolated: bool = False,
    resets: bool = False,
) -> ResumableScheduler:
    """A schedule in which a word is a token. ``resets``: whether every test takes back at its end what it said."""
    messages = {test.dataset.name: f"Forget {test.dataset.name}." for test in tests} if resets else {}
    settings = SchedulerSettings(memory_span, WORDING.intro_message, messages, incompatibilities, isolated, 40)
    return ResumableScheduler(tests, settings, FactFiller(FACTS, WORDING, count_words), count_words)


def drive(
    scheduler: ResumableScheduler,
    reply: Callable[[Send], str] = lambda send: send.expected_reply or "Yes.",
    *,
    now: float = 1000.0,
    actions: int = 100_000,
    watch: Callable[[Action, float], None] = lambda action, now: None,
) -> list[Action]:
    """Hold a session, of at most so many actions; what the scheduler demanded. ``watch`` gets each action and its virtual time; a
    reply takes a second."""
    demanded: list[Action] = []
    while len(demanded) < actions:
        action = scheduler.next(now)
        demanded.append(action)
        watch(action, now)
        match action:
            case Send():
                scheduler.replied(reply(action), now, now + 1)
                now += 1
            case AskModel():
                scheduler.answered("{}", now)
            case Evaluate():
                scheduler.evaluated(MIDDLE)
            case Travel(to):
                now = to
            case Done():
                return demanded
            case _:
                pass
    return demanded


def says(*texts: str | Wait) -> tuple[Step, ...]:
    """The steps of a dynamic test, which asks a model once after each of its messages."""
    steps: list[Step] = []
    for text in texts:
        steps += [text] if isinstance(text, Wait) else [Say(text, is_question=True), Ask((), "double")]
    return tuple(steps)
