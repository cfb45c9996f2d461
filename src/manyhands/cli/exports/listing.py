"""Lists of formats for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from manyhands.core.errors import UserError
from manyhands.export.format import Format
from manyhands.export.readers.reader import Reader


def print_formats(names: Iterable[str], load: Callable[[str], type[Format] | type[Reader]]) -> int:
    """Print each format with what it is for, or why it can't be used; the exit code."""
    for name in names:
        try:
            about = load(name).about
        except UserError as error:
            about = str(error)
        print(f"{name:<14}{about}")
    return 0
