"""The log of a conversation, a page at a time: what was said and what happened, each with its test, its virtual time and its token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

from manyhands.core.messages import Message
from manyhands.runs.shown.blocks import Block, Cell, Column, Fact, Facts, Link, Messages, Note, Table, Text
from manyhands.workloads.memory.conversation.events import LATEST, MESSAGES, RESPONSES, SENDS, Event, EventType
from manyhands.workloads.memory.conversation.tokens import TokenCounter
from manyhands.workloads.memory.report.formatting import MAX_MESSAGE_BYTES, TextBudget, brief, duration, whole

PAGE = 100
"""Events of a page."""
MAX_PAGE_BYTES = 1_000_000
"""Bytes of the texts of a page."""
MAX_TEXT_BYTES = 5_000_000
"""Bytes of one message that is shown by itself."""


def log_blocks(events: Sequence[Event], counter: TokenCounter, after: int, query: Mapping[str, str]) -> list[Block]:
    """A page of a log. ``after``: how many events are before it; ``query``: what links to other pages keep."""
    after = min(max(0, after), max(0, len(events) - 1))
    page = events[after : after + PAGE]
    tokens = sum(counter(event.message) for event in events[:after] if event.type in MESSAGES)
    budget = TextBudget(MAX_PAGE_BYTES)
    messages: list[Message] = []
    about: list[str] = []
    cuts: list[list[Cell]] = []
    for number, event in enumerate(page, after):
        text, more = budget.fit(event_text(event), MAX_MESSAGE_BYTES)
        if more:
            text = f"{text}… {whole(more)} more characters"
            link = Link(page="conversation", query={**query, "after": str(after), "message": str(number)})
            cuts.append([Cell(_what(event), link=link), Cell(whole(more), more)])
        messages.append({"role": _role(event), "content": text})
        about.append(" · ".join(filter(None, (moment(event), f"token {tokens:,}", _what(event)))))
        tokens += counter(event.message) if event.type in MESSAGES else 0
    around = _around(after, len(events), query)
    names = [brief(event.test_id) or ("filler" if event.type in MESSAGES else "benchmark") for event in page]
    found: list[Block] = [around, Messages(messages, "", names, about)]
    if cuts:
        columns = (Column("message", "message"), Column("more", "characters left out", is_number=True))
        found.append(Table(columns, cuts, "Messages that are cut here"))
    return [*found, around] if len(events) > PAGE else found


def message_blocks(event: Event) -> list[Block]:
    """One event by itself."""
    text, more = TextBudget(MAX_TEXT_BYTES).fit(event_text(event), MAX_TEXT_BYTES)
    found: list[Block] = [Text(text, " · ".join(filter(None, (brief(event.test_id), moment(event), _what(event)))))]
    if more:
        found.append(Note(f"{whole(more)} more characters are in the conversation's master log.", "muted"))
    return found


def first_events(events: Sequence[Event]) -> dict[str, int]:
    """Where each test begins in a log, by its name."""
    found: dict[str, int] = {}
    for number, event in enumerate(events):
        if event.test_id:
            found.setdefault(event.test_id, number)
    return found


def _around(after: int, events: int, query: Mapping[str, str]) -> Facts:
    """Where a page is, and what is before and behind it."""

    def page(first: int, words: str) -> Fact:
        return Fact(
            words, Cell(f"from {first + 1:,}", link=Link(page="conversation", query={**query, "after": str(first)}))
        )

    last = min(events, after + PAGE)
    facts = [Fact("events", Cell(f"{after + 1:,} to {last:,} of {events:,}" if events else "none yet"))]
    if after > 0:
        facts += [page(0, "first")] if after > PAGE else []
        facts.append(page(max(0, after - PAGE), "earlier"))
    if last < events:
        facts.append(page(last, "later"))
        facts += [page((events - 1) // PAGE * PAGE, "last")] if events - last > PAGE else []
    return Facts(facts)


def moment(event: Event) -> str:
    """The virtual time of an event; empty if no calendar has it."""
    try:
        return datetime.fromtimestamp(event.timestamp, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return ""


def _role(event: Event) -> Literal["user", "assistant", "system"]:
    if event.type in SENDS:
        return "user"
    return "assistant" if event.type in RESPONSES else "system"


def _what(event: Event) -> str:
    if event.type not in MESSAGES:
        return ""
    if event.type in SENDS:
        return "question" if event.is_question else "filler" if event.type is EventType.SEND_FILL else "statement"
    return "reply to filler" if event.type is EventType.RESPONSE_FILL else "reply"


_HAPPENED: Mapping[EventType, str] = {
    EventType.BEGIN: "The test begins.",
    EventType.END: "The test ends.",
    EventType.SUITE_RESET: "The conversation is ready here for its tests, or goes on after an interruption.",
    EventType.REGISTER_CALLBACK: "The test listens to all replies from here on.",
    EventType.DEREGISTER_CALLBACK: "The test no longer listens to all replies.",
}


def event_text(event: Event) -> str:
    """What was said, or else what happened, in a sentence."""
    if event.type in MESSAGES:
        return event.message
    if event.type is EventType.LLM_CALL:
        return f"The test asks a model, which answers:\n{event.data['response']}"
    if event.type is EventType.WAIT:
        return f"The test waits for {_waits(event)}."
    return _HAPPENED[event.type]


def _waits(event: Event) -> str:
    tokens, seconds = event.data["tokens"], event.data["time"]
    parts = [f"{tokens:,} tokens"] if isinstance(tokens, int) and tokens else []
    if isinstance(seconds, (int, float)) and 0 < seconds < LATEST:
        parts.append(f"{duration(seconds)} of virtual time")
    return " and ".join(parts) or "its turn"
