"""Results of large runs, written by a process of their own while tests still end.

Its input says how: a line of JSON (``folder``, ``counting`` and ``owner``, the number of that process), and, when nobody writes to the
journal any more, a line ``end``. Its output is the figures as one line of JSON. The journal is read in order, as far as tests have ended.
What has ended does not change before the end of a session, so that the file is the same as one that is written afterwards.

If its owner is gone it leaves nothing behind: whoever goes on with the run writes the results. Where only the end of the session shows
what results say (of workspaces), it gives up, and its owner writes them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Self

from manyhands.core.jsonio import Json, dumps, loads
from manyhands.core.outcomes import ItemState
from manyhands.engine.contract import ItemRow
from manyhands.engine.journal.reader import JournalReader
from manyhands.io.files import remove_asides
from manyhands.processes.interpreters import PYTHONPATH, module_path, python_command
from manyhands.workloads.evals.results.records import Record, results
from manyhands.workloads.evals.results.writing import RESULTS, Counting, write_lines
from manyhands.workloads.evals.workspaces.workspace import PLACE

FROM_TESTS = 10_000
"""Tests from which such a process pays: it takes about as long to start as the results of some thousand tests take to write."""
LONGEST_SECONDS = 3600.0
"""How long it may take after the end of a session."""
LOOK_SECONDS = 0.1
_END = b"end\n"


class ResultsProcess:
    """The process, as its owner sees it. Must be asked for ``figures``, or be closed."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self._process = process
        self._folder = folder

    @classmethod
    def where_it_pays(cls, folder: Path, counting: Counting) -> Self | None:
        """For a run that is about to be performed, if so much of it is left that the process pays."""
        with closing(JournalReader(folder)) as reader:
            left = sum(count for (state, _), count in reader.counts().items() if not ItemState(state).final)
            pays = left >= FROM_TESTS and reader.hinders_nobody() and len(os.sched_getaffinity(0)) > 1
        return cls.started(folder, counting) if pays else None

    @classmethod
    def started(cls, folder: Path, counting: Counting) -> Self | None:
        """For the run in a folder, which must be its owner's; None where no process can be started."""
        order = dumps({"folder": str(folder.absolute()), "counting": counting.to_json(), "owner": os.getpid()})
        command = python_command("manyhands.workloads.evals.results.process")
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt from the keyboard is its owner's
                env={**os.environ, PYTHONPATH: module_path()},
            )
        except OSError:
            return None
        started = cls(process, folder)
        started._tell(order + b"\n")
        return started

    def figures(self) -> dict[str, Any] | None:
        """Nobody writes to the journal any more: wait until the results are written. The figures, as ``write_lines`` gives them; None if
        they could not be written, for whatever reason."""
        self._tell(_END)
        try:
            said, _ = self._process.communicate(timeout=LONGEST_SECONDS)
            found = loads(said) if self._process.returncode == 0 else None
        except (subprocess.TimeoutExpired, ValueError):
            found = None
        finally:
            self.close()
        return found if isinstance(found, dict) else None

    def close(self) -> None:
        """End it, if it still works, and remove what it has not finished. Idempotent."""
        self._process.kill()
        self._process.wait()
        with suppress(OSError):
            remove_asides(self._folder, RESULTS)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _tell(self, line: bytes) -> None:
        stream = self._process.stdin
        try:
            if stream is not None and not stream.closed:
                stream.write(line)
                stream.flush()
        except BrokenPipeError:
            return  # it has ended: what it says, or does not say, tells how


@contextmanager
def closed_on_error(process: ResultsProcess | None) -> Iterator[None]:
    """Nobody waits for the results of a session that breaks off."""
    try:
        yield
    except BaseException:
        if process is not None:
            process.close()
        raise


class _Owner:
    """In the process: what its owner has said so far."""

    def __init__(self, said: BinaryIO) -> None:
        self._said = said
        self._heard = threading.Event()
        self._line = b""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        self._line = self._said.readline()
        self._heard.set()

    def is_done(self) -> bool:
        """Whether nobody writes to the journal any more. Raises SystemExit if the owner is gone."""
        if self._heard.is_set() and self._line != _END:
            raise SystemExit(1)
        return self._heard.is_set()

    def wait(self) -> None:
        """For a moment, or until it says something."""
        self._heard.wait(LOOK_SECONDS)


def _ended_rows(reader: JournalReader, owner: _Owner) -> Iterator[ItemRow]:
    """All items in order, each when it has ended; when nobody writes any more, the rest as they are."""
    position = -1
    while not owner.is_done():
        page = reader.ended_after(position)
        yield from page
        if page:
            position = page[-1].position
        else:
            owner.wait()
    with reader.snapshot():
        yield from reader.items(position)


def _without_workspaces(records: Iterator[Record]) -> Iterator[Record]:
    """Raises SystemExit at a result that has a workspace."""
    for record in records:
        if PLACE in record:
            raise SystemExit(1)
        yield record


def _wanted(records: Iterator[Record], owner: int) -> Iterator[Record]:
    """Raises SystemExit at the end if the owner is gone by then."""
    yield from records
    if os.getppid() != owner:
        raise SystemExit(1)


def main() -> None:
    order: Json = json.loads(sys.stdin.buffer.readline())
    counting, folder = Counting.from_json(order["counting"]), Path(order["folder"])
    with closing(JournalReader(folder)) as reader:
        rows = _ended_rows(reader, _Owner(sys.stdin.buffer))
        records = _wanted(_without_workspaces(results(rows, counting.limits)), order["owner"])
        figures = write_lines(records, folder, counting)
    sys.stdout.buffer.write(dumps(figures) + b"\n")


if __name__ == "__main__":
    main()
