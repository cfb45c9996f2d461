"""``--verbose``: one line for each prompt that ends, and one for each of its tool calls."""

from __future__ import annotations

from pathlib import Path

from manyhands.agents.trajectory import fold
from manyhands.cli.console import err
from manyhands.core.messages import Message
from manyhands.core.outcomes import Outcome
from manyhands.engine.context import Item
from manyhands.engine.reader import JournalReader


class ItemLog:
    """Writes to standard error; previews of arguments and results are cut to ``preview`` characters."""

    def __init__(self, folder: Path, preview: int) -> None:
        self._folder = folder
        self._preview = preview
        self._reader: JournalReader | None = None

    def show(self, item: Item, outcome: Outcome) -> None:
        """An item has ended."""
        console = err()
        record = outcome.record
        toolsets = ", ".join(record.get("toolsets", ())) or "none"
        why = outcome.reason or outcome.cause or record.get("stop_reason", "")
        number = item.payload["prompt_index"]
        console.print(f"[P{number}] {outcome.state} ({why}), toolsets {toolsets}", markup=False, soft_wrap=True)
        for line in self._calls(item):
            console.print(f"[P{number}]   {line}", markup=False, soft_wrap=True)

    def _calls(self, item: Item) -> list[str]:
        self._reader = self._reader or JournalReader(self._folder)
        row = self._reader.item(str(item.number))
        if row is None:
            return []
        messages = fold(self._reader.steps(row.number, row.attempt))
        results = {message.get("tool_call_id"): message for message in messages if message["role"] == "tool"}
        return [
            f"{call['function']['name']}({self._cut(call['function']['arguments'])}) -> {self._result(results.get(call['id']))}"
            for message in messages
            for call in message.get("tool_calls", [])
        ]

    def _result(self, message: Message | None) -> str:
        return "" if message is None else self._cut(str(message.get("content")))

    def _cut(self, text: str) -> str:
        line = " ".join(text.split())
        return line if len(line) <= self._preview else line[: self._preview] + "…"
