"""What programs are given by the later contract: what AgentV 4.42 gives, in a form that its SDKs take."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from jsonschema import Draft202012Validator

from manyhands.core.jsonio import loads
from manyhands.graders.messages import trace_of
from manyhands.graders.payloads import LATER, MAX_INLINE, handed, identifying, uses_sdk
from manyhands.graders.protocol import Candidate
from tests.support.grader_payloads import CANDIDATES, CONFIGS, SCHEMA, camel

FORBIDDEN = ("output_text", "input_text", "reference_answer", "expected_output_text")
"""Keys for which the SDK in Python refuses a payload."""


def told(candidate: Candidate, config: Any = None) -> Any:
    with handed(candidate, LATER, config) as payload:
        return loads(payload)


@given(CANDIDATES, CONFIGS)
def test_whatever_is_graded_is_taken(candidate: Candidate, config: Any) -> None:
    payload = told(candidate, config)
    problems = [
        f"{list(error.path)}: {error.message}" for error in Draft202012Validator(SCHEMA).iter_errors(camel(payload))
    ]
    assert problems == []
    assert not payload.keys() & set(FORBIDDEN)


def test_a_conversation() -> None:
    calls: list[dict[str, Any]] = [
        {"tool": "Read", "id": "c1", "input": {"filePath": "a"}, "output": "text", "duration_ms": 5.0},
        {"name": "Edit", "arguments": '{"x": 1}', "start_time": "2026-01-01T00:00:00Z"},
    ]
    output = (
        {"role": "assistant", "tool_calls": calls, "content": None},
        {"role": "assistant", "content": "Done.", "end_time": "2026-01-01T00:00:09Z"},
    )
    figures: Any = {"token_usage": {"input": 3, "output": 4}, "cost_usd": 0.5, "duration_ms": 9000.0}
    question = ({"role": "user", "content": [{"type": "text", "value": "Do it."}]},)
    candidate = Candidate(
        "t1", "Done.", "Do it.", "c", question, output=output, trace=trace_of(output, **figures), **figures
    )
    payload = told(candidate)
    assert payload["output"] == "Done."
    assert "output_path" not in payload
    assert payload["input"] == [question[0]]
    asked, first, second = payload["messages"]
    assert (asked, second) == ({"role": "user", "content": "Do it."}, output[1])
    assert first == {"role": "assistant", "tool_calls": [calls[0], {**calls[1], "tool": "Edit", "input": {"x": 1}}]}
    trace = payload["trace"]
    assert trace["messages"] == payload["messages"]
    assert [(event["ordinal"], event["event_id"], event["type"]) for event in trace["events"]] == [
        (0, "message-0", "message"),
        (1, "message-1", "message"),
        (2, "message-1-tool-0", "tool_call"),
        (3, "message-1-tool-0-result", "tool_result"),
        (4, "message-1-tool-1", "tool_call"),
        (5, "message-2", "message"),
        (6, "final-response", "final_response"),
    ]
    assert trace["events"][2]["tool"] == {
        "name": "Read",
        "call_id": "c1",
        "input": {"filePath": "a"},
        "output": "text",
        "status": "ok",
    }
    assert trace["events"][3]["parent_event_id"] == "message-1-tool-0"
    assert trace["events"][6]["message"]["content"] == "Done."
    for summary in (trace, payload["trace_summary"]):
        assert (summary["event_count"], summary["tool_calls"], summary["error_count"]) == (2, {"Read": 1, "Edit": 1}, 0)
        assert (summary["tool_durations"], summary["llm_call_count"]) == ({"Read": [5.0]}, 2)
        assert summary["end_time"] == payload["end_time"] == "2026-01-01T00:00:09.000Z"
    for name, figure in figures.items():
        assert payload[name] == trace[name] == figure


def test_a_whole_conversation_is_not_put_behind_the_input() -> None:
    output = ({"role": "user", "content": "q"}, {"role": "assistant", "content": "a"})
    assert told(Candidate("t", "a", "q", input=({"role": "user", "content": "q"},), output=output))["messages"] == list(
        output
    )


def test_the_input_in_a_conversation_is_text(tmp_path: Path) -> None:
    parts = [{"type": "text", "value": "one"}, {"type": "file", "value": "a.txt"}, "two"]
    contents = ["plain", {"row": 1}, parts, [{"type": "image", "value": "x.png"}]]
    asked = tuple({"role": "user", "content": content} for content in contents)
    said = [message["content"] for message in told(Candidate("t", "", input=asked, folder=tmp_path))["messages"]]
    assert said[:3] == ["plain", '{\n  "row": 1\n}', f'one\n<file: path="{tmp_path / "a.txt"}">\ntwo']
    assert said[3][0]["type"] == "image"


def test_what_is_not_known() -> None:
    payload = told(Candidate("t", "a"))
    unknown = ("trace", "trace_summary", "token_usage", "cost_usd", "duration_ms", "start_time", "end_time")
    assert [payload[name] for name in (*unknown, "file_changes", "workspace_path", "config")] == [None] * 10
    assert payload["messages"] == payload["expected_output"] == payload["input_files"] == []


def test_parts_of_messages() -> None:
    message = {"role": "user", "content": ["one", {"someKey": 1}, 2]}
    assert told(Candidate("t", "", input=(message,)))["input"] == [
        {"role": "user", "content": [{"type": "text", "value": "one"}, {"someKey": 1}, {"type": "text", "value": "2"}]}
    ]


def test_config_within_the_keys_of_an_entry() -> None:
    candidate = Candidate("t", "")
    assert told(candidate, {"a": 1, "config": {"b_c": 2, "a": 3}})["config"] == {"a": 3, "b_c": 2}
    assert told(candidate, {"a": 1, "config": [2]})["config"] == {"a": 1, "config": [2]}
    assert identifying(candidate, LATER, {"a": 1, "config": {"b": 2}})["config"] == {"a": 1, "config": {"b": 2}}


def test_a_long_answer_is_in_a_file_while_the_program_runs() -> None:
    for answer in ("x" * (MAX_INLINE - 1), "🙂" * (MAX_INLINE // 2)):
        with handed(Candidate("t", answer), LATER) as data:
            payload = loads(data)
            assert payload["output"] is None
            assert loads(Path(payload["output_path"]).read_bytes()) == answer
        assert not Path(payload["output_path"]).parent.exists()
    assert told(Candidate("t", "x" * (MAX_INLINE - 2)))["output"] == "x" * (MAX_INLINE - 2)


def test_files_and_images(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(b"one\r\ntwo")
    (tmp_path / "in" / "b.png").write_bytes(b"png")
    inline = "data:image/jpeg;base64," + base64.b64encode(b"jpg").decode()
    parts = [
        {"type": "file", "value": "a.txt"},
        {"type": "file", "value": "gone"},
        {"type": "image", "value": "in/b.png"},
    ]
    candidate = Candidate(
        "t",
        "",
        input=({"role": "user", "content": parts},),
        output=(
            {
                "role": "assistant",
                "content": [{"type": "image", "source": inline}, {"type": "image", "source": "u.gif"}],
            },
        ),
        folder=tmp_path,
        files=(tmp_path / "in" / "a.txt",),
    )
    with handed(candidate, LATER) as data:
        payload = loads(data)
        text, gone, image = payload["input"][0]["content"]
        assert text == {
            "type": "file",
            "value": "a.txt",
            "path": "a.txt",
            "text": "one\ntwo",
            "resolved_path": str(tmp_path / "in" / "a.txt"),
        }
        assert gone == parts[1]
        assert image == {"type": "image", "media_type": "image/png", "path": str(tmp_path / "in" / "b.png")}
        jpeg, gif = payload["messages"][1]["content"]
        assert (jpeg["media_type"], Path(jpeg["path"]).suffix, Path(jpeg["path"]).read_bytes()) == (
            "image/jpeg",
            ".jpg",
            b"jpg",
        )
        assert gif == {"type": "image", "media_type": "image/gif", "path": "u.gif"}
        assert payload["trace"]["messages"][1]["content"] == [jpeg, gif]
    assert not Path(jpeg["path"]).exists()
    broken = {"role": "assistant", "content": [{"type": "image", "source": "data:image/png;base64,a"}]}
    assert told(Candidate("t", "", output=(broken,)))["messages"] == [broken]


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("import { defineAssertion } from '@agentv/sdk';", True),
        ('import { defineScriptGrader } from "agentv"', True),
        ("import * as v from '@agentv/eval'", False),
        ("// for agentv\nconst given = 1", False),
    ],
)
def test_programs_that_are_written_with_an_sdk(text: str, is_one: bool, tmp_path: Path) -> None:
    (tmp_path / "x.ts").write_text(text)
    assert uses_sdk(tmp_path / "x.ts") is is_one
    assert not uses_sdk(tmp_path / "gone.ts")
