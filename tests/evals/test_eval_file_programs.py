"""Eval files that are programs: what they leave behind, and what they write, holds nobody up."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from manyhands.core.errors import UserError
from manyhands.workloads.evals.evalfile.sources.scripts import read_script

BUN = f"""#!{sys.executable}
import pathlib, subprocess, sys
child = subprocess.Popen(["sh", "-c", "while :; do echo noise >&2; done"], start_new_session=True)
pathlib.Path("child").write_text(str(child.pid))
sys.exit(3)
"""


def test_what_it_leaves_behind_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin/bun"
    program.parent.mkdir()
    program.write_text(BUN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    (tmp_path / "a.eval.ts").write_text("")
    began = time.monotonic()
    try:
        with pytest.raises(UserError, match="ended with exit code 3"):
            read_script(tmp_path / "a.eval.ts", "a.eval.ts")
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    assert time.monotonic() - began < 30
