"""The layout of OpenAI's fine-tuning, which most other trainers read too: for examples, and for pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from manyhands.core.jsonio import Json
from manyhands.export.chat import chat_messages, check_answered, tool_definitions, until_last_answer
from manyhands.export.conversations import Conversation
from manyhands.export.format import Format


class OpenAI(Format):
    """JSON Lines of ``{messages, tools, parallel_tool_calls}``."""

    name = "openai"
    about = "OpenAI fine-tuning: messages and tools, a weight for each answer"

    def rows(self, conversation: Conversation) -> Iterator[Mapping[str, Json]]:
        check_answered(conversation)
        turns = until_last_answer(conversation.turns)
        messages = chat_messages(turns, self.reasoning_mode, self.losses)
        for turn, message in zip(turns, messages, strict=True):
            if turn.role == "assistant":
                message["weight"] = int(turn.train)
        row: dict[str, Any] = {"messages": messages}
        if conversation.tools:
            row["tools"] = tool_definitions(conversation)
        yield row
