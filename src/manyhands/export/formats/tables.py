"""The canonical record as JSON Lines, and a flat table of what conversations came to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from manyhands.core.jsonio import Json
from manyhands.export.conversations import Conversation
from manyhands.export.format import Format


class Records(Format):
    """JSON Lines of the canonical record."""

    name = "jsonl"
    about = "everything that is known of a conversation, one JSON object a line"
    reasoning = "field"

    def rows(self, conversation: Conversation) -> Iterator[Mapping[str, Json]]:
        yield conversation.to_json()
