"""The predictions that SWE-bench's harness grades: one JSON object with a patch for each instance.

The patch is what ``--collect`` printed at the end of the conversation, a ``git diff`` as a rule. The instance is the row's id, else its
field of that name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from manyhands.core.jsonio import Json, dumps
from manyhands.export.conversations import Conversation
from manyhands.export.files import JsonLines, Sink
from manyhands.export.format import Format, Losses, Unfit
from manyhands.export.settings import ExportSettings

NO_PATCH = "without a patch (nothing was collected)"
INSTANCE = "instance_id"
NO_INSTANCE = f"without an id (rows have none by --id_field, and no field {INSTANCE})"
FURTHER = "further samples of an instance (--best_of keeps the best)"


class SweBench(Format):
    """``preds.json``: ``{instance_id: {model_name_or_path, instance_id, model_patch}}``."""

    name = "swebench"
    about = "predictions for SWE-bench's harness: a JSON object with the patch of each instance, which --collect has printed"
    suffix = ".json"

    def __init__(self, settings: ExportSettings, losses: Losses) -> None:
        super().__init__(settings, losses)
        self._seen: set[str] = set()
        self._empty = 0

    def rows(self, conversation: Conversation) -> Iterator[Mapping[str, Json]]:
        collected = conversation.collected
        if collected is None:
            raise Unfit(NO_PATCH)
        if collected.get("problem"):
            raise Unfit(f"whose patch is not to be relied on ({collected['problem']})")
        instance = conversation.label if conversation.key.startswith("id:") else conversation.source.get(INSTANCE)
        if not isinstance(instance, str) or not instance:
            raise Unfit(NO_INSTANCE)
        if instance in self._seen:
            raise Unfit(FURTHER)
        self._seen.add(instance)
        patch = str(collected.get("output") or "")
        self._empty += not patch.strip()
        yield {"model_name_or_path": conversation.model or "", INSTANCE: instance, "model_patch": patch}

    def notes(self, rows: Mapping[str, int]) -> Sequence[str]:
        if not self._empty:
            return ()
        return [f"Empty patches: {self._empty:,} (of new files, git diff tells only after git add)"]

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
