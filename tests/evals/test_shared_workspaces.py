"""Workspaces that tests share, existing folders, and hooks in a mapping of their own."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.core.redaction import protect
from manyhands.workloads.evals.evalfile.contents import Hook, Workspace
from tests.evals.test_workspaces import KILL, PASSES, command, hook, hooks, killed, logged, write
from tests.support.eval_runs import perform_eval

COUNTS = "echo {EVAL_ID} >> notes.txt; cat notes.txt; echo ok"
SHARED = {"template": "template", "isolation": "shared"}


def answers(run: Any) -> dict[str, list[str]]:
    return {each["test_id"]: each["answer"].split() for each in run.records()}


@pytest.mark.parametrize("key", [{"isolation": "shared"}, {"mode": "pooled"}])
async def test_each_test_finds_what_the_one_before_left(tmp_path: Path, key: dict[str, str]) -> None:
    write(tmp_path, command(COUNTS), {"template": "template", **key}, "a", "b", "c", execution={"workers": 3})
    run = await perform_eval(tmp_path)
    assert answers(run) == {
        "a": ["first", "a", "ok"],
        "b": ["first", "a", "b", "ok"],
        "c": ["first", "a", "b", "c", "ok"],
    }
    added = [line for line in run.record("c")["file_changes"].splitlines() if line.startswith("+") and line[1] != "+"]
    assert added == ["+c"]
    assert (tmp_path / "template" / "notes.txt").read_text() == "first\n"


async def test_said_nothing_or_otherwise_each_has_its_own(tmp_path: Path) -> None:
    for number, more in enumerate(({}, {"mode": "temp"}, {"mode": "pooled", "isolation": "per_test"})):
        write(tmp_path, command(COUNTS), {"template": "template", **more}, "a", "b")
        run = await perform_eval(tmp_path, f"run{number}")
        assert answers(run)["b"] == ["first", "b", "ok"]


@pytest.mark.parametrize("stage", ["before_each", "after_each"])
@pytest.mark.parametrize("how", ["fast", "strict", "none"])
async def test_a_shared_workspace_is_put_back(tmp_path: Path, stage: str, how: str) -> None:
    every = {"before_all": hook("before_all", "echo all >> $MANYHANDS_WORKSPACE/notes.txt"), stage: {"reset": how}}
    write(tmp_path, command(COUNTS), {**SHARED, "hooks": every}, "a", "b")
    run = await perform_eval(tmp_path)
    assert answers(run)["b"] == ["first", "all", *(["a"] if how == "none" else []), "b", "ok"]


async def test_each_target_has_a_shared_workspace_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, command(COUNTS), SHARED, "a", "b")
    suite = json.loads((tmp_path / "suite.yaml").read_text())
    suite["targets"].append(command(COUNTS, name="other"))
    suite["execution"] = {"targets": ["tool", "other"]}
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    run = await perform_eval(tmp_path)
    assert [run.record("b", name)["answer"].split() for name in ("tool", "other")] == [["first", "a", "b", "ok"]] * 2


async def test_what_a_failed_target_did_is_not_passed_on_and_after_all_sees_the_last_state(tmp_path: Path) -> None:
    line = "echo {EVAL_ID} >> notes.txt; test {EVAL_ID} != b || exit 3; cat notes.txt; echo ok"
    every = {"after_all": hook("after_all", "cat $MANYHANDS_WORKSPACE/notes.txt")}
    write(tmp_path, command(line), {**SHARED, "hooks": every}, "a", "b", "c")
    run = await perform_eval(tmp_path)
    assert run.statuses() == {"a": "passed", "b": "error", "c": "passed"}
    assert answers(run)["c"] == ["first", "a", "c", "ok"]
    assert run.record("a")["after_all_output"].split() == ["first", "a", "c"]


async def test_after_a_kill_the_tests_go_on_with_what_the_last_one_left(tmp_path: Path) -> None:
    line = "echo {EVAL_ID} >> notes.txt; cat notes.txt; echo ok; mkdir {EVAL_DIR}/{EVAL_ID} || exit 0; "
    line += f"test {{EVAL_ID}} != b || {{ {KILL}; }}"
    write(tmp_path, command(line), {**SHARED, "hooks": hooks(before_all="", before_each="")}, "a", "b", "c")
    await killed(tmp_path, "eval", "suite.yaml", "--run_name=run")
    run = await perform_eval(tmp_path, resume=True)
    assert answers(run)["c"] == ["first", "a", "b", "c", "ok"]
    assert logged(tmp_path) == ["before_all", *["before_each"] * 4]


# --- Existing folders


@pytest.mark.parametrize("by_option", [False, True])
async def test_targets_work_in_an_existing_folder(tmp_path: Path, by_option: bool) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine\n")
    workspace = None if by_option else {"mode": "static", "path": "mine"}
    options: dict[str, Any] = {"workspace_path": str(tmp_path / "mine")} if by_option else {}
    write(tmp_path, command("pwd; " + COUNTS), workspace, "a", "b")
    run = await perform_eval(tmp_path, **options)
    assert answers(run)["b"] == [str(tmp_path / "mine"), "mine", "a", "b", "ok"]
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine\na\nb\n"
    assert "+b\n" in run.record("b")["file_changes"]
    assert "+a\n" not in run.record("b")["file_changes"]


async def test_an_existing_folder_is_put_back_where_that_is_wanted(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    (mine / ".git").mkdir(parents=True)
    (mine / ".git" / "HEAD").write_text("ref")
    (mine / "notes.txt").write_text("mine\n")
    (mine / "tool").write_text("#!/bin/sh\n")
    (mine / "tool").chmod(0o755)
    os.symlink("notes.txt", mine / "link")
    line = "cat notes.txt; echo x > notes.txt; rm tool link; ln -s /etc/passwd link; mkdir -p d/e; touch d/e/f; echo ok"
    workspace = {"path": "mine", "hooks": {"before_each": {"reset": "fast"}, "after_each": {"reset": "strict"}}}
    write(tmp_path, command(line), workspace, "a", "b")
    run = await perform_eval(tmp_path)
    assert answers(run)["b"] == ["mine", "ok"]
    assert (mine / "notes.txt").read_text() == "mine\n"
    assert os.readlink(mine / "link") == "notes.txt"
    assert os.access(mine / "tool", os.X_OK)
    assert not (mine / "d" / "e" / "f").exists()
    assert (mine / ".git" / "HEAD").read_text() == "ref"


async def test_a_folder_that_holds_the_data_folder_can_be_one(tmp_path: Path) -> None:
    every = {"after_each": {"reset": "fast"}}
    write(tmp_path, command("echo new > new.txt; echo ok"), {"path": ".", "hooks": every}, "a", "b")
    run = await perform_eval(tmp_path)
    assert run.statuses() == {"a": "passed", "b": "passed"}
    assert "new.txt" in run.record("b")["file_changes"]
    assert "data/" not in run.record("b")["file_changes"]
    assert not (tmp_path / "new.txt").exists()


async def test_a_folder_that_is_not_there_is_made_of_the_template(tmp_path: Path) -> None:
    write(tmp_path, command(COUNTS), {"template": "template", "mode": "static", "path": "new/one"}, "a")
    run = await perform_eval(tmp_path)
    assert answers(run)["a"] == ["first", "a", "ok"]
    assert (tmp_path / "new" / "one" / "notes.txt").exists()


@pytest.mark.parametrize(
    ("workspace", "options", "problem"),
    [
        ({"path": "mine", "isolation": "per_test"}, {}, "can't be had in one existing folder"),
        ({"path": "mine", "mode": "pooled"}, {}, "path goes with mode: static"),
        ({"mode": "static", "repos": [{"path": "a", "repo": "./b"}]}, {}, "needs a path, or --workspace_path"),
        ({"path": "suite.yaml"}, {}, "is no folder"),
        ({"mode": "sometimes"}, {}, "mode"),
        (None, {"workspace_path": "mine", "workspace_mode": "temp"}, "goes with --workspace_mode=static"),
        ({"static_path": "mine"}, {}, "use mode: static and path"),
        ({"before_all": {"script": "true"}, "hooks": {"before_all": {"script": "true"}}}, {}, "is given twice"),
        ({"hooks": {"before_all": {}}}, {}, "script is required"),
        ({"env": {"required_python_modules": ["os; import sys"]}}, {}, "is no name of a module"),
    ],
)
async def test_settings_that_contradict_each_other(
    tmp_path: Path, workspace: Any, options: dict[str, Any], problem: str
) -> None:
    write(tmp_path, command("echo ok"), workspace, "a")
    with pytest.raises(UserError, match=problem):
        await perform_eval(tmp_path, **options)


# --- Hooks


async def test_hooks_of_a_mapping_run_like_others_and_a_test_may_switch_them_off(tmp_path: Path) -> None:
    every = {"enabled": True, **hooks(before_all="", before_each="", after_each="", after_all="")}
    without = {"id": "b", "input": "x", "assert": PASSES, "workspace": {"hooks": {"enabled": False}}}
    write(tmp_path, command("echo ok"), {"hooks": every}, "a", without)
    run = await perform_eval(tmp_path)
    assert run.statuses() == {"a": "passed", "b": "passed"}
    assert sorted(logged(tmp_path)) == ["after_all", "after_each", "before_all", "before_each"]
    write(tmp_path, command("echo ok"), {"hooks": {**every, "enabled": False}}, "a")
    await perform_eval(tmp_path, "two")
    assert len(logged(tmp_path)) == 4


async def test_a_hook_finds_its_place_in_its_command(tmp_path: Path) -> None:
    asked = 'it\'s $(touch pwned) "{{workspace_path}}" `x`; {{other}}'
    told = "printf '%s\\n' {{test_id}} \"{{case_input}}\" '{{case_metadata}}' {{other}}"
    log = "printf '%s\\n' \"$@\" >> {{workspace_path}}/log"
    every = {
        "before_all": {"command": ["sh", "-c", log, "sh", "{{test_id}}", "{{workspace_path}}"]},
        "before_each": {"command": told + " >> '{{workspace_path}}'/log"},
    }
    test = {"id": "a", "input": asked, "metadata": {"k": "it's"}, "assert": PASSES}
    write(tmp_path, command("cat log; echo ok"), {"hooks": every}, test)
    run = await perform_eval(tmp_path)
    lines = run.record("a")["answer"].splitlines()
    assert lines[0] == "__before_all__"
    assert lines[1].endswith("/workspace")
    assert lines[2:] == ["a", asked, '{"k":"it\'s"}', "{{other}}", "ok"]
    assert not list(tmp_path.rglob("pwned"))


async def test_what_no_quotation_holds_together_is_not_put_in(tmp_path: Path) -> None:
    write(tmp_path, command("echo ok"), {"hooks": {"before_each": {"command": "echo `echo {{case_input}}`"}}}, "a")
    run = await perform_eval(tmp_path)
    assert "can't be put into `…`" in run.record("a")["error"]


async def test_what_must_be_installed_is_looked_for_first(tmp_path: Path) -> None:
    wanted = {"required_commands": ["sh", "no-such-program"], "required_python_modules": ["json", "no_such_module"]}
    write(tmp_path, command("echo ok"), {"env": wanted, "hooks": hooks(before_all="")}, "a")
    run = await perform_eval(tmp_path)
    lacking = "the program no-such-program, the Python module no_such_module"
    assert str(run.result.error).endswith(f"workspace.env requires what is not installed: {lacking}")
    assert run.code == 2
    assert logged(tmp_path) == []


async def test_a_file_of_an_editor_stands_for_its_folder(tmp_path: Path) -> None:
    (tmp_path / "template").mkdir()
    (tmp_path / "template" / "a.code-workspace").write_text("{}")
    write(tmp_path, command("ls; echo ok"), {"template": "template/a.code-workspace"}, "a")
    assert answers(await perform_eval(tmp_path))["a"] == ["a.code-workspace", "notes.txt", "ok"]


async def test_a_repository_that_a_hook_makes_is_there(tmp_path: Path) -> None:
    line = "cd $MANYHANDS_WORKSPACE; git init -q; git add -A; git -c user.email=a@b -c user.name=a commit -q -m one"
    write(
        tmp_path,
        command("git log --format=%s; git status -s; echo ok"),
        {"template": "template", **hooks(before_all=line)},
        "a",
    )
    assert answers(await perform_eval(tmp_path))["a"] == ["one", "ok"]


async def test_a_test_with_a_container_is_not_run_as_something_else(tmp_path: Path) -> None:
    write(tmp_path, command("echo ok"), {"docker": {"image": "python:3.11-slim", "timeout": 300, "cpus": 1}}, "a")
    with pytest.raises(UserError, match=r"test 'a' brings a container, and target .* works outside of it"):
        await perform_eval(tmp_path)


def test_hooks_of_a_target_are_nearest_to_its_answers(tmp_path: Path) -> None:
    own, targets, others = (Hook((name,), tmp_path) for name in ("own", "target", "other"))
    stages = ("before_all", "before_each", "after_each", "after_all")
    of_targets = tuple((name, stage, hook) for name, hook in (("t", targets), ("o", others)) for stage in stages)
    workspace = Workspace(**dict.fromkeys(stages, own), of_targets=of_targets)  # type: ignore[arg-type]
    found = [[hook.argv[0] for hook in workspace.of("t").hooks(stage)] for stage in stages]
    assert found == [["own", "target"]] * 2 + [["target", "own"]] * 2
    off = replace(workspace, hooks_enabled=False).of("t")
    assert [[hook.argv[0] for hook in off.hooks(stage)] for stage in stages] == [["target"]] * 4


async def test_what_is_written_of_a_workspace_holds_no_secret(tmp_path: Path) -> None:
    secret = "s3cr3t-0123456789-abcdef"
    protect([secret])
    every = hooks(before_all=f"test -n {secret}; echo all", after_all=f"test -n {secret}; echo bye")
    write(tmp_path, command("echo ok"), {"hooks": every}, "a")
    run = await perform_eval(tmp_path)
    assert run.record("a")["after_all_output"] == "bye"
    states = [path.read_text() for path in (run.folder / "workspace_templates").glob("*/state.json")]
    assert len(states) == 1
    assert secret not in states[0]
