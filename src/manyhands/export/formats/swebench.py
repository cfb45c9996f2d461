"""The predictions that SWE-bench's harness grades: one JSON object with a patch for each instance.

The patch is what ``--collect`` printed at the end of the conversation, a ``git diff`` as a rule; the instance is the row's id.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from manyhands.core.jsonio import Json, dumps
from manyhands.export.conversations import Conversation
from manyhands.export.files import JsonLines, Sink
from manyhands.export.format import Format, Losses, Unfit
from manyhands.export.settings import ExportSettings

NO_PATCH = "without a patch (nothing was collected)"
NO_INSTANCE = "without an id"
FURTHER = "further samples of an instance (--best_of keeps the best)"


class SweBench(Format):
    """``preds.json``: ``{instance_id: {model_name_or_path, instance_id, model_patch}}``."""

    name = "swebench"
    about = "predictions for SWE-bench's harness: a JSON object with the patch of each instance, which --collect has printed"
    suffix = ".json"

    def __init__(self, settings: ExportSettings, losses: Losses) -> None:
        super().__init__(settings, losses)
        self._seen: set[str] = set()

    def rows(self, conversation: Conversation) -> Iterator[Mapping[str, Json]]:
        collected = conversation.collected
        if collected is None:
            raise Unfit(NO_PATCH)
        if collected.get("problem"):
            raise Unfit(f"whose patch is not to be relied on ({collected['problem']})")
        if not conversation.key.startswith("id:"):
            raise Unfit(NO_INSTANCE)
        instance = conversation.label
        if instance in self._seen:
            raise Unfit(FURTHER)
        self._seen.add(instance)
        yield {
            "model_name_or_path": conversation.model or "",
            "instance_id": instance,
            "model_patch": str(collected.get("output") or ""),
        }

    def sink(self, path: Path) -> Sink:
        # The harness reads a file of that name line by line.
        return JsonLines(path) if str(self.settings.output or "").endswith(".jsonl") else _ById(path)


class _ById(Sink):
    """Rows as the members of one object."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")

    def write(self, row: Mapping[str, Json]) -> None:
        self._file.write(b",\n" if self.rows else b"{\n")
        self._file.write(b"%b: %b" % (dumps(row["instance_id"]), dumps(dict(row))))
        self.rows += 1

    def close(self) -> None:
        self._file.write(b"\n}\n" if self.rows else b"{}\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
