"""Folders left by the original batch runner (``batch_*.jsonl`` files, but no journal), and their prompts found for a dataset's rows.

Finished prompts are adopted and not paid for again. The known damage of such
folders is expected here: torn lines, a good line glued to a torn one, duplicates, rows without an id, tombstones
of discarded prompts (``{"prompt_index": 3, "discarded": "no_reasoning", "prompt": "…"}``).
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands.core.errors import StorageError, UserError
from manyhands.core.jsonio import Json, loads_outside
from manyhands.engine.journal.reader import JOURNAL
from manyhands.export.sharegpt_reading import human_text
from manyhands.workloads.trajectories.dataset.rows import prompt_digest

SET_ASIDE = "original"
"""The folder, inside the run folder, where the original program's files are kept."""

_DONE = "set_aside_complete"
_BATCH_FILE = re.compile(r"batch_(\d+)\.jsonl")
_OTHER_FILES = ("trajectories.jsonl", "statistics.json", "checkpoint.json")
_LINE_START = b'{"prompt_index"'
_MAX_LINE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class OriginalEntry:
    """One finished prompt."""

    prompt: Json
    """Its human turn without surrounding white space (or its content parts)."""
    entry: dict[str, Any] | None
    """The whole line, or None for a tombstone."""
    file: str
    """The batch file that it is in."""
    line: int
    offset: int
    """Bytes before it in the file."""
    length: int
    """Bytes of it."""
    discarded: str | None = None
    """The reason of a tombstone."""

    @property
    def cut_off(self) -> bool:
        """Whether the conversation ends on a tool's answer: the original stopped there when a model call failed, and saved it
        like any other."""
        return self.entry is not None and self.entry["conversations"][-1].get("from") == "tool"


@dataclass(frozen=True, slots=True)
class OriginalProblem:
    """One line that is no finished prompt, and why. ``str()`` gives ``batch_7.jsonl, line 2: …``."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}: {self.reason}"


def is_left_by_original(folder: Path) -> bool:
    """Whether a run folder holds the original program's results and no journal (also in the middle of ``set_aside``)."""
    if (folder / JOURNAL).exists():
        return False
    return bool(batch_files(folder) or batch_files(folder / SET_ASIDE))


def batch_files(folder: Path) -> list[Path]:
    """The folder's batch files, ``batch_2`` before ``batch_10``; files with another word in place of the number come last."""
    return sorted(folder.glob("batch_*.jsonl"), key=_file_order)


def _file_order(path: Path) -> tuple[bool, int, str]:
    match = _BATCH_FILE.fullmatch(path.name)
    return (match is None, int(match[1]) if match else 0, path.name)


def set_aside(folder: Path) -> Path:
    """Move the original program's files into ``original/`` and return that folder.

    Nothing is deleted or overwritten. May be called again at any time: after a crash it finishes what was begun, and once all
    is moved it does nothing, so that files of this program are never taken for the original's.

    Raises UserError if it can't tell the two apart, StorageError if the folder can't be written.
    """
    kept = folder / SET_ASIDE
    if (kept / _DONE).exists():
        if is_left_by_original(folder) and batch_files(folder):
            raise UserError(
                f"{folder} has batch files and a folder {SET_ASIDE!r}, but no {JOURNAL}: "
                f"restore {JOURNAL}, or start a run with another name"
            )
        return kept
    try:
        kept.mkdir(exist_ok=True)
        for path in [*batch_files(folder), *(folder / name for name in _OTHER_FILES)]:
            _move(path, kept / path.name)
        _sync(kept)
        _sync(folder)
        (kept / _DONE).touch()
        _sync(kept)
    except OSError as error:
        raise StorageError(f"can't set the original program's files aside in {kept}: {error.strerror}") from error
    return kept


def _move(source: Path, target: Path) -> None:
    if not source.exists():
        return
    if target.exists():
        raise UserError(f"can't set {source} aside: {target} exists already; move one of them away")
    source.rename(target)


def _sync(folder: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- Reading


def read_original(folder: Path) -> Iterator[OriginalEntry | OriginalProblem]:
    """All lines of the folder's batch files, in numeric order of the files, streamed.

    Lines of failed prompts are problems too: they are to be run again. Raises UserError if a file can't be read.
    """
    for path in batch_files(folder):
        try:
            yield from _read_file(path)
        except OSError as error:
            raise UserError(f"can't read {path}: {error.strerror or error}") from error


def read_entry(folder: Path, file: str, line: int, offset: int, length: int) -> OriginalEntry:
    """Read one line again, from where its entry says that it is. Raises UserError if the file changed since."""
    path = folder / file
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            found = parse_original(stream.read(length))
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror or error}") from error
    if isinstance(found, str):
        raise UserError(f"{path}, line {line} changed while it was being adopted: {found}")
    return _entry(found, file, line, offset, length)


def _read_file(path: Path) -> Iterator[OriginalEntry | OriginalProblem]:
    offset = 0
    with path.open("rb") as stream:
        for number, line in enumerate(iter(lambda: stream.readline(_MAX_LINE_BYTES), b""), 1):
            if line.strip():
                yield from _read_line(path.name, number, offset, line)
            offset += len(line)


def _read_line(file: str, number: int, offset: int, line: bytes) -> Iterator[OriginalEntry | OriginalProblem]:
    found = parse_original(line)
    if not isinstance(found, str):
        yield _entry(found, file, number, offset, len(line))
        return
    yield OriginalProblem(file, number, found)
    # The original appended behind torn lines without looking, so the end of a broken line may be a whole one.
    start = line.rfind(_LINE_START, 1)
    rescued = parse_original(line[start:]) if start > 0 else ""
    if not isinstance(rescued, str):
        yield _entry(rescued, file, number, offset + start, len(line) - start)


def _entry(value: dict[str, Any], file: str, number: int, offset: int, length: int) -> OriginalEntry:
    if "conversations" in value:
        return OriginalEntry(_stripped(human_text(value)), value, file, number, offset, length)
    return OriginalEntry(_stripped(value["prompt"]), None, file, number, offset, length, str(value["discarded"]))


def parse_original(line: bytes) -> dict[str, Any] | str:
    """One line as an object that is a finished prompt or a tombstone; otherwise text that says why it is neither."""
    try:
        value = loads_outside(line.decode())
    except (ValueError, RecursionError):
        torn = not line.endswith(b"\n")
        return "torn, the program was stopped while it wrote" if torn else "not a line of JSON"
    if not isinstance(value, dict):
        return "not an object"
    if value.get("failed"):
        return "a failed prompt, to be run again"
    return _why_unusable(value) or value


def _why_unusable(value: dict[str, Any]) -> str | None:
    if "conversations" not in value:
        return (
            None if value.get("discarded") and value.get("prompt") else "neither a conversation nor a discarded prompt"
        )
    turns = value["conversations"]
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        return '"conversations" is not a list of turns'
    return None if _stripped(human_text(value)) else "no human turn"


def _stripped(prompt: Json) -> Json:
    return prompt.strip() if isinstance(prompt, str) else prompt


# --- Entries and files as the original has them


def normalise_entry(
    entry: Mapping[str, Any], known_tools: Sequence[str], prompt_index: int, batch_num: int
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """An adopted entry as this run would write it, and the names of tools it used that are not known.

    ``tool_stats`` and ``tool_error_counts`` get every tool of ``known_tools``, in that order, and lose others that were
    never called; names that were called stay behind them. ``prompt_index`` and ``metadata.batch_num`` become this run's.
    Everything else is kept as it was. An entry with unknown tools is to be discarded (``unknown_tool``) unless the run
    keeps those: the original leaves such entries out of its combined file too.
    """
    stats = {name: counts_of(value) for name, value in object_of(entry.get("tool_stats")).items()}
    errors = object_of(entry.get("tool_error_counts"))
    unknown = tuple(name for name, counts in stats.items() if name not in known_tools and any(counts.values()))
    names = (*known_tools, *unknown)
    none = {"count": 0, "success": 0, "failure": 0}
    normal = dict(entry)
    normal["prompt_index"] = prompt_index
    normal["metadata"] = {**object_of(entry.get("metadata")), "batch_num": batch_num}
    normal["tool_stats"] = {name: dict(stats.get(name, none)) for name in names}
    normal["tool_error_counts"] = {
        name: whole_of(errors.get(name, normal["tool_stats"][name]["failure"])) for name in names
    }
    return normal, unknown


def object_of(value: Json) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def counts_of(value: Json) -> dict[str, int]:
    """The counts of a tool in ``tool_stats``."""
    counts = object_of(value)
    return {name: whole_of(counts.get(name)) for name in ("count", "success", "failure")}


def whole_of(value: Json) -> int:
    """The value if it is a whole number above 0, else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


_SETUP = (
    "PRAGMA journal_mode = OFF",
    "PRAGMA cache_size = -2048",
    """CREATE TABLE line_at (
        digest BLOB NOT NULL,
        tombstone INTEGER NOT NULL,
        file TEXT NOT NULL,
        line INTEGER NOT NULL,
        start INTEGER NOT NULL,
        length INTEGER NOT NULL,
        used INTEGER NOT NULL DEFAULT 0
    )""",
    "CREATE INDEX by_digest ON line_at (digest)",
    "BEGIN",
)
# A prompt that has a trajectory is finished with it: a tombstone only counts where there is nothing better.
_FIND = """
    SELECT rowid, file, line, start, length FROM line_at
    WHERE digest = ? ORDER BY tombstone, rowid LIMIT 1 OFFSET ?
"""
_UNUSED = "SELECT file, line, start, length FROM line_at WHERE NOT used ORDER BY rowid"


class OriginalMatches:
    """The finished lines of a folder, by prompt: the k-th copy of a prompt gets the k-th line with that prompt.

    Only where they are is kept, in a private temporary database; a line itself is read again when it is requested. ``problems`` holds
    the first lines that are no finished prompts, of ``problem_count``.
    """

    def __init__(self, folder: Path, problem_limit: int = 100) -> None:
        """Scan the folder. Raises UserError if a file can't be read."""
        self._folder = folder
        self.problems: list[OriginalProblem] = []
        self.problem_count = 0
        self._problem_limit = problem_limit
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for statement in _SETUP:
            self._database.execute(statement)
        for found in read_original(folder):
            self._add(found)

    def find(self, prompt: Json, copy: int) -> OriginalEntry | None:
        """The line for the ``copy``-th (from 0) item with this prompt, or None if it was not finished.

        Raises UserError if the file changed since it was scanned.
        """
        found = self._database.execute(_FIND, (prompt_digest(prompt), copy)).fetchall()
        if not found:
            return None
        ((number, *where),) = found
        self._database.execute("UPDATE line_at SET used = 1 WHERE rowid = ?", (number,))
        return read_entry(self._folder, *where)

    def unused(self) -> Iterator[OriginalEntry]:
        """Lines without a prompt in the dataset: prompts that are no longer in the dataset, and copies beyond those it has."""
        for where in self._database.execute(_UNUSED):
            yield read_entry(self._folder, *where)

    def close(self) -> None:
        """Forget everything. Idempotent."""
        self._database.close()

    def _add(self, found: OriginalEntry | OriginalProblem) -> None:
        if isinstance(found, OriginalProblem):
            self.problem_count += 1
            if len(self.problems) < self._problem_limit:
                self.problems.append(found)
            return
        self._database.execute(
            "INSERT INTO line_at (digest, tombstone, file, line, start, length) VALUES (?, ?, ?, ?, ?, ?)",
            (prompt_digest(found.prompt), found.entry is None, found.file, found.line, found.offset, found.length),
        )
