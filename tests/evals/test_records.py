"""One record, one answer: what counts, what is left out, and what makes the record an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from manyhands.core.jsonio import dumps, loads
from manyhands.graders.messages import trace_of
from manyhands.graders.protocol import ToolUse
from manyhands.workloads.evals.targets.answer_figures import RecordFault
from manyhands.workloads.evals.targets.answers import (
    MAX_MESSAGE,
    MAX_NOTICES,
    Answer,
    answer_from_json,
    has_answer,
    read_record,
    read_text,
    record_id,
)

FIELDS = ["id", "text", "output", "output_messages", "token_usage", "cost_usd", "duration_ms", "error"]
INNER = ["role", "content", "tool_calls", "tool", "name", "input", "arguments", "output", "start_time", "end_time"]
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
)
VALUES = st.recursive(
    SCALARS | st.sampled_from(["assistant", "2026-01-01T00:00:00Z"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*INNER, "input", "x"]), inner, max_size=5)
    ),
    max_leaves=20,
)
RECORDS = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=8)


def assistant(content: Any = None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", **({} if content is None else {"content": content}), **more}


def call(tool: str, **more: Any) -> dict[str, Any]:
    return {"tool": tool, **more}


# --- The answer


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ({"text": "a\nb"}, "a\nb"),
        ({"text": ""}, ""),
        ({"text": {"decision": "X", "camelKey": 1}}, '{"decision":"X","camelKey":1}'),
        ({"text": 5}, "5"),
        ({"text": None}, "null"),
        ({"text": ["é", 1.5]}, '["é",1.5]'),
        ({"text": "t", "output": []}, "t"),
        ({"text": "t", "output": None}, "t"),
        ({"text": "t", "output": [assistant("m")]}, "m"),
        ({"text": "t", "output": [assistant({"camelKey": 1})]}, '{"camelKey":1}'),
        ({"text": "t", "output": [assistant("first"), assistant(tool_calls=[call("x")])]}, "first"),
        ({"text": "t", "output": [assistant("first"), {"role": "user", "content": "u"}]}, "first"),
        ({"text": "t", "output": [assistant("first"), assistant("")]}, ""),
        ({"text": "t", "output": [assistant(tool_calls=[call("x")])]}, "t"),
        ({"text": "t", "output": [{"role": "assistant", "content": None}]}, "t"),
        ({"output": [assistant(tool_calls=[call("x")])]}, ""),
        ({"output": []}, ""),
        ({"output_messages": [assistant([{"type": "text", "text": "hello"}])]}, '[{"type":"text","text":"hello"}]'),
        ({"output": None, "output_messages": [assistant("old")]}, "old"),
        ({"output": [assistant("new")], "output_messages": [assistant("old")]}, "new"),
    ],
)
def test_the_answer_is_the_last_thing_said_else_the_text(record: dict[str, Any], text: str) -> None:
    answer = read_record(record)
    assert (answer.text, answer.error) == (text, None)
    assert answer.record is record


def test_messages_stay_as_they_were_given() -> None:
    messages = [assistant(tool_calls=[call("s", input={"camelCase": 1}, extra=2)], metadata={"aB": 1}), assistant("x")]
    answer = read_record({"id": "a", "output": messages})
    assert answer.output == tuple(messages)
    assert answer.tool_uses == (ToolUse("s", {"camelCase": 1}),)
    assert read_record({"text": {"a": 1}}).output == (assistant('{"a":1}'),)


def test_a_text_that_stands_in_is_said() -> None:
    answer = read_record({"text": "t", "output": [assistant(tool_calls=[call("x")])]})
    assert answer.notices == ("output has no assistant message with content: text is the answer",)


# --- Errors


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("no luck", "no luck"),
        ({"message": "no luck", "camelKey": 1}, "no luck"),
        ({"message": "no luck", "type": "Limit"}, "Limit: no luck"),
        ({"message": "no luck", "code": 429}, "429: no luck"),
        ({"reason": "x"}, '{"reason":"x"}'),
        (["a", 1], '["a",1]'),
        (True, "the runner reported an error for this test"),
        (7, "7"),
        ("x" * 5000, "x" * MAX_MESSAGE),
    ],
)
def test_a_reported_error_wins_over_a_text_beside_it(error: Any, message: str) -> None:
    answer = read_record({"id": "a", "text": "t", "error": error, "cost_usd": 1})
    assert (answer.error, answer.cost_usd) == (message, 1)


@pytest.mark.parametrize("error", [None, "", False, {}, [], 0])
def test_an_empty_error_is_none(error: Any) -> None:
    assert read_record({"text": "t", "error": error}).error is None


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({}, "the record has neither text, output nor error"),
        ({"id": "a", "answer": "x"}, "the record has neither text, output nor error"),
        ({"text": "t", "output": "plain"}, "output is not a list of messages"),
        ({"output_messages": {}}, "output_messages is not a list of messages"),
        ({"output": [assistant("x"), "plain"]}, "output[1] is not an object"),
        ({"output": [{"content": "x"}]}, "output[0] has no role"),
        ({"output": [{"role": 5}]}, "output[0].role is not text"),
        ({"output": [assistant(tool_calls={})]}, "output[0].tool_calls is not a list"),
        ({"output": [assistant(tool_calls=["x"])]}, "output[0].tool_calls[0] is not an object"),
        ({"output": [assistant(tool_calls=[call("x"), {}])]}, "output[0].tool_calls[1] names no tool"),
        ({"output": [assistant(tool_calls=[{"tool": 5}])]}, "output[0].tool_calls[0].tool is not text"),
        (
            {"output": [assistant(tool_calls=[call("x", duration_ms="5")])]},
            "output[0].tool_calls[0].duration_ms is not a number",
        ),
        ({"text": "t", "token_usage": [1]}, "token_usage is not an object"),
        ({"text": "t", "token_usage": {"input": "1", "output": 2}}, "token_usage.input is not a number"),
        ({"text": "t", "cost_usd": "0.1"}, "cost_usd is not a number"),
        ({"text": "t", "duration_ms": True}, "duration_ms is not a number"),
    ],
)
def test_a_field_of_a_wrong_type_makes_its_record_an_error_that_names_it(record: dict[str, Any], message: str) -> None:
    answer = read_record(record)
    assert (answer.error, answer.text, answer.output) == (message, "", None)


# --- Figures


def test_figures_are_taken_as_given() -> None:
    record = {"text": "t", "token_usage": {"input": 10, "output": 5, "cached": 2, "more": "x"}, "cost_usd": 0.01}
    answer = read_record({**record, "duration_ms": 123})
    assert answer.token_usage == {"input": 10, "output": 5, "cached": 2}
    assert (answer.cost_usd, answer.duration_ms, answer.notices) == (0.01, 123, ())


@pytest.mark.parametrize(
    ("figures", "notices"),
    [
        ({"cost_usd": -1, "duration_ms": -5}, ("negative cost_usd was left out", "negative duration_ms was left out")),
        ({"cost_usd": 10**400}, ("unusable cost_usd was left out",)),
        ({"token_usage": {"input": 1}}, ("token_usage without both input and output was left out",)),
        ({"token_usage": {"input": 1, "output": -2}}, ("token_usage with a negative count was left out",)),
        ({"token_usage": {"input": 1, "output": None}}, ("token_usage without both input and output was left out",)),
        ({"token_usage": None, "cost_usd": None, "duration_ms": None}, ()),
    ],
)
def test_figures_that_can_not_be_used_are_left_out_and_said(figures: dict[str, Any], notices: tuple[str, ...]) -> None:
    answer = read_record({"text": "t", **figures})
    assert (answer.text, answer.error, answer.notices) == ("t", None, notices)
    assert (answer.token_usage, answer.cost_usd, answer.duration_ms) == (None, None, None)


# --- Tool calls and the trace


@pytest.mark.parametrize(
    "other",
    [
        {"name": "search", "arguments": {"q": 1}},
        {"name": "search", "input": {"q": 1}, "arguments": {"q": 2}},
        {"function": {"name": "search", "arguments": {"q": 1}}, "id": "1"},
        {"type": "function", "function": {"name": "search", "arguments": '{"q": 1}'}, "id": "1"},
        {"name": "search", "arguments": ' {"q":1}'},
    ],
)
def test_tool_calls_of_other_dialects_are_understood_and_said(other: dict[str, Any]) -> None:
    answer = read_record({"text": "x", "output": [assistant(tool_calls=[other])]})
    assert answer.tool_uses == (ToolUse("search", {"q": 1}),)
    assert answer.notices[0] == "output[0].tool_calls[0]: the tool's name was taken from name instead of tool"


@pytest.mark.parametrize("given", ["", "{", "[1]", "q=1", '"{}"'])
def test_arguments_that_are_no_object_stay_as_they_are(given: str) -> None:
    dialect = {"function": {"name": "search", "arguments": given}}
    assert read_record({"text": "x", "output": [assistant(tool_calls=[dialect])]}).tool_uses[0].input == given
    text = {"tool": "search", "input": '{"q": 1}'}  # what a runner says is the input is the input
    assert read_record({"text": "x", "output": [assistant(tool_calls=[text])]}).tool_uses[0].input == '{"q": 1}'


def test_a_trace_sums_up_messages_and_calls() -> None:
    times = {"start_time": "2026-01-01T00:00:00Z", "end_time": "2026-01-01T00:00:01.5Z"}
    messages = [
        {"role": "user", "content": "q", "start_time": "2026-01-01T01:59:59+02:00"},
        assistant(tool_calls=[call("search", output=1, duration_ms=5), call("search", **times), call("read")]),
        assistant("done", end_time="2026-01-01T00:00:03"),
    ]
    assert trace_of(messages, token_usage={"input": 1, "output": 2}, cost_usd=0.5, duration_ms=9) == {
        "event_count": 3,
        "tool_names": ["read", "search"],
        "tool_calls_by_name": {"search": 2, "read": 1},
        "error_count": 0,
        "llm_call_count": 2,
        "start_time": "2025-12-31T23:59:59.000Z",
        "end_time": "2026-01-01T00:00:03.000Z",
        "tool_durations": {"search": [5, 1500.0]},
        "token_usage": {"input": 1, "output": 2},
        "cost_usd": 0.5,
        "duration_ms": 9,
    }


def test_a_trace_of_a_text_is_one_assistant_message() -> None:
    assert read_record({"text": "x"}).trace == {
        "event_count": 0,
        "tool_names": [],
        "tool_calls_by_name": {},
        "error_count": 0,
        "llm_call_count": 1,
    }


def test_times_that_are_none_are_left_out_and_said() -> None:
    messages = [assistant("x", start_time="yesterday", end_time=5, duration_ms=-1)]
    answer = read_record({"output": messages})
    assert "start_time" not in answer.trace
    assert answer.notices == (
        "output[0].start_time is no time and was left out",
        "output[0].end_time is no time and was left out",
        "negative output[0].duration_ms was left out",
    )


def test_notices_have_a_bound() -> None:
    answer = read_record({"output": [assistant(tool_calls=[{"name": "x"}] * 500)]})
    assert len(answer.notices) == MAX_NOTICES + 1
    assert answer.notices[-1] == "… and 490 more of this record"


# --- Ids


@pytest.mark.parametrize(
    ("value", "test_id"), [("a", "a"), (" a", " a"), (3, "3"), (3.0, "3"), (3.5, "3.5"), (-1, "-1"), ("3", "3")]
)
def test_an_id_is_text_or_a_number(value: Any, test_id: str) -> None:
    assert record_id({"id": value}) == test_id


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({}, "has no id"),
        ({"id": ""}, "has no id"),
        ({"id": None}, "has no id"),
        ({"test_id": "a"}, "has no id but a test_id, as results of a run have it"),
        ({"id": True}, "neither text nor a number"),
        ({"id": ["a"]}, "neither text nor a number"),
        ({"id": {}}, "neither text nor a number"),
    ],
)
def test_what_is_no_id(record: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordFault, match=message):
        record_id(record)


# --- Whatever comes


@given(RECORDS)
@example({"output": [{"role": "assistant", "tool_calls": [{"tool": "x", "start_time": "0001-01-01T00:00:00+23:59"}]}]})
@example({"output": [{"role": "assistant", "start_time": "9999-12-31T23:59:59-23:00"}]})
@example({"text": "\ud800"})
def test_no_record_is_too_strange_to_be_read(record: dict[str, Any]) -> None:
    answer = read_record(record)
    again = answer_from_json(loads(dumps(answer.to_json())))
    if "\ud800" not in json.dumps(record):
        assert again == answer
    if answer.error is None:
        assert has_answer(record)
        assert answer.output is not None
    assert answer.trace == {} or answer.trace["event_count"] == len(answer.tool_uses)


def test_plain_texts_and_their_errors_go_to_a_journal_and_back() -> None:
    for answer in (read_text("x\n"), read_text("x", duration_ms=5.5), read_text("", error="broken")):
        assert answer_from_json(loads(dumps(answer.to_json()))) == answer
    assert read_text("x", duration_ms=5).trace["duration_ms"] == 5
    assert read_text("", error="broken").output is None
    assert isinstance(read_text("x"), Answer)
