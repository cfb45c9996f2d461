"""The success rule and the statistics over a conversation."""

from __future__ import annotations

from typing import Any

import pytest

from manyhands.tools.results import failed_by_content, succeeded, tool_statistics


@pytest.mark.parametrize(
    ("content", "failed"),
    [
        ('{"error": "no"}', True),
        ('{"error": null}', False),
        ('{"error": ""}', False),
        ('{"content": {"error": "no"}}', True),
        ('{"content": {"error": null}}', False),
        ('{"success": false}', True),
        ('{"success": true, "exit_code": 1}', False),
        ('{"output": "", "exit_code": 1, "error": null}', False),
        ("[1, 2]", False),
        ("12", False),
        ("null", False),
        ("", True),
        ("  \n", True),
        ("Error: no such file", True),
        ("errors were found", False),
        ("{not json", False),
        ("Tool 'x' does not exist. Available tools: a", True),
        ("Tool 'x' is fine", False),
        ("Error executing tool 'x': boom", True),
        ({"error": {"code": 1}}, True),
        (None, False),
    ],
)
def test_results_judged_by_their_text(content: Any, failed: bool) -> None:
    assert failed_by_content(content) is failed


def test_the_mark_of_the_tool_layer_decides() -> None:
    assert not succeeded({"role": "tool", "content": "fine", "_failed": True})
    assert succeeded({"role": "tool", "content": "error: a file that starts so", "_failed": False})
    assert not succeeded({"role": "tool", "content": "error: x"})


def call(number: str, name: str) -> dict[str, Any]:
    return {"id": number, "type": "function", "function": {"name": name, "arguments": "{}"}}


def answer(number: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": number, "content": content, **more}


def test_statistics_over_a_conversation() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call("c0", "terminal"), call("c1", "zzz")]},
        answer("c0", "{}"),
        answer("c1", "Tool 'zzz' does not exist", _failed=True),
        # The same ids again, as servers do that count calls by turn.
        {"role": "assistant", "content": None, "tool_calls": [call("c0", "todo"), call("c1", "terminal")]},
        answer("c1", '{"error": "stopped"}'),
        answer("c0", "{}"),
        answer("c0", "{}"),
        answer("nobody", "{}"),
        {"role": "assistant", "content": None, "tool_calls": [call("c9", "todo")]},
        {"role": "assistant", "content": "over"},
    ]
    assert tool_statistics(messages, ["patch", "terminal", "todo"]) == {
        "patch": {"count": 0, "success": 0, "failure": 0},
        "terminal": {"count": 2, "success": 1, "failure": 1},
        "todo": {"count": 2, "success": 1, "failure": 0},
        "zzz": {"count": 1, "success": 0, "failure": 1},
    }
    assert list(tool_statistics(messages, ["todo", "patch"])) == ["todo", "patch", "terminal", "zzz"]
