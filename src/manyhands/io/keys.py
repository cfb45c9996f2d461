"""Keys of mappings that people write: how they may be spelled, and what their values must be.

Every kind of mapping (a test, a target, a kind of grader) has a class of its settings. Keys may be written ``max_total``, ``max-total`` or
``maxTotal``, and by names that other versions of the format gave them. Only keys that a class declares are ever respelled: what a person
wrote as data (arguments of tools, expected values, settings of their own program) stays as it is.

``respelled`` and ``read`` raise what is wrong; ``collect`` gathers it, so that a person learns of everything in a file at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Generic, NoReturn, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from manyhands.core.errors import UserError
from manyhands.core.jsonio import dumps
from manyhands.core.settings import shown
from manyhands.core.text import closest, suggestion
from manyhands.io.locations import Findings, Location, Step, UnknownKeys
from manyhands.io.locations import Path as FieldPath

Notices = Callable[[str], None]
Spellings = Mapping[FieldPath, str]
"""How keys are written, by the path of their present names."""
EntryType = TypeVar("EntryType", bound="Entry")

ASIDE = "x-"
"""The beginning of keys that mean nothing to the program, for anchors and notes of a person."""
_SPELLINGS = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*|[a-z][A-Za-z0-9]*")
_NEAR = 0.8
"""How much a key of a person's own is like a known one if that is likely to be meant."""
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@lru_cache(maxsize=1024)
def snake(word: str) -> str:
    """``maxTotal`` and ``max-total`` as ``max_total``; anything that is no such word as it is."""
    return _HUMP.sub("_", word).replace("-", "_").lower() if _SPELLINGS.fullmatch(word) else word


class Entry(BaseModel):
    """The base of settings that people write as mappings, and of the mappings within them.

    Which keys there are, its fields say.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, populate_by_name=False)
    spellings: ClassVar[Mapping[str, str]] = {}
    """Other names of keys, in snake case, and the keys they stand for."""
    obsolete: ClassVar[frozenset[str]] = frozenset()
    """Those other names that are older than the format's present version, which is said once."""
    entries: ClassVar[Mapping[str, type[Entry]]] = {}
    """Keys whose value is an object, or a list of objects, of a class like this."""
    open: ClassVar[bool] = False
    """Whether keys of a person's own may stand beside those declared."""
    beyond: ClassVar[Mapping[str, str]] = {}
    """Keys of other versions of the format that are not supported, and what to do instead."""
    idle: ClassVar[frozenset[str]] = frozenset()
    """Keys of other versions of the format, in snake case, that may be there and change nothing; a note names them."""
    aside: ClassVar[bool] = False
    """Whether keys may hold what a person wants to (anchors, for example) if they begin with ``ASIDE``."""

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


Unknown = Callable[[str], str | None]
"""Given a word that is no key of a class, the key to take it for, or None to leave it out."""


def _keys(
    model: type[Entry],
    mapping: Mapping[Any, Any],
    location: Location,
    problem: Callable[[Location, str], None],
    notices: Notices,
    unknown: Unknown,
    *,
    nulls: bool,
) -> Iterator[tuple[str, str, Any]]:
    """Each key of a mapping by its present name, the word that it is written as, and its value. ``nulls``: whether a key whose value is
    null counts as given."""
    taken: dict[str, str] = {}
    for word, value in mapping.items():
        key = model.key_of(word) if isinstance(word, str) else None
        if key is None:
            key = unknown(word)
        elif snake(word) in model.obsolete:
            notices(f"{location.file}: {word!r} is an obsolete name of {key!r}")
        if key is None or (value is None and not nulls):
            continue
        if key in taken:
            problem(location.at(word), f"is the same key as {taken[key]}, which is given too")
            continue
        taken[key] = word
        yield key, word, value


# --- What is wrong is raised


def respelled(
    model: type[Entry],
    entry: Mapping[Any, Any],
    location: Location,
    notices: Notices,
    beside: Sequence[str] = (),
    unknown: UnknownKeys | None = None,
) -> dict[str, Any]:
    """The entry with its declared keys as the class spells them, also in the objects within it; everything else untouched.
    ``beside``: other keys that may have been meant by one that is unknown; ``unknown``: takes unknown keys, which are left out.

    Raises UserError for a key that is given twice, or unknown if nothing takes it.
    """

    def own(word: Any) -> str | None:
        return _own(model, word, location, notices, beside, unknown)

    found: dict[str, Any] = {}
    for key, word, value in _keys(model, entry, location, _refuse, notices, own, nulls=True):
        inner = model.entries.get(key)
        found[key] = value if inner is None else _within(inner, value, location.at(word), notices, unknown)
    return found


def read(model: type[EntryType], entry: Mapping[str, Any], location: Location) -> EntryType:
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
        raise UserError("\n".join(_problems(error, location))) from None


def own_keys(model: type[Entry], entry: Mapping[str, Any]) -> dict[str, Any]:
    """What an open class does not declare: the person's own keys, as they are."""
    return {key: value for key, value in entry.items() if key not in model.key_names() and key not in ("name", "type")}


def _refuse(location: Location, message: str) -> NoReturn:
    raise location.error(message)


def _own(
    model: type[Entry],
    word: Any,
    location: Location,
    notices: Notices,
    beside: Sequence[str],
    unknown: UnknownKeys | None,
) -> str | None:
    known = [*model.key_names(), *beside, *model.spellings]
    if not model.open:
        at, hint = location.at(str(word)), suggestion(str(word), known)
        if _is_aside(str(word)):
            return None
        if unknown is None:
            raise at.error(f"unknown key{hint}")
        unknown.add(at, hint)
        return None
    if not isinstance(word, str):
        raise location.error(f"the key {shown(word)} must be text")
    near = closest(snake(word), known, cutoff=_NEAR)
    if near:
        notices(location.at(word).says(f"taken as a setting of your own; did you mean {near[0]}?"))
    return word


def _within(inner: type[Entry], value: Any, location: Location, notices: Notices, unknown: UnknownKeys | None) -> Any:
    if isinstance(value, Mapping):
        return respelled(inner, value, location, notices, unknown=unknown)
    if isinstance(value, (list, tuple)):
        return [_within(inner, part, location.at(index), notices, unknown) for index, part in enumerate(value)]
    return value


def plain_problem(detail: Mapping[str, Any]) -> str:
    """What pydantic finds wrong with a value, in plain words. ``detail``: one of ``ValidationError.errors()``."""
    match detail["type"]:
        case "value_error":
            return str(detail["ctx"]["error"])
        case "model_type" | "model_attributes_type" | "dict_type":
            return "must be a mapping"
        case "list_type" | "tuple_type":
            return "must be a list"
        case "string_type":
            return "must be text"
    return str(detail["msg"]).replace("Input should be", "must be")


def _problems(error: ValidationError, location: Location) -> Iterator[str]:
    for detail in error.errors(include_url=False):
        at = location.at(*detail["loc"])
        if detail["type"] == "missing":
            yield location.at(*detail["loc"][:-1]).says(f"{detail['loc'][-1]} is required")
        else:
            got = "" if detail["type"] == "value_error" and not detail["loc"] else f", not {shown(detail['input'])}"
            yield at.says(f"{plain_problem(detail)}{got}")


# --- What is wrong is gathered


@dataclass(frozen=True, slots=True)
class Read(Generic[EntryType]):
    """A mapping of a file, checked."""

    block: EntryType
    location: Location
    words: Spellings = field(default_factory=dict)
    """How its keys, and those of mappings within it, are written there."""

    def at(self, *keys: Step) -> Location:
        """The location of a key, or of one in a mapping within, by their present names."""
        return _at(self.location, self.words, keys)


@dataclass(frozen=True, slots=True)
class Spelled:
    """The values of a mapping by the present names of their keys, and how these are written."""

    values: dict[str, Any]
    words: Spellings

    def at(self, location: Location, *keys: Step) -> Location:
        """The location of a key. ``location``: the mapping's."""
        return _at(location, self.words, keys)


def collect(model: type[EntryType], value: Any, location: Location, findings: Findings) -> Read[EntryType] | None:
    """The mapping as its class; None if something is wrong with it, and then ``findings`` says what. A key whose value is null
    counts as not given."""
    before = len(findings.problems)
    spelled = present(model, value, location, findings)
    if spelled is None:
        return None
    block = checked(model, spelled, location, findings)
    return Read(block, location, spelled.words) if block is not None and len(findings.problems) == before else None


def present(model: type[Entry], value: Any, location: Location, findings: Findings) -> Spelled | None:
    """The mapping with its keys by their present names, also in the mappings within it and in lists of such. Unknown keys are left out,
    and ``findings`` names them."""
    words: dict[FieldPath, str] = {}

    def within(model: type[Entry], value: Any, location: Location, path: FieldPath) -> Any:
        if isinstance(value, list):
            return [within(model, part, location.at(number), (*path, number)) for number, part in enumerate(value)]
        return spelled(model, value, location, path) if isinstance(value, Mapping) else value

    def spelled(model: type[Entry], value: Any, location: Location, path: FieldPath) -> dict[str, Any] | None:
        if not isinstance(value, Mapping):
            findings.problem(location, f"must be a mapping, not {shown(value)}")
            return None

        def unknown(word: str) -> None:
            _tell_unknown(model, word, location.at(word), findings)

        found: dict[str, Any] = {}
        for key, word, entry in _keys(model, value, location, findings.problem, findings.notice, unknown, nulls=False):
            here = (*path, key)
            words[here] = word
            inner = model.entries.get(key)
            found[key] = entry if inner is None else within(inner, entry, location.at(word), here)
        return found

    values = spelled(model, value, location, ())
    return None if values is None else Spelled(values, words)


def checked(
    model: type[EntryType], spelled: Spelled, location: Location, findings: Findings, later: Collection[str] = ()
) -> EntryType | None:
    """The values as their class. ``later``: keys that are given but not to be looked at yet."""
    try:
        return model.model_validate({key: value for key, value in spelled.values.items() if key not in later})
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            if detail["type"] != "missing" or detail["loc"][-1] not in later:
                _tell(detail, location, spelled.words, findings)
        return None


def spelled_at(location: Location, key: str) -> Location:
    """The location of a key in a mapping of which only the location is known, however the key is written there."""
    head, *tail = key.split("_")
    words = (key, head + "".join(part.capitalize() for part in tail), key.replace("_", "-"))
    return location.at(next((word for word in words if (*location.path, word) in location.lines), key))


def _at(location: Location, words: Spellings, keys: FieldPath) -> Location:
    if len(keys) == 1:
        return location.at(words.get(keys, keys[0]))
    return location.at(*(words.get(keys[: number + 1], key) for number, key in enumerate(keys)))


def _tell_unknown(model: type[Entry], word: str, location: Location, findings: Findings) -> None:
    if model.aside and _is_aside(word):
        return
    if snake(word) in model.idle:
        findings.idle_key(location)
        return
    instead = model.beyond.get(snake(word))
    if instead is not None:
        findings.problem(location, f"is not supported; {instead}")
    else:
        findings.unknown_key(location, suggestion(word, [*model.key_names(), *model.spellings]))


def _is_aside(word: str) -> bool:
    return word.startswith(ASIDE)


def _tell(detail: Mapping[str, Any], location: Location, words: Spellings, findings: Findings) -> None:
    keys = detail["loc"]
    if detail["type"] == "missing":
        findings.problem(_at(location, words, keys[:-1]), f"{keys[-1]} is required")
    elif detail["type"] == "extra_forbidden":
        findings.problem(_at(location, words, keys), "unknown key")
    else:
        findings.problem(_at(location, words, keys), f"{plain_problem(detail)}, not {shown(detail['input'])}")


# --- Types of values


def share_of_one(value: Any, *, problem: str = "must be a number above 0 and up to 1") -> float:
    """A number above 0 and up to 1. Raises ValueError with the problem for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise ValueError(problem)
    return float(value)


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
