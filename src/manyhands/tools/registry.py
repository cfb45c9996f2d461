"""Tools by name: the decorator that makes a typed function a tool, and the registry that agents' tools come from."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic import BaseModel

from manyhands.core.errors import ItemError, ManyhandsError, ToolError, UserError
from manyhands.core.failures import Cause
from manyhands.core.text import shorten, suggestion
from manyhands.tools.protocol import Tool, ToolEnvironment, ToolResult
from manyhands.tools.results import result_of
from manyhands.tools.schema import arguments_model, checked, strict_schema

PLUGINS = "manyhands.tools"
"""The entry point group of third-party tools."""
_WRAPPED = re.compile(r"(?<![\n:])\n(?=[^\s*+-])")
"""A line break within a paragraph of a docstring, which means nothing to a model."""

Restore = Callable[[dict[str, Any], ToolResult, ToolEnvironment], None]


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A tool made of a Python function. Made by ``tool``."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    changes_world: bool
    function: Callable[..., Any] = field(repr=False)
    model: type[BaseModel] = field(repr=False)
    restorer: Restore | None = field(default=None, repr=False)
    reads_world: bool = False
    queue: str = ""

    async def call(self, arguments: dict[str, Any], environment: ToolEnvironment) -> ToolResult:
        """Check the arguments, run the function, bound its result. Raises ToolError or ItemError."""
        values = checked(self.name, self.model, self.parameters, arguments)
        try:
            return result_of(await self._run(environment, values), environment.max_output)
        except ManyhandsError:
            raise
        except TimeoutError as error:
            raise ToolError(f"{self.name} took too long ({error or 'time limit'})") from error
        except Exception as error:
            message = shorten(f"tool {self.name} broke: {type(error).__name__}: {error}", 1000)
            raise ItemError(Cause.TOOL_ERROR, message) from error

    def restore(self, arguments: dict[str, Any], result: ToolResult, environment: ToolEnvironment) -> None:
        if self.restorer is not None:
            self.restorer(arguments, result, environment)

    async def _run(self, environment: ToolEnvironment, values: dict[str, Any]) -> Any:
        if inspect.iscoroutinefunction(self.function):
            return await self.function(environment, **values)
        return await asyncio.to_thread(self.function, environment, **values)


def tool(
    *,
    changes_world: bool,
    name: str | None = None,
    restore: Restore | None = None,
    reads_world: bool = False,
    queue: str = "",
) -> Callable[[Callable[..., Any]], FunctionTool]:
    """Make a typed function a tool.

    The function's first parameter is the ``ToolEnvironment``; the others are the tool's arguments, each with a type
    and, as ``Annotated[int, "what it is"]`` or with pydantic's ``Field``, a description and bounds. Its docstring is
    the tool's description. It may be ``async`` or not (then it runs in a thread), and returns text, any JSON value, a
    pydantic model, or a ``ToolResult``. It raises ToolError for what the model can mend.

    ``changes_world``: whether calls change or depend on the sandbox; ``reads_world``: whether they only look at it, so that
    there is nothing to undo. ``restore(arguments, result, environment)``:
    rebuilds ``environment.state`` on replay, for tools that keep state there. ``queue``: calls of one turn of tools with the same one are
    made one after the other.

    Raises TypeError if the function has no docstring or its signature can't be described to a model.
    """

    def made(function: Callable[..., Any]) -> FunctionTool:
        model = arguments_model(function)
        return FunctionTool(
            name=name or function.__name__,
            description=described(function),
            parameters=strict_schema(model),
            changes_world=changes_world,
            function=function,
            model=model,
            restorer=restore,
            reads_world=reads_world,
            queue=queue,
        )

    return made


def described(function: Callable[..., Any]) -> str:
    """What a function's docstring says to a model. Raises TypeError if there is none."""
    description = inspect.getdoc(function)
    if not description:
        raise TypeError(f"{function.__name__}: a tool needs a docstring, which is its description to the model")
    return _WRAPPED.sub(" ", description)


class Registry:
    """Tools by name. Immutable: ``extended`` gives another one.

    ``groups``: names of tools by the plug-in or server they came from (each becomes a toolset); ``notices``: one line
    for each thing that could not be loaded.
    """

    def __init__(
        self,
        tools: Iterable[Tool] = (),
        *,
        groups: Mapping[str, Sequence[str]] | None = None,
        notices: Sequence[str] = (),
    ) -> None:
        self._tools: dict[str, Tool] = {}
        for each in tools:
            if each.name in self._tools:
                raise UserError(f"two tools are called {each.name!r}")
            self._tools[each.name] = each
        self.groups: dict[str, tuple[str, ...]] = {name: tuple(names) for name, names in (groups or {}).items()}
        self.notices: tuple[str, ...] = tuple(notices)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(sorted(self._tools))

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def get(self, name: str) -> Tool:
        """The tool of that name.

        Raises UserError if there is none.
        """
        found = self._tools.get(name)
        if found is None:
            raise UserError(f"no tool is called {name!r}{suggestion(name, self._tools)}")
        return found

    def available(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of the names that this registry has, sorted, each once."""
        return tuple(sorted(name for name in set(names) if name in self._tools))

    def without(self, names: Collection[str]) -> Registry:
        """A registry without the tools of these names."""
        kept = [each for name, each in self._tools.items() if name not in names]
        return Registry(kept, groups=self.groups, notices=self.notices)

    def extended(
        self,
        tools: Iterable[Tool] = (),
        *,
        groups: Mapping[str, Sequence[str]] | None = None,
        notices: Sequence[str] = (),
    ) -> Registry:
        """A registry with further tools.

        Raises UserError if a name is taken.
        """
        return Registry(
            [*self._tools.values(), *tools],
            groups={**self.groups, **(groups or {})},
            notices=[*self.notices, *notices],
        )


def with_plugins(registry: Registry, plugins: Iterable[EntryPoint] | None = None) -> Registry:
    """The registry with the tools of installed packages (entry point group ``manyhands.tools``).

    An entry point names a tool, an iterable of tools, or a function that returns either; its own name becomes a toolset
    of them. A broken plug-in is left out and named in ``notices``; it does not keep the others from loading.
    """
    found = entry_points(group=PLUGINS) if plugins is None else plugins
    for entry in sorted(found, key=lambda entry: entry.name):
        try:
            tools = _loaded(entry)
            registry = registry.extended(tools, groups={entry.name: [each.name for each in tools]})
        except Exception as error:  # noqa: BLE001 - the boundary to a plug-in's own code, which may raise anything
            line = " ".join(f"{type(error).__name__}: {error}".split())
            notice = f"tool plug-in {entry.name!r} ({entry.value}) can't be used: {shorten(line, 300)}"
            registry = registry.extended(notices=[notice])
    return registry


def _loaded(entry: EntryPoint) -> list[Tool]:
    loaded = entry.load()
    if callable(loaded) and not is_tool(loaded):
        loaded = loaded()
    tools = [loaded] if is_tool(loaded) else list(loaded)
    for each in tools:
        if not is_tool(each):
            raise TypeError(f"{each!r} is not a tool (decorate the function with manyhands.tools.registry.tool)")
    return tools


def is_tool(value: object) -> bool:
    """Whether an object has what a tool has."""
    needed = ("name", "description", "parameters", "changes_world", "call", "restore")
    return not isinstance(value, type) and all(hasattr(value, attribute) for attribute in needed)
