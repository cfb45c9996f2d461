"""Secrets in what is exported: values that this process knows, and texts that look like keys of well-known services."""

from __future__ import annotations

import re
from collections.abc import Iterator

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, dumps, loads
from manyhands.core.redaction import KNOWN, REDACTED

_KINDS = {
    "an API key (sk-…)": r"(?<![A-Za-z0-9])sk-(?:[A-Za-z]+-)*[A-Za-z0-9_-]{20,}",
    "a GitHub token": r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,})",
    "a GitLab token": r"(?<![A-Za-z0-9])glpat-[A-Za-z0-9_-]{20,}",
    "a Slack token": r"(?<![A-Za-z0-9])xox[abeoprs]-[A-Za-z0-9-]{10,}",
    "an AWS access key": r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[0-9A-Z]{16}(?![A-Za-z0-9])",
    "a Google API key": r"(?<![A-Za-z0-9])AIza[0-9A-Za-z_-]{35}",
    "a Hugging Face token": r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{30,}",
    "a private key": r"-----BEGIN (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?:[^-]|-(?!----)){0,20000}+-----END (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----"
    # of one that was cut, what looks like its lines
    r"|(?:\s|\\[nr]?|[A-Z][A-Za-z-]+: [^\n\\]{1,200}|[A-Za-z0-9+/=]{8,}+){0,2000}+)",
    "a JSON web token": r"(?<![A-Za-z0-9])eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
    "a Stripe key": r"(?<![A-Za-z0-9])[rs]k_live_[A-Za-z0-9]{20,}",
    "an npm token": r"(?<![A-Za-z0-9])npm_[A-Za-z0-9]{36}",
    "a PyPI token": r"(?<![A-Za-z0-9])pypi-AgE[A-Za-z0-9_-]{50,}",
}
_ANY = re.compile("|".join(f"(?:{pattern})" for pattern in _KINDS.values()))
_EACH = {name: re.compile(pattern) for name, pattern in _KINDS.items()}
_MAYBE = (
    *(
        b"sk-",
        b"ghp_",
        b"gho_",
        b"ghu_",
        b"ghs_",
        b"ghr_",
        b"github_pat_",
        b"glpat-",
        b"xox",
        b"AKIA",
        b"ASIA",
        b"AIza",
        b"hf_",
    ),
    *(b"PRIVATE KEY", b"eyJ", b"k_live_", b"npm_", b"pypi-"),
    rb"\\u00",
)
"""One of these stands in each of them. Looking for each alone is ten times as fast as one pattern."""


class SecretFound(UserError):
    """A secret stands in what is to be exported."""


def may_hold_secret(document: bytes) -> bool:
    """Whether a JSON document may hold one."""
    for mark in _MAYBE:  # a loop, as a generator takes half as long again
        if mark in document:
            return True
    return KNOWN.is_in(document)


def find_secret(value: Json) -> tuple[str, str] | None:
    """The first secret in a JSON value: where it stands (``messages[3].content``), and what it looks like; None if there is none."""
    if not may_hold_secret(dumps(value)):
        return None
    for place, text in _texts(value, ""):
        if KNOWN.text(text) != text:
            return place, "a key that is known here"
        for each in (text, _unescaped(text)):
            if (found := _ANY.search(each)) is not None:
                return place, next(name for name, pattern in _EACH.items() if pattern.match(each, found.start()))
    return None


def without_secrets(value: Json) -> Json:
    """A JSON value with all secrets replaced."""
    if not may_hold_secret(dumps(value)):
        return value
    return _replaced(KNOWN.json(value))


def _replaced(value: Json) -> Json:
    if isinstance(value, str):
        return _replaced_in(value)
    if isinstance(value, list | tuple):
        return [_replaced(each) for each in value]
    if isinstance(value, dict):
        return {_replaced_in(name): _replaced(each) for name, each in value.items()}
    return value


def _replaced_in(text: str) -> str:
    replaced = _ANY.sub(REDACTED, text)
    plain = _unescaped(replaced)
    if plain is replaced or _ANY.search(plain) is None:
        return replaced
    try:
        return dumps(_replaced(loads(replaced))).decode()
    except (ValueError, RecursionError):
        return _ANY.sub(REDACTED, plain)


def _unescaped(text: str) -> str:
    """A text with the letters that JSON within it has escaped."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text) if "\\u00" in text else text


_ESCAPED = re.compile(r"\\+u00([2-7][0-9A-Fa-f])")


def _texts(value: Json, place: str) -> Iterator[tuple[str, str]]:
    """Every text in a JSON value, names included, with where it stands."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from _texts(each, f"{place}[{index}]")
    elif isinstance(value, dict):
        for name, each in value.items():
            inner = f"{place}.{name}" if place else name
            yield place or name, name
            yield from _texts(each, inner)
