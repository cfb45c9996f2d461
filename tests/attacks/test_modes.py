"""What stays on the host of what an agent made: for its owner's eyes alone, and without rights of its own."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from pathlib import Path

import pytest

from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from manyhands.sandboxes.files.removing import SET_IDS, drop_set_ids
from manyhands.sandboxes.local import LocalBackend
from manyhands.sandboxes.protocol import SandboxBackend, SandboxRequest
from manyhands.testing.scripted_server import RecordedRequest, chat_response
from manyhands.workloads.evals.workspaces.templates import copy_tree
from tests.support.batches import REASONED, BatchFolder, ServerThread

SET_ID_FILES = """\
cp /bin/sh shell; chmod 6755 shell; mkdir -p a/b; cp /bin/sh a/b/shell; chmod 4711 a/b/shell; chmod 2777 a; mkdir closed
cp /bin/sh closed/shell; chmod 6755 closed/shell; ln shell other; chmod 0 closed; ln -s /bin/sh link; echo made
"""


@pytest.fixture(params=[BubblewrapBackend, LocalBackend])
def backend(request: pytest.FixtureRequest) -> SandboxBackend:
    made: SandboxBackend = request.param()
    return made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def with_set_ids(folder: Path) -> list[Path]:
    return [path for path in (folder, *folder.rglob("*")) if path.lstat().st_mode & SET_IDS and not path.is_symlink()]


async def test_no_set_id_bits_are_left_by_a_sandbox(backend: SandboxBackend, tmp_path: Path) -> None:
    sandbox = await backend.create(SandboxRequest(tmp_path / "box", "modes"))
    try:
        await sandbox.shell(SET_ID_FILES, timeout=20)
        await sandbox.begin_step("main/1")
        assert not with_set_ids(tmp_path / "box" / "checkpoint"), "a copy would have our rights"
    finally:
        await sandbox.close()
    closed = tmp_path / "box" / "workspace" / "closed"
    assert mode(closed) == 0
    closed.chmod(0o700)
    assert not with_set_ids(tmp_path / "box")
    assert mode(closed / "shell") == 0o755
    assert (tmp_path / "box" / "workspace" / "shell").stat().st_nlink == 2
    assert mode(tmp_path / "box") == 0o700


async def test_a_sandbox_in_a_folder_for_everybody_is_taken_away_from_them(
    backend: SandboxBackend, tmp_path: Path
) -> None:
    (tmp_path / "box").mkdir()
    (tmp_path / "box").chmod(0o777)
    sandbox = await backend.create(SandboxRequest(tmp_path / "box", "modes"))
    await sandbox.close()
    assert mode(tmp_path / "box") == 0o700


def test_files_that_also_belong_elsewhere_keep_their_bits(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "program").write_text("of the host")
    (tmp_path / "program").chmod(0o4755)
    os.link(tmp_path / "program", tmp_path / "tree" / "one")
    os.link(tmp_path / "program", tmp_path / "tree" / "two")
    (tmp_path / "tree" / "link").symlink_to("../program")
    (tmp_path / "tree" / "own").write_text("of the tree")
    (tmp_path / "tree" / "own").chmod(0o4755)
    assert drop_set_ids(tmp_path / "tree")
    assert mode(tmp_path / "program") == 0o4755
    assert mode(tmp_path / "tree" / "own") == 0o755
    assert drop_set_ids(tmp_path / "nowhere") is True


def test_a_walk_over_very_much_ends_in_time(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / str(number)).touch()
    assert not drop_set_ids(tmp_path, seconds=0)


def test_templates_lose_set_id_bits_and_folders_of_runs(tmp_path: Path) -> None:
    (tmp_path / "template" / "inner").mkdir(parents=True)
    (tmp_path / "template" / "inner" / "program").touch()
    (tmp_path / "template" / "inner" / "program").chmod(0o6755)
    (tmp_path / "template" / "inner").chmod(0o2755)
    make_run(tmp_path / "template" / "data" / "r")
    copy_tree(tmp_path / "template", tmp_path / "copy")
    assert not with_set_ids(tmp_path / "copy")
    assert mode(tmp_path / "copy" / "inner" / "program") == 0o755
    assert not (tmp_path / "copy" / "data" / "r").exists()


def test_the_workspaces_of_a_run_are_private_also_those_of_an_older_version(tmp_path: Path) -> None:
    batch = BatchFolder(tmp_path, ["one"])

    def reply(request: RecordedRequest) -> object:
        if request.body["messages"][-1]["role"] == "tool":
            return REASONED
        call = {"name": "terminal", "arguments": json.dumps({"command": "cp /bin/sh s; chmod 4755 s; chmod 777 ."})}
        calls = [{"id": "c", "type": "function", "function": call}]
        return chat_response(None, reasoning="So.", tool_calls=calls)

    with ServerThread(reply) as server:  # type: ignore[arg-type]
        words = ["--keep_workspaces", f"--base_url={server.base_url}", "--api_key=k", "--model=m"]
        assert batch.batch(*words).code == 0
        workspaces = batch.run() / "workspaces"
        assert mode(workspaces) == 0o700
        (kept,) = workspaces.iterdir()
        assert mode(kept) == 0o700
        assert mode(kept / "workspace" / "s") == 0o755
        assert mode(batch.run() / "trajectories.jsonl") & stat.S_IRUSR
        workspaces.chmod(0o755)
        assert batch.batch(*words, "--resume").code == 0
        assert mode(workspaces) == 0o700


# --- What a project shows


def make_run(folder: Path) -> None:
    folder.mkdir(parents=True)
    with sqlite3.connect(folder / "run.db") as journal:
        journal.execute("CREATE TABLE secret (value TEXT)")
    (folder / "trajectories.jsonl").write_text("secret")


async def test_agents_of_a_project_see_no_data_folder_in_it(tmp_path: Path) -> None:
    project = tmp_path / "project"
    for run in ("data/r", "data/r2", "experiments/deep/er/old run", "mixed/r", "at the top", "data/r/jobs/1-1/inner"):
        make_run(project / run)
    (project / "mixed" / "program.py").write_text("of the project")
    (project / "plain").mkdir()
    (project / "plain" / "run.db").write_text("no journal of ours")
    (project / "way").symlink_to("mixed/r")
    request = SandboxRequest(
        project / "data" / "r" / "workspaces" / "1-1", "modes", project=project, hidden=(project / "data" / "r",)
    )
    sandbox = await BubblewrapBackend().create(request)
    try:
        make_run(project / "data" / "made later")
        found = await sandbox.shell("cd /project; grep -rl . . 2>/dev/null | sort", timeout=20)
        assert found.output.decode().split() == ["./mixed/program.py", "./plain/run.db"]
        for place in ("data/r2/run.db", "way/run.db", "mixed/r/run.db", "at the top/trajectories.jsonl"):
            with pytest.raises(Exception, match=r"no such file|No such file|not"):
                await sandbox.read_file(f"/project/{place}")
    finally:
        await sandbox.close()
