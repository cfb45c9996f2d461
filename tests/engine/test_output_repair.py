"""Output files are made true to the journal at every opening, whatever happened to them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from manyhands.core.clock import SystemClock
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import Context
from manyhands.engine.journal.store import REWRITE, Store
from manyhands.engine.outputs import repair
from manyhands.runs.execution import execute_run
from manyhands.runs.making import Opened, create_run
from manyhands.testing.steps_workload import StepsWorkload
from tests.support.engine_runs import ProgramWorkload, perform_steps_run

SPEC = {"items": 50, "steps": 2, "batch": 20, "execution": {"executor": "local", "concurrency": 5}}


def lines(folder: Path) -> dict[str, list[str]]:
    return {path.name: path.read_text().splitlines(keepends=True) for path in sorted(folder.glob("*.jsonl"))}


def delete(path: Path) -> None:
    path.unlink()


def tear(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 7)


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def append_garbage(path: Path) -> None:
    with path.open("ab") as handle:
        handle.write(b'{"key": "item-1", "to')


def append_a_whole_line(path: Path) -> None:
    with path.open("ab") as handle:
        handle.write(b'{"key": "foreign"}\n')


def replace_by_a_shorter_one(path: Path) -> None:
    path.write_text('{"key": "foreign"}\n')


@pytest.mark.parametrize(
    "damage", [delete, tear, cut_in_half, empty, append_garbage, append_a_whole_line, replace_by_a_shorter_one]
)
def test_a_damaged_file_is_repaired_at_the_next_opening(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    folder = tmp_path / "run"
    perform_steps_run(folder, SPEC)
    before = lines(folder)
    assert sorted(map(len, before.values())) == [10, 20, 20]
    damage(folder / "part_1.jsonl")
    perform_steps_run(folder, SPEC)
    after = lines(folder)
    assert {name: sorted(found) for name, found in after.items()} == {name: sorted(n) for name, n in before.items()}
    assert after["part_0.jsonl"] == before["part_0.jsonl"]


def test_a_repaired_file_stays_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    perform_steps_run(folder, SPEC)
    tear(folder / "part_0.jsonl")
    perform_steps_run(folder, SPEC)
    repaired = lines(folder)
    perform_steps_run(folder, SPEC)
    assert lines(folder) == repaired


def test_a_rewriting_that_was_cut_short_is_done_again(tmp_path: Path) -> None:
    """The instant after the journal forgot its lines, and before the files were cut, must not double any line."""
    folder = tmp_path / "run"
    perform_steps_run(folder, SPEC)
    before = lines(folder)
    store = Store(folder, SystemClock(), print)
    store.set_meta(**{REWRITE: True})
    store._run("forget_all_outputs")
    store.close()
    perform_steps_run(folder, SPEC)
    assert {name: sorted(found) for name, found in lines(folder).items()} == {n: sorted(f) for n, f in before.items()}
    store = Store(folder, SystemClock(), print)
    assert store.reader.meta(REWRITE) is False
    store.close()


def test_rewriting_puts_lines_in_the_order_of_the_input(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    perform_steps_run(folder, SPEC)
    store = Store(folder, SystemClock(), print)
    assert repair(store, StepsWorkload(SPEC, folder), print, rebuild=True) == 50
    store.close()
    keys = [json.loads(line)["key"] for found in lines(folder).values() for line in found]
    assert keys == [f"item-{number}" for number in range(50)]


async def test_lines_with_text_that_utf8_can_not_hold_are_written(tmp_path: Path) -> None:
    async def program(context: Context) -> Outcome:
        return Outcome(ItemState.COMPLETED, line=("lines.jsonl", f"{context.item.key} \ud800 ü"))

    workload = ProgramWorkload(program, ["a", "b"])
    create_run(tmp_path / "run", "program", workload, version="test", notice=print)
    result = await execute_run(Opened(tmp_path / "run", workload))
    assert result.exit_code == 0
    assert sorted((tmp_path / "run" / "lines.jsonl").read_text().splitlines()) == ["a \ufffd ü", "b \ufffd ü"]


async def test_more_files_than_are_kept_open(tmp_path: Path) -> None:
    async def program(context: Context) -> Outcome:
        return Outcome(ItemState.COMPLETED, line=(f"{context.item.number % 100}.jsonl", context.item.key))

    workload = ProgramWorkload(program, [str(number) for number in range(300)])
    create_run(tmp_path / "run", "program", workload, version="test", notice=print)
    descriptors = len(os.listdir("/proc/self/fd"))
    await execute_run(Opened(tmp_path / "run", workload))
    assert [len(found) for found in lines(tmp_path / "run").values()] == [3] * 100
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2
