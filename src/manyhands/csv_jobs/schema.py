"""What a result must look like: a JSON Schema that is itself checked, and then enforced.

Drafts: 2020-12, or the one that ``$schema`` names. Nothing is ever fetched: references lead within the schema, or to the
published meta-schemas, which come with the library.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
from referencing.exceptions import Unresolvable
from referencing.jsonschema import specification_with

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, dumps, without_surrogates
from manyhands.csv_jobs.formats import make_format_checker

MOST_VIOLATIONS = 10
LONGEST_MESSAGE = 300
"""Characters of a message; a validator's own repeats the value, however long that is."""
NOT_AN_OBJECT = "result must be a JSON object"
_KEPT = 32
_NAME = "output_schema"
_REFERENCES = ("$ref", "$dynamicRef")


class OutputSchema:
    """A schema ready to check results. Make it with ``of``."""

    __slots__ = ("_validator", "text", "value")

    def __init__(self, value: dict[str, Any] | None, validator: Validator | None) -> None:
        self.value = value
        self.text = json.dumps(value or {}, indent=2, ensure_ascii=False)
        """The schema as indented JSON; ``{}`` where there is none."""
        self._validator = validator

    @classmethod
    def of(cls, value: Mapping[str, Any] | None) -> OutputSchema:
        """The checker for a schema; the same object for the same schema. None: any object will do.

        Raises UserError naming the place in the schema that is wrong.
        """
        if value is not None and not isinstance(value, Mapping):
            raise UserError(f"{_NAME}: must be a JSON object")
        return _compiled(None if value is None else dumps(dict(value)))

    def violations(self, result: Json) -> tuple[str, ...]:
        """What does not fit, as at most ten messages, each with its place (``$.score: …``); empty if the result fits."""
        if not isinstance(result, dict):
            return (NOT_AN_OBJECT,)
        if self._validator is None:
            return ()
        try:
            return tuple(islice(_messages(self._validator.iter_errors(result)), MOST_VIOLATIONS))
        except RecursionError:
            return ("$: is nested too deeply to be checked",)

    @property
    def accepts_anything(self) -> bool:
        """Whether an object without any content fits, so that fitting says little."""
        return not self.violations({})


@lru_cache(maxsize=_KEPT)
def _compiled(text: bytes | None) -> OutputSchema:
    if text is None:
        return OutputSchema(None, None)
    try:
        schema = json.loads(text)
        validator = _checked(schema)
        list(islice(validator.iter_errors({}), 1))
    except RecursionError:
        raise UserError(f"{_NAME}: nested too deeply, or refers to itself without end") from None
    return OutputSchema(schema, validator)


def _checked(schema: dict[str, Any]) -> Validator:
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
        raise UserError(f"{_NAME}.$schema: {_short(repr(named))} is no draft of JSON Schema that is known here")
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
    shown = _short(repr(reference))
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


def _messages(errors: Iterable[ValidationError]) -> Iterator[str]:
    return (_short(f"{error.json_path}: {error.message}") for error in errors)


def _place(error: SchemaError) -> str:
    """Where in the schema, as ``.properties.score.type``."""
    return error.json_path.removeprefix("$")


def _explained(error: SchemaError) -> str:
    """The validator's message; of alternatives that all failed, the first one's, which says more."""
    return _short(error.context[0].message if error.context else error.message)


def _short(text: str) -> str:
    text = without_surrogates(" ".join(text.split()))
    if len(text) <= LONGEST_MESSAGE:
        return text
    tail = LONGEST_MESSAGE // 3
    return f"{text[: LONGEST_MESSAGE - tail - 3]} … {text[-tail:]}"
