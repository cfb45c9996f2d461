"""Other people's MCP servers, mounted as toolsets.

Each server's tools are named ``server__tool``. The servers are started (or connected to) before the run, within their
time limits, and stopped after it; their processes do not outlive this one. Needs the extra ``mcp``.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.exceptions import ValidationError as SchemaMismatch
from referencing import Registry as SchemaRegistry
from referencing.exceptions import Unresolvable

from manyhands.core.errors import ToolError, UserError
from manyhands.core.jsonio import Json, dumps
from manyhands.core.text import clean, shorten, suggestion
from manyhands.processes.killable import killable
from manyhands.tools.mcp.config import McpConfig, interpolated
from manyhands.tools.protocol import Tool, ToolEnvironment, ToolResult
from manyhands.tools.registry import Registry
from manyhands.tools.results import result_of
from manyhands.tools.schema import cleaned, explain, given, may_take_long

if TYPE_CHECKING:
    from mcp import types

    from manyhands.tools.mcp.connection import Server

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME = 64
"""What chat-completions endpoints take as a function's name: letters, digits, ``_`` and ``-``, 64 at most."""
_MAX_MISTAKES = 5
_CHECK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool of an MCP server."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    server: Server = field(repr=False)
    remote_name: str
    validator: Draft202012Validator = field(repr=False)

    @property
    def changes_world(self) -> bool:
        return False

    async def call(self, arguments: dict[str, Any], environment: ToolEnvironment) -> ToolResult:
        """Check the arguments against the server's own schema, and call it."""
        arguments = cleaned(arguments)
        mistakes = await self._mistakes(arguments)
        if mistakes:
            raise ToolError(explain(self.name, self.parameters, mistakes))
        result = await self.server.call(self.remote_name, arguments, environment.timeout)
        content = flattened(result)
        if result.is_error:
            text = content if isinstance(content, str) else str(content)
            raise ToolError(shorten(clean(text), environment.max_output) or f"{self.name} failed without saying why")
        return result_of(content, environment.max_output)

    async def _mistakes(self, arguments: dict[str, Any]) -> list[str]:
        schema = dict(self.parameters)
        if not may_take_long(dumps(schema), arguments):
            return _mistakes(self.validator, arguments)
        try:
            return await killable(_mistakes_by, schema, arguments, seconds=_CHECK_SECONDS)
        except TimeoutError:
            return [f"the arguments could not be checked within {_CHECK_SECONDS:g} s"]

    def restore(self, arguments: dict[str, Any], result: ToolResult, environment: ToolEnvironment) -> None:
        """Nothing to do: a server's state is its own."""


@dataclass(frozen=True, slots=True)
class Mounted:
    """What the servers bring: tools, their names by server, and notices of what could not be taken."""

    tools: tuple[Tool, ...]
    groups: Mapping[str, tuple[str, ...]]
    notices: tuple[str, ...]

    def added_to(self, registry: Registry) -> Registry:
        """The registry with these tools. Raises UserError if a name is taken."""
        return registry.extended(self.tools, groups=self.groups, notices=self.notices)


@asynccontextmanager
async def mounted(config: McpConfig) -> AsyncIterator[Mounted]:
    """Start all servers at once, and stop them at the end.

    Raises UserError that names the server (a missing variable or command, no start in time, the extra not installed).
    """
    servers = _servers(config)
    try:
        listings = await asyncio.gather(*(server.start() for server in servers), return_exceptions=True)
        for listing in listings:
            if isinstance(listing, BaseException):
                raise listing
        yield _addition(config, servers, [listing for listing in listings if not isinstance(listing, BaseException)])
    finally:
        await asyncio.shield(asyncio.gather(*(server.stop() for server in servers), return_exceptions=True))


def flattened(result: types.CallToolResult) -> Json:
    """A result as text or JSON: the structured content where all else is text, else the parts, one after another.

    Pictures, sound and binary resources are named with their size, as a tool message can't carry them.
    """
    parts = [_part(block) for block in result.content]
    structured = result.structured_content
    if structured is not None and all(block.type == "text" for block in result.content):
        if isinstance(structured, dict) and structured.keys() == {"result"}:
            return structured["result"]
        return structured
    return "\n".join(parts)


def _part(block: types.ContentBlock) -> str:
    if block.type == "text":
        return block.text
    if block.type == "image" or block.type == "audio":
        return f"[{block.type} of type {block.mime_type}, {len(block.data) * 3 // 4} bytes, not shown]"
    if block.type == "resource_link":
        return f"[resource {block.name}: {block.uri}]"
    resource = block.resource
    text = getattr(resource, "text", None)
    return str(text) if text is not None else f"[binary resource {resource.uri}, not shown]"


def _servers(config: McpConfig) -> list[Server]:
    try:
        from manyhands.tools.mcp.connection import Server  # an optional extra
    except ModuleNotFoundError as error:
        raise UserError("MCP servers need the extra 'mcp': pip install 'manyhands[mcp]'") from error
    for name in ("mcp", "client"):  # the client logs what servers do wrong; that is said where it matters
        logging.getLogger(name).addHandler(logging.NullHandler())
    return [Server(name, *interpolated(config, name)) for name in sorted(config.servers)]


def _addition(config: McpConfig, servers: Iterable[Server], listings: Iterable[list[types.Tool]]) -> Mounted:
    tools: list[Tool] = []
    groups: dict[str, tuple[str, ...]] = {}
    notices: list[str] = []
    for server, listing in zip(servers, listings, strict=True):
        taken = _chosen(config, server.name, listing)
        made = [_tool(server, each, notices) for each in taken]
        kept = [each for each in made if each is not None]
        tools += kept
        groups[server.name] = tuple(each.name for each in kept)
    return Mounted(tuple(tools), groups, tuple(notices))


def _chosen(config: McpConfig, name: str, listing: list[types.Tool]) -> list[types.Tool]:
    wanted = config.servers[name].tools
    if wanted is None:
        return listing
    available = {each.name: each for each in listing}
    for each in wanted:
        if each not in available:
            path = f"{config.source}: mcpServers.{name}.tools"
            raise UserError(f"{path}: the server has no tool {each!r}{suggestion(each, available)}")
    return [available[each] for each in wanted]


def _tool(server: Server, remote: types.Tool, notices: list[str]) -> McpTool | None:
    schema = {"type": "object", "properties": {}, **remote.input_schema}
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        notices.append(
            f"MCP server {server.name!r}: tool {remote.name!r} is left out, its schema is not valid: {error.message}"
        )
        return None
    return McpTool(
        name=wire_name(f"{server.name}__{remote.name}"),
        description=remote.description or remote.title or remote.name,
        parameters=schema,
        server=server,
        remote_name=remote.name,
        validator=_validator(schema),
    )


def wire_name(name: str) -> str:
    """A name that every endpoint takes. One that had to be changed ends with a hash, so that two never become the
    same."""
    safe = _UNSAFE.sub("_", name)
    if safe == name and len(name) <= _MAX_NAME:
        return name
    mark = "_" + hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
    return safe[: _MAX_NAME - len(mark)] + mark


def _validator(schema: dict[str, Any]) -> Draft202012Validator:
    # An empty registry: references to other documents are not fetched from anywhere.
    return Draft202012Validator(schema, registry=SchemaRegistry())


def _mistakes_by(schema: dict[str, Any], arguments: dict[str, Any]) -> list[str]:
    return _mistakes(_validator(schema), arguments)


def _mistakes(validator: Draft202012Validator, arguments: dict[str, Any]) -> list[str]:
    try:
        return [_mistake(error) for error in islice(validator.iter_errors(arguments), _MAX_MISTAKES)]
    except Unresolvable:
        return []  # the server checks its arguments itself


def _mistake(error: SchemaMismatch) -> str:
    path = ".".join(str(part) for part in error.absolute_path)
    if not path:
        return shorten(error.message, 300)
    return f"argument {path!r} was {given(error.instance)}: {shorten(error.message, 300)}"
