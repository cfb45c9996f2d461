"""A schema as a part of another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from manyhands.core.jsonio import Json

_DEFINITIONS = ("$defs", "definitions")
_ABOUT_THE_WHOLE = ("$schema", "$id", *_DEFINITIONS)
_MAPS_OF_SCHEMAS = ("properties", "patternProperties", "dependentSchemas", *_DEFINITIONS)
_NOT_SCHEMAS = ("const", "default", "enum", "examples")
_REFERENCES = ("$ref", "$dynamicRef")


class Embedded(NamedTuple):
    """``schema`` goes where it was made for; ``definitions`` (``$defs`` and the like, if it has any) to the top of the whole."""

    schema: dict[str, Any]
    definitions: dict[str, Any]


def embedded(schema: Mapping[str, Any], place: Sequence[str]) -> Embedded:
    """A schema of objects as it reads at a place in another schema: what refers to a part of it still does.

    Definitions move to the top, where endpoints and models look for them, so that references to them stay as they are; other
    references within the schema get the place before them.
    """
    prefix = "#/" + "/".join(place)
    definitions = {name: _moved_part(name, schema[name], prefix) for name in _DEFINITIONS if name in schema}
    rest = {name: part for name, part in schema.items() if name not in _ABOUT_THE_WHOLE}
    return Embedded({**_moved(rest, prefix), "type": "object"}, definitions)


def _moved(value: Json, prefix: str) -> Any:
    if isinstance(value, list):
        return [_moved(part, prefix) for part in value]
    if (
        not isinstance(value, Mapping) or "$id" in value
    ):  # within a schema of its own name references mean something else
        return value
    return {name: _moved_part(name, part, prefix) for name, part in value.items()}


def _moved_part(name: str, part: Json, prefix: str) -> Json:
    if name in _REFERENCES and isinstance(part, str):
        return _moved_reference(part, prefix)
    if name in _MAPS_OF_SCHEMAS and isinstance(part, Mapping):
        return {key: _moved(inner, prefix) for key, inner in part.items()}
    return part if name in _NOT_SCHEMAS else _moved(part, prefix)


def _moved_reference(reference: str, prefix: str) -> str:
    if reference == "#":
        return prefix
    if not reference.startswith("#/") or reference.startswith(tuple(f"#/{name}/" for name in _DEFINITIONS)):
        return reference
    return prefix + reference[1:]
