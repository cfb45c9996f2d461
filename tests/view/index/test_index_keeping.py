"""An index follows its run: while it goes on, when items are executed again, removed or planned anew, whatever is killed."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.index_run import made
from manyhands.core.clock import SystemClock
from manyhands.core.digests import digest
from manyhands.core.jsonio import dumps
from manyhands.core.usage import Usage
from manyhands.engine.journal.reader import JOURNAL, JournalReader, run_id_of
from manyhands.engine.journal.records import StepRow, pack
from manyhands.engine.journal.store import Store
from manyhands.processes.interpreters import module_path
from manyhands.view.index.building import Keeper, Outdated, build
from manyhands.view.index.database import (
    BUILDING,
    COMPLETE,
    LOCK,
    NoIndex,
    locked,
    make_folder,
    make_room,
    size_of,
    stem_of,
    with_suffix,
)
from manyhands.view.index.filters import Filters
from manyhands.view.index.gathering import MAX_JSON
from manyhands.view.index.process import IndexProcess, keep_up
from manyhands.view.index.queries import RunIndex, progress_of
from tests.support.engine_runs import perform_steps_run, start_steps_run
from tests.support.scanned import check

MUCH = 1 << 30
LOCAL = {"executor": "local", "workers": 1, "concurrency": 5}


@pytest.fixture
def index_dir(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "indexes"


def spec(folder: Path, **more: Any) -> dict[str, Any]:
    return {"items": 30, "steps": 2, "log": str(folder.parent / "log"), "execution": LOCAL, **more}


def stem(folder: Path, index_dir: Path) -> Path:
    return stem_of(folder, run_id_of(folder), index_dir)


def ended(process: IndexProcess, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while process.is_going_on:
        assert time.monotonic() < until, "the process does not end"
        time.sleep(0.02)


def built(folder: Path, index_dir: Path) -> Path:
    """The stem of an index that was just made."""
    make_folder(index_dir)
    with closing(JournalReader(folder)) as reader:
        build(reader, stem(folder, index_dir), lambda: None)
    return stem(folder, index_dir)


def test_a_run_of_steps_is_indexed(tmp_path: Path, index_dir: Path) -> None:
    folder = tmp_path / "run"
    failures = {"item-3": ["tool_error"] * 9, "item-4": ["tool_error"]}
    perform_steps_run(folder, spec(folder, failures=failures))
    keep_up(folder, index_dir, MUCH)
    check(folder, index_dir)
    assert oct(index_dir.stat().st_mode)[-3:] == "700"
    assert {oct(path.stat().st_mode)[-3:] for path in index_dir.iterdir()} == {"600"}
    index = RunIndex.open(folder, run_id_of(folder), index_dir)
    assert index is not None
    with closing(index):
        assert sum(point.failures for point in index.series().points) >= 2
        assert index.page(Filters(text="asked fail", states=("failed",))).numbers == [4]


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_it_is_right_while_a_run_goes_on_and_when_it_has_ended(tmp_path: Path, index_dir: Path, executor: str) -> None:
    folder = tmp_path / "run"
    failures = {f"item-{number}": ["tool_error"] for number in range(0, 200, 7)} | {"item-5": ["tool_error"] * 9}
    execution = {"executor": executor, "workers": 2, "concurrency": 5}
    running = start_steps_run(
        folder, spec(folder, items=200, steps=3, delay=0.05, failures=failures, execution=execution)
    )
    until = time.monotonic() + 30
    while not (folder / JOURNAL).exists() or not (folder / "part_0.jsonl").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    process = IndexProcess.start(folder, index_dir)
    seen = set()
    while running.poll() is None:
        if (progress := progress_of(folder, run_id_of(folder), index_dir)) is not None:
            seen.add(progress.is_complete)
        time.sleep(0.05)
    running.communicate()
    ended(process)
    assert process.problem is None
    assert True in seen
    check(folder, index_dir)


def test_items_that_change_without_a_step_are_found(tmp_path: Path, index_dir: Path) -> None:
    folder = tmp_path / "run"
    perform_steps_run(folder, spec(folder))
    path = built(folder, index_dir)
    with closing(JournalReader(folder)) as reader, closing(Keeper(reader, path)) as keeper:
        assert keeper.look() == 0
        with closing(sqlite3.connect(folder / JOURNAL)) as other:
            other.execute("UPDATE items SET state = 'cancelled', cause = 'cancelled' WHERE number IN (3, 9)")
            other.execute("UPDATE items SET state = 'failed', cause = 'timeout', message = 'too slow' WHERE number = 5")
            other.commit()
        assert keeper.look() == 3
        keeper.look()
        assert keeper.look() == 0
    check(folder, index_dir)


def test_items_executed_again_are_right(tmp_path: Path, index_dir: Path) -> None:
    folder = tmp_path / "run"
    perform_steps_run(folder, spec(folder))
    keep_up(folder, index_dir, MUCH)
    inode = with_suffix(stem(folder, index_dir), COMPLETE).stat().st_ino
    with closing(Store(folder, SystemClock(), print)) as store:
        store.reopen_items([3, 25], "for a test")
    index = RunIndex.open(folder, run_id_of(folder), index_dir)
    assert index is not None
    with closing(index), closing(JournalReader(folder)) as reader:
        assert index.is_behind(reader)
        keep_up(folder, index_dir, MUCH)
        assert not index.is_behind(reader)
    check(folder, index_dir)
    perform_steps_run(folder, spec(folder))
    keep_up(folder, index_dir, MUCH)
    check(folder, index_dir)
    assert with_suffix(stem(folder, index_dir), COMPLETE).stat().st_ino == inode
    index = RunIndex.open(folder, run_id_of(folder), index_dir)
    assert index is not None
    with closing(index):
        assert index.page(Filters(retried=True)).numbers == [3, 25]


def test_items_planned_anew_and_removed_are_right(tmp_path: Path, index_dir: Path) -> None:
    folder = tmp_path / "run"
    perform_steps_run(folder, spec(folder, items=[f"item-{number}" for number in range(20)]))
    keep_up(folder, index_dir, MUCH)
    names = [f"item-{number}" for number in range(25) if number % 5]
    perform_steps_run(folder, spec(folder, items=names[::-1], failures={"item-21": ["tool_error"] * 9}))
    keep_up(folder, index_dir, MUCH)
    check(folder, index_dir)


@pytest.mark.parametrize("fact", ["run_id", "spec", "generation"])
def test_an_index_of_something_else_is_made_again(tmp_path: Path, index_dir: Path, fact: str) -> None:
    folder = tmp_path / "run"
    made({"folder": str(folder), "items": 200})
    path = built(folder, index_dir)
    with closing(sqlite3.connect(folder / JOURNAL)) as other:
        other.execute("UPDATE meta SET value = '4711' WHERE name = ?", (fact,))
        other.commit()
    with closing(JournalReader(folder)) as reader, pytest.raises(Outdated):
        Keeper(reader, path)
    keep_up(folder, index_dir, MUCH)
    check(folder, index_dir)


def test_a_journal_that_went_back_in_time_is_noticed(tmp_path: Path, index_dir: Path) -> None:
    folder = tmp_path / "run"
    perform_steps_run(folder, spec(folder))
    before = (folder / JOURNAL).read_bytes()
    with closing(Store(folder, SystemClock(), print)) as store:
        store.reopen_items([3, 25], "for a test")
    perform_steps_run(folder, spec(folder))
    path = built(folder, index_dir)
    (folder / JOURNAL).write_bytes(before)
    with closing(JournalReader(folder)) as reader, pytest.raises(Outdated):
        Keeper(reader, path)
    keep_up(folder, index_dir, MUCH)
    check(folder, index_dir)


def test_other_steps_under_the_same_numbers_are_noticed(tmp_path: Path, index_dir: Path) -> None:
    folder = tmp_path / "run"
    made({"folder": str(folder), "items": 200})
    path = built(folder, index_dir)
    with closing(sqlite3.connect(folder / JOURNAL)) as other:
        other.execute("UPDATE steps SET finished_at = finished_at + 1")
        other.commit()
    with closing(JournalReader(folder)) as reader, pytest.raises(Outdated):
        Keeper(reader, path)


@pytest.mark.parametrize("damage", ["head", "middle", "cut", "empty"])
def test_a_damaged_index_is_made_again(tmp_path: Path, index_dir: Path, damage: str) -> None:
    folder = tmp_path / "run"
    made({"folder": str(folder), "items": 2_000})
    path = with_suffix(built(folder, index_dir), COMPLETE)
    data = bytearray(path.read_bytes())
    if damage == "head":
        data[:100] = b"x" * 100
    elif damage == "middle":
        for start in range(8192, len(data), 4096):
            data[start : start + 300] = b"\xff" * 300
    else:
        del data[len(data) // 2 if damage == "cut" else 0 :]
    path.write_bytes(data)
    index = RunIndex.open(folder, run_id_of(folder), index_dir)
    if index is not None:
        with closing(index), pytest.raises(NoIndex):
            index.facets(Filters(sort="cost", states=("completed",), text="answered"))
    keep_up(folder, index_dir, MUCH)
    check(folder, index_dir)


@pytest.mark.slow
def test_a_builder_that_is_killed_leaves_nothing_wrong(tmp_path: Path, index_dir: Path) -> None:
    folder, chosen = tmp_path / "run", random.Random(5)
    made({"folder": str(folder), "items": 3_000})
    with closing(JournalReader(folder)) as reader:
        run_id = str(reader.meta("run_id"))
    began = time.monotonic()
    ended(IndexProcess.start(folder, index_dir))
    takes, complete = time.monotonic() - began, False
    shutil.rmtree(index_dir)
    for number in range(12):
        process = IndexProcess.start(folder, index_dir)
        time.sleep(chosen.uniform(0.3, 1.3) * takes)
        process._process.kill()
        ended(process)
        if (index := RunIndex.open(folder, run_id, index_dir)) is not None:
            complete = True
            with closing(index):
                assert index.count(Filters()).items == 3_000
        if number == 6:
            shutil.rmtree(index_dir)
    assert complete
    keep_up(folder, index_dir, MUCH)
    check(folder, index_dir)
    assert not with_suffix(stem(folder, index_dir), BUILDING).exists()


def test_a_keeper_that_is_killed_counts_nothing_twice(tmp_path: Path, index_dir: Path) -> None:
    folder, chosen = tmp_path / "run", random.Random(6)
    running = start_steps_run(folder, spec(folder, items=250, steps=4, delay=0.05))
    until = time.monotonic() + 30
    while not (folder / "part_0.jsonl").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    while running.poll() is None:
        process = IndexProcess.start(folder, index_dir)
        time.sleep(chosen.uniform(0.3, 1.5))
        process._process.kill()
        ended(process)
    running.communicate()
    keep_up(folder, index_dir, MUCH)
    check(folder, index_dir)


def test_it_ends_with_the_process_that_started_it(tmp_path: Path, index_dir: Path) -> None:
    folder = tmp_path / "run"
    running = start_steps_run(folder, spec(folder, items=5_000, steps=2, delay=0.05))
    try:
        until = time.monotonic() + 30
        while not (folder / "part_0.jsonl").exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        process = IndexProcess.start(folder, index_dir)
        time.sleep(1.5)
        assert process.is_going_on
        assert process._process.stdin is not None
        process._process.stdin.close()  # as the kernel does when the process that started it is killed
        ended(process, 5.0)
        process = IndexProcess.start(folder, index_dir)
        time.sleep(0.5)
        process.stop()
        assert not process.is_going_on
        assert process.problem is None
        process.stop()
    finally:
        running.kill()
        running.communicate()


def test_one_process_at_a_time_writes_an_index(tmp_path: Path, index_dir: Path) -> None:
    folder = tmp_path / "run"
    made({"folder": str(folder), "items": 500})
    make_folder(index_dir)
    with locked(stem(folder, index_dir)) as mine:
        assert mine
        process = IndexProcess.start(folder, index_dir)
        time.sleep(1.5)
        assert process.is_going_on
        assert progress_of(folder, run_id_of(folder), index_dir) is None
    ended(process)
    check(folder, index_dir)


def test_the_journal_is_not_changed(tmp_path: Path, index_dir: Path) -> None:
    folder = tmp_path / "run"
    perform_steps_run(folder, spec(folder))
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    keep_up(folder, index_dir, MUCH)
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert {name: after[name] for name in before} == before
    assert {name for name in after.keys() - before.keys() if after[name]} <= {f"{JOURNAL}-shm"}


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    made({"folder": str(folder), "items": 50})
    (tmp_path / "file").write_text("")
    process = IndexProcess.start(folder, tmp_path / "file" / "indexes")
    ended(process)
    assert process.problem is not None
    assert "can't be made" in process.problem
    assert RunIndex.open(folder, run_id_of(folder), tmp_path / "file" / "indexes") is None
    assert progress_of(folder, run_id_of(folder), tmp_path / "file" / "indexes") is None


def test_a_full_disk_is_one_line(tmp_path: Path, index_dir: Path) -> None:
    folder = tmp_path / "run"
    made({"folder": str(folder), "items": 5_000})
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000)); "
        "from manyhands.view.index.process import main; sys.exit(main())"
    )
    words = [sys.executable, "-c", program, str(folder), f"--index_dir={index_dir}"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.wait(60) == 3
        assert process.stderr is not None
        error = process.stderr.read()
    assert "can't be written" in error
    assert error.count("\n") == 1
    assert size_of(stem(folder, index_dir)) == 0
    assert RunIndex.open(folder, run_id_of(folder), index_dir) is None


def test_an_index_larger_than_all_may_be_is_not_kept(tmp_path: Path, index_dir: Path) -> None:
    folder = tmp_path / "run"
    made({"folder": str(folder), "items": 2_000})
    process = IndexProcess.start(folder, index_dir, 0.0001)
    ended(process)
    assert process.problem is not None
    assert "larger than" in process.problem
    assert size_of(stem(folder, index_dir)) == 0


def test_the_longest_unused_indexes_are_removed(tmp_path: Path, index_dir: Path) -> None:
    stems = []
    for number in range(4):
        folder = tmp_path / f"run{number}"
        made({"folder": str(folder), "items": 300})
        keep_up(folder, index_dir, MUCH)
        stems.append(stem(folder, index_dir))
        time.sleep(0.02)
    index = RunIndex.open(tmp_path / "run0", run_id_of(tmp_path / "run0"), index_dir)
    assert index is not None
    index.close()
    with locked(stems[1]) as mine:
        assert mine
        make_room(stems[3], sum(map(size_of, stems)) - 1)
        assert [size_of(each) > 0 for each in stems] == [True, True, False, True]
    make_room(stems[3], size_of(stems[3]))
    assert [size_of(each) > 0 for each in stems] == [False, False, False, True]
    assert [with_suffix(each, LOCK).exists() for each in stems] == [False, False, False, True]


def test_a_renamed_run_keeps_its_index_and_a_copy_has_its_own(tmp_path: Path, index_dir: Path) -> None:
    folder = tmp_path / "run"
    made({"folder": str(folder), "items": 50})
    path = built(folder, index_dir)
    folder.rename(tmp_path / "moved")
    assert stem(tmp_path / "moved", index_dir) == path
    shutil.copytree(tmp_path / "moved", tmp_path / "copy")
    assert stem(tmp_path / "copy", index_dir) != path


def test_a_hostile_run_id_names_a_file_of_the_folder(tmp_path: Path, index_dir: Path) -> None:
    folder = tmp_path / "run"
    made({"folder": str(folder), "items": 1})
    for run_id in ("../../etc/passwd", "", ".", "a/b", "x" * 500, "\udc80", "\0"):
        found = stem_of(folder, run_id, index_dir)
        assert found.parent == index_dir
        assert len(found.name) < 120
        assert found.name.isascii()


def test_a_damaged_item_breaks_its_own_row_only(tmp_path: Path, index_dir: Path) -> None:
    folder = tmp_path / "run"
    made({"folder": str(folder), "items": 300})
    with closing(sqlite3.connect(folder / JOURNAL)) as other:
        other.execute("UPDATE items SET payload = x'00' WHERE number = 7")
        other.execute("UPDATE items SET payload = ? WHERE number = 8", (pack(["not", "what", "a", "batch", "writes"]),))
        other.execute(
            "UPDATE steps SET usage = x'7a00' , request = x'00', output = x'6a' WHERE item IN (9, 10, 11, 12, 13)"
        )
        other.commit()
    built(folder, index_dir)
    index = RunIndex.open(folder, run_id_of(folder), index_dir)
    assert index is not None
    with closing(index):
        assert index.count(Filters()).items == 300
        assert len(index.items([7, 8, 9])) == 3


def letters(megabytes: int) -> bytes:
    """A blob of the journal: a JSON text of nothing but one letter."""
    packer = zlib.compressobj(9)
    parts = [b"z", packer.compress(b'"'), *(packer.compress(b"a" * (1 << 20)) for _ in range(megabytes))]
    return b"".join([*parts, packer.compress(b'"'), packer.flush()])


def test_a_few_bytes_do_not_become_very_many(tmp_path: Path, index_dir: Path) -> None:
    folder, alone, together = tmp_path / "run", letters(400), letters(10)
    made({"folder": str(folder), "items": 300})
    with closing(sqlite3.connect(folder / JOURNAL)) as other:
        other.execute("UPDATE items SET record = ? WHERE number BETWEEN 41 AND 80", (together,))
        other.execute("UPDATE items SET record = ?1, payload = ?1 WHERE number = 100", (alone,))
        other.execute("UPDATE steps SET request = ?1, output = ?1, usage = ?1 WHERE item = 110", (alone,))
        other.commit()
    assert (folder / JOURNAL).stat().st_size < 5 << 20
    words = [sys.executable, "-m", "manyhands.view.index", str(folder), f"--index_dir={index_dir}"]
    bounded = ["sh", "-c", 'ulimit -v 400000 && exec "$@"', "sh", *words]
    process = subprocess.Popen(bounded, stdin=subprocess.PIPE, env=os.environ | {"PYTHONPATH": module_path()})
    with process:
        assert process.wait(60) == 0
    index = RunIndex.open(folder, run_id_of(folder), index_dir)
    assert index is not None
    with closing(index):
        assert index.count(Filters()).items == 300
        assert [len(index.items([number])) for number in (40, 41, 80, 81, 100, 101, 110, 300)] == [1] * 8


def test_an_item_that_is_large_lacks_its_texts_alone(tmp_path: Path, index_dir: Path) -> None:
    folder, large = tmp_path / "run", b"j" + dumps({"prompt": "x" * MAX_JSON})
    made({"folder": str(folder), "items": 6})
    with closing(JournalReader(folder)) as reader:
        asked = {row.number: str(row.payload["prompt"]) for row in reader.items()}
    figures = "SELECT number, seconds IS NOT NULL, tokens, turns FROM item ORDER BY number"
    with closing(sqlite3.connect(with_suffix(built(folder, index_dir), COMPLETE))) as found:
        expected = found.execute(figures).fetchall()
    with closing(sqlite3.connect(folder / JOURNAL)) as other:
        other.execute("UPDATE items SET payload = ? WHERE number IN (1, 4, 6)", (large,))
        other.commit()
    with closing(sqlite3.connect(with_suffix(built(folder, index_dir), COMPLETE))) as found:
        assert found.execute(figures).fetchall() == expected
    index = RunIndex.open(folder, run_id_of(folder), index_dir)
    assert index is not None
    with closing(index):
        found_by = {number: number in index.page(Filters(text=text)).numbers for number, text in asked.items()}
    assert found_by == {1: False, 2: True, 3: True, 4: False, 5: True, 6: False}


def test_tools_and_turns_of_the_latest_attempt_count(tmp_path: Path, index_dir: Path) -> None:
    folder = tmp_path / "run"
    made({"folder": str(folder), "items": 3})
    call = {"index": 0, "name": "t\u00f6\udc80ol", "arguments": {}}
    with closing(sqlite3.connect(folder / JOURNAL)) as other:
        (attempt,) = other.execute("SELECT attempt FROM items WHERE number = 2").fetchone()
        other.execute("DELETE FROM steps WHERE item = 2")
        for kind, seq, request, output in (
            ("model", 0, {"added": []}, {"message": {"role": "assistant", "content": "Eins zwei drei"}}),
            ("tool", 1, {"turn": "/0", "call": call}, {"content": {"failed": True}}),
            ("tool", 2, {"turn": "/0", "call": call}, {"content": '"failed":true', "failed": True}),
            (
                "tools",
                3,
                {"turn": "/0", "calls": [call, call]},
                {"results": [{"content": "x" * 5000, "failed": True}, {"content": ""}]},
            ),
        ):
            for each in (attempt, attempt + 1):
                usage = Usage(calls=1, input_tokens=10, output_tokens=5, cost=0.25)
                row = StepRow(
                    2,
                    each,
                    "",
                    seq,
                    kind,
                    digest(kind, request),
                    pack(request),
                    pack(output),
                    usage,
                    seq * 2.0,
                    seq * 2.0 + 3,
                )
                columns = (
                    "item, attempt, scope, seq, kind, digest, request, output, usage, started_at, finished_at, account"
                )
                other.execute(f"INSERT INTO steps ({columns}) VALUES ({', '.join('?' * 12)})", row.columns())
        other.execute(
            "UPDATE items SET attempt = attempt + 1, state = 'completed', reason = NULL, cause = NULL WHERE number = 2"
        )
        (seconds,) = other.execute("SELECT finished_at - started_at FROM items WHERE number = 2").fetchone()
        other.commit()
    built(folder, index_dir)
    index = RunIndex.open(folder, run_id_of(folder), index_dir)
    assert index is not None
    with closing(index):
        item = index.items([2])[2]
        assert (item.turns, item.tools, item.tool_failures, item.tokens, item.tokens_out, item.cost) == (
            1,
            4,
            2,
            120,
            40,
            2.0,
        )
        assert item.seconds == pytest.approx(seconds)
        assert list(item.calls.values()) == [(4, 2)]
        assert index.page(Filters(text="zwei drei")).numbers == [2]
        assert index.page(Filters(failed_tools=tuple(item.calls))).numbers == [2]
