"""Repositories in workspaces: what is checked out, what is fetched how often, and what git is never given."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from tests.evals.test_workspaces import PASSES, command, hooks, logged, write
from tests.support.eval_runs import perform_eval


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.email=a@example.org", "-c", "user.name=A", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A repository with two commits, a tag at the first, and two folders."""
    folder = tmp_path / "library"
    for name in ("one", "two"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file.txt").write_text(f"{name}\n")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    git(folder, "tag", "v1")
    (folder / "two" / "file.txt").write_text("second\n")
    git(folder, "commit", "-q", "-a", "-m", "second")
    return folder


def repo(**keys: Any) -> dict[str, Any]:
    return {"repos": [{"path": "./lib", "repo": "./library", **keys}]}


HEAD = "git -C lib rev-parse HEAD; cat lib/two/file.txt; git -C lib status --porcelain; echo ok"


@pytest.mark.parametrize(
    ("keys", "name", "text"),
    [
        ({}, "HEAD", "second"),
        ({"commit": "main"}, "main", "second"),
        ({"commit": "v1"}, "v1", "two"),
        ({"base_commit": "HEAD", "ancestor": 1}, "v1", "two"),
        ({"commit": "origin/main", "ancestor": 0}, "main", "second"),
    ],
)
async def test_a_repository_is_checked_out_at_a_commit(
    tmp_path: Path, library: Path, keys: dict[str, Any], name: str, text: str
) -> None:
    write(tmp_path, command(HEAD), repo(**keys), "a")
    run = await perform_eval(tmp_path)
    assert run.record("a")["answer"].split() == [git(library, "rev-parse", name), text, "ok"]
    assert run.record("a")["file_changes"] == ""


async def test_the_tests_of_a_run_and_later_runs_share_a_mirror(tmp_path: Path, library: Path) -> None:
    first, url = git(library, "rev-parse", "v1"), f"file://{library}"
    line = "cat lib/two/file.txt; echo changed >> lib/two/file.txt; git -C lib remote get-url origin; echo ok"
    write(tmp_path, command(line), repo(commit=first, repo=url), "a", "b", "c")
    run = await perform_eval(tmp_path)
    assert [each["answer"].split() for each in run.records()] == [["two", url, "ok"]] * 3
    assert "diff --git a/lib/two/file.txt b/lib/two/file.txt" in run.record("b")["file_changes"]
    assert len(list((tmp_path / "data" / "git_mirrors").glob("*/HEAD"))) == 1
    library.rename(tmp_path / "gone")  # what is there already needs no source
    assert (await perform_eval(tmp_path, "again")).statuses() == {"a": "passed", "b": "passed", "c": "passed"}


async def test_what_a_branch_has_got_since_is_fetched(tmp_path: Path, library: Path) -> None:
    write(tmp_path, command(HEAD), repo(commit="main"), "a")
    await perform_eval(tmp_path)
    (library / "two" / "file.txt").write_text("third\n")
    git(library, "commit", "-q", "-a", "-m", "third")
    run = await perform_eval(tmp_path, "again")
    assert run.record("a")["answer"].split()[1] == "third"


async def test_parts_of_a_repository_and_hooks_around_it(tmp_path: Path, library: Path) -> None:
    workspace = {
        **repo(commit="main", sparse=["one"]),
        "template": "template",
        "hooks": hooks(before_all="ls $MANYHANDS_WORKSPACE/lib > $MANYHANDS_WORKSPACE/seen; echo all"),
    }
    write(tmp_path, command("cat seen; ls; ls lib; echo ok"), workspace, "a")
    run = await perform_eval(tmp_path)
    assert run.record("a")["answer"].split() == ["one", "lib", "notes.txt", "seen", "one", "ok"]
    assert run.record("a")["before_all_output"] == "all"


async def test_a_repository_that_can_not_be_had_is_the_error_of_its_tests_alone(tmp_path: Path, library: Path) -> None:
    lost = {"id": "lost", "input": "x", "assert": PASSES, "workspace": repo(commit="nowhere")}
    gone = {"id": "gone", "input": "x", "assert": PASSES, "workspace": repo(repo="./missing")}
    write(tmp_path, command("echo ok >> {EVAL_DIR}/asked; echo ok"), None, "a", lost, gone)
    run = await perform_eval(tmp_path)
    assert run.statuses() == {"a": "passed", "lost": "error", "gone": "error"}
    assert "it has no commit nowhere" in run.record("lost")["error"]
    assert f"the repository {tmp_path}/missing can't be had: git clone" in run.record("gone")["error"]
    assert (tmp_path / "asked").read_text() == "ok\n"


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"repo": "--upload-pack=touch pwned"}, "is no repository"),
        ({"repo": "ext::sh -c touch% pwned"}, "is no repository"),
        ({"repo": "ext::sh"}, "is no repository"),
        ({"repo": "git://example.org/a"}, "is no repository"),
        ({"repo": "https://user:pass@example.org/a.git"}, "must not hold a user or a password"),
        ({"repo": "library"}, "is no repository"),
        ({"commit": "--upload-pack=x"}, "must be a commit, branch or tag"),
        ({"commit": "a..b"}, "must be a commit, branch or tag"),
        ({"path": "../out"}, "must be a folder within"),
        ({"path": "/etc"}, "must be a folder within"),
        ({"path": "lib/.git/hooks"}, "must be a folder within"),
        ({"sparse": ["--stdin"]}, "must be a folder within"),
        ({"checkout": {"ref": "main"}}, "use commit and ancestor"),
        ({"commit": "v1", "base_commit": "main"}, "is the same key as"),
    ],
)
async def test_git_is_given_nothing_that_it_would_take_for_something_else(
    tmp_path: Path, library: Path, keys: dict[str, Any], problem: str
) -> None:
    write(tmp_path, command("echo ok"), repo(**keys), "a")
    with pytest.raises(UserError, match=problem):
        await perform_eval(tmp_path)
    assert not list(tmp_path.rglob("pwned"))


async def test_hooks_of_a_repository_and_settings_of_the_caller_do_not_count(
    tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = tmp_path / "git_template" / "hooks"
    template.mkdir(parents=True)
    for name in ("post-checkout", "reference-transaction"):
        (template / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/pwned\n")
        (template / name).chmod(0o755)
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(template.parent))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    write(tmp_path, command("unset GIT_DIR; " + HEAD), repo(commit="main"), "a")
    assert (await perform_eval(tmp_path)).statuses() == {"a": "passed"}
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("path", ["way", "way/lib", "folder/way"])
async def test_no_link_leads_a_repository_out_of_the_workspace(tmp_path: Path, library: Path, path: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    write(tmp_path, command("echo ok"), {**repo(path=path), "template": "template"}, "a")
    link = tmp_path / "template" / path.removesuffix("/lib")
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(outside)
    run = await perform_eval(tmp_path)
    assert "its path leads out of the workspace" in run.record("a")["error"]
    assert not list(outside.iterdir())


async def test_a_repository_can_be_the_workspace(tmp_path: Path, library: Path) -> None:
    write(tmp_path, command("cat two/file.txt; echo ok"), repo(path="."), "a")
    assert (await perform_eval(tmp_path)).record("a")["answer"].split() == ["second", "ok"]


async def test_a_killed_run_does_not_check_out_again(tmp_path: Path, library: Path) -> None:
    from tests.evals.test_workspaces import KILL, killed

    line = (
        "cat lib/two/file.txt; echo ok; mkdir {EVAL_DIR}/{EVAL_ID} || exit 0; test {EVAL_ID} != b || { " + KILL + "; }"
    )
    write(tmp_path, command(line), {**repo(commit="v1"), **hooks(before_all="")}, "a", "b")
    await killed(tmp_path, "eval", "suite.yaml", "--run_name=run")
    library.rename(tmp_path / "gone")
    run = await perform_eval(tmp_path, resume=True)
    assert [each["answer"].split() for each in run.records()] == [["two", "ok"]] * 2
    assert logged(tmp_path) == ["before_all"]
    state = next((run.folder / "workspace_templates").glob("*/state.json"))
    assert list(json.loads(state.read_text())["commits"]) == ["lib"]
