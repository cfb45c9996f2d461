"""The check of a schema itself, and the validator that enforces it, with its formats.

Apart from ``output_schema``, because jsonschema takes long to import, and most jobs have no schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, cast

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
from referencing.exceptions import Unresolvable
from referencing.jsonschema import specification_with

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.text import beginning_and_end

_REFERENCES = ("$ref", "$dynamicRef")
_NAME = "output_schema"
_MAX_MESSAGE_CHARS = 300


def checked(schema: dict[str, Any]) -> Validator:
    """The validator of a schema. Raises UserError naming the location in the schema that is wrong."""
    kind: Any = _draft(schema)
    checker = make_format_checker()
    try:
        kind.check_schema(schema, format_checker=checker)
    except SchemaError as error:
        raise UserError(f"{_NAME}{_location(error)}: {_explained(error)}") from None
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
    """Refuse every reference that does not lead to a known location."""
    root = specification_with(draft).create_resource(schema)
    identity = root.id() or ""
    paths = {id(part): path for part, path in _parts(schema, _NAME)}
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
                    path = f"{paths.get(id(contents), _NAME)}.{word}"
                    raise UserError(f"{path}: {_lost(reference)}") from None
        queue.extend((part, resolver.in_subresource(part)) for part in resource.subresources())


def _lost(reference: str) -> str:
    shown = beginning_and_end(repr(reference), _MAX_MESSAGE_CHARS)
    if reference.startswith("#"):
        return f"{shown} leads to nothing in the schema"
    return f"{shown} leads out of the schema, and nothing is fetched; put what it names under $defs"


def _parts(value: Json, path: str) -> Iterator[tuple[dict[str, Any], str]]:
    if isinstance(value, dict):
        yield value, path
        for name, part in value.items():
            yield from _parts(part, f"{path}.{name}")
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _parts(part, f"{path}[{index}]")


def _location(error: SchemaError) -> str:
    """Where in the schema, as ``.properties.score.type``."""
    return error.json_path.removeprefix("$")


def _explained(error: SchemaError) -> str:
    """The validator's message; of alternatives that all failed, the first one's, which is more precise."""
    return beginning_and_end(error.context[0].message if error.context else error.message, _MAX_MESSAGE_CHARS)


# --- Formats
#
# Formats of JSON Schema (draft 2020-12, validation, section 7.3) that jsonschema leaves to packages which are seldom installed. Without
# them, a schema that asks for ``date-time`` or ``uri`` would let anything through.
# Those packages (``jsonschema[format-nongpl]``, fourteen with what they need) are not used: they refuse leap seconds, which RFC 3339 has,
# take ``P-1D`` for a duration, and importing the grammar of one takes seconds in every process that validates.

_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_DATE_TIME = re.compile(rf"(\d{{4}}-\d\d-\d\d)[Tt]{_TIME}", re.ASCII)
_DURATION = re.compile(
    r"P(?:\d+W|(?=[\dT])(?:\d+Y)?(?:\d+M)?(?:\d+D)?(?:T(?=\d)(?:\d+H)?(?:\d+M)?(?:\d+(?:\.\d+)?S)?)?)", re.ASCII
)
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOSTNAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*")
_URI_CHARACTER = r"(?:[A-Za-z0-9._~:/?@!$&'()*+,;=\[\]-]|%[0-9A-Fa-f]{2})"
_IRI_CHARACTER = r"(?:[^\s\x00-\x20\x7f<>\"{}|\\^`%#]|%[0-9A-Fa-f]{2})"
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*:"
_POINTER = r"(?:/(?:[^~/]|~[01])*)*"

_PATTERNS = {
    "time": re.compile(_TIME, re.ASCII),
    "duration": _DURATION,
    "hostname": _HOSTNAME,
    "uri": re.compile(rf"{_SCHEME}{_URI_CHARACTER}*(?:#{_URI_CHARACTER}*)?"),
    "uri-reference": re.compile(rf"{_URI_CHARACTER}*(?:#{_URI_CHARACTER}*)?"),
    "iri": re.compile(rf"{_SCHEME}{_IRI_CHARACTER}*(?:#{_IRI_CHARACTER}*)?"),
    "iri-reference": re.compile(rf"{_IRI_CHARACTER}*(?:#{_IRI_CHARACTER}*)?"),
    "json-pointer": re.compile(_POINTER),
    "relative-json-pointer": re.compile(rf"(?:0|[1-9]\d*)(?:#|{_POINTER})", re.ASCII),
}
"""RFC 3339 (time, duration: its appendix A), RFC 1123 (hostname), RFC 3986 and 3987 (by their characters), RFC 6901."""


def make_format_checker() -> FormatChecker:
    """A checker of every format that jsonschema knows by itself, and of the above."""
    checker = FormatChecker()
    for name, pattern in _PATTERNS.items():
        checker.checks(name)(_matcher(pattern))
    checker.checks("date-time")(_is_date_time)
    return checker


def _matcher(pattern: re.Pattern[str]) -> Callable[[object], bool]:
    def matches(value: object) -> bool:
        return not isinstance(value, str) or pattern.fullmatch(value) is not None

    return matches


def _is_date_time(value: object) -> bool:
    if not isinstance(value, str):
        return True
    found = _DATE_TIME.fullmatch(value)
    if found is None:
        return False
    try:
        datetime.strptime(found[1], "%Y-%m-%d")
    except ValueError:
        return False
    return True
