"""Tools made of a person's own Python functions, from a file or a module, without a package around them.

A source is written ``FILE.py`` (all its functions), ``FILE.py:function`` or ``module:function``. What a file defines of public functions
with a docstring and type hints becomes a tool each, or, if the file has a list ``TOOLS``, what is in that. The functions are trusted like
those of an installed package: they run in the process of the agent, outside of its sandbox, with a time limit for each call, and their
results are bounded. What they raise is an answer to the model.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, get_type_hints

from manyhands.core.errors import ManyhandsError, ToolError, UserError
from manyhands.core.redaction import KNOWN
from manyhands.core.text import expand_home, shorten
from manyhands.processes.python_functions import Overdue, call, load_function, load_module
from manyhands.tools.protocol import Tool, ToolEnvironment, ToolResult
from manyhands.tools.registry import FunctionTool, described, is_tool, tool
from manyhands.tools.results import result_of
from manyhands.tools.schema import arguments_model, checked, strict_schema

LISTED = "TOOLS"
"""The name by which a file lists its tools itself."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What endpoints take as a function's name."""
_MAX_ERROR = 1000
_HERE = "__main__"
_lent: dict[str, Callable[..., Any]] = {}
"""Functions of this very process that no other one can import, by their sources."""


@dataclass(frozen=True, slots=True)
class OwnFunction(FunctionTool):
    """A tool made of a function that knows nothing of tools: it takes the arguments alone."""

    async def call(self, arguments: dict[str, Any], environment: ToolEnvironment) -> ToolResult:
        """Check the arguments, call the function, bound its result. Raises ToolError, for whatever goes wrong."""
        values = checked(self.name, self.model, self.parameters, arguments)
        try:
            value = await call(self._called, values, environment.max_output, seconds=environment.timeout)
            return result_of(value, environment.max_output)
        except ManyhandsError:
            raise
        except Overdue:
            raise ToolError(f"{self.name} was given up after {environment.timeout:g} seconds") from None
        except Exception as error:
            told = " ".join(KNOWN.text(f"{type(error).__name__}: {_message(error)}").split())
            raise ToolError(shorten(f"{self.name} failed: {told}", _MAX_ERROR)) from error

    def _called(self, values: dict[str, Any], max_output: int) -> Any:
        """In a thread: a result may take as long to be read as to be made."""
        value = self.function(**values)
        return value if inspect.isawaitable(value) else result_of(value, max_output)


def _message(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - its class may be the person's own
        return "it can't say why"


@dataclass(frozen=True, slots=True)
class OwnTools:
    """The tools of some sources."""

    tools: tuple[Tool, ...]
    groups: dict[str, tuple[str, ...]]
    """Names of tools by the file or module that they are from."""
    digests: dict[str, str]
    """Of the files, by their paths."""
    notices: tuple[str, ...]
    """What is no tool, and why, a line each."""


def absolute_source(source: str, folder: Path = Path()) -> str:
    """A source whose file, if it names one, is named from the root. ``folder``: what relative paths start from."""
    path, function = _parts(source)
    return str((folder / expand_home(path)).absolute()) + function if path.endswith(".py") else source


def digest_of(file: Path) -> str | None:
    """What changes with a file of tools; None if it can't be read."""
    try:
        return hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return None


def load_sources(sources: Iterable[str]) -> OwnTools:
    """Load tools. Raises UserError, naming the source and what to do, for one that can't be loaded or gives no tool."""
    found: dict[str, Tool] = {}
    groups: dict[str, tuple[str, ...]] = {}
    digests: dict[str, str] = {}
    notices: list[str] = []
    for source in sources:
        tools = _loaded(source, notices)
        for each in tools:
            if each.name in found:
                raise UserError(f"--tools {source}: two tools are called {each.name!r}")
            found[each.name] = each
        group, path = _origin(source)
        groups[group] = (*groups.get(group, ()), *(each.name for each in tools))
        if path is not None:
            digests[str(path)] = digest_of(path) or ""
    return OwnTools(tuple(found.values()), groups, digests, tuple(notices))


def source_of(given: Any) -> tuple[str, bool]:
    """The source of what a Python program gives as a tool, and whether another process can load it: of a path or a source as text, of
    a function, or of what ``tool`` made of one. Raises UserError for anything else."""
    if isinstance(given, (str, Path)):
        return str(given), True
    function = getattr(given, "function", given)
    if not isinstance(function, FunctionType) or not (given is function or is_tool(given)):
        raise UserError(f"tools: {given!r:.100} is no function, tool, or path of a Python file")
    module, name = function.__module__, function.__qualname__
    if module != _HERE and _resolved(sys.modules.get(module), name) is given:
        file = inspect.getsourcefile(function)
        return (f"{file}:{name}" if file and "." not in module else f"{module}:{name}"), True
    source = f"{module}:{name}"
    _lent[source] = given
    return source, False


def _resolved(module: ModuleType | None, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _parts(source: str) -> tuple[str, str]:
    """The file or module of a source, and its function with the colon before, if it names one."""
    if source.endswith(".py"):
        return source, ""
    module, colon, name = source.rpartition(":")
    return (module, colon + name) if module else (source, "")


def _origin(source: str) -> tuple[str, Path | None]:
    module, _ = _parts(source)
    if module.endswith(".py"):
        return Path(module).stem, Path(module)
    return module.rpartition(".")[2].strip("_"), None


def place_of(source: str) -> tuple[str, Path]:
    """The module or file of a source, and the folder in which it is looked for first. A module is looked for where Python looks for it, and
    not in the current folder."""
    module, _ = _parts(source)
    return module, Path(module).parent if module.endswith(".py") else Path(sys.prefix)


def _refusal(source: str) -> Callable[[str], UserError]:
    return lambda problem: UserError(f"--tools {source}: {problem}")


def _loaded(source: str, notices: list[str]) -> list[Tool]:
    refusal, (module, function) = _refusal(source), _parts(source)
    if not function and not module.endswith(".py"):
        raise refusal("must be FILE.py, FILE.py:function or module:function")
    try:
        if function:
            return [_made(_lent.get(source) or _found(source, refusal))]
        return _of_module(load_module(module, Path(module).parent, refusal, fresh=True), module, notices)
    except _NoTool as error:
        raise refusal(str(error)) from None


def _found(source: str, refusal: Callable[[str], UserError]) -> Any:
    if source.startswith(f"{_HERE}:") or "<locals>" in source:
        raise refusal(
            "it is a function of the Python program that made the run; continue it from there, with BatchRunner(tools=…)"
        )
    return load_function(source, place_of(source)[1], refusal)


class _NoTool(Exception):
    """Why something can't be a tool."""


def _of_module(module: ModuleType, source: str, notices: list[str]) -> list[Tool]:
    listed = getattr(module, LISTED, None)
    if listed is not None:
        if not isinstance(listed, (list, tuple)):
            raise _NoTool(f"{LISTED} is not a list of functions")
        if not listed:
            raise _NoTool(f"{LISTED} is empty")
        return [_made(each) for each in listed]
    found: list[Tool] = []
    problems: list[str] = []
    for each in _public(module):
        try:
            found.append(_made(each))
        except _NoTool as error:
            problems.append(str(error))
    if not found:
        why = f": {problems[0]}" if problems else ""
        raise _NoTool(f"no function in it can be a tool; a tool has a docstring and type hints{why}")
    notices += [f"{source}: {problem}, so it is no tool" for problem in problems]
    return found


def _public(module: ModuleType) -> Iterator[Any]:
    """What a file may mean by tools, in its order."""
    for name, value in vars(module).items():
        if name.startswith("_"):
            continue
        if isinstance(value, FunctionTool) or (isinstance(value, FunctionType) and value.__module__ == module.__name__):
            yield value


def _made(value: Any) -> Tool:
    """A tool. Raises _NoTool, naming the function and its line."""
    if is_tool(value):
        made: Tool = value
        return made
    if not callable(value):
        raise _NoTool(f"{value!r:.100} is no function")
    name = getattr(value, "__name__", type(value).__name__)
    code = getattr(value, "__code__", None)
    where = name if code is None else f"{name} (line {code.co_firstlineno})"
    if not _NAME.fullmatch(name):
        raise _NoTool(f"{where} has a name that endpoints don't take: letters, digits and _, 64 at most")
    if not inspect.getdoc(value):
        raise _NoTool(f"{where} has no docstring, which would be its description to the model")
    try:
        if _takes_environment(value):
            return tool(changes_world=True)(value)
        model = arguments_model(value, with_environment=False)
        return OwnFunction(name, described(value), strict_schema(model), False, value, model)
    except Exception as error:  # pydantic and annotations raise all kinds
        problem = " ".join(str(error).split())
        raise _NoTool(f"{where}: {shorten(problem.removeprefix(f'{name}: '), 300)}") from error


def _takes_environment(function: Callable[..., Any]) -> bool:
    first: Sequence[str] = list(inspect.signature(function).parameters)[:1]
    return bool(first) and get_type_hints(function).get(first[0]) is ToolEnvironment
