"""The layouts of OpenAI's fine-tuning: for examples, which most other trainers read too, and for pairs.

From OpenAI's guides "Supervised fine-tuning" and "Direct preference optimization".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from manyhands.core.jsonio import Json
from manyhands.core.messages import text_of
from manyhands.export.chat import chat_messages, images_in, tool_definitions
from manyhands.export.conversations import Conversation, Turn
from manyhands.export.format import Format, Losses, Unfit
from manyhands.export.formats.training import IMAGES, pair_of, trainable, with_text_arguments

MIN_ROWS = 10
"""OpenAI starts no job with fewer examples."""
MAX_IMAGES = 10
"""Images of one example."""
MAX_TOOLS = 128
"""Tools of one example."""
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_PARTS = frozenset(["text", "image_url"])
"""The content parts that fine-tuning takes; audio and files it does not."""


class OpenAI(Format):
    """JSON Lines of ``{messages, tools, parallel_tool_calls}``: arguments as JSON text, a ``weight`` of 1 or 0 for each answer.

    ``tools`` is there if there are any, ``parallel_tool_calls`` where it was sent, and images of prompts stay. Reasoning is left out,
    because OpenAI knows no field for it; ``--reasoning field`` is for other readers of this layout (``reasoning_content``).
    """

    name = "openai"
    about = "OpenAI fine-tuning: messages and tools, a weight for each answer"

    def rows(self, conversation: Conversation) -> Iterator[Mapping[str, Json]]:
        turns = trainable(conversation)
        _check(conversation, turns)
        messages = _messages(turns, self.reasoning_mode, self.losses)
        for turn, message in zip(turns, messages, strict=True):
            if turn.role == "assistant":
                message["weight"] = int(turn.train)
        yield {"messages": messages, **_tools(conversation)}

    def notes(self, rows: Mapping[str, int]) -> Sequence[str]:
        return _few(rows)


class OpenAIPreference(Format):
    """JSON Lines of ``{input: {messages, tools, parallel_tool_calls}, preferred_output, non_preferred_output}``.

    OpenAI trains on one answer of each output and takes text alone, so pairs that differ by more than one message are left out.
    """

    name = "openai-dpo"
    about = "OpenAI preference fine-tuning: a prompt, a better and a worse answer"
    takes = "pairs"
    options = frozenset({"pairs", "min_gap"})
    needs_score = True

    def pair(self, chosen: Conversation, rejected: Conversation) -> Mapping[str, Json]:
        prompt, better, worse = pair_of(chosen, rejected)
        if len(better) > 1 or len(worse) > 1:
            raise Unfit("that differ by more than one message")
        _check(chosen, [*prompt, *better])
        _check(rejected, [*prompt, *worse])
        if images_in(prompt):
            raise Unfit("with images")
        mode, losses = self.reasoning_mode, self.losses
        return {
            "input": {"messages": _messages(prompt, mode, losses), **_tools(chosen)},
            "preferred_output": _messages(better, mode, losses),
            "non_preferred_output": _messages(worse, mode, losses),
        }

    def notes(self, rows: Mapping[str, int]) -> Sequence[str]:
        return _few(rows)


def _check(conversation: Conversation, turns: Sequence[Turn]) -> None:
    """Raises Unfit for what OpenAI refuses."""
    called = (call["function"]["name"] for turn in turns for call in turn.message.get("tool_calls") or ())
    named = (tool["function"]["name"] for tool in conversation.tools)
    if not all(_NAME.fullmatch(name) for names in (called, named) for name in names):
        raise Unfit("with tool names that OpenAI does not take")
    if len(conversation.tools) > MAX_TOOLS:
        raise Unfit(f"with more than {MAX_TOOLS} tools")
    users = [turn for turn in turns if turn.role == "user"]
    if images_in(users) > MAX_IMAGES:
        raise Unfit(f"with more than {MAX_IMAGES} images")
    contents = [content for turn in users if isinstance(content := turn.message.get("content"), list)]
    if not all(isinstance(part, dict) and part.get("type") in _PARTS for content in contents for part in content):
        raise Unfit("with content that is neither text nor an image")


def _messages(turns: Sequence[Turn], reasoning: str, losses: Losses) -> list[dict[str, Any]]:
    losses.add(IMAGES, images_in([turn for turn in turns if turn.role != "user"]))
    messages = with_text_arguments(chat_messages(turns, reasoning, losses))
    for message in messages:
        if message["role"] == "tool":
            message.pop("name", None)  # that of the call
        elif message["role"] != "user" and isinstance(message["content"], list):
            message["content"] = text_of(message["content"])
    return messages


def _tools(conversation: Conversation) -> dict[str, Json]:
    found: dict[str, Json] = {}
    if conversation.tools:
        found["tools"] = tool_definitions(conversation)
        if conversation.parallel_tool_calls is not None:
            found["parallel_tool_calls"] = conversation.parallel_tool_calls
    return found


def _few(rows: Mapping[str, int]) -> Sequence[str]:
    """The first split is what is trained on."""
    split, number = next(iter(rows.items()))
    return (
        [] if number >= MIN_ROWS else [f"OpenAI takes no fewer than {MIN_ROWS} rows to train on{split and ' ' + split}"]
    )
