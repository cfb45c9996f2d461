"""Environment variables in settings: ``${{ NAME }}``, as a whole text or within one, ``${{ NAME:-text }}`` with a default.

A variable that is empty counts as not set. Only what a person wrote is looked at: a value from the environment stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from manyhands.core.jsonio import Json
from manyhands.core.places import Place

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
