"""``agent_judge``: a judge that looks at a workspace."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from manyhands.agents.trajectory import fold
from manyhands.core.clock import SystemClock
from manyhands.core.errors import ItemError, ToolError, UserError
from manyhands.core.failures import Cause
from manyhands.graders.judged.agent_judge import LOOK, LOOK_PLAIN, WORKSPACE, list_files, read_file, search_files
from manyhands.graders.protocol import Candidate, Score
from manyhands.models.simulated.model import SimulatedModel
from manyhands.testing.agent_doubles import Reply, ScriptedModel, assistant, tool_call
from manyhands.testing.context import Crash, CrashPoint, MemoryContext
from manyhands.testing.grader_doubles import NamedJudges, graders_of, make_grading
from manyhands.tools.protocol import ToolEnvironment

GOOD = '{"score": 0.9, "hits": ["a"], "misses": [], "reasoning": "fine"}'


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "main.py").write_text("def main():\n    return 42\n")
    (folder / "notes.txt").write_text("remember 42\n")
    (folder / "data.bin").write_bytes(b"\0\1")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    return folder


async def judged(
    workspace: Path | None,
    *replies: Reply,
    model: Any = None,
    context: MemoryContext | None = None,
    names: tuple[str | None, ...] = (None, "named"),
    **keys: Any,
) -> tuple[Score, Any]:
    model = model or ScriptedModel(replies)
    (grader,) = graders_of({"type": "agent_judge", **keys})
    grading = make_grading(context, judges=NamedJudges(model, frozenset(names)))
    return await grader.grade(Candidate("t", "did it", criteria="returns 42", workspace=workspace), grading), model


async def test_it_looks_and_judges(workspace: Path) -> None:
    context = MemoryContext()
    score, model = await judged(
        workspace,
        assistant(None, tool_call("list_files", {}, "1"), tool_call("read_file", {"path": "src/main.py"}, "2")),
        assistant(None, tool_call("search_files", {"pattern": "4."}, "3")),
        GOOD,
        context=context,
    )
    assert (score.value, score.hits, score.reasoning) == (0.9, ("a",), "fine")
    shown = [message["content"] for message in model.requests[-1].messages if message["role"] == "tool"]
    assert "notes.txt (12 bytes)" in shown[0]
    assert "return 42" in shown[1]
    assert "src/main.py:2:" in shown[2]
    assert {tool["function"]["name"] for tool in model.requests[0].tools} == {"list_files", "read_file", "search_files"}
    assert model.requests[0].settings.temperature == 0.0
    assert score.usage.calls == 3
    again, model = await judged(workspace, context=MemoryContext(context.journal))
    assert (again.value, model.requests) == (0.9, [])


async def test_no_step_is_paid_twice(workspace: Path) -> None:
    replies = (assistant(None, tool_call("list_files", {})), GOOD)
    context = MemoryContext(crash=CrashPoint(2, "after_recording"))
    with pytest.raises(Crash):
        await judged(workspace, *replies, context=context)
    score, model = await judged(workspace, GOOD, context=MemoryContext(context.journal))
    assert (score.value, len(model.requests)) == (0.9, 1)


async def test_points(workspace: Path) -> None:
    reply = {"checks": {"a": {"satisfied": True, "reasoning": ""}, "b": {"satisfied": False, "reasoning": "no"}}}
    rubrics = [{"id": "a", "outcome": "x"}, {"id": "b", "outcome": "y", "weight": 3}]
    score, model = await judged(workspace, json.dumps(reply), rubrics=rubrics)
    assert (score.value, score.verdict, score.misses) == (0.25, "fail", ("[b] y: no",))
    assert "- b: y" in model.requests[0].messages[-1]["content"]


async def test_a_last_message_that_can_not_be_read_is_asked_for_again(workspace: Path) -> None:
    score, model = await judged(workspace, assistant(None, tool_call("list_files", {})), "It is good.", GOOD)
    assert score.value == 0.9
    assert score.usage.calls == 3
    assert "That can't be used" in model.requests[-1].messages[-1]["content"]
    score, model = await judged(workspace, "good", "good", "good")
    assert score.value is None
    assert len(model.requests) == 3


async def test_steps_are_bounded(workspace: Path) -> None:
    model = ScriptedModel(
        lambda request: (
            assistant(None, tool_call("list_files", {}, f"c{len(request.messages)}")) if request.tools else GOOD
        )
    )
    score, _ = await judged(workspace, model=model, max_steps=2)
    assert score.value == 0.9
    assert len(model.requests) == 3


async def test_an_endpoint_that_refuses_the_schema_beside_tools(workspace: Path) -> None:
    refused = ItemError(Cause.MODEL_REFUSED, "HTTP 400: no")
    score, model = await judged(workspace, refused, GOOD)
    assert score.value == 0.9
    assert [request.settings.response_format is None for request in model.requests] == [False, True]
    score, _ = await judged(workspace, refused, refused)
    assert "HTTP 400: no" in (score.error or "")
    score, _ = await judged(workspace, ItemError(Cause.CONTEXT_OVERFLOW, "too long"))
    assert "too long" in (score.error or "")


async def test_a_refusal_in_the_middle_is_not_tried_again_after_a_crash(workspace: Path) -> None:
    refused = ItemError(Cause.MODEL_REFUSED, "HTTP 400: no")
    replies = (
        assistant(None, tool_call("list_files", {})),
        refused,
        assistant(None, tool_call("list_files", {})),
        GOOD,
    )
    context = MemoryContext()
    score, _ = await judged(workspace, *replies, context=context)
    assert score.value == 0.9
    said = [
        next(message["content"] for message in reversed(fold(context.steps, scope=scope)))
        for scope in (LOOK, LOOK_PLAIN)
    ]
    assert "notes.txt" in said[0]
    assert said[1] == GOOD
    replayed, model = await judged(workspace, context=MemoryContext(context.journal))
    assert (replayed.value, model.requests) == (0.9, [])
    crashed = MemoryContext(crash=CrashPoint(4, "after_recording"))  # the refused call is the third
    with pytest.raises(Crash):
        await judged(workspace, *replies, context=crashed)
    again, model = await judged(workspace, GOOD, context=MemoryContext(crashed.journal))
    assert (again.value, len(model.requests)) == (0.9, 1)


async def test_without_a_workspace_a_target_is_needed(tmp_path: Path) -> None:
    score, _ = await judged(None)
    assert "no workspace" in (score.error or "")
    score, _ = await judged(tmp_path / "gone")
    assert "is gone" in (score.error or "")
    score, model = await judged(None, GOOD, target="named")
    assert (score.value, model.requests[0].tools) == (0.9, ())


async def test_the_simulated_judge(workspace: Path) -> None:
    score, _ = await judged(workspace, model=SimulatedModel(), prompt="[simulate: tools=2] {{answer}}")
    assert score.error is None
    assert score.usage.simulated_calls == 3


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"max_steps": 51}, "between 1 and 50"),
        ({"maxSteps": 0}, "between 1 and 50"),
        ({"temperature": 3}, "between 0 and 2"),
        ({"steps": 3}, "unknown key"),
        ({"prompt": "gone.md"}, "there is no file"),
    ],
)
def test_wrong_entries(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        graders_of({"type": "agent_judge", **keys})


# --- The tools


async def no_sandbox() -> Any:
    raise AssertionError


def environment(workspace: Path) -> ToolEnvironment:
    return ToolEnvironment(no_sandbox, SystemClock(), state={WORKSPACE: workspace})


@pytest.mark.parametrize("path", ["../secret.txt", "link.txt", "/../secret.txt", "src/../../secret.txt", "a\0b"])
async def test_nothing_outside_is_shown(workspace: Path, path: str) -> None:
    for tool in (read_file, list_files):
        with pytest.raises(ToolError):
            await tool.call({"path": path}, environment(workspace))
    found = await search_files.call({"pattern": "secret"}, environment(workspace))
    assert found.content["matches"] == []


async def test_links_tell_nothing_of_where_they_lead(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret-name").write_text("secret")
    (workspace / "away").symlink_to(tmp_path / "outside")
    (workspace / "round").symlink_to(workspace / "round")
    (workspace / "inside").symlink_to(workspace / "notes.txt")
    entries = (await list_files.call({}, environment(workspace))).content["entries"]
    assert {"away (a link)", "round (a link)", "inside (a link)"} <= set(entries)
    for path in ("away", "away/secret-name", "round"):
        for tool in (read_file, list_files):
            with pytest.raises(ToolError):
                await tool.call({"path": path}, environment(workspace))
    assert (await read_file.call({"path": "inside"}, environment(workspace))).content["content"] == "remember 42\n"
    found = await search_files.call({"pattern": ".", "files": "secret*"}, environment(workspace))
    assert found.content["matches"] == []


async def test_files_that_can_not_be_read_are_for_the_judge_to_hear_of(workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")
    with pytest.raises(ToolError):
        await read_file.call({"path": "pipe"}, environment(workspace))
    with pytest.raises(ToolError):
        await read_file.call({"path": "x" * 5000}, environment(workspace))
    found = await search_files.call({"pattern": "remember"}, environment(workspace))
    assert len(found.content["matches"]) == 1


async def test_absolute_paths_within_are_fine(workspace: Path) -> None:
    found = await read_file.call({"path": str(workspace / "notes.txt")}, environment(workspace))
    assert found.content == {"content": "remember 42\n", "bytes_left_out": 0}
    found = await read_file.call({"path": "/notes.txt"}, environment(workspace))
    assert found.content["content"] == "remember 42\n"


async def test_what_is_shown_is_bounded(workspace: Path) -> None:
    for number in range(150):
        (workspace / f"f{number:03}.log").write_text("needle\n" * 3)
    (workspace / "big.txt").write_text("x" * 100_000)
    found = (await list_files.call({}, environment(workspace))).content
    assert (len(found["entries"]), found["left_out"]) == (100, 55)
    found = (await search_files.call({"pattern": "needle", "files": "*.log"}, environment(workspace))).content
    assert (len(found["matches"]), found["complete"]) == (20, False)
    found = (await read_file.call({"path": "big.txt"}, environment(workspace))).content
    assert found["bytes_left_out"] == 100_000 - (50 << 10)
    with pytest.raises(ToolError, match="no text file"):
        await read_file.call({"path": "data.bin"}, environment(workspace))
    for pattern in ("(", "(?:(?:a{1000}){1000}){1000}"):
        with pytest.raises(ToolError, match="can't be used"):
            await search_files.call({"pattern": pattern}, environment(workspace))
