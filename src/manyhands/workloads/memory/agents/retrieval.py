"""A model that is shown, besides the newest messages, what a search in all earlier ones finds.

The search is SQLite's full text search (FTS5, ranked by BM25), or by the likeness of embeddings from any endpoint that speaks OpenAI's
``/embeddings``. What was found is told to the model in front of the newest messages, oldest first, with how long ago it was said.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from math import sqrt
from typing import Protocol

from manyhands.core.messages import Message
from manyhands.core.usage import ZERO, Usage
from manyhands.engine.contract import Context
from manyhands.workloads.memory.agents.chat import (
    OVERHEAD,
    SYSTEM,
    Pair,
    TokenLength,
    Window,
    age_in_words,
    as_messages,
)
from manyhands.workloads.memory.agents.model_calls import ModelCaller
from manyhands.workloads.memory.conversation.agent import DEFAULT_MESSAGE_SIZE, Answer, Incoming

RECENT = 0.5
"""The share of the context that the newest messages may take; the rest is for what the search finds."""
_HEAD = "Earlier in this conversation, as far as it seems to matter now, oldest first:"
_WORD = re.compile(r"\w{2,}")
_MAX_FOUND = 400


class Index(Protocol):
    """Finds earlier messages."""

    async def add(self, context: Context, number: int, text: str) -> Usage:
        """Take a message into the index. ``number``: its place among the pairs."""
        ...

    async def find(self, context: Context, query: str, before: int) -> tuple[Sequence[int], Usage]:
        """The places of messages that are like a query, the most alike first; of those before a place only."""
        ...

    def forget(self) -> None: ...

    def close(self) -> None: ...


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
        words = list(dict.fromkeys(_WORD.findall(query.lower())))[:200]
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

    def close(self) -> None:
        self._database.close()


class Embedder(Protocol):
    """Turns a text into a vector."""

    async def embed(self, context: Context, text: str) -> tuple[Sequence[float], Usage]: ...

    async def close(self) -> None: ...


class EmbeddingIndex:
    """Search by cosine likeness. Every embedding is a step, so none is paid twice."""

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
        likeness = {
            number: sum(a * b for a, b in zip(unit, other, strict=False))
            for number, other in self._vectors.items()
            if number < before
        }
        return sorted(likeness, key=lambda number: (-likeness[number], number))[:_MAX_FOUND], usage

    def forget(self) -> None:
        self._vectors.clear()

    def close(self) -> None:
        return


class RetrievalAgent:
    """An agent that is a model which is shown what a search in all earlier messages finds.

    ``limit``: tokens of the model's context; ``reserve``: of these, for its reply."""

    def __init__(
        self,
        name: str,
        model: ModelCaller,
        index: Index,
        token_length: TokenLength,
        *,
        limit: int,
        reserve: int,
        max_message_size: int = DEFAULT_MESSAGE_SIZE,
    ) -> None:
        self.name = name
        self.max_message_size = max_message_size
        self._model = model
        self._index = index
        self._token_length = token_length
        self._limit = limit
        self._reserve = reserve
        self._window = Window(token_length, reserve + int((limit - reserve) * RECENT), reserve)
        self._fixed = token_length(SYSTEM) + token_length(_HEAD) + 2 * OVERHEAD

    @property
    def simulated(self) -> bool:
        return self._model.simulated

    async def reply(self, context: Context, incoming: Incoming) -> Answer:
        if incoming.expected_reply is not None:  # filler is kept in mind, and never searched for
            self._window.add(incoming.text, incoming.expected_reply, incoming.now)
            return Answer(incoming.expected_reply)
        said: Message = {"role": "user", "content": incoming.text}
        fixed = self._fixed + self._token_length(incoming.text) + OVERHEAD
        recent = self._window.kept(fixed)
        earlier = len(self._window.pairs) - len(recent)
        found, searching = await self._index.find(context, incoming.text, earlier)
        room = self._limit - self._reserve - fixed - sum(pair.tokens for pair in recent)
        recalled = self._fitting(found, room, incoming.now)
        head: Message = {"role": "system", "content": SYSTEM if not recalled else f"{SYSTEM}\n\n{_HEAD}\n{recalled}"}
        message, usage, _ = await self._model.ask(context, [head, *as_messages(recent), said], added=[said])
        text = str(message.get("content") or "")
        self._window.add(incoming.text, text, incoming.now)
        adding = await self._index.add(context, len(self._window.pairs) - 1, incoming.text)
        return Answer(text, searching + usage + adding)

    async def forward_time(self, context: Context, now: float) -> None:
        """Nothing: each message brings its time."""

    async def reset(self, context: Context) -> None:
        self._window.forget()
        self._index.forget()

    async def close(self) -> None:
        self._index.close()
        await self._model.close()

    def _fitting(self, found: Sequence[int], room: int, now: float) -> str:
        """What was found, as far as there is room, in the order in which it was said."""
        chosen: list[int] = []
        for number in found:
            needed = self._window.pairs[number].tokens + 4 * OVERHEAD
            if needed <= room:
                chosen.append(number)
                room -= needed
        return "\n".join(_told(self._window.pairs[number], now) for number in sorted(chosen))


def _told(pair: Pair, now: float) -> str:
    return f"[{age_in_words(now - pair.sent_at)}] User: {pair.user}\nYou: {pair.reply}"


def _unit(vector: Sequence[float]) -> list[float]:
    length = sqrt(sum(value * value for value in vector)) or 1.0
    return [value / length for value in vector]
