"""A job whose model refuses everything stops and can go on; what its runner waits for is in its status."""

from __future__ import annotations

from pathlib import Path

from manyhands.testing.scripted_server import ScriptedResponse
from manyhands.workloads.csv_jobs.mcp.replies import status_object, status_text
from manyhands.workloads.csv_jobs.service.jobs import JobService
from tests.support.batches import ServerThread
from tests.support.commands import environment
from tests.support.job_folders import JobFolder

NOTHING = ScriptedResponse({"error": {"message": "The model `gone` does not exist"}}, 404)
LIMITED = ScriptedResponse({"error": {"message": "Rate limit reached"}}, 429, {"Retry-After": "300"})
AGENT = ("--model=gone", "--sandbox=local", "--max_concurrency=4")


def test_a_model_that_does_not_exist(tmp_path: Path) -> None:
    with JobFolder(tmp_path, [f"text {number}" for number in range(40)]) as folder, ServerThread([NOTHING]) as server:
        ended = folder.spawn(f"--base_url={server.base_url}", *AGENT)
        assert len(server.requests) < 40
        status = folder.status()
        log = (folder.folder() / "runner.log").read_text()
    assert ended.code == 1
    assert "The model `gone` does not exist" in ended.err
    assert "40 rows are left. To go on:" in ended.out
    assert (status["status"], status["pending_items"], status["failed_items"]) == ("failed", 40, 0)
    assert "The model `gone` does not exist" in status["last_error"]
    assert log.count("refused: ") == 1


def test_a_rate_limit_is_in_the_status_and_the_log(tmp_path: Path) -> None:
    with JobFolder(tmp_path, ["one"]) as folder, ServerThread([LIMITED]) as server:
        words = folder.spawn_words(f"--base_url={server.base_url}", *AGENT)
        with folder.begin(*words) as command:
            assert command.wait_until(lambda: "waiting until" in command.said)
            waiting = folder.status()["waiting"]
            status = JobService(folder.folder().parent, environ=environment()).status("j")
            shown = folder.jobs("status", "j").out
            waited = folder.jobs("wait", "j", "--timeout_ms=1500")
            log = (folder.folder() / "runner.log").read_text()
    assert waiting.startswith("waiting until ")
    assert "HTTP 429: Rate limit reached; 1 call waits" in waiting
    assert f"Now {waiting}" in shown
    assert (status_object(status)["waiting"] or "").startswith("waiting until ")
    assert "HTTP 429: Rate limit reached; 1 call waits." in status_text(status)
    assert waiting in waited.err
    assert "HTTP 429: Rate limit reached; 1 call waits" in log


def test_a_job_of_bad_rows_only_says_so(tmp_path: Path) -> None:
    with JobFolder(tmp_path) as folder:
        (tmp_path / "rows.csv").write_text("name,text\na,one,more\nb,two,more\n")
        ended = folder.spawn("--worker_function=work.py:work", "--on_bad_row=skip")
    assert ended.code == 1
    assert "nothing was completed: 2 items discarded (bad_row 2); mend these rows" in ended.err
