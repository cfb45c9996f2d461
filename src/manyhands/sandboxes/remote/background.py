"""Background processes in a world: each has an engine's ``exec`` of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from manyhands.core.errors import ToolError
from manyhands.processes.children import to_the_end
from manyhands.processes.output import Capture
from manyhands.sandboxes.remote.place import OwnCommand

KEPT_OUTPUT = 1 << 20
_LAST_MOMENTS = 2.0


class RemoteBackground:
    """A ``BackgroundProcess`` in a world. The first and the last half MiB of its output are kept. ``end``: ends everything with a soft
    tag."""

    def __init__(
        self, id: str, command: str, own: OwnCommand, capture: Capture, end: Callable[[int], Awaitable[None]]
    ) -> None:
        self._id = id
        self._command = command
        self._own = own
        self._capture = capture
        self._end = end

    @property
    def id(self) -> str:
        return self._id

    @property
    def command(self) -> str:
        return self._command

    @property
    def exit_code(self) -> int | None:
        if not self._own.ended.is_set():
            return None
        return 137 if self._own.exit_code is None else self._own.exit_code

    def output(self, start: int = 0, max_output: int = 50_000) -> tuple[bytes, int]:
        return self._capture.read(start, max_output), self._capture.total

    async def write(self, data: bytes) -> None:
        """Raises ToolError if nobody reads it."""
        if self.exit_code is not None or not await self._own.stream.write(data):
            raise ToolError(f"process {self._id} takes no more input: it has ended or its input is closed")

    async def close_input(self) -> None:
        await self._own.stream.close_input()

    async def wait(self, timeout: float) -> int | None:
        await self._own.wait(timeout)
        return self.exit_code

    async def kill(self) -> None:
        if self.exit_code is None:
            await to_the_end(self._kill())

    async def ended(self) -> None:
        """Wait for its end."""
        await self._own.ended.wait()

    async def _kill(self) -> None:
        await self._end(self._own.tag)
        await self._own.wait(_LAST_MOMENTS)
        self._own.ended.set()
