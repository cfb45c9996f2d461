"""Which rows of a file have messages or tools that OpenAI's own client has no type for: FILE → {rows, rejects}."""

import json
import sys
from typing import get_type_hints

from openai.types import chat
from pydantic import TypeAdapter, ValidationError

MESSAGE = TypeAdapter(chat.ChatCompletionMessageParam)
TOOL = TypeAdapter(chat.ChatCompletionFunctionToolParam)
KEYS = {
    "system": set(get_type_hints(chat.ChatCompletionSystemMessageParam)),
    "user": set(get_type_hints(chat.ChatCompletionUserMessageParam)),
    "assistant": set(get_type_hints(chat.ChatCompletionAssistantMessageParam)) | {"weight"},  # of fine-tuning alone
    "tool": set(get_type_hints(chat.ChatCompletionToolMessageParam)),
}


def forced(value):
    """What is declared as an iterable is checked only when it is gone through."""
    if isinstance(value, dict):
        return {key: forced(each) for key, each in value.items()}
    if isinstance(value, (str, int, float, type(None))):
        return value
    return [forced(each) for each in value]


def messages_of(row):
    """All lists of messages of a row of either layout."""
    if "messages" in row:
        return [row["messages"]]
    return [row["input"]["messages"], row["preferred_output"], row["non_preferred_output"]]


def check(row):
    for messages in messages_of(row):
        for message in messages:
            forced(MESSAGE.validate_python(message))
            if unknown := set(message) - KEYS[message["role"]]:
                raise ValueError(f"{message['role']} has {unknown}")
            for call in message.get("tool_calls", ()):
                json.loads(call["function"]["arguments"])
    for tool in row.get("input", row).get("tools", ()):
        forced(TOOL.validate_python(tool))


rejects, rows = [], 0
with open(sys.argv[1], encoding="utf-8") as lines:
    for line in lines:
        rows += 1
        try:
            check(json.loads(line))
        except (ValidationError, ValueError, KeyError) as error:
            rejects.append([rows, str(error)[:300]])
print(json.dumps({"rows": rows, "rejects": rejects}))
