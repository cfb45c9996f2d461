"""The canonical record as JSON Lines, and a flat table of what conversations came to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from manyhands.core.jsonio import Json
from manyhands.core.messages import text_of
from manyhands.export.conversations import Conversation, Turn
from manyhands.export.files import DatasetCard, Sink
from manyhands.export.format import Format, Losses
from manyhands.export.settings import ExportSettings
from manyhands.io.tables.csv import cell_text, harmless, line_writer

FIELDS = {
    "run": ("string", "name of the run's folder"),
    "run_id": ("string", "the run's id"),
    "workload": ("string", "kind of run"),
    "item": ("int64", "number of the item in its run"),
    "key": ("string", "identity of the item in its run"),
    "sample": ("int64", "which repeat of the same content it is, from 0"),
    "attempt": ("int64", "which attempt at the item it is, from 1"),
    "label": ("string", "what people call the item"),
    "name": ("string", "empty for the conversation of the item's agent, else as `judge NAME` or `stage NAME`"),
    "prompt_key": ("string", "the same for all samples of one prompt, in every run"),
    "ephemeral": ("string", "a paragraph of the system message that was sent and is not in the turns"),
    "tools_changed": ("bool", "whether the tools are not as they were sent"),
    "parallel_tool_calls": ("bool", "the setting of that name, where it was sent"),
    "agent": ("string", "who answered, where a run compares several"),
    "model": ("string", "the model that was asked"),
    "simulated": ("bool", "whether a simulated model wrote any of it"),
    "reason": ("string", "why the item was discarded, failed or was cancelled"),
    "stop_reason": ("string", "why the conversation ended"),
    "score": ("float64", "from 0 to 1; null if it was not graded"),
    "verdict": ("string", "pass, borderline or fail"),
    "started_at": ("float64", "when the item began, in seconds since 1970 UTC"),
    "finished_at": ("float64", "when the item ended, in seconds since 1970 UTC"),
    "seed": ("json", "the seed that was sent"),
    "tokens": ("int64", "tokens of the conversation, by the tokenizer of the export"),
    "result": ("json", "the structured result that was handed in, or the answer that was graded"),
    "version": ("string", "the version of manyhands that made the run, or of another program that did the item"),
    "turns": (
        "list: json",
        "each message with when it was there, whether a model may be trained on it, and the call that gave it",
    ),
    "tools": ("list: json", "the tools that were available, as chat completions have them"),
    "prefill": ("list: json", "messages that were sent behind the system message and are not in the turns"),
    "state": ("string", "how the item ended"),
    "scores": ("list: json", "of each grader its score, verdict, hits, misses, reasoning"),
    "usage": ("json", "what the item used, judges and abandoned attempts included"),
    "source": ("json", "the other fields of the row or test that it was made from"),
    "others": ("list: json", "the conversations of its judges"),
}
"""The fields of the canonical record: their types for the library ``datasets``, and what they hold.

Without a declared type, ``datasets`` goes by what it sees first, and can't read on where another run has other fields. Two things it does
whatever is declared: a column in which every text looks like a date becomes one of times, and a text in a column of ``json`` that looks
like JSON is read as such, so that only what is no text, or may be anything, is ``json``.
"""
BUFFER = 1 << 18


class Records(Format):
    """JSON Lines of the canonical record: one file, or a folder with a dataset card if the output has no suffix."""

    name = "jsonl"
    about = "everything that is known of a conversation, one JSON object a line"
    reasoning = "field"

    def __init__(self, settings: ExportSettings, losses: Losses) -> None:
        super().__init__(settings, losses)
        self.in_folder = settings.output not in (None, "-") and not Path(settings.output or "").suffix
        features = [
            f"- name: {name}\n    {kind if kind.startswith('list') else f'dtype: {kind}'}"
            for name, (kind, _) in FIELDS.items()
        ]
        self._card = DatasetCard({name: about for name, (_, about) in FIELDS.items()}, features)

    def rows(self, conversation: Conversation) -> Iterator[Mapping[str, Json]]:
        self._card.add(conversation.run, conversation.model, simulated=conversation.simulated)
        yield conversation.to_json()

    def extra_files(self, files: Mapping[str, Sequence[str]]) -> Mapping[str, str]:
        return {DatasetCard.NAME: self._card.text(files)}


COLUMNS = (
    *("run", "workload", "item", "key", "sample", "attempt", "label", "name", "agent", "model", "simulated"),
    *("state", "reason", "stop_reason", "score", "verdict", "seed"),
    *("messages", "answers", "tool_calls", "failed_calls", "prompt", "answer"),
    *("calls", "input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens"),
    *(
        "cost",
        "unpriced_calls",
        "simulated_calls",
        "tokens",
        "started_at",
        "finished_at",
        "seconds",
        "scores",
        "source",
    ),
)
"""Those of the flat table. The fields of the source are JSON in one column: which there are is known only when all rows are read."""
_AS_THEY_ARE = frozenset({str, int, type(None)})


class Csv(Format):
    """One flat row for each conversation, without its messages: figures, the first prompt and the last answer."""

    name = "csv"
    about = "a flat table: a row for each conversation with its figures, first prompt and last answer"
    suffix = ".csv"

    def rows(self, conversation: Conversation) -> Iterator[Mapping[str, Json]]:
        row: dict[str, Any] = {name: getattr(conversation, name, None) for name in COLUMNS}
        row |= conversation.usage.to_json()
        row |= _figures(conversation.turns)
        started, finished = conversation.started_at, conversation.finished_at
        row |= {
            "state": conversation.state.value,
            "started_at": _time(started),
            "finished_at": _time(finished),
            "seconds": None if started is None or finished is None else round(finished - started, 3),
            "scores": {str(score.get("name")): score.get("score") for score in conversation.scores},
            "source": dict(conversation.source),
        }
        yield row

    def sink(self, path: Path) -> Sink:
        return _Table(path)


def _figures(turns: Sequence[Turn]) -> dict[str, Any]:
    answers = [turn.message for turn in turns if turn.role == "assistant"]
    prompts = [turn.message for turn in turns if turn.role == "user"]
    return {
        "messages": len(turns),
        "answers": len(answers),
        "tool_calls": sum(len(message.get("tool_calls") or ()) for message in answers),
        "failed_calls": sum(bool(turn.message.get("_failed")) for turn in turns),
        "prompt": text_of(prompts[0].get("content")) if prompts else "",
        "answer": text_of(answers[-1].get("content")) if answers else "",
    }


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


class _Table(Sink):
    """A CSV file as those of jobs are, in which no cell is a formula."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=BUFFER)
        self._line = line_writer()
        self._file.write(self._line(COLUMNS))

    def write(self, row: Mapping[str, Json]) -> None:
        cells = (value if type(value := row[name]) in _AS_THEY_ARE else cell_text(value) for name in COLUMNS)
        self._file.write(self._line([harmless(cell) if isinstance(cell, str) else cell for cell in cells]))
        self.rows += 1

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
