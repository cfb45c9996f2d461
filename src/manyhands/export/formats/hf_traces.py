"""Session traces as the Hugging Face Hub shows them: a JSONL file for each conversation, a header and a line for each message.

Two layouts: the Hub's Session Trace Simple Format (``docs/hub/session-traces-format.md`` of huggingface/hub-docs), and the session format
of the agent Pi, version 3 (``session-format.md`` of earendil-works/pi), which the Hub takes as well, and of which the library ``datasets``
reads tool calls, too. Neither has a place for tools, scores and what was used by the item: these are in ``manyhands`` of the header.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, compact_line
from manyhands.core.messages import Message, ToolCall, text_of
from manyhands.export.chat import NO_CONVERSATION, arguments_of, call_of, images_in, tool_definitions, with_thinking
from manyhands.export.conversations import Conversation, ModelCall, Turn
from manyhands.export.files import DatasetCard, OneFileEach, Sink, file_name
from manyhands.export.format import Format, Losses, Unfit
from manyhands.export.settings import ExportSettings

HARNESS = "manyhands"
PI_VERSION = 3
PI_STOP_REASONS = {"tool_calls": "toolUse", "length": "length"}
"""What Pi calls finish reasons; the others are ``stop``."""


class HfTraces(Format):
    """A folder with one JSONL file for each conversation."""

    name = "hf-traces"
    about = "session traces for the Hugging Face Hub: one JSONL file for each conversation"
    suffix = ""
    in_folder = True
    reasoning = "field"
    options = frozenset({"hf_layout", "best_of"})

    def __init__(self, settings: ExportSettings, losses: Losses) -> None:
        super().__init__(settings, losses)
        self._card = DatasetCard({})
        if settings.output is not None and settings.output.endswith(".jsonl"):
            raise UserError(f"--output {settings.output}: hf-traces writes a file for each conversation; name a folder")

    def rows(self, conversation: Conversation) -> Iterator[Mapping[str, Json]]:
        """One row: the lines of the file, and what the file is called."""
        if not conversation.turns:
            raise Unfit(NO_CONVERSATION)
        self._card.add(conversation.run, conversation.model, simulated=conversation.simulated)
        lines = _Pi(self, conversation) if self.settings.hf_layout == "pi" else _Simple(self, conversation)
        name = file_name(conversation.item, conversation.key, conversation.name)
        yield {"name": name, "lines": [lines.header(), *lines.messages()]}

    def sink(self, path: Path) -> Sink:
        return OneFileEach(path, ".jsonl", lambda row: str(row["name"]), _written)

    def extra_files(self, files: Mapping[str, Sequence[str]]) -> Mapping[str, str]:
        """A dataset card, which says that these files alone are the data."""
        patterns = {
            split: [f"{folder}/*.jsonl".removeprefix("./") for folder in folders] for split, folders in files.items()
        }
        return {DatasetCard.NAME: self._card.text(patterns)}

    def thought(self, turn: Turn) -> tuple[str | None, bool]:
        """The reasoning of a message that is to be kept, and whether it goes before the content."""
        thought = turn.message.get("reasoning")
        if not thought or not thought.strip():
            return None, False
        if self.reasoning_mode == "drop":
            self.losses.add("messages' reasoning")
            return None, False
        return thought, self.reasoning_mode == "keep"


def _written(row: Mapping[str, Json]) -> bytes:
    return b"".join(map(compact_line, row["lines"]))


def _about(conversation: Conversation) -> dict[str, Any]:
    """What the header has for who reads more than the format."""
    return {
        "run": conversation.run,
        "item": conversation.item,
        "key": conversation.key,
        "sample": conversation.sample,
        "name": conversation.name,
        "agent": conversation.agent,
        "model": conversation.model,
        "simulated": conversation.simulated,
        "state": conversation.state.value,
        "stop_reason": conversation.stop_reason,
        "score": conversation.score,
        "verdict": conversation.verdict,
        "usage": conversation.usage.to_json(),
        "tools": tool_definitions(conversation),
    }


class _Simple:
    """The Hub's own layout."""

    def __init__(self, format: HfTraces, conversation: Conversation) -> None:
        self._format, self._conversation = format, conversation

    def header(self) -> dict[str, Any]:
        of = self._conversation
        return {
            "type": "session",
            "harness": HARNESS,
            "id": of.trace_id,
            "name": of.label or of.key,
            "manyhands": _about(of),
        }

    def messages(self) -> Iterator[dict[str, Any]]:
        self._format.losses.add("content parts that are no text", images_in(self._conversation.turns))
        for turn in self._conversation.turns:
            yield {"type": "message", "message": self._message(turn)}

    def _message(self, turn: Turn) -> dict[str, Any]:
        message = turn.message
        found: dict[str, Any] = {"role": message["role"], "content": text_of(message.get("content"))}
        thought, is_before = self._format.thought(turn)
        if thought is not None and is_before:
            found["content"] = with_thinking(thought, found["content"])
        elif thought is not None:
            found["reasoningContent"] = thought
        if calls := message.get("tool_calls"):
            found["toolCalls"] = [{"id": call["id"], "function": call_of(call)["function"]} for call in calls]
        if message["role"] == "tool":
            found["toolCallId"] = message.get("tool_call_id", "")
        if turn.at is not None:
            found["timestamp"] = int(turn.at * 1000)
        if turn.call is not None and turn.call.model is not None:
            found["model"] = turn.call.model
        return found


class _Pi:
    """The layout of Pi's sessions: a chain of entries, the parts of an answer in its content."""

    def __init__(self, format: HfTraces, conversation: Conversation) -> None:
        self._format, self._conversation = format, conversation
        self._at = conversation.started_at or 0.0
        self._names: dict[str, str] = {}
        """The names of the tools that were called, by the ids of the calls."""

    def header(self) -> dict[str, Any]:
        of = self._conversation
        return {
            "type": "session",
            "version": PI_VERSION,
            "id": of.trace_id,
            "timestamp": _iso(self._at),
            "cwd": "/",
            "harness": HARNESS,
            "name": of.label or of.key,
            "manyhands": _about(of),
        }

    def messages(self) -> Iterator[dict[str, Any]]:
        parent = None
        for number, turn in enumerate(self._conversation.turns):
            self._at = self._at if turn.at is None else turn.at
            entry = {"type": "message", "id": f"{number:08x}", "parentId": parent, "timestamp": _iso(self._at)}
            parent = entry["id"]
            yield entry | {"message": self._message(turn) | {"timestamp": int(self._at * 1000)}}

    def _message(self, turn: Turn) -> dict[str, Any]:
        message = turn.message
        if message["role"] == "assistant":
            return self._answer(turn)
        if message["role"] == "tool":
            call_id = message.get("tool_call_id", "")
            return {
                "role": "toolResult",
                "toolCallId": call_id,
                "toolName": message.get("name") or self._names.get(call_id, ""),
                "content": self._parts(message),
                "isError": bool(message.get("_failed")),
            }
        content = message.get("content")
        return {
            "role": message["role"],
            "content": self._parts(message) if isinstance(content, list) else text_of(content),
        }

    def _answer(self, turn: Turn) -> dict[str, Any]:
        message = turn.message
        parts: list[dict[str, Any]] = []
        thought, is_before = self._format.thought(turn)
        if thought is not None and not is_before:
            parts.append({"type": "thinking", "thinking": thought})
        if thought is not None and is_before:
            parts.append({"type": "text", "text": with_thinking(thought, text_of(message.get("content")))})
        elif message.get("content"):
            parts += self._parts(message)
        for call in message.get("tool_calls") or ():
            self._names[call["id"]] = call["function"]["name"]
            parts.append(_pi_call(call))
        found = {"role": "assistant", "content": parts}
        return found if turn.call is None else found | _pi_model_call(turn.call)

    def _parts(self, message: Message) -> list[dict[str, Any]]:
        content = message.get("content")
        return [self._part(part) for part in content] if isinstance(content, list) else [_text(text_of(content))]

    def _part(self, part: Json) -> dict[str, Any]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "image_url":
            image = part.get("image_url")
            url = str(image.get("url") if isinstance(image, dict) else image)
            head, _, data = url.partition(";base64,")
            if head.startswith("data:") and data:
                return {"type": "image", "data": data, "mimeType": head.removeprefix("data:")}
        if kind not in ("text", None):
            self._format.losses.add("content parts that are neither text nor images in the message")
        return _text(text_of([part]))


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _pi_call(call: ToolCall) -> dict[str, Any]:
    arguments = arguments_of(call)
    found = {"type": "toolCall", "id": call["id"], "name": call["function"]["name"], "arguments": arguments or {}}
    return found if arguments is not None else found | {"manyhands": {"arguments": call["function"]["arguments"]}}


def _pi_model_call(call: ModelCall) -> dict[str, Any]:
    usage = call.usage
    apart = usage.cached_tokens + usage.cache_write_tokens
    return {
        "api": "openai-completions",
        "provider": HARNESS,
        "model": call.model or "",
        "usage": {
            "input": max(0, usage.input_tokens - apart),
            "output": usage.output_tokens,
            "cacheRead": usage.cached_tokens,
            "cacheWrite": usage.cache_write_tokens,
            "totalTokens": usage.total_tokens,
            "cost": {"input": 0.0, "output": 0.0, "cacheRead": 0.0, "cacheWrite": 0.0, "total": usage.cost},
        },
        "stopReason": PI_STOP_REASONS.get(call.finish_reason or "", "stop"),
    }


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
