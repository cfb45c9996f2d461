"""A model that keeps notes by tools, and is shown its notes instead of what no longer fits."""

from __future__ import annotations

import json
from typing import Any

from manyhands.core.messages import Message, ToolCall
from manyhands.core.usage import ZERO
from manyhands.engine.contract import Context
from manyhands.workloads.memory.agents.chat import OVERHEAD, TokenLength, Window, as_messages
from manyhands.workloads.memory.agents.model_calls import ModelCaller
from manyhands.workloads.memory.conversation.agent import DEFAULT_MESSAGE_SIZE, Answer, Incoming

SYSTEM = (
    "You are an assistant in a long conversation, of which you see only the newest part. Whatever may matter later you write into your "
    "notes with the tools before you answer, and you keep the notes true and short. Answer briefly."
)
MAX_CALLS = 5
"""Model calls for one message."""
MAX_NOTES_SHARE = 0.3
"""The share of the context that the notes may take."""
TOOLS: tuple[dict[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "add_note",
            "description": "Add a line to your notes.",
            "parameters": {
                "type": "object",
                "properties": {"text": {"type": "string", "description": "What to remember."}},
                "required": ["text"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "replace_notes",
            "description": "Write all of your notes anew, to correct or to shorten them.",
            "parameters": {
                "type": "object",
                "properties": {"text": {"type": "string", "description": "All notes from now on."}},
                "required": ["text"],
                "additionalProperties": False,
            },
        },
    },
)


class ScratchpadAgent:
    """An agent that is a model which keeps notes.

    ``limit``: tokens of the model's context; ``reserve``: of these, for its reply."""

    def __init__(
        self,
        name: str,
        model: ModelCaller,
        token_length: TokenLength,
        *,
        limit: int,
        reserve: int,
        max_message_size: int = DEFAULT_MESSAGE_SIZE,
    ) -> None:
        self.name = name
        self.max_message_size = max_message_size
        self._model = model
        self._token_length = token_length
        self._window = Window(token_length, limit, reserve)
        self._most_notes = int((limit - reserve) * MAX_NOTES_SHARE)
        self._fixed = token_length(SYSTEM) + token_length(json.dumps(TOOLS)) + 2 * OVERHEAD
        self._notes = ""

    @property
    def simulated(self) -> bool:
        return self._model.simulated

    @property
    def notes(self) -> str:
        """What it has written down."""
        return self._notes

    async def reply(self, context: Context, incoming: Incoming) -> Answer:
        if incoming.expected_reply is not None:
            self._window.add(incoming.text, incoming.expected_reply, incoming.now)
            return Answer(incoming.expected_reply)
        said: Message = {"role": "user", "content": incoming.text}
        fixed = self._fixed + self._most_notes + self._token_length(incoming.text) + OVERHEAD
        past = as_messages(self._window.kept(fixed))
        turn, added, total, text = [said], [said], ZERO, ""
        for number in range(MAX_CALLS):
            tools = TOOLS if number < MAX_CALLS - 1 else ()
            messages = [self._head(), *past, *turn]
            message, usage, _ = await self._model.ask(context, messages, added=added, tools=tools)
            total = total + usage
            text = str(message.get("content") or "") or text
            calls = message.get("tool_calls") or []
            if not calls:
                break
            added = [self._performed(call) for call in calls]
            turn += [message, *added]
        self._window.add(incoming.text, text, incoming.now)
        return Answer(text, total)

    async def forward_time(self, context: Context, now: float) -> None:
        """Nothing: each message brings its time."""

    async def reset(self, context: Context) -> None:
        self._window.forget()
        self._notes = ""

    async def close(self) -> None:
        await self._model.close()

    def _head(self) -> Message:
        return {"role": "system", "content": f"{SYSTEM}\n\nYour notes:\n{self._notes or '(none yet)'}"}

    def _performed(self, call: ToolCall) -> Message:
        """Do what a tool call asks for; the result for the model."""
        result = self._change(call["function"]["name"], call["function"]["arguments"])
        return {"role": "tool", "tool_call_id": call["id"], "content": result}

    def _change(self, name: str, arguments: str) -> str:
        try:
            text = json.loads(arguments)["text"]
        except (ValueError, KeyError, TypeError):
            return 'error: the arguments must be an object such as {"text": "…"}'
        if not isinstance(text, str):
            return "error: text must be a text"
        if name == "add_note":
            notes = f"{self._notes}\n{text}".strip()
        elif name == "replace_notes":
            notes = text.strip()
        else:
            return f"error: there is no tool {name}; use add_note or replace_notes"
        tokens = self._token_length(notes)
        if tokens > self._most_notes:
            return f"error: that would make {tokens} tokens of notes, and {self._most_notes} fit; shorten them with replace_notes"
        self._notes = notes
        return f"noted ({tokens} of {self._most_notes} tokens)"
