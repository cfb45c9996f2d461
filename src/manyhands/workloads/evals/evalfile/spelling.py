"""One spelling for every key, and one check for every value, with all that is wrong collected."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from manyhands.core.settings import shown, suggestion
from manyhands.io.findings import Findings
from manyhands.io.keys import snake
from manyhands.io.locations import Path as FieldPath
from manyhands.io.locations import Place, Step
from manyhands.workloads.evals.evalfile.keys import Block

BlockType = TypeVar("BlockType", bound=Block)
Words = Mapping[FieldPath, str]
"""How keys are written, by the path of their present names."""
OWN = "x-"
"""Keys that begin with this hold what a person wants to (anchors, for example) and mean nothing."""


@dataclass(frozen=True, slots=True)
class Read(Generic[BlockType]):
    """A mapping of a file, checked. ``words``: how its keys, and those of mappings within it, are written there."""

    block: BlockType
    place: Place
    words: Words = field(default_factory=dict)

    def at(self, *keys: Step) -> Place:
        """The place of a key, or of one in a mapping within, by their present names."""
        return _at(self.place, self.words, keys)


def read(model: type[BlockType], value: Any, place: Place, findings: Findings) -> Read[BlockType] | None:
    """The mapping as its class; None if something is wrong with it, and then ``findings`` says what. A key whose value is null
    counts as not given."""
    before = len(findings.problems)
    spelled = present(model, value, place, findings)
    if spelled is None:
        return None
    block = checked(model, spelled, place, findings)
    return Read(block, place, spelled.words) if block is not None and len(findings.problems) == before else None


@dataclass(frozen=True, slots=True)
class Spelled:
    """The values of a mapping by the present names of their keys, and how these are written."""

    values: dict[str, Any]
    words: Words

    def at(self, place: Place, *keys: Step) -> Place:
        """The place of a key. ``place``: the mapping's."""
        return _at(place, self.words, keys)


def present(model: type[Block], value: Any, place: Place, findings: Findings) -> Spelled | None:
    """The mapping with its keys by their present names. Unknown keys are left out, and ``findings`` names them."""
    spelling = _Spelling(findings)
    values = spelling.present(model, value, place, ())
    return None if values is None else Spelled(values, spelling.words)


def checked(
    model: type[BlockType], spelled: Spelled, place: Place, findings: Findings, later: Collection[str] = ()
) -> BlockType | None:
    """The values as their class. ``later``: keys that are given but not to be looked at yet."""
    try:
        return model.model_validate({key: value for key, value in spelled.values.items() if key not in later})
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            if detail["type"] != "missing" or detail["loc"][-1] not in later:
                _tell(detail, place, spelled.words, findings)
        return None


@dataclass(frozen=True, slots=True)
class _Spelling:
    """Gives keys their present names."""

    findings: Findings
    words: dict[FieldPath, str] = field(default_factory=dict)

    def present(self, model: type[Block], value: Any, place: Place, path: FieldPath) -> dict[str, Any] | None:
        """The values of a mapping by the present names of their keys; None if it is no mapping. ``path``: its own."""
        if not isinstance(value, Mapping):
            self.findings.problem(place, f"must be a mapping, not {shown(value)}")
            return None
        found: dict[str, Any] = {}
        for word, entry in value.items():
            key = self._key(model, word, place)
            if key is None or entry is None:
                continue
            here = (*path, key)
            if here in self.words:
                self.findings.problem(place.at(word), f"is the same key as {self.words[here]}, which is given too")
                continue
            self.words[here] = word
            inner = model.entries.get(key)
            block = inner is not None and issubclass(inner, Block)
            found[key] = self.present(inner, entry, place.at(word), here) if block else entry  # type: ignore[arg-type]
        return found

    def _key(self, model: type[Block], word: str, place: Place) -> str | None:
        key = model.key_of(word)
        if key is None:
            _refuse(model, word, place.at(word), self.findings)
        elif snake(word) in model.obsolete:
            self.findings.notice(f"{place.file}: {word!r} is an obsolete name of {key!r}")
        return key


def _at(place: Place, words: Words, keys: FieldPath) -> Place:
    if len(keys) == 1:
        return place.at(words.get(keys, keys[0]))
    return place.at(*(words.get(keys[: number + 1], key) for number, key in enumerate(keys)))


def spelled_at(place: Place, key: str) -> Place:
    """The place of a key in a mapping of which only the place is known, however the key is written there."""
    head, *tail = key.split("_")
    words = (key, head + "".join(part.capitalize() for part in tail), key.replace("_", "-"))
    return place.at(next((word for word in words if (*place.path, word) in place.lines), key))


def _refuse(model: type[Block], word: str, place: Place, findings: Findings) -> None:
    if word.startswith(OWN):
        return
    instead = model.beyond.get(snake(word))
    if instead is not None:
        findings.problem(place, f"is not supported; {instead}")
    else:
        findings.problem(place, f"unknown key{suggestion(word, [*model.key_names(), *model.spellings])}")


def _tell(detail: Mapping[str, Any], place: Place, words: Words, findings: Findings) -> None:
    keys = detail["loc"]
    if detail["type"] == "missing":
        findings.problem(_at(place, words, keys[:-1]), f"{keys[-1]} is required")
        return
    if detail["type"] == "extra_forbidden":
        findings.problem(_at(place, words, keys), "unknown key")
        return
    said = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else _plain(detail)
    findings.problem(_at(place, words, keys), f"{said}, not {shown(detail['input'])}")


def _plain(detail: Mapping[str, Any]) -> str:
    if detail["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return "must be a mapping"
    if detail["type"] in ("list_type", "tuple_type"):
        return "must be a list"
    if detail["type"] == "literal_error":
        return f"must be {detail['ctx']['expected']}"
    return (
        "must be text" if detail["type"] == "string_type" else str(detail["msg"]).replace("Input should be", "must be")
    )
