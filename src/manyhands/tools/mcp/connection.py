"""One MCP server and the connection to it. Needs the extra ``mcp``; import it from ``mcp`` (the module beside) only."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from contextlib import AsyncExitStack, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp import Client, MCPError, StdioServerParameters, stdio_client, types
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from pydantic import ValidationError

from manyhands.core.errors import ToolError, UserError
from manyhands.core.redaction import KNOWN
from manyhands.core.text import decode, shorten
from manyhands.processes.strays import MARK
from manyhands.tools.mcp.config import McpServer

_GUARD = Path(__file__).with_name("guard.py")
_MAX_READS = 16
_STDERR_KEPT = 4000
_MAX_PAGES = 50
_MAX_STOP_SECONDS = 10.0
_SESSION_GONE = "Session terminated"
"""What the client says of a session that the server no longer knows."""


class ConnectionLost(Exception):
    """The server went away; connecting anew may help."""


class Connection:
    """One live connection, held by a task of its own (the client's cancel scopes must be left in the task that entered
    them)."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._end = asyncio.Event()
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self.stderr = StderrTail()
        self._task = asyncio.create_task(self._hold())

    async def connected(self) -> Client:
        """The client, once it has shaken hands. Raises whatever went wrong."""
        return await asyncio.shield(self._ready)

    @property
    def lost(self) -> bool:
        return self._task.done()

    async def call(self, tool: str, arguments: dict[str, Any], seconds: float) -> types.CallToolResult:
        """Call a tool. Raises ConnectionLost, MCPError, TimeoutError; RuntimeError for a result that breaks its own
        schema."""
        client = await self.connected()
        call = asyncio.create_task(client.call_tool(tool, arguments, read_timeout_seconds=seconds))
        try:
            await asyncio.wait({call, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                raise ConnectionLost("the connection ended")
            return call.result()
        except MCPError as error:
            if error.code == types.CONNECTION_CLOSED or error.message == _SESSION_GONE:
                raise ConnectionLost(error.message) from error
            raise
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, httpx2.HTTPError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise ConnectionLost(str(error) or type(error).__name__) from error
        finally:
            call.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await call

    async def tools(self) -> list[types.Tool]:
        """All tools of the server."""
        client = await self.connected()
        found: list[types.Tool] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if not cursor:
                break
        return found

    async def stop(self) -> None:
        """Disconnect, and stop the server if it is ours. Idempotent."""
        self._end.set()
        if not self._ready.done():
            self._task.cancel()
        done, _ = await asyncio.wait({self._task}, timeout=_MAX_STOP_SECONDS)
        if not done:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_MAX_STOP_SECONDS)
        self.stderr.close()

    async def _hold(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                transport = await self._transport(stack)
                information = types.Implementation(name="manyhands", version=_version())
                client = await stack.enter_async_context(Client(transport, client_info=information, cache=None))
                self._ready.set_result(client)
                await self._end.wait()
        except asyncio.CancelledError:
            self._fail(ConnectionLost("stopped"))
            raise
        except BaseException as error:  # noqa: BLE001 - the boundary to the client and its task groups: passed to whoever waits
            self._fail(_innermost(error))

    def _fail(self, error: BaseException) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # marks it as seen: nobody may be waiting any more

    async def _transport(self, stack: AsyncExitStack) -> Any:
        server = self._server
        if server.url is not None:
            timeout = httpx2.Timeout(30.0, read=max(300.0, server.timeout))
            client = httpx2.AsyncClient(headers=dict(server.headers), timeout=timeout)
            return streamable_http_client(server.url, http_client=await stack.enter_async_context(client))
        assert server.command is not None
        command, arguments = _guarded(server.command, server.args)
        parameters = StdioServerParameters(
            command=command,
            args=arguments,
            env={**_mark(), **server.env},
            cwd=server.cwd,
            encoding_error_handler="replace",
        )
        return stdio_client(parameters, errlog=self.stderr.open())


class Server:
    """A mounted server: connected when first needed, and anew when it was lost."""

    def __init__(self, name: str, server: McpServer, secrets: list[str]) -> None:
        self.name = name
        self._server = server
        self._secrets = secrets
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()

    async def start(self) -> list[types.Tool]:
        """Connect and list the tools.

        Raises UserError that names the server if that fails or takes too long.
        """
        self._check_command()
        try:
            async with asyncio.timeout(self._server.start_timeout):
                connection = await self._connected()
                return await connection.tools()
        except TimeoutError:
            raise UserError(self._said(f"not ready within {self._server.start_timeout:g} s")) from None
        except (
            MCPError,
            ConnectionLost,
            ValidationError,
            httpx2.HTTPError,
            OSError,
            anyio.ClosedResourceError,
        ) as error:
            raise UserError(self._said(f"could not be started: {_words(error)}")) from None

    async def call(self, tool: str, arguments: dict[str, Any], seconds: float) -> types.CallToolResult:
        """Call a tool; a lost server is connected once more.

        Raises ToolError if that does not help, if the server refuses the call, or if it takes too long.
        """
        seconds = min(seconds, self._server.timeout)
        try:
            async with asyncio.timeout(seconds):
                return await self._call(tool, arguments, seconds)
        except TimeoutError:
            raise ToolError(self._said(f"no answer to {tool} within {seconds:g} s", stderr=False)) from None
        except ConnectionLost as error:
            raise ToolError(self._said(f"the server is gone ({_words(error)}); go on without it")) from None
        except MCPError as error:
            if error.code == types.REQUEST_TIMEOUT:
                raise ToolError(self._said(f"no answer to {tool} within {seconds:g} s", stderr=False)) from None
            raise ToolError(self._said(f"{tool} was refused: {error.message}", stderr=False)) from None
        except (RuntimeError, ValidationError) as error:
            raise ToolError(self._said(f"{tool} gave an unusable result: {_words(error)}", stderr=False)) from None

    async def stop(self) -> None:
        async with self._lock:
            if self._connection is not None:
                await self._connection.stop()
                self._connection = None

    async def _call(self, tool: str, arguments: dict[str, Any], seconds: float) -> types.CallToolResult:
        connection: Connection | None = None
        try:
            connection = await self._reached()
            return await connection.call(tool, arguments, seconds)
        except ConnectionLost:
            await self._drop(connection)
        connection = await self._reached()
        return await connection.call(tool, arguments, seconds)

    async def _reached(self) -> Connection:
        limit = self._server.start_timeout
        try:
            async with asyncio.timeout(limit) as waiting:
                return await self._connected()
        except TimeoutError as error:
            if not waiting.expired():
                raise
            await self._drop(self._connection)
            raise ConnectionLost(f"not ready within {limit:g} s") from error
        except (MCPError, httpx2.HTTPError, OSError, ValidationError, anyio.ClosedResourceError) as error:
            raise ConnectionLost(_words(error)) from error

    async def _connected(self) -> Connection:
        async with self._lock:
            if self._connection is not None and self._connection.lost:
                await self._connection.stop()
                self._connection = None
            if self._connection is None:
                self._connection = Connection(self._server)
            connection = self._connection
        await connection.connected()
        return connection

    async def _drop(self, connection: Connection | None) -> None:
        async with self._lock:
            if connection is not None and self._connection is connection:
                await connection.stop()
                self._connection = None

    def _check_command(self) -> None:
        command = self._server.command
        path = (get_default_environment() | self._server.env).get("PATH")
        if command is not None and shutil.which(command, path=path) is None:
            raise UserError(f"MCP server {self.name!r}: the command {command!r} was not found")

    def _said(self, message: str, *, stderr: bool = True) -> str:
        """A message that names the server, with the end of what it wrote to stderr, without secrets."""
        tail = self._connection.stderr.text() if stderr and self._connection is not None else ""
        text = f"MCP server {self.name!r}: {message}" + (f"; it wrote: {shorten(tail, 500)}" if tail else "")
        for secret in self._secrets:
            text = text.replace(secret, "[redacted]")
        return " ".join(text.split())


class StderrTail:
    """Takes what a server writes to stderr, and keeps the end of it."""

    def __init__(self) -> None:
        self._kept = b""
        self._read_end: int | None = None
        self._stream: Any = None

    def open(self) -> Any:
        """A text stream for the server to write to."""
        self._read_end, write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        asyncio.get_running_loop().add_reader(self._read_end, self._take)
        self._stream = os.fdopen(write_end, "w")
        return self._stream

    def text(self) -> str:
        self._take()
        kept = KNOWN.cut(self._kept, start=len(self._kept) == _STDERR_KEPT)
        return decode(kept).strip()

    def close(self) -> None:
        if self._read_end is not None:
            self._take()
            asyncio.get_running_loop().remove_reader(self._read_end)
            os.close(self._read_end)
            self._stream.close()
            self._read_end = None

    def _take(self) -> None:
        for _ in range(_MAX_READS):  # a server may write without end
            if self._read_end is None:
                return
            try:
                data = os.read(self._read_end, 65536)
            except OSError:
                return
            self._kept = (self._kept + data)[-_STDERR_KEPT:]
            if len(data) < 65536:
                return


def _mark() -> dict[str, str]:
    """What marks the processes of the run that this one belongs to, if it is a worker."""
    return {MARK: os.environ[MARK]} if MARK in os.environ else {}


def _guarded(command: str, arguments: tuple[str, ...]) -> tuple[str, list[str]]:
    """The command under a guard that ends it when this process is gone, where there are process groups."""
    if os.name != "posix":
        return command, list(arguments)
    return sys.executable, ["-I", "-S", str(_GUARD), str(os.getpid()), command, *arguments]


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    known = (MCPError, ConnectionLost, ValidationError, httpx2.HTTPError, OSError, anyio.ClosedResourceError)
    return error if isinstance(error, known) else ConnectionLost(_words(error))


def _words(error: BaseException) -> str:
    return shorten(" ".join(str(error).split()), 300) or type(error).__name__


def _version() -> str:
    try:
        return version("manyhands")
    except ImportError:
        return "0"
