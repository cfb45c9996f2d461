"""``manyhands mcp`` as a client meets it: the SDK's own client, over the standard streams of a real process, or over real HTTP."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from types import TracebackType
from typing import Any, Self

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

from tests.support.commands import children, environment
from tests.support.forked import ForkedProcess

_READY = re.compile(rb"MCP server at (\S+)")
_TOKEN = re.compile(rb"Bearer (\S+)")
_START_SECONDS = 20.0
_END_SECONDS = 10.0


@asynccontextmanager
async def over_streams(
    *words: str, folder: Path, environ: Mapping[str, str] | None = None, mode: str = "auto", forked: bool = True
) -> AsyncIterator[Client]:
    """A client of ``manyhands mcp WORDS``, which runs in ``folder``. What it says on standard error is in ``folder/stderr.txt``.

    ``forked``: the server is forked, which is quick, and the SDK's own client is connected with it by two ``cat``; otherwise the client
    starts it itself, as a child of this process.
    """
    variables = {**environment(), **(environ or {})}
    with ExitStack() as stack:
        said = stack.enter_context((folder / "stderr.txt").open("ab"))
        command, arguments = sys.executable, ["-m", "manyhands", "mcp", *words]
        if forked:
            pipes = stack.enter_context(_forked_server(words, folder, variables, said.fileno()))
            command, arguments = "sh", ["-c", 'cat "$1" & exec cat > "$0"', *map(str, pipes)]
        parameters = StdioServerParameters(command=command, args=arguments, env=variables, cwd=folder)
        async with Client(stdio_client(parameters, errlog=said), mode=mode, cache=None) as client:  # type: ignore[arg-type]
            yield client


@contextmanager
def _forked_server(
    words: Sequence[str], folder: Path, environ: Mapping[str, str], stderr: int
) -> Iterator[tuple[Path, Path]]:
    """A server that runs, and the named pipes that are its input and its output. At the end it has ended."""
    with TemporaryDirectory() as place:
        pipes = Path(place, "input"), Path(place, "output")
        for pipe in pipes:
            os.mkfifo(pipe)
        # Our ends keep the pipes open until the client has opened its own.
        stdin, heard = (os.open(pipe, os.O_RDONLY | os.O_NONBLOCK) for pipe in pipes)
        said, stdout = (os.open(pipe, os.O_WRONLY) for pipe in pipes)
        os.set_blocking(stdin, True)
        process = ForkedProcess(["mcp", *words], folder, environ, stdout, stderr, stdin)
        os.close(stdin)
        os.close(stdout)
        try:
            yield pipes
        finally:
            os.close(said)
            os.close(heard)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            process.kill()


@asynccontextmanager
async def over_http(
    url: str, token: str, headers: Mapping[str, str] | None = None, mode: str = "auto"
) -> AsyncIterator[Client]:
    """A client of a server that runs."""
    sent = {"Authorization": f"Bearer {token}", **(headers or {})}
    async with (
        httpx2.AsyncClient(headers=sent, timeout=httpx2.Timeout(30.0, read=60.0)) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, cache=None) as client,
    ):
        yield client


class HttpServer:
    """A ``manyhands mcp --http=0 WORDS`` that runs. Use as a context manager: at the end it is killed."""

    def __init__(self, *words: str, folder: Path, environ: Mapping[str, str] | None = None) -> None:
        self._said = TemporaryFile()  # noqa: SIM115 - closed by __exit__
        variables, said = {**environment(), **(environ or {})}, self._said.fileno()
        with open(os.devnull, "wb") as nowhere:
            self.process = ForkedProcess(["mcp", "--http=0", *words], folder, variables, nowhere.fileno(), said)
        self.url = ""
        self.token = ""

    def __enter__(self) -> Self:
        end = time.monotonic() + _START_SECONDS
        while (found := _READY.search(self._raw())) is None:
            if self.process.poll() is not None or time.monotonic() > end:
                self.__exit__(None, None, None)
                raise AssertionError(f"the server did not start: {self._raw().decode()}")
            time.sleep(0.02)
        self.url = found[1].decode()
        token = _TOKEN.search(self._raw())
        self.token = token[1].decode() if token is not None else ""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()

    @property
    def said(self) -> str:
        """What it has written to standard error."""
        return self._raw().decode()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(20)

    def _raw(self) -> bytes:
        return os.pread(self._said.fileno(), 1 << 20, 0)


async def begun(client: Client, job: str) -> dict[str, Any]:
    """Wait until a job of that name is performed; its status."""
    end = time.monotonic() + _START_SECONDS
    while True:
        result = await client.call_tool("get_agent_job_status", {"job_id": job})
        if not result.is_error and content(result)["started_at"] is not None:  # whoever makes a job owns it before
            return content(result)
        assert time.monotonic() < end, words(result)
        await asyncio.sleep(0.05)


def content(result: CallToolResult) -> dict[str, Any]:
    """The object that a call answered. Raises AssertionError if it failed."""
    assert not result.is_error, words(result)
    assert isinstance(result.structured_content, dict)
    return result.structured_content


def words(result: CallToolResult) -> str:
    """The text of an answer."""
    return "\n".join(part.text for part in result.content if isinstance(part, TextContent))


def server_processes(words: Sequence[str] = ("manyhands", "mcp")) -> list[int]:
    """The children of this process that are MCP servers."""
    return [pid for pid in children(os.getpid()) if all(word in _command(pid) for word in words)]


def _command(pid: int) -> list[str]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return []
