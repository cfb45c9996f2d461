"""Batches of which nothing comes say so: what is refused, what is discarded, what is waited for."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest

from manyhands import BatchRunner, Callbacks, MissingDataset, RunError, StorageError, UserError
from manyhands.engine.limits.shared import MAX_REFUSALS
from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedResponse, chat_response
from tests.support.batches import REASONED, BatchFolder, Ran, ServerThread
from tests.support.commands import PROGRAM, Command, environment

UNKNOWN_MODEL = ScriptedResponse(
    {"error": {"message": "The model `nope` does not exist\x1b[31m", "code": "model_not_found"}}, 404
)
PAGE = b"<!DOCTYPE html>\n<html><head><title>Welcome to Acme &amp; Co</title></head><body>Sign in</body></html>"
MANY = [f"question {number}" for number in range(40)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BatchFolder:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    return BatchFolder(tmp_path, MANY)


def batch(folder: BatchFolder, server: ServerThread, *options: str) -> Ran:
    return folder.batch(f"--base_url={server.base_url}", "--num_workers=2", *options)


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (UNKNOWN_MODEL, "HTTP 404: The model `nope` does not exist\\x1b[31m"),
        (ScriptedResponse(PAGE, 404), "HTTP 404: a web page (Welcome to Acme & Co)"),
        (ScriptedResponse({"error": {"message": "Unknown parameter: 'x'"}}, 400), "HTTP 400: Unknown parameter: 'x'"),
        (ScriptedResponse({"detail": "Not Found"}, 404), "HTTP 404: Not Found"),
        (
            ScriptedResponse(b"", 308, {"Location": "https://elsewhere/v1"}),
            "HTTP 308: redirected to https://elsewhere/v1",
        ),
    ],
)
def test_what_is_always_refused_is_told_at_once_and_stops(folder: BatchFolder, reply: Reply, says: str) -> None:
    with ServerThread([reply]) as server:
        ended = batch(folder, server)
        assert MAX_REFUSALS <= len(server.requests) <= MAX_REFUSALS + 10
    assert ended.code == 1
    lines = [line for line in ended.err.splitlines() if says in line]
    assert lines[0].startswith("note: refused: http://127.0.0.1")
    assert lines[-1].startswith("manyhands: stopped: http://127.0.0.1")
    assert len(lines) == 2
    assert "40 items are left. To continue:" in ended.out
    with ServerThread() as server:
        mended = batch(folder, server, "--resume")
    assert mended.code == 0
    assert len(folder.lines()) == 40


def test_over_all_worker_processes(folder: BatchFolder) -> None:
    with ServerThread([UNKNOWN_MODEL]) as server:
        ended = batch(folder, server, "--executor=processes")
        assert len(server.requests) <= MAX_REFUSALS + 10
    assert ended.code == 1
    assert ended.err.count("note: refused:") == 1
    assert "pending       40" in ended.out.replace("pending        ", "pending       ")


@pytest.mark.parametrize("status", [401, 403, 402])
def test_a_bad_key_is_told_once_it_is_known(folder: BatchFolder, status: int) -> None:
    with ServerThread([ScriptedResponse({"error": {"message": "Incorrect API key provided"}}, status)]) as server:
        ended = batch(folder, server)
    assert ended.code == 1
    assert f"manyhands: stopped: {server.base_url}: HTTP {status}: Incorrect API key provided" in ended.err
    assert "40 items are left" in ended.out


def test_a_bad_key_is_told_while_others_are_still_asked(folder: BatchFolder) -> None:
    gone = threading.Event()

    async def reply(request: RecordedRequest) -> Reply:
        if "question 0" in str(request.body["messages"]):
            return ScriptedResponse({"error": {"message": "Incorrect API key provided"}}, 401)
        while not gone.is_set():
            await asyncio.sleep(0.02)
        return REASONED

    with ServerThread(reply) as server:
        words = [f"--base_url={server.base_url}", "--dataset_file=d.jsonl", "--batch_size=2", "--run_name=r"]
        words += ["--distribution=terminal_only", "--sandbox=local", "--executor=local"]
        with Command("batch", *words, folder=folder.path) as command:
            assert command.wait_until(lambda: "note: refused: " in command.said)
            gone.set()
            assert command.wait().code == 1


def test_a_page_with_status_200_is_no_answer(folder: BatchFolder) -> None:
    folder.write_rows(["one"])
    seen = threading.Event()

    def reply(request: RecordedRequest) -> Reply:
        if seen.is_set():
            return REASONED
        seen.set()
        return ScriptedResponse(PAGE, 200, {"Content-Type": "text/html"})

    with ServerThread(reply) as server:
        ended = batch(folder, server)
    assert ended.code == 0  # a gateway may have sent it: it was tried again
    assert "is not a JSON object but a web page (Welcome to Acme & Co); is --base_url right?" in ended.err


def test_few_rows_that_are_all_refused(folder: BatchFolder) -> None:
    folder.write_rows(["one", "two"])
    with ServerThread([UNKNOWN_MODEL]) as server:
        ended = batch(folder, server)
    assert ended.code == 1
    assert "note: refused: " in ended.err
    assert "2 items failed and can be retried" in ended.out
    assert re.search("^Failed, 2 of 2: .*`nope` does not exist", ended.out, re.M)


def test_all_discarded(folder: BatchFolder) -> None:
    with ServerThread([chat_response("No thoughts.")]) as server:
        ended = batch(folder, server)
        assert ended.code == 1
        (warning, error) = [line for line in ended.err.splitlines() if "no_reasoning" in line]
        assert warning.startswith(
            "note: 20 items were discarded (no_reasoning), and none is completed so far; --keep_unreasoned"
        )
        assert error.startswith(
            "manyhands: error: nothing was completed: 40 items discarded (no_reasoning 40); --keep_unreasoned"
        )
        again = batch(folder, server, "--resume")
        assert again.code == 1
        assert error in again.err
        kept = batch(folder, server, "--resume", "--keep_unreasoned", "--override=keep_unreasoned")
        assert (kept.code, len(folder.lines()), len(server.requests)) == (0, 40, 40)


def test_some_discarded_and_the_rest_failed(folder: BatchFolder) -> None:
    def reply(request: RecordedRequest) -> Reply:
        if "question 3" in str(request.body["messages"]):
            return ScriptedResponse({"error": {"message": "flagged by moderation"}}, 400)
        return chat_response("No thoughts.")

    with ServerThread(reply) as server:
        ended = batch(folder, server)
    assert ended.code == 1
    assert "nothing was completed: 29 items discarded (no_reasoning 29), 11 failed (model_refused 11)" in ended.err


def test_a_long_wait_is_told_while_it_lasts(folder: BatchFolder) -> None:
    folder.write_rows(["one", "two"])
    limited = ScriptedResponse({"error": {"message": "Rate limit reached"}}, 429, {"Retry-After": "300"})
    with ServerThread([limited]) as server:
        words = [f"--base_url={server.base_url}", "--dataset_file=d.jsonl", "--batch_size=2", "--run_name=r"]
        words += ["--distribution=terminal_only", "--sandbox=local", "--num_workers=1"]
        with Command("batch", *words, folder=folder.path) as command:
            assert command.wait_until(lambda: "waiting until" in command.said)
            (line,) = [line for line in command.said.splitlines() if "waiting until" in line]
    assert "HTTP 429: Rate limit reached" in line
    assert line.endswith(("1 call waits", "2 calls wait"))
    assert "(300 s)" in line or "(29" in line


def test_a_long_wait_is_below_the_bar(folder: BatchFolder) -> None:
    limited = ScriptedResponse({"error": {"message": "Rate limit reached"}}, 429, {"Retry-After": "300"})
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 90, 0, 0))
    with ServerThread([limited]) as server:
        words = ["batch", f"--base_url={server.base_url}", "--dataset_file=d.jsonl", "--batch_size=2", "--run_name=r"]
        words += ["--distribution=terminal_only", "--sandbox=local", "--executor=local"]
        process = subprocess.Popen(
            [*PROGRAM, *words], cwd=folder.path, env=environment(), stderr=theirs, stdout=subprocess.DEVNULL
        )
        os.close(theirs)
        try:
            shown = b""
            while b"HTTP 429: Rate" not in shown:
                shown += os.read(ours, 1 << 16)
        finally:
            process.kill()
            process.wait()
            os.close(ours)
    line = shown.decode(errors="replace").rpartition("waiting until")[2]
    assert " s): http://127.0.0.1:" in line
    assert b"0/40" in shown  # the bar has kept its room


# --- From Python


def runner(server: ServerThread, **settings: object) -> BatchRunner:
    given = {"base_url": server.base_url, "sandbox": "local", "executor": "local", **settings}
    return BatchRunner("d.jsonl", 10, "r", "terminal_only", **given)  # type: ignore[arg-type]


def test_the_result_holds_what_the_command_line_prints(folder: BatchFolder) -> None:
    with (folder.path / "d.jsonl").open("a") as handle:
        handle.write("not json\n")
    said: list[str] = []
    with ServerThread([chat_response("No thoughts.")]) as server:
        result = BatchRunner(
            "d.jsonl", 10, "r", "default", base_url=server.base_url, sandbox="local", executor="local",
            callbacks=Callbacks(notice=said.append),
        ).run()  # fmt: skip
        again = BatchRunner("d.jsonl", 10, "r", "default", base_url=server.base_url, sandbox="local").run(resume=True)
    assert list(result.notes) == said
    assert any("line 41" in note and "the row is skipped" in note for note in said)
    assert any(note.startswith("tools not available") for note in said)
    assert any("20 items were discarded (no_reasoning)" in note and "keep_unreasoned=True" in note for note in said)
    assert (result.exit_code, again.exit_code) == (1, 1)
    assert "keep_unreasoned=True keeps them" in (result.nothing_kept or "")
    assert not any("--" in text for text in (*said, result.nothing_kept or ""))


def test_without_a_callback_the_logger_is_told(folder: BatchFolder, caplog: pytest.LogCaptureFixture) -> None:
    with ServerThread([UNKNOWN_MODEL]) as server, caplog.at_level(logging.WARNING, logger="manyhands"):
        result = runner(server, concurrency=1).run()
    assert result.exit_code == 1
    assert "does not exist" in (result.stopped or "")
    (told,) = [record for record in caplog.records if record.name == "manyhands" and "refused: " in record.message]
    assert told.message in result.notes


def test_errors_speak_python(folder: BatchFolder) -> None:
    folder.write_rows(["one"])
    with pytest.raises(UserError, match='give api_key, or try model="simulated", which needs none'):
        BatchRunner("d.jsonl", 2, "k", "terminal_only", sandbox="local", executor="local").run()
    with ServerThread() as server:
        assert runner(server).run().exit_code == 0
        with pytest.raises(
            RunError, match=r'continue it with run\(resume=True\), or start another with run_name="r-2"'
        ):
            runner(server).run()
        with pytest.raises(RunError, match='accept with override="max_turns"'):
            runner(server, max_turns=3).run(resume=True)
        with pytest.raises(UserError, match=r'^sandbox="nowhere": unknown'):
            BatchRunner("d.jsonl", 2, "s", "terminal_only", base_url=server.base_url, sandbox="nowhere").run()
        with pytest.raises(UserError, match=r"^min_score needs scores: give graders with grade=FILE$"):
            BatchRunner("d.jsonl", 2, "g", "terminal_only", base_url=server.base_url, min_score=0.5).run()
    with pytest.raises(ValueError, match="max_turns must be 1 or more"):
        BatchRunner("d.jsonl", 2, "s", max_turns=0)
    with pytest.raises(MissingDataset, match="there is no dataset at nowhere"):
        BatchRunner("nowhere.jsonl", 2, "s")
    assert not issubclass(StorageError, UserError)


SCRIPT = """
import sys
from manyhands import BatchRunner, UserError

try:
    BatchRunner("d.jsonl", 2, "p", "terminal_only", base_url=sys.argv[1], sandbox="local", num_workers=1).run()
    BatchRunner("d.jsonl", 2, "p", "terminal_only", base_url=sys.argv[1], sandbox="local", num_workers=1).run()
except UserError as error:
    print(type(error).__name__, error)
"""


def test_a_program_of_its_own(folder: BatchFolder) -> None:
    folder.write_rows(["one", {"prompt": ""}])
    with ServerThread([chat_response("No thoughts.")]) as server:
        ended = subprocess.run(
            [sys.executable, "-c", SCRIPT, server.base_url],
            cwd=folder.path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
    assert "line 2" in ended.stderr
    assert "the row is skipped" in ended.stderr
    assert ended.stdout.startswith("RunError ")
    assert 'run(resume=True), or start another with run_name="p-2"' in ended.stdout
