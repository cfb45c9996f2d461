"""Tags: how what a command started is found again, whatever it did to its environment, its session and its parents.

A tag is a value of a resource limit that means nothing to ordinary programs (``RLIMIT_RTTIME``, which bounds real-time scheduled ones;
the values are thousands of years). Every process inherits it from the one that started it, and nobody without special rights can raise it
again: only a process that lowers this very limit on purpose gets rid of it. Needs Linux and util-linux: elsewhere there are no tags.
"""

from __future__ import annotations

import errno
import os
import resource
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from manyhands.processes.strays import kill_found, process_line

_LIMIT = getattr(resource, "RLIMIT_RTTIME", None)
_HIGHEST = 9 * 10**18
_SPAN = 1_000_000_000
"""How many tags there are in a family."""


class Tags:
    """A family of tags: the same first digits, and a number for each."""

    def __init__(self) -> None:
        self._next = _SPAN
        self._prefix = _prefix()

    @property
    def text(self) -> str:
        """The digits that all tags of the family begin with; empty where there are none."""
        return "" if self._prefix is None else str(self._prefix)

    def new(self) -> int | None:
        """A further tag; None where there are none."""
        if self._prefix is None or self._next == 0:
            return None
        self._next -= 1
        return self._prefix * _SPAN + self._next

    def kill_all(self) -> int:
        """Kill every process with a tag of the family. See ``kill_tagged``."""
        if self._prefix is None:
            return 0
        first = self._prefix * _SPAN
        return _kill(first, first + _SPAN)


def tagged_words(
    words: Sequence[str], tag: int | None, environment: Mapping[str, str], directory: str | Path
) -> list[str]:
    """The command that runs ``words`` with a tag, so that not even the first of its processes is without. Raises the OSError that starting
    them would raise if there is no such program. ``directory``: where it starts."""
    if tag is None:
        return list(words)
    program = words[0]
    found = program if "/" in program else shutil.which(program, path=environment.get("PATH", os.defpath))
    path = os.path.join(directory, found or program)
    if found is None or not os.path.exists(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)
    if os.path.isdir(path) or not os.access(path, os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), program)
    return [_setter() or "", f"--rttime={tag}:{tag}", "--", *words]


def kill_tagged(tag: int | None) -> int:
    """Kill every process of this machine with this tag, until none is left. Returns how many there were. Looks at all processes: not for
    the event loop's thread."""
    return 0 if tag is None else _kill(tag, tag + 1)


def tagged(tag: int | None) -> set[int]:
    """The ids of the living processes with this tag."""
    return set() if tag is None else set(_found(tag, tag + 1))


def _kill(first: int, end: int) -> int:
    return kill_found(lambda: set(_found(first, end)))


def _found(first: int, end: int) -> Iterator[int]:
    own = os.getpid()
    for name in os.listdir("/proc") if _LIMIT is not None else ():
        if name.isdigit() and int(name) != own and first <= _tag_of(int(name)) < end:
            line = process_line(int(name))
            if line is not None and line.state not in "ZX":
                yield int(name)


def _tag_of(pid: int) -> int:
    assert _LIMIT is not None
    try:
        return resource.prlimit(pid, _LIMIT)[1]
    except (OSError, ValueError):
        return -1


@cache
def _setter() -> str | None:
    """util-linux's program that sets a limit and becomes another program; None where it can't."""
    program = shutil.which("prlimit")
    if program is None or _LIMIT is None:
        return None
    trial = subprocess.run([program, "--rttime"], capture_output=True, timeout=20, check=False)
    return program if trial.returncode == 0 else None


def _prefix() -> int | None:
    """First digits that nobody else uses. Where we are tagged ourselves they must be lower, as nobody can raise the limit."""
    if _LIMIT is None or _setter() is None:
        return None
    ours: int = resource.getrlimit(_LIMIT)[1]
    highest = (_HIGHEST if ours < 0 or ours > _HIGHEST else ours) // _SPAN
    lowest = highest // 2
    return None if lowest < 10**6 else lowest + secrets.randbelow(highest - lowest)
