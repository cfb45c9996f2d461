"""Values made for JSON Schemas fit them."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manyhands.core.digests import Draws
from manyhands.models.simulated.calls import example

NODE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
    "required": ["name"],
    "additionalProperties": False,
}
LINKED = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/linked"}, {"type": "null"}]}},
    "required": ["next"],
}
SCHEMAS: list[dict[str, Any]] = [
    {},
    {"type": "object"},
    {"type": "string", "minLength": 50, "maxLength": 60},
    {"type": "string", "maxLength": 2},
    {"type": "string", "pattern": "^[A-Z]{3}-[0-9]+$"},
    {"type": "string", "pattern": "^[a-z0-9_-]+$", "maxLength": 64},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uuid"},
    {"type": "integer", "minimum": 3, "maximum": 3},
    {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5},
    {"type": "integer", "maximum": -7},
    {"type": "integer", "multipleOf": 7, "minimum": 8},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "exclusiveMinimum": 0},
    {"type": "number", "multipleOf": 0.5, "exclusiveMinimum": 0},
    {"type": ["null", "integer"], "minimum": 1},
    {"type": "null"},
    {"type": "boolean"},
    {"enum": ["a", 1, None]},
    {"const": {"a": 1}},
    {"type": "array", "items": {"type": "integer"}, "minItems": 5, "uniqueItems": True},
    {"type": "array", "items": {"enum": ["a", "b", "c"]}, "minItems": 2, "uniqueItems": True},
    {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "minItems": 2},
    {"type": "array", "items": {"type": "object"}, "maxItems": 0},
    {"type": "object", "minProperties": 2, "additionalProperties": {"type": "integer"}},
    {"type": "object", "required": ["x"], "additionalProperties": {"type": "integer"}},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"required": ["b"]}]},
    {"anyOf": [{"type": "string"}, {"type": "null"}]},
    {"oneOf": [{"type": "integer", "minimum": 10}, {"type": "string"}]},
    {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    {"$ref": "#/$defs/linked", "$defs": {"linked": LINKED}},
    {"type": "object", "properties": {"a/b": {"$ref": "#/definitions/x~1y"}}, "required": ["a/b"],
     "definitions": {"x/y": {"type": "integer"}}},
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_examples_fit(schema: dict[str, Any]) -> None:
    for seed in range(20):
        made = example(schema, Draws(seed), ["river", "mountain"])
        jsonschema.validate(made, schema, cls=jsonschema.Draft202012Validator)


leaves = st.one_of(
    st.builds(
        lambda low, size: {"type": "string", "minLength": low, "maxLength": low + size}, *[st.integers(0, 20)] * 2
    ),
    st.builds(lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size}, *[st.integers(0, 20)] * 2),
    st.builds(lambda low, size: {"type": "number", "minimum": low, "maximum": low + size}, *[st.integers(0, 20)] * 2),
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.lists(st.integers() | st.text(), min_size=1, max_size=3).map(lambda values: {"enum": values}),
)


def nested(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.text("abc", min_size=1, max_size=3)
    objects = st.dictionaries(names, inner, max_size=3).flatmap(
        lambda properties: st.sets(st.sampled_from(sorted(properties)) if properties else st.nothing()).map(
            lambda required: {
                "type": "object",
                "properties": properties,
                "required": sorted(required),
                "additionalProperties": False,
            }
        )
    )
    arrays = st.builds(lambda items, low: {"type": "array", "items": items, "minItems": low}, inner, st.integers(0, 4))
    unions = st.builds(lambda one, other: {"anyOf": [one, other]}, inner, inner)
    return st.one_of(objects, arrays, unions)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.recursive(leaves, nested, max_leaves=8), st.integers(0, 1000))
def test_examples_fit_whatever_is_nested(schema: dict[str, Any], seed: int) -> None:
    made = example(schema, Draws(seed))
    jsonschema.validate(made, schema, cls=jsonschema.Draft202012Validator)
    assert made == example(schema, Draws(seed))


@given(st.lists(st.integers(1, 2**32), max_size=200), st.text())
def test_draws_stay_in_bounds_and_repeat(bounds: list[int], name: str) -> None:
    draws, again = Draws(name), Draws(name)
    values = [draws.below(bound) for bound in bounds]
    assert all(0 <= value < bound for value, bound in zip(values, bounds, strict=True))
    assert values == [again.below(bound) for bound in bounds]


def test_draws_are_spread() -> None:
    counts = [0] * 10
    for number in range(2000):
        counts[Draws("x", number).below(10)] += 1
    assert min(counts) > 130
