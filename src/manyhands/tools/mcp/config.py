"""Which MCP servers to mount: the file that many programs share, in JSON or YAML.

::

    {"mcpServers": {
        "notes": {"command": "notes-server", "args": ["--readonly"], "env": {"TOKEN": "${NOTES_TOKEN}"}},
        "wiki": {"url": "https://wiki.example/mcp", "headers": {"Authorization": "Bearer ${WIKI_TOKEN}"}}
    }}

``${NAME}`` stands for an environment variable, ``${NAME:-text}`` for one with a default. They are looked up when a
server is started, so that secrets are in the environment only: not in this file, and not in what is recorded of a run.
A secret written out is refused.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from manyhands.core.errors import UserError
from manyhands.core.redaction import protect
from manyhands.tools.toolsets import Toolset

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")
_SECRET = re.compile(r"key|token|secret|passw|authorization|cookie|credential", re.IGNORECASE)
_SHORTEST_SECRET = 8
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")


class McpServer(BaseModel):
    """One server: a command, or a URL."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["stdio", "http", "streamable-http", "streamable_http"] | None = None
    command: str | None = Field(None, min_length=1)
    """Started, and spoken to over its standard streams."""
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    url: str | None = Field(None, pattern=r"^(https?://|\$\{)")
    """Of a server that is spoken to by streamable HTTP."""
    headers: dict[str, str] = Field(default_factory=dict)
    timeout: float = Field(120.0, gt=0)
    """Seconds for a call."""
    start_timeout: float = Field(30.0, gt=0)
    """Seconds for connecting."""
    tools: tuple[str, ...] | None = None
    """Only these of its tools; None: all."""
    disabled: bool = False

    @model_validator(mode="after")
    def _one_way(self) -> McpServer:
        if (self.command is None) == (self.url is None):
            raise ValueError("either command or url is expected")
        if self.type is not None and (self.type == "stdio") != (self.command is not None):
            raise ValueError(f"type {self.type!r} does not go with {'url' if self.command is None else 'command'}")
        return self


class McpConfig(BaseModel):
    """Servers by name. Each becomes a toolset of that name, with tools named ``server__tool``."""

    model_config = ConfigDict(frozen=True)

    servers: dict[str, McpServer]
    source: str = ""
    """The file that it came from, for messages."""

    def toolsets(self) -> list[Toolset]:
        """The toolsets to come, by name and still without tools, for checking distributions before anything is
        started."""
        return [Toolset(name, f"Tools of the MCP server {name}.") for name in sorted(self.servers)]


def load_mcp_config(path: Path) -> McpConfig:
    """Read a configuration file (``.json``, else YAML). Servers marked ``disabled`` are left out.

    Raises UserError that names file and field.
    """
    content = _json(path) if path.suffix == ".json" else _yaml(path)
    named = content.get("mcpServers") if isinstance(content, Mapping) else None
    if not isinstance(named, Mapping):
        raise UserError(f"{path}: mcpServers: a mapping of servers by name is expected")
    servers = {str(name): _server(path, str(name), value) for name, value in named.items()}
    return McpConfig(servers={name: each for name, each in servers.items() if not each.disabled}, source=str(path))


def interpolated(
    config: McpConfig, name: str, environment: Mapping[str, str] = os.environ
) -> tuple[McpServer, list[str]]:
    """The server with ``${NAME}`` replaced by the environment's values, and those values (to be kept out of messages).

    Raises UserError that names file, server, field and variable if a variable is not set.
    """
    used: list[str] = []

    def value(text: str, field: str) -> str:
        def one(match: re.Match[str]) -> str:
            found = environment.get(match["name"], match["default"])
            if found is None:
                field_path = f"{config.source}: mcpServers.{name}.{field}"
                raise UserError(f"{field_path}: the environment variable {match['name']} is not set")
            used.append(found)
            if _SECRET.search(match["name"]) or _SECRET.search(field):
                protect([found])
            return found

        return _VARIABLE.sub(one, text)

    server = config.servers[name]
    changes: dict[str, Any] = {
        "args": tuple(value(text, "args") for text in server.args),
        "env": {key: value(text, f"env.{key}") for key, text in server.env.items()},
        "headers": {key: value(text, f"headers.{key}") for key, text in server.headers.items()},
    }
    for field in ("command", "cwd", "url"):
        text = getattr(server, field)
        changes[field] = None if text is None else value(text, field)
    return server.model_copy(update=changes), [text for text in used if len(text) >= 4]


def _server(path: Path, name: str, value: Any) -> McpServer:
    if not _NAME.fullmatch(name):
        raise UserError(f"{path}: mcpServers.{name}: a server's name is up to 32 letters, digits, '-' and '_'")
    try:
        server = McpServer.model_validate(value)
    except ValidationError as error:
        detail = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(["mcpServers", name, *map(str, detail["loc"])])
        raise UserError(f"{path}: {field}: {detail['msg'].removeprefix('Value error, ')}") from None
    for field, key, text in _settings(server):
        if _SECRET.search(key) and len(text) >= _SHORTEST_SECRET and not _VARIABLE.search(text):
            field_path = f"{path}: mcpServers.{name}.{field}.{key}"
            raise UserError(
                f"{field_path}: secrets are not kept in files: set an environment variable and write ${{NAME}} here"
            )
    return server


def _settings(server: McpServer) -> list[tuple[str, str, str]]:
    parts = (("env", server.env), ("headers", server.headers))
    return [(field, key, text) for field, values in parts for key, text in values.items()]


def _yaml(path: Path) -> Any:
    from manyhands.io.yaml_files import read_yaml  # YAML takes long to import

    return read_yaml(path)[0]


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from error
