"""The check of a schema itself, and the validator that enforces it.

Apart from ``output_schema``, because jsonschema takes long to import, and most jobs ask for no schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
from referencing.exceptions import Unresolvable
from referencing.jsonschema import specification_with

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.text import beginning_and_end
from manyhands.workloads.csv_jobs.rows.schema_formats import make_format_checker

_REFERENCES = ("$ref", "$dynamicRef")
_NAME = "output_schema"
_MAX_MESSAGE_CHARS = 300


def checked(schema: dict[str, Any]) -> Validator:
    """The validator of a schema. Raises UserError naming the place in the schema that is wrong."""
    kind: Any = _draft(schema)
    checker = make_format_checker()
    try:
        kind.check_schema(schema, format_checker=checker)
    except SchemaError as error:
        raise UserError(f"{_NAME}{_place(error)}: {_explained(error)}") from None
    _check_references(schema, kind.META_SCHEMA["$schema"])
    wanted = schema.get("type", "object")
    if "object" not in (wanted if isinstance(wanted, list) else [wanted]):
        raise UserError(f"{_NAME}.type: a result is always a JSON object, so that nothing would fit {wanted!r}")
    # With a registry that knows the meta-schemas and fetches nothing; the default one would ask the network.
    return cast(Validator, kind(schema, registry=REGISTRY, format_checker=checker))


def _draft(schema: Mapping[str, Any]) -> Any:
    named = schema.get("$schema")
    if named is None:
        return Draft202012Validator
    unknown: Any = None
    kind: Any = validator_for(schema, default=unknown) if isinstance(named, str) else unknown
    if kind is unknown:
        raise UserError(
            f"{_NAME}.$schema: {beginning_and_end(repr(named), _MAX_MESSAGE_CHARS)} is no draft of JSON Schema that is known here"
        )
    return kind


def _check_references(schema: dict[str, Any], draft: str) -> None:
    """Refuse every reference that does not lead to a place that is known here."""
    root = specification_with(draft).create_resource(schema)
    identity = root.id() or ""
    places = {id(part): place for part, place in _parts(schema, _NAME)}
    queue = [(root, REGISTRY.with_resource(identity, root).resolver(identity))]
    while queue:
        resource, resolver = queue.pop()
        contents = resource.contents
        if not isinstance(contents, dict):
            continue
        for word in _REFERENCES:
            reference = contents.get(word)
            if isinstance(reference, str):
                try:
                    resolver.lookup(reference)
                except Unresolvable:
                    place = f"{places.get(id(contents), _NAME)}.{word}"
                    raise UserError(f"{place}: {_lost(reference)}") from None
        queue.extend((part, resolver.in_subresource(part)) for part in resource.subresources())


def _lost(reference: str) -> str:
    shown = beginning_and_end(repr(reference), _MAX_MESSAGE_CHARS)
    if reference.startswith("#"):
        return f"{shown} leads to no place in the schema"
    return f"{shown} leads out of the schema, and nothing is fetched; put what it names under $defs"


def _parts(value: Json, place: str) -> Iterator[tuple[dict[str, Any], str]]:
    if isinstance(value, dict):
        yield value, place
        for name, part in value.items():
            yield from _parts(part, f"{place}.{name}")
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _parts(part, f"{place}[{index}]")


def _place(error: SchemaError) -> str:
    """Where in the schema, as ``.properties.score.type``."""
    return error.json_path.removeprefix("$")


def _explained(error: SchemaError) -> str:
    """The validator's message; of alternatives that all failed, the first one's, which says more."""
    return beginning_and_end(error.context[0].message if error.context else error.message, _MAX_MESSAGE_CHARS)
