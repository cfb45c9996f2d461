"""Agents that are a model: shown the newest part of the conversation, besides it what a search in earlier messages finds, or its own notes.

The search is SQLite's full text search (FTS5, ranked by BM25), or by the cosine similarity of embeddings. What was found is put before the
newest messages, oldest first, with how long ago it was said.
"""

from __future__ import annotations

import json
import re
import sqlite3
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any, Protocol

from manyhands.core.messages import Message, ToolCall
from manyhands.core.usage import ZERO, Usage
from manyhands.engine.contract import Context
from manyhands.workloads.memory.agents.model_calls import ModelCaller
from manyhands.workloads.memory.conversation.driver import Answer, Incoming, MemoryAgent

TokenLength = Callable[[str], int]
OVERHEAD = 4
"""Tokens that a message takes besides its text, as chat formats count."""
NO_LIMIT = 1 << 60
"""Tokens that no conversation has."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A message of the user and the reply to it."""

    user: str
    reply: str
    sent_at: float
    """Virtual time, in seconds since 1970 UTC."""
    tokens: int


@dataclass(frozen=True, slots=True)
class ContextSize:
    """How much a model can be sent."""

    limit: int | None
    """Tokens of its context; None if there is no limit."""
    reserve: int
    """Tokens of the context that are kept free for the reply."""

    @classmethod
    def of(cls, limit: int | None, max_response_tokens: int) -> ContextSize:
        """At most a quarter of a context is kept free for the reply."""
        return cls(limit, max_response_tokens if limit is None else min(max_response_tokens, limit // 4))

    @property
    def free(self) -> int:
        """Tokens for what is sent."""
        return NO_LIMIT if self.limit is None else self.limit - self.reserve


class Window:
    """A conversation, and the newest part of it that fits into a context.

    (The chat agent of the GoodAI LTM Benchmark starts its budget with the size of the whole history instead of the part that is kept, so
    that long histories leave its model with nothing but the last message. Here, what is kept is counted.)
    """

    def __init__(self, token_length: TokenLength, free: int) -> None:
        """``free``: tokens for what is sent."""
        self._token_length = token_length
        self._free = free
        self.pairs: list[Pair] = []

    def add(self, user: str, reply: str, sent_at: float) -> None:
        """A message and its reply, which are from now on the newest."""
        tokens = self._token_length(user) + self._token_length(reply) + 2 * OVERHEAD
        self.pairs.append(Pair(user, reply, sent_at, tokens))

    def kept(self, fixed: int) -> list[Pair]:
        """The newest pairs that fit beside ``fixed`` tokens, oldest first."""
        free = self._free - fixed
        first = len(self.pairs)
        while first and self.pairs[first - 1].tokens <= free:
            first -= 1
            free -= self.pairs[first].tokens
        return self.pairs[first:]

    def forget(self) -> None:
        self.pairs.clear()


class ModelAgent(MemoryAgent):
    """An agent that is a model. What the model is sent for a message, a subclass says."""

    def __init__(self, name: str, model: ModelCaller, token_length: TokenLength, free: int, *instructions: str) -> None:
        """``free``: tokens for the newest messages and the instructions; ``instructions``: what the model is sent besides the messages."""
        self.name = name
        self.simulated = model.simulated
        self._model = model
        self._token_length = token_length
        self._window = Window(token_length, free)
        self._fixed = self._size(*instructions)

    async def reply(self, context: Context, incoming: Incoming) -> Answer:
        if incoming.expected_reply is not None:  # filler is kept, and the model is not called
            answer = Answer(incoming.expected_reply)
        else:
            answer = await self._answer(context, incoming)
        self._window.add(incoming.text, answer.text, incoming.now)
        return answer

    @abstractmethod
    async def _answer(self, context: Context, incoming: Incoming) -> Answer:
        """What the model answers to a message. Raises ItemError."""

    async def reset(self, context: Context) -> None:
        self._window.forget()

    async def close(self) -> None:
        await self._model.close()

    def _size(self, *texts: str) -> int:
        """Tokens of messages with these texts."""
        return sum(self._token_length(text) + OVERHEAD for text in texts)


SYSTEM = "You are an assistant in a long conversation. Answer briefly, and keep to what you were told in it."


class ChatAgent(ModelAgent):
    """A model with as much of the conversation as its context holds."""

    def __init__(
        self, name: str, model: ModelCaller, token_length: TokenLength, size: ContextSize, *, timestamps: bool = False
    ) -> None:
        """``timestamps``: whether each of the user's messages says how long ago it was sent."""
        super().__init__(name, model, token_length, size.free, SYSTEM)
        self._timestamps = timestamps

    async def _answer(self, context: Context, incoming: Incoming) -> Answer:
        pairs = self._window.kept(self._fixed + self._size(incoming.text))
        earlier = [
            each for pair in pairs for each in _messages(self._stamped(pair.user, incoming.now - pair.sent_at), pair)
        ]
        sent: Message = {"role": "user", "content": self._stamped(incoming.text, 0.0)}
        message, usage = await self._model.ask(context, [_system(SYSTEM), *earlier, sent], added=[sent])
        return Answer(str(message.get("content") or ""), usage)

    def _stamped(self, text: str, age: float) -> str:
        return f"[{age_in_words(age)}] {text}" if self._timestamps else text


def _system(text: str) -> Message:
    return {"role": "system", "content": text}


def _messages(user: str, pair: Pair) -> list[Message]:
    """``user``: what the user's message says now."""
    return [{"role": "user", "content": user}, {"role": "assistant", "content": pair.reply}]


def _as_messages(pairs: Sequence[Pair]) -> list[Message]:
    return [each for pair in pairs for each in _messages(pair.user, pair)]


_UNITS = ((60.0, 1.0, "second", 0), (3600.0, 60.0, "minute", 0), (86400.0, 3600.0, "hour", 1), (inf, 86400.0, "day", 1))
"""Below how many seconds a unit is used, its length in seconds, its name, and its digits behind the point."""


def age_in_words(seconds: float) -> str:
    """How long ago something was said, as the GoodAI LTM Benchmark's agents with timestamps (``ts-MODEL``) are told."""
    if seconds < 1:
        return "just now"
    length, unit, digits = next((length, unit, digits) for below, length, unit, digits in _UNITS if seconds < below)
    number = f"{seconds / length:.{digits}f}"
    return f"{number} {unit}{'' if float(number) == 1 else 's'} ago"


# --- Search in earlier messages

_RECENT = 0.5
"""The share of the context that the newest messages may take; the rest is for what the search finds."""
_HEAD = "Earlier in this conversation, as far as it seems to matter now, oldest first:"
_WORD = re.compile(r"\w{2,}")
_MAX_WORDS = 200
"""Different words of a message that are searched for."""
_MAX_FOUND = 400


class Index(Protocol):
    """Finds earlier messages."""

    async def add(self, context: Context, number: int, text: str) -> Usage:
        """Take a message into the index. ``number``: that of its pair, from 0."""
        ...

    async def find(self, context: Context, query: str, before: int) -> tuple[Sequence[int], Usage]:
        """The numbers of messages that are similar to a query, the most similar first; of those below ``before`` only."""
        ...

    def forget(self) -> None: ...

    async def close(self) -> None: ...


class TextIndex:
    """Full text search in memory. A word that is in few messages counts more than one that is in many."""

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:")
        self._make()

    def _make(self) -> None:
        self._database.execute("CREATE VIRTUAL TABLE said USING fts5(text, tokenize = 'porter unicode61')")

    async def add(self, context: Context, number: int, text: str) -> Usage:
        self._database.execute("INSERT INTO said (rowid, text) VALUES (?, ?)", (number + 1, text))
        return ZERO

    async def find(self, context: Context, query: str, before: int) -> tuple[Sequence[int], Usage]:
        words = list(dict.fromkeys(_WORD.findall(query.lower())))[:_MAX_WORDS]
        if not words:
            return (), ZERO
        wanted = " OR ".join(f'"{word}"' for word in words)
        rows = self._database.execute(
            "SELECT rowid FROM said WHERE said MATCH ? AND rowid <= ? ORDER BY rank, rowid LIMIT ?",
            (wanted, before, _MAX_FOUND),
        )
        return [row[0] - 1 for row in rows], ZERO

    def forget(self) -> None:
        self._database.execute("DROP TABLE said")
        self._make()

    async def close(self) -> None:
        self._database.close()


class Embedder(Protocol):
    """Turns a text into a vector."""

    async def embed(self, context: Context, text: str) -> tuple[Sequence[float], Usage]: ...

    async def close(self) -> None: ...


class EmbeddingIndex:
    """Search by cosine similarity. Every embedding is a step, so none is paid twice."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._vectors: dict[int, list[float]] = {}

    async def add(self, context: Context, number: int, text: str) -> Usage:
        vector, usage = await self._embedder.embed(context, text)
        self._vectors[number] = _unit(vector)
        return usage

    async def find(self, context: Context, query: str, before: int) -> tuple[Sequence[int], Usage]:
        vector, usage = await self._embedder.embed(context, query)
        unit = _unit(vector)
        similarity = {
            number: sum(a * b for a, b in zip(unit, other, strict=False))
            for number, other in self._vectors.items()
            if number < before
        }
        return sorted(similarity, key=lambda number: (-similarity[number], number))[:_MAX_FOUND], usage

    def forget(self) -> None:
        self._vectors.clear()

    async def close(self) -> None:
        await self._embedder.close()


def _unit(vector: Sequence[float]) -> list[float]:
    length = sqrt(sum(value * value for value in vector)) or 1.0
    return [value / length for value in vector]


class RetrievalAgent(ModelAgent):
    """A model that is shown, besides the newest messages, what a search in all earlier ones finds. Filler is never searched for."""

    def __init__(
        self, name: str, model: ModelCaller, index: Index, token_length: TokenLength, size: ContextSize
    ) -> None:
        super().__init__(name, model, token_length, int(size.free * _RECENT), SYSTEM, _HEAD)
        self._index = index
        self._free = size.free

    async def _answer(self, context: Context, incoming: Incoming) -> Answer:
        fixed = self._fixed + self._size(incoming.text)
        recent = self._window.kept(fixed)
        pairs = self._window.pairs
        found, searching = await self._index.find(context, incoming.text, len(pairs) - len(recent))
        recalled = self._fitting(found, self._free - fixed - sum(pair.tokens for pair in recent), incoming.now)
        system = _system(f"{SYSTEM}\n\n{_HEAD}\n{recalled}" if recalled else SYSTEM)
        sent: Message = {"role": "user", "content": incoming.text}
        message, usage = await self._model.ask(context, [system, *_as_messages(recent), sent], added=[sent])
        adding = await self._index.add(context, len(pairs), incoming.text)
        return Answer(str(message.get("content") or ""), searching + usage + adding)

    async def reset(self, context: Context) -> None:
        await super().reset(context)
        self._index.forget()

    async def close(self) -> None:
        await self._index.close()
        await super().close()

    def _fitting(self, found: Sequence[int], free: int, now: float) -> str:
        """What was found, as far as it fits into the tokens that are free, in the order in which it was said."""
        chosen: list[int] = []
        for number in found:
            needed = self._window.pairs[number].tokens + 4 * OVERHEAD
            if needed <= free:
                chosen.append(number)
                free -= needed
        return "\n".join(_recalled(self._window.pairs[number], now) for number in sorted(chosen))


def _recalled(pair: Pair, now: float) -> str:
    return f"[{age_in_words(now - pair.sent_at)}] User: {pair.user}\nYou: {pair.reply}"


# --- Notes

_NOTES_SYSTEM = (
    "You are an assistant in a long conversation, of which you see only the newest part. Whatever may matter later you write into your "
    "notes with the tools before you answer, and you keep the notes true and short. Answer briefly."
)
_MAX_CALLS = 5
"""Model calls for one message."""
_MAX_NOTES_SHARE = 0.3
"""The share of the context that the notes may take."""


def _tool(name: str, description: str, of_text: str) -> dict[str, Any]:
    """A tool that takes a text."""
    parameters = {
        "type": "object",
        "properties": {"text": {"type": "string", "description": of_text}},
        "required": ["text"],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_TOOLS = (
    _tool("add_note", "Add a line to your notes.", "What to remember."),
    _tool("replace_notes", "Write all of your notes anew, to correct or to shorten them.", "All notes from now on."),
)


class ScratchpadAgent(ModelAgent):
    """A model that keeps notes by tools, and is shown its notes instead of what no longer fits."""

    def __init__(self, name: str, model: ModelCaller, token_length: TokenLength, size: ContextSize) -> None:
        super().__init__(name, model, token_length, size.free, _NOTES_SYSTEM, json.dumps(_TOOLS))
        self._max_notes = int(size.free * _MAX_NOTES_SHARE)
        self.notes = ""
        """What it has written down."""

    async def _answer(self, context: Context, incoming: Incoming) -> Answer:
        sent: Message = {"role": "user", "content": incoming.text}
        earlier = _as_messages(self._window.kept(self._fixed + self._max_notes + self._size(incoming.text)))
        turn, added, total, text = [sent], [sent], ZERO, ""
        for number in range(_MAX_CALLS):
            tools = _TOOLS if number < _MAX_CALLS - 1 else ()
            system = _system(f"{_NOTES_SYSTEM}\n\nYour notes:\n{self.notes or '(none yet)'}")
            message, usage = await self._model.ask(context, [system, *earlier, *turn], added=added, tools=tools)
            total = total + usage
            text = str(message.get("content") or "") or text
            calls = message.get("tool_calls") or []
            if not calls:
                break
            added = [self._executed(call) for call in calls]
            turn += [message, *added]
        return Answer(text, total)

    async def reset(self, context: Context) -> None:
        await super().reset(context)
        self.notes = ""

    def _executed(self, call: ToolCall) -> Message:
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
            notes = f"{self.notes}\n{text}".strip()
        elif name == "replace_notes":
            notes = text.strip()
        else:
            return f"error: there is no tool {name}; use add_note or replace_notes"
        tokens = self._token_length(notes)
        if tokens > self._max_notes:
            return f"error: that would make {tokens} tokens of notes, and {self._max_notes} fit; shorten them with replace_notes"
        self.notes = notes
        return f"noted ({tokens} of {self._max_notes} tokens)"
