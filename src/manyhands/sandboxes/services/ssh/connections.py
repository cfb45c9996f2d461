"""Connections to one machine by the program ``ssh``, shared by many commands.

A connection is a master of OpenSSH (``ControlMaster``), a child of ours whose socket lies in a private folder of this process. Commands
are further programs ``ssh`` that use it, so they don't log in. A server takes ten of them a connection (``MaxSessions``), so there are as
many connections as are needed, of which few are made at a time, as servers drop whoever comes while too many log in (``MaxStartups``).
The first session of each connection is the guard of ``scripts``, whose input ends when we die; nothing of a connection outlives us.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.processes.children import (
    PipeReader,
    PipeWriter,
    Process,
    close_all,
    fresh_pipes,
    to_the_end,
)
from manyhands.sandboxes.services.ssh.scripts import GUARD, PREPARE, called, on_one_line

_SHELL = "exec /bin/sh -c 'IFS= read -r s; eval \"$s\"'"
"""What the other machine is told to run; its login shell may be of any kind. The rest comes as lines of input."""
_SCRUBBED = (
    'exec env -i "PATH=${PATH:-/usr/local/bin:/usr/bin:/bin}" "USER=${USER:-}" "LOGNAME=${LOGNAME:-}" '
    "/bin/sh -c 'IFS= read -r s; eval \"$s\"'"
)
_PASSED = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "SSH_AUTH_SOCK", "KRB5CCNAME", "LANG")
"""What the program ssh gets of our environment: no keys, whatever ``SendEnv`` its configuration has."""
_OPTIONS = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "ConnectTimeout": "15",
    "ServerAliveInterval": "15",
    "ServerAliveCountMax": "4",
    "ClearAllForwardings": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "EscapeChar": "none",
    "ControlPersist": "no",
    "LogLevel": "ERROR",
}
_SECONDS = 30.0
"""How long a login, or the start of a command, may take."""
_AT_ONCE = 3
"""Logins at the same time."""
_LOGINS = 7
_LOGIN_SECONDS = 60.0
"""After how long no further login is tried."""
_FIRST_PAUSE, _MAX_PAUSE = 0.3, 8.0
_SESSIONS = 10
_BROKEN = 255
_TRIES_ALONE = 3
_NOTICED = 0.2
"""Seconds after which the end of a connection is known."""
_BEAT = 20.0
_LOOKS = 20
"""Seconds between the guard's looks whether we are still there."""
_MAX_NOISE = 1 << 16
_FOR_GOOD = re.compile(
    r"permission denied|host key|could not resolve|no such identity|bad configuration|bad owner or permissions|unprotected private key"
    r"|identification has changed|unknown option|no matching",
    re.IGNORECASE,
)
"""Complaints that no new try mends."""
_NOT_BEGUN = re.compile(
    rb"session open refused|session request failed|control socket connect|UNKNOWN port 65535", re.IGNORECASE
)
"""Complaints of a program ssh whose command was never begun."""
_NAME = re.compile(r"[A-Za-z0-9_.:%][A-Za-z0-9_.:%-]*")
_LEFT = re.compile(r"manyhands-ssh-([0-9]+)-")
Sink = Callable[[bytes], object]


@dataclass(frozen=True, slots=True)
class SshTarget:
    """An account on a machine, and the folder there for worlds."""

    host: str
    user: str | None = None
    port: int | None = None
    key: Path | None = None
    config: Path | None = None
    """In place of the user's own configuration of ssh."""
    folder: str = ".manyhands-worlds"
    """Relative to the account's home folder, unless it is absolute."""

    @property
    def problem(self) -> str | None:
        """One line on a name that can be none, a file that is not there, or no program ssh."""
        if not _NAME.fullmatch(self.host):
            return f"--ssh_host: {self.host!r} is no name of a machine"
        if self.user is not None and not _NAME.fullmatch(self.user):
            return f"--ssh_user: {self.user!r} is no name of an account"
        for option, path in (("ssh_key", self.key), ("ssh_config", self.config)):
            if path is not None and not path.is_file():
                return f"--{option}: there is no file {path}"
        return None if shutil.which("ssh") else "ssh is missing (install the package openssh-client)"

    def words(self, *more: str) -> list[str]:
        """A command line of ssh up to the machine's name."""
        words = ["ssh", "-T", "-x", "-a"]
        if self.config is not None:
            words += ["-F", str(self.config.absolute())]
        words += [word for name, value in _OPTIONS.items() for word in ("-o", f"{name}={value}")]
        words += [*more, *(["-p", str(self.port)] if self.port is not None else [])]
        if self.key is not None:
            words += ["-i", str(self.key.absolute()), "-o", "IdentitiesOnly=yes"]
        if self.user is not None:
            words += ["-l", self.user]
        return [*words, "--", self.host]


@dataclass(frozen=True, slots=True)
class Machine:
    """What is known of the machine."""

    folder: str
    """The absolute folder for worlds."""
    user: str
    number: int
    id: str
    """What tells it, and this start of it, from others."""
    path: str = ""


def environment() -> dict[str, str]:
    """What a program ssh gets."""
    return {name: os.environ[name] for name in _PASSED if name in os.environ}


def script_lines(script: str) -> bytes:
    """The lines of input for ``_SHELL`` that run a script with a fresh environment."""
    return _SCRUBBED.encode() + b"\n" + on_one_line(script)


def complaint(errors: bytes) -> str:
    """What ssh complained of, in one line."""
    lines = [line.strip() for line in errors.decode(errors="replace").splitlines() if line.strip(" \t@\r\n")]
    told = [line for line in lines if not line.startswith(("Warning:", "**"))]
    return "; ".join(told[-3:])[:500] or "no answer"


_machines: dict[SshTarget, Machine] = {}


def found(target: SshTarget) -> Machine | str:
    """The machine, asked once a process; or one line on why it can't be used. Not for the event loop's thread."""
    if target.problem is not None:
        return target.problem
    if target in _machines:
        return _machines[target]
    said, ends = "", time.monotonic() + _LOGIN_SECONDS
    for again in range(_LOGINS):
        code, output, errors = _asked(target)
        if code == 0:
            machine = machine_of(output)
            if isinstance(machine, str):
                return f"{target.host}: {machine}"
            _machines[target] = machine
            return machine
        said = complaint(errors + output if code != _BROKEN else errors)
        if code != _BROKEN or _FOR_GOOD.search(said) or "refused" in said or time.monotonic() > ends:
            break
        if again + 1 < _LOGINS:
            time.sleep(_pause(again))
    return f"can't log in to {target.host}: {said}{_hint(said)}"


def _hint(said: str) -> str:
    if "host key verification" in said.lower() or "host key is known" in said.lower():
        return " (log in once by hand with ssh, which shows its key and asks whether it is right)"
    return ""


def _asked(target: SshTarget) -> tuple[int, bytes, bytes]:
    words = target.words("-o", "ControlMaster=no", "-o", "ControlPath=none")
    process = subprocess.Popen(
        [*words, _SHELL],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(script_lines(f"echo; echo .; {called(PREPARE, target.folder)}"), _SECONDS)
    except subprocess.TimeoutExpired:
        output, errors = b"", f"no answer within {_SECONDS:.0f} seconds".encode()
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    return code, output, errors


def machine_of(output: bytes) -> Machine | str:
    """The machine that ``PREPARE`` describes, or what is missing there."""
    lines = output.decode(errors="surrogateescape").rpartition("\n.\n")[2].splitlines()
    if len(lines) < 6 or not lines[2].isdecimal():
        return "the machine did not say what it is"
    folder, user, number, machine, boot, missing = lines[:6]
    if missing.strip():
        return f"the machine lacks what worlds need: {missing.strip()}"
    return Machine(folder, user, int(number), f"ssh:{machine}:{boot}:{folder}")


class SshStream:
    """A command on the other machine. Fulfils ``ExecStream``."""

    def __init__(
        self, words: Sequence[str], output: Sink, errors: Sink, token: str, connected: Callable[[], bool] = lambda: True
    ) -> None:
        """``token``: what both streams say, as a line, before they are the command's; what comes before is dropped. ``connected``:
        whether the connection lasts."""
        pipes = fresh_pipes(3)
        (input_end, feed_end), (out_end, output_end), (err_end, errors_end) = pipes
        try:
            self._process = Process(words, environment(), stdin=input_end, output=output_end, errors=errors_end)
        except BaseException:
            close_all(feed_end, out_end, err_end)
            raise
        finally:
            close_all(input_end, output_end, errors_end)
        self._connected = connected
        self._closed = False
        self._begun = asyncio.Event()
        self._output = _Behind(token, output, self._one_began)
        self._errors = _Behind(token, errors, self._one_began)
        self._readers = PipeReader(out_end, self._output.feed), PipeReader(err_end, self._errors.feed)
        self._writer = PipeWriter(feed_end)
        self._process.on_end(lambda code: self._begun.set())

    @property
    def process(self) -> Process:
        return self._process

    @property
    def noise(self) -> bytes:
        """What came before the command's own errors."""
        return self._errors.before

    @property
    def has_begun(self) -> bool:
        return self._output.begun and self._errors.begun

    async def begin(self, lines: bytes) -> bool:
        """Send the command, and wait until it says that it has begun; False if the program ended before. Raises ItemError(SANDBOX_LOST)
        if neither happens in time."""
        await self._writer.write(lines)
        try:
            await asyncio.wait_for(self._begun.wait(), _SECONDS)
        except TimeoutError:
            raise ItemError(Cause.SANDBOX_LOST, f"ssh: no answer within {_SECONDS:.0f} seconds") from None
        if not self.has_begun:
            await self._finish()
        return self.has_begun

    async def write(self, data: bytes) -> None:
        if not await self._writer.write(data):
            raise ConnectionError("nobody reads the command's input any more")

    async def close_input(self) -> None:
        self._writer.close()

    async def wait(self) -> int | None:
        code = await self._process.wait()
        await self._finish()
        if code == _BROKEN:  # of the program ssh, or of the command
            await asyncio.sleep(_NOTICED)
            return code if self._connected() and not self._closed else None
        return None if self._closed else code

    async def close(self) -> None:
        self._closed = True
        self._writer.close()
        self._process.kill_group()
        for reader in self._readers:
            reader.close()
        await self._process.wait_for(5.0)

    async def _finish(self) -> None:
        for reader in self._readers:
            await reader.finish(2.0)

    def _one_began(self) -> None:
        if self.has_begun:
            self._begun.set()


class _Behind:
    """Passes on what comes behind a line."""

    def __init__(self, token: str, sink: Sink, began: Callable[[], None]) -> None:
        self._line = f"\n{token}\n".encode()
        self._sink = sink
        self._began = began
        self.before = b""
        self.begun = False

    def feed(self, data: bytes) -> None:
        if self.begun:
            self._sink(data)
            return
        self.before += data
        at = self.before.find(self._line)
        if at < 0:
            self.before = self.before[-_MAX_NOISE:]
            return
        rest = self.before[at + len(self._line) :]
        self.before = self.before[:at]
        self.begun = True
        if rest:
            self._sink(rest)
        self._began()


class Connection:
    """One master. ``opened`` before anything else."""

    def __init__(self, target: SshTarget, machine: Machine, socket: Path, capacity: int) -> None:
        self._target = target
        self._machine = machine
        self._socket = socket
        self._guard: SshStream | None = None
        self._beating: asyncio.Task[None] | None = None
        self.token = secrets.token_hex(16)
        self.capacity = capacity
        self.used = 1
        """Sessions, with those that are about to begin and the guard's."""
        self.reserved = 0
        """Sessions that were ever about to begin."""
        self.ready: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self._guard is not None and self._guard.process.exit_code is None

    async def open(self, turns: asyncio.Semaphore) -> None:
        """Log in. Raises ItemError(SANDBOX_LOST)."""
        said, ends = b"", time.monotonic() + _LOGIN_SECONDS
        for again in range(_LOGINS):
            async with turns:
                code, said = await self._login()
            if self.alive:
                self._beating = asyncio.ensure_future(self._beat())
                return
            if code != _BROKEN or _FOR_GOOD.search(complaint(said)) or time.monotonic() > ends:
                break
            if again + 1 < _LOGINS:
                await asyncio.sleep(_pause(again))
        raise ItemError(Cause.SANDBOX_LOST, f"ssh: can't log in to {self._target.host}: {complaint(said)}")

    def words(self) -> list[str]:
        """The command line of a further session. Its proxy leads nowhere: whatever happens, it does not log in by itself."""
        return [
            *self._target.words("-S", str(self._socket), "-o", "ControlMaster=no", "-o", "ProxyCommand=false"),
            _SHELL,
        ]

    async def close(self) -> None:
        """End all that runs in the worlds of this connection, and the connection."""
        if self._beating is not None:
            self._beating.cancel()
        if self._guard is not None:
            await self._guard.close_input()
            await self._guard.process.wait_for(10.0)
            await self._guard.close()
        self._socket.unlink(missing_ok=True)

    async def _login(self) -> tuple[int | None, bytes]:
        """Make the master; its exit code and what it complained of, if that failed."""
        token = secrets.token_hex(16)
        words = self._target.words("-M", "-S", str(self._socket), "-o", "ControlMaster=yes")
        guard = SshStream([*words, _SHELL], _dropped, _dropped, token)
        script = called(GUARD, self._machine.folder, self.token, str(_LOOKS), token)
        try:
            if await guard.begin(script_lines(script)):
                self._guard = guard
                return None, b""
            return guard.process.exit_code, guard.noise
        except ItemError as error:
            return _BROKEN, str(error).encode()
        finally:
            if self._guard is not guard:
                await to_the_end(guard.close())
                self._socket.unlink(missing_ok=True)

    async def _beat(self) -> None:
        while self._guard is not None:
            await asyncio.sleep(_BEAT)
            with suppress(ConnectionError, TimeoutError):
                await asyncio.wait_for(self._guard.write(b"beat\n"), _BEAT)


class Connections:
    """All connections of this process and event loop to one machine."""

    def __init__(self, target: SshTarget, machine: Machine) -> None:
        self._target = target
        self._machine = machine
        self._folder: Path | None = None
        self._connections: list[Connection] = []
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._capacity = _SESSIONS
        self._count = 0
        self._closed = False

    async def keeper(self) -> Connection:
        """A connection with which a world's processes may end."""
        connection = await self._reserved()
        connection.used -= 1
        return connection

    async def start(self, script: str, output: Sink, errors: Sink) -> SshStream:
        """Start a script, which has to say by ``begun_line`` when it has begun. Raises ItemError(SANDBOX_LOST), and ``NotBegun`` if it
        ended before."""
        token = secrets.token_hex(16)
        lines = script_lines(f"begun() {{ printf '\\n%s\\n' {token}; printf '\\n%s\\n' {token} >&2; }}\n{script}")
        refused_alone = 0
        for _ in range(100):
            connection = await self._reserved()
            mine, alone = connection.reserved, connection.used == 2
            try:
                stream = SshStream(connection.words(), output, errors, token, partial(_is_alive, connection))
            except BaseException:
                connection.used -= 1
                raise
            stream.process.on_end(partial(_release, connection))
            try:
                if await stream.begin(lines):
                    return stream
            except BaseException:
                await to_the_end(stream.close())
                raise
            code = stream.process.exit_code or 0
            await stream.close()
            if code != _BROKEN:
                raise NotBegun(code, stream.noise)
            if not _NOT_BEGUN.search(stream.noise):
                break
            if not connection.alive:
                await asyncio.sleep(_NOTICED)
            elif alone and connection.reserved == mine:
                refused_alone += 1  # the server may not have noticed yet that others ended
                if refused_alone == _TRIES_ALONE:
                    raise ItemError(Cause.SANDBOX_LOST, "ssh: the server takes one session a connection (MaxSessions)")
                await asyncio.sleep(_NOTICED)
            else:
                # Those that were in the way may have ended since.
                connection.capacity = self._capacity = min(connection.capacity, max(2, connection.used))
        raise ItemError(Cause.SANDBOX_LOST, f"ssh: {self._target.host}: {complaint(stream.noise)}")

    async def close(self) -> None:
        """Close all. Idempotent."""
        self._closed = True
        connections, self._connections = self._connections, []
        for connection in connections:
            if connection.ready is not None and not connection.ready.done():
                connection.ready.cancel()
                await asyncio.wait([connection.ready])
        await asyncio.gather(*(connection.close() for connection in connections))
        folder, self._folder = self._folder, None
        if folder is not None:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _reserved(self) -> Connection:
        """A connection with one session more counted."""
        while True:
            if self._closed:
                raise ItemError(Cause.SANDBOX_LOST, "ssh: the connections are closed")
            connection = next((each for each in self._connections if _has_room(each)), None) or self._fresh()
            assert connection.ready is not None
            connection.used += 1
            connection.reserved += 1
            try:
                await asyncio.shield(connection.ready)
            except BaseException:
                connection.used -= 1
                if connection.ready.done():
                    self._forget(connection)
                raise
            if connection.alive:
                return connection
            connection.used -= 1
            self._forget(connection)
            await connection.close()

    def _fresh(self) -> Connection:
        if self._folder is None:
            _remove_left()
            self._folder = Path(tempfile.mkdtemp(prefix=f"manyhands-ssh-{os.getpid()}-"))
        self._count += 1
        connection = Connection(self._target, self._machine, self._folder / str(self._count), self._capacity)
        connection.ready = asyncio.ensure_future(connection.open(self._turns))
        connection.ready.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._connections.append(connection)
        return connection

    def _forget(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)


class NotBegun(Exception):
    """A script ended before it said that it had begun: with which exit code, and what it said."""

    def __init__(self, code: int, noise: bytes) -> None:
        super().__init__(f"exit code {code}")
        self.code = code
        self.noise = noise


def _is_alive(connection: Connection) -> bool:
    return connection.alive


def _release(connection: Connection, code: int) -> None:
    connection.used -= 1


def _has_room(connection: Connection) -> bool:
    usable = connection.ready is not None and (not connection.ready.done() or connection.alive)
    return usable and connection.used < connection.capacity


def _pause(again: int) -> float:
    """Seconds before a further login: longer each time, and not at the moment of everybody else."""
    return min(_MAX_PAUSE, _FIRST_PAUSE * 2.0**again) * random.uniform(0.5, 1.5)


def _dropped(data: bytes) -> None:
    pass


def _remove_left() -> None:
    """Remove the folders of sockets that processes left when they were killed."""
    for entry in Path(tempfile.gettempdir()).glob("manyhands-ssh-*"):
        name = _LEFT.match(entry.name)
        with suppress(OSError):
            if name and entry.stat().st_uid == os.getuid() and not Path("/proc", name[1]).exists():
                shutil.rmtree(entry, ignore_errors=True)
