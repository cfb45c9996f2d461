"""How answers are read and compared: whole words, numbers as people write them, alike sentences, and JSON with mistakes.

Alike are sentences by ROUGE-L, the F measure of their longest common subsequence of stemmed words, as in C.-Y. Lin, "ROUGE: A Package for
Automatic Evaluation of Summaries" (2004), with Porter's stemmer on words of more than three letters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from json import JSONDecodeError
from typing import Any

import snowballstemmer

LARGEST = 1_000_000
"""No quantity of a test comes near it."""
_WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
)
_NUMBERS = {
    **{word: number for number, word in enumerate(_WORDS)},
    "a": 1,
    "an": 1,
    "single": 1,
    "once": 1,
    "twice": 2,
    "pair": 2,
    "couple": 2,
    "both": 2,
    "dozen": 12,
    "no": 0,
    "none": 0,
    "nothing": 0,
}
_GROUPS = {"pair": 2, "couple": 2, "dozen": 12}
_DIGITS = re.compile(r"(?:x|×)?(\d{1,9})(?:\.0{1,9})?(?:x|×|[a-z]{1,12})?")
_SEVERAL = re.compile(r"\d\s*[-–—/]\s*\d|\d[.,]\d*[1-9]|^\s*[-–−]\s*\d")
_MAX_CHARACTERS = 100
"""Characters of a quantity that are looked at."""


def quantity_in(value: Any) -> int | None:
    """The whole number that a value of an answer means; None if it means none, or several."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) <= LARGEST else None
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= LARGEST else None
    return _in_words(value) if isinstance(value, str) and len(value) <= _MAX_CHARACTERS else None


def _in_words(text: str) -> int | None:
    if _SEVERAL.search(text):
        return None
    text = text.lower().replace("half a dozen", "six")
    words = [word.strip(".,;:!?()[]*\"'") for word in text.replace("-", " ").split()]
    if "or" in words or "to" in words or "half" in words:
        return None
    digits = [found for word in words if (found := _DIGITS.fullmatch(word))]
    if digits:
        groups = [_GROUPS[word] for word in words if word in _GROUPS] or [1]
        return int(digits[0][1]) * groups[0] if len(digits) == 1 and len(groups) == 1 else None
    named = [word for word in words if word in _NUMBERS]
    if len(named) > 1 and named[0] != named[-1] and named[-1] in _GROUPS:
        return _NUMBERS[named[0]] * _GROUPS[named[-1]]  # a dozen, two pairs
    return _NUMBERS[named[0]] if len(named) == 1 else None


def mentions(text: str, word: str) -> bool:
    """Whether a text holds a word, or several in a row, as whole words, in capitals or not."""
    return re.search(rf"(?<!\w){re.escape(word.lower())}(?!\w)", text.lower()) is not None


_NO_WORD = re.compile(r"[^a-z0-9]+")
_MAX_WORDS = 4000
"""Of each text; a longer answer is not the sentence that is looked for."""


@lru_cache(maxsize=1 << 15)
def stem(word: str) -> str:
    """The stem of a word in lower case; short words are their own."""
    return str(snowballstemmer.stemmer("porter").stemWord(word)) if len(word) > 3 else word


def stems(text: str) -> list[str]:
    """The stems of the words of a text, in order."""
    return [stem(word) for word in _NO_WORD.sub(" ", text.lower()).split()]


def rouge_l(expected: str, given: str) -> float:
    """From 0 (no word in common) to 1 (the same words in the same order)."""
    one, other = stems(expected)[:_MAX_WORDS], stems(given)[:_MAX_WORDS]
    common = _common(one, other)
    if not common:
        return 0.0
    precision, recall = common / len(other), common / len(one)
    return 2 * precision * recall / (precision + recall)


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the longest common subsequence."""
    # By bits, a row of the table at a time: H. Hyyrö, "Bit-parallel LCS-length computation revisited" (2004).
    positions: dict[str, int] = {}
    for at, word in enumerate(other):
        positions[word] = positions.get(word, 0) | 1 << at
    everywhere = row = (1 << len(other)) - 1
    for word in one:
        here = row & positions.get(word, 0)
        row = (row + here | row - here) & everywhere
    return (everywhere ^ row).bit_count()


# --- JSON with mistakes
#
# The repairs are those of the parser by which the published results were scored, neither fewer nor more: what it could not read scored
# nothing, so a cleverer parser would give other scores.

_FENCES = (
    re.compile(r"```javascript[ \t]*\n?(.*?)```", re.DOTALL | re.IGNORECASE),
    re.compile(r"```(?:json)?[ \t]*\n?(.*?)```", re.DOTALL | re.IGNORECASE),
)
_OPENING = re.compile(r"[\[{]")
_MAX_JSON_CHARACTERS = 1 << 20
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
    answer = answer[:_MAX_JSON_CHARACTERS]
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
    position = at + max(len(inside), 1)
    return f'{text[:position]}"{text[position:]}'
