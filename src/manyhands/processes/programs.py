"""Whether the program and the script that a command names are there, as far as that is certain before it is run.

Certain is what holds for every run of the command: a list of words starts its first one; of a line for a shell that is a single command
without anything to be worked out, so does the shell. Everything else counts as there.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any


def script_of(value: Any) -> str | tuple[str, ...]:
    """A program: a line for ``sh``, or argv. Raises ValueError."""
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        raise ValueError("must be a line for sh, or a list of a program and its arguments")
    if not words or not words[0].strip():
        raise ValueError("must not be empty")
    if any("\0" in word for word in words):
        raise ValueError("must not hold a NUL character")
    return value if isinstance(value, str) else tuple(words)


_SECONDS = 10.0
_WORKED_OUT = re.compile(r"""[|&;()<>$`\\*?\[\]{}#~=!\n\r]""")
"""What a shell, or a target's placeholders, may make something else of."""
_JOINED = re.compile(r"[|&;()`\n\r]|\$\(")
"""What may make more than one command of a line."""
_INTERPRETER = re.compile(r"python[\d.]*|node")
_SCRIPT = re.compile(r"[^-].*\.(py|js|mjs|cjs)")
"""Scripts of these; other interpreters have more ways to find theirs, and stand-ins on the path."""


def missing(command: str | Sequence[str], folder: Path, environ: Mapping[str, str] | None = None) -> str | None:
    """What a command names and is not there, in words; None if nothing is missing for certain. ``folder``: where it is started;
    ``environ``: what it inherits, without it this process's environment."""
    line = isinstance(command, str)
    words = _words(command) if isinstance(command, str) else list(command)
    if not words or _is_worked_out(words[0], line):
        return None
    path = (os.environ if environ is None else environ).get("PATH", os.defpath)
    return _missing_program(words[0], folder, path, line) or _missing_script(words, folder, line)


def _words(line: str) -> list[str]:
    """The words of a line that is one command; none of any other."""
    if _JOINED.search(line):
        return []
    try:
        return shlex.split(line)
    except ValueError:
        return []


def _is_worked_out(word: str, line: bool) -> bool:
    return bool((_WORKED_OUT if line else re.compile(r"[{}]")).search(word))


def _missing_program(word: str, folder: Path, path: str, line: bool) -> str | None:
    if "/" in word:
        found = folder / word
        if found.is_file():
            return None if os.access(found, os.X_OK) else f"{found} can't be executed"
        return f"there is no program {found}"
    if shutil.which(word, path=path) is not None or (line and _knows(word, path)):
        return None
    return f"there is no program {word} on the path"


@lru_cache(maxsize=256)
def _knows(word: str, path: str) -> bool:
    """Whether the shell itself has something of that name."""
    ask = ["/bin/sh", "-c", 'command -v -- "$1"', "sh", word]
    try:
        done = subprocess.run(ask, env={"PATH": path}, capture_output=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return True
    return done.returncode == 0


def _missing_script(words: Sequence[str], folder: Path, line: bool) -> str | None:
    """Of ``python3 FILE …`` and its like, whether there is the file."""
    if not _INTERPRETER.fullmatch(Path(words[0]).name):
        return None
    script = words[1] if len(words) > 1 else ""
    if not _SCRIPT.fullmatch(script) or _is_worked_out(script, line) or (folder / script).exists():
        return None
    return f"there is no file {folder / script}"
