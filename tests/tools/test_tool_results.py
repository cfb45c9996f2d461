"""Which results say of themselves that the call failed."""

from __future__ import annotations

from typing import Any

import pytest

from manyhands.tools.protocol import ToolResult
from manyhands.tools.results import result_of


@pytest.mark.parametrize(
    ("content", "failed"),
    [
        ({"error": "no"}, True),
        ({"error": None}, False),
        ({"error": ""}, False),
        ({"error": {"code": 1}}, True),
        ({"error": []}, True),
        ({"content": {"error": "no"}}, True),
        ({"content": {"error": None}}, False),
        ({"success": False}, True),
        ({"success": True, "exit_code": 1}, False),
        ({"output": "", "exit_code": 1, "error": None}, False),
        ([1, 2], False),
        ("error: a text that starts so", False),
        ("", False),
        (None, False),
    ],
)
def test_results_judged_by_their_content(content: Any, failed: bool) -> None:
    assert result_of(content, 1000).failed is failed


def test_the_mark_of_the_tool_decides() -> None:
    assert result_of(ToolResult({"error": None}, failed=True), 1000).failed
    assert not result_of(ToolResult({"error": "x"}), 1000).failed
