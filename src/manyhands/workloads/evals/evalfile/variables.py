"""Values for ``{{ name }}`` in tests.

Where a suite or a test has ``vars``, ``{{ name }}`` in its criteria, input, expected output and graders stands for the value of that name.
A text that is nothing else becomes the value itself, of whatever type; within a text, values that are not text are put as
JSON. ``{{ name.field }}`` is a field of an object. Other names stay as they are, since prompts of graders have variables too; so does
everything where there are no ``vars``.

Environment variables in settings: ``${{ NAME }}``, as a whole text or within one, ``${{ NAME:-text }}`` with a default.

A variable that is empty counts as not set. Only what a person wrote is looked at: a value from the environment stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from manyhands.core.jsonio import Json, dumps
from manyhands.core.text import closest
from manyhands.io.locations import Place

_PLACE = re.compile(r"\{\{\s*([A-Za-z_][\w-]*(?:\.[\w-]+)*)\s*\}\}")
_NOTHING = object()


def filled(value: Json, variables: Mapping[str, Json]) -> Json:
    """The value with every variable in it replaced. Keys are left alone, and values are not looked at again."""
    if not variables:
        return value
    if isinstance(value, str):
        return _text(value, variables)
    if isinstance(value, Mapping):
        return {key: filled(entry, variables) for key, entry in value.items()}
    return [filled(entry, variables) for entry in value] if isinstance(value, list) else value


def misspelled(value: Json, variables: Mapping[str, Json]) -> Iterator[str]:
    """What there is to say of names in braces that are no variable, but much like one: that may not be what was meant."""
    if isinstance(value, str):
        for name in _PLACE.findall(value) if variables and "{{" in value else ():
            near = closest(name.split(".")[0], variables, cutoff=0.7)
            if near and _value(name, variables) is _NOTHING:
                yield f"{{{{ {name} }}}} is no variable and stays as it is; did you mean {{{{ {near[0]} }}}}?"
    elif isinstance(value, (Mapping, list)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from misspelled(part, variables)


def _text(text: str, variables: Mapping[str, Json]) -> Json:
    whole = _PLACE.fullmatch(text)
    if whole is not None:
        found = _value(whole[1], variables)
        return text if found is _NOTHING else found
    return _PLACE.sub(lambda place: _within(place, variables), text)


def _within(place: re.Match[str], variables: Mapping[str, Json]) -> str:
    found = _value(place[1], variables)
    if found is _NOTHING:
        return place[0]
    return found if isinstance(found, str) else dumps(found).decode()


def _value(name: str, variables: Mapping[str, Json]) -> Any:
    if name in variables:
        return variables[name]
    found: Any = variables
    for step in name.split("."):
        if not isinstance(found, Mapping) or step not in found:
            return _NOTHING
        found = found[step]
    return found


_REFERENCE = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
_MEANT = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*(?::-(.*))?", re.DOTALL)

_SECRET = re.compile(r"key|token|secret|passw|auth|credential|cookie", re.IGNORECASE)


def has_reference(value: Json) -> bool:
    """Whether there is a variable anywhere in it."""
    if isinstance(value, str):
        return "${{" in value
    if isinstance(value, Mapping):
        return any(map(has_reference, value.values()))
    return isinstance(value, list) and any(map(has_reference, value))


def is_reference(value: Json) -> bool:
    """Whether it is a variable and nothing else, without a default."""
    whole = _REFERENCE.fullmatch(value.strip()) if isinstance(value, str) else None
    meant = _MEANT.fullmatch(whole[1]) if whole is not None else None
    return meant is not None and meant[2] is None


def names(value: Json, place: Place) -> Iterator[str]:
    """The variables in it that have no default. Raises UserError for what is no variable."""
    if isinstance(value, str):
        yield from (name for name, default in _references(value, place) if default is None)
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from names(entry, place.at(key))
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from names(entry, place.at(index))


@dataclass(frozen=True, slots=True)
class Interpolation:
    """Puts values of the environment in. ``used``: those that were, by name."""

    environ: Mapping[str, str]
    used: dict[str, str] = field(default_factory=dict)

    @property
    def secrets(self) -> list[str]:
        """Of the values that were put in, those whose names say that they are secrets."""
        return [value for name, value in self.used.items() if _SECRET.search(name)]

    def value(self, value: Json, place: Place) -> Json:
        """The value with all variables in it replaced; keys are left alone. Raises UserError for a variable that is not set."""
        if isinstance(value, str):
            return self._text(value, place)
        if isinstance(value, Mapping):
            return {key: self.value(entry, place.at(key)) for key, entry in value.items()}
        if isinstance(value, list):
            return [self.value(entry, place.at(index)) for index, entry in enumerate(value)]
        return value

    def is_set(self, name: str) -> bool:
        return bool(self.environ.get(name))

    def _text(self, text: str, place: Place) -> str:
        if "${{" not in text:
            return text
        found = iter(list(_references(text, place)))
        whole = text.strip() if _REFERENCE.fullmatch(text.strip()) else text
        return _REFERENCE.sub(lambda _: self._variable(*next(found), place), whole)

    def _variable(self, name: str, default: str | None, place: Place) -> str:
        value = self.environ.get(name)
        if value:
            self.used[name] = value
            return value
        if default is None:
            raise place.error(f"the environment variable {name} is not set")
        return default


def _references(text: str, place: Place) -> Iterator[tuple[str, str | None]]:
    """Names and defaults, in order."""
    for found in _REFERENCE.finditer(text):
        meant = _MEANT.fullmatch(found[1])
        if meant is None:
            raise place.error(f"{found[0]} is no variable; write ${{{{ NAME }}}} or ${{{{ NAME:-text }}}}")
        yield meant[1], None if meant[2] is None else meant[2].strip()
