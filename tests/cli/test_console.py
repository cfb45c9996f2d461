"""What a person is told to type, and lines that come while a bar is live."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from manyhands.cli.execution import details
from manyhands.cli.main import main
from manyhands.cli.plain import usage_text
from manyhands.core.usage import ZERO
from manyhands.runs.progress import Progress

SOURCE = Path(__file__).resolve().parents[2] / "src"
BAR = """
from manyhands.cli.console import notice
from manyhands.cli.execution import ProgressView

with ProgressView("run"):
    notice("something happened")
"""


def printed(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(SOURCE), **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_command_to_type_is_one_that_the_shell_finds(tmp_path: Path) -> None:
    code = "from manyhands.cli.console import program; print(program())"
    assert "python" in printed(code, PATH=str(tmp_path)) or printed(code, PATH=str(tmp_path)).endswith("/manyhands")
    script = tmp_path / "manyhands"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert printed(code, PATH=str(tmp_path)) == "manyhands"


def test_what_a_run_used_is_counted_in_singular_and_plural() -> None:
    one, many = ZERO.to_json(), ZERO.to_json()
    one |= {"calls": 1, "simulated_calls": 1}
    many |= {"calls": 1000, "unpriced_calls": 2}
    assert "1 call, 0 tokens" in usage_text(one, 0)
    assert "(1 call answered by" in usage_text(one, 0)
    assert "1,000 calls, 0 tokens" in usage_text(many, 0)
    assert "(the price of 2 calls is unknown" in usage_text(many, 0)


def test_help_for_resume_requires_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", "--help"]) == 0
    text = capsys.readouterr().out
    assert "(required)" not in text
    assert "--run_name" not in text
    assert "--max_cost" in text


def test_a_notice_does_not_run_into_a_live_bar() -> None:
    master, slave = pty.openpty()
    environment = {"PYTHONPATH": str(SOURCE), "TERM": "xterm-256color", "PATH": os.environ["PATH"]}
    process = subprocess.Popen([sys.executable, "-c", BAR], env=environment, stdout=slave, stderr=slave)
    os.close(slave)
    output = bytearray()
    while True:
        try:
            output += os.read(master, 4096)
        except OSError:  # the other side is closed
            break
    os.close(master)
    assert process.wait(10) == 0
    assert re.search(rb"\x1b\[2Knote: something happened", output), output


def test_items_that_are_graded_are_not_in_flight_any_more() -> None:
    progress = Progress({("running", ""): 3, ("pending", ""): 1}, ZERO, 3, 10.0, 0)
    assert details(progress, graded=2) == "2 graded, to end with their command, 1 in flight, 0.2/s"
    assert details(progress) == "3 in flight"
