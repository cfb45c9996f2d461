"""The project: which folders can be one, what is hidden in it, what a model is told of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyhands.core.errors import UserError
from manyhands.sandboxes.bubblewrap.root import folders, mounts
from manyhands.sandboxes.project import checked_project, hidden_below, project_note
from manyhands.sandboxes.protocol import SandboxLimits


def test_a_project_is_made_absolute_and_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for named in ("real", "link", "./link/../real", "~/real", str(tmp_path / "real")):
        assert checked_project(named, sandbox="auto") == tmp_path / "real"


def test_what_is_no_folder_is_no_project(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"project: there is no folder .*/none"):
        checked_project(tmp_path / "none", sandbox="local")
    with pytest.raises(UserError, match=r"project: .*/file is not a folder"):
        checked_project(tmp_path / "file", sandbox="bubblewrap")


@pytest.mark.parametrize("named", ["/", "/proc", "/proc/self"])
def test_a_folder_that_shows_the_hosts_processes_is_refused(named: str) -> None:
    with pytest.raises(UserError, match="shows this machine's processes"):
        checked_project(named, sandbox="bubblewrap")
    assert checked_project("/", sandbox="local") == Path("/")


def test_only_outermost_folders_within_the_project_are_hidden(tmp_path: Path) -> None:
    project = tmp_path / "project"
    for name in ("data/run", "data 2", "plain"):
        (project / name).mkdir(parents=True)
    (project / "file").touch()
    (tmp_path / "way").symlink_to(project / "data 2")
    named = [
        project / "data/run",
        project / "data",
        tmp_path / "way",
        project,
        tmp_path,
        project / "file",
        project / "x",
    ]
    assert hidden_below(project, named) == ["data", "data 2"]
    shown = folders(tmp_path / "box", None, project, named)
    arguments = mounts(shown, SandboxLimits(), attached=False)
    at = arguments.index("/project/data")
    assert arguments[at - 2 : at + 1] == ["--ro-bind", str(tmp_path / "box" / "empty"), "/project/data"]
    assert arguments.index("/project") < at


def test_the_note_names_both_places() -> None:
    note = project_note("/home/person/code", sandbox="auto")
    assert note == project_note("/elsewhere", sandbox="bubblewrap")
    assert "/project" in note
    assert "/workspace" in note
    note = project_note("/home/person/code", sandbox="local")
    assert "/home/person/code" in note
    assert "$WORKSPACE" in note
