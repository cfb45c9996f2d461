"""Files that eval files name, and where they are looked for."""

from __future__ import annotations

from pathlib import Path

from manyhands.core.places import Place
from manyhands.graders.surroundings import Surroundings

__all__ = ["Surroundings", "text_of"]


def text_of(path: Path, place: Place) -> str:
    """What a file says, with line ends as LF. ``place``: where it is named. Raises UserError."""
    try:
        return path.read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise place.error(f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise place.error(f"can't read {path}: {error.strerror or error}") from error
