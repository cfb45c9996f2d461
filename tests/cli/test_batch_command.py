"""``manyhands batch`` and ``python batch_runner.py`` as a person meets them: real processes, exit codes, what is said."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from manyhands.cli.main import COMMANDS
from manyhands.testing.scripted_server import ScriptedResponse, chat_response
from tests.support.batches import REASONED, BatchFolder, Ran, ServerThread
from tests.support.forked import ForkedProcess

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": os.environ.get("HOME", "/"),
    "PYTHONPATH": f"{ROOT / 'src'}",
}
SCRIPT = (sys.executable, str(ROOT / "batch_runner.py"))
MODULE = (sys.executable, "-m", "manyhands", "batch")
USUAL = ("--dataset_file=d.jsonl", "--batch_size=2", "--run_name=r", "--sandbox=local", "--distribution=terminal_only")
REFUSED = ScriptedResponse({"error": {"message": "no"}}, status=400)


def manyhands(folder: Path, *words: str, **environment: str) -> Ran:
    with TemporaryFile() as out, TemporaryFile() as err:
        code = ForkedProcess(words, folder, {**ENVIRONMENT, **environment}, out.fileno(), err.fileno()).wait(60)
        said = [os.pread(file.fileno(), 1 << 20, 0).decode() for file in (out, err)]
    return Ran(code, *said)


def run(command: tuple[str, ...], folder: Path, *words: str, **environment: str) -> Ran:
    done = subprocess.run(
        [*command, *words], cwd=folder, capture_output=True, text=True, timeout=60, env={**ENVIRONMENT, **environment}
    )
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def folder(tmp_path: Path) -> BatchFolder:
    return BatchFolder(tmp_path)


@pytest.mark.parametrize("command", [SCRIPT, MODULE])
def test_a_basic_run_its_resume_and_the_list(folder: BatchFolder, command: tuple[str, ...]) -> None:
    with ServerThread() as server:
        words = (*USUAL, "--base_url", server.base_url)
        ran = run(command, folder.path, *words)
        assert ran.code == 0, ran
        assert (len(server.requests), len(folder.lines())) == (3, 3)
        assert "completed" in ran.out
        assert "data/r/trajectories.jsonl" in ran.out
        assert "\x1b" not in ran.out + ran.err
        again = run(command, folder.path, *words, "--resume")
        assert (again.code, len(server.requests)) == (0, 3)
    listed = run(command, folder.path, "--list_distributions")
    assert listed.code == 0
    assert "terminal_only" in listed.out


def test_keys_come_from_the_environment_of_their_provider_only(folder: BatchFolder) -> None:
    with ServerThread() as server:
        words = (*USUAL, f"--base_url={server.base_url}", "--executor=local", "--quiet")
        keys = {"MANYHANDS_API_KEY": "own-key-99", "OPENROUTER_API_KEY": "or-key-99", "OPENAI_API_KEY": "oa-key-99"}
        assert manyhands(folder.path, "batch", *words, **keys).code == 0
        assert {request.headers["Authorization"] for request in server.requests} == {"Bearer own-key-99"}
    for file in folder.run().rglob("*"):
        assert not file.is_file() or b"-key-99" not in file.read_bytes()


@pytest.mark.parametrize(
    ("responses", "code"),
    [
        ([REASONED], 0),
        ([chat_response("unreasoned")], 1),
        ([REASONED, chat_response("unreasoned")], 0),
        ([REASONED, REFUSED, REASONED], 1),
        ([REFUSED], 1),
    ],
)
def test_exit_codes(folder: BatchFolder, responses: list[ScriptedResponse], code: int) -> None:
    with ServerThread(responses) as server:
        ran = folder.batch(f"--base_url={server.base_url}", "--num_workers=1")
    assert ran.code == code
    ledger = folder.json("summary.json")["ledger"]
    assert ledger["items"] == 3
    shown = dict(re.findall(r"^(completed|discarded|failed|cancelled|pending|in all) +(\d+)", ran.out, re.MULTILINE))
    assert {name: int(number) for name, number in shown.items()} == {
        **{name: ledger[name] for name in ("completed", "discarded", "failed", "cancelled", "pending")},
        "in all": 3,
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--temprature=0.5"], "unknown option --temprature; did you mean --temperature?"),
        (["--max_turns"], "--max_turns needs a value"),
        (["--max_turns=many"], "--max_turns must be a whole number"),
        (["--batch_size=2.5"], "--batch_size must be a whole number"),
        (["--batch_size=0"], "--batch_size must be 1 or more"),
        (["--max_tokens=8k"], "--max_tokens must be a whole number"),
        (["-x"], "unknown option -x"),
        (["stray"], "unexpected 'stray'"),
        (["--resume", "d.jsonl"], "unexpected 'd.jsonl'"),
        (["--resume=perhaps"], "--resume must be true or false"),
        (["--override=model,nonsense"], "nonsense"),
        (["--temperature=9"], "--temperature must be between 0 and 2"),
        (["--sandbox=docker"], "--sandbox docker: some items name no image"),
        (["--executor=threads"], "--executor must be"),
    ],
)
def test_bad_usage_is_refused_before_anything_is_done(folder: BatchFolder, words: list[str], said: str) -> None:
    with ServerThread() as server:
        ran = folder.batch(f"--base_url={server.base_url}", *words)
        assert (ran.code, ran.out, server.requests, (folder.path / "data").exists()) == (2, "", [], False)
    assert said in ran.err
    assert ran.err.startswith("manyhands: error: ")


def test_all_problems_are_said_at_once(folder: BatchFolder) -> None:
    ran = folder.batch("--batch_size=x", "--max_turns=0", "--resume")
    assert ran.code == 2
    assert "--batch_size" in ran.err
    assert "--max_turns" in ran.err


def test_required_options(tmp_path: Path) -> None:
    ran = manyhands(tmp_path, "batch", "--model=simulated")
    assert ran.code == 2
    for name in ("--dataset_file", "--batch_size", "--run_name"):
        assert f"{name} is required" in ran.err


@pytest.mark.parametrize(
    "words",
    [
        ["--max-turns=2", "--base-url", "URL"],
        ["--max_turns", "2", "--base_url=URL"],
        ["--max_turns=9", "--temperature=1", "--max-turns=2", "--base_url=URL", "--temperature=0"],
        ["--max_turns= 2", "--base_url", "URL", "--noresume", "--no-verbose"],
    ],
)
def test_every_way_to_write_an_option(folder: BatchFolder, words: list[str]) -> None:
    with ServerThread() as server:
        assert folder.batch(*(word.replace("URL", server.base_url) for word in words)).code == 0
        assert len(server.requests) == 3


def test_a_dead_endpoint_stops_the_run_and_is_said_in_one_line(folder: BatchFolder) -> None:
    with ServerThread([ScriptedResponse({"error": {"message": "wrong key"}}, status=401)]) as server:
        ran = folder.batch(f"--base_url={server.base_url}", "--num_workers=1")
        assert (ran.code, len(server.requests)) == (1, 1)
    assert ran.err.count("wrong key") == 1
    assert ran.err.count("\n") == 1
    assert re.search(r"3 items are left. To continue:  \S*manyhands resume data/r$", ran.out, re.MULTILINE)


def test_ctrl_c_finishes_what_is_in_flight_and_prints_the_way_on(folder: BatchFolder) -> None:
    folder.write_rows([f"prompt {number}" for number in range(10)])
    with ServerThread([ScriptedResponse(REASONED, delay=0.3)]) as server:
        words = (*USUAL, f"--base_url={server.base_url}", "--num_workers=2")
        with subprocess.Popen(
            [*MODULE, *words],
            cwd=folder.path,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            while len(server.requests) < 3:
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "the calls in flight are finished first" in err
        assert "Traceback" not in out + err
        done = len(folder.lines())
        assert 0 < done == len(server.requests) < 10
        command = re.search(r"To continue: +\S*manyhands (resume .*)$", out, re.MULTILINE)
        assert command is not None
        ran = manyhands(folder.path, *command[1].split(), "--quiet")
        assert ran.code == 0, ran
        assert (len(server.requests), len(folder.lines())) == (10, 10)


def test_a_read_only_data_folder_is_one_line(folder: BatchFolder) -> None:
    (folder.path / "data").write_text("a file where the folder should be")
    with ServerThread() as server:
        ran = folder.batch(f"--base_url={server.base_url}")
        assert (ran.code, server.requests) == (1, [])
    assert ran.err.count("\n") == 1
    assert "data/r: the folder can't be made" in ran.err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, tmp_path: Path) -> None:
    ran = manyhands(tmp_path, name, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert f"manyhands {name}" in ran.out
    assert list(tmp_path.iterdir()) == []


def test_help_of_the_batch_names_every_option_with_its_default(tmp_path: Path) -> None:
    text = " ".join(run(SCRIPT, tmp_path, "--help").out.split())
    for said in (
        "--dataset_file FILE",
        "--batch_size N",
        "--run_name NAME",
        "(default: anthropic/claude-sonnet-4.6)",
        "(default: https://openrouter.ai/api/v1)",
        "--max_turns N Maximum model calls per conversation. (default: 10)",
        "--num_workers N Number of worker processes. (default: 4)",
        "(default: default)",
        "--log_prefix_chars N",
        "(default: 100)",
        "--reasoning_disabled",
        "--provider_sort price|throughput|latency",
        "--prefill_messages_file FILE",
        "--max_samples N",
        "--list_distributions",
    ):
        assert said in text
