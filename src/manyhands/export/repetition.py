"""Conversations that repeat earlier ones."""

from __future__ import annotations

from manyhands.core.digests import digest
from manyhands.core.errors import UserError
from manyhands.core.messages import text_of
from manyhands.export.conversations import Conversation
from manyhands.io.digest_table import DigestTable

REPEATED, NEARLY_REPEATED = "repeats an earlier one", "nearly repeats an earlier one"
_WORDS = 5


class Repetitions:
    """Says of each conversation in turn whether it repeats an earlier one. This one never does."""

    @staticmethod
    def of(kind: str, threshold: float) -> Repetitions:
        """What looks for that kind: none, exact or near. Raises UserError if its library is missing."""
        if kind == "near":
            return _Near(threshold)
        return _Exact() if kind == "exact" else Repetitions()

    def seen(self, conversation: Conversation) -> str | None:
        """In what way it repeats an earlier one; None if it does not."""
        return None

    def close(self) -> None:
        return


class _Exact(Repetitions):
    """The same messages, whatever the ids of their tool calls."""

    def __init__(self) -> None:
        self._table = DigestTable()

    def seen(self, conversation: Conversation) -> str | None:
        return None if self._table.add(digest("conversation", _said(conversation))) else REPEATED

    def close(self) -> None:
        self._table.close()


class _Near(_Exact):
    """Nearly the same words, by MinHash and locality-sensitive hashing (Broder 1997)."""

    def __init__(self, threshold: float) -> None:
        super().__init__()
        try:
            from datasketch import MinHash, MinHashLSH
        except ImportError:
            raise UserError("--dedup near needs the extra dedup: pip install 'manyhands[dedup]'") from None
        self._hash, self._count = MinHash, 0
        self._index = MinHashLSH(threshold=threshold, num_perm=128)

    def seen(self, conversation: Conversation) -> str | None:
        if (repeated := super().seen(conversation)) is not None:
            return repeated
        words = " ".join(
            text_of(turn.message.get("content")) for turn in conversation.turns if turn.role != "system"
        ).split()
        signature = self._hash(num_perm=128, seed=1)
        signature.update_batch(
            [" ".join(words[at : at + _WORDS]).encode() for at in range(max(1, len(words) - _WORDS + 1))]
        )
        if self._index.query(signature):
            return NEARLY_REPEATED
        self._index.insert(self._count, signature)
        self._count += 1
        return None


def _said(conversation: Conversation) -> list[list[object]]:
    return [
        [
            turn.role,
            turn.message.get("content"),
            turn.message.get("reasoning"),
            [
                [call["function"]["name"], call["function"]["arguments"]]
                for call in turn.message.get("tool_calls") or ()
            ],
        ]
        for turn in conversation.turns
    ]
