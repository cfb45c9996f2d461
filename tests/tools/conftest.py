"""What the tests of tools share: tools called in a real sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.clock import SystemClock
from manyhands.core.errors import ToolError
from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from manyhands.sandboxes.local import LocalBackend
from manyhands.sandboxes.protocol import Sandbox, SandboxBackend, SandboxRequest
from manyhands.tools.protocol import ToolEnvironment, ToolResult
from manyhands.tools.standard import standard_registry

KINDS = ("local", "bubblewrap")
BACKENDS: dict[str, SandboxBackend] = {"local": LocalBackend(), "bubblewrap": BubblewrapBackend()}
REGISTRY = standard_registry(plugins=False)


@dataclass
class Bench:
    """Tools in one sandbox."""

    sandbox: Sandbox
    environment: ToolEnvironment
    workspace: Path
    """The workspace on this machine."""

    async def result(self, tool: str, **arguments: Any) -> ToolResult:
        return await REGISTRY.get(tool).call(arguments, self.environment)

    async def call(self, tool: str, **arguments: Any) -> Any:
        return (await self.result(tool, **arguments)).content

    async def error(self, tool: str, **arguments: Any) -> str:
        with pytest.raises(ToolError) as caught:
            await self.result(tool, **arguments)
        return str(caught.value)

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path


@asynccontextmanager
async def opened(
    kind: str,
    folder: Path,
    variables: Mapping[str, str] | None = None,
    cwd: str | None = None,
    project: Path | None = None,
    **environment: Any,
) -> AsyncIterator[Bench]:
    """A bench over a fresh sandbox; the test is left out where the machine has no such sandbox."""
    backend = BACKENDS[kind]
    if (reason := backend.unavailable()) is not None:
        pytest.skip(reason)
    request = SandboxRequest(folder=folder, run_id="test", environment=variables, cwd=cwd, project=project)
    sandbox = await backend.create(request)

    async def same() -> Sandbox:
        return sandbox

    try:
        yield Bench(sandbox, ToolEnvironment(same, SystemClock(), **environment), folder / "workspace")
    finally:
        await sandbox.close()


@pytest.fixture
def open_bench() -> Callable[..., AbstractAsyncContextManager[Bench]]:
    """``opened``, for tests that want a sandbox of their own kind."""
    return opened


@pytest.fixture(params=KINDS)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    """A bench in each kind of sandbox."""
    async with opened(request.param, tmp_path, timeout=20.0, max_output=5000) as found:
        yield found
