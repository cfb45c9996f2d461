"""The process that holds a bubblewrap sandbox's namespaces, and the way into them."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import select
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.sandboxes.process import PipeReader, Process, close_all, fresh_pipes

_NS_GET_PARENT = 0xB702  # ioctl_ns(2)
_SECONDS = 15.0
_NAMESPACES = {"mnt": "mount", "uts": "uts", "ipc": "ipc", "net": "net", "pid": "pid", "cgroup": "cgroup"}
_WAIT = ["/bin/sh", "-c", "echo ready; exec cat >/dev/null"]


class Anchor:
    """A running bubblewrap. It ends when we close our end of its standard input, so at the latest when we end."""

    def __init__(self, process: Process, lifeline: int, inner: int) -> None:
        self._process = process
        self._lifeline = lifeline
        self._watch = os.pidfd_open(inner)
        self._ended = select.poll()
        self._ended.register(self._watch, select.POLLIN)
        self._outer_user, self._nested = _outer_user_namespace(inner)
        self._enter = self._entrance(inner)

    @property
    def alive(self) -> bool:
        return self._lifeline >= 0 and self._process.exit_code is None and not self._ended.poll(0)

    def command(self, command: Sequence[str]) -> list[str]:
        """The host's command that runs ``command`` inside, at the root."""
        return [*self._enter, *command]

    async def stop(self) -> None:
        """Kill everything inside. Idempotent."""
        if self._lifeline < 0:
            return
        lifeline, self._lifeline = self._lifeline, -1
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._watch, signal.SIGKILL)
        close_all(lifeline, self._watch, self._outer_user)
        if await self._process.wait_for(5.0) is None:
            self._process.kill()

    def _entrance(self, inner: int) -> list[str]:
        # bubblewrap makes two user namespaces, one within the other: the outer one owns all other namespaces, the inner one has no
        # rights on them. So the way in is the same: the outer one and all others at once, then the inner one.
        theirs = [
            f"--{name}" for file, name in _NAMESPACES.items() if _namespace("self", file) != _namespace(inner, file)
        ]
        user = f"--user=/proc/{os.getpid()}/fd/{self._outer_user}"
        first = [
            "setpriv",
            "--no-new-privs",
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
    bwrap: str, arguments: Sequence[str], files: Mapping[str, str], environment: Mapping[str, str]
) -> Anchor:
    """Start bubblewrap with these arguments, with ``files`` (path inside, contents) made besides. Raises ItemError(SANDBOX_LOST).

    Must be called in the event loop's thread, as the sandbox ends with the thread that started it.
    """
    given: list[int] = []
    (input_read, lifeline), (output_read, output_write), (info_read, info_write) = fresh_pipes(3)
    try:
        words = []
        for path, text in files.items():
            given.append(_in_memory(text.encode()))
            words += ["--file", str(given[-1]), path]
        given.append(_in_memory(b"".join(os.fsencode(word) + b"\0" for word in [*words, *arguments])))
        process = Process(
            [bwrap, "--args", str(given[-1]), "--info-fd", str(info_write), *_WAIT],
            environment,
            stdin=input_read,
            output=output_write,
            keep=[*given, info_write],
        )
    except BaseException:
        close_all(lifeline, output_read, info_read)
        raise
    finally:
        close_all(*given, info_write, input_read, output_write)
    try:
        await _until_ready(process, output_read)
        inner = json.loads(os.read(info_read, 4096))["child-pid"]
        return Anchor(process, lifeline, inner)
    except BaseException as error:
        process.kill_group()
        close_all(lifeline)
        if isinstance(error, (OSError, ValueError, KeyError)):
            raise ItemError(Cause.SANDBOX_LOST, f"bubblewrap started but can't be entered: {error}") from error
        raise
    finally:
        close_all(info_read)


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
    if b"ready\n" not in said:
        text = said.decode(errors="replace").strip() or "no answer"
        raise ItemError(Cause.SANDBOX_LOST, f"bubblewrap does not start: {text}")


def _outer_user_namespace(pid: int) -> tuple[int, bool]:
    """A descriptor of the user namespace that owns the sandbox's other namespaces, and whether ``pid`` is in one within it."""
    inner = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    try:
        outer = fcntl.ioctl(inner, _NS_GET_PARENT)
    except OSError:
        return inner, False
    os.set_inheritable(outer, False)
    if os.readlink(f"/proc/self/fd/{outer}") == _namespace("self", "user"):
        os.close(outer)
        return inner, False
    os.close(inner)
    return outer, True


def _namespace(pid: int | str, file: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/{file}")
    except FileNotFoundError:  # a kernel without this kind
        return ""
