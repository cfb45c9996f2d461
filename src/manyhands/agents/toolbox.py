"""The tools of agents: from names of toolsets to tools made ready for a conversation.

Optional toolsets (``runs.registry.TOOLSETS``) must be requested by name: ``all`` does not mean them, and nothing of them is loaded before.

A run records the MCP servers that it mounts and the person's own functions that it takes for tools, so that it can be replayed without
them. The record is None without any, or ``{"config": …, "tools": [{"name", "description", "parameters"}], "groups": {server or file:
[tool]}}``, with functions also ``"functions": {"sources": […], "digests": {file: …}, "groups": […], "notices": […]}``, with services
(``tools.services``) ``"services": {name: what was chosen}``, and ``"named"``, the toolsets and tools that every agent has.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from manyhands.core.digests import digest
from manyhands.core.errors import ToolError, UserError
from manyhands.core.jsonio import Json
from manyhands.core.text import MAX_COMPARED_LENGTH, closest, suggestion
from manyhands.engine.contract import import_attribute
from manyhands.runs.registry import TOOLSETS
from manyhands.tools.protocol import Tool, ToolEnvironment, ToolResult
from manyhands.tools.registry import Registry
from manyhands.tools.services.registry import lacking
from manyhands.tools.settings import ToolSettings, is_source
from manyhands.tools.standard import standard_registry
from manyhands.tools.toolsets import DECLARED, EVERYTHING, LEGACY, STANDARD, Toolset, Toolsets, with_groups

_EMPTY: Mapping[str, Json] = MappingProxyType({"config": None, "tools": [], "groups": {}})
SIMILARITY = 0.7
"""How alike two names must be (difflib's ratio, 0 to 1) for one to be taken for the other."""


def repair_name(name: str, known: Collection[str]) -> str | None:
    """The known name that was meant, or None.

    Tried in order: the name itself; in lower case; with hyphens and spaces as underscores; the same, ignoring the case
    of known names too; the most similar known name.
    """
    if name in known:
        return name
    if len(name) > MAX_COMPARED_LENGTH:
        return None
    plain = _plain(name)
    for candidate in (name.strip().lower(), plain):
        if candidate in known:
            return candidate
    by_plain = {_plain(each): each for each in sorted(known, reverse=True)}
    if plain in by_plain:
        return by_plain[plain]
    found = closest(plain, sorted(by_plain), cutoff=SIMILARITY)
    return by_plain[found[0]] if found else None


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")


CACHED = 512
"""How many sets of tools are kept ready."""


class Toolbox:
    """Tools by name, sorted, made ready for all conversations that have them: with their definitions for the wire and the digest of
    these."""

    __slots__ = ("changes_world", "definitions", "digest", "names", "tools")

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools = {tool.name: tool for tool in sorted(tools, key=lambda tool: tool.name)}
        if len(self.tools) != len(tools):
            raise ValueError("two tools have the same name")
        self.names = tuple(self.tools)
        self.changes_world = any(tool.changes_world for tool in tools)
        self.definitions: tuple[dict[str, Any], ...] = tuple(_definition(tool) for tool in self.tools.values())
        self.digest = digest("tools", list(self.definitions)).hex()

    @classmethod
    def of(cls, tools: Sequence[Tool] | Toolbox) -> Toolbox:
        """The box of these very tool objects, from a cache where it was requested before."""
        if isinstance(tools, Toolbox):
            return tools
        key = tuple(map(id, tools))
        found = _boxes.get(key)
        if found is None:
            # The box keeps its tools alive, so an id in the cache can't come to mean another object.
            found = _boxes[key] = cls(tools)
            if len(_boxes) > CACHED:
                _boxes.popitem(last=False)
        return found

    def find(self, name: str) -> str | None:
        """The tool that a model meant by a name, or None."""
        return repair_name(name, self.tools)


_boxes: OrderedDict[tuple[int, ...], Toolbox] = OrderedDict()
NO_TOOLS = Toolbox(())


def _definition(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def with_optional(toolsets: Toolsets) -> Toolsets:
    """The toolsets, with those that can be requested beside them: without their tools, as names to check against."""
    return toolsets.extended(Toolset(name, about) for name, (about, _) in TOOLSETS.items() if name not in toolsets)


class RecordedTool:
    """A tool as the journal knows it: enough to replay and to render, but not to call."""

    changes_world = False

    def __init__(self, name: str, description: str, parameters: Mapping[str, Any]) -> None:
        self.name = name
        self.description = description
        self.parameters = parameters

    async def call(self, arguments: dict[str, Any], environment: ToolEnvironment) -> ToolResult:
        raise ToolError(f"{self.name} can't be called here")

    def restore(self, arguments: dict[str, Any], result: ToolResult, environment: ToolEnvironment) -> None:
        return


async def outside_record(options: ToolSettings, services: Mapping[str, Json] = MappingProxyType({})) -> Json:
    """Start the servers of the configuration file, load the functions that the settings name, if any, and record their tools.
    ``services``: what was chosen of these, see ``choose_services``; recorded, too.

    Raises UserError naming the file, the server or the service that can't be used.
    """
    return with_functions(with_services(await _mcp_record(options.mcp_config), services), options.tools or ())


def with_services(record: Json, services: Mapping[str, Json]) -> Json:
    """A record of tools, with services."""
    return {**(record or _EMPTY), "services": dict(services)} if services else record


def services_of(record: Json) -> Mapping[str, Json]:
    """What a record says of services."""
    found: Mapping[str, Json] = (record or {}).get("services", {})
    return found


async def _mcp_record(config_file: str | None) -> Json:
    if config_file is None:
        return None
    from manyhands.tools.mcp.config import load_mcp_config
    from manyhands.tools.mcp.tools import mounted  # needs an extra, and much time to import

    config = load_mcp_config(Path(config_file))
    async with mounted(config) as servers:
        groups = {name: list(names) for name, names in servers.groups.items()}
        return {"config": config.model_dump(mode="json"), "tools": _definitions(servers.tools), "groups": groups}


def with_functions(record: Json, tools: Sequence[str]) -> Json:
    """A record of MCP servers and services, with what ``--tools`` names in place of what it had: the person's own functions as they are
    now, and the names of toolsets and tools. Raises UserError for what can't be loaded or had."""
    made = _with_sources(_without_functions(record), [each for each in tools if is_source(each)])
    names = list(dict.fromkeys(each for each in tools if not is_source(each)))
    if not names:
        return made
    _check_named(names, recorded_registry(made))
    return {**(made or _EMPTY), "named": names}


def _check_named(names: Sequence[str], registry: Registry) -> None:
    """Raises UserError for a name of ``--tools`` that is no toolset or tool, or none that this run can have."""
    toolsets = with_optional(with_groups(STANDARD, registry))
    for name in names:
        if name in TOOLSETS or name in registry or name in EVERYTHING:
            continue
        tools = toolsets.tools([name]) if name in toolsets else [name]
        if name not in toolsets and name not in DECLARED:
            known = (*toolsets, *registry.names)
            raise UserError(
                f"--tools: no toolset or tool is called {name!r}{suggestion(name, known)}; `manyhands tools` lists them, and a file "
                "of functions ends in .py"
            )
        if not registry.available(tools):
            raise UserError(f"--tools: {name} can't be had here; it needs {DECLARED.get(tools[0], 'what provides it')}")


def _with_sources(servers: Json, sources: Sequence[str]) -> Json:
    if not sources:
        return servers
    from manyhands.tools.own_functions import load_sources  # rarely needed

    own = load_sources(sources)
    base = servers or _EMPTY
    groups = {_free_group(name, base["groups"]): list(names) for name, names in own.groups.items()}
    present = recorded_registry(servers)
    for each in own.tools:
        if each.name in present:
            raise UserError(f"--tools: there is a tool called {each.name!r} already; give the function another name")
    return {
        **base,
        "config": base["config"],
        "tools": [*base["tools"], *_definitions(own.tools)],
        "groups": {**base["groups"], **groups},
        "functions": {
            "sources": list(sources),
            "digests": own.digests,
            "groups": groups,
            "notices": list(own.notices),
        },
    }


def changed_functions(record: Json) -> list[str]:
    """The files of a record's functions that are no more as they were when it was made."""
    digests = ((record or {}).get("functions") or {}).get("digests")
    if not digests:
        return []
    from manyhands.tools.own_functions import digest_of  # rarely needed

    return [file for file, digest in digests.items() if digest_of(Path(file)) != digest]


def _without_functions(record: Json) -> Json:
    if record and "named" in record:
        record = {key: value for key, value in record.items() if key != "named"}
        record = None if record == _EMPTY else record
    if not record or "functions" not in record:
        return record
    services = {"services": record["services"]} if "services" in record else {}
    if record["config"] is None and not services:
        return None
    own = record["functions"]["groups"]
    names = {name for group in own.values() for name in group}
    return {
        "config": record["config"],
        "tools": [tool for tool in record["tools"] if tool["name"] not in names],
        "groups": {name: tools for name, tools in record["groups"].items() if name not in own},
        **services,
    }


def function_modules(record: Json) -> list[tuple[str, Path]]:
    """The modules and files of a record's functions, and the folder in which each is looked for first."""
    if "functions" not in (record or {}):
        return []
    from manyhands.tools.own_functions import place_of  # rarely needed

    return [place_of(source) for source in record["functions"]["sources"]]


def _free_group(name: str, servers: Collection[str]) -> str:
    """A toolset's name for the tools of a file: no other one's, as those tools are of every agent."""
    taken = {*STANDARD, *LEGACY, *TOOLSETS, *EVERYTHING, *standard_registry().groups, *servers}
    while name in taken:
        name = f"own_{name}"
    return name


def _definitions(tools: Iterable[Tool]) -> list[Json]:
    return [{"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)} for tool in tools]


def recorded_registry(record: Json) -> Registry:
    """The tools of this program and its plug-ins, as far as the run has the services for them, with those of its MCP servers and functions
    as they were recorded."""
    record = record or {}
    tools = [RecordedTool(tool["name"], tool["description"], tool["parameters"]) for tool in record.get("tools", [])]
    notices = record.get("functions", {}).get("notices", ())
    return _served(record).extended(tools, groups=record.get("groups"), notices=notices)


def _served(record: Json) -> Registry:
    """The tools of this program and its plug-ins without those that lack a service."""
    return standard_registry().without(lacking(services_of(record)))


def own_toolsets(record: Json) -> tuple[str, ...]:
    """The toolsets that every agent of a run has: of its own functions, and those that were named."""
    record = record or {}
    return (*record.get("functions", {}).get("groups", ()), *record.get("named", ()))


class RunTools:
    """The tools of a run, by toolset. ``extra``: toolsets besides the standard ones and those that plug-ins and servers bring;
    ``always``: those that every agent has, tools by themselves included. Optional toolsets are there from when they are first named."""

    def __init__(self, registry: Registry, extra: Sequence[Toolset] = (), always: Sequence[str] = ()) -> None:
        self.registry = registry
        self.toolsets: Toolsets = with_groups(STANDARD, registry)
        self._always = tuple(always)
        self._boxes: dict[tuple[str, ...], Toolbox] = {}
        self._found_toolsets: dict[tuple[str, ...], list[str]] = {}
        self.admit(included for toolset in extra for included in toolset.includes)
        self.toolsets = self.toolsets.extended(extra)
        alone = [name for name in self._always if name not in self.toolsets and name in registry]
        self.toolsets = self.toolsets.extended(Toolset(name, f"The tool {name}.", (name,)) for name in alone)

    @classmethod
    def recorded(cls, record: Json, extra: Sequence[Toolset] = ()) -> RunTools:
        """Without connecting to anything: tools of MCP servers and functions as they were when the run was made. ``record``: of them."""
        return cls(recorded_registry(record), extra, own_toolsets(record))

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, record: Json, extra: Sequence[Toolset] = (), *, replay: bool = False
    ) -> AsyncIterator[RunTools]:
        """Ready to be called; MCP servers are started, and stopped at the end, and functions are loaded. Raises UserError if one does
        not start, or can't be loaded."""
        if replay or record is None:
            yield cls.recorded(record, extra)
            return
        async with AsyncExitStack() as stack:
            registry = _served(record)
            if record["config"] is not None:
                from manyhands.tools.mcp.config import McpConfig
                from manyhands.tools.mcp.tools import mounted  # needs an extra, and much time to import

                servers = await stack.enter_async_context(mounted(McpConfig(**record["config"])))
                registry = servers.added_to(registry)
            if functions := record.get("functions"):
                from manyhands.tools.own_functions import load_sources  # rarely needed

                own = load_sources(functions["sources"])
                groups = {_free_group(name, registry.groups): names for name, names in own.groups.items()}
                registry = registry.extended(own.tools, groups=groups)
            yield cls(registry, extra, own_toolsets(record))

    def admit(self, toolsets: Iterable[str]) -> None:
        """Add those of the named toolsets that are optional and not there yet.

        Raises UserError if a tool of theirs has the name of another one.
        """
        for name in toolsets:
            if name in TOOLSETS and name not in self.toolsets:
                about, target = TOOLSETS[name]
                make: Callable[[], Sequence[Tool]] = import_attribute(target)
                tools = make()
                self.registry = self.registry.extended(tools)
                self.toolsets = self.toolsets.extended([Toolset(name, about, tuple(tool.name for tool in tools))])

    def tools(self, toolsets: Sequence[str]) -> list[Tool]:
        """The available tools of these toolsets, by name, and those that every agent has. Raises UserError for a name that is no
        toolset."""
        self.admit(toolsets)
        names = self.toolsets.tools([*toolsets, *self._always])
        return [self.registry.get(name) for name in self.registry.available(names)]

    def with_tools(self, toolsets: Sequence[str]) -> list[str]:
        """Those of the toolsets that have an available tool. One that lacks tools and includes others is replaced by those of them that
        have some. Raises UserError for a name that is no toolset."""
        key = tuple(dict.fromkeys([*toolsets, *self._always]))
        found = self._found_toolsets.get(key)
        if found is None:
            self.admit(key)
            found = self._found_toolsets[key] = list(
                dict.fromkeys(part for name in key for part in self._parts_with_tools(name))
            )
        return found.copy()

    def _parts_with_tools(self, name: str) -> list[str]:
        tools = self.toolsets.tools([name])
        available = self.registry.available(tools)
        includes = () if name in EVERYTHING else self.toolsets[name].includes
        if not available or not includes or len(available) == len(tools):
            return [name] if available else []
        own = self.registry.available(self.toolsets[name].tools)
        return [*([name] if own else []), *(part for each in includes for part in self._parts_with_tools(each))]

    def toolbox(self, toolsets: Sequence[str]) -> Toolbox:
        """The same, made ready for an agent."""
        key = tuple(toolsets)
        box = self._boxes.get(key)
        if box is None:
            box = self._boxes[key] = Toolbox(self.tools(key))
        return box
