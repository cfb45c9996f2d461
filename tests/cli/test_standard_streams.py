"""``-`` as standard input and output of jobs and batches: real processes with real pipes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryFile

import openpyxl
import pytest

from tests.support.commands import environment
from tests.support.forked import ForkedProcess
from tests.support.job_folders import FUNCTION, JobFolder

BATCH = ("--batch_size=5", "--run_name=r", "--model=simulated", "--distribution=terminal_only", "--keep_unreasoned")


def piped(folder: Path, content: bytes, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command with that on its standard input."""
    given, give = os.pipe()
    with TemporaryFile() as out, TemporaryFile() as err:
        with os.fdopen(give, "wb") as pipe, os.fdopen(given, "rb") as read:
            process = ForkedProcess(words, folder, environment(), out.fileno(), err.fileno(), read.fileno())
            pipe.write(content)
        try:
            code = process.wait(100)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(words, code, out.read(), err.read())


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    return JobFolder(tmp_path, ("not read",))


def spawn(folder: JobFolder, content: bytes, *words: str) -> subprocess.CompletedProcess[bytes]:
    options = ("--instruction={text}", FUNCTION, "--job_name=j", *words)
    return piped(folder.path, content, "jobs", "spawn", "-", *options)


def exported(folder: JobFolder, *words: str) -> bytes:
    done = piped(folder.path, b"", "jobs", "export", "j", "--output=-", *words)
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith(b"rows\n")
    return done.stdout


def kept(run: Path, pattern: str) -> bytes:
    """The only file that a run keeps."""
    (file,) = (run / "settings").iterdir()
    assert file.match(pattern)
    return file.read_bytes()


def test_a_job_reads_and_writes_standard_streams(folder: JobFolder) -> None:
    with folder:
        done = spawn(folder, b"name;text\na;one\nb;two\n")
        assert done.returncode == 0, done.stderr
        assert b"2 rows of standard input" in done.stdout
        assert kept(folder.path / "data/j", "table-????????.csv") == b"name;text\na;one\nb;two\n"
        assert len([*folder.path.glob("agent_job_output.agent-job-*.csv")]) == 1
        lines = exported(folder).decode().splitlines()
        assert [line.split(";")[:2] for line in lines] == [["name", "text"], ["a", "one"], ["b", "two"]]
        rows = [json.loads(line) for line in exported(folder, "--format=jsonl").splitlines()]
        assert [row["text"] for row in rows] == ["one", "two"]
        sheet = openpyxl.load_workbook(io.BytesIO(exported(folder, "--format=xlsx", "--flatten"))).active
        assert [row[1].value for row in sheet] == ["text", "one", "two"]
        refused = piped(folder.path, b"", "jobs", "export", "j", "--output=-", "--json")
        assert (refused.returncode, refused.stdout) == (2, b"")


def test_the_results_of_a_tsv_have_tabs_on_standard_output_too(folder: JobFolder) -> None:
    with folder:
        assert spawn(folder, b"name,text\na,one\nb,two\n", "--output_csv_path=out.tsv").returncode == 0
        assert exported(folder) == (folder.path / "out.tsv").read_bytes()
        assert exported(folder).startswith(b"name\ttext\tjob_id\t")
        assert exported(folder, "--format=jsonl").startswith(b'{"name":"a"')


def test_a_table_of_standard_input_is_kept_for_a_resume(folder: JobFolder) -> None:
    with folder:
        content = "\n".join(json.dumps({"name": name, "text": "fail"}) for name in "ab").encode()
        assert spawn(folder, content, "--max_attempts=1").returncode == 1
        assert kept(folder.path / "data/j", "table-????????.jsonl") == content
        (folder.path / "mended").touch()
        assert folder.jobs("run", "j", "--retry_failed").code == 0
        assert exported(folder, "--format=jsonl").count(b'"status":"completed"') == 2


def test_one_job_does_not_take_the_table_of_another(folder: JobFolder) -> None:
    """Of two with a name, the one that is read longer comes too late."""
    with folder:
        words = ("jobs", "spawn", "-", "--instruction={text}", FUNCTION, "--job_name=j")
        command = [sys.executable, "-m", "manyhands", *words]
        slow = subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder.path, env=environment()
        )
        assert slow.stdin is not None
        slow.stdin.write(b"name,text\n" + b"slow,slow\n" * 9000)
        latest = time.monotonic() + 60
        while not (folder.path / "data/j/settings").exists():
            assert time.monotonic() < latest
            time.sleep(0.02)
        assert spawn(folder, b"name,text\na,one\n").returncode == 0
        _, said = slow.communicate(timeout=100)
        assert (slow.returncode, b"there is a run here already" in said) == (2, True), said
        assert kept(folder.path / "data/j", "table-*.csv") == b"name,text\na,one\n"


def test_a_job_that_can_not_be_leaves_nothing(folder: JobFolder) -> None:
    with folder:
        for content, words, said in (
            (b"", (), "standard input is empty"),
            (b"a\n1\n", (), "{text} names no column"),
            (b"name,text\na,b\n", ("--output_csv_path=-",), "manyhands jobs export JOB --output=-"),
            (b'[{"text": 1}]', (), "write one JSON object a line"),
        ):
            done = spawn(folder, content, *words)
            assert (done.returncode, done.stdout) == (2, b""), done
            assert said in done.stderr.decode()
            assert not (folder.path / "data/j").exists()
        planned = spawn(folder, b"name,text\na,b\n", "--dry_run=1")
        assert (planned.returncode, b"1 rows" in planned.stdout) == (0, True)
        assert not (folder.path / "data/j").exists()


@pytest.mark.parametrize(
    ("content", "name", "prompts"),
    [
        (b'{"prompt": "say hi"}\n{"prompt": "say ho"}\n', "dataset-????????.jsonl", 2),
        (b"prompt;n\nsay hi;1\n", "dataset-????????.csv", 1),
        (b'[{"prompt": "say hi"}]', "dataset-????????.json", 1),
    ],
)
def test_a_batch_reads_standard_input(tmp_path: Path, content: bytes, name: str, prompts: int) -> None:
    done = piped(tmp_path, content, "batch", "--dataset_file=-", *BATCH)
    assert done.returncode == 0, done.stderr
    assert kept(tmp_path / "data/r", name) == content
    assert len((tmp_path / "data/r/trajectories.jsonl").read_text().splitlines()) == prompts
    again = piped(tmp_path, b"not read", "batch", "--dataset_file=-", *BATCH, "--resume")
    assert again.returncode == 0, again.stderr
    assert len((tmp_path / "data/r/trajectories.jsonl").read_text().splitlines()) == prompts


def test_a_batch_of_nothing_leaves_nothing(tmp_path: Path) -> None:
    done = piped(tmp_path, b"", "batch", "--dataset_file=-", *BATCH)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"standard input is empty" in done.stderr
    assert not (tmp_path / "data/r").exists()
