"""``set``, ``retry`` and ``cancel`` from another terminal, on runs that are executed, were killed, or have ended."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from manyhands.engine.journal.reader import JournalReader
from tests.support.commands import Command, Ended, batch_words, ledger, run, write_prompts
from tests.support.job_folders import FUNCTION, JobFolder

PROMPTS = 30
FUNCTION_HERE = (FUNCTION, "--executor=local")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_prompts(tmp_path / "prompts.jsonl", [{"prompt": f"say {n}", "id": f"p{n}"} for n in range(1, PROMPTS + 1)])
    return tmp_path


def slow(folder: Path, **options: object) -> list[str]:
    usual = {"num_workers": 2, "simulated_latency": 0.3, "keep_unreasoned": True}
    return batch_words(folder, **{**usual, **options})


def status(folder: Path) -> dict[str, Any]:
    with closing(JournalReader(folder / "r")) as reader:
        states = Counter[str]()
        for (state, _), items in reader.counts().items():
            states[state] += items
        return {**states, "calls": reader.usage().calls, "seconds": reader.working_seconds()}


def has(folder: Path, state: str, items: int) -> bool:
    try:
        return bool(status(folder).get(state, 0) >= items)
    except Exception:  # noqa: BLE001 - it is just being made
        return False


def wait_for_file(path: Path) -> None:
    end = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.02)


def steer(folder: Path, command: str, *words: str, code: int = 0) -> str:
    ended = run(command, "r", *words, f"--data_dir={folder}")
    assert ended.code == code, ended.err
    return ended.out + ended.err


def written(folder: Path) -> Counter[str]:
    lines = (folder / "r" / "trajectories.jsonl").read_text().splitlines()
    return Counter(json.loads(line)["metadata"]["item"] for line in lines)


def recorded_options(folder: Path) -> dict[str, Any]:
    with closing(JournalReader(folder / "r")) as reader:
        options: dict[str, Any] = reader.meta("spec")["options"]
        return options


def test_a_batch_takes_orders_while_it_is_executed(folder: Path) -> None:
    with Command(*slow(folder)) as batch:
        assert batch.wait_until(lambda: has(folder, "completed", 2))
        began = time.monotonic()
        assert "r: max_concurrency 2 → 7" in steer(folder, "set", "--max_concurrency=7", "--max_total_tokens=9000000")
        assert batch.wait_until(lambda: has(folder, "running", 6), began + 3 - time.monotonic())
        assert "r: paused" in steer(folder, "set", "--pause")
        time.sleep(1.0)  # what was in flight ends
        before = status(folder)
        assert "r: paused (trajectories)" in steer(folder, "status")
        assert "r: cancelled 3 of 30 items" in steer(folder, "cancel", "--select=item=28-30")
        time.sleep(1.0)
        after = status(folder)
        assert batch.running
        assert (after["calls"], after["cancelled"]) == (before["calls"], 3)
        assert after["seconds"] - before["seconds"] < 0.5
        assert "r: max_concurrency 7 → 9, gone on" in steer(folder, "set", "--go_on", "--max_concurrency=9")
        ended = batch.wait()
    assert ended.code == 1  # items were cancelled
    assert "paused (by " in ended.err
    found = ledger(folder / "r")
    assert (found["completed"], found["cancelled"], found["pending"], found["items"]) == (27, 3, 0, 30)
    assert (set(written(folder).values()), len(written(folder))) == ({1}, 27)
    assert (recorded_options(folder)["max_concurrency"], recorded_options(folder)["max_total_tokens"]) == (9, 9_000_000)
    shown = steer(folder, "show", "--limit=1")
    assert "max_concurrency 2 → 7, max_total_tokens no limit → 9,000,000 (by " in shown
    assert "cancel 3 items (item=28-30) (by " in shown
    resumed = run("resume", str(folder / "r"))  # what a person cancelled stays cancelled
    assert resumed.code == 1
    assert ledger(folder / "r")["cancelled"] == 3


def test_a_run_that_is_killed_while_paused_goes_on_with_what_was_set(folder: Path) -> None:
    with Command(*slow(folder)) as batch:
        assert batch.wait_until(lambda: has(folder, "completed", 2))
        steer(folder, "set", "--max_concurrency=6", "--pause")
        time.sleep(1.5)
        seconds = status(folder)["seconds"]
        batch.kill()
    assert status(folder)["seconds"] == pytest.approx(seconds, abs=0.1)
    assert "r: interrupted (trajectories)" in steer(folder, "status")
    with Command("resume", str(folder / "r"), "--simulated_latency=0.1") as batch:
        assert batch.wait_until(lambda: has(folder, "running", 5))
        ended = batch.wait()
    assert "the last session was paused when it ended; this one is not" in ended.err
    assert (ended.code, ledger(folder / "r")["completed"]) == (0, PROMPTS)
    assert (set(written(folder).values()), len(written(folder))) == ({1}, PROMPTS)


def test_items_that_have_ended_are_executed_again_while_the_run_goes_on(folder: Path) -> None:
    with Command(*slow(folder)) as batch:
        assert batch.wait_until(lambda: has(folder, "completed", 3))
        with closing(JournalReader(folder / "r")) as reader:
            first = next(row for row in reader.items() if row.state == "completed")
        assert "r: retried 1 of 30 items" in steer(folder, "retry", f"--select=key={first.key}")
        steer(folder, "set", "--max_concurrency=20")
        ended = batch.wait()
    assert (ended.code, ledger(folder / "r")["completed"]) == (0, PROMPTS)
    assert (set(written(folder).values()), len(written(folder))) == ({1}, PROMPTS)
    lines = [json.loads(line) for line in (folder / "r/trajectories.jsonl").read_text().splitlines()]
    assert {line["metadata"]["item"]: line["metadata"]["attempt"] for line in lines}[first.key] == 2
    assert "attempt 1 had ended as completed; executed again" in steer(folder, "show", str(first.number))


def test_a_run_that_nobody_executes_is_changed_in_its_journal(folder: Path) -> None:
    assert run(*slow(folder, simulated_latency=0, num_workers=4)).code == 0
    files = {path.name: path.stat().st_ino for path in (folder / "r").glob("batch_*.jsonl")}
    (folder / "keys.txt").write_text("p3\n\n p14 \n")
    assert "would retry 3 of 30 items" in steer(
        folder, "retry", f"--select=@{folder / 'keys.txt'}", "--select=item=5", "--dry_run"
    )
    said = steer(folder, "retry", f"--select=@{folder / 'keys.txt'}", "--select=item=5")
    assert "r: retried 3 of 30 items" in said
    assert f"resume {folder / 'r'}" in said
    assert "would retry 0 of 30 items (1 of those selected has not ended)" in steer(
        folder, "retry", "--select=key=p3", "--dry_run"
    )
    assert "r: cancelled 1 of 30 items" in steer(folder, "cancel", "--select=key=p14", "--select=state=pending")
    assert "max_cost no limit → 2.5" in steer(folder, "set", "--max_cost=2.5", "--max_concurrency=3")
    assert "there is nothing to pause" in steer(folder, "set", "--pause", code=2)
    resumed = run("resume", str(folder / "r"))
    assert (resumed.code, "3 prompts each" in resumed.out) == (1, False)
    found = ledger(folder / "r")
    assert (found["completed"], found["cancelled"], found["items"]) == (29, 1, 30)
    assert (set(written(folder).values()), len(written(folder))) == ({1}, 29)
    assert recorded_options(folder)["max_cost"] == 2.5
    now = {path.name: path.stat().st_ino for path in (folder / "r").glob("batch_*.jsonl")}
    assert now["batch_2.jsonl"] == files["batch_2.jsonl"]
    assert "cancelled 1" in steer(folder, "status")
    assert "r: retried 1 of 30 items" in steer(folder, "retry", "--select=state=cancelled")
    assert run("resume", str(folder / "r")).code == 0
    assert len(written(folder)) == PROMPTS


def test_a_mistake_is_one_line_and_changes_nothing(folder: Path) -> None:
    assert run(*slow(folder, simulated_latency=0, max_samples=3)).code == 0
    for command, word, said in (
        ("retry", "--select=stat=failed", "is none of state=…, cause=…, key=…, item=… or @FILE; did you mean"),
        ("retry", "--select=state=faild", "no state is called 'faild'; did you mean"),
        ("retry", "--select=key=p77", "no item is called 'p77'"),
        ("retry", "--select=item=77", "no item 77; there are 3"),
        ("retry", "--select=item=3-1", "must be an item's number, or a range"),
        ("retry", "--select=cause=timeout", "no item with cause 'timeout'; no item has failed or was discarded"),
        ("retry", "--select=@nothing.txt", "no such file: nothing.txt"),
        ("cancel", "--dry_run", "say which items with --select"),
        ("set", "--max_cost=-1", "--max_cost must be more than 0"),
        ("set", "--max_concurrency=None", "--max_concurrency must be a whole number"),
        ("set", "--quiet", "unknown option --quiet"),
    ):
        printed = steer(folder, command, word, code=2)
        assert said in printed
        assert len(printed.splitlines()) == 1
    assert "nothing to change" in steer(folder, "set", code=2)
    with closing(JournalReader(folder / "r")) as reader:
        assert reader.orders(10) == []


def test_a_raised_budget_lets_the_run_go_on_and_a_lowered_one_stops_it(folder: Path) -> None:
    with Command(*slow(folder, max_seconds=600)) as batch:
        assert batch.wait_until(lambda: has(folder, "completed", 2))
        assert "max_seconds 600 → 1" in steer(folder, "set", "--max_seconds=1")
        ended = batch.wait(20)
    assert "stopped: the budget of 1 seconds of wall time is used up" in ended.err
    assert run("resume", str(folder / "r"), "--simulated_latency=0").code == 1  # the budget is recorded
    steer(folder, "set", "--max_seconds=None")
    assert run("resume", str(folder / "r"), "--simulated_latency=0").code == 0


def test_the_command_at_the_end_is_told_how_the_run_ended(folder: Path) -> None:
    told, environ = folder / "told.json", folder / "environ"
    command = f"cat > {told}; env > {environ}; echo seen; exit 7"
    words = slow(folder, simulated_latency=0, max_samples=3, on_end=command)
    ended = run(*words, environ={"MY_SECRET_TOKEN": "s3cr3t-s3cr3t-s3cr3t", "PLAIN": "plain"})
    assert ended.code == 0
    assert "--on_end: seen" in ended.err
    assert "ended with exit code 7" in ended.err
    found = json.loads(told.read_text())
    assert found["ledger"]["completed"] == 3
    assert (found["run"], found["folder"], found["exit_code"], found["stopped"]) == ("r", str(folder / "r"), 0, None)
    assert "PLAIN=plain" in environ.read_text()
    assert "s3cr3t" not in environ.read_text()
    os.remove(told)
    steer(folder, "retry", "--select=item=2")
    assert run("resume", str(folder / "r"), "--max_seconds=0.001").code == 1  # the command is recorded with the run
    found = json.loads(told.read_text())
    assert (found["ledger"]["pending"], found["exit_code"]) == (1, 1)
    assert "wall time is used up" in found["stopped"]


def test_the_command_at_the_end_ends_with_the_process_that_is_killed_meanwhile(folder: Path) -> None:
    words = slow(
        folder,
        simulated_latency=0,
        max_samples=1,
        on_end=f"echo $$ > {folder}/new; mv {folder}/new {folder}/pid; sleep 97 & sleep 97",
    )
    with Command(*words) as batch:
        wait_for_file(folder / "pid")
        process = Path("/proc", (folder / "pid").read_text().strip())
        time.sleep(0.2)
        assert process.exists()
        batch.kill()
    end = time.monotonic() + 10
    while process.exists():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_job_and_its_rows_are_steered(tmp_path: Path) -> None:
    with JobFolder(tmp_path, ["until go", "until go", "three", "fail", "five"]) as jobs:

        def steer_job(command: str, *words: str) -> Ended:
            return run(command, "j", *words, folder=tmp_path)

        def reached(**figures: int) -> None:
            end = time.monotonic() + 30
            while any(jobs.status()[name] != figure for name, figure in figures.items()):
                assert time.monotonic() < end, jobs.status()
                time.sleep(0.02)

        jobs.spawn(
            *FUNCTION_HERE,
            "--detach",
            "--max_attempts=1",
            "--max_concurrency=1",
            "--on_end=cat > told; mv told told.json",
        )
        reached(running_items=1)
        assert "max_concurrency 1 → 3" in steer_job("set", "--max_concurrency=3").out
        reached(running_items=2, completed_items=2, failed_items=1)
        assert steer_job("set", "--max_cost=3").code == 2  # what a function costs, nobody knows
        assert (
            "cancelled 0 of 5 items; 1 in flight end as cancelled, or complete"
            in steer_job("cancel", "--select=key=row-2", "--firm").out
        )
        reached(running_items=1, cancelled_items=1)
        assert steer_job("set", "--pause").out == "j: paused\n"
        (tmp_path / "mended").touch()
        assert "retried 1 of 5 items" in steer_job("retry", "--select=cause=worker_error").out
        time.sleep(0.3)
        assert jobs.status()["pending_items"] == 1
        assert steer_job("status").out.startswith("j: paused (csv_jobs)")
        (tmp_path / "go").touch()
        steer_job("set", "--go_on")
        assert jobs.jobs("wait", "j").code == 1
        assert [row["status"] for row in jobs.rows()] == [
            "completed",
            "cancelled",
            "completed",
            "completed",
            "completed",
        ]
        wait_for_file(tmp_path / "told.json")  # it is told once the job has ended
        told = json.loads((tmp_path / "told.json").read_text())
        assert (told["ledger"]["completed"], told["exit_code"], told["run"]) == (4, 1, "j")
        assert "retried 1 of 5 items" in steer_job("retry", "--select=key=row-2").out
        ended = jobs.jobs("run", "j", "--quiet")
        assert ended.code == 0, ended.err
        assert {row["status"] for row in jobs.rows()} == {"completed"}


def test_an_evaluation_takes_more_at_once_and_answers_again(tmp_path: Path) -> None:
    tests = "\n".join(
        f"  - {{id: t{n}, input: hello, assertions: [{{type: contains, value: hello}}]}}" for n in range(12)
    )
    target = 'targets: [{name: c, provider: cli, command: "sleep 0.4; cat {PROMPT_FILE}"}]'
    (tmp_path / "e.eval.yaml").write_text(f"{target}\ntests:\n{tests}\n")
    words = ("eval", str(tmp_path / "e.eval.yaml"), "--run_name=r", f"--data_dir={tmp_path}", "--workers=1", "--quiet")
    with Command(*words) as evaluation:
        assert evaluation.wait_until(lambda: has(tmp_path, "completed", 1))
        assert "r: max_concurrency 1 → 4" in steer(tmp_path, "set", "--max_concurrency=4")
        with closing(JournalReader(tmp_path / "r")) as reader:
            first = next(row for row in reader.items() if row.state == "completed")
        assert "retried 1 of 12 items" in steer(tmp_path, "retry", f"--select=item={first.number}")
        ended = evaluation.wait()
    assert ended.code == 0, ended.err + ended.out
    results = [json.loads(line) for line in (tmp_path / "r/results.jsonl").read_text().splitlines()]
    assert (len(results), {result["score"] for result in results}) == (12, {1})
    assert ledger(tmp_path / "r")["completed"] == 12
    with closing(JournalReader(tmp_path / "r")) as reader:
        assert reader.meta("spec")["options"]["workers"] == 4
        steps = [step for row in reader.items() for step in reader.steps(row.number, row.attempt)]
    at_once = [sum(other.started_at <= step.started_at < other.finished_at for other in steps) for step in steps]
    assert 3 <= max(at_once) <= 4
    steer(tmp_path, "retry", "--select=item=2-3")
    assert "cancelled 1 of 12 items" in steer(tmp_path, "cancel", "--select=item=2")
    assert run("resume", str(tmp_path / "r"), "--quiet").code == 3  # a cancelled test is an error
    assert run("resume", str(tmp_path / "r"), "--quiet", "--retry_errors").code == 0
    assert ledger(tmp_path / "r")["completed"] == 12
