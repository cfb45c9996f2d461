"""Hooks of targets that an eval file names in mappings, and workspaces in files of their own."""

from __future__ import annotations

import json
from pathlib import Path

from tests.evals.test_workspaces import command, hook, hooks, logged, write
from tests.support.eval_runs import perform_eval


async def test_a_target_has_hooks_of_its_own_around_its_answers(tmp_path: Path) -> None:
    own = {stage: hook(f"own_{stage}") for stage in ("before_all", "before_each", "after_each", "after_all")}
    every = {"enabled": True, **hooks(before_all="", before_each="", after_each="", after_all="")}
    write(tmp_path, command("echo ok"), {"hooks": every}, "a")
    suite = json.loads((tmp_path / "suite.yaml").read_text())
    suite["execution"] = {"targets": [{"name": "tool", "hooks": own}]}
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    assert (await perform_eval(tmp_path)).statuses() == {"a": "passed"}
    before, after = ("before_all", "before_each"), ("after_each", "after_all")
    expected = [name for stage in before for name in (stage, f"own_{stage}")]
    expected += [name for stage in after for name in (f"own_{stage}", stage)]
    assert logged(tmp_path) == expected


async def test_without_a_workspace_they_do_not_run_which_is_said(tmp_path: Path) -> None:
    write(tmp_path, command("echo ok"), None, "a")
    suite = json.loads((tmp_path / "suite.yaml").read_text())
    suite["execution"] = {"targets": [{"name": "tool", "hooks": hooks(before_each="")}]}
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    run = await perform_eval(tmp_path)
    assert any("hooks of target tool don't run: no test has a workspace" in each for each in run.said)
    assert logged(tmp_path) == []


async def test_paths_in_a_workspace_of_a_file_start_there(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    (inner / "files").mkdir(parents=True)
    (inner / "files" / "mine.txt").touch()
    every = {"before_all": {"command": "pwd > $MANYHANDS_WORKSPACE/where"}}
    (inner / "space.yaml").write_text(json.dumps({"template": "./files", "hooks": every}))
    write(tmp_path, command("ls; cat where; echo ok"), None, "a")
    suite = json.loads((tmp_path / "suite.yaml").read_text())
    (tmp_path / "suite.yaml").write_text(json.dumps({**suite, "workspace": "inner/space.yaml"}))
    run = await perform_eval(tmp_path)
    assert run.record("a")["answer"].split() == ["mine.txt", "where", str(inner), "ok"]
