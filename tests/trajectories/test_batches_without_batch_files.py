"""Batches whose lines are on disk once: ``--batch_files=false``."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.support.batches import BatchFolder, ServerThread, without_times
from tests.support.commands import Command


def test_a_killed_batch_has_all_lines_in_the_end(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, [f"prompt {number}" for number in range(12)])
    with ServerThread() as server:
        words = ("--dataset_file=d.jsonl", "--batch_size=2", "--run_name=r", "--distribution=terminal_only", "--quiet")
        more = (f"--base_url={server.base_url}", "--sandbox=local", "--batch_files=false", "--num_workers=1")
        with Command("batch", *words, *more, folder=tmp_path) as running:
            assert running.wait_until(lambda: len(server.bodies) > 3)
            running.interrupt(signal.SIGKILL)
            running.wait()
        calls = len(server.bodies)
        assert folder.batch("--resume", f"--base_url={server.base_url}", "--batch_files=false").code == 0
        assert len(server.bodies) <= 12 + 1, f"{calls} before the kill"
        assert folder.batch(f"--base_url={server.base_url}", "--run_name=usual").code == 0
    assert [without_times(line) for line in folder.lines()] == [
        without_times(line) for line in folder.lines(name="usual")
    ]
    assert not [*folder.run().glob("batch_*.jsonl")]


def test_a_run_keeps_its_choice(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path)
    with ServerThread() as server:
        url = f"--base_url={server.base_url}"
        assert folder.batch(url).code == 0
        refused = folder.batch(url, "--resume", "--batch_files=false", "--override=batch_files")
        assert refused.code == 2
        assert "a run keeps --batch_files; start another with --run_name=r-2" in refused.err
        assert len(server.bodies) == 3
