"""A sandbox for tests that are no coroutines: it is kept by an event loop in a thread of its own, for many attacks."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from manyhands.processes.children import ExecResult
from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from manyhands.sandboxes.local import LocalBackend
from manyhands.sandboxes.protocol import Sandbox, SandboxBackend, SandboxLimits, SandboxRequest

PROCESSES = 64
LIMITS = SandboxLimits(memory=512 << 20, processes=PROCESSES, file_size=64 << 20, cpu_seconds=30)
BACKENDS: dict[str, type[BubblewrapBackend] | type[LocalBackend]] = {
    "bubblewrap": BubblewrapBackend,
    "local": LocalBackend,
}
PYTHON = "/usr/bin/python3"
Result = TypeVar("Result")


class HeldSandbox:
    """A sandbox in ``folder``. Use as a context manager."""

    def __init__(
        self,
        kind: str,
        folder: Path,
        limits: SandboxLimits = LIMITS,
        *,
        image: str | None = None,
        backend: SandboxBackend | None = None,
    ) -> None:
        """``image``: that of its world; ``backend``: what makes it, in place of the one of the kind."""
        self.run_id = f"attack-{secrets.token_hex(6)}"
        self.folder = folder
        self._backend: SandboxBackend = backend or BACKENDS[kind]()
        self._request = SandboxRequest(folder, self.run_id, limits=limits, image=image)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._sandbox: Sandbox | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._sandbox = self.wait(self._backend.create(self._request))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.wait(self.sandbox.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()

    @property
    def sandbox(self) -> Sandbox:
        assert self._sandbox is not None
        return self._sandbox

    def wait(self, work: Coroutine[Any, Any, Result], seconds: float = 60.0) -> Result:
        """Do something in the sandbox's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def python(self, source: str, *words: str, seconds: float = 20.0) -> ExecResult:
        """Run Python inside."""
        return self.wait(self.sandbox.run([PYTHON, "-I", "-c", source, *words], timeout=seconds))

    def shell(self, command: str, seconds: float = 20.0) -> ExecResult:
        """Run a command line in the persistent shell."""
        return self.wait(self.sandbox.shell(command, timeout=seconds))
