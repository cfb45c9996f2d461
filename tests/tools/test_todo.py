"""The list of tasks, and its restoring on replay."""

from __future__ import annotations

from typing import Any

import pytest

from manyhands.core.clock import SystemClock
from manyhands.core.errors import ToolError
from manyhands.sandboxes.protocol import Sandbox
from manyhands.tools.protocol import ToolEnvironment
from manyhands.tools.todo import todo


async def no_sandbox() -> Sandbox:
    raise AssertionError("todo uses no sandbox")


def environment() -> ToolEnvironment:
    return ToolEnvironment(no_sandbox, SystemClock())


TASKS = [{"id": "1", "content": "plan", "status": "completed"}, {"id": "2", "content": "build"}]


async def test_writing_merging_and_reading() -> None:
    place = environment()
    written = (await todo.call({"todos": TASKS}, place)).content
    assert [task["status"] for task in written["todos"]] == ["completed", "pending"]
    changes = [{"id": "2", "status": "in_progress"}, {"id": "3", "content": "test"}]
    merged = (await todo.call({"todos": changes, "merge": True}, place)).content
    assert [(task["id"], task["content"], task["status"]) for task in merged["todos"]] == [
        ("1", "plan", "completed"),
        ("2", "build", "in_progress"),
        ("3", "test", "pending"),
    ]
    assert merged["summary"] == {"total": 3, "pending": 1, "in_progress": 1, "completed": 1, "cancelled": 0}
    assert (await todo.call({}, place)).content == merged
    assert (await todo.call({"todos": []}, place)).content["todos"] == []


async def test_replay_brings_the_list_back() -> None:
    first, replayed = environment(), environment()
    arguments: dict[str, Any] = {"todos": TASKS}
    result = await todo.call(arguments, first)
    todo.restore(arguments, result, replayed)
    assert (await todo.call({}, replayed)).content == (await todo.call({}, first)).content


async def test_wrong_lists_are_explained() -> None:
    with pytest.raises(ToolError, match="task '9' is new, so it needs a content"):
        await todo.call({"todos": [{"id": "9"}], "merge": True}, environment())
    with pytest.raises(ToolError, match=r"argument 'todos\.0\.status' was \"done\", expected: one of 'pending'"):
        await todo.call({"todos": [{"id": "9", "content": "x", "status": "done"}]}, environment())
    with pytest.raises(ToolError, match=r"no argument 'todos\.0\.contents' \(did you mean 'content'\?\)"):
        await todo.call({"todos": [{"id": "9", "contents": "x"}]}, environment())
