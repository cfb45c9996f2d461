"""The schema is checked as a schema when a job is made, and enforced when a result comes in."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.workloads.csv_jobs.rows.output_schema import (
    MAX_MESSAGE_CHARS,
    MAX_VIOLATIONS,
    NOT_AN_OBJECT,
    OutputSchema,
)
from tests.support.job_rows import SCORE_SCHEMA

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "strin"}, r"^output_schema\.type: 'strin' is not one of \['array', "),
        ({"properties": {"a": {"type": 5}}}, r"^output_schema\.properties\.a\.type: 5 is not one of"),
        (
            {"properties": {"a b": {"minimum": "1"}}},
            r"^output_schema\.properties\['a b'\]\.minimum: '1' is not of type",
        ),
        ({"required": "a"}, r"^output_schema\.required: 'a' is not of type 'array'$"),
        ({"properties": []}, r"^output_schema\.properties: \[\] is not of type 'object'$"),
        ({"properties": {"a": {"pattern": "("}}}, r"^output_schema\.properties\.a\.pattern: '\(' is not a 'regex'$"),
        ({"items": [{"type": "string"}]}, r"^output_schema\.items: "),
        ({"$schema": "https://example.org/mine"}, r"^output_schema\.\$schema: 'https://example.org/mine' is no draft"),
        ({"$schema": 7}, r"^output_schema\.\$schema: 7 is no draft"),
        (
            {"type": "array"},
            r"^output_schema\.type: a result is always a JSON object, so that nothing would fit 'array'$",
        ),
        ({"type": ["string", "null"]}, r"^output_schema\.type: a result is always"),
        ({"$ref": "#/$defs/a"}, r"^output_schema\.\$ref: '#/\$defs/a' leads to nothing in the schema$"),
        (
            {"properties": {"a": {"items": {"$ref": "https://example.org/x.json"}}}},
            r"^output_schema\.properties\.a\.items\.\$ref: 'https://example.org/x.json' leads out of the schema, and nothing is",
        ),
        ({"$id": "https://example.org/a", "$ref": "b"}, r"^output_schema\.\$ref: 'b' leads out of the schema"),
        ({"$ref": "file:///etc/passwd"}, r"leads out of the schema"),
        ({"$defs": {"a": {"$dynamicRef": "https://example.org/x"}}}, r"^output_schema\.\$defs\.a\.\$dynamicRef: "),
        ({"$ref": "#"}, r"refers to itself without end$"),
        ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/a"}}}, r"refers to itself without end$"),
    ],
)
def test_a_wrong_schema_is_refused_with_its_place(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        OutputSchema.of(schema)
    assert "\n" not in str(caught.value)


def test_a_schema_nested_without_bound_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(300):
        schema = {"properties": {"a": schema}}
    with pytest.raises(UserError, match="nested too deeply"):
        OutputSchema.of(schema)


@pytest.mark.parametrize("value", [[], "{}", 3, True])
def test_a_schema_is_an_object(value: Any) -> None:
    with pytest.raises(UserError, match="must be a JSON object"):
        OutputSchema.of(value)


@pytest.mark.parametrize(
    ("schema", "violation"),
    [
        (
            {
                "$schema": DRAFT_7,
                "properties": {"a": {"$ref": "#/definitions/n"}},
                "definitions": {"n": {"type": "null"}},
            },
            1,
        ),
        ({"$schema": DRAFT_7, "properties": {"a": {"items": [{"type": "null"}]}}}, 0),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"a": {"minimum": 2}}}, 1),
        ({"$schema": "https://json-schema.org/draft/2019-09/schema", "required": ["b"]}, 1),
        (
            {
                "$id": "https://example.org/s",
                "properties": {"a": {"$ref": "/s#/$defs/n"}},
                "$defs": {"n": {"type": "null"}},
            },
            1,
        ),
        ({"properties": {"a": {"$ref": "#n"}}, "$defs": {"n": {"$anchor": "n", "type": "null"}}}, 1),
        ({"properties": {"$ref": {"type": "string"}, "a": True}}, 0),
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, 0),
        ({"properties": {"a": False}}, 1),
        ({"properties": {"next": {"$ref": "#"}}, "required": ["a"]}, 0),
    ],
)
def test_drafts_and_references_within_the_schema(schema: dict[str, Any], violation: int) -> None:
    assert len(OutputSchema.of(schema).violations({"a": 1})) == violation


def test_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("a connection was made")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    schema = {
        "$ref": "https://json-schema.org/draft/2020-12/schema",
        "properties": {"a": {"$ref": "#/$defs/b"}},
        "$defs": {"b": {"type": "string"}},
    }
    assert len(OutputSchema.of(schema).violations({"a": 1, "properties": []})) == 2


def test_violations_have_their_place_and_the_validators_words() -> None:
    schema = OutputSchema.of(SCORE_SCHEMA)
    assert schema.violations({"score": 3}) == ()
    assert schema.violations({"score": "3", "x": 1, "rationale": None}) == (
        "$.score: '3' is not of type 'integer'",
        "$.rationale: None is not of type 'string'",
        "$: Additional properties are not allowed ('x' was unexpected)",
    )
    assert schema.violations({}) == ("$: 'score' is a required property",)


@pytest.mark.parametrize("value", [None, [], "x", 1, True])
def test_a_result_is_an_object_with_or_without_a_schema(value: Any) -> None:
    for schema in (None, {}, SCORE_SCHEMA):
        assert OutputSchema.of(schema).violations(value) == (NOT_AN_OBJECT,)
    assert OutputSchema.of(None).violations({"anything": [1]}) == ()


def test_violations_are_few_and_short() -> None:
    schema = OutputSchema.of({"properties": {"a": {"items": {"type": "integer"}}, "b": {"maxLength": 3}}})
    many = schema.violations({"a": list("abcdefghijklmnop"), "b": "x" * 100_000})
    assert len(many) == MAX_VIOLATIONS
    assert many[1] == "$.a[1]: 'b' is not of type 'integer'"
    long = schema.violations({"b": "x" * 100_000})[0]
    assert len(long) <= MAX_MESSAGE_CHARS
    assert long.startswith("$.b: 'xxx")
    assert long.endswith("is too long")


def test_a_result_nested_without_bound_is_no_crash() -> None:
    schema = OutputSchema.of({"properties": {"a": {"$ref": "#"}}})
    value: dict[str, Any] = {}
    for _ in range(5000):
        value = {"a": value}
    assert schema.violations(value) == ("$: is nested too deeply to be checked",)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date-time", "2024-02-29T23:59:60.5+01:00", "2024-02-30T00:00:00Z"),
        ("date-time", "2024-03-01T12:00:00z", "2024-03-01 12:00:00"),
        ("date", "2024-02-29", "2023-02-29"),
        ("time", "12:00:00Z", "12:00"),
        ("duration", "P1Y2M3DT4H5M6S", "P"),
        ("duration", "PT1H", "1 hour"),
        ("duration", "P2W", "P1DT"),
        ("email", "a@example.org", "a"),
        ("hostname", "a-b.example.org", "-a.example.org"),
        ("ipv4", "192.0.2.1", "192.0.2.256"),
        ("ipv6", "2001:db8::1", "2001:db8"),
        ("uri", "https://example.org/a?b=%20#c", "example.org/a"),
        ("uri", "urn:isbn:0451450523", "https://example.org/a b"),
        ("uri-reference", "../a#b", "a\\b"),
        ("iri", "https://example.org/ä", "https://example.org/<"),
        ("uuid", "00000000-0000-4000-8000-000000000001", "00000000"),
        ("regex", "a+", "("),
        ("json-pointer", "/a/~0b", "a"),
        ("relative-json-pointer", "1/a", "-1"),
    ],
)
def test_formats_are_checked(name: str, good: str, bad: str) -> None:
    schema = OutputSchema.of({"properties": {"a": {"format": name}}})
    assert schema.violations({"a": good}) == ()
    assert schema.violations({"a": bad}) == (f"$.a: {bad!r} is not a {name!r}",)
    assert schema.violations({"a": 5}) == ()


def test_equal_schemas_are_compiled_once() -> None:
    assert OutputSchema.of(SCORE_SCHEMA) is OutputSchema.of(json.loads(json.dumps(SCORE_SCHEMA)))
    assert OutputSchema.of(None) is OutputSchema.of(None)
    assert OutputSchema.of(None).text == OutputSchema.of({}).text == "{}"
    assert json.loads(OutputSchema.of(SCORE_SCHEMA).text) == OutputSchema.of(SCORE_SCHEMA).value == SCORE_SCHEMA


def test_a_later_change_of_the_given_schema_changes_nothing() -> None:
    given_schema: dict[str, Any] = {"properties": {"a": {"type": "string"}}}
    schema = OutputSchema.of(given_schema)
    given_schema["properties"]["a"]["type"] = "integer"
    assert schema.violations({"a": "x"}) == ()


def test_whether_a_schema_asks_for_anything() -> None:
    assert OutputSchema.of(None).accepts_anything
    assert OutputSchema.of({"properties": {"a": {"type": "string"}}}).accepts_anything
    assert not OutputSchema.of(SCORE_SCHEMA).accepts_anything


@given(VALUES)
def test_whatever_comes_is_answered_the_same_way_twice(value: Any) -> None:
    schema = OutputSchema.of(SCORE_SCHEMA)
    violations = schema.violations(value)
    assert violations == schema.violations(value)
    assert not any("\n" in message for message in violations)


@given(VALUES)
def test_whatever_is_given_as_a_schema_is_used_or_refused_in_one_line(value: Any) -> None:
    said = ""
    try:
        OutputSchema.of(value).violations({"a": 1})
    except UserError as error:
        said = str(error)
    assert "\n" not in said
