"""A person's own price table: a YAML or JSON file."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.models.pricing import Price


def read_prices(path: Path) -> dict[str, Price]:
    """The prices in a file, by model name.

    The file maps model names to ``input`` and ``output`` and optionally ``cached_input`` and ``cache_write``: US dollars per
    million tokens. Raises UserError naming file, line and field.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: can't read the price table: {error}") from None
    data = _parse(path, text)
    if not isinstance(data, CommentedMap):
        raise UserError(f"{path}:1: a price table maps model names to prices")
    return {str(name): _entry(path, data, name) for name in data}


def _parse(path: Path, text: str) -> Json:
    try:
        # The round-trip loader keeps line numbers, and loads nothing but plain data.
        return YAML(typ="rt").load(StringIO(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise UserError(f"{where}: not YAML or JSON: {error.problem}") from None
    except YAMLError as error:
        raise UserError(f"{path}: not YAML or JSON: {' '.join(str(error).split())}") from None


def _entry(path: Path, data: CommentedMap, name: Any) -> Price:
    entry = data[name]
    where = f"{path}:{data.lc.data[name][0] + 1}: {name}"
    if not isinstance(entry, CommentedMap):
        raise UserError(f"{where}: expected input and output prices in US dollars per million tokens")
    fields = ("input", "output", "cached_input", "cache_write")
    for field in entry:
        where = f"{path}:{entry.lc.data[field][0] + 1}: {name}.{field}"
        if field not in fields:
            raise UserError(f"{where}: unknown field; known: {', '.join(fields)}")
        if isinstance(entry[field], bool) or not isinstance(entry[field], int | float) or not entry[field] >= 0:
            raise UserError(f"{where}: must be a number of US dollars per million tokens, 0 or more")
    for field in ("input", "output"):
        if field not in entry:
            raise UserError(f"{path}:{data.lc.data[name][0] + 1}: {name}.{field}: missing")
    figures = {field: float(entry[field]) for field in fields if field in entry}
    return Price(figures["input"], figures["output"], figures.get("cached_input"), figures.get("cache_write"))
