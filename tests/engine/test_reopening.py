"""Items that have ended are executed again on request: once, from nothing or from where they were, with one line in the output."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from manyhands.core.clock import SystemClock
from manyhands.engine.journal.reader import JournalReader
from manyhands.engine.journal.store import REWRITE, Store
from tests.support.engine_runs import perform_steps_run

LOCAL = {"executor": "local", "workers": 1, "concurrency": 5}


@contextmanager
def opened(folder: Path) -> Iterator[Store]:
    with closing(Store(folder, SystemClock(), lambda text: None)) as store:
        yield store


def spec(log: Path, **more: Any) -> dict[str, Any]:
    return {"items": 30, "steps": 2, "batch": 10, "log": str(log), "execution": LOCAL, **more}


def keys_in(folder: Path) -> Counter[str]:
    texts = (path.read_text() for path in folder.glob("part_*.jsonl"))
    return Counter(json.loads(line)["key"] for text in texts for line in text.splitlines())


def test_completed_items_start_from_nothing_and_have_one_line(tmp_path: Path) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"
    perform_steps_run(folder, spec(log))
    untouched = (folder / "part_1.jsonl").stat()
    with opened(folder) as store:
        store.reopen_items([3, 25], "for a test")
        assert store.reader.meta(REWRITE) == ["part_0.jsonl", "part_2.jsonl"]
    log.write_text("")
    result = perform_steps_run(folder, spec(log))
    assert (result.ledger["items"], result.ledger["completed"], result.ledger["pending"]) == (30, 30, 0)
    assert Counter(log.read_text().split()) == Counter(["item-2/0", "item-2/1", "item-24/0", "item-24/1"])
    assert set(keys_in(folder).values()) == {1}
    assert len(keys_in(folder)) == 30
    assert (folder / "part_1.jsonl").stat().st_ino == untouched.st_ino
    assert not (folder / "set_aside").exists()
    with closing(JournalReader(folder)) as reader:
        row = reader.item("3")
        assert row is not None
        assert row.attempt == 2
        assert [step.output for step in reader.steps(3, 1)] == [step.output for step in reader.steps(3, 2)]
        assert [given_up.reason for given_up in reader.attempts(3)] == ["for a test"]
        (before,) = reader.earlier_outcomes(3)
        assert (before.attempt, before.state, before.record) == (1, "completed", {"total": 1})
        assert reader.usage().calls == 64


def test_failed_items_go_on_from_their_recorded_steps_unless_told_otherwise(tmp_path: Path) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"
    failures = {"item-1": ["model_refused"], "item-2": ["model_refused"], "item-3": ["invalid_output"] * 2}
    perform_steps_run(folder, spec(log, items=5, failures=failures))
    with opened(folder) as store:
        store.reopen_items([2, 4], "for a test")
        store.reopen_items([3], "for a test", fresh=True)
        attempts = [row.attempt for row in store.reader.items()]
        assert attempts == [1, 1, 2, 3, 1]
        assert [len(store.reader.earlier_outcomes(number)) for number in range(1, 6)] == [0, 1, 1, 1, 0]
    result = perform_steps_run(folder, spec(log, items=5))
    assert result.ledger["completed"] == 5
    assert set(keys_in(folder).values()) == {1}


def test_what_left_the_input_or_has_not_ended_stays(tmp_path: Path) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"
    perform_steps_run(folder, spec(log, items=["a", "b", "c"], failures={"b": ["model_refused"]}))
    perform_steps_run(folder, spec(log, items=["a", "c", "d"]))  # b is cancelled as removed
    with opened(folder) as store:
        before = store.reader.counts()
        store.reopen_items([2, 99], "for a test")
        assert store.reader.counts() == before
        store.reopen_items([1], "for a test")
        store.reopen_items([1], "it is pending already")
        row = store.reader.item("1")
        assert row is not None
        assert (row.state, row.attempt) == ("pending", 2)


def test_a_kill_before_the_output_is_written_again_loses_no_line(tmp_path: Path) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"
    perform_steps_run(folder, spec(log))
    with opened(folder) as store:
        store.reopen_items(list(range(1, 31)), "for a test")
        (folder / "part_1.jsonl").unlink()
    result = perform_steps_run(folder, spec(log))
    assert result.ledger["completed"] == 30
    assert (set(keys_in(folder).values()), len(keys_in(folder))) == ({1}, 30)
