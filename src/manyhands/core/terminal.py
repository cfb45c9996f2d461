"""Text from outside made safe for a terminal: what a model, a file or a server said is shown, and never obeyed."""

from __future__ import annotations

import json
import re

from manyhands.core.jsonio import Json

_JOINED = "\u0600-\u109f\u1780-\u18af\u2190-\u2bff\ufb50-\ufdff\ufe0f\ufe70-\ufefc\U0001f000-\U0001faff"
"""Characters (Arabic, of India and its neighbours, pictures) between which a joiner or non-joiner is spelling, and is seen."""
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters of both sets, but for line ends and tabs
    # direction, and what has no width
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
    "\ud800-\udfff]"  # halves of characters, which no encoding has
    f"|(?<![{_JOINED}])[\u200c\u200d]|[\u200c\u200d](?![{_JOINED}])"
)


def printable(text: str) -> str:
    """The text without what a terminal would obey, or a person would not see: such characters are spelled out."""
    return _UNSAFE.sub(lambda found: _spelled(ord(found[0])), text)


def one_line(text: str, most: int = 300) -> str:
    """The like on one line, cut to ``most`` characters."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= most else f"{line[:most]}…"


def json_text(value: Json, *, indent: int | None = None) -> str:
    """JSON for standard output: what ``printable`` spells out is escaped as JSON has it, so that programs read the same value."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return _UNSAFE.sub(lambda found: _escaped(found[0]), text)


def _spelled(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1] if character != "\x7f" else "\\u007f"
