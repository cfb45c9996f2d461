"""``--verbose``: one line for each prompt that ends, and one for each of its tool calls."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from manyhands.agents.item_lines import item_lines
from manyhands.cli.console import err
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
        self._reader = self._reader or JournalReader(self._folder)
        record = outcome.record
        toolsets = ", ".join(record.get("toolsets", ())) or "none"
        why = outcome.reason or outcome.cause or record.get("stop_reason", "")
        label = f"P{item.payload['prompt_index']}"
        first, *calls = item_lines(label, item, outcome, why, self._reader, self._preview)
        for line in (f"{first}, toolsets {toolsets}", *calls):
            err().print(line, markup=False, soft_wrap=True)


class LogTail:
    """Shows what comes to a log file, line by line, on standard error. ``start``: the byte from which on."""

    def __init__(self, path: Path, start: int = 0) -> None:
        self._path = path
        self._place = start
        self._begun = b""

    @classmethod
    def from_now(cls, path: Path) -> Self:
        """Only what comes from now on."""
        return cls(path, path.stat().st_size if path.exists() else 0)

    def show(self) -> None:
        """Print the lines that have come since."""
        if not self._path.exists():
            return
        with self._path.open("rb") as log:
            log.seek(self._place)
            new = log.read()
        self._place += len(new)
        *lines, self._begun = (self._begun + new).split(b"\n")
        for line in lines:
            err().print(line.decode("utf-8", "replace"), markup=False, soft_wrap=True)
