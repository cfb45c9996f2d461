"""Processes that are forked from a server instead of importing everything anew."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from manyhands.processes.fork_server import ForkServer, fork_server
from tests.support.commands import alive
from tests.support.forked import path_of_tests

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are forked on Linux only")

OWNER = """
import asyncio, os, signal, sys
from manyhands.processes.fork_server import fork_server
function, path, *then = sys.argv[1:]
locked = open(path)
if "ignored SIGCHLD" in then: signal.signal(signal.SIGCHLD, signal.SIG_IGN)
def signal_server(number):
    with open(f"/proc/self/task/{os.getpid()}/children") as children:
        os.kill(int(children.read()), number)
async def main(forks):
    read, write = os.pipe()
    with open(path, "ab") as log:
        process = await forks.start("tests.processes.test_fork_server:" + function, "named", write, log.fileno(), {"FORKED": "yes"})
    os.close(write)
    print(process.pid, flush=True)
    if "stop the server" in then: signal_server(19)
    if "kill" in then: process.kill()
    if "order of a stopped server" in then:
        signal_server(19)
        try: await forks.start("os:close", "named", 0, 1, {})
        except OSError as error: assert "does not answer" in str(error)
    if "kill the server" in then: signal_server(9)
    print(await process.wait(), flush=True)
    if "start another" in then: await forks.start("os:close", "named", 0, 1, {})
with fork_server(patience=0.5 if then else 20.0) as forks:
    asyncio.run(main(forks))
"""


def describing(given: int) -> int:
    """What a fork says of itself; its exit code is 7."""
    files = {name: os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _is_open(name)}
    told = {
        "variable": os.environ["FORKED"],
        "given": files[str(given)],
        "files": list(files.values()),
        "session": os.getsid(0) == os.getpid(),
        "name": Path("/proc/self/comm").read_text().strip(),
        "path": sys.path,
        "input": sys.stdin.read(),
        "threads": threading.active_count(),
    }
    print(json.dumps(told), flush=True)
    return 7


def failing(given: int) -> None:
    raise ValueError("what went wrong")


def sleeping(given: int) -> None:
    time.sleep(600)


def _is_open(name: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{name}")


def _owner(function: str, log: Path, *then: str) -> subprocess.Popen[str]:
    log.touch()
    return subprocess.Popen(
        [sys.executable, "-c", OWNER, function, str(log), *then],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path_of_tests()},
        text=True,
    )


def _ended(function: str, log: Path, *then: str) -> tuple[int, int, str]:
    """The id and the exit code of a fork, and what its owner printed as errors."""
    with _owner(function, log, *then) as owner:
        out, err = owner.communicate(timeout=60)
    first, last = out.split()
    return int(first), int(last), err


def _until_gone(pid: int) -> None:
    end = time.monotonic() + 10
    while alive(pid):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_fork_has_what_it_is_given_and_nothing_else(tmp_path: Path) -> None:
    log = tmp_path / "log"
    _, code, _ = _ended("describing", log)
    told: Mapping[str, Any] = json.loads(log.read_text())
    assert code == 7
    assert told["variable"] == "yes"
    assert told["given"].startswith("pipe:")
    assert told["session"]
    assert told["name"] == "named"
    assert told["input"] == ""
    assert told["threads"] == 1
    # Not the file that its owner holds: a lock on it would outlive the owner.
    assert sorted(file for file in told["files"] if file != os.devnull) == sorted([told["given"], str(log), str(log)])


def test_an_error_is_told_where_the_output_goes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert _ended("failing", log)[1] == 1
    assert log.read_text().splitlines()[-1] == "ValueError: what went wrong"


def test_exit_codes_are_known_where_whoever_started_us_ignores_sigchld(tmp_path: Path) -> None:
    log = tmp_path / "log"
    _, code, errors = _ended("failing", log, "ignored SIGCHLD")
    assert (code, errors) == (1, "")


def test_a_killed_fork_is_told_by_its_signal(tmp_path: Path) -> None:
    assert _ended("sleeping", tmp_path / "log", "kill")[1] == -signal.SIGKILL


def test_forks_end_with_their_owner(tmp_path: Path) -> None:
    with _owner("sleeping", tmp_path / "log") as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.kill()
        _until_gone(pid)


def test_forks_end_with_the_server_which_is_told(tmp_path: Path) -> None:
    pid, code, errors = _ended("sleeping", tmp_path / "log", "kill the server", "start another")
    assert code == -signal.SIGKILL
    _until_gone(pid)
    assert "BrokenPipeError" in errors.splitlines()[-1]


def test_a_server_that_stands_still_keeps_nobody_waiting(tmp_path: Path) -> None:
    assert _ended("sleeping", tmp_path / "log", "stop the server", "kill")[1] == -signal.SIGKILL


def test_a_server_that_does_not_answer_is_killed_with_its_forks(tmp_path: Path) -> None:
    pid, code, errors = _ended("sleeping", tmp_path / "log", "order of a stopped server")
    assert code == -signal.SIGKILL
    _until_gone(pid)
    assert errors == ""


async def test_a_process_with_threads_is_not_forked() -> None:
    held = threading.Event()
    thread = threading.Thread(target=held.wait)
    thread.start()
    try:
        with fork_server() as forks:
            assert forks is None
    finally:
        held.set()
        thread.join()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)


def test_nothing_is_left_of_a_server_that_was_not_used() -> None:
    with fork_server() as forks:
        assert forks is None or isinstance(forks, ForkServer)


def test_an_order_that_can_not_be_sent_leaves_no_file_open(tmp_path: Path) -> None:
    program = (
        "import asyncio, os\n"
        "from manyhands.processes.fork_server import MAX_ORDER, fork_server\n"
        "async def main(forks):\n"
        "    before = os.listdir('/proc/self/fd')\n"
        "    try: await forks.start('os:close', 'named', 0, 1, {'LONG': 'x' * 4 * MAX_ORDER})\n"
        "    except OSError as error: assert os.listdir('/proc/self/fd') == before, error.__traceback__\n"
        "    else: raise AssertionError\n"
        "with fork_server() as forks:\n"
        "    asyncio.run(main(forks))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_forks_need_is_imported_once_by_the_server(tmp_path: Path) -> None:
    (tmp_path / "imported_once.py").write_text("import os\nwhere = os.getpid()\n")
    owner = OWNER.replace("fork_server(", 'fork_server(["no_such_module", "imported_once"], ')
    log = tmp_path / "log"
    log.touch()
    done = subprocess.run(
        [sys.executable, "-c", f"{owner}\nassert 'imported_once' not in sys.modules", "knowing", str(log)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), path_of_tests()))},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split()[-1:] == ["9"], done.stderr + log.read_text()


def knowing(given: int) -> int:
    """Whether a module was imported by the process that forked this one."""
    return 9 if sys.modules["imported_once"].where == os.getppid() else 1
