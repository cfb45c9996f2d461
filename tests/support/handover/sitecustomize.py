"""Imported by every interpreter at its start that has this folder on its path. One that was started as a job's runner hands over.

It has a server fork the runner, with its folder, environment and open files, and ends; the program does the same once it has
forked. Only the standard library is imported, and that only by runners.
"""

import os
import sys

ADDRESS = "MANYHANDS_FORKED_RUNNERS"
"""The environment variable with the address of the server."""
RUNNER = "manyhands.workloads.csv_jobs.service.runner"
_READY = "MANYHANDS_READY"


def hand_over(address: str, ready: int, words: list[str]) -> bool:
    """Have the server fork the runner; whether it has."""
    import json
    import socket

    order = {"program": RUNNER, "words": words, "folder": os.getcwd(), "environ": dict(os.environ)}
    told, tell = os.pipe()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            channel.connect(address)
            socket.send_fds(channel, [json.dumps(order).encode()], [tell, 1, 2, 0, ready])
        os.close(tell)
        return bool(os.read(told, 1))  # at once, or never
    except OSError:
        return False


def is_runner() -> bool:
    """Whether this interpreter was started as a job's runner that somebody waits for."""
    return sys.orig_argv[1:4] == ["-P", "-m", RUNNER] and os.environ.get(_READY, "").isdecimal()


if ADDRESS in os.environ and is_runner() and hand_over(os.environ[ADDRESS], int(os.environ[_READY]), sys.orig_argv[4:]):
    os._exit(0)
