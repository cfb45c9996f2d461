"""Worker processes on the nodes of a Ray cluster.

Ray decides where they start, and starts another one where one is lost; it carries nothing of what they say. Each worker connects to the
owner by itself (``handshake``) and speaks as a local one does (``wire``), once it has what it needs of the run's folder (``node_folder``).
Another process of this machine speaks to Ray (``placing``).
"""

from __future__ import annotations

import asyncio
import importlib.machinery
import json
import os
import secrets
import signal
import site
import sys
import sysconfig
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from manyhands.core.errors import UserError
from manyhands.core.redaction import KNOWN
from manyhands.core.text import counted, one_line
from manyhands.engine.contract import Execution, Workload
from manyhands.engine.executors import wire
from manyhands.engine.executors.handshake import NAME_BYTES, SECRET_BYTES, Gate
from manyhands.engine.executors.node_folder import ReturnedFiles, Returns, Shipment
from manyhands.engine.executors.processes import how_ended, open_log
from manyhands.engine.executors.remote import UNREACHABLE, Call
from manyhands.engine.executors.workers.launching import Death, FailedStart
from manyhands.io.files import mask_secrets
from manyhands.processes.interpreters import PYTHONPATH, module_path, python_command

PLACER = "manyhands.engine.executors.placing"
"""The module that speaks to Ray."""
MISSING = "--executor=ray needs Ray: pip install 'manyhands[ray]'"
CONNECT_SECONDS = 3.0
READY_SECONDS = 60.0
"""That connecting to the cluster may take at most, modules of the person's own included."""
FURNISH_SECONDS = 300.0
"""Seconds that a worker may take to connect once it has a place, then to see what its node lacks of the run's folder, and for each part of
that."""
WORD_SECONDS = 3.0
"""How long Ray's word is waited for, after a worker was lost; its items go back without it then."""
CLOSE_SECONDS = 10.0
WAIT_SECONDS = 15.0
"""After which the person hears that there is no room for a worker yet."""
MAX_NOTICE = 500
"""Characters of what a worker has to say of its machine."""
DEFAULT_PORT = 6379
ADDRESS_VARIABLE = "RAY_ADDRESS"
"""The environment variable that names a cluster where the run's settings don't."""


@dataclass(slots=True)
class _Expected:
    """A worker that was ordered."""

    name: str
    channel: asyncio.Future[wire.Channel]
    placed: asyncio.Event
    """Its node is known."""
    end: asyncio.Future[Death]
    node: str = ""
    address: str = "?"


class ClusterLauncher:
    """Has Ray start worker processes."""

    places = True

    def __init__(
        self, folder: Path, run_id: str, workload: Workload, execution: Execution, notice: Callable[[str], None]
    ) -> None:
        """``folder``: the run's; ``notice`` gets what a person should know."""
        self._folder = folder
        self.run_id = run_id
        self._workload = workload
        self._execution = execution
        self._notice = notice
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._gate = Gate(self._secret, self._admit)
        self._shipment = Shipment(folder, run_id, workload)
        self._returns = Returns(folder, workload.worker_results)
        self._turn = asyncio.Lock()
        self._expected: dict[str, _Expected] = {}
        self._lost: str | None = None
        """Why no further worker can be had."""
        self._address = ("", 0)
        self._placer: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._drain: Callable[[str], None] = lambda node: None
        self._log: IO[bytes] | None = None
        self._kept: dict[str, int] = {}
        self._told: set[str] = set()
        """What was said that is said but once."""
        self._closing = False

    async def open(self, drain: Callable[[str], None]) -> None:
        self._drain = drain
        if find_spec("ray") is None:
            raise UserError(MISSING)
        address, option = self._execution.ray_address, "--ray_address"
        if address is None and (address := os.environ.get(ADDRESS_VARIABLE)) is not None:
            option = ADDRESS_VARIABLE
        if address is not None and address != "auto":
            await check_address(address, option)
        modules = await asyncio.to_thread(shipped_modules, self._workload.modules)
        self._log = await asyncio.to_thread(open_log, self._folder)
        self._placer = await asyncio.create_subprocess_exec(
            *python_command(PLACER),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            env={**os.environ, PYTHONPATH: module_path()},
            limit=1 << 20,
        )
        self._tell(
            begin={
                "address": address,
                "run_id": self.run_id,
                "resources": dict(self._execution.ray_resources),
                "modules": [str(path) for path in modules],
            }
        )
        known_as = await self._ready()
        host, port = listening(self._execution.ray_listen, known_as)
        try:
            self._address = host, await self._gate.open(host, port)
        except OSError as error:
            raise UserError(
                f"can't listen on {host}:{port or 'any port'} for workers: {error.strerror or error} (--ray_listen)"
            ) from error
        self._listening = asyncio.create_task(self._listen())
        self._patience = asyncio.get_running_loop().call_later(WAIT_SECONDS, self._tell_waiting)

    async def start(self, near: str) -> _Remote:
        if self._lost is not None:
            raise UserError(self._lost)
        name, loop = secrets.token_hex(NAME_BYTES), asyncio.get_running_loop()
        expected = self._expected[name] = _Expected(name, loop.create_future(), asyncio.Event(), loop.create_future())
        host, port = self._address
        self._tell(start=name, call=Call(host, port, self._secret.hex(), name).to_json(), near=near)
        try:
            channel = await _connected(expected)
            if self._patience is not None:
                self._patience.cancel()
            return await self._furnished(expected, channel)
        except BaseException as error:
            if (
                not expected.channel.cancel()
                and not expected.channel.cancelled()
                and expected.channel.exception() is None
            ):
                expected.channel.result().close()
            self._tell(kill=name)
            self._expected.pop(name, None)
            if isinstance(error, TimeoutError):
                raise ConnectionError(
                    f"a worker on {expected.address} did not answer in {FURNISH_SECONDS:g} s"
                ) from None
            raise

    async def close(self) -> None:
        self._closing = True
        if self._patience is not None:
            self._patience.cancel()
        await self._gate.close()
        await asyncio.to_thread(self._shipment.close)
        if self._placer is not None:
            await self._end_placer(self._placer)
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        if impossible := self._returns.impossible:
            self._notice(
                f"{counted(len(impossible), 'file')} that items left can't be in {self._folder}, as they are called: "
                f"{one_line(impossible[0])[:200]}{' …' if len(impossible) > 1 else ''}"
            )
        for node, count in self._kept.items():
            self._notice(f"the workspaces of {counted(count, 'item')} stay on {node}")
        if self._log is not None:
            self._log.close()
            await asyncio.to_thread(mask_secrets, Path(self._log.name))

    def take(self, message: object, files: ReturnedFiles, node: str) -> Awaitable[None] | None:
        """What a worker has to say of its machine; as of ``Launched.take``. Raises StorageError, and ValueError for files that belong
        nowhere."""
        match message:
            case wire.Content():
                return files.take(message)
            case wire.Stays(_, folder):
                where = f"{node}, in {Path(folder).parent}"
                self._kept[where] = self._kept.get(where, 0) + 1
            case wire.Notice(text):
                self._tell_once(f"on {node}: {one_line(KNOWN.text(text))[:MAX_NOTICE]}")
        return None

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._notice(text)

    def tell_kill(self, name: str) -> None:
        """Have Ray end a worker at once."""
        self._tell(kill=name)

    def forget(self, name: str) -> None:
        """A worker has ended."""
        self._expected.pop(name, None)

    async def _furnished(self, expected: _Expected, channel: wire.Channel) -> _Remote:
        """A worker that has connected, with everything that it needs."""
        async with self._turn:
            furnish = await asyncio.to_thread(self._shipment.furnish, os.environ)
        try:
            channel.send(furnish)
            async with asyncio.timeout(FURNISH_SECONDS):
                answer = await channel.receive()
            if isinstance(answer, wire.Unusable):
                raise FailedStart(f"the node {expected.address}: {answer.message}", expected.node, unusable=True)
            if not isinstance(answer, wire.Missing):
                raise await self._why_lost(expected)
            for path in answer.paths:
                await self._send(channel, path)
        except TimeoutError as error:
            channel.close()
            raise ConnectionError(f"a worker on {expected.address} did not take what it needs in time") from error
        return _Remote(self, expected, channel, answer, self._returns.of_worker(expected.address))

    async def _why_lost(self, expected: _Expected) -> ConnectionError | FailedStart:
        """What became of a worker that connected and said no more: of one that ended by itself, no machine is to blame."""
        lost = f"a worker on {expected.address} was lost before it began"
        try:
            async with asyncio.timeout(WORD_SECONDS):
                death = await asyncio.shield(expected.end)
        except TimeoutError:
            return ConnectionError(lost)
        if death.node_lost or death.others_too:
            return ConnectionError(f"{lost} ({death.how})")
        return FailedStart(f"{lost} ({death.how}); see {self._log_name}", expected.node)

    async def _send(self, channel: wire.Channel, path: str) -> None:
        if path not in self._shipment:
            raise ConnectionError("a worker asked for what was not offered")
        parts = self._shipment.content(path)
        while (part := await asyncio.to_thread(next, parts, None)) is not None:
            channel.send(part)
            async with asyncio.timeout(FURNISH_SECONDS):
                await channel.drained()

    def _admit(self, name: bytes, channel: wire.Channel, address: str) -> None:
        expected = self._expected.get(name.hex())
        if expected is None or expected.channel.done():
            channel.close()
            return
        expected.channel.set_result(channel)

    async def _ready(self) -> str:
        """The address by which Ray knows this machine. Raises UserError."""
        try:
            async with asyncio.timeout(READY_SECONDS):
                message = await self._hear()
        except TimeoutError:
            raise UserError(f"Ray did not connect in {READY_SECONDS:g} s; see {self._log_name}") from None
        if message is None:
            raise UserError(f"the process that speaks to Ray died; see {self._log_name}")
        if "error" in message:
            raise UserError(message["error"])
        return str(message["ready"])

    @property
    def _log_name(self) -> str:
        return "" if self._log is None else str(self._log.name)

    async def _listen(self) -> None:
        while (message := await self._hear()) is not None:
            self._heard(message)
        if not self._closing:
            self._lost = f"the Ray cluster was lost; see {self._log_name}"
            for expected in list(self._expected.values()):
                _refuse(expected.channel, UserError(self._lost))
                _end(expected, Death("the cluster was lost", node_lost=True))

    async def _hear(self) -> dict[str, Any] | None:
        if self._placer is None or self._placer.stdout is None:
            return None
        try:
            line = await self._placer.stdout.readline()
            found: dict[str, Any] | None = json.loads(line) if line else None
        except ValueError:
            return None
        return found

    def _heard(self, message: Mapping[str, Any]) -> None:
        if "draining" in message:
            for node in message["draining"]:
                self._drain(node)
            return
        if "trouble" in message:
            self._tell_once(f"Ray did not do as it was asked ({KNOWN.text(message['trouble'])}); see {self._log_name}")
            return
        names = (message[key] for key in ("placed", "unusable", "refused", "ended") if key in message)
        expected = self._expected.get(next(names, ""))
        if expected is None:
            return
        match message:
            case {"placed": _, "node": node, "address": address}:
                expected.node, expected.address = node, address
                expected.placed.set()
            case {"unusable": _, "why": why, "node": node}:
                _refuse(expected.channel, FailedStart(why, node, unusable=True))
            case {"refused": _, "why": why}:
                _refuse(expected.channel, UserError(f"Ray starts no workers: {why} (--ray_resources)"))
            case {"ended": _, "code": code, "printed": printed}:
                if code != 0:
                    self._note(f"worker on {expected.address}, {how_ended(code)}:\n{printed}")
                if code == UNREACHABLE:
                    host, port = self._address
                    why = f"workers on {expected.address} can't reach this process at {host}:{port} (--ray_listen)"
                else:
                    said = printed.strip().rpartition("\n")[2]
                    why = f"a worker on {expected.address} ended before it began ({said or how_ended(code)})"
                _refuse(expected.channel, FailedStart(why, expected.node))
                _end(expected, Death(how_ended(code), well=code == 0))
            case {"ended": _, "how": how, "node_lost": lost}:
                _refuse(expected.channel, ConnectionError(f"a worker{_on(expected)} was lost: {how}"))
                _end(expected, Death(how, node_lost=lost, others_too=True))

    def _note(self, text: str) -> None:
        """Add to the log of the run's workers."""
        if self._log is not None and not self._log.closed:
            with suppress(OSError):  # a full disk stops the run where its journal is written
                self._log.write(text.rstrip().encode(errors="replace") + b"\n")
                self._log.flush()

    def _tell(self, **message: Any) -> None:
        if self._placer is not None and self._placer.stdin is not None and not self._placer.stdin.is_closing():
            with suppress(OSError, RuntimeError):
                self._placer.stdin.write(json.dumps(message).encode() + b"\n")

    def _tell_waiting(self) -> None:
        wanted = {"num_cpus": 1, **self._execution.ray_resources}
        self._notice(f"the cluster has no room for a worker yet, each of which reserves {json.dumps(wanted)}")

    async def _end_placer(self, placer: asyncio.subprocess.Process) -> None:
        if placer.stdin is not None:
            placer.stdin.close()
        try:  # it hears that only once it is connected
            async with asyncio.timeout(0.0 if self._listening is None else CLOSE_SECONDS):
                await placer.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.killpg(placer.pid, signal.SIGKILL)
            await placer.wait()


class _Remote:
    """A worker on a node."""

    def __init__(
        self,
        launcher: ClusterLauncher,
        expected: _Expected,
        channel: wire.Channel,
        answer: wire.Missing,
        files: ReturnedFiles,
    ) -> None:
        self.channel = channel
        self.node = expected.node
        self.address = expected.address
        self.name = f"process {answer.process} on {expected.address}"
        self.attempts = frozenset(answer.attempts)
        self.may_leave = f"what is in {answer.folder}, and containers named manyhands-{launcher.run_id}-…"
        self._launcher = launcher
        self._expected = expected
        self._files = files

    def take(self, message: object) -> Awaitable[None] | None:
        taking = self._launcher.take(message, self._files, self._expected.address)
        return None if taking is None else self.channel.unread(taking)

    def kill(self) -> None:
        self._launcher.tell_kill(self._expected.name)
        self.channel.close()
        _end(self._expected, Death("killed", others_too=True))

    async def ended(self) -> Death:
        self._files.close()
        try:
            async with asyncio.timeout(WORD_SECONDS):
                death = await asyncio.shield(self._expected.end)
        except TimeoutError:  # it can't be reached any more, and Ray does not know yet why
            death = Death("its connection was lost", node_lost=True)
            self._launcher.tell_kill(self._expected.name)
        self._launcher.forget(self._expected.name)
        return death


async def _connected(expected: _Expected) -> wire.Channel:
    """The channel of a worker, for which Ray may take as long as it likes to find a place. From then on that is bounded: its process may
    be stopped. Raises TimeoutError, and what the placer says of it."""
    placed = asyncio.ensure_future(expected.placed.wait())
    try:
        await asyncio.wait((placed, expected.channel), return_when=asyncio.FIRST_COMPLETED)
        async with asyncio.timeout(FURNISH_SECONDS):
            channel = await expected.channel
            await placed  # which is said before it is told to connect
            return channel
    finally:
        placed.cancel()


def _on(expected: _Expected) -> str:
    return f" on {expected.address}" if expected.node else ""


def _refuse(future: asyncio.Future[wire.Channel], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _end(expected: _Expected, death: Death) -> None:
    if not expected.end.done():
        expected.end.set_result(death)


# --- What the person named


async def check_address(address: str, option: str = "--ray_address") -> None:
    """See that something listens where the cluster is said to be: Ray itself tries for more than a minute. ``option``: where it was said.
    Raises UserError."""
    if "://" in address:
        raise UserError(
            f"{option}={address}: name the cluster's head node as HOST:PORT, from a machine that is a node of the cluster"
        )
    host, port = host_and_port(address, option, DEFAULT_PORT)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as error:
        code = error.errno if isinstance(error, OSError) else None
        why = os.strerror(code) if code is not None and code > 0 else "no answer"
        raise UserError(f"{option}={address}: there is no Ray cluster ({why})") from error
    writer.close()


def listening(written: str | None, known_as: str) -> tuple[str, int]:
    """Where to wait for workers: as written, or at the address by which Ray knows this machine. Raises UserError."""
    return (known_as, 0) if written is None else host_and_port(written, "--ray_listen", 0)


def host_and_port(written: str, option: str, port: int) -> tuple[str, int]:
    """The parts of ``HOST:PORT``, or of ``HOST`` with a port given here. Raises UserError."""
    host, colon, number = written.rpartition(":")
    if not colon or written.endswith("]"):
        host, number = written, str(port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not number.isdecimal() or len(number) > 5 or int(number) > 65535:
        raise UserError(f"{option} must be HOST:PORT, not {written!r}")
    return host, int(number)


def shipped_modules(modules: Iterable[tuple[str, Path]]) -> list[Path]:
    """The files and folders of those of the person's own modules that are imported by their names: what Ray is to copy to the nodes. What
    is installed here must be installed there. Raises UserError for what can't be copied."""
    found = dict[Path, None]()
    for source, folder in modules:
        if source.endswith(".py"):
            continue
        top = source.partition(".")[0]
        spec = importlib.machinery.PathFinder.find_spec(top, [str(folder.absolute()), *sys.path])
        if spec is None:
            if top in sys.builtin_module_names:
                continue
            raise UserError(f"{source}: there is no such module to copy to the nodes")
        places = list(spec.submodule_search_locations or ())
        path = Path(places[0]) if places else Path(spec.origin or "")
        if _is_installed(path):
            continue
        if len(places) > 1 or not (path.is_dir() if places else path.suffix == ".py" and path.is_file()):
            raise UserError(
                f"{source}: can't be copied to the nodes, as it is neither one folder nor one file of Python source"
            )
        found[path.resolve()] = None
    return list(found)


def _is_installed(path: Path) -> bool:
    """Whether a module is part of Python or of an installed package."""
    homes = {*site.getsitepackages(), site.getusersitepackages(), *sysconfig.get_paths().values()}
    homes -= {sysconfig.get_paths()["data"], sysconfig.get_paths()["scripts"]}
    resolved = path.resolve()
    return any(resolved.is_relative_to(Path(home).resolve()) for home in homes) or resolved.is_relative_to(
        Path(__file__).resolve().parents[2]
    )
