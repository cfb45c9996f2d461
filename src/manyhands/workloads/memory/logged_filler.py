"""Filler as a log shows it, with the generator drawn along, so that its state can be compared with the saved one."""

from __future__ import annotations

from collections.abc import Callable

from manyhands.workloads.memory.conversation.definitions import Json
from manyhands.workloads.memory.conversation.events import Event, EventType
from manyhands.workloads.memory.conversation.filler import FactFiller
from manyhands.workloads.memory.conversation.schedule import Filler


class LoggedFiller:
    """Filler texts are taken from the log. For each one, facts are drawn as the original draws them; where they are not those of the text,
    the text is accepted, and ``others`` counts it.

    ``by_size``: whether tokens of any text can be counted, so that a text must also be as long as the original would have made it.
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
        """What the original would have written, drawn as long as the text is the same."""
        drawn = self._preamble
        while len(drawn) < len(text) and text.startswith(drawn):
            drawn += self._facts.draw()[1]
        return drawn
