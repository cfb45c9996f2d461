"""An interpreter that is warm: it runs Python scripts, each in a copy of itself, which is as good as a fresh process and far quicker.

It is a program of its own, started with the interpreter that the scripts want, so it needs the standard library only and nothing of
this package. It is given a socket (``SOCK_SEQPACKET``), on which each message is a JSON object:

===========================================  ====================================================================================
``{"ready": true}``                          from here, once
``{"run", "words", "cwd", "environment"}``   to here, with three descriptors: run the script ``words[1]``; ``environment`` is added
``{"signal": S, "run": N}``                  to here: signal its process group, if it has not ended
``{"run": N, "code": C}``                    from here: it has ended; a negative code is a signal, as ``subprocess`` counts; null: it
                                             could not be started here
===========================================  ====================================================================================

When the socket is closed at the other end, everything that runs is killed.

A copy is made by fork, in a session of its own. It takes over the three descriptors as its standard streams, whose Python objects are
as at the start of an interpreter, since this one has never used them; and it leaves this file's code at its very end, so that the
script ends as scripts do: threads joined, exit handlers called, its modules taken apart, streams flushed, exit code as Python has it. Only
what was loaded before is not taken apart (see ``_Leaving``). What differs: all copies of one interpreter have the seed of its hashes in
common, frames of this file are below the script's, and what a script hangs on such a module is not finalized.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # not imported when it runs: what typing loads would not be there in a fresh interpreter
    from typing import Any

_FRESH = set(sys.modules)
"""What every interpreter has loaded at its start."""
if sys.path and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # this file's folder: a script must not find its neighbours, nor this file the wrong modules

import atexit  # noqa: E402
import gc  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import select  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402

_MAX_MESSAGE = 1 << 17


class _Worker:
    """The loop of the interpreter that stays."""

    def __init__(self, channel: "socket.socket") -> None:
        self._channel = channel
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._running: dict[int, tuple[int, int]] = {}
        """By the number of the run: process and pidfd."""

    def serve(self) -> "tuple[dict[str, Any], list[int]]":
        """What a copy is to run, and its streams; in the interpreter that stays it never returns."""
        self._send({"ready": True})
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor != self._channel.fileno():
                    self._ended(descriptor)
                    continue
                task = self._message()
                if task is not None:
                    return task

    def _message(self) -> "tuple[dict[str, Any], list[int]] | None":
        data, descriptors, _, _ = socket.recv_fds(self._channel, _MAX_MESSAGE, 3)
        if not data:
            self.end_all()
        message = json.loads(data)
        if "signal" in message:
            running = self._running.get(message["run"])
            if running is not None:
                _signal(running[0], message["signal"])
            return None
        return self._start(message, descriptors)

    def _start(self, message: "dict[str, Any]", descriptors: "list[int]") -> "tuple[dict[str, Any], list[int]] | None":
        try:
            pid = os.fork()
        except OSError:
            pid = -1
        if pid == 0:
            for _, watch in self._running.values():
                os.close(watch)
            self._channel.close()
            return message, descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        if pid < 0:
            self._send({"run": message["run"], "code": None})
            return None
        watch = os.pidfd_open(pid)
        self._running[message["run"]] = (pid, watch)
        self._poll.register(watch, select.POLLIN)
        return None

    def _ended(self, watch: int) -> None:
        run = next(run for run, (_, descriptor) in self._running.items() if descriptor == watch)
        pid, _ = self._running.pop(run)
        self._poll.unregister(watch)
        os.close(watch)
        _signal(
            pid, signal.SIGKILL
        )  # what is left of its group; it has not been waited for, so the id is still its own
        _, status = os.waitpid(pid, 0)
        self._send({"run": run, "code": -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)})

    def _send(self, message: "dict[str, Any]") -> None:
        try:
            self._channel.send(json.dumps(message).encode())
        except OSError:
            self.end_all()

    def end_all(self) -> "Any":
        """Kill everything that runs, and end."""
        for pid, _ in self._running.values():
            _signal(pid, signal.SIGKILL)
        os._exit(0)


def _signal(pid: int, number: int) -> None:
    for send, target in ((os.killpg, pid), (os.kill, pid)):  # the latter for one that has no session yet
        try:
            send(target, number)
        except OSError:  # it has ended
            pass


def _become(message: "dict[str, Any]", descriptors: "list[int]") -> None:
    """Make this copy the process that the script expects."""
    os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        if descriptor > 2:
            os.close(descriptor)
    os.environ.update(message["environment"])
    os.chdir(message["cwd"])


def _prepare(words: "list[str]") -> "Any":
    """The module ``__main__`` of a script, as the interpreter makes it."""
    sys.argv = words[1:]
    sys.orig_argv = words
    path = os.path.join(os.getcwd(), words[1])
    folder = os.path.dirname(os.path.realpath(path))
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)
    _forget(folder)
    import builtins
    from _frozen_importlib_external import SourceFileLoader

    module: Any = type(sys)("__main__")
    module.__builtins__ = builtins
    module.__file__ = path
    module.__loader__ = SourceFileLoader("__main__", path)
    module.__cached__ = None
    module.__annotations__ = {}
    return module


def _forget(folder: str) -> None:
    """Forget what was loaded since the start where the script's folder holds a module of that name, which it would find first."""
    try:
        names = {name.partition(".")[0] for name in os.listdir(folder)}
    except OSError:
        return
    loaded = set(sys.modules) - _FRESH
    if names & {name.partition(".")[0] for name in loaded}:
        for name in loaded:
            del sys.modules[name]


class _Leaving:
    """Ends a copy once all that its script made is finalized. What the interpreter would still do is take apart itself and what was loaded
    before the fork, for which the kernel copies most of its memory page by page: that takes as long as a small script."""

    def __init__(self) -> None:
        self.code: int | None = None
        """The script's exit code; None for one that the interpreter makes of how the script ended."""
        self._loaded = {name: sys.modules[name] for name in set(sys.modules) - {"sys", "builtins", "__main__"}}
        self._forever = self  # only the collector could free it, and that leaves alone all that is loaded
        atexit.register(self.prepare)  # the first that is registered is called last

    def prepare(self) -> None:
        """The last exit handler. The interpreter next flushes streams and takes apart modules, at the end ``sys``, whose names it deletes
        in the order in which they were set."""
        streams = [sys.stdout, sys.stderr]
        if self.code is None or len(sys._current_frames()) > 1 or {*map(type, streams)} != {type(sys.__stdout__)}:
            return
        try:
            streams = [stream for stream in streams if not stream.closed]
            for stream in streams:
                stream.flush()
        except (OSError, ValueError):  # the interpreter makes an exit code of that
            return
        for name, module in self._loaded.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
        sys.__dict__["manyhands_leaving"] = _Last(self.code, streams)


class _Last:
    """Leaves when it is deleted."""

    def __init__(self, code: int, streams: "list[Any]") -> None:
        self._code = code
        self._streams = streams
        self._leave = os._exit

    def __del__(self) -> None:
        for stream in self._streams:
            try:
                stream.flush()
            except (OSError, ValueError):
                pass
        self._leave(self._code)


def _exit_code(end: SystemExit) -> "int | None":
    """The code that it asks for, if that is plain."""
    if end.code is None:
        return 0
    return end.code if type(end.code) is int and 0 <= end.code < 256 else None


def _run(words: "list[str]") -> None:
    module = _prepare(words)
    sys.modules["__main__"] = module
    try:
        with open(words[1], "rb") as file:
            code = compile(file.read(), module.__file__, "exec", dont_inherit=True)
        exec(code, module.__dict__)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a script raises is reported as an interpreter does
        trace = error.__traceback__
        inner = trace and trace.tb_next  # without the frame of this function
        sys.excepthook(type(error), error.with_traceback(inner), inner)
        sys.exit(1)


if __name__ == "__main__":
    _channel = socket.socket(fileno=int(sys.argv[1]))
    _channel.set_inheritable(False)
    if not (hasattr(os, "fork") and hasattr(os, "pidfd_open") and hasattr(socket, "recv_fds")):
        sys.exit(3)
    _leaving = _Leaving()
    gc.collect()
    gc.freeze()
    _worker = _Worker(_channel)
    try:
        _task, _descriptors = _worker.serve()
    except BaseException:
        _worker.end_all()
        raise
    _become(_task, _descriptors)
    try:
        _run(_task["words"])
        _leaving.code = 0
    except SystemExit as _end:
        _leaving.code = _exit_code(_end)
        raise
