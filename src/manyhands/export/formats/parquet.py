"""Parquet with one declared schema for every run of every workload, so that files of different runs can be read together.

``messages`` has a struct for each message whose content is always text; tools, the source and whatever else differs from run to run is
JSON text. The files hold no time of their own, so the same conversations give the same bytes; their row groups are of bounded size.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from manyhands.core.jsonio import Json, dumps, without_surrogates
from manyhands.core.messages import text_of
from manyhands.export.chat import NO_CONVERSATION, chat_messages
from manyhands.export.conversations import Conversation
from manyhands.export.files import DatasetCard, Sink
from manyhands.export.format import Format, Losses, Unfit
from manyhands.export.settings import ExportSettings
from manyhands.io.tables.parquet_writer import need_parquet

COLUMNS = {
    "run": "name of the run's folder",
    "run_id": "the run's id",
    "workload": "kind of run",
    "item": "number of the item in its run",
    "key": "identity of the item in its run",
    "sample": "which repeat of the same content it is, from 0",
    "attempt": "which attempt at the item it is, from 1",
    "label": "what people call the item",
    "name": "empty for the conversation of the item's agent, else as `judge NAME` or `stage NAME`",
    "prompt_key": "the same for all samples of one prompt, in every run",
    "agent": "who answered, where a run compares several",
    "model": "the model that was asked",
    "simulated": "whether a simulated model wrote any of it",
    "state": "how the item ended",
    "reason": "why it was discarded, failed or was cancelled",
    "stop_reason": "why the conversation ended",
    "score": "from 0 to 1; null if it was not graded",
    "verdict": "pass, borderline or fail",
    "seed": "the seed that was sent",
    "started_at": "when the item began",
    "finished_at": "when the item ended",
    "tokens": "tokens of the conversation, by the tokenizer of the export",
    "calls": "model calls of the item, judges and abandoned attempts included, as in the columns that follow",
    "input_tokens": "input tokens, as endpoints counted them",
    "output_tokens": "output tokens",
    "cached_tokens": "input tokens that the endpoint had in its cache",
    "cache_write_tokens": "input tokens that were written into the cache",
    "reasoning_tokens": "output tokens that were reasoning",
    "cost": "US dollars",
    "unpriced_calls": "calls whose price is unknown, and which the cost leaves out",
    "simulated_calls": "calls that a simulated model answered",
    "messages": "the conversation; `train` marks what a model may be trained on, `content_parts` is JSON text of a content that is no text",
    "tools": "JSON text: the tools that were available, as chat completions have them",
    "source": "JSON text: the other fields of the row or test that it was made from",
    "scores": "JSON text: of each grader its score, verdict, hits, misses, reasoning",
    "result": "JSON text: the structured result that was handed in, or the answer that was graded",
    "extra": "JSON text: the model call of each answer (`calls`), and settings of the conversation",
}
"""What the columns hold, in their order."""
_TEXTS = (
    *("run", "run_id", "workload", "key", "label", "name", "prompt_key", "agent", "model"),
    *("reason", "stop_reason", "verdict", "state"),
)
_NUMBERS = ("item", "sample", "attempt", "seed", "tokens")
_TIMES = ("started_at", "finished_at")
_JSON = ("tools", "source", "scores", "result", "extra")
_PLAIN = (
    "run",
    "run_id",
    "workload",
    "item",
    "key",
    "sample",
    "attempt",
    "label",
    "name",
    "prompt_key",
    "agent",
    "model",
)
_PLAIN_TOO = ("simulated", "reason", "stop_reason", "score", "verdict", "tokens")
"""The fields of a conversation that are columns as they are."""
_INT64 = 1 << 63
_BATCH_ROWS, _BATCH_SIZE = 1000, 4 << 20
"""Rows that are held as Python objects at once, and about how many characters of text."""
_GROUP_ROWS, _GROUP_BYTES = 20_000, 32 << 20
"""How large a row group may get: it is held until it is written."""


class Parquet(Format):
    """A folder of Parquet files with a dataset card, or one file if the output is called so."""

    name = "parquet"
    about = "Parquet with one schema for all runs, and a dataset card (or one file: -o NAME.parquet)"
    suffix = ".parquet"
    in_folder = True
    reasoning = "field"

    def __init__(self, settings: ExportSettings, losses: Losses) -> None:
        """Raises UserError if the libraries for it are not installed."""
        super().__init__(settings, losses)
        need_parquet()
        self._card = DatasetCard(COLUMNS)
        if settings.output is not None and settings.output.endswith(".parquet"):
            self.in_folder = False

    def rows(self, conversation: Conversation) -> Iterator[Mapping[str, Json]]:
        if not conversation.turns:
            raise Unfit(NO_CONVERSATION)
        self._card.add(conversation.run, conversation.model, simulated=conversation.simulated)
        row: dict[str, Any] = {name: getattr(conversation, name) for name in (*_PLAIN, *_PLAIN_TOO)}
        row |= conversation.usage.to_json()
        row |= {name: _microseconds(getattr(conversation, name)) for name in _TIMES}
        row["state"] = conversation.state.value
        seed = conversation.seed
        row["seed"] = seed if seed is not None and -_INT64 <= seed < _INT64 else None
        row["messages"] = self._messages(conversation)
        row["tools"] = _text(list(conversation.tools))
        row["source"] = _text(dict(conversation.source))
        row["scores"] = _text(list(conversation.scores))
        row["result"] = None if conversation.result is None else _text(conversation.result)
        row["extra"] = _text(_extra(conversation))
        yield row

    def sink(self, path: Path) -> Sink:
        return _Rows(path)

    def extra_files(self, files: Mapping[str, Sequence[str]]) -> Mapping[str, str]:
        return {DatasetCard.NAME: self._card.text(files)}

    def _messages(self, conversation: Conversation) -> list[dict[str, Any]]:
        messages = chat_messages(conversation.turns, self.reasoning_mode, self.losses)
        for turn, message in zip(conversation.turns, messages, strict=True):
            content = message["content"]
            message["train"] = turn.train
            if not isinstance(content, str):
                message["content"] = text_of(content)
                message["content_parts"] = None if content is None else _text(content)
        return messages


def _extra(conversation: Conversation) -> dict[str, Any]:
    calls = [
        {"message": number, **turn.to_json()["call"]} for number, turn in enumerate(conversation.turns) if turn.call
    ]
    found: dict[str, Any] = {"calls": calls} if calls else {}
    if conversation.parallel_tool_calls is not None:
        found["parallel_tool_calls"] = conversation.parallel_tool_calls
    if conversation.tools_changed:
        found["tools_changed"] = True
    return found


def _text(value: Json) -> str:
    return dumps(value).decode()


def _microseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)


@cache
def schema() -> Any:
    """The schema of all files, as ``pyarrow`` has it. Raises UserError if that is not installed."""
    need_parquet()
    import pyarrow

    text = pyarrow.string()
    function = pyarrow.struct([("name", text), ("arguments", text)])
    call = pyarrow.struct([("id", text), ("type", text), ("function", function)])
    message = pyarrow.struct(
        [
            *(("role", text), ("content", text), ("reasoning_content", text), ("tool_calls", pyarrow.list_(call))),
            *(("tool_call_id", text), ("name", text), ("train", pyarrow.bool_()), ("content_parts", text)),
        ]
    )
    kinds = dict.fromkeys(COLUMNS, pyarrow.int64())
    kinds |= dict.fromkeys((*_TEXTS, *_JSON), text) | dict.fromkeys(_TIMES, pyarrow.timestamp("us", "UTC"))
    kinds |= {"simulated": pyarrow.bool_(), "score": pyarrow.float64(), "cost": pyarrow.float64()}
    return pyarrow.schema([*(kinds | {"messages": pyarrow.list_(message)}).items()])


class _Rows(Sink):
    """One Parquet file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._writer = need_parquet().ParquetWriter(self._file, schema(), compression="zstd")
        self._waiting: list[Mapping[str, Json]] = []
        self._size = 0
        self._batches: list[Any] = []

    def write(self, row: Mapping[str, Json]) -> None:
        self._waiting.append(row)
        self._size += _size(row)
        self.rows += 1
        if len(self._waiting) >= _BATCH_ROWS or self._size >= _BATCH_SIZE:
            self._add_batch()

    def close(self) -> None:
        self._add_batch()
        self._write_group()
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def _add_batch(self) -> None:
        if not self._waiting:
            return
        self._batches.append(_batch(self._waiting))
        self._waiting, self._size = [], 0
        if (
            sum(batch.num_rows for batch in self._batches) >= _GROUP_ROWS
            or sum(batch.nbytes for batch in self._batches) >= _GROUP_BYTES
        ):
            self._write_group()

    def _write_group(self) -> None:
        import pyarrow

        if self._batches:
            self._writer.write_table(
                pyarrow.Table.from_batches(self._batches), row_group_size=_GROUP_ROWS + _BATCH_ROWS
            )
            self._batches = []


def _batch(rows: list[Mapping[str, Json]]) -> Any:
    import pyarrow

    try:
        return pyarrow.RecordBatch.from_pylist(rows, schema=schema())
    except UnicodeEncodeError:
        return pyarrow.RecordBatch.from_pylist([_encodable(row) for row in rows], schema=schema())


def _encodable(value: Json) -> Json:
    """A value without lone surrogates, which UTF-8 can't hold."""
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, dict):
        return {name: _encodable(each) for name, each in value.items()}
    return [_encodable(each) for each in value] if isinstance(value, list) else value


def _size(row: Mapping[str, Json]) -> int:
    """About how much text a row has."""
    texts = sum(len(row[name] or "") for name in _JSON)
    return texts + sum(
        len(message["content"])
        + len(message.get("reasoning_content") or "")
        + sum(len(call["function"]["arguments"]) for call in message.get("tool_calls") or ())
        for message in row["messages"]
    )
