"""The process that holds a bubblewrap sandbox's namespaces, and the way into them.

It is number 1 inside: a cat that waits for the end of its input, with its children's ends ignored, so that the kernel keeps nothing of
orphans. Its program is a copy in sealed memory that nobody may read, so that inside it can be neither traced nor examined (the kernel
keeps ``/proc/1/exe`` and the like of such a process from everybody without rights on its user namespace), and nothing of the host's can be
written through it.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.processes.children import PipeReader, Process, close_all, fresh_pipes
from manyhands.sandboxes.bubblewrap.as_root import User
from manyhands.sandboxes.bubblewrap.entering.program import sealed_program
from manyhands.sandboxes.commands.freezing import namespace_members, namespace_of, parent_namespace, session_of
from manyhands.sandboxes.commands.launch import DOOR
from manyhands.sandboxes.confinement import spawn_with_own_keys

_SECONDS = 15.0
_NAMESPACES = {"mnt": "mount", "uts": "uts", "ipc": "ipc", "net": "net", "pid": "pid", "cgroup": "cgroup"}
_CATS = ("/usr/bin/cat", "/bin/cat")
"""Of the folders that are seen inside, where its libraries are, too."""
_READY = b"ready\n"
Held = TypeVar("Held", bound="HeldNamespaces")


class HeldNamespaces:
    """A running bubblewrap, whose number 1 is ``inner``. It ends when we close our end of its standard input, so at the latest when we
    end."""

    def __init__(self, process: Process, lifeline: int, inner: int) -> None:
        self._process = process
        self.inner = inner
        self._lifeline = lifeline
        self._watch = os.pidfd_open(inner)
        self._ended = select.poll()
        self._ended.register(self._watch, select.POLLIN)
        self._pids, self._session = namespace_of(inner), session_of(inner)

    @property
    def outer_user(self) -> int:
        """A descriptor of the user namespace that the sandbox's other namespaces belong to."""
        raise NotImplementedError

    @property
    def alive(self) -> bool:
        return self._lifeline >= 0 and self._process.exit_code is None and not self._ended.poll(0)

    def processes(self) -> set[int]:
        """The ids of all processes inside, as the host counts, but for its own, which nobody inside can join: those of its session.
        Reads the whole process table."""
        if not self.alive:
            return set()
        return {pid for pid in namespace_members(self._pids) if session_of(pid) != self._session}

    async def stop(self) -> None:
        """Kill everything inside. Idempotent."""
        if self._lifeline < 0:
            return
        lifeline, self._lifeline = self._lifeline, -1
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._watch, signal.SIGKILL)
        close_all(lifeline, self._watch, *self._held())
        if await self._process.wait_for(5.0) is None:
            self._process.kill()

    def _held(self) -> Sequence[int]:
        """Further descriptors to close at its end."""
        return ()


class Anchor(HeldNamespaces):
    """One in which commands see the host's programs."""

    def __init__(self, process: Process, lifeline: int, inner: int, user: User | None) -> None:
        super().__init__(process, lifeline, inner)
        self._become = [] if user is None else user.command()
        self._outer_user, self._nested = _outer_user_namespace(inner)
        self._enter = self._entrance(inner)

    @property
    def door(self) -> str:
        """A file of the host's that commands must have open as descriptor ``launch.DOOR`` when they enter."""
        return f"/proc/{os.getpid()}/fd/{self._outer_user}"

    @property
    def outer_user(self) -> int:
        return self._outer_user

    def command(self, command: Sequence[str]) -> list[str]:
        """The host's command that runs ``command`` inside, at the root, once the door is open."""
        return [*self._enter, *command]

    def _held(self) -> Sequence[int]:
        return (self._outer_user,)

    def _entrance(self, inner: int) -> list[str]:
        # bubblewrap makes two user namespaces, one within the other: the outer one owns all other namespaces, the inner one has no
        # rights on them. So the way in is the same: the outer one and all others at once, then the inner one.
        theirs = [
            f"--{name}"
            for file, name in _NAMESPACES.items()
            if namespace_link("self", file) != namespace_link(inner, file)
        ]
        user = f"--user=/proc/self/fd/{DOOR}"
        first = [
            *self._become,
            "nsenter",
            "--preserve-credentials",
            "--target",
            str(inner),
            *theirs,
            user,
        ]
        second = ["nsenter", "--preserve-credentials", "--user=/proc/1/ns/user"]
        return [*first, *second] if self._nested else first


async def start_anchor(
    bwrap: str,
    arguments: Sequence[str],
    files: Mapping[str, str],
    copies: Sequence[str],
    environment: Mapping[str, str],
    user: User | None,
) -> Anchor:
    """Start bubblewrap with these arguments, with ``files`` (path inside, contents) made besides, and ``copies`` of the host's files at
    their paths; as ``user`` if there is one. Raises ItemError(SANDBOX_LOST)."""
    init = _init(os.getpid(), user)
    become = [] if user is None else user.command()
    number_one = ["env", "--ignore-signal=CHLD", f"/proc/self/fd/{init}"]
    given: list[int] = []
    try:
        words = _options(files, copies, given)
        return await start_held(
            [*become, bwrap],
            [*words, *arguments],
            number_one,
            environment,
            keep=[*given, init],
            enter=lambda process, lifeline, inner: Anchor(process, lifeline, inner, user),
        )
    finally:
        close_all(*given)


async def start_held(
    bwrap: Sequence[str],
    arguments: Sequence[str],
    number_one: Sequence[str],
    environment: Mapping[str, str],
    *,
    keep: Sequence[int],
    enter: Callable[[Process, int, int], Held],
) -> Held:
    """Start bubblewrap (``bwrap``: the words that do) and wait until its number 1 is there, which must print what it reads. ``keep``:
    descriptors that they need; ``enter``: makes what is returned, of bubblewrap's process, our end of number 1's input, and number 1's
    process id. Raises ItemError(SANDBOX_LOST)."""
    options = info = -1
    (input_read, lifeline), (output_read, output_write) = fresh_pipes(2)
    try:
        # Not a pipe: if we end before bubblewrap says it, it would end too, and leave what is to become number 1 waiting for ever.
        info = _in_memory(b"")
        options = _in_memory(b"".join(os.fsencode(word) + b"\0" for word in ["--as-pid-1", *arguments]))
        process = Process(
            [*bwrap, "--args", str(options), "--info-fd", str(info), *number_one],
            environment,
            stdin=input_read,
            output=output_write,
            keep=[*keep, options, info],
            spawn=spawn_with_own_keys(),
        )
    except BaseException:
        close_all(lifeline, output_read, *([info] if info >= 0 else []))
        raise
    finally:
        close_all(*([options] if options >= 0 else []), input_read, output_write)
    try:
        return await _entered(process, lifeline, output_read, info, enter)
    finally:
        close_all(info)


def _options(files: Mapping[str, str], copies: Sequence[str], given: list[int]) -> list[str]:
    """bubblewrap's arguments for files. ``given``: gets all descriptors that are made for it."""
    words: list[str] = []
    for path, text in files.items():
        given.append(_in_memory(text.encode()))
        words += ["--file", str(given[-1]), path]
    for path in copies:
        with suppress(FileNotFoundError):  # removed just now
            given.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            words += ["--file", str(given[-1]), path]
    return words


async def _entered(
    process: Process, lifeline: int, output: int, info: int, enter: Callable[[Process, int, int], Held]
) -> Held:
    """Wait until number 1 is there. ``output``: what it prints, ``info``: where bubblewrap says which process it is. Raises
    ItemError(SANDBOX_LOST)."""
    try:
        with suppress(BrokenPipeError):  # ended already: what it printed says why
            os.write(lifeline, _READY)  # comes back when number 1 is there
        await _until_ready(process, output)
        inner = json.loads(os.pread(info, 4096, 0))["child-pid"]
        return enter(process, lifeline, inner)
    except BaseException as error:
        process.kill_group()
        close_all(lifeline)
        if isinstance(error, (OSError, ValueError, KeyError)):
            raise ItemError(Cause.SANDBOX_LOST, f"bubblewrap started but can't be entered: {error}") from error
        raise


@cache
def _init(process: int, user: User | None) -> int:
    """A descriptor of the program of number 1, in sealed memory, which may be run but not read. One for each process of ours.

    It belongs to the user that it runs as, or else the kernel would keep that user's way in closed, too. Raises ItemError(SANDBOX_LOST).
    """
    cat = next((path for path in _CATS if os.access(path, os.X_OK)), None)
    if cat is None:
        raise ItemError(Cause.SANDBOX_LOST, f"neither of these is there: {', '.join(_CATS)}")
    try:
        return sealed_program(Path(cat).read_bytes(), None if user is None else (user.uid, user.gid))
    except OSError as error:
        raise ItemError(Cause.SANDBOX_LOST, f"can't keep a program in memory: {error.strerror}") from error


def _in_memory(data: bytes) -> int:
    """A descriptor to read ``data`` from. Raises ItemError(SANDBOX_LOST)."""
    try:
        descriptor = os.memfd_create("manyhands")
    except OSError as error:
        raise ItemError(Cause.SANDBOX_LOST, f"can't start a sandbox: {error.strerror}") from error
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def _until_ready(process: Process, output: int) -> None:
    said = bytearray()
    heard = asyncio.Event()

    def hear(data: bytes) -> None:
        said.extend(data[:4096])
        heard.set()

    reader = PipeReader(output, hear)
    ending = asyncio.ensure_future(process.wait())
    hearing = asyncio.ensure_future(heard.wait())
    try:
        await asyncio.wait([ending, hearing], timeout=_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if ending.done():
            reader.drain()
    finally:
        ending.cancel()
        hearing.cancel()
        reader.close()
    if _READY not in said:
        text = said.decode(errors="replace").strip() or "no answer"
        raise ItemError(Cause.SANDBOX_LOST, f"bubblewrap does not start: {text}")


def _outer_user_namespace(pid: int) -> tuple[int, bool]:
    """A descriptor of the user namespace that owns the sandbox's other namespaces, and whether ``pid`` is in one within it."""
    inner = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    try:
        outer = parent_namespace(inner)
    except OSError:
        return inner, False
    if os.readlink(f"/proc/self/fd/{outer}") == namespace_link("self", "user"):
        os.close(outer)
        return inner, False
    os.close(inner)
    return outer, True


def namespace_link(pid: int | str, file: str) -> str:
    """What tells a process's namespace of one kind from others."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{file}")
    except FileNotFoundError:  # a kernel without this kind
        return ""
