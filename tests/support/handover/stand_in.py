"""Stands in for a Python program: has a server fork the program, and ends as it ends. Run as ``stand_in.py ADDRESS SCRIPT WORDS``.

The program has the folder, the environment and the standard streams of this process, and is killed when this one is gone.
"""

import json
import os
import socket
import sys


def perform(address: str, script: str, words: list[str]) -> int:
    """Have the server fork the program; its exit code, negative for a signal."""
    order = {"script": script, "words": words, "folder": os.getcwd(), "environ": dict(os.environ)}
    told, tell = os.pipe()
    lives, _ = os.pipe()  # whose other end is closed when this process ends, whatever ends it
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        channel.connect(address)
        socket.send_fds(channel, [json.dumps(order).encode()], [tell, 1, 2, 0, lives])
    os.close(tell)
    with open(told, "rb") as numbers:
        _, code = numbers.read().split()  # the first is the program's process id
    return int(code)


if __name__ == "__main__":
    ended = perform(sys.argv[1], sys.argv[2], sys.argv[3:])
    if ended < 0:
        os.kill(os.getpid(), -ended)
    sys.exit(ended)
