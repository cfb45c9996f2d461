"""The process that launches commands, so that each carries its tag from the start, and nothing that one leaves goes unnoticed.

It is a program of its own, started with our interpreter, and needs the standard library only, of which it loads as little as it can. It has
no threads and does nothing else, so that it may lower its own limit to a command's tag (see ``processes.strays``) right before it starts
that. The commands are its children, and so is whatever lost its parents among all that they start (``PR_SET_CHILD_SUBREAPER``): if it has
no other children than the commands that run, then no command that has ended left anything.

It is given a socket. On that, each message to here is four bytes of length and a JSON object, whose texts stand for bytes (Latin-1):

=======================================================  ========================================================================
``{"environment"}``                                      once, the first: what all commands have in their environment
``{"launch": N, "words", "additions", "folder", "tags"}``  with three descriptors, its standard streams: launch a command. ``tags``:
                                                         its tag and one for this process afterwards, each lower than any before
``{"kill": N}``                                          SIGKILL to its process group, if it has not ended
=======================================================  ========================================================================

and each answer is a line: ``began N PID``, ``refused N ERRNO``, ``ended N CODE LEFT``, where a negative code is a signal, and ``LEFT`` is 0
if commands that have ended left no process. It ends when the socket is closed at the other end.
"""

import errno
import json
import os
import select
import signal
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # not imported when it runs, for its start's sake
    from typing import Any, NoReturn

_SUBREAPER = 36
"""``PR_SET_CHILD_SUBREAPER`` of prctl(2)."""
_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_DEFAULT = {*_IGNORED, signal.SIGPIPE, *({signal.SIGXFSZ} if hasattr(signal, "SIGXFSZ") else ())}
"""What commands do not ignore, though this process does."""


class _Launcher:
    def __init__(self, channel: "socket.socket") -> None:
        self._channel = channel
        self._environment: dict[bytes, bytes] = {}
        self._running: dict[int, int] = {}
        """By process: the number of the launch."""
        self._adopts = _adopt_orphans()
        self._children = f"/proc/self/task/{os.getpid()}/children"

    def serve(self) -> "NoReturn":
        ends, wake = os.pipe()
        for descriptor in (ends, wake):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _nothing)
        events = select.poll()
        events.register(self._channel, select.POLLIN)
        events.register(ends, select.POLLIN)
        while True:
            for descriptor, event in events.poll():
                if (
                    event & select.POLLHUP
                ):  # also with orders left to read: their owner is gone, and nobody would end what they start
                    os._exit(0)
                if descriptor == ends:
                    os.read(ends, 1 << 12)
                    self._reap()
                else:
                    self._obey(*self._message())

    def _message(self) -> "tuple[dict[str, Any], list[int]]":
        head, descriptors, _, _ = socket.recv_fds(self._channel, 4, 3)
        size = int.from_bytes(self._rest(4, head), "big")
        return json.loads(self._rest(size)), descriptors

    def _rest(self, size: int, data: bytes = b"") -> bytes:
        """Further bytes of a message, as far as ``data`` does not hold them yet."""
        while len(data) < size:
            more = self._channel.recv(size - len(data))
            if not more:
                os._exit(0)
            data += more
        return data

    def _obey(self, message: "dict[str, Any]", descriptors: "list[int]") -> None:
        if "launch" in message:
            self._launch(message, descriptors)
        elif "kill" in message:
            for pid, number in self._running.items():
                if number == message["kill"]:
                    _kill_group(pid)
        else:
            self._environment = _variables(message["environment"])

    def _launch(self, order: "dict[str, Any]", descriptors: "list[int]") -> None:
        tag, after = order["tags"]
        try:
            os.chdir(order["folder"].encode("latin-1"))
            _carry(tag)
            words = [word.encode("latin-1") for word in order["words"]]
            pid = _started(words, {**self._environment, **_variables(order["additions"])}, descriptors)
        except OSError as error:
            self._say("refused", order["launch"], error.errno or errno.EIO)
        except ValueError:  # setrlimit(2) refused: somebody has lowered the limit of this process further
            self._say("refused", order["launch"], errno.EPERM)
        else:
            self._running[pid] = order["launch"]
            self._say("began", order["launch"], pid)
        finally:
            try:
                _carry(after)
            except ValueError:  # refused as above; the next launch is told
                pass
            os.chdir("/")
            for descriptor in descriptors:
                os.close(descriptor)

    def _reap(self) -> None:
        """Wait for all children that have ended."""
        ended = []
        while True:
            try:
                end = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if end is None:
                break
            number = self._running.pop(end.si_pid, None)
            if number is not None:  # before it is waited for: until then its id can't belong to anybody else
                _kill_group(end.si_pid)
            _, status = os.waitpid(end.si_pid, 0)
            if number is not None:
                ended.append((number, os.waitstatus_to_exitcode(status)))
        left = int(bool(ended) and self._others())
        for number, code in ended:
            self._say("ended", number, code, left)

    def _others(self) -> bool:
        """Whether there may be processes that commands left: children that nobody launched, or whose parents are not known here."""
        if not self._adopts:
            return True
        try:
            with open(self._children, "rb", buffering=0) as file:
                found = file.read()
        except OSError:
            return True
        return found is None or any(int(pid) not in self._running for pid in found.split())

    def _say(self, *words: object) -> None:
        try:
            self._channel.sendall(" ".join(map(str, words)).encode() + b"\n")
        except OSError:
            os._exit(0)


def _nothing(*_: object) -> None:
    """A signal without a handler would not wake anybody."""


def _adopt_orphans() -> bool:
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def _carry(tag: "int | None") -> None:
    if tag is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_RTTIME, (tag, tag))


def _variables(given: "dict[str, str]") -> "dict[bytes, bytes]":
    return {name.encode("latin-1"): value.encode("latin-1") for name, value in given.items()}


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass


def _started(words: "list[bytes]", environment: "dict[bytes, bytes]", streams: "list[int]") -> int:
    """The id of a new process. Raises OSError."""
    program = _found(words[0], environment)
    try:
        return _spawned(program, words, environment, streams)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    return _spawned(b"/bin/sh", [b"/bin/sh", program, *words[1:]], environment, streams)  # as execvp(3) does


def _spawned(program: bytes, words: "list[bytes]", environment: "dict[bytes, bytes]", streams: "list[int]") -> int:
    actions = [(os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in enumerate(streams)]
    closing = [(os.POSIX_SPAWN_CLOSE, descriptor) for descriptor in streams]
    return os.posix_spawn(
        program, words, environment, file_actions=[*actions, *closing], setsid=True, setsigdef=_DEFAULT
    )


def _found(program: bytes, environment: "dict[bytes, bytes]") -> bytes:
    """The path of a program, as execvp(3) finds it. Raises OSError."""
    if b"/" in program:
        return program
    for folder in environment.get(b"PATH", os.defpath.encode()).split(b":"):
        path = os.path.join(folder, program)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


if __name__ == "__main__":
    for _number in _IGNORED:
        signal.signal(_number, signal.SIG_IGN)
    _channel = socket.socket(fileno=int(sys.argv[1]))
    _channel.set_inheritable(False)
    _Launcher(_channel).serve()
