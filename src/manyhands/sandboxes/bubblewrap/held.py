"""What launchers of commands in namespaces that bubblewrap holds have in common."""

from __future__ import annotations

import asyncio
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Generic

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.network.connecting import LookUp
from manyhands.network.egress import Egress
from manyhands.network.namespaces import proxy_variables
from manyhands.sandboxes.bubblewrap.anchor import Held
from manyhands.sandboxes.bubblewrap.as_root import Folder, User, attach
from manyhands.sandboxes.commands import launch
from manyhands.sandboxes.commands.cgroups import Group, make_group
from manyhands.sandboxes.confinement import spawn_confined
from manyhands.sandboxes.protocol import SandboxRequest


class HeldLauncher(ABC, Generic[Held]):
    """A ``Launcher`` of commands that all end with what holds their namespaces, which is started anew if it was killed."""

    kind = "bubblewrap"
    other_users = False
    tag: int | None = None

    def __init__(
        self,
        request: SandboxRequest,
        start_directory: str,
        *,
        workspace: str,
        project: str | None,
        look_up: LookUp,
    ) -> None:
        self._request = request
        limits = request.limits
        proxied = bool(limits.network_allow) and not limits.network
        self._egress = Egress(limits.network_allow, request.hosts, look_up=look_up) if proxied else None
        self.proxies = proxy_variables() if proxied else {}
        """Variables of commands that may reach a few hosts."""
        self._anchor: Held | None = None
        self._group: Group | None = None
        self._starting = asyncio.Lock()
        self._stopped = False
        self.spawn = spawn_confined()
        self.workspace = workspace
        self.project = project
        self.start_directory = start_directory
        self.environment: Mapping[str, str] = {}

    @property
    def keep(self) -> Sequence[int]:
        return ()

    async def prepare(self) -> bool:
        if self._anchor is not None and self._anchor.alive:
            return False
        async with self._starting:
            if self._stopped:
                raise ItemError(Cause.SANDBOX_LOST, "the sandbox is closed")
            if self._anchor is not None and self._anchor.alive:
                return False
            await self._start()
            return True

    @abstractmethod
    def command(
        self, command: Sequence[str], directory: str, user: str | None = None, *, variables: Collection[str] = ()
    ) -> list[str]: ...

    def handed(self, variables: Mapping[str, str]) -> Mapping[str, str]:
        return launch.handed_on(variables)

    def members(self) -> set[int] | None:
        return None if self._group is None else self._group.members()

    def processes(self) -> set[int]:
        if self._group is not None:
            return self._group.members()
        return set() if self._anchor is None else self._anchor.processes()

    async def kill(self) -> None:
        async with self._starting:
            if self._anchor is not None:
                await self._anchor.stop()
            if self._egress is not None:
                await self._egress.close()

    async def stop(self) -> None:
        async with self._starting:
            self._stopped = True
            if self._anchor is not None:
                await self._anchor.stop()
            if self._egress is not None:
                await self._egress.close()
            if self._group is not None:
                await asyncio.to_thread(_remove_group, self._group)
                self._group = None

    @abstractmethod
    async def _started(self, marks: Mapping[str, str]) -> Held:
        """Start what holds the namespaces. ``marks``: variables by which its processes are found."""

    async def _start(self) -> None:
        limits = self._request.limits
        if self._anchor is not None:  # something inside killed it; what was running is gone, the files are not
            await self._anchor.stop()
        if self._group is None:
            self._group = make_group(memory=limits.memory, processes=limits.processes)
        self._anchor = await self._started(launch.marked({}, self._request, secrets.token_hex(8)))
        if self._egress is not None:
            await self._open_way_out(self._egress, self._anchor)

    @staticmethod
    async def _open_way_out(egress: Egress, anchor: Held) -> None:
        try:
            await egress.open(anchor.inner, anchor.outer_user)
        except BaseException:
            await anchor.stop()
            raise

    def _running(self) -> Held:
        if self._anchor is None:
            raise ItemError(Cause.SANDBOX_LOST, "the sandbox is not running")
        return self._anchor

    def _max_processes(self) -> int | None:
        """The limit on a user's processes to set, where there is no group."""
        return self._request.limits.processes if self._group is None and _counts_by_sandbox() else None

    @staticmethod
    async def _attach(anchor: Held, shown: list[Folder], user: User) -> None:
        """Show folders in namespaces that root has just had made, in which nothing runs yet."""
        try:
            attach(anchor.inner, shown, user)
        except OSError as error:
            await anchor.stop()
            raise ItemError(
                Cause.SANDBOX_LOST, f"can't show folders to a sandbox: {error.strerror or error}"
            ) from error


def _remove_group(group: Group) -> None:
    group.kill()
    group.remove()


@cache
def _counts_by_sandbox() -> bool:
    """Whether the kernel counts a user's processes by user namespace (Linux 5.14 and later)."""
    release = os.uname().release.split(".")
    with suppress(ValueError, IndexError):
        return (int(release[0]), int(release[1].split("-")[0])) >= (5, 14)
    return False
