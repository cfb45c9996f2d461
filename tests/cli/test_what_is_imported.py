"""What commands import, and how their processes end: nobody waits for what is not used."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from manyhands.testing.scripted_server import ScriptedServer, chat_response
from tests.support.commands import environment

RUN = "import sys; from manyhands.cli.main import main; code = main(sys.argv[1:]); print(*sys.modules); sys.exit(code)"
LARGE = frozenset(("aiohttp", "jsonschema", "mcp", "pyarrow", "rich", "ruamel", "yaml"))
"""Libraries that only some runs need."""
ENDING = """
import atexit, threading, time
from manyhands.processes.interpreters import end_process
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.2), print("the thread"))).start()
print("not flushed")
end_process({code!r})
"""


def python(code: str, *words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    variables = {**environment(), "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", code, *words], cwd=folder, env=variables, capture_output=True, text=True, timeout=120
    )


def imported(*words: str, folder: Path) -> set[str]:
    """The modules that a command imported in its own process."""
    done = python(RUN, *words, folder=folder)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_help_of_a_batch_imports_nothing_that_executes_one(tmp_path: Path) -> None:
    found = imported("batch", "--help", folder=tmp_path)
    assert not found & (
        LARGE | {"argparse", "asyncio", "email", "html", "sqlite3", "ssl", "uvloop", "manyhands.engine"}
    )


async def test_a_plain_batch_imports_only_what_it_uses(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    words = ["--dataset_file=prompts.jsonl", "--batch_size=1", "--run_name=r", "--model=m", "--sandbox=local"]
    words += [
        "--distribution=terminal_only",
        "--executor=processes",
        "--num_workers=1",
        "--api_key=none",
        "--keep_unreasoned",
    ]
    async with ScriptedServer(lambda _request: chat_response()) as server:
        url = f"--base_url={server.base_url}"
        found = await asyncio.to_thread(imported, "batch", *words, url, folder=tmp_path)
        assert len(server.requests) == 2
    assert "manyhands.runs.execution" in found
    assert not found & (LARGE | {"argparse", "html", "manyhands.sandboxes.base"})
    ours = (
        "cli.styled",
        "graders",
        "models.openai.client",
        "models.simulated",
        "sandboxes.bubblewrap",
        "testing",
        "tools.mcp",
    )
    rest = ("cli.evals", "cli.jobs", "cli.memory", "workloads.evals", "workloads.memory", "workloads.csv_jobs")
    assert not [name for name in found if name.startswith(tuple(f"manyhands.{each}" for each in (*ours, *rest)))]


@pytest.mark.parametrize(("code", "ended"), [(0, 0), (3, 3), (None, 0), ("a reason", 1)])
def test_a_process_ends_as_an_interpreter_does(code: object, ended: int) -> None:
    done = python(ENDING.format(code=code))
    assert done.returncode == ended
    assert done.stdout.splitlines() == ["not flushed", "the thread", "at exit"]
    assert done.stderr == ("a reason\n" if ended == 1 else "")


def test_the_console_script_ends_with_the_code_of_the_command() -> None:
    script = (
        "import sys; sys.argv = ['manyhands', *sys.argv[1:]]; from manyhands.cli.main import manyhands; manyhands()"
    )
    for words, code in ((["--version"], 0), (["bacht"], 2), (["batch", "--help"], 0)):
        done = python(script, *words)
        assert (done.returncode, bool(done.stdout), bool(done.stderr)) == (code, code == 0, code != 0), words
