"""JSON in the answers of agents: strict where it can be, else repaired in small steps.

The repairs are those of the parser by which the published results were scored, neither fewer nor
more: what it could not read scored nothing, so a cleverer parser would give other scores.
"""

from __future__ import annotations

import json
import re
from json import JSONDecodeError
from typing import Any

_FENCES = (
    re.compile(r"```javascript[ \t]*\n?(.*?)```", re.DOTALL | re.IGNORECASE),
    re.compile(r"```(?:json)?[ \t]*\n?(.*?)```", re.DOTALL | re.IGNORECASE),
)
_OPENING = re.compile(r"[\[{]")
_MAX_CHARACTERS = 1 << 20
"""Characters of an answer that are looked at."""
_MAX_READ = 1 << 25
"""Characters that are parsed for one answer, all steps together. A few hundred steps of an answer of 100,000 characters take no more."""


class NotJson(ValueError):
    """An answer that is no JSON, even when repaired."""


def tolerant_json(answer: str) -> Any:
    """The JSON value in an answer. Raises NotJson.

    Strict JSON is taken as it is. Otherwise what stands in the last fenced block (one of ``javascript`` before one of ``json`` or of no
    language), or all of it, is repaired in at most ``max(5, length / 50)`` steps.
    """
    answer = answer[:_MAX_CHARACTERS]
    try:
        return _strict(answer)
    except JSONDecodeError:
        return _repaired(_fenced(answer))


def _strict(text: str) -> Any:
    try:
        return json.loads(text)
    except JSONDecodeError:
        raise
    except RecursionError:
        raise NotJson("nested too deeply") from None
    except ValueError as error:  # a number of too many digits
        raise NotJson(str(error)) from None


def _fenced(answer: str) -> str:
    for fence in _FENCES:
        blocks = fence.findall(answer)
        if blocks:
            return str(blocks[-1])
    return answer


def _repaired(text: str) -> Any:
    left = _MAX_READ
    for _ in range(max(5, len(text) // 50)):
        left -= len(text)
        if left < 0:
            break
        try:
            return _strict(text)
        except JSONDecodeError as error:
            text = _step(text, error)
    raise NotJson("too many mistakes")


def _step(text: str, error: JSONDecodeError) -> str:
    """The text with one mistake less. The messages are those of all Python versions."""
    at = error.pos
    if error.msg.startswith("Extra data"):
        return text[:at]
    if error.msg.startswith("Invalid control character"):
        return text[:at] + text[at + 1 :]
    if error.msg.startswith("Illegal trailing comma"):
        return text[:at] + text[at + 1 :]
    if error.msg.startswith("Unterminated string"):
        return _closed(text, at)
    dropped = _without_noise(text, at)
    if dropped is not None:
        return dropped
    if error.msg.startswith("Expecting value") and not text[:at].strip():
        return _from_opening(text, at)
    inserted = _inserted(text, at, error.msg)
    if inserted is None:
        raise NotJson(f"{error.msg} at character {at}")
    return inserted


def _without_noise(text: str, at: int) -> str | None:
    """Without the comment, the ellipsis (and the comma after it) or the comma at fault, if it is one of those."""
    if text.startswith("//", at):
        end = text.find("\n", at)
        return text[:at] + (text[end:] if end >= 0 else "")
    if text.startswith("...", at):
        return text[:at] + text[at + 3 :].lstrip().removeprefix(",")
    before = text[:at].rstrip()
    if text[at : at + 1] in ("]", "}") and before.endswith(","):
        return before[:-1] + text[at:]
    return None


def _from_opening(text: str, at: int) -> str:
    found = _OPENING.search(text, at + 1)
    if found is None:
        raise NotJson("there is no object and no list")
    return text[found.start() :]


def _inserted(text: str, at: int, message: str) -> str | None:
    """With the comma, the quote or the value that is missing."""
    if at >= len(text):
        return None
    if message.startswith("Expecting ',' delimiter"):
        return f"{text[:at]},{text[at:]}"
    if message.startswith("Expecting ':' delimiter"):
        return f"{text[:at]}: null{text[at:]}"
    if message.startswith(("Expecting property name", "Expecting value")) and re.match(r"\w", text[at:]):
        return f'{text[:at]}"{text[at:]}'
    return None


def _closed(text: str, at: int) -> str:
    """With the missing quote at the end of the string's line, before what closes it there."""
    end = text.find("\n", at)
    line = text[at : end if end >= 0 else len(text)]
    inside = line.rstrip().rstrip(",]}").rstrip()
    place = at + max(len(inside), 1)
    return f'{text[:place]}"{text[place:]}'
