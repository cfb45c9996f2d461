"""Keys of grader entries: how they may be spelled, and what their values must be.

Every kind of grader has a class of its settings. Keys may be written ``max_total``, ``max-total`` or ``maxTotal``, and by names
that other versions of the format gave them. Only keys that a class declares are ever respelled: what a person wrote as data
(arguments of tools, expected values, settings of their own program) stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from manyhands.core.errors import UserError
from manyhands.core.jsonio import dumps
from manyhands.core.settings import Text, shown, suggestion
from manyhands.io.locations import Place

Notices = Callable[[str], None]
EntryType = TypeVar("EntryType", bound="Entry")

_SPELLINGS = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*|[a-z][A-Za-z0-9]*")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@lru_cache(maxsize=1024)
def snake(word: str) -> str:
    """``maxTotal`` and ``max-total`` as ``max_total``; anything that is no such word as it is."""
    return _HUMP.sub("_", word).replace("-", "_").lower() if _SPELLINGS.fullmatch(word) else word


class Entry(BaseModel):
    """The base of settings of graders, and of the objects within them.

    ``spellings``: other names of keys, in snake case, and the keys they stand for; ``obsolete``: those of them that are older than the
    format's present version, which is said once. ``entries``: keys whose value is an object, or a list of objects, of a class like
    this. ``members``: the key whose value is a list of graders. ``open``: keys of a person's own may stand beside those declared.
    ``negates``: whether graders of the kind see to ``negate`` themselves, as the opposite of what they look for is not 1 − score.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, populate_by_name=False)
    spellings: ClassVar[Mapping[str, str]] = {}
    obsolete: ClassVar[frozenset[str]] = frozenset()
    entries: ClassVar[Mapping[str, type[Entry]]] = {}
    members: ClassVar[str | None] = None
    open: ClassVar[bool] = False
    negates: ClassVar[bool] = False

    @classmethod
    def key_names(cls) -> tuple[str, ...]:
        """The keys that the class declares."""
        return tuple(field.alias or name for name, field in cls.model_fields.items())

    @classmethod
    def key_of(cls, spelled: str) -> str | None:
        """The key that a word stands for; None if it is none of this class."""
        return _key_of(cls, spelled)


@lru_cache(maxsize=4096)
def _key_of(model: type[Entry], spelled: str) -> str | None:
    word = snake(spelled)
    key = model.spellings.get(word, word)
    return key if key in model.key_names() else None


def respelled(
    model: type[Entry], entry: Mapping[Any, Any], place: Place, notices: Notices, beside: Sequence[str] = ()
) -> dict[str, Any]:
    """The entry with its declared keys as the class spells them, also in the objects within it; everything else untouched.
    ``beside``: other keys that may have been meant by one that is unknown.

    Raises UserError for a key that is unknown or given twice.
    """
    found: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for word, value in entry.items():
        key = model.key_of(word) if isinstance(word, str) else None
        if key is None:
            key = _own(model, word, place, notices, beside)
        elif snake(word) in model.obsolete:
            notices(f"{place.file}: {word!r} is an obsolete name of {key!r}")
        if key in found:
            raise place.at(word).error(f"is the same key as {spelled[key]}, which is given too")
        spelled[key] = word
        inner = model.entries.get(key)
        found[key] = value if inner is None else _within(inner, value, place.at(word), notices)
    return found


def read(model: type[EntryType], entry: Mapping[str, Any], place: Place) -> EntryType:
    """The settings, checked; ``name`` and ``type`` of the entry are left out unless the class declares them.

    Raises UserError with a line for everything that is wrong.
    """
    keys = model.key_names()
    values = {key: value for key, value in entry.items() if key in keys or key not in ("name", "type")}
    if model.open:
        values = {key: value for key, value in values.items() if key in keys}
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UserError("\n".join(_problems(error, place))) from None


def own_keys(model: type[Entry], entry: Mapping[str, Any]) -> dict[str, Any]:
    """What an open class does not declare: the person's own keys, as they are."""
    return {key: value for key, value in entry.items() if key not in model.key_names() and key not in ("name", "type")}


def _own(model: type[Entry], word: Any, place: Place, notices: Notices, beside: Sequence[str]) -> str:
    known = [*model.key_names(), *beside, *model.spellings]
    if not model.open:
        raise place.at(str(word)).error(f"unknown key{suggestion(str(word), known)}")
    if not isinstance(word, str):
        raise place.error(f"the key {shown(word)} must be text")
    near = suggestion(word, known)
    if near:
        notices(place.at(word).says(f"taken as a setting of your own{near}"))
    return word


def _within(inner: type[Entry], value: Any, place: Place, notices: Notices) -> Any:
    if isinstance(value, Mapping):
        return respelled(inner, value, place, notices)
    if isinstance(value, (list, tuple)):
        return [_within(inner, part, place.at(index), notices) for index, part in enumerate(value)]
    return value


def _problems(error: ValidationError, place: Place) -> Iterator[str]:
    for detail in error.errors(include_url=False):
        at = place.at(*detail["loc"])
        if detail["type"] == "missing":
            yield place.at(*detail["loc"][:-1]).says(f"{detail['loc'][-1]} is required")
        elif detail["type"] == "value_error":
            got = "" if not detail["loc"] else f", not {shown(detail['input'])}"
            yield at.says(f"{detail['ctx']['error']}{got}")
        else:
            yield at.says(f"{_plain(detail['type'], detail['msg'])}, not {shown(detail['input'])}")


def _plain(kind: str, message: str) -> str:
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return "must be a mapping"
    if kind in ("list_type", "tuple_type"):
        return "must be a list"
    return message.replace("Input should be", "must be")


# --- Types of values


def _as_text(value: Any) -> str:
    if isinstance(value, (bool, int, float)):
        return dumps(value).decode()
    if not isinstance(value, str):
        raise ValueError("must be text")
    return value


def _filled(value: Any) -> str:
    text = _as_text(value)
    if not text:
        raise ValueError("must not be empty")
    return text


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError("must be a list of texts")
    if not value:
        raise ValueError("must not be empty")
    try:
        return tuple(map(_filled, value))
    except ValueError as error:
        raise ValueError(f"must be a list of texts, each of which {error}") from None


def _several(value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        raise ValueError("must be a list")
    if not value:
        raise ValueError("must not be empty")
    return value


SomeItems = BeforeValidator(_several)
"""A list with something in it."""
Words = Annotated[str, BeforeValidator(_as_text)]
"""Text of any kind, or a number or truth value that YAML took for one: then as JSON writes it."""
SomeWords = Annotated[str, BeforeValidator(_filled)]
"""The like, not empty."""
ListOfWords = Annotated[tuple[str, ...], BeforeValidator(_texts)]
"""One or more of them."""


def key(default: Any, description: str, **about: Any) -> Any:
    """A key of an entry: its default (``...`` if it must be given) and one sentence about it."""
    return Field(default, description=description, **about)


__all__ = [
    "Entry",
    "ListOfWords",
    "Notices",
    "SomeItems",
    "SomeWords",
    "Text",
    "Words",
    "key",
    "own_keys",
    "read",
    "respelled",
    "snake",
]
