"""Standard output and error of our processes, through which no secret goes, and nothing that a terminal would obey."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from manyhands.core.redaction import KNOWN
from manyhands.core.text import printable


class SafeStream:
    """A text stream whose texts are made safe. ``raw``: the stream as it is, for what makes its texts safe itself."""

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        self.raw.write(printable(KNOWN.text(text)))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def raw_stream(stream: TextIO) -> TextIO:
    """What is behind a stream of this process."""
    return stream.raw if isinstance(stream, SafeStream) else stream


@contextmanager
def safe_streams() -> Iterator[None]:
    """While inside, whatever is printed is made safe."""
    output, errors = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _safe(output), _safe(errors)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = output, errors


def _safe(stream: Any) -> Any:
    return stream if stream is None or isinstance(stream, SafeStream) else SafeStream(stream)
