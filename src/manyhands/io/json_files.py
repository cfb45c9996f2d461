"""Whole JSON files, with errors that name the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, loads


def read_json(path: Path, parse: Callable[[bytes], Json] = loads) -> Json:
    """What a file holds. ``parse``: how its bytes are read; ValueError from it is said to be no JSON. Raises UserError."""
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: can't be read: {error.strerror or error}") from None
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}") from None


def read_object(path: Path, parse: Callable[[bytes], Json] = loads) -> dict[str, Any]:
    """The object that a file holds; ``parse`` as of ``read_json``. Raises UserError, also if it holds something else."""
    found = read_json(path, parse)
    if not isinstance(found, dict):
        raise UserError(f"{path}: not a JSON object")
    return found
