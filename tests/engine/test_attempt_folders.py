"""The folders of attempts: which are there when the items have ended."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import Context
from manyhands.engine.workspaces import KEEP, STATES
from manyhands.runs.execution import execute_run
from manyhands.runs.making import Opened, create_run
from tests.support.engine_runs import ProgramWorkload

KEYS = ("plain", "wanted", "failing", "discarded")


async def program(context: Context) -> Outcome:
    context.workspace.mkdir(parents=True)
    key = context.item.key
    if key == "failing":
        raise ItemError(Cause.TARGET_ERROR, "asked to")
    if key == "wanted":
        (context.workspace / KEEP).touch()
    return Outcome(ItemState.DISCARDED if key == "discarded" else ItemState.COMPLETED, reason=None)


@pytest.mark.parametrize(
    ("execution", "left"),
    [
        ({}, {"wanted", "failing"}),
        ({"keep_workspaces": True}, set(KEYS)),
        ({"remove_workspaces": True}, set()),
    ],
)
async def test_what_is_kept(tmp_path: Path, execution: dict[str, Any], left: set[str]) -> None:
    workload, folder = ProgramWorkload(program, KEYS, **execution), tmp_path / "run"
    create_run(folder, "program", workload, version="test", notice=print)
    await execute_run(Opened(folder, workload))
    names = {f"{number}-1" for number, key in enumerate(KEYS, 1) if key in left}
    root = folder / "workspaces"
    assert {path.name for path in root.iterdir()} == names if names else not root.exists()
    # What a crash left behind goes at the next opening, by the same rules.
    for number, _ in enumerate(KEYS, 1):
        (root / f"{number}-1").mkdir(parents=True, exist_ok=True)
    (root / "1-9").mkdir()
    await execute_run(Opened(folder, workload))
    if "keep_workspaces" not in execution:
        assert {path.name for path in root.iterdir()} == names if names else not root.exists()


async def test_states_go_with_their_items(tmp_path: Path) -> None:
    async def stateful(context: Context) -> Outcome:
        (folder / STATES / f"{context.item.number}-{context.attempt}").mkdir(parents=True)
        if context.item.key == "failing":
            raise ItemError(Cause.TARGET_ERROR, "asked to")
        if context.item.key == "wanted":
            raise ItemError(Cause.PAYMENT, "no credit, so that it stays pending")
        return Outcome(ItemState.COMPLETED)

    workload, folder = ProgramWorkload(stateful, KEYS, keep_workspaces=True), tmp_path / "run"
    create_run(folder, "program", workload, version="test", notice=print)
    await execute_run(Opened(folder, workload))
    assert {path.name for path in (folder / STATES).iterdir()} == {"2-1"}


async def test_folders_within_folders_without_end_are_removed(tmp_path: Path) -> None:
    async def deep(context: Context) -> Outcome:
        context.workspace.mkdir(parents=True)
        line = "import os\nfor _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\n"
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", line, cwd=context.workspace)
        assert await process.wait() == 0
        return Outcome(ItemState.COMPLETED)

    workload, folder = ProgramWorkload(deep), tmp_path / "run"
    create_run(folder, "program", workload, version="test", notice=print)
    result = await execute_run(Opened(folder, workload))
    assert result.error is None
    assert not (folder / "workspaces").exists()


async def test_a_new_attempt_takes_nothing_over(tmp_path: Path) -> None:
    seen: list[bool] = []

    async def twice(context: Context) -> Outcome:
        seen.append(context.workspace.exists())
        context.workspace.mkdir(parents=True)
        (context.workspace / KEEP).touch()
        if context.attempt == 1:
            raise context.new_attempt_needed("asked to")
        return Outcome(ItemState.COMPLETED)

    workload, folder = ProgramWorkload(twice), tmp_path / "run"
    create_run(folder, "program", workload, version="test", notice=print)
    await execute_run(Opened(folder, workload))
    assert seen == [False, False]
    assert [path.name for path in (folder / "workspaces").iterdir()] == ["1-2"]
