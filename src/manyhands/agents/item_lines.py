"""What became of an item and what its agent did, in lines for people who watch."""

from __future__ import annotations

from collections.abc import Iterator

from manyhands.agents.trajectory import fold
from manyhands.core.messages import Message
from manyhands.core.outcomes import Outcome
from manyhands.engine.context import Item
from manyhands.engine.reader import JournalReader


def item_lines(
    label: str, item: Item, outcome: Outcome, why: str, reader: JournalReader, preview: int
) -> Iterator[str]:
    """A line for the item, then one for each of its last attempt's tool calls, whose arguments and results are cut to ``preview``
    characters. ``why``: what is said behind the state."""
    yield f"[{label}] {outcome.state} ({why})" if why else f"[{label}] {outcome.state}"
    for line in _calls(item, reader, preview):
        yield f"[{label}]   {line}"


def _calls(item: Item, reader: JournalReader, preview: int) -> Iterator[str]:
    row = reader.item(str(item.number))
    if row is None:
        return
    messages = fold(reader.steps(row.number, row.attempt))
    results = {message.get("tool_call_id"): message for message in messages if message["role"] == "tool"}
    for message in messages:
        for call in message.get("tool_calls", []):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            yield f"{name}({_cut(arguments, preview)}) -> {_result(results.get(call['id']), preview)}"


def _result(message: Message | None, preview: int) -> str:
    return "" if message is None else _cut(str(message.get("content")), preview)


def _cut(text: str, preview: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= preview else line[:preview] + "…"
