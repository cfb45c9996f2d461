"""Conversations that repeat earlier ones."""

from __future__ import annotations

from typing import Any

from manyhands.core.digests import digest
from manyhands.core.errors import UserError
from manyhands.core.messages import Message, text_of
from manyhands.export.conversations import Conversation
from manyhands.io.digest_table import DigestTable

REPEATED, NEARLY_REPEATED = "repeating an earlier one", "nearly repeating an earlier one"
_WORDS, _HASHES, _BANDS = 5, 128, 32


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
    """Nearly the same words: MinHash (Broder, 1997) finds candidates by locality-sensitive hashing, whose similarity is then estimated."""

    def __init__(self, threshold: float) -> None:
        super().__init__()
        try:
            from rensa import RMinHash, RMinHashLSH
        except ImportError:
            raise UserError("--dedup near needs the extra dedup: pip install 'manyhands[dedup]'") from None
        self._hash, self._threshold = RMinHash, threshold
        self._kept: list[Any] = []
        # Half the threshold has more candidates found than are wanted, of which few that are wanted are missed.
        self._index = RMinHashLSH(threshold=threshold / 2, num_perm=_HASHES, num_bands=_BANDS)

    def seen(self, conversation: Conversation) -> str | None:
        if (repeated := super().seen(conversation)) is not None:
            return repeated
        signature = self._hash(num_perm=_HASHES, seed=1)
        signature.update(_shingles(conversation))
        for candidate in self._index.query(signature):
            if self._kept[candidate].jaccard(signature) >= self._threshold:
                return NEARLY_REPEATED
        self._index.insert(len(self._kept), signature)
        self._kept.append(signature)
        return None


def _shingles(conversation: Conversation) -> list[str]:
    """Every five words in a row of what was said, and of the calls."""
    said = " ".join(_words_of(turn.message) for turn in conversation.turns if turn.role != "system")
    words = said.encode("utf-8", "replace").decode().split()
    return [" ".join(words[at : at + _WORDS]) for at in range(max(1, len(words) - _WORDS + 1))]


def _words_of(message: Message) -> str:
    calls = (call["function"]["arguments"] for call in message.get("tool_calls") or ())
    return " ".join([text_of(message.get("content")), *calls])


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
