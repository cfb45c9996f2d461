"""An attack on the standing still of a sandbox: processes that stop and wake each other in turn, so that each is stopped whenever it is
looked at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from manyhands.sandboxes.commands.freezing import stop_all

_BEAT = """
import os, signal
while True:
    os.write(1, b".")
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_what_was_woken_between_two_looks_does_not_stand_still() -> None:
    with subprocess.Popen([sys.executable, "-c", _BEAT], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            output = process.stdout.fileno()
            wakes = iter(range(5))

            def running() -> set[int]:
                if next(wakes, None) is not None:
                    os.kill(process.pid, signal.SIGCONT)
                    os.read(output, 1)
                    _wait_until_stopped(process.pid)
                return {process.pid}

            _wait_until_stopped(process.pid)
            os.read(output, 1)
            assert stop_all(running) == set()
            assert next(wakes, None) is None, "it was woken between the looks that found it stopped"
        finally:
            process.kill()


def _wait_until_stopped(pid: int) -> None:
    deadline = time.monotonic() + 10
    while os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG) is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
