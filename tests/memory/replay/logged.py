"""What does as a log shows: a dataset, for tests whose rules can't be had, and filler."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence

from manyhands.workloads.memory.conversation.definitions import (
    Ask,
    Definition,
    Evaluation,
    Exchange,
    Json,
    Message,
    Play,
    Say,
    Scoring,
    Step,
    Verdict,
    Wait,
)
from manyhands.workloads.memory.conversation.events import Event, EventType
from manyhands.workloads.memory.conversation.filler import FactFiller
from manyhands.workloads.memory.conversation.schedule import Filler

UNSCORED = Evaluation(0.0, 1.0, ("not scored",))
DYNAMIC_WAITS = (20.0, 40.0, 60.0, 80.0, 90.0)
"""At which percentages of the memory span published dynamic tests go on; the log doesn't say."""

_IDS = {
    "NameList": "name_list",
    "Key-Value Pairs": "kv",
    "Conflicting Personal Information": "conflicting_personal_info",
}
"""Those ids that don't follow from the dataset's name."""


def id_of(name: str) -> str:
    """The id that configurations use for a dataset, from its name."""
    return _IDS.get(name, name.lower().replace(" ", "_"))


class LoggedDataset:
    """``log``: all events of the session; ``upcoming``: the event that comes next, None at the end; ``reset_message``: what is not part
    of a dynamic test although it is sent under its id."""

    scoring = "published"
    is_judged = False
    description = "does what the log shows"

    def __init__(
        self, name: str, log: Sequence[Event], upcoming: Callable[[], Event | None], reset_message: str = ""
    ) -> None:
        self.id = id_of(name)
        self.name = name
        self._log = log
        self._upcoming = upcoming
        self._reset_message = reset_message

    def generate(self, examples: int, seed: int, memory_span: int) -> Generator[Ask, str, Sequence[Definition]]:
        raise NotImplementedError("a log makes no tests")
        yield

    def temporal_question(self, definition: Definition, sent_at: Sequence[float], now: float) -> str:
        event = self._upcoming()
        return "" if event is None else event.message

    def callback(self, definition: Definition, conversation: Sequence[Message]) -> Verdict:
        event = self._upcoming()
        finished = (
            event is not None and event.type is EventType.DEREGISTER_CALLBACK and event.test_id == definition.unique_id
        )
        return Verdict(UNSCORED, finished)

    def play(self, definition: Definition) -> Play | None:
        return None if definition.is_question else self._play(definition.unique_id)

    def _play(self, test_id: str) -> Play:
        waits = iter(DYNAMIC_WAITS)
        for event in [event for event in self._log if event.test_id == test_id]:
            step = self._step(event, waits)
            if step is not None:
                yield step
        return UNSCORED

    def _step(self, event: Event, waits: Iterator[float]) -> Step | None:
        if event.type is EventType.SEND_MESSAGE and event.message != self._reset_message:
            return Say(event.message, event.is_question)
        if event.type is EventType.LLM_CALL:
            return Ask((), "logged")
        if event.type is EventType.WAIT:
            return Wait(seconds=event.data["time"], percentage=next(waits, 0.0))
        return None

    def evaluate(self, exchange: Exchange) -> Scoring:
        yield from ()
        return UNSCORED


def follows(play: Play, events: Sequence[Event], reset_message: str = "") -> bool:
    """Whether a dynamic test, played with the replies of a log, says and asks what the log shows. ``events``: those of the test."""
    step = _advance(play, None)
    for event in events:
        if event.type is EventType.SEND_MESSAGE and event.message != reset_message:
            while isinstance(step, Wait):  # isolated sessions don't log waits
                step = _advance(play, "")
            if step != Say(event.message, event.is_question):
                return False
        elif event.type is EventType.RESPONSE_MESSAGE and isinstance(step, Say):
            step = _advance(play, event.message)
        elif event.type is EventType.LLM_CALL:
            if not isinstance(step, Ask):
                return False
            step = _advance(play, str(event.data["response"]))
        elif event.type is EventType.WAIT:
            if not isinstance(step, Wait):
                return False
            step = _advance(play, "")
        elif event.type is EventType.END and step is not None:
            return False
    return True


def _advance(play: Play, reply: str | None) -> Step | None:
    try:
        return next(play) if reply is None else play.send(reply)
    except StopIteration:
        return None


class PublishedFiller(FactFiller):
    """Filler as the GoodAI LTM Benchmark has it, which lists the answers as Python writes a list."""

    def listed(self, answers: Sequence[str]) -> str:
        return repr(answers)


class LoggedFiller:
    """Filler texts are taken from the log. For each one, facts are drawn as the benchmark draws them; where they are not those of the text,
    the text is accepted, and ``others`` counts it.

    ``by_size``: whether tokens of any text can be counted, so that a text must also be as long as the benchmark would have made it.
    """

    def __init__(
        self, facts: FactFiller, preamble: str, upcoming: Callable[[], Event | None], *, by_size: bool = False
    ) -> None:
        self._facts = facts
        self._preamble = preamble
        self._upcoming = upcoming
        self._by_size = by_size
        self.others: dict[str, str] = {}
        """The texts that hold other facts, each with the beginning of what was drawn for it; where sizes are checked also those that are
        longer or shorter than they should be, for which the same was drawn."""

    @property
    def state(self) -> Json:
        return self._facts.state

    def restore(self, state: Json) -> None:
        self._facts.restore(state)

    def write(self, limit: int) -> Filler:
        event = self._upcoming()
        if event is None or event.type is not EventType.SEND_FILL:
            return self._facts.write(limit)
        if self._by_size:
            before = self._facts.state
            made = self._facts.write(limit)
            if made.message == event.message:
                return made
            self._facts.restore(before)
        drawn = self._drawn(event.message)
        if drawn != event.message or self._by_size:
            self.others.setdefault(event.message, drawn)
        return Filler(event.message, "")

    def _drawn(self, text: str) -> str:
        """What the benchmark would have written, drawn as long as the text is the same."""
        drawn = self._preamble
        while len(drawn) < len(text) and text.startswith(drawn):
            drawn += self._facts.draw()[1]
        return drawn
