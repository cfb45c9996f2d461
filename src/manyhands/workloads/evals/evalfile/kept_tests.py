"""Tests that were read, kept in a temporary file, so that a hundred thousand of them take no memory to speak of."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from tempfile import SpooledTemporaryFile
from typing import overload

from manyhands.core.errors import StorageError
from manyhands.core.jsonio import Json, dumps, loads
from manyhands.io.locations import Path as FieldPath
from manyhands.io.locations import Place
from manyhands.workloads.evals.evalfile.tests import Test

IN_MEMORY = 1 << 22
"""Bytes up to which there is no file."""
BLOCK = 1 << 18
"""Bytes that are written, and read, at once."""


class KeptTests(Sequence[Test]):
    """Tests in order. Each is made again whenever it is asked for; the file has no name, and is gone with this object."""

    def __init__(self, tests: Iterable[Test] = ()) -> None:
        """Raises StorageError, as ``append`` does, if they can't be written."""
        self._file = SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 - closed when this object is collected
        weakref.finalize(self, self._file.close)
        self._ends = array("q")
        self._end = 0
        self._unwritten = bytearray()
        self._lines: dict[int, Mapping[FieldPath, int]] = {}
        for test in tests:
            self.append(test)

    def append(self, test: Test) -> None:
        """Add a test at the end."""
        lines = test.place.lines
        shared = 0 if len(lines) <= 1 else id(lines)  # those of a whole file, which all of its tests know
        if shared:
            self._lines[shared] = lines
        text = dumps([test.to_json(), shared])
        self._unwritten += text
        self._end += len(text)
        self._ends.append(self._end)
        if len(self._unwritten) >= BLOCK:
            self._write()

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Test: ...
    @overload
    def __getitem__(self, index: slice) -> list[Test]: ...
    def __getitem__(self, index: int | slice) -> Test | list[Test]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return self._test(next(self._read(place, place + 1)))

    def __iter__(self) -> Iterator[Test]:
        return map(self._test, self._texts())

    def written(self) -> Iterator[Json]:
        """What ``Test.to_json`` gives of each."""
        return (loads(text)[0] for text in self._texts())

    def _texts(self) -> Iterator[bytes]:
        first = 0
        while first < len(self):
            last, limit = first + 1, self._begin(first) + BLOCK
            while last < len(self) and self._ends[last] <= limit:
                last += 1
            yield from self._read(first, last)
            first = last

    def _read(self, first: int, last: int) -> Iterator[bytes]:
        """What is written of the tests from the first to before the last."""
        begin = self._begin(first)
        if self._unwritten:
            self._write()
        self._file.seek(begin)
        data = self._file.read(self._ends[last - 1] - begin)
        return (data[self._begin(at) - begin : self._ends[at] - begin] for at in range(first, last))

    def _test(self, text: bytes) -> Test:
        value, shared = loads(text)
        test = Test.from_json(value)
        return replace(test, place=Place(test.place.file, test.place.path, self._lines[shared])) if shared else test

    def _begin(self, index: int) -> int:
        return self._ends[index - 1] if index else 0

    def _write(self) -> None:
        try:
            self._file.seek(self._end - len(self._unwritten))
            self._file.write(self._unwritten)
        except OSError as error:
            raise StorageError(f"the temporary folder can't be written ({error.strerror or error})") from error
        self._unwritten = bytearray()
