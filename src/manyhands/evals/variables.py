"""Values for ``{{ name }}`` in tests.

Where a suite or a test has ``vars``, ``{{ name }}`` in its criteria, input, expected output and graders stands for the value of that name.
A text that is nothing else becomes the value itself, of whatever type; within a text, values that are not text are put as
JSON. ``{{ name.field }}`` is a field of an object. Other names stay as they are, since prompts of graders have variables too; so does
everything where there are no ``vars``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from manyhands.core.jsonio import Json, dumps

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
            near = get_close_matches(name.split(".")[0], variables, n=1, cutoff=0.7)
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
