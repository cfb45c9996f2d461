"""Folders among the runs that are none, are damaged, or are closed: one line each, and the others are listed all the same."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import Ended, batch_words, one_line, run, write_prompts


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("unreadable")
    write_prompts(place / "prompts.jsonl", ["one"])
    assert run(*batch_words(place, executor="local", sandbox="local", run_name="good")).code == 0
    journal = (place / "good" / "run.db").read_bytes()
    for name in ("pipe", "folder", "link", "text", "cut", "newer", "facts", "state", "spec", "closed"):
        (place / name).mkdir()
    (place / "file").write_text("not a folder")
    (place / "nowhere").symlink_to("/nowhere")
    os.mkfifo(place / "pipe" / "run.db")
    (place / "folder" / "run.db").mkdir()
    (place / "link" / "run.db").symlink_to("run.db")
    (place / "text" / "run.db").write_text("nonsense " * 1000)
    (place / "cut" / "run.db").write_bytes(journal[:5000])
    changes = {
        "newer": "PRAGMA user_version = 999",
        "facts": "UPDATE meta SET value = '{'",
        "state": "UPDATE items SET state = 'wondering'",
        "spec": "UPDATE meta SET value = '{}' WHERE name = 'spec'",
    }
    for name, change in changes.items():
        (place / name / "run.db").write_bytes(journal)
        connection = sqlite3.connect(place / name / "run.db", isolation_level=None)
        connection.execute(change)
        connection.close()
    (place / "closed" / "run.db").write_bytes(journal)
    (place / "closed").chmod(0)
    yield place
    (place / "closed").chmod(0o700)


ONE_AFTER_THE_OTHER = """
import contextlib, io, json, sys
from manyhands.cli.main import main
ended = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    ended.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(ended))
"""


def performed(data: Path, *lines: list[str]) -> list[Ended]:
    """Command lines, by one process, as somebody for whom modes count, too: root without the rights to pass over them."""
    without_rights = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    words = json.dumps([[*words, f"--data_dir={data}"] for words in lines])
    all_of_them = run(words, program=[*without_rights, sys.executable, "-P", "-c", ONE_AFTER_THE_OTHER], seconds=60)
    assert (all_of_them.code, all_of_them.err) == (0, "")
    return [Ended(code, out, err, all_of_them.seconds) for code, out, err in json.loads(all_of_them.out)]


BAD = ("pipe", "folder", "link", "text", "cut", "newer", "facts", "closed")


def test_the_others_are_listed(data: Path) -> None:
    ended, listed = performed(data, ["runs", "--json"], ["jobs", "list"])
    assert (ended.code, ended.err) == (0, "")
    states = {row["run"]: row["state"] for row in json.loads(ended.out)}
    assert states["good"] == "finished"
    for name in BAD:
        assert states[name].startswith("unreadable: "), name
        assert str(data / name) in states[name]
    assert listed.code == 0
    assert "internal error" not in listed.err
    assert all(str(data / name) in listed.err for name in BAD)


@pytest.mark.parametrize("name", [*BAD, "state", "file", "nowhere", "absent"])
def test_each_gets_one_line(data: Path, name: str) -> None:
    lines = [["status", name], ["show", name], ["check", name], ["resume", name], ["jobs", "status", name]]
    for words, ended in zip(lines, performed(data, *lines), strict=True):
        assert "internal error" not in one_line(ended), words
        if words[0] != "jobs":
            assert ended.code in (1, 2), (words, ended)
            assert name in one_line(ended)


def test_a_run_without_its_settings(data: Path) -> None:
    lines = [["status", "spec"], ["show", "spec"], ["check", "spec"], ["resume", "spec"]]
    for words, ended in zip(lines, performed(data, *lines), strict=True):
        assert "internal error" not in ended.err, (words, ended)


def test_a_closed_data_folder(data: Path, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    for ended in performed(tmp_path / "closed", ["runs"], ["jobs", "list"], ["status", "r"]):
        assert ended.code in (1, 2)
        assert "internal error" not in one_line(ended)
        assert str(tmp_path / "closed") in one_line(ended)
    (tmp_path / "closed").chmod(0o700)
