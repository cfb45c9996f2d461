"""The leaf properties of results: which ones a schema names, and where each is found in a result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.io.tables.base import Kind

MAX_LEAVES = 4096
_MAX_DEPTH = 32
_ROOT = "#"
"""The reference to the schema itself."""
_SCALARS: dict[str, Kind] = {"string": "string", "integer": "integer", "number": "number", "boolean": "boolean"}
Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One property of the results. ``path``: the properties on the way to it; ``kind``: what the schema says it is (None: nothing)."""

    path: tuple[str, ...]
    kind: Kind | None

    def of(self, result: Json) -> Json:
        """Its value in a result; None where that does not have it."""
        for name in self.path:
            if not isinstance(result, dict):
                return None
            result = result.get(name)
        return result


def leaves_of(schema: Schema) -> tuple[Leaf, ...]:
    """The leaf properties that a JSON Schema names, in its order; none if it names no properties.

    Objects with named properties are spread, also behind a ``$ref`` into the same schema, a single ``allOf`` or a choice between
    that and null. What refers to itself stays whole where it comes round. Raises UserError if it spreads too far.
    """
    leaves: list[Leaf] = []
    for leaf in _Spreading(schema).leaves(schema, (), (_ROOT,)):
        leaves.append(leaf)
        if len(leaves) > MAX_LEAVES:
            raise UserError(f"the output schema spreads into more than {MAX_LEAVES} columns: export without --flatten")
    return tuple(leaf for leaf in leaves if leaf.path)


class _Spreading:
    """A walk over one schema. ``way``: the references that led to where it is, which must not be taken again."""

    def __init__(self, root: Schema) -> None:
        self._root = root

    def leaves(self, schema: Any, path: tuple[str, ...], way: tuple[str, ...]) -> Iterator[Leaf]:
        parts = list(self._parts(schema, way, set(way)))
        named = {name: (part, onward) for holder, onward in parts for name, part in _properties(holder).items()}
        if not named or len(path) >= _MAX_DEPTH:
            yield Leaf(path, _kind([part for part, _ in parts]))
            return
        for name, (part, onward) in named.items():
            yield from self.leaves(part, (*path, name), onward)

    def _parts(self, schema: Any, way: tuple[str, ...], taken: set[str]) -> Iterator[tuple[Schema, tuple[str, ...]]]:
        """All that has to hold of a value that fits a schema, each part with the references that led to it."""
        if not isinstance(schema, Mapping):
            return
        yield schema, way
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in taken:
            taken.add(reference)
            yield from self._parts(self._target(reference), (*way, reference), taken)
        for part in [*_list(schema.get("allOf")), *_only_choice(schema)]:
            yield from self._parts(part, way, taken)

    def _target(self, reference: str) -> Any:
        """What a reference within the schema (a JSON pointer, RFC 6901) leads to; None for any other."""
        if not reference.startswith("#"):
            return None
        value: Any = self._root
        for token in reference[1:].split("/")[1:]:
            name = _unescaped(token)
            if isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            else:
                value = value.get(name) if isinstance(value, Mapping) else None
        return value


def _only_choice(schema: Schema) -> list[Any]:
    """What a value that is not null has to fit, where a choice leaves one such thing."""
    choices = [part for key in ("anyOf", "oneOf") for part in _list(schema.get(key))]
    left = [part for part in choices if not (isinstance(part, Mapping) and part.get("type") == "null")]
    return left if len(left) == 1 else []


def _properties(schema: Schema) -> Mapping[str, Any]:
    named = schema.get("properties")
    return named if isinstance(named, Mapping) else {}


def _kind(parts: list[Schema]) -> Kind | None:
    for part in parts:
        stated = part.get("type")
        types = [name for name in ([stated] if isinstance(stated, str) else _list(stated)) if name != "null"]
        if types:
            return _SCALARS.get(types[0], "json") if len(types) == 1 else "json"
    return None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _unescaped(token: str) -> str:
    return unquote(token).replace("~1", "/").replace("~0", "~")
