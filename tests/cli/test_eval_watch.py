"""``manyhands eval --watch``: a real process, files that change under it, and Ctrl-C."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.batches import run_command
from tests.support.commands import Command

SUITE = """\
targets: {t: {provider: mock, response: "yes"}}
tests:
  - {id: a, input: x, assert: [{type: contains, value: "WANTED"}]}
"""


def runs(folder: Path) -> list[str]:
    """What the test came to in each run that has ended, in order."""
    ended = sorted((folder / "data").glob("*/eval_summary.json"), key=lambda path: path.stat().st_mtime_ns)
    return [json.loads((path.parent / "results.jsonl").read_text())["status"] for path in ended]


@pytest.mark.slow
def test_every_change_is_a_run_until_ctrl_c(tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(SUITE.replace("WANTED", "yes"))
    with Command("eval", "suite.yaml", "--watch", folder=tmp_path) as command:
        assert command.wait_until(lambda: command.said.count("Ctrl-C ends it") == 1)
        assert runs(tmp_path) == ["passed"]
        suite.write_text(SUITE.replace("WANTED", "never"))
        assert command.wait_until(lambda: command.said.count("Ctrl-C ends it") == 2)
        assert runs(tmp_path) == ["passed", "failed"]
        suite.write_text(SUITE.replace("contains", "contians"))  # whoever is at work will mend it
        assert command.wait_until(lambda: command.said.count("Ctrl-C ends it") == 3)
        assert "did you mean contains" in command.said
        suite.unlink()  # as editors do, before the new file takes its place
        suite.write_text(SUITE.replace("WANTED", "not this"))
        assert command.wait_until(lambda: command.said.count("Ctrl-C ends it") == 4)
        assert command.said.count("suite.yaml has changed") == 3
        command.interrupt()
        ended = command.wait()
    assert ended.code == 1, ended.err
    assert "Traceback" not in ended.err
    assert runs(tmp_path) == ["passed", "failed", "failed"]


def test_watching_goes_with_no_run_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE)
    for words in (["--run_name=r"], ["--run_name=r", "--resume"]):
        refused = run_command(tmp_path, "eval", "suite.yaml", "--watch", *words)
        assert refused.code == 2
        assert "it can't be combined with --run_name or --resume" in refused.err
