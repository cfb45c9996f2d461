"""Runs exported in tests: what their sources give, and what formats make of it."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import closing
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

from manyhands.core.messages import text_of
from manyhands.core.usage import ZERO, Usage
from manyhands.engine.journal.reader import JournalReader
from manyhands.export.conversations import Conversation, Turn, conversations_of, source_of
from manyhands.export.exporting import Report, export
from manyhands.export.settings import ExportSettings


def conversations(folder: Path) -> list[Conversation]:
    """All that a run's source gives, of items in whatever state."""
    with closing(JournalReader(folder)) as reader:
        source = source_of(reader)
        assert source is not None
        return [found for _, found in conversations_of(source, list(reader.items()))]


def exported(folder: Path, to: str = "openai", **settings: Any) -> list[dict[str, Any]]:
    """The rows of an export."""
    return exported_with_report(folder, to, **settings)[0]


def exported_with_report(folder: Path, to: str = "openai", **settings: Any) -> tuple[list[dict[str, Any]], Report]:
    """The rows of an export, and what it came to."""
    stream = io.BytesIO()
    report = export([folder], ExportSettings.make({"to": to, **settings}), stream=stream)
    return [json.loads(line) for line in stream.getvalue().splitlines()], report


def used(folder: Path) -> Usage:
    """What a run has used, by its ledger."""
    with closing(JournalReader(folder)) as reader:
        return reader.usage()


def summed(found: Sequence[Conversation]) -> Usage:
    """The usage of conversations, those of judges included."""
    return reduce(add, (each.usage + summed(each.others) for each in found), ZERO)


def brief(turns: Sequence[Turn]) -> list[tuple[str, str]]:
    """Roles and texts of turns; of tool calls ``name(arguments)``."""
    return [(turn.role, _said(turn)) for turn in turns]


def _said(turn: Turn) -> str:
    calls = [call["function"] for call in turn.message.get("tool_calls") or ()]
    texts = [text_of(turn.message.get("content")), *(f"{each['name']}({each['arguments']})" for each in calls)]
    return " ".join(filter(None, texts))


def own_keys(value: Any) -> list[str]:
    """The keys, at any depth, that begin with ``_``, as those of our own do."""
    if isinstance(value, dict):
        return [key for key in value if key.startswith("_")] + [
            key for part in value.values() for key in own_keys(part)
        ]
    return [key for part in value for key in own_keys(part)] if isinstance(value, list) else []
