"""Items that have ended are executed again on request: once, from nothing or from where they were, with one line in the output."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.clock import SystemClock
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import PlannedItem
from manyhands.engine.journal.reader import JournalReader
from manyhands.engine.journal.store import REWRITE, Store
from manyhands.engine.outputs import repair
from manyhands.runs.steering.client import give_order
from manyhands.runs.steering.selection import Selection, chosen, has_ended
from manyhands.testing.steps_workload import StepsWorkload
from tests.support.engine_runs import perform_steps_run, start_steps_run
from tests.support.steered_runs import EXECUTORS

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
    perform_steps_run(folder, spec(log, items=["a", "b", "left", "c"], failures={"b": ["model_refused"]}))
    perform_steps_run(folder, spec(log, items=["a", "c", "d"]))  # b is cancelled as removed
    with opened(folder) as store:
        before = store.reader.counts()
        assert store.reopen_items([2, 3, 99], "for a test") == []
        assert store.reader.counts() == before
        assert [store.reader.earlier_outcomes(3), store.reader.attempts(3)] == [[], []]
        meant = chosen(store.reader, Selection.parse(["state=completed"]), has_ended)
        assert (meant.numbers, meant.of, meant.others) == ([1, 4, 5], 3, 0)
        assert store.reopen_items([1], "for a test") == [1]
        assert store.reopen_items([1], "it is pending already") == []
        row = store.reader.item("1")
        assert row is not None
        assert (row.state, row.attempt) == ("pending", 2)


def test_a_file_that_is_lost_before_it_is_written_again_loses_no_line(tmp_path: Path) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"
    perform_steps_run(folder, spec(log))
    with opened(folder) as store:
        store.reopen_items(list(range(1, 31)), "for a test")
        (folder / "part_1.jsonl").unlink()
    result = perform_steps_run(folder, spec(log))
    assert result.ledger["completed"] == 30
    assert (set(keys_in(folder).values()), len(keys_in(folder))) == ({1}, 30)


@pytest.mark.parametrize("execution", EXECUTORS, ids=lambda each: each["executor"])
async def test_what_was_ordered_twice_is_executed_once_also_after_a_kill(
    tmp_path: Path, execution: dict[str, Any]
) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"
    run = spec(log, items=12, steps=1, delay=0.3, execution=execution)
    child = start_steps_run(folder, run)
    async with asyncio.timeout(30):
        while not log.exists() or len(log.read_text().split()) < 5:
            await asyncio.sleep(0.02)
    await give_order(folder, "set", changes={"pause": True})
    await asyncio.sleep(0.6)  # what was in flight ends
    again = [number for number, key in ((1, "item-0/0"), (2, "item-1/0")) if key in log.read_text().split()]
    answers = [(await give_order(folder, "retry", numbers=numbers, fresh=False))[0] for numbers in (again, again * 2)]
    assert [answer["items"] for answer in answers] == [2, 0]
    child.kill()
    child.communicate(timeout=20)
    result = await asyncio.to_thread(perform_steps_run, folder, run)
    assert (result.ledger["completed"], result.ledger["items"]) == (12, 12)
    times = Counter(log.read_text().split())
    assert {key: count for key, count in times.items() if count != 1} == {"item-0/0": 2, "item-1/0": 2}
    assert (set(keys_in(folder).values()), len(keys_in(folder))) == ({1}, 12)
    with opened(folder) as store:
        assert [len(store.reader.earlier_outcomes(number)) for number in (1, 2, 3)] == [1, 1, 0]


async def test_many_items_are_reopened_by_one_commit(tmp_path: Path) -> None:
    """A kill leaves none of them half reopened."""
    with opened(tmp_path) as store:
        ended = Outcome(ItemState.COMPLETED)
        store.plan((PlannedItem(str(number), None, ended) for number in range(10_000)), 1)
        store.begin()
        await store.writer.committed()
        before = store.writer.commits
        await store.reopen(range(1, 300_000), "for a test")
        assert store.writer.commits == before + 1
        assert store.reader.counts() == {("pending", ""): 10_000}
        assert await store.reopen([1, 2], "they are pending already") == []
        assert [len(store.reader.earlier_outcomes(number)) for number in (1, 10_000)] == [1, 1]
        await store.end("finished")


def test_an_edited_item_leaves_the_output_until_it_has_ended_again(tmp_path: Path) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"
    perform_steps_run(folder, spec(log, items=["a", "b"]))
    payloads = [{"position": position} for position in range(2)]
    with opened(folder) as store:
        edited = [PlannedItem("a", payloads[0], afresh="edited"), PlannedItem("b", payloads[1])]
        store.replan(edited, StepsWorkload(spec(log, items=["a", "b"]), folder).input_identity() or "")
        assert store.reader.meta(REWRITE) is True
        workload = StepsWorkload(spec(log, items=["a", "b"]), folder)
        assert repair(store, workload, print) == 1
        assert keys_in(folder) == Counter(["b"])
    perform_steps_run(folder, spec(log, items=["a", "b"]))
    assert keys_in(folder) == Counter(["a", "b"])
