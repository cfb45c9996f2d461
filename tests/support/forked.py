"""``manyhands …`` in processes of their own that need not import everything first.

Most of the time of a short command is the interpreter's: it imports. A server imports once, and then forks for each command: what
comes of it is a process like any other, with a session, a folder, an environment and an end of its own, which may be killed at any
instant. Only its command line, in ``/proc``, is the server's. There is one server for each process that runs tests; it ends with it.

The runners of jobs are started by the code under test, as interpreters of their own. With ``forked_runners``, such an interpreter
imports nothing but ``handover/sitecustomize.py``, which has the server fork the runner, and ends, as it does anyway. Without a
server, it goes on as if nothing had been.

``forked_program`` is for the other Python programs that tests have started and that import much, as MCP servers and clients do: a small
process stands in for the program, which is forked.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from select import select
from tempfile import mkdtemp
from typing import Any, NoReturn

from manyhands.cli.main import COMMANDS, main
from manyhands.processes.interpreters import freeze_objects, module_path, python_command
from manyhands.runs.registry import WORKLOADS
from manyhands.workloads.csv_jobs.service.control import READY
from tests.support.handover.sitecustomize import ADDRESS, RUNNER

LONGEST_START = 60.0
"""Seconds that the server may take to begin a command, its imports included."""
_MOST_BYTES = 1 << 20
_IMPORTED = (
    "aiohttp.web",
    "manyhands.cli.execution",
    "manyhands.cli.plain",
    RUNNER,
    "manyhands.workloads.csv_jobs.rows.schema_validator",
    "manyhands.models.openai.client",
    "manyhands.models.pricing",
    "manyhands.models.simulated.model",
    "manyhands.sandboxes.local",
    "manyhands.tools.own_functions",
    "encodings.idna",
    *(entry.factory.partition(":")[0] for entry in WORKLOADS.values()),
)
"""What is imported beside the modules of the commands that are asked for."""
_IMPORTED_FOR = {"mcp": ("manyhands.workloads.csv_jobs.mcp.server", "manyhands.workloads.csv_jobs.mcp.http")}
"""What a command imports late, because it is an extra."""
_IMPORTED_FOR_PROGRAMS = ("mcp.server.mcpserver", *_IMPORTED_FOR["mcp"])


class ForkedProcess:
    """A command that was begun; has what tests need of ``subprocess.Popen``."""

    def __init__(
        self,
        words: Sequence[str],
        folder: Path | None,
        environ: Mapping[str, str],
        stdout: int,
        stderr: int,
        stdin: int | None = None,
    ) -> None:
        """``stdout``, ``stderr``, ``stdin``: file descriptors; without the last, there is no input. Raises RuntimeError if it can't be
        begun."""
        self.args = ["manyhands", *words]
        self.returncode: int | None = None
        self._told, tell = os.pipe()
        order = {"words": list(words), "folder": str(folder or Path.cwd()), "environ": dict(environ)}
        try:
            files = [tell, stdout, stderr, *([] if stdin is None else [stdin])]
            socket.send_fds(_server()[0], [json.dumps(order).encode()], files)
        finally:
            os.close(tell)
        self.pid = self._next(LONGEST_START)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None as long as it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            self.returncode = self._next(timeout)
            os.close(self._told)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _next(self, timeout: float | None) -> int:
        """The next number that the server tells: the process's id, then its exit code."""
        if not select([self._told], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        text = b""
        while not text.endswith(b"\n"):
            if not (byte := os.read(self._told, 1)):
                raise RuntimeError(f"the server of commands is gone: {self.args}")
            text += byte
        return int(text)


def path_of_tests() -> str:
    """PYTHONPATH for a process that is to find these tests, too, whichever folder it is started in."""
    return os.pathsep.join((str(Path(__file__).parents[2]), module_path()))


@contextmanager
def forked_runners() -> Iterator[None]:
    """Have the runners of jobs forked that are started meanwhile, by this process or with the environment of ``commands``."""
    folder = str(Path(__file__).parent / "handover")
    path = os.environ.get("PYTHONPATH")
    os.environ[ADDRESS] = _server()[1]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, path)))
    sys.path.insert(0, folder)  # a system may have a sitecustomize of its own
    try:
        yield
    finally:
        sys.path.remove(folder)
        del os.environ[ADDRESS]
        if path is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = path


def forked_program(script: Path, *words: str) -> list[str]:
    """A command line for a Python program that has no children to be looked for: it is forked, in a session of its own, and ends with
    the process that this command line starts."""
    return [
        sys.executable,
        "-I",
        "-S",
        str(Path(__file__).parent / "handover/stand_in.py"),
        _server()[1],
        str(script),
        *words,
    ]


@cache
def _server() -> tuple[socket.socket, str]:
    """The server of this process, begun at the first command, and the address where it listens for runners."""
    address = str(Path(mkdtemp(prefix="manyhands-forked-")) / "server")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
        listening.bind(address)
        listening.listen()
        inherited = [theirs.fileno(), listening.fileno()]
        subprocess.Popen(
            python_command("tests.support.forked", *map(str, inherited)),
            stdin=subprocess.DEVNULL,
            pass_fds=inherited,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path_of_tests()},
        )
    return ours, address


# --- The server


def serve(channel: socket.socket, listening: socket.socket) -> Callable[[], int] | None:
    """Fork for each order. Comes back in a child, with what it is to do, or, with None, when nobody can order any more."""
    for module in _IMPORTED:
        importlib.import_module(module)
    ends: dict[int, int] = {}
    with channel, listening, selectors.DefaultSelector() as events:
        events.register(channel, selectors.EVENT_READ)
        events.register(listening, selectors.EVENT_READ)
        while True:
            for key, _ in events.select():
                if key.fileobj is channel:
                    message, files, *_ = socket.recv_fds(channel, _MOST_BYTES, 4)
                    if not message:
                        _forget(listening)
                        return None
                elif key.fileobj is listening:
                    message, files = _handed_over(listening)
                    if not message:
                        continue
                else:
                    events.unregister(key.fd)
                    _tell_end(key.fd, key.data, ends.pop(key.fd))
                    continue
                order = json.loads(message)
                if "script" in order:
                    _import_all(_IMPORTED_FOR_PROGRAMS)
                else:
                    _import_for(order["words"])
                freeze_objects()  # no child looks at what the server has imported, which would copy it
                if not (pid := os.fork()):
                    for end in (*ends, *ends.values()):
                        os.close(end)
                    return _become(order, files)
                for file in files[1:]:
                    os.close(file)
                end = os.pidfd_open(pid)
                ends[end] = files[0]
                events.register(end, selectors.EVENT_READ, pid)


def _handed_over(listening: socket.socket) -> tuple[bytes, list[int]]:
    """The order of an interpreter that was started as a runner; nothing if it was killed meanwhile."""
    connection, _ = listening.accept()
    with connection:
        message, files, *_ = socket.recv_fds(connection, _MOST_BYTES, 5)
    return message, files


def _forget(listening: socket.socket) -> None:
    address = Path(listening.getsockname())
    with suppress(OSError):
        address.unlink()
        address.parent.rmdir()


def _import_all(modules: Sequence[str]) -> None:
    """Import those that are installed."""
    for module in modules:
        with suppress(ModuleNotFoundError):
            importlib.import_module(module)


def _import_for(words: list[str]) -> None:
    """Import the module of a command, and that of the command below it, if it has some."""
    _import_all(_IMPORTED_FOR.get(words[0] if words else "", ()))
    commands: Mapping[str, Any] = COMMANDS
    for word in words[:2]:
        if (found := commands.get(word)) is None:
            return
        target = found if isinstance(found, str) else found[0]
        module = importlib.import_module(target.partition(":")[0])
        commands = getattr(module, "COMMANDS", {})


def _become(order: dict[str, Any], files: list[int]) -> Callable[[], int]:
    """Turn a fork of the server into the process that was ordered; what it is to do."""
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where tests run in the background, which ignores them
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tell, *others = files
    for place, file in zip((1, 2, 0), others, strict=False):
        os.dup2(file, place)
        os.close(file)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environ"])
    if "program" in order:
        os.environ[READY] = str(others[3])
    asked = order["environ"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = list(dict.fromkeys([*filter(None, asked), *sys.path]))
    importlib.invalidate_caches()
    os.write(tell, b"%d\n" % os.getpid())
    os.close(tell)
    words: list[str] = order["words"]
    sys.argv = [order.get("program") or order.get("script", "manyhands"), *words]
    if "script" in order:
        threading.Thread(target=_end_with, args=others[3:], daemon=True).start()
        return partial(_perform_script, order["script"])
    if "program" in order:
        runner: Callable[[], int] = importlib.import_module(RUNNER).main
        return runner
    return partial(main, words)


def _end_with(lives: int) -> None:
    """End, as by SIGKILL, when nobody has the other end of a pipe any more."""
    os.read(lives, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def _perform_script(script: str) -> int:
    runpy.run_path(script, run_name="__main__")
    return 0


def _tell_end(end: int, pid: int, tell: int) -> None:
    os.close(end)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(BrokenPipeError):  # nobody wants to know
        os.write(tell, b"%d\n" % code)
    os.close(tell)


def _end(run: Callable[[], int]) -> NoReturn:
    """Do what was ordered, and end at once: taking down all that the server has imported would cost more than most commands."""
    code: object = 1
    try:
        code = run()
    except SystemExit as error:
        code = error.code
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 - as an interpreter says it
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]  # as an interpreter does at its end: threads first
    atexit._run_exitfuncs()
    if isinstance(code, str):
        print(code, file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    ordered = serve(*(socket.socket(fileno=int(word)) for word in sys.argv[1:]))
    if ordered is not None:
        _end(ordered)
