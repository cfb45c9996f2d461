"""``manyhands batch FILE``: what is chosen where nothing is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyhands.cli.batch.short_form import run_name_for
from manyhands.testing.scripted_server import chat_response
from tests.support.batches import REASONED, BatchFolder, Ran, ServerThread, run_command

PLAIN = chat_response("Quick.")


@pytest.fixture
def folder(tmp_path: Path) -> BatchFolder:
    return BatchFolder(tmp_path, ["one", "two", "three"])


def batch(folder: BatchFolder, server: ServerThread, *words: str) -> Ran:
    where = (f"--base_url={server.base_url}", "--sandbox=local", "--executor=local", "--model=m")
    return run_command(folder.path, "batch", *words, *where)


def test_a_dataset_is_enough(folder: BatchFolder) -> None:
    with ServerThread() as server:
        ran = batch(folder, server, "d.jsonl")
        assert ran.code == 0, ran
        assert "Run d: d.jsonl, in batches of 100" in ran.out
        assert "model m, distribution terminal_only" in ran.out
        assert "Kept without" not in ran.out
        offered = {tool["function"]["name"] for tool in server.bodies[0]["tools"]}
        assert offered == {"terminal", "process", "read_file", "write_file", "patch", "search_files"}
    assert len(folder.lines(name="d")) == 3


def test_a_name_that_is_taken_gets_a_number_and_the_latest_is_resumed(folder: BatchFolder) -> None:
    with ServerThread() as server:
        batch(folder, server, "d.jsonl")
        refused = batch(folder, server, "d.jsonl", "--tools=nonsense")
        assert (refused.code, "is there already" in refused.err) == (2, False), "no run was made"
        second = batch(folder, server, "d.jsonl", "--max_samples=1", "--batch_size=7", "--quiet")
        assert second.err.startswith(
            "note: data/d is there already, so this run is called d-2; to continue the other:  "
        )
        assert len(server.requests) == 4
        resumed = batch(folder, server, "d.jsonl", "--resume", "--quiet=false")
        assert resumed.code == 0, resumed
        assert "Run d-2: d.jsonl, in batches of 7" in resumed.out
        assert len(server.requests) == 6
        named = batch(folder, server, "--run_name=d", "d.jsonl", "--resume")
        assert (named.code, len(server.requests)) == (0, 6)
        taken = batch(folder, server, "--run_name=d", "d.jsonl")
        assert taken.code == 2
        assert "continue it with --resume, or start another with --run_name=d-3" in taken.err
        fresh = batch(folder, server, "--run_name=new", "d.jsonl", "--resume")
        assert (fresh.code, "Run new:" in fresh.out) == (0, True)


def test_a_resume_is_of_the_same_dataset(tmp_path: Path) -> None:
    """Others may have the name that a run of it would have."""
    folder = BatchFolder(tmp_path)
    for name in ("a/p.jsonl", "b/p.jsonl", "p-2.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        folder.write_rows([name], name)
    (tmp_path / "p.jsonl").symlink_to("a/p.jsonl")
    with ServerThread() as server:
        for name in ("a/p.jsonl", "b/p.jsonl", "p-2.jsonl"):
            assert batch(folder, server, name).code == 0
        assert [folder.lines(name=name)[0]["conversations"][1]["value"] for name in ("p", "p-2", "p-2-2")] == [
            *("a/p.jsonl", "b/p.jsonl", "p-2.jsonl")
        ]
        for name, run in (("a/p.jsonl", "p"), ("p.jsonl", "p"), ("b/p.jsonl", "p-2"), ("p-2.jsonl", "p-2-2")):
            resumed = batch(folder, server, name, "--resume")
            assert (resumed.code, f"Run {run}: " in resumed.out, resumed.err) == (0, True, "")
        assert len(server.requests) == 3
        (tmp_path / "b").rename(tmp_path / "c")
        moved = batch(folder, server, "c/p.jsonl", "--resume")
        assert (moved.code, moved.out) == (2, "")
        assert "data/p-2 was made of b/p.jsonl, which is gone" in moved.err
        assert batch(folder, server, "c/p.jsonl", "--resume", "--run_name=p-2").code == 0
        assert len(server.requests) == 3
        (tmp_path / "data/q").mkdir()
        folder.write_rows(["new"], "q.jsonl")
        other = batch(folder, server, "q.jsonl", "--quiet")
        assert (other.code, "to continue" in other.err, len(folder.lines(name="q-2"))) == (0, False, 1)


def test_trajectories_without_reasoning_are_kept_and_counted(folder: BatchFolder) -> None:
    with ServerThread([REASONED, PLAIN, PLAIN]) as server:
        ran = batch(folder, server, "d.jsonl")
        assert ran.code == 0
        assert "Kept without any reasoning: 2 of the trajectories (--keep_unreasoned=false discards such)\n" in ran.out
        assert folder.json("statistics.json", name="d")["kept_without_reasoning"] == 2
    with ServerThread([PLAIN]) as server:
        discarded = batch(folder, server, "d.jsonl", "--keep_unreasoned=false")
        assert (discarded.code, len(folder.lines("failures.jsonl", name="d-2"))) == (1, 3)
        original = folder.batch(f"--base_url={server.base_url}")
        assert (original.code, len(folder.lines("failures.jsonl"))) == (1, 3)


def test_the_dataset_is_given_once(folder: BatchFolder, tmp_path: Path) -> None:
    ran = run_command(folder.path, "batch", "--dataset_file=d.jsonl", "other.jsonl")
    assert (ran.code, "unexpected 'other.jsonl'; --dataset_file is given already" in ran.err) == (2, True)
    missing = run_command(folder.path, "batch", "none.jsonl", "--model=simulated")
    assert (missing.code, missing.err) == (2, f"manyhands: error: dataset file not found: {tmp_path}/none.jsonl\n")
    assert not folder.run().parent.exists()


def test_the_command_alone_shows_the_short_form(tmp_path: Path) -> None:
    ran = run_command(tmp_path, "batch")
    assert (ran.code, ran.out) == (2, "")
    assert "manyhands batch prompts.jsonl --model NAME" in ran.err
    assert len(ran.err.splitlines()) < 12


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        ("d.jsonl", "d"),
        ("a/My prompts.v2.JSONL.gz", "My prompts.v2"),
        ("set", "set"),
        ("folder/", "folder"),
        (".jsonl", "jsonl"),
        ("-x.csv", "x"),
        ("\x1b[1m.csv", "_[1m"),
        ("\udcff.csv", "_"),
        (f"{'é' * 120}.csv", "é" * 100),
        ("/", "batch"),
    ],
)
def test_names_of_runs(dataset: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_name_for(dataset) == name


def test_a_folder_keeps_its_whole_name(tmp_path: Path) -> None:
    (tmp_path / "data.v1").mkdir()
    assert run_name_for(str(tmp_path / "data.v1")) == "data.v1"
