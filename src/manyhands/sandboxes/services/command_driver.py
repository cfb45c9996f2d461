"""What drivers have in common that reach into their worlds by commands alone."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, ClassVar

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.processes.children import to_the_end
from manyhands.sandboxes.remote.driver import ExecStream, World, WorldSpec
from manyhands.sandboxes.services.commands import get_archive, places, put_archive

CALL_SECONDS = 120.0
"""For one call of a service."""


class CommandDriver(ABC):
    """The part of a ``Driver`` that is the same for all of them."""

    name: ClassVar[str]
    """Of its kind."""

    @property
    def kind(self) -> str:
        return self.name

    @property
    def ends_with_owner(self) -> bool:
        return False

    @abstractmethod
    async def execute(
        self,
        world: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        user: str | None,
        directory: str | None,
        output: Callable[[bytes], None],
        errors: Callable[[bytes], None],
    ) -> ExecStream: ...

    @abstractmethod
    async def delete(self, world: str) -> None: ...

    async def put(self, world: str, archive: BinaryIO, path: str) -> None:
        await put_archive(self, world, archive, path)

    async def get(self, world: str, path: str, archive: BinaryIO, *, max_bytes: int) -> None:
        await get_archive(self, world, path, archive, max_bytes)

    async def size(self, world: str) -> int | None:
        return None

    def _refuse(self, spec: WorldSpec, *, user: bool) -> None:
        """Raises ItemError(INVALID_INPUT) for what none of them can give. ``user``: whether commands can't have one of their own."""
        if spec.project is not None or spec.limits.network_allow or (user and spec.user is not None):
            lacking = "project, user or list of hosts" if user else "project or list of hosts"
            raise ItemError(Cause.INVALID_INPUT, f"{self.kind}: no {lacking} can be given")

    async def _settled(self, world: str, directory: str | None, *, alone: bool = True) -> World:
        """A world that was just made, with its folders; removed if it has none such."""
        try:
            found, home = await places(self, world, directory)
        except BaseException:
            await to_the_end(self.delete(world))
            raise
        return World(world, "/workspace", found, home or None, alone=alone)


class ServiceDriver(CommandDriver):
    """The same for a service with a client of its own."""

    @abstractmethod
    def _telling(self) -> AbstractContextManager[None]:
        """Within this, errors of the client become ItemErrors."""

    async def _asked(self, call: Any, seconds: float = CALL_SECONDS) -> Any:
        with self._telling():
            async with asyncio.timeout(seconds):
                return await call
