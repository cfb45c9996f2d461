"""The ledger adds up at any moment, seen from anywhere; and a run is not held in memory."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.usage import Usage
from manyhands.engine.backlog import MAX_UNSETTLED
from manyhands.engine.contract import Context, Item
from manyhands.engine.journal.reader import JournalReader
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.execution import execute_run
from manyhands.runs.ledger import ledger, summarise
from manyhands.runs.making import Opened, create_run
from manyhands.runs.progress import Progress
from tests.support.engine_runs import ProgramWorkload, make_steps_run, perform_steps_run


def test_the_states_always_sum_to_the_items(tmp_path: Path) -> None:
    """Sampled from another connection, in another thread, while the run is executed."""
    folder, over, samples = tmp_path / "run", threading.Event(), list[dict[tuple[str, str], int]]()
    failures = {f"item-{number}": ["invalid_output"] * (number % 4) for number in range(0, 3000, 5)}
    spec = {"items": 3000, "steps": 1, "failures": failures, "execution": {"executor": "local", "concurrency": 50}}
    make_steps_run(folder, spec)

    def sample() -> None:
        reader = JournalReader(folder)
        while not over.is_set():
            samples.append(reader.counts())
            time.sleep(0.001)
        reader.close()

    thread = threading.Thread(target=sample)
    thread.start()
    result = perform_steps_run(folder, spec)
    over.set()
    thread.join()
    assert len(samples) > 20
    assert {sum(counts.values()) for counts in samples} == {3000}
    assert all(ledger(counts)["items"] == 3000 for counts in samples)
    assert any(0 < counts.get(("completed", ""), 0) < 3000 for counts in samples)
    counted = dict[str, Any](result.ledger)
    states = ("completed", "discarded", "failed", "cancelled", "pending")
    assert sum(counted[state] for state in states) == counted["items"] == 3000
    assert result.ledger["by_cause"] == {"failed": {"invalid_output": 300}}


async def test_progress_is_told_from_beginning_to_end(tmp_path: Path) -> None:
    told, ended = list[Progress](), list[tuple[Item, Outcome]]()

    async def program(context: Context) -> Outcome:
        return Outcome(ItemState.DISCARDED, reason="dull") if context.item.key == "3" else Outcome(ItemState.COMPLETED)

    workload = ProgramWorkload(program, [str(n) for n in range(10)])
    create_run(tmp_path / "run", "program", workload, version="test", notice=print)
    await execute_run(
        Opened(tmp_path / "run", workload),
        on_progress=told.append,
        on_outcome=lambda item, outcome: ended.append((item, outcome)),
    )
    assert (told[0].finished, told[-1].finished, told[-1].items) == (0, 10, 10)
    assert told[-1].counts[("discarded", "dull")] == 1
    assert len(ended) == 10
    assert {item.key for item, outcome in ended if outcome.reason == "dull"} == {"3"}


async def test_items_without_a_step_wait_for_their_commits_too(tmp_path: Path) -> None:
    """Nothing makes them wait otherwise: all ends would queue up, and nobody else would get a turn."""
    executed, settled, most = 0, 0, 0

    async def program(context: Context) -> Outcome:
        nonlocal executed, most
        executed += 1
        most = max(most, executed - settled)
        return Outcome(ItemState.COMPLETED)

    def end(item: Item, outcome: Outcome) -> None:
        nonlocal settled
        settled += 1

    workload = ProgramWorkload(program, [str(number) for number in range(3 * MAX_UNSETTLED)])
    create_run(tmp_path / "run", "program", workload, version="test", notice=print)
    result = await execute_run(Opened(tmp_path / "run", workload), on_outcome=end)
    assert result.ledger["completed"] == executed == settled == 3 * MAX_UNSETTLED
    assert most <= MAX_UNSETTLED + 1


def test_usage_and_time_add_up_over_sessions(tmp_path: Path) -> None:
    spec = {"items": 10, "steps": 3, "failures": {"item-4": ["model_refused"]}, "execution": {"executor": "local"}}
    first = perform_steps_run(tmp_path / "run", spec)
    second = perform_steps_run(tmp_path / "run", {**spec, "failures": {}})
    assert (first.summary["usage"]["calls"], second.summary["usage"]["calls"]) == (27, 30)
    assert second.summary["usage"]["total_tokens"] == 330
    assert second.summary["working_seconds"] >= first.summary["working_seconds"]
    reader = JournalReader(tmp_path / "run")
    assert reader.usage() == Usage(calls=30, input_tokens=300, output_tokens=30)
    last = summarise(reader)["last_session"]
    assert last is not None
    assert last["ending"] == "finished"
    reader.close()


MEASURE = """
import resource, sys
from pathlib import Path
from tests.support.engine_runs import perform_steps_run
spec = {"items": int(sys.argv[2]), "steps": 1, "execution": {"executor": "local", "concurrency": 100}, "batch": 1000}
assert perform_steps_run(Path(sys.argv[1]), spec).exit_code == 0
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_number_of_items(tmp_path: Path) -> None:
    def kilobytes(items: int) -> int:
        command = [sys.executable, "-c", MEASURE, str(tmp_path / str(items)), str(items)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)

    assert kilobytes(10_000) < kilobytes(500) + 12_000


def test_a_finished_run_of_many_items_is_opened_fast(tmp_path: Path) -> None:
    spec = {"items": 20_000, "steps": 0, "lines": False, "execution": {"executor": "local", "concurrency": 200}}
    workload = make_steps_run(tmp_path / "run", spec)
    run_on_loop(execute_run(Opened(tmp_path / "run", workload)))
    began = time.process_time()
    assert run_on_loop(execute_run(Opened(tmp_path / "run", workload))).done
    assert time.process_time() - began < 0.5
