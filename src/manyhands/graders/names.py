"""What graders without a name are called."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import count
from typing import Any

LONGEST = 60
_REGEX_LENGTH = 30


def name_for(entry: Mapping[str, Any]) -> str:
    """The kind and, where that says more, what it looks for: ``contains-CLEAR``, ``regex-`` with the first 30 characters, ``latency``."""
    kind = str(entry["type"])
    value = entry.get("value", entry.get("skill") if kind == "skill_trigger" else None)
    if isinstance(value, Mapping):
        value = value.get("pattern") or value.get("name") or value.get("goal")
    value = _one_line(value)
    if not value:
        return kind
    return f"{kind}-{value[:_REGEX_LENGTH]}" if kind == "regex" else _cut(f"{kind}-{value}")


def free_name(wanted: str, taken: Container[str]) -> str:
    """The name, or behind one that is taken the first of ``-2``, ``-3``, … that is free."""
    if wanted not in taken:
        return wanted
    return next(name for name in (f"{wanted}-{number}" for number in count(2)) if name not in taken)


def _one_line(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(_one_line(part) for part in value)
    return " ".join(str(value).split()) if isinstance(value, (str, int, float)) else ""


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
