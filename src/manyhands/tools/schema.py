"""From a function's signature to the JSON Schema a model is given; from what the model wrote to checked arguments."""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import ErrorDetails

from manyhands.core.errors import ToolError
from manyhands.core.jsonio import Json, dumps, loads_outside
from manyhands.core.text import clean, nearest, shorten

_MAPS_OF_SCHEMAS = ("properties", "$defs", "patternProperties")
_NOT_SCHEMAS = ("default", "enum", "const", "examples", "required")
_LIMITS = {
    "minimum": "at least",
    "maximum": "at most",
    "exclusiveMinimum": "more than",
    "exclusiveMaximum": "less than",
    "maxLength": "characters at most:",
    "minLength": "characters at least:",
}


_SLOW_WORDS = re.compile(rb'"(pattern(Properties)?|uniqueItems|\$(ref|dynamicRef|recursiveRef)|unevaluated\w+|regex)"')
"""What can make the check of a value take longer than its size would, without end where it is meant badly."""
_LARGE = 1 << 16
_MAX_MISTAKES = 6
_MAX_EXAMINED = 100


def may_take_long(schema: bytes, value: Json) -> bool:
    """Whether a value is to be checked apart, where the check can be ended. ``schema``: as JSON."""
    return _SLOW_WORDS.search(schema) is not None or len(dumps(value)) > _LARGE


class Arguments(BaseModel):
    """The base of every tool's arguments: unknown names are refused, numbers are taken where text is wanted."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True, protected_namespaces=())


def arguments_model(function: Callable[..., Any], *, with_environment: bool = True) -> type[Arguments]:
    """A pydantic model of the function's parameters, but for the first one ``with_environment``, which is that.

    Raises TypeError if the signature can't be described to a model (a parameter without annotation, ``*args``).
    """
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in list(inspect.signature(function).parameters.values())[with_environment:]:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{function.__name__}: a tool can't take *{parameter.name}")
        if parameter.name not in hints:
            raise TypeError(f"{function.__name__}: parameter {parameter.name!r} has no type annotation")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (_described(hints[parameter.name]), default)
    model: type[Arguments] = create_model(f"{function.__name__}_arguments", __base__=Arguments, **fields)
    return model


def strict_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The model's JSON Schema without titles and references, with ``additionalProperties: false``.

    An optional value's schema is that of the value: leaving it out is how a model says null.
    """
    schema = model.model_json_schema()
    tidy: dict[str, Any] = _tidy(schema, schema.pop("$defs", {}))
    tidy.setdefault("properties", {})
    tidy.pop("description", None)
    return tidy


def checked(
    tool: str, model: type[BaseModel], schema: Mapping[str, Any], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments, converted to what the function takes.

    Raises ToolError that names each wrong argument, what was given and what is expected.
    """
    prepared = {}
    for name, value in cleaned(dict(arguments)).items():
        field = model.model_fields.get(name)
        if value is None and field is not None and not field.is_required():
            continue
        prepared[name] = _unquoted(value, schema["properties"].get(name, {}))
    try:
        valid = model.model_validate(prepared)
    except ValidationError as error:
        raise ToolError(explain(tool, schema, _mistakes(error, schema, arguments))) from None
    return {name: getattr(valid, name) for name in model.model_fields}


def explain(tool: str, schema: Mapping[str, Any], mistakes: Iterable[str]) -> str:
    """One message about wrong arguments, which ends with the arguments that the tool takes."""
    required = schema.get("required", ())
    takes = (f"{name} ({'required' if name in required else 'optional'})" for name in schema.get("properties", {}))
    return f"{tool} was not called: {'; '.join(mistakes)}. It takes: {', '.join(takes) or 'no arguments'}."


def given(value: Json) -> str:
    """What was given, in short."""
    return shorten(dumps(value).decode("utf-8", "replace"), 120)


def expected(schema: Mapping[str, Any]) -> str:
    """What a schema wants, in words."""
    if "enum" in schema:
        return "one of " + ", ".join(map(repr, schema["enum"]))
    if "const" in schema:
        return repr(schema["const"])
    kinds = [schema["type"]] if "type" in schema else [option.get("type", "value") for option in _options(schema)]
    words = " or ".join(str(kind) for kind in kinds) or "another value"
    return ", ".join([words, *(f"{text} {schema[key]}" for key, text in _LIMITS.items() if key in schema)])


def cleaned(value: Json) -> Json:
    """The JSON value with lone surrogates replaced in all its text, so that it can be encoded. (NUL stays: a file may
    hold it.)"""
    if isinstance(value, str):
        return value if value.isascii() else "\x00".join(map(clean, value.split("\x00")))
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    if isinstance(value, dict):
        return {cleaned(str(key)): cleaned(item) for key, item in value.items()}
    return value


def _described(annotation: Any) -> Any:
    """``Annotated[int, "what it is"]`` as pydantic wants it: text among the metadata is the description."""
    metadata = getattr(annotation, "__metadata__", None)
    if metadata is None:
        return annotation
    described = tuple(Field(description=item) if isinstance(item, str) else item for item in metadata)
    return operator.getitem(Annotated, (annotation.__origin__, *described))


def _tidy(schema: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_tidy(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        target = definitions[schema["$ref"].rpartition("/")[2]]
        return _tidy({**target, **{key: value for key, value in schema.items() if key != "$ref"}}, definitions)
    tidy = {key: _tidy_part(key, value, definitions) for key, value in schema.items() if key != "title"}
    if tidy.get("type") == "object" and "properties" in tidy:
        tidy.setdefault("additionalProperties", False)
    return _without_null(tidy)


def _tidy_part(key: str, value: Any, definitions: Mapping[str, Any]) -> Any:
    if key in _NOT_SCHEMAS:
        return value
    if key in _MAPS_OF_SCHEMAS:
        return {name: _tidy(part, definitions) for name, part in value.items()}
    return _tidy(value, definitions)


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    options = schema.get("anyOf")
    if schema.get("default", ...) is not None or not options:
        return schema
    options = [option for option in options if option.get("type") != "null"]
    rest = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
    return {**options[0], **rest} if len(options) == 1 else {"anyOf": options, **rest}


def _options(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*schema.get("anyOf", ()), *schema.get("oneOf", ())]


def _unquoted(value: Json, schema: Mapping[str, Any]) -> Json:
    """Models now and then write a list or an object as JSON text: take it for what it says."""
    if schema.get("type") not in ("array", "object") or not isinstance(value, str):
        return value
    try:
        inner = loads_outside(value)
    except ValueError:
        return value
    return inner if isinstance(inner, (list, dict)) else value


def _mistakes(error: ValidationError, schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[str]:
    details = error.errors(include_url=False, include_context=False)
    missing = [str(detail["loc"][0]) for detail in details if detail["type"] == "missing" and len(detail["loc"]) == 1]
    mistakes: dict[str, None] = {}
    for detail in islice(details, _MAX_EXAMINED):
        mistakes[_mistake(detail, schema, missing, arguments)] = None
        if len(mistakes) == _MAX_MISTAKES:
            break
    return list(mistakes)


def _mistake(detail: ErrorDetails, schema: Mapping[str, Any], missing: list[str], arguments: Mapping[str, Any]) -> str:
    path = [part for part in detail["loc"] if isinstance(part, int) or not part.startswith(("function-", "list["))]
    name = ".".join(str(part) for part in path)
    if detail["type"] == "extra_forbidden":
        known = (_schema_at(schema, path[:-1]) or {}).get("properties", {})
        last = str(path[-1])
        near = nearest(last, [each for each in missing if each not in arguments]) if len(path) == 1 else None
        near = near or nearest(last, known)
        return f"there is no argument {name!r}" + (f" (did you mean {near!r}?)" if near else "")
    part = _schema_at(schema, path)
    if detail["type"] == "missing":
        return f"argument {name!r} is missing (expected: {expected(part or {})})"
    wanted = expected(part) if part else detail["msg"]
    return f"argument {name!r} was {given(cleaned(detail['input']))}, expected: {wanted}"


def _schema_at(schema: Mapping[str, Any], path: list[int | str]) -> Mapping[str, Any] | None:
    found = schema
    for part in path:
        inner = found.get("items") if isinstance(part, int) else found.get("properties", {}).get(part)
        if not isinstance(inner, dict):
            return None
        found = inner
    return found
