"""``manyhands jobs …`` as a person uses it: real processes, runners of their own, kills and Ctrl-C."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from manyhands.cli.jobs import COMMANDS
from manyhands.cli.main import main
from tests.support.batches import run_command
from tests.support.commands import Command, alive, environment, one_line, run
from tests.support.job_folders import FUNCTION, JobFolder

LOCAL = (FUNCTION, "--executor=local")
"""Rows are performed in the runner itself where worker processes, which take time to begin, make no difference."""
MISSING = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[JobFolder]:
    with JobFolder(tmp_path) as made:
        yield made


# --- Help and usage


def test_help_explains_every_subcommand(folder: JobFolder) -> None:
    for words in (["--help"], ["-h"], ["help"]):
        ended = folder.jobs(*words)
        assert ended.code == 0
        assert all(f"\n  {name} " in ended.out for name in COMMANDS)
    nothing = folder.jobs()
    assert (nothing.code, nothing.out) == (2, ended.out)
    assert "no command given; choose from spawn, run, " in one_line(nothing)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_subcommand_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"manyhands jobs {name}" in text
    assert "data_dir" in text
    assert main(["jobs", "help", name]) == 0
    assert capsys.readouterr().out == text
    assert main(["help", "jobs"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["spwan"], "unknown command 'spwan'; did you mean spawn? (see manyhands jobs --help)"),
        (["--detach"], "unknown option --detach before a command (see manyhands jobs --help)"),
        (["spawn"], "--csv_path is required (see manyhands jobs spawn --help)"),
        (["spawn", "rows.csv"], "instruction must be non-empty"),
        (["spawn", "rows.csv", "other.csv"], "unexpected 'other.csv'; options are written --name=value"),
        (["spawn", "rows.csv", "--instructions=x"], "unknown option --instructions; did you mean --instruction?"),
        (["spawn", "none.csv", "--instruction=x", FUNCTION], "none.csv"),
        (["spawn", "rows.csv", "--instruction=x {nope}", FUNCTION], "nope"),
        (["spawn", "rows.csv", "--instruction=x", "--id_column=nope", FUNCTION], "id_column nope was not found"),
        (["spawn", "rows.csv", "--instruction=x", "--dry_run=x"], "--dry_run must be a whole number"),
        (["run"], "--job is required (see manyhands jobs run --help)"),
        (["run", "nobody"], "agent job nobody not found"),
        (["run", "nobody", "--csv_path=x"], "--csv_path: it can't be changed after a job was created"),
        (["status"], "the following arguments are required: JOB"),
        (["status", "nobody"], "agent job nobody not found"),
        (["status", MISSING], f"agent job {MISSING} not found"),
        (["status", "nobody", "--watch"], "agent job nobody not found"),
        (["wait", "nobody"], "agent job nobody not found"),
        (["wait", "nobody", "--timeout_ms=0"], "--timeout_ms"),
        (["export", "nobody"], "agent job nobody not found"),
        (["export", "nobody", "--format=xls"], "--format"),
        (["cancel", "nobody"], "agent job nobody not found"),
        (["retry", "nobody"], "name the rows to retry"),
        (["retry", "nobody", "row-1", "--failed"], "name the rows to retry"),
        (["retry", "nobody", "--failed"], "agent job nobody not found"),
        (["show", "nobody"], "the following arguments are required: ITEM"),
        (["show", "nobody", "1"], "agent job nobody not found"),
        (["list", "more"], "unrecognized arguments: more"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(words: list[str], said: str, folder: JobFolder) -> None:
    ran = run_command(folder.path, "jobs", *words)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert said in ran.err
    assert not list((folder.path / "data").glob("*"))


# --- A whole job


def test_a_job_from_its_making_to_its_export(folder: JobFolder) -> None:
    ended = folder.spawn(FUNCTION, "--id_column=name")
    assert ended.code == 0, ended
    status = folder.status()
    assert re.match(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$", status["job_id"])
    for text in (
        f"Job {status['job_id']}: 3 rows of rows.csv\n",
        "folder data/j\n",
        "output out.csv\n",
        "continues if this terminal is closed",
        "jobs run data/j",
    ):
        assert text in ended.out
    assert re.search(r"completed +3 +reported a result\n", ended.out)
    assert re.search(r"in all +3 +=", ended.out)
    assert "To continue" not in ended.out
    assert ended.err.splitlines()[-1] == "j: 3 of 3 ended, 0 running"
    assert (status["status"], status["state"], status["original_status"]) == ("completed",) * 3
    assert (status["total_items"], status["completed_items"], status["runner_active"]) == (3, 3, False)
    assert [row["item_id"] for row in folder.rows()] == ["a", "b", "c"]
    assert folder.results() == [{"length": len(text), "text": text} for text in ("one", "two", "three")]


def test_a_job_is_found_by_id_beginning_name_and_folder(folder: JobFolder) -> None:
    folder.spawn(*LOCAL, "--job_name=my job")
    status = folder.status("my job")
    job_id = status["job_id"]
    for name in (job_id, job_id[:8], job_id[:20], "my job", "my-job", "data/my-job", f"{folder.path}/data/my-job"):
        for command in (["status"], ["wait"], ["show", "1"], ["export"], ["cancel"], ["retry", "1", "--detach"]):
            ran = run_command(folder.path, "jobs", command[0], name, *command[1:])
            assert ran.code == 0, (command, ran)
        assert json.loads(run_command(folder.path, "jobs", "status", name, "--json").out) == status
    assert run_command(folder.path, "jobs", "status", job_id[:7]).code == 2
    elsewhere = run("jobs", "status", job_id, f"--data_dir={folder.path}/data", "--json")
    assert json.loads(elsewhere.out) == status


def test_detached(folder: JobFolder) -> None:
    folder.write_rows(["until go", "two"])
    ended = folder.spawn(*LOCAL, "--detach")
    assert (ended.code, ended.err) == (0, "")
    status = folder.status()
    assert (status["status"], status["runner_active"]) == ("running", True)
    assert ended.out.splitlines()[0] == f"Job {status['job_id']}: 2 rows of rows.csv"
    commands = re.findall(r"  to .*?:  .*?(jobs .*)", ended.out)
    assert [words.split()[1] for words in commands] == ["status", "wait", "cancel"]
    with folder.begin("status", "j", "--watch", "--json") as watching, folder.begin("wait", "data/j") as waiting:
        timed_out = folder.jobs("wait", "j", "--timeout_ms=300")
        assert timed_out.code == 1
        assert "timed out" in one_line(timed_out)
        assert json.loads(folder.jobs("wait", "j", "--timeout_ms=300", "--json").out)["timed_out"] is True
        assert watching.running
        (folder.path / "go").touch()
        waited, watched = waiting.wait(), watching.wait()
    assert (waited.code, waited.err) == (0, "")
    assert "j: completed (job " in waited.out
    lines = [json.loads(line) for line in watched.out.splitlines()]
    assert (watched.code, lines[0]["status"], lines[-1]["status"]) == (0, "running", "completed")
    assert lines[-1] == folder.status()
    finished = folder.jobs("wait", "j", "--timeout_ms=1", "--json")
    assert (finished.code, json.loads(finished.out)["timed_out"]) == (0, False)
    assert folder.jobs("status", "j", "--watch").out.startswith("j: completed, 2 of 2 ended, 0 running")


def test_failed_rows_and_their_retry(folder: JobFolder) -> None:
    folder.write_rows(["one", "fail 1", "fail 2"])
    ended = folder.spawn(*LOCAL, "--max_attempts=1")
    assert ended.code == 1
    assert re.search(r"failed +2 +worker_error 2\n", ended.out)
    assert re.search(r"^  row-2: .*can't do 'fail 1'", ended.out, re.MULTILINE)
    assert "2 rows failed. To retry them:" in ended.out
    status = folder.status()
    assert (status["status"], status["original_status"]) == ("completed_with_failures", "failed")
    assert "2 failed" in status["last_error"]
    assert [row["status"] for row in folder.rows()] == ["completed", "failed", "failed"]
    assert folder.jobs("wait", "j").code == 1
    nothing = folder.jobs("run", "j")
    assert (nothing.code, one_line_of_notes(nothing.err)) == (1, "note: nothing is left to do")
    assert folder.jobs("retry", "j", "row-9").code == 2
    (folder.path / "mended").touch()
    one = folder.jobs("retry", "j", "row-3")
    assert "1 row reset; a runner was started" in one.out
    assert [row["status"] for row in folder.rows()] == ["completed", "failed", "completed"]
    again = folder.jobs("retry", "j", "--failed", "--quiet")
    assert (again.code, folder.status()["status"]) == (0, "completed"), again
    assert [row["attempt_count"] for row in folder.rows()] == ["1", "2", "2"]
    assert "0 rows reset; there is nothing to retry" in folder.jobs("retry", "j", "--failed").out


def test_retry_of_a_row_by_its_number_while_the_job_goes_on(folder: JobFolder) -> None:
    folder.write_rows(["until go", "fail"])
    folder.spawn(*LOCAL, "--detach", "--max_attempts=1")
    wait_for(lambda: folder.status()["failed_items"] == 1)
    (folder.path / "mended").touch()
    ended = folder.jobs("retry", "j", "2", "--detach")
    assert (ended.code, ended.out) == (0, "1 row reset; the job's runner has them\n")
    (folder.path / "go").touch()
    assert folder.jobs("wait", "j").code == 0


def test_run_after_the_runner_was_killed(folder: JobFolder) -> None:
    folder.write_rows(["one", "until go", "three"])
    with folder.begin(*folder.spawn_words(FUNCTION, "--num_workers=1")) as following:
        wait_for(lambda: folder.begun("c") and folder.status()["completed_items"] == 2)
        os.kill(folder.runner(), signal.SIGKILL)
        ended = following.wait()
    assert ended.code == 1
    assert "1 row is left. To continue:" in ended.out
    status = folder.status()
    assert (status["status"], status["original_status"], status["pending_items"]) == ("interrupted", "pending", 1)
    waited = folder.jobs("wait", "j")
    assert (waited.code, one_line(waited)) == (1, "manyhands: interrupted: no process executes the job")
    (folder.path / "go").touch()
    ended = folder.jobs("run", "j", "--max_concurrency=7", "--no-auto_export")
    assert (ended.code, folder.status()["completed_items"]) == (0, 3), ended
    assert "continues in a background process\n  to look at it:  " in ended.out
    assert not (folder.path / "out.csv").exists()
    assert [row["performances"] for row in shown(folder, "row-1", "row-2")] == [1, 2]


def test_run_refuses_what_would_make_it_another_job(folder: JobFolder) -> None:
    folder.write_rows(["until go"])
    with folder.begin(*folder.spawn_words(*LOCAL)) as following:
        assert following.wait_until(folder.begun), following.said
        running = folder.jobs("run", "j", "--detach", "--max_concurrency=2")
        assert running.code == 0
        assert one_line_of_notes(running.err) == "note: the job is already running, with its present settings"
        os.kill(folder.runner(), signal.SIGKILL)
        following.wait()
    refused = folder.jobs("run", "j", "--instruction=Do something else.")
    assert refused.code == 2
    assert "instruction was 'Say {text}.'" in one_line(refused)
    assert "--max_concurrency must be a whole number" in one_line(folder.jobs("run", "j", "--max_concurrency=x"))
    (folder.path / "go").touch()
    assert folder.jobs("run", "j", "--instruction=Do something else.", "--override=instruction").code == 0


@pytest.mark.parametrize(("number", "executor"), [(signal.SIGINT, "auto"), (signal.SIGTERM, "local")])
def test_ctrl_c_lets_rows_in_work_end_and_the_job_can_go_on(
    number: signal.Signals, executor: str, folder: JobFolder
) -> None:
    folder.write_rows(["until go", "two", "three"])
    words = folder.spawn_words(FUNCTION, f"--executor={executor}", "--max_concurrency=1")
    with folder.begin(*words) as following:
        assert following.wait_until(lambda: folder.begun() and followed(following)), following.said
        following.interrupt(number)
        following.wait_until(lambda: "stopping: the rows in progress are finished first" in following.said)
        (folder.path / "go").touch()
        ended = following.wait()
    assert ended.code == 130
    assert "2 rows are left. To continue:" in ended.out
    status = folder.status()
    assert (status["status"], status["completed_items"], status["runner_active"]) == ("interrupted", 1, False)
    assert folder.jobs("run", "j").code == 0
    assert [row["performances"] for row in shown(folder, "row-1", "row-2", "row-3")] == [1, 1, 1]


def test_a_second_ctrl_c_stops_at_once(folder: JobFolder) -> None:
    folder.write_rows(["until never", "two"])
    with folder.begin(*folder.spawn_words(FUNCTION, "--max_concurrency=1")) as following:
        assert following.wait_until(lambda: folder.begun() and followed(following)), following.said
        runner = folder.runner()
        following.interrupt()
        following.wait_until(lambda: "stopping:" in following.said)
        following.interrupt()
        ended = following.wait(30)
    assert ended.code == 130
    assert "stopping at once" in ended.err
    wait_for(lambda: not alive(runner))
    assert folder.status()["pending_items"] == 2


def test_ctrl_c_while_the_job_is_made_leaves_nothing(folder: JobFolder) -> None:
    folder.write_rows(["text"] * 300_000)
    with folder.begin(*folder.spawn_words(FUNCTION)) as making:
        assert making.wait_until(lambda: (folder.folder() / "run.db").exists())
        making.interrupt()
        ended = making.wait()
    assert (ended.code, ended.out) == (130, "")
    assert one_line(ended) == "manyhands: interrupted"
    assert not folder.folder().exists()


def test_the_job_outlives_its_terminal(folder: JobFolder) -> None:
    folder.write_rows(["until go", "two"])
    with folder.begin(*folder.spawn_words(*LOCAL)) as following:
        assert following.wait_until(folder.begun), following.said
        following.interrupt(signal.SIGHUP)
        assert following.wait().code == -signal.SIGHUP
    assert folder.status()["runner_active"]
    (folder.path / "go").touch()
    assert folder.jobs("wait", "j").code == 0


def test_cancel(folder: JobFolder) -> None:
    folder.write_rows(["until go", "two"])
    folder.spawn(*LOCAL, "--detach", "--max_concurrency=1")
    wait_for(folder.begun)
    assert folder.jobs("cancel", "j").code == 0
    (folder.path / "go").touch()
    waited = folder.jobs("wait", "j")
    assert waited.code == 1
    assert "j: cancelled (job " in waited.out
    status = folder.status()
    assert (status["status"], status["completed_items"], status["pending_items"]) == ("cancelled", 1, 1)
    assert len(folder.rows()) == 2
    again = json.loads(folder.jobs("cancel", "j", "--json").out)
    assert again["status"] == "cancelled"
    assert folder.jobs("run", "j", "--quiet").code == 0
    assert folder.status()["status"] == "completed"


def test_cancel_firmly(folder: JobFolder) -> None:
    folder.write_rows(["until never", "two"])
    folder.spawn(FUNCTION, "--detach", "--max_concurrency=1")
    wait_for(folder.begun)
    assert folder.jobs("cancel", "j", "--firm").code == 0
    assert folder.jobs("wait", "j", "--timeout_ms=20000").code == 1
    status = folder.status()
    assert (status["status"], status["pending_items"]) == ("cancelled", 2)


# --- Export


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("x.json", "x.json: results are not written as .json; let it end in one of .csv, .jsonl, .parquet, .xlsx"),
        ("x.ods", "results are not written as .ods"),
        ("x.json.gz", "results are not written as .json"),
        ("x.parquet.gz", "Parquet is compressed in itself; leave out .gz"),
    ],
)
def test_names_that_promise_another_format_are_refused(folder: JobFolder, name: str, said: str) -> None:
    spawned = folder.jobs("spawn", "rows.csv", "--instruction=x", f"--output_csv_path={name}", *LOCAL)
    assert spawned.code == 2
    assert said in one_line(spawned)
    folder.spawn(*LOCAL, "--detach", "--no-auto_export")
    ended = folder.jobs("export", "j", f"--output_csv_path={name}")
    assert ended.code == 2
    assert said in one_line(ended)
    assert not (folder.path / name).exists()


def test_a_name_says_the_format_of_an_export(folder: JobFolder) -> None:
    folder.spawn(*LOCAL, "--detach", "--no-auto_export", "--export_format=csv")
    for name, words in (("x.jsonl", []), ("x.ndjson", []), ("x.json", ["--format=jsonl"])):
        assert folder.jobs("export", "j", f"--path={name}", *words).code == 0
        lines = (folder.path / name).read_text().splitlines()
        assert all(isinstance(json.loads(line), dict) for line in lines)
    assert folder.jobs("export", "j", "--path=x.csv").out == "3 rows: x.csv\n"
    ended = folder.jobs("export", "j", "--path=x.txt")
    assert (ended.code, ended.out) == (0, "3 rows: x.txt (CSV)\n")
    assert (folder.path / "x.txt").read_text().startswith("name,text,")


def test_export_at_any_time_in_every_format(folder: JobFolder) -> None:
    folder.write_rows(["one", "until go", "=three"])
    folder.spawn(*LOCAL, "--detach", "--no-auto_export")
    wait_for(lambda: folder.status()["completed_items"] == 2)
    ended = folder.jobs("export", "j")
    assert (ended.code, ended.out) == (0, "3 rows: out.csv\n")
    assert [row["status"] for row in folder.rows()] == ["completed", "running", "completed"]
    (folder.path / "go").touch()
    folder.jobs("wait", "j")
    assert [row["status"] for row in folder.rows()] == ["completed", "running", "completed"]
    said = json.loads(folder.jobs("export", "j", "--output_csv_path=deep/x.jsonl", "--json").out)
    assert said == {
        "job_id": folder.status()["job_id"],
        "output_csv_path": str(folder.path / "deep/x.jsonl"),
        "row_count": 3,
    }
    lines = [json.loads(line) for line in (folder.path / "deep/x.jsonl").read_text().splitlines()]
    assert [line["status"] for line in lines] == ["completed"] * 3
    assert folder.jobs("export", "j", "--path=x.parquet", "--format=parquet").code == 0
    assert (folder.path / "x.parquet").read_bytes().startswith(b"PAR1")
    assert folder.jobs("export", "j", "--path=flat.csv", "--flatten", "--excel-safe").code == 0
    (third,) = [row for row in folder.rows("flat.csv") if row["\ufeffname"] == "c"]
    assert third["text"] == "'=three"
    assert "6" in third.values()
    refused = folder.jobs("export", "j", "--path=rows.csv")
    assert (refused.code, refused.out) == (2, "")
    assert "table" in one_line(refused)


# --- List, show, and the commands for all runs


def test_results_that_a_spreadsheet_can_not_hold_are_exported_as_csv(folder: JobFolder) -> None:
    folder.write_rows(["x" * 40_000])
    ended = folder.spawn(*LOCAL, "--output_csv_path=out.xlsx")
    assert ended.code == 1
    assert "40,000 characters" in ended.err
    last = ended.out.splitlines()[-1]
    assert last.startswith("The results are not written yet. To write them as CSV:  ")
    words = shlex.split(last.partition(" jobs ")[2])
    assert words[0] == "export"
    assert folder.jobs(*words).code == 0
    assert folder.results()[0]["length"] == 40_000
    assert "out-2.csv" in folder.jobs("run", "j").out  # what is there stays


def test_list(folder: JobFolder) -> None:
    assert folder.jobs("list").out == "there are no jobs in data\n"
    assert json.loads(folder.jobs("list", "--json").out) == []
    folder.spawn(*LOCAL, "--job_name=first")
    folder.write_rows(["fail"])
    folder.spawn(*LOCAL, "--job_name=second", "--max_attempts=1")
    (folder.path / "data" / "broken").mkdir()
    (folder.path / "data" / "broken" / "run.db").write_bytes(b"no database")
    listed = json.loads(folder.jobs("list", "--json").out)
    assert listed == [folder.status("second"), folder.status("first")]
    heading, *lines = folder.jobs("list").out.splitlines()
    assert heading.split() == [
        "job",
        "name",
        "state",
        "rows",
        "completed",
        "failed",
        "skipped",
        "pending",
        "cost",
        "created",
    ]
    assert [line.split()[1:8] for line in lines] == [
        ["second", "completed_with_failures", "1", "0", "1", "0", "0"],
        ["first", "completed", "3", "3", "0", "0", "0"],
    ]


def test_show(folder: JobFolder) -> None:
    folder.write_rows(["one", "fail", "[bold]x" + "y" * 3000])
    folder.spawn(*LOCAL, "--id_column=name", "--max_attempts=2")
    text = folder.jobs("show", "j", "a").out
    for part in (
        "item a: completed, row 1, line 2, attempt 1",
        "name: a\ntext: one",
        "Item ID: a\n",
        "Say one.",
        "── report (via function, 20",
        '"length": 3',
    ):
        assert part in text
    assert folder.jobs("show", "j", "1").out == text
    failed = folder.jobs("show", "j", "b").out
    assert "item b: failed" in failed
    assert failed.count("can't do 'fail'") >= 2
    assert "attempt 1 given up" in failed
    assert failed.index("── attempt 1") < failed.index("── attempt 2")
    cut, full = folder.jobs("show", "j", "c").out, folder.jobs("show", "j", "c", "--full").out
    assert "text: [bold]xyyy" in cut
    assert "more characters)" in cut
    assert ("y" * 3000 in cut, "y" * 3000 in full) == (False, True)
    found = json.loads(folder.jobs("show", "j", "b", "--json").out)
    assert (found["item_id"], found["status"], found["row"], found["row_index"], found["line"]) == (
        "b", "failed", {"name": "b", "text": "fail"}, 1, 3,
    )  # fmt: skip
    assert [failure["attempt"] for failure in found["failures"]] == [1, 2]
    assert "Say fail." in found["prompt"]
    assert "no item 'z'" in one_line(folder.jobs("show", "j", "z"))


def test_an_items_own_id_goes_before_a_rows_number(folder: JobFolder) -> None:
    with (folder.path / "rows.csv").open("w", newline="") as handle:
        csv.writer(handle).writerows([("name", "text"), ("2", "first"), ("1", "second")])
    folder.spawn(*LOCAL, "--id_column=name")
    assert json.loads(folder.jobs("show", "j", "2", "--json").out)["row"]["text"] == "first"


def test_a_skipped_row_is_shown(folder: JobFolder) -> None:
    (folder.path / "rows.csv").write_text('name,text\na,one\n"b"b,two\n')
    assert "rows.csv, line 3: " in folder.spawn(*LOCAL).err
    ended = folder.spawn(*LOCAL, "--on_bad_row=skip")
    assert ended.code == 1
    assert re.search(r"skipped +1 +bad_row 1\n", ended.out)
    assert folder.status()["skipped_items"] == 1
    text = folder.jobs("show", "j", "2").out
    assert "skipped, row 2, line 3" in text
    assert "bad_row: line 3" in text
    assert "── prompt" not in text


def test_the_commands_for_all_runs_know_jobs(folder: JobFolder) -> None:
    folder.write_rows(["one", "fail"])
    folder.spawn(*LOCAL, "--max_attempts=1")

    def said(*words: str) -> str:
        ended = run(*words, folder=folder.path)
        assert (ended.code, ended.err) == (0, ""), ended
        return ended.out

    (row,) = json.loads(said("runs", "--json"))
    assert (row["run"], row["workload"], row["state"], row["items"]) == ("j", "csv_jobs", "finished, with failures", 2)
    assert "csv_jobs" in said("runs")
    assert said("status", "j").startswith("j: finished, with failures (csv_jobs)\n")
    assert re.search(r"^1 +completed ", said("show", "j"), re.MULTILINE)
    assert "item 1 (row-1): completed, attempt 1" in said("show", "j", "row-1")
    assert "0 do not" in said("check", "j")
    (folder.path / "mended").touch()
    resumed = run("resume", "j", folder=folder.path)
    assert resumed.code == 0, resumed
    assert folder.status()["status"] == "completed"
    assert "manyhands jobs run JOB" in said("resume", "j", "--help")


def test_resume_takes_the_options_of_run(folder: JobFolder) -> None:
    folder.write_rows(["until go", "fail"])
    with folder.begin(*folder.spawn_words(*LOCAL, "--max_attempts=1")) as following:
        wait_for(lambda: folder.begun("b") and folder.status()["failed_items"] == 1)
        os.kill(folder.runner(), signal.SIGKILL)
        following.wait()
    (folder.path / "mended").touch()
    (folder.path / "go").touch()
    assert run("resume", "data/j", "--nonsense=1", folder=folder.path).code == 2
    ended = run("resume", "data/j", "--detach", "--no-auto_export", folder=folder.path)
    assert (ended.code, folder.jobs("wait", "j").code) == (0, 0), ended
    assert not (folder.path / "out.csv").exists()


# --- Speed


def test_a_status_imports_nothing_heavy(folder: JobFolder) -> None:
    folder.spawn(*LOCAL)
    program = "import sys; from manyhands.cli.main import main; main(sys.argv[1:]); print(*sys.modules)"
    for words in (["status", "j"], ["status", "j", "--json"], ["list"]):
        done = subprocess.run(
            [sys.executable, "-c", program, "jobs", *words],
            cwd=folder.path, capture_output=True, text=True, env=environment(), timeout=60,
        )  # fmt: skip
        heavy = {"pydantic", "aiohttp", "rich", "jsonschema", "yaml", "ruamel", "pyarrow", "mcp", "uvloop"}
        assert not heavy & set(done.stdout.split()), words


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def followed(command: Command) -> bool:
    """Whether a command follows its job, which it does from when on it takes SIGTERM itself: before, that simply ends it."""
    status = Path(f"/proc/{command.process.pid}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def shown(folder: JobFolder, *items: str) -> list[dict[str, object]]:
    return [json.loads(folder.jobs("show", "j", item, "--json").out) for item in items]


def one_line_of_notes(text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith("note: "))
