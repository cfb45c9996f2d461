"""Dynamic tests of a session that was begun elsewhere, in other words: they say again what its log shows, and nothing new."""

from __future__ import annotations

from manyhands.workloads.memory.conversation.definitions import Evaluation, Play
from manyhands.workloads.memory.logged_dataset import LoggedDataset
from manyhands.workloads.memory.past import Past

CUT_SHORT = Evaluation(0.0, 1.0, ("not scored: begun in other words, and not ended there",))


class PastDataset(LoggedDataset):
    """See ``logged_dataset``. A test that had not ended gets no score."""

    def __init__(self, name: str, test_id: str, past: Past, reset_message: str) -> None:
        super().__init__(name, past.of_test(test_id), lambda: None, reset_message)

    def _play(self, test_id: str) -> Play:
        yield from super()._play(test_id)
        return CUT_SHORT
