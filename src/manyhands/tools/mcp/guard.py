"""Keeps an MCP server from outliving the process that started it, even one that was killed with SIGKILL.

Run as ``python -I -S guard.py PARENT_PID COMMAND ARGUMENT…`` in a session of its own. It runs the command, which
inherits its standard streams. When the command ends, or the parent is gone (and a second has passed, in which the
server may notice the end of its input), it kills the whole process group, itself included: whatever the server started
ends with it.

It stands alone: nothing of this package is imported.
"""

import os
import select
import signal
import sys
import time

LOOK_EVERY = 0.5
GRACE = 1.0
NOT_FOUND = 127


def main(parent: int, command: list[str]) -> None:
    """Run the command. Does not return."""
    wake, wake_end = os.pipe()
    os.set_blocking(wake_end, False)
    signal.set_wakeup_fd(wake_end)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    child = os.fork()
    if child == 0:
        _become(command)
    for number in (signal.SIGTERM, signal.SIGINT):  # meant for the group; the guard ends with the server
        signal.signal(number, signal.SIG_IGN)
    _let_go_of_streams()
    while not os.waitpid(child, os.WNOHANG)[0]:
        if os.getppid() != parent:
            time.sleep(GRACE)
            break
        if select.select([wake], [], [], LOOK_EVERY)[0]:
            os.read(wake, 64)
    os.killpg(0, signal.SIGKILL)


def _become(command: list[str]) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        os._exit(NOT_FOUND)


def _let_go_of_streams() -> None:
    """So that the end of the server's output is seen at once."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
