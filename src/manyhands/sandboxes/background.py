"""Commands left running in a sandbox."""

from __future__ import annotations

from collections.abc import Callable

from manyhands.core.errors import ToolError
from manyhands.sandboxes.capture import Capture
from manyhands.sandboxes.process import Process, started_with_pipes, to_the_end

_KEPT_OUTPUT = 1 << 20


class Background:
    """A ``BackgroundProcess`` on a child process. The first and the last half MiB of its output are kept."""

    def __init__(self, id: str, command: str, start: Callable[[int, int], Process]) -> None:
        self._id = id
        self._command = command
        self._capture = Capture(_KEPT_OUTPUT)
        self._process, self._reader, self._writer = started_with_pipes(start, self._capture.feed)

    @property
    def id(self) -> str:
        return self._id

    @property
    def command(self) -> str:
        return self._command

    @property
    def exit_code(self) -> int | None:
        return self._process.exit_code

    def on_end(self, call: Callable[[], object]) -> None:
        """Have ``call`` called soon after the end."""
        self._process.on_end(lambda _: call())

    def output(self, start: int = 0, max_output: int = 50_000) -> tuple[bytes, int]:
        self._reader.drain()
        return self._capture.read(start, max_output), self._capture.total

    async def write(self, data: bytes) -> None:
        """Raises ToolError if nobody reads it."""
        if self.exit_code is not None or not await self._writer.write(data):
            raise ToolError(f"process {self._id} takes no more input: it has ended or its input is closed")

    async def close_input(self) -> None:
        self._writer.close()

    async def wait(self, timeout: float) -> int | None:
        exit_code = await self._process.wait_for(timeout)
        self._reader.drain()
        return exit_code

    async def kill(self) -> None:
        if self.exit_code is None:
            await to_the_end(self._process.stop())

    def release(self) -> None:
        """Close our ends of its pipes; what it wrote so far stays readable."""
        self._reader.drain()
        self._reader.close()
        self._writer.close()
