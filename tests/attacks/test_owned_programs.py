"""Whoever runs manyhands owns the programs that make sandboxes, as with conda: an agent must not be able to change them."""

from __future__ import annotations

import threading

from manyhands.processes.children import ExecResult
from tests.attacks.held_sandbox import HeldSandbox
from tests.attacks.outside import digests, own_folder, own_programs

# Holds whatever executable of another process it gets, by a descriptor that the running program does not mind, and writes to it when
# nobody runs it any more. The programs are copies: nothing of the machine's own is in reach.
GRASP = """
import os, sys, time

own = {"self", "thread-self", str(os.getpid())}
held, seen = {}, set()
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    for name in os.listdir("/proc"):
        if not name.isdigit() or name in own:
            continue
        try:
            where = os.readlink(f"/proc/{name}/exe")
            if where.startswith(("/usr/", "/bin/")) and os.path.exists(where):
                continue
            held.setdefault(where, os.open(f"/proc/{name}/exe", os.O_PATH))
        except OSError as error:
            seen.add(error.errno)
print("held", sorted(held), flush=True)
end = time.monotonic() + float(sys.argv[2])
while held and time.monotonic() < end:
    for where, descriptor in list(held.items()):
        try:
            target = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY)
            os.write(target, b"#!/bin/sh\\ntouch /tmp/manyhands-breakout\\n")
            print("ESCAPED:", where, flush=True)
            del held[where]
        except OSError as error:
            if error.errno != 26:
                del held[where]
    time.sleep(0.01)
"""


def grasping(sandbox: HeldSandbox, watch: float, write: float) -> tuple[threading.Thread, list[ExecResult]]:
    results: list[ExecResult] = []
    thread = threading.Thread(
        target=lambda: results.append(sandbox.python(GRASP, str(watch), str(write), seconds=watch + write + 10))
    )
    thread.start()
    return thread, results


def test_no_program_of_the_host_is_grasped_and_overwritten() -> None:
    """Neither that of the first process nor that of a command on its way in."""
    with own_folder() as folder, own_programs() as programs:
        before = digests(programs)
        with HeldSandbox("bubblewrap", folder / "box") as sandbox:
            thread, results = grasping(sandbox, 1.5, 0.7)
            while thread.is_alive():
                sandbox.wait(sandbox.sandbox.run(["true"], timeout=10))
            thread.join()
        assert b"ESCAPED" not in results[0].output, results[0].output
        assert digests(programs) == before
        with HeldSandbox("bubblewrap", folder / "next") as sandbox:
            assert sandbox.shell("echo fine").output == b"fine\n"
        assert digests(programs) == before
