"""The journal's files are removed, cut off, changed or replaced: one line says so, or the output is right; nothing comes twice."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from manyhands.core.errors import ManyhandsError, RunError
from manyhands.engine.journal.reader import JournalReader
from manyhands.engine.outputs import SET_ASIDE
from tests.support.commands import (
    Command,
    Ended,
    SimulatedProcess,
    batch_words,
    one_line,
    run,
    trajectories,
    write_prompts,
)
from tests.support.engine_runs import perform_steps_run, start_steps_run

ITEMS = 60
Files = dict[str, bytes]


def files_of(folder: Path) -> Files:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.suffix != ".db-shm"}


def put_back(folder: Path, files: Files) -> None:
    """Make the folder's files what they were, without making another folder or lock file of it."""
    for path in list(folder.iterdir()):
        if path.is_file() and path.name not in files:
            path.unlink()
        elif path.is_dir():
            for inner in path.iterdir():
                inner.unlink()
            path.rmdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    lock = folder / "run.lock"
    if lock.exists():  # perhaps another file than before, as if it had never been removed
        fields = lock.read_text().split()
        lock.write_text(f"{fields[0]} {lock.stat().st_ino:020d} {fields[2]}".ljust(63) + "\n")


class Killed:
    """A run that was killed in the middle, to be damaged again and again."""

    def __init__(self, place: Path) -> None:
        self.folder, self._log = place / "run", place / "log"
        execution = {"executor": "local", "concurrency": 3}
        self.spec = {
            "items": ITEMS,
            "steps": 2,
            "delay": 0.01,
            "log": str(self._log),
            "batch": 10,
            "execution": execution,
        }
        child = start_steps_run(self.folder, self.spec)
        self._until(20)
        self.older = files_of(self.folder)
        self._until(80)
        child.send_signal(signal.SIGKILL)
        child.communicate(timeout=20)
        self.files = files_of(self.folder)
        assert len(self.files["run.db-wal"]) > len(self.older["run.db-wal"]) > 0

    def _until(self, effects: int) -> None:
        end = time.monotonic() + 30
        while not self._log.exists() or self._log.read_text().count("\n") < effects:
            assert time.monotonic() < end
            time.sleep(0.005)

    def lines(self) -> Counter[str]:
        return Counter(line for path in self.folder.glob("part_*.jsonl") for line in path.read_text().splitlines())

    def effects(self) -> int:
        return self._log.read_text().count("\n")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    return Killed(tmp_path_factory.mktemp("killed"))


def flipped(data: bytes, place: int, size: int = 1) -> bytes:
    return data[:place] + bytes(byte ^ 0x55 for byte in data[place : place + size]) + data[place + size :]


DAMAGES: dict[str, Callable[[bytes, bytes], bytes | None]] = {
    "removed": lambda log, older: None,
    "emptied": lambda log, older: b"",
    "older": lambda log, older: older,
    "header cut": lambda log, older: log[:20],
    "cut at a half": lambda log, older: log[: len(log) // 2],
    "header changed": lambda log, older: flipped(log, 16),
    "changed in the middle": lambda log, older: flipped(log, len(log) // 2),
    "zeros in the middle": lambda log, older: log[: len(log) // 2] + bytes(4096) + log[len(log) // 2 + 4096 :],
    "random": lambda log, older: random.Random(1).randbytes(len(log)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_log_that_is_not_the_journals(killed: Killed, damage: str) -> None:
    put_back(killed.folder, killed.files)
    log = killed.folder / "run.db-wal"
    changed = DAMAGES[damage](killed.files["run.db-wal"], killed.older["run.db-wal"])
    if changed is None:
        log.unlink()
    else:
        log.write_bytes(changed)
    before = killed.effects()
    for _ in range(2):
        with pytest.raises(RunError, match=r"run\.db: the journal's last \d+ commits are missing") as caught:
            perform_steps_run(killed.folder, killed.spec)
        assert "\n" not in str(caught.value)
    assert killed.effects() == before
    old = killed.lines()
    (killed.folder / "run.lock").unlink()  # what the message says to go on
    result = perform_steps_run(killed.folder, killed.spec)
    assert result.ledger["completed"] == ITEMS
    assert killed.lines().total() == len(killed.lines()) == ITEMS
    kept = "".join(path.read_text() for path in (killed.folder / SET_ASIDE).iterdir())
    assert all(line in kept or line in killed.lines() for line in old)


def test_an_undamaged_log_is_taken_as_before(killed: Killed) -> None:
    put_back(killed.folder, killed.files)
    known = killed.lines()
    result = perform_steps_run(killed.folder, killed.spec)
    assert result.ledger["completed"] == ITEMS
    assert known.items() <= killed.lines().items()
    assert killed.lines().total() == len(killed.lines()) == ITEMS
    assert not (killed.folder / SET_ASIDE).exists()


def test_the_log_cut_at_many_places(killed: Killed) -> None:
    log = killed.files["run.db-wal"]
    random_places = random.Random(5)
    for place in [*(random_places.randrange(len(log)) for _ in range(20)), len(log) - 1]:
        put_back(killed.folder, killed.files)
        (killed.folder / "run.db-wal").write_bytes(log[:place])
        said = ""
        try:
            perform_steps_run(killed.folder, killed.spec)
        except RunError as error:
            said = str(error)
        assert "commits are missing" in said or killed.lines().total() == len(killed.lines()) == ITEMS


def test_a_log_beside_a_journal_that_was_closed(killed: Killed) -> None:
    put_back(killed.folder, killed.files)
    perform_steps_run(killed.folder, killed.spec)
    lines = killed.lines()
    (killed.folder / "run.db-wal").write_bytes(killed.older["run.db-wal"])
    with pytest.raises(RunError, match=r"run\.db-wal: not of this journal"):
        perform_steps_run(killed.folder, killed.spec)
    (killed.folder / "run.db-wal").unlink()
    assert perform_steps_run(killed.folder, killed.spec).ledger["completed"] == ITEMS
    assert killed.lines() == lines


def test_without_the_lock_file_no_line_comes_twice_either(killed: Killed) -> None:
    """As in runs of earlier versions: known by the lines that the journal does not account for."""
    put_back(killed.folder, killed.files)
    for name in ("run.db-wal", "run.lock"):
        (killed.folder / name).unlink()
    perform_steps_run(killed.folder, killed.spec)
    assert killed.lines().total() == len(killed.lines()) == ITEMS
    assert any((killed.folder / SET_ASIDE).iterdir())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a finished batch ``r``."""
    place = tmp_path_factory.mktemp("finished")
    write_prompts(place / "prompts.jsonl", (f"Question {number} [simulate: tools=1]" for number in range(8)))
    assert run(*batch_words(place, executor="local", sandbox="local")).code == 0
    return place


def said_one_line(ended: Ended, name: str) -> None:
    assert ended.code in (1, 2), ended
    assert "internal error" not in ended.err
    assert name in one_line(ended)


PARTS = [0, 1, *(pytest.param(part, marks=pytest.mark.slow) for part in (2, 3))]


@pytest.mark.parametrize("part", PARTS)
def test_a_damaged_journal_of_a_finished_run(finished: Path, part: int) -> None:
    """Bytes changed and the file cut off at many places; resumed, it is never taken for sound."""
    folder = finished / "r"
    files = files_of(folder)
    places = random.Random(part)
    try:
        for number in range(6):
            data = files["run.db"]
            place = places.randrange(len(data)) if number else (0, 16, 100, 24)[part]
            (folder / "run.db").write_bytes(data[:place] if number % 3 == 2 else flipped(data, place, 1 + number))
            said_one_line(run("resume", str(folder), "--quiet"), "run.db")
            for path in folder.iterdir():
                if path.name in files and path.name not in ("run.db", "run.lock"):
                    assert path.read_bytes() == files[path.name], path
    finally:
        put_back(folder, files)
    assert run("resume", str(folder), "--quiet").code == 0
    assert trajectories(folder) == 8


@pytest.mark.parametrize("part", PARTS)
def test_a_damaged_journal_is_looked_at(finished: Path, part: int) -> None:
    folder, places = finished / "r", random.Random(part)
    files = files_of(folder)
    good = {words: run(*words, "r", f"--data_dir={finished}").out for words in (("show",), ("status",), ("check",))}
    try:
        for number in range(4):
            data = files["run.db"]
            place = places.randrange(100, len(data))
            (folder / "run.db").write_bytes(data[:place] if number % 2 else flipped(data, place, 40))
            for words, was in good.items():
                ended = run(*words, "r", f"--data_dir={finished}")
                assert "internal error" not in ended.err
                assert "Traceback" not in ended.err + ended.out
                assert len(ended.errors) <= 1
                assert ended.code or ended.out or was == ended.out
            listed = run("runs", f"--data_dir={finished}", "--json")
            assert json.loads(listed.out)[0]["run"] == "r"
            assert "internal error" not in listed.err
    finally:
        put_back(folder, files)


def test_damaged_records(killed: Killed) -> None:
    """A changed byte in what is stored of an item is never read as something else."""
    put_back(killed.folder, killed.files)
    perform_steps_run(killed.folder, killed.spec)
    data = (killed.folder / "run.db").read_bytes()
    place = data.index(b'{"position":')
    (killed.folder / "run.db").write_bytes(flipped(data, place + 13))
    reader = JournalReader(killed.folder)
    with pytest.raises(ManyhandsError, match=r"item \d+: a record in run\.db is damaged"):
        list(reader.items())
    reader.close()
    with pytest.raises(RunError, match=r"run\.db: damaged, or changed"):
        perform_steps_run(killed.folder, killed.spec)


def test_a_changed_output_line_is_left_alone_and_a_missing_one_written_again(finished: Path) -> None:
    folder = finished / "r"
    files = files_of(folder)
    lines = files["batch_0.jsonl"].splitlines(keepends=True)
    edits = {
        "edited": b"".join([lines[0].replace(b"Question", b"Quextion"), *lines[1:]]),
        "removed": b"".join(lines[1:]),
        "doubled": b"".join([*lines, lines[0]]),
        "torn": files["batch_0.jsonl"][:-20],
        "no JSON": b"".join([*lines[:-1], b"[" * (len(lines[-1]) - 1) + b"\n"]),
        "no text": b"".join([*lines[:-1], b"\xff" * (len(lines[-1]) - 1) + b"\n"]),
        "huge": files["batch_0.jsonl"] + b"x" * 1_000_000 + b"\n",
    }
    try:
        for name, content in edits.items():
            (folder / "batch_0.jsonl").write_bytes(content)
            for words in (["resume", str(folder), "--quiet"], ["check", str(folder)], ["show", str(folder)]):
                ended = run(*words)
                assert "internal error" not in ended.err, (name, words, ended)
                assert len(ended.errors) <= 2, (name, words, ended)
            if name in ("removed", "doubled", "torn", "huge"):
                assert Counter((folder / "batch_0.jsonl").read_bytes().splitlines(True)) == Counter(lines), name
            put_back(folder, files)
    finally:
        put_back(folder, files)


def test_a_journal_that_is_no_plain_file(tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    os.mkfifo(tmp_path / "good" / "run.db")
    for words in (["resume", str(tmp_path / "good")], ["runs", f"--data_dir={tmp_path}"]):
        ended = run(*words, seconds=30)
        assert "internal error" not in ended.err


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_a_batch_whose_log_was_lost(tmp_path: Path, executor: str) -> None:
    """As a person meets it: one line, nothing paid; and what that line says to go on gives every prompt once."""
    write_prompts(tmp_path / "prompts.jsonl", (f"Question {number} [simulate: tools=0]" for number in range(40)))
    folder = tmp_path / "r"
    with SimulatedProcess(tmp_path, latency=0.05) as server:
        words = batch_words(tmp_path, base_url=server.base_url, executor=executor, num_workers=2, concurrency=2)
        with Command(*words) as command:
            assert command.wait_until(lambda: server.count() >= 24)
            command.kill()
        (folder / "run.db-wal").unlink()
        asked = server.count()
        for again in (["resume", str(folder), "--quiet"], [*words, "--resume"]):
            said_one_line(run(*again), "commits are missing")
        assert server.count() == asked
        (folder / "run.lock").unlink()
        resumed = run("resume", str(folder), "--quiet")
    assert resumed.code == 0
    assert "the journal does not know" in resumed.err
    prompts = [json.loads(line)["prompt_index"] for line in (folder / "trajectories.jsonl").read_text().splitlines()]
    assert sorted(prompts) == list(range(40))
    assert trajectories(folder) == 40
