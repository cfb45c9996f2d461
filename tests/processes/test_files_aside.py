"""Files that are written aside: what dead processes left is removed, what a living one writes stays."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from manyhands.processes.strays import remove_asides


def aside(folder: Path, process: int, age: float = 0.0) -> Path:
    """A file that a process was writing in place of ``out.csv`` so many seconds ago."""
    path = folder / f".out.csv.3.{process}.new"
    path.write_text("half")
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_a_living_process_keeps_what_it_writes(tmp_path: Path) -> None:
    path = aside(tmp_path, os.getpid())
    remove_asides(tmp_path, "out.csv")
    remove_asides(tmp_path, "another.csv")
    assert path.exists()


def test_a_process_that_has_ended_is_gone_even_while_nobody_took_note(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as ended:
        assert ended.stdout is not None
        ended.stdout.read()
        end = time.monotonic() + 30
        while "Z" not in Path(f"/proc/{ended.pid}/stat").read_text().rpartition(")")[2][:3]:
            assert time.monotonic() < end
            time.sleep(0.01)
        path = aside(tmp_path, ended.pid)
        remove_asides(tmp_path, "out.csv")
        assert not path.exists()


def test_a_number_that_belongs_to_a_younger_process_now_keeps_nothing(tmp_path: Path) -> None:
    path = aside(tmp_path, os.getpid(), age=1e6)
    remove_asides(tmp_path)
    assert not path.exists()
