"""``runs``, ``show``, ``status``, ``check`` and ``resume``: what they say about runs in every state."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedResponse, chat_response
from tests.support.batches import REASONED, BatchFolder, Ran, ServerThread, prompt_of, run_command
from tests.support.commands import run

LATE = "the credit is used up"


def reply(request: RecordedRequest) -> Reply:
    prompt = prompt_of(request)
    turn = sum(message["role"] == "assistant" for message in request.body["messages"])
    if prompt == "tools" and turn == 0:
        call = {
            "id": "c1",
            "type": "function",
            "function": {"name": "terminal", "arguments": '{"command": "echo [bold]hi"}'},
        }
        return chat_response("I look.", reasoning="Where am I?", tool_calls=[call])
    if prompt == "unreasoned":
        return chat_response("Quick.")
    if prompt == "refused":
        return ScriptedResponse({"error": {"message": "no [red]such[/red] thing"}}, status=400)
    if prompt == "late":
        return ScriptedResponse({"error": {"message": LATE}}, status=402)
    return REASONED


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> BatchFolder:
    """Three runs (finished, with failures, interrupted), one that was not begun, and a broken one. Only to be read."""
    folder = BatchFolder(tmp_path_factory.mktemp("runs"))
    with ServerThread(reply) as server:
        base = (f"--base_url={server.base_url}", "--num_workers=1")
        folder.write_rows(["plain", "tools"])
        folder.batch(*base, "--run_name=good", "--model=gpt-4o")
        folder.write_rows(["plain", {"prompt": "refused", "id": 7}, "unreasoned"])
        folder.batch(*base, "--run_name=failing")
        folder.write_rows(["plain", "late", "never begun"])
        folder.batch(*base, "--run_name=stopped")
    (folder.run("broken")).mkdir()
    (folder.run("broken") / "run.db").write_bytes(b"this is no database")
    (folder.run("no-run")).mkdir()
    return folder


def said(runs: BatchFolder, *words: str, code: int = 0) -> str:
    ran = run_command(runs.path, *words)
    assert ran.code == code, ran
    assert "Traceback" not in ran.err
    return ran.out if code == 0 else ran.err


def test_runs_lists_every_run(runs: BatchFolder) -> None:
    rows = {line.split()[0]: line for line in said(runs, "runs").splitlines()[1:]}
    assert set(rows) == {"good", "failing", "stopped", "broken"}
    assert re.search(r"finished +2 +2 +0 +0 +0 +\$0\.0002", rows["good"])
    assert re.search(r"finished, with failures +3 +1 +1 +1 +0", rows["failing"])
    assert re.search(r"interrupted +3 +1 +0 +0 +2", rows["stopped"])
    assert "unreadable" in rows["broken"]
    listed = {row["run"]: row for row in json.loads(said(runs, "runs", "--json"))}
    assert (listed["good"]["completed"], listed["stopped"]["pending"], listed["good"]["workload"]) == (
        2,
        2,
        "trajectories",
    )
    assert said(runs, "runs", "--data_dir=nowhere") == "there are no runs in nowhere\n"


def test_a_run_whose_making_was_cut_short_is_not_called_finished(tmp_path: Path) -> None:
    (tmp_path / "data" / "cut").mkdir(parents=True)
    (tmp_path / "data" / "cut" / "run.db").touch()
    ran = run_command(tmp_path, "runs", "--json")
    assert (ran.code, json.loads(ran.out)) == (
        0,
        [{"run": "cut", "state": "unfinished: making it was cut short; make it again"}],
    )
    assert "making it was cut short" in run_command(tmp_path, "runs").out


def test_status(runs: BatchFolder) -> None:
    assert said(runs, "status", "good").startswith("good: finished (trajectories)\n")
    status = json.loads(said(runs, "status", "data/failing", "--json"))
    assert (status["run"], status["state"], status["running"]) == ("failing", "finished, with failures", 0)
    assert status["ledger"]["by_cause"] == {"discarded": {"no_reasoning": 1}, "failed": {"model_refused": 1}}
    assert sum(status["ledger"][name] for name in ("completed", "discarded", "failed", "cancelled", "pending")) == 3
    (line,) = said(runs, "status", "stopped", "--watch").splitlines()
    assert line.startswith("stopped: interrupted, 1 of 3 ended, 0 running, 0 failed, ")
    assert json.loads(said(runs, "status", "stopped", "--watch", "--json"))["ledger"]["pending"] == 2


def test_show_lists_items(runs: BatchFolder) -> None:
    text = said(runs, "show", "failing")
    assert re.search(r"^1 +completed +1 +1 +prompt 0 +plain *$", text, re.MULTILINE)
    assert re.search(r"^2 +failed +1 +1 +model_refused +7 +refused *$", text, re.MULTILINE)
    assert re.search(r"^3 +discarded +1 +1 +no_reasoning ", text, re.MULTILINE)
    assert len(re.findall(r"^\d ", said(runs, "show", "failing", "--state=failed"), re.MULTILINE)) == 1
    assert "more items" in said(runs, "show", "failing", "--limit", "1")
    items = [json.loads(line) for line in said(runs, "show", "failing", "--json").splitlines()]
    assert [item["payload"]["prompt"] for item in items] == ["plain", "refused", "unreasoned"]
    for wrong in ("-5", "0", "x", "9" * 30):
        assert "--limit" in said(runs, "show", "failing", f"--limit={wrong}", code=2)


def test_show_an_items_steps_in_order(runs: BatchFolder) -> None:
    text = said(runs, "show", "good", "2")
    places = [
        "item 2 (",
        "user:\n  tools",
        "assistant, reasoning:\n  Where am I?",
        "assistant:\n  I look.",
        'assistant, calls:\n  terminal({"command": "echo [bold]hi"})',
        "/1 tools",
        '"output": "[bold]hi',
        "assistant, reasoning:\n  I think so.",
        "assistant:\n  Done.",
    ]
    found = [text.find(place) for place in places]
    assert -1 not in found, text
    assert found == sorted(found)
    assert "10 tokens in, 5 out, $0.0001" in text
    steps = [json.loads(line) for line in said(runs, "show", "good", "2", "--json").splitlines()]
    assert [step["kind"] for step in steps] == ["model", "tools", "model"]
    assert said(runs, "show", "failing", "id:7#0") == said(runs, "show", "failing", "2")
    assert said(runs, "show", "failing", "7") == said(runs, "show", "failing", "2")  # there is no seventh item
    assert "no [red]such[/red] thing" in said(runs, "show", "failing", "2")


def test_show_says_what_is_not_there(runs: BatchFolder) -> None:
    assert "no item '99'" in said(runs, "show", "good", "99", code=2)
    assert "attempt 5 has no recorded steps" in said(runs, "show", "good", "1", "--attempt", "5")
    missing = said(runs, "show", "nobody", code=2)
    assert "no run 'nobody'" in missing
    assert "failing, good, stopped" in missing
    assert said(runs, "show", "broken", code=2).count("\n") == 1
    assert "no run" in said(runs, "status", "no-run", code=2)


def test_check_agrees_with_what_was_recorded(runs: BatchFolder) -> None:
    assert said(runs, "check", "good") == "2 items checked: 2 agree with the journal, 0 do not\n"
    assert "0 do not" in said(runs, "check", "failing")
    assert "0 do not" in said(runs, "check", "stopped")


def test_check_names_the_first_step_that_diverges(runs: BatchFolder, tmp_path: Path) -> None:
    import sqlite3

    shutil.copytree(runs.run("good"), tmp_path / "changed")
    with sqlite3.connect(tmp_path / "changed" / "run.db") as database:
        database.execute(
            "UPDATE meta SET value = replace(value, '\"max_turns\":10', '\"max_turns\":1') WHERE name = 'spec'"
        )
        assert database.execute(
            "SELECT value FROM meta WHERE name = 'spec' AND value LIKE '%\"max_turns\":1,%'"
        ).fetchone()
    ran = run_command(tmp_path, "check", "changed")
    assert ran.code == 1
    assert ran.out.startswith("item 2 (")
    assert "2 items checked: 1 agree with the journal, 1 do not" in ran.out


def test_looking_changes_nothing(runs: BatchFolder) -> None:
    def content() -> dict[str, bytes]:
        files = (path for path in runs.run("stopped").iterdir() if path.is_file())
        return {path.name: path.read_bytes() for path in files if not path.name.endswith(("-shm", "-wal"))}

    before = content()
    for words in (["status"], ["show"], ["check"], ["show", "--json"]):
        said(runs, words[0], "stopped", *words[1:])
    said(runs, "runs")
    assert content() == before


def test_a_copy_of_a_run_that_someone_may_only_read(runs: BatchFolder, tmp_path: Path) -> None:
    shutil.copytree(runs.run("good"), tmp_path / "copy")
    for name in ("run.db-wal", "run.db-shm", "run.lock"):
        (tmp_path / "copy" / name).unlink(missing_ok=True)
    assert said(BatchFolder(tmp_path), "show", "copy", "1").startswith("item 1")


def test_status_of_a_run_while_it_goes_on(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, [f"prompt {number}" for number in range(6)])
    seen: list[dict[str, Any]] = []

    def look(request: RecordedRequest) -> Reply:
        if prompt_of(request) == "prompt 3" and not seen:
            seen.append(json.loads(run("status", "r", "--json", folder=tmp_path).out))
            ended = run("resume", "r", folder=tmp_path)
            seen.append({"code": ended.code, "err": ended.err})
        return REASONED

    with ServerThread(look) as server:
        ran: Ran = folder.batch(f"--base_url={server.base_url}", "--num_workers=1")
    assert ran.code == 0
    status, second = seen
    assert (status["state"], status["running"], status["ledger"]["completed"]) == ("running", 1, 3)
    assert second["code"] == 2
    assert "this run is being executed by process" in second["err"]
    assert second["err"].count("\n") == 1
    assert len(folder.lines()) == 6


# --- Which run is meant


@pytest.fixture
def three(runs: BatchFolder, tmp_path: Path) -> BatchFolder:
    """Copies of runs, of which ``failing`` was last worked on."""
    for number, name in enumerate(("good", "stopped", "failing")):
        shutil.copytree(runs.run(name), tmp_path / "data" / name)
        os.utime(tmp_path / "data" / name / "run.db", (number + 1000, number + 1000))
    return BatchFolder(tmp_path)


def test_the_latest_run_is_meant_where_none_is_named(three: BatchFolder) -> None:
    for words, first in (
        (["status"], "failing: finished, with failures (trajectories)"),
        (["show"], "failing: trajectories, created"),
        (["show", "--state=failed"], "failing: trajectories, created"),
        (["check"], "2 items checked: 2 agree with the journal"),
    ):
        ran = run_command(three.path, *words)
        assert (ran.code, ran.err) == (0, "note: data/failing is the latest run\n"), words
        assert ran.out.startswith(first)
    assert json.loads(said(three, "status", "--json"))["run"] == "failing"
    said(three, "show", "good")  # looking at a run is no work on it
    assert said(three, "status").startswith("failing:")
    os.utime(three.run("good") / "run.db")
    assert said(three, "status").startswith("good:")


def test_the_latest_run_is_resumed(three: BatchFolder) -> None:
    with ServerThread() as server:
        ran = run_command(three.path, "resume", f"--base_url={server.base_url}")
        assert ran.code == 0
        assert "note: data/failing is the latest run\n" in ran.err
        assert "data/failing/trajectories.jsonl" in ran.out
        asked = len(server.requests)
        stray = run_command(three.path, "resume", "--quiet", "good")
        assert (stray.code, len(server.requests)) == (2, asked)
        assert "unexpected 'good'" in stray.err


def test_a_word_alone_is_an_item_of_the_latest_run_unless_a_run_has_that_name(three: BatchFolder) -> None:
    ran = run_command(three.path, "show", "2")
    assert (ran.code, ran.err) == (0, "note: data/failing is the latest run\n")
    assert ran.out == said(three, "show", "failing", "2")
    assert said(three, "show", "7", "--json") == said(three, "show", "--json", "failing", "2")
    three.run("good").rename(three.run("2"))
    assert said(three, "show", "2").startswith("2: trajectories")
    assert said(three, "show", "2", "--full", "1").startswith("item 1 (")
    assert "and no such item in failing, the latest" in said(three, "show", "99", code=2)


def test_without_runs_there_is_no_latest_one(tmp_path: Path) -> None:
    for command in ("status", "show", "check", "resume"):
        ran = run_command(tmp_path, command)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err == "manyhands: error: there are no runs in data; name the folder of a run, or start one\n"
