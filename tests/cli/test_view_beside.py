"""Commands that execute runs, and the viewer: how to look at the run, in their opening lines; and the viewer beside them, ``--view``."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from manyhands.cli.console import program
from tests.support.batches import run_command
from tests.support.commands import Command

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMANDS = {
    "batch": "batch examples/prompts.jsonl --model=simulated --simulated_latency=0 --max_samples=1 --executor=local",
    "eval": "eval examples/evals/rules/support.yaml --run_name=support",
    "jobs spawn": "jobs spawn examples/csv_jobs/files.csv --job_name=files --instruction=Score. --model=simulated --toolsets=none",
    "memory run": "memory run -c examples/memory/quick.yml -a simulated -m 3000",
}
WORKLOADS = {"batch": "trajectories", "eval": "evals", "jobs spawn": "csv_jobs", "memory run": "memory"}
FOLDERS = {"batch": "prompts", "eval": "support", "jobs spawn": "files", "memory run": "tests/quick"}

EVAL = """
targets:
  slow: {provider: cli, command: "sleep SECONDS && echo x > {OUTPUT_FILE}"}
tests:
  - {id: one, input: Wait., assert: [{type: contains, value: x}]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the examples in it, as in a clone, and evaluations that take their time."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    for name, seconds in (("slow", 60), ("quicker", 6)):
        (tmp_path / f"{name}.yaml").write_text(EVAL.replace("SECONDS", str(seconds)))
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_the_opening_lines_say_how_to_look_at_the_run(name: str, folder: Path) -> None:
    ran = run_command(folder, *COMMANDS[name].split())
    assert ran.code == 0, ran
    assert f"\n  to look at it:  {program()} view data/{FOLDERS[name]}\n" in ran.out
    assert (folder / "data" / FOLDERS[name] / "run.db").is_file()


def test_a_job_that_is_not_waited_for_says_it_too(folder: Path) -> None:
    spawned = run_command(folder, *COMMANDS["jobs spawn"].split(), "--detach")
    assert re.search(r"\n  to end it:  .*\n  to look at it:  .* view data/files\n", spawned.out), spawned
    assert run_command(folder, "jobs", "wait", "files").code == 0


def test_a_quiet_command_says_nothing_of_it(folder: Path) -> None:
    assert "to look at it" not in run_command(folder, *COMMANDS["batch"].split(), "--quiet").out


# --- Beside a command

LINK = re.compile(r"^In a browser, while this command runs:  (http://127\.0\.0\.1:\d+/)(\?token=\S+)$", re.MULTILINE)
LATER = "note: the viewer ends with this command; to look at it from now on:  "
SLOW = {
    "batch": "batch examples/prompts.jsonl --model=simulated --simulated_latency=30 --executor=local",
    "eval": "eval slow.yaml --run_name=support",
    "jobs spawn": f"{COMMANDS['jobs spawn']} --simulated_latency=30",
    "memory run": f"{COMMANDS['memory run']} --simulated_latency=30",
}


class Looking:
    """A command with ``--view``, and a browser that has opened its link."""

    def __init__(self, command: Command) -> None:
        assert command.wait_until(lambda: LINK.search(command.said)), command.wait()
        found = LINK.search(command.said)
        assert found is not None
        self.command, self.address = command, found[1]
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        self.opened(found[2])

    def opened(self, target: str) -> str:
        with self._opener.open(self.address + target, timeout=20) as answer:
            text: str = answer.read().decode()
            return text

    def is_served(self) -> bool:
        """Whether there is somebody at its address."""
        host, _, port = urlsplit(self.address).netloc.partition(":")
        with suppress(ConnectionError), socket.create_connection((host, int(port)), 5):
            return True
        return False


@contextmanager
def looking(folder: Path, *words: str) -> Iterator[Looking]:
    with Command(*words, "--view", folder=folder, environ={"XDG_CACHE_HOME": str(folder)}) as command:
        yield Looking(command)


def ends(seen: Looking, seconds: float = 20.0) -> bool:
    """Whether nobody serves the address any more within that time."""
    end = time.monotonic() + seconds
    while seen.is_served() and time.monotonic() < end:
        time.sleep(0.05)
    return not seen.is_served()


@pytest.mark.parametrize("name", SLOW)
def test_a_run_can_be_looked_at_while_it_is_executed(name: str, folder: Path) -> None:
    with looking(folder, *SLOW[name].split()) as seen:
        (run,) = json.loads(seen.opened("?format=json"))["runs"]
        assert (run["workload"], run["state"]) == (WORKLOADS[name], "running")
        assert seen.command.running
        seen.command.interrupt()
        time.sleep(0.2)
        seen.command.interrupt()
        ended = seen.command.wait(30)
        assert ended.code == 130, ended
        assert f"{LATER}{program()} view data/{FOLDERS[name]}\n" in ended.err
        assert ends(seen)
    if name == "jobs spawn":
        run_command(folder, "jobs", "cancel", "files", "--firm")


def test_the_viewer_ends_with_a_killed_command(folder: Path) -> None:
    with looking(folder, *SLOW["batch"].split()) as seen:
        assert seen.is_served()
        seen.command.kill()
        assert ends(seen)


def test_a_run_goes_on_without_its_viewer(folder: Path) -> None:
    with looking(folder, "eval", "quicker.yaml") as seen:
        for pid in viewers(folder):
            os.kill(pid, signal.SIGKILL)
        ended = seen.command.wait(30)
        assert ended.code == 0
        assert "note: --view: the viewer has ended; the run goes on\n" in ended.err
        assert LATER not in ended.err


def viewers(folder: Path) -> list[int]:
    """The processes that are viewers of runs below a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"view" in words and any(word.startswith(os.fsencode(folder)) for word in words):
                found.append(int(process.name))
    return found


def test_a_viewer_that_does_not_start_is_a_note(folder: Path) -> None:
    broken = folder / "broken"
    broken.mkdir()
    (broken / "jinja2.py").write_text("raise ImportError('not here')")
    environ = {"PYTHONPATH": os.pathsep.join([str(broken), os.environ.get("PYTHONPATH", "")])}
    with Command("eval", "quicker.yaml", "--view", folder=folder, environ=environ) as command:
        ended = command.wait(30)
    assert ended.code == 0, ended
    (said,) = (line for line in ended.errors if "--view" in line)
    assert said.startswith("note: --view: the viewer did not start: manyhands: ")
    assert "not here" in said


def test_a_resumed_run_is_shown_if_that_is_said_again(folder: Path) -> None:
    with looking(folder, *SLOW["batch"].split()) as seen:
        seen.command.kill()
    with looking(folder, "resume", "prompts") as again:
        assert again.command.running
    with Command("resume", "prompts", folder=folder) as silent:
        time.sleep(2.0)
        assert silent.running
        assert LINK.search(silent.said) is None


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("jobs spawn examples/csv_jobs/files.csv --instruction=x --detach", "with --detach, use manyhands view"),
        ("eval slow.yaml --watch", "--watch makes many runs"),
    ],
)
def test_a_viewer_that_would_show_little_is_refused(words: str, problem: str, folder: Path) -> None:
    ran = run_command(folder, *words.split(), "--view")
    assert ran.code == 2, ran
    assert problem in ran.err
    assert not (folder / "data").exists()
