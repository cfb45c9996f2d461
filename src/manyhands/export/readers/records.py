"""The canonical record of a conversation, as ``manyhands export --to jsonl`` writes it; and as an imported run keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from manyhands.core.messages import Message
from manyhands.core.outcomes import ItemState
from manyhands.core.usage import MAX_COST, TokenFigures, Usage
from manyhands.export.conversations import Conversation, ModelCall, Turn
from manyhands.export.readers.chat import begun, content_of, tool_definitions
from manyhands.export.readers.fields import Field
from manyhands.export.readers.reader import Reader

_TEXTS = ("run", "run_id", "workload", "key", "label", "name", "prompt_key")
_OPTIONAL_TEXTS = ("ephemeral", "agent", "model", "reason", "stop_reason", "verdict", "version")
_NUMBERS = ("item", "sample", "attempt")
_MOMENTS = ("started_at", "finished_at")
_FLAGS = ("tools_changed", "simulated")
_ROLES = ("system", "user", "assistant", "tool")
_MESSAGE_TEXTS = ("tool_call_id", "name", "reasoning", "_reasoning_field", "_synthetic")
_BIGGEST = 2**63


class RecordReader(Reader):
    """Lines of ``export --to jsonl``."""

    name = "jsonl"
    about = "everything that manyhands knows of a conversation, as export --to jsonl writes it"

    def conversation(self, row: Field, path: Path) -> Conversation:
        if not row.get("turns").given:
            raise row.error('has no "turns": no line of manyhands export --to jsonl')
        found = read_record(row)
        if self.id_field is not None:
            found.key = self.row_id(row)[0]
        return found


def read_record(field: Field) -> Conversation:
    """The conversation of a canonical record, also of one that another version wrote: fields that are missing have their defaults.
    Raises BadRow."""
    found = begun()
    for name in _TEXTS:
        setattr(found, name, field.get(name).optional_text() or "")
    for name in _OPTIONAL_TEXTS:
        setattr(found, name, field.get(name).optional_text())
    for name in _NUMBERS:
        setattr(found, name, field.get(name).whole() or 0)
    for name in _MOMENTS:
        setattr(found, name, field.get(name).moment())
    for name in _FLAGS:
        setattr(found, name, field.get(name).flag())
    parallel, state, source = field.get("parallel_tool_calls"), field.get("state"), field.get("source")
    found.turns = [_turn(each) for each in field.get("turns").elements()]
    found.tools = tool_definitions(field.get("tools"))
    found.prefill = [_message(each) for each in field.get("prefill").elements()]
    found.parallel_tool_calls = parallel.flag() if parallel.given else None
    if state.given:
        found.state = ItemState(state.one_of(*(each.value for each in ItemState)))
    found.score = field.get("score").number(0, 1)
    found.scores = [dict(each.members()) for each in field.get("scores").elements()]
    found.usage = read_usage(field.get("usage"))
    found.seed = field.get("seed").whole(0, _BIGGEST)
    found.source = dict(source.members()) if source.given else {}
    found.tokens = field.get("tokens").whole()
    found.result = field.get("result").value
    found.others = [read_record(each) for each in field.get("others").elements()]
    return found


def read_usage(field: Field) -> Usage:
    """What calls used, as ``Usage.to_json`` has it; nothing of what is not given. Raises BadRow."""
    if not field.given:
        return Usage()
    counts = {name: field.get(name).whole() or 0 for name in TokenFigures.__annotations__}
    return Usage(**counts, cost=field.get("cost").number(0, MAX_COST) or 0.0)


def _turn(field: Field) -> Turn:
    call = field.get("call")
    return Turn(
        _message(field.get("message")),
        field.get("at").moment(),
        _model_call(call) if call.given else None,
        field.get("train").flag(),
    )


def _model_call(field: Field) -> ModelCall:
    return ModelCall(
        field.get("step").text(),
        field.get("model").optional_text(),
        read_usage(field.get("usage")),
        field.get("started_at").moment() or 0.0,
        field.get("finished_at").moment() or 0.0,
        field.get("finish_reason").optional_text(),
    )


def _message(field: Field) -> Message:
    """A message of ours: what is in it stays as it is."""
    message = field.members()
    field.get("role").one_of(*_ROLES)
    if field.get("content").given:
        content_of(field.get("content"))
    for name in _MESSAGE_TEXTS:
        if field.get(name).given:
            field.get(name).text()
    for call in field.get("tool_calls").elements():
        call.get("id").text()
        function = call.get("function")
        function.get("name").text()
        function.get("arguments").text()
    return cast(Message, {name: value for name, value in message.items() if value is not None or name == "content"})


# --- As an imported run keeps it


def kept_record(conversation: Conversation) -> dict[str, Any]:
    """The record without what is as it is by default."""
    found = {name: value for name, value in conversation.to_json().items() if value != _BLANK[name]}
    if conversation.others:
        found["others"] = [kept_record(other) for other in conversation.others]
    return found


def from_kept(record: Mapping[str, Any]) -> Conversation:
    """The reverse of ``kept_record``, also of what an earlier version kept."""
    others = record.get("others", ())
    found = Conversation.from_json(
        {**_BLANK, **{name: record[name] for name in record if name in _BLANK}, "others": []}
    )
    found.others = [from_kept(other) for other in others]
    return found


_BLANK = begun().to_json()
