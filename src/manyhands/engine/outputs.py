"""Output files that grow line by line, kept true to the journal.

An item's line is appended when its end is on disk. From time to time the files are synced, and then the journal notes how long
each is and which items' lines it holds. Whatever a crash left beyond that length is cut off when the run is opened, and the lines of
items not noted as written are written again from the journal.

Lines that the journal knows nothing of (it was damaged, or is an older copy) may be paid answers: they are not cut off before they are
kept in ``set_aside/``, and nothing is appended to them.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path

from manyhands.core.clock import Clock
from manyhands.core.errors import StorageError
from manyhands.core.jsonio import without_surrogates
from manyhands.core.outcomes import OutputLine
from manyhands.engine.contract import ItemRow, Workload
from manyhands.engine.journal.reader import OutputFile
from manyhands.engine.journal.store import REWRITE, Store
from manyhands.io.files import Patience

SET_ASIDE = "set_aside"
"""The folder in a run's folder for output that the journal does not know."""
OPEN_FILES = 64
SYNC_SECONDS = 2.0
_AGAIN = 0.1
"""Seconds until lines that a full disk did not take are written."""
REPAIR_CHUNK = 500


class OutputFiles:
    """The line-by-line files of one run, while it is executed."""

    def __init__(self, store: Store, clock: Clock, notice: Callable[[str], None]) -> None:
        self._notice = notice
        self._known = {output.name for output in store.reader.outputs()}
        self._store = store
        self._clock = clock
        self._open: OrderedDict[str, int] = OrderedDict()
        self._waiting: dict[str, list[tuple[int, bytes]]] = {}
        self._patience = Patience(store.folder)
        self._failure: StorageError | None = None
        self._numbers: list[int] = []
        self._dirty: set[str] = set()
        self._synced_at = clock.monotonic()
        self._sync_running: asyncio.Task[None] | None = None

    def append(self, number: int, line: OutputLine) -> None:
        """Add an item's line, to be written together with all others that come in this turn of the loop.

        Raises StorageError once a line could not be written (of which nothing then remains).
        """
        if self._failure is not None:
            raise self._failure
        file, text = line
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.setdefault(file, []).append((number, _line(text)))
        if self._sync_running is None and self._clock.monotonic() - self._synced_at >= SYNC_SECONDS:
            self._sync_running = asyncio.create_task(self._sync_now())

    async def sync(self) -> None:
        """Put everything appended so far on disk and note it in the journal. Where that fails, ``repair`` finds it unwritten."""
        while self._sync_running is not None:
            await asyncio.shield(self._sync_running)
        await self._sync_now()

    def close(self) -> None:
        self._waiting = {}
        if self._sync_running is not None:
            self._sync_running.cancel()
        while self._open:
            os.close(self._open.popitem()[1])

    def _flush(self) -> None:
        """Write the lines that wait. One write for many: each hands the interpreter's lock over and asks for it again."""
        waiting, self._waiting = self._waiting, {}
        for file, lines in waiting.items():
            try:
                self._write(self._descriptor(file), b"".join([data for _, data in lines]))
            except OSError as error:
                if self._patience.worth_waiting(error):
                    self._keep_waiting(file, lines)
                else:
                    self._failure = StorageError(f"{self._store.folder / file}: can't be written ({error.strerror})")
                continue
            self._patience.over()
            self._numbers.extend([number for number, _ in lines])
            self._dirty.add(file)

    def _keep_waiting(self, file: str, lines: list[tuple[int, bytes]]) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_later(_AGAIN, self._flush)
        self._waiting[file] = lines

    async def _sync_now(self) -> None:
        self._flush()
        numbers, dirty = self._numbers, self._dirty
        self._numbers, self._dirty = [], set()
        try:
            folder = self._store.folder
            sizes = {file: os.stat(folder / file).st_size for file in dirty}
            await asyncio.to_thread(_sync_files, [folder / file for file in dirty])
            if numbers and sizes:
                await self._store.mark_written(numbers, sizes)
        except (OSError, StorageError):
            # A failing disk shows itself at the next commit; until a sync succeeds, these lines count as unwritten.
            self._numbers, self._dirty = numbers + self._numbers, dirty | self._dirty
        finally:
            self._synced_at = self._clock.monotonic()
            self._sync_running = None

    def _descriptor(self, file: str) -> int:
        descriptor = self._open.get(file)
        if descriptor is not None:
            self._open.move_to_end(file)
            return descriptor
        if len(self._open) >= OPEN_FILES:
            os.close(self._open.popitem(last=False)[1])
        path = self._store.folder / file
        if file not in self._known:
            self._known.add(file)
            if set_aside(self._store.folder, path):
                self._notice(_unknown(path))
        descriptor = self._open[file] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return descriptor

    @staticmethod
    def _write(descriptor: int, data: bytes) -> None:
        written = os.write(descriptor, data)
        if written < len(data):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
            raise OSError(28, "the disk is full")


def repair(store: Store, workload: Workload, notice: Callable[[str], None], *, rebuild: bool = False) -> int:
    """Make the output files match the journal, before a session begins.

    ``rebuild``: write all of them again (begun, that is done by the next opening if a crash comes between). Without it, those that hold
    lines of items that were reopened. Returns the number of lines written again. Raises StorageError.
    """
    if rebuild:
        store.set_meta(**{REWRITE: True})
    rewritten = store.reader.meta(REWRITE) or []
    if rewritten is True:
        store.forget_outputs()
    for output in store.reader.outputs():
        rebuild = rewritten is True or output.name in rewritten
        if rebuild:
            store.forget_output(output)
        path = store.folder / output.name
        if path.exists() and not path.is_file():
            raise StorageError(f"{path}: not a plain file")
        try:
            if not rebuild and _surplus(store, output, path) and set_aside(store.folder, path, copy=True):
                notice(_unknown(path))
            _cut(store, output, path, rebuild)
        except OSError as error:
            raise StorageError(f"{path}: can't be written ({error.strerror})") from error
    count = _write_missing(store, workload, store.reader.unwritten())
    if rewritten:
        store.set_meta(**{REWRITE: False})
    return count


def set_aside(folder: Path, path: Path, *, copy: bool = False) -> bool:
    """Keep an output file, if it is there and not empty, in ``set_aside/``. Returns whether it is. Raises OSError."""
    if not path.is_file() or not path.stat().st_size:
        return False
    kept = folder / SET_ASIDE
    kept.mkdir(exist_ok=True)
    name = next(name for number in count(1) if not (kept / (name := f"{number}-{path.name}")).exists())
    if copy:
        shutil.copyfile(path, kept / name)
    else:
        path.rename(kept / name)
    return True


def _unknown(path: Path) -> str:
    return f"{path}: holds lines that the journal does not know; they are kept in {path.parent / SET_ASIDE}, and their items are done again"


def _surplus(store: Store, output: OutputFile, path: Path) -> bool:
    """Whether a file holds more whole lines behind what the journal vouches for than there are items whose lines may be there."""
    if not path.is_file() or path.stat().st_size <= output.size:
        return False
    with path.open("rb") as handle:
        handle.seek(output.size)
        lines = sum(line.endswith(b"\n") for line in handle)
    return lines > store.reader.unwritten_lines(output)


def _cut(store: Store, output: OutputFile, path: Path, rebuild: bool) -> None:
    """Leave of an output file what the journal vouches for."""
    if rebuild:
        path.unlink(missing_ok=True)
        return
    actual, size = path.stat().st_size if path.exists() else 0, output.size
    if actual < size:
        store.forget_output(output)
        size = 0
    if actual > size:
        os.truncate(path, size)


def _write_missing(store: Store, workload: Workload, rows: Iterable[ItemRow]) -> int:
    written, chunk = 0, []
    for row in rows:
        finished = row.finished()
        line = workload.render(finished, store.reader.steps(row.number, row.attempt))
        if line is not None:
            chunk.append((row.number, line))
            written += 1
        if len(chunk) >= REPAIR_CHUNK:
            _append_chunk(store, chunk)
            chunk = []
    if chunk:
        _append_chunk(store, chunk)
    return written


def _append_chunk(store: Store, chunk: list[tuple[int, OutputLine]]) -> None:
    store.assign_outputs([(file, number) for number, (file, _) in chunk])
    texts: dict[str, list[bytes]] = {}
    for _, (file, text) in chunk:
        texts.setdefault(file, []).append(_line(text))
    sizes = {}
    for file, lines in texts.items():
        path = store.folder / file
        try:
            with path.open("ab") as handle:
                handle.write(b"".join(lines))
                handle.flush()
                os.fsync(handle.fileno())
                sizes[file] = handle.tell()
        except OSError as error:
            raise StorageError(f"{path}: can't be written ({error.strerror})") from error
    store.note_written([number for number, _ in chunk], sizes)


def _line(text: str | bytes) -> bytes:
    if isinstance(text, bytes):
        return text + b"\n"
    try:
        return (text + "\n").encode()
    except UnicodeEncodeError:
        return (without_surrogates(text) + "\n").encode()


def _sync_files(paths: list[Path]) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
