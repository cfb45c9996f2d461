"""Tags inside the values of ShareGPT turns: escaped, so that every tag that stands in a turn is one of its structure.

What counts as a tag: ``<think>``, ``<tool_call>``, ``<tool_response>`` and ``<tools>``, opening or closing, and the control tokens of chat
templates: ``<|…|>`` (also with the full-width bars of some models) without white space in it, ``<start_of_turn>`` and ``<end_of_turn>``.

In plain text an escaped tag has a backslash behind its first character: ``<\\think>``; one that has backslashes there already gets one
more, so that ``unescape(escape(text)) == text`` for every text. In JSON the first character is ``\\u003c``, which every parser of
JSON undoes.
"""

from __future__ import annotations

import re

_TAG = r'/?(?:think|tool_call|tool_response|tools)>|[|\uff5c][^\s<>|\uff5c"\\]{1,100}[|\uff5c]>|(?:start|end)_of_turn>'
_IN_TEXT = re.compile(rf"<(?=\\*(?:{_TAG}))")
_ESCAPED = re.compile(rf"<\\(?=\\*(?:{_TAG}))")
_IN_JSON = re.compile(rf"<(?={_TAG})")


def escape(text: str) -> str:
    """The text with its tags escaped."""
    return escaped(text)[0]


def unescape(text: str) -> str:
    """The reverse of ``escape``."""
    return _ESCAPED.sub("<", text)


def escaped(text: str) -> tuple[str, int]:
    """The text with its tags escaped, and how many there were."""
    return _IN_TEXT.subn("<\\\\", text) if "<" in text else (text, 0)


def escaped_json(document: str) -> tuple[str, int]:
    """A JSON document with the tags in its strings escaped, and how many there were. It says the same as before."""
    return _IN_JSON.subn(r"\\u003c", document) if "<" in document else (document, 0)


class Escaping:
    """Escapes tags and counts them. ``active``: false to leave all texts as they are."""

    __slots__ = ("active", "count")

    def __init__(self, *, active: bool = True) -> None:
        self.active = active
        self.count = 0

    def text(self, text: str) -> str:
        """Plain text."""
        return self._counted(escaped(text)) if self.active else text

    def json(self, document: str) -> str:
        """A JSON document."""
        return self._counted(escaped_json(document)) if self.active else document

    def _counted(self, found: tuple[str, int]) -> str:
        self.count += found[1]
        return found[0]
