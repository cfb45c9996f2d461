"""Python functions that are given as targets and graders: what they are recorded as, and what they get.

A function is recorded as ``module:name``; one without a name of its own, or of an object, by its place among what was given. So a run that
is continued by the same call finds them again. What follows in brackets is what it gets, by the names of its parameters.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from functools import wraps
from pathlib import PurePath
from typing import Any

from manyhands.core.jsonio import Json
from manyhands.core.settings import shown
from manyhands.io.locations import Location, Step
from manyhands.processes.python_functions import CALLABLE, LAMBDA, Function
from manyhands.workloads.evals.targets.kinds.python_function import WHOLE

FUNCTION = "function"
"""The key of a target or grader that names its function."""
_OF_GRADERS = {
    **dict.fromkeys(("answer", "output", "response", "actual_output"), "answer"),
    **dict.fromkeys(("expected_output", "expected", "reference", "reference_answer"), "reference_answer"),
    **dict.fromkeys(("question", "prompt", "input"), "question"),
    **{name: name for name in ("criteria", "metadata", "config", "trace", "test_id", "file_changes", "workspace_path")},
    "messages": "output",
}
"""What graders get by the names of their parameters."""
_ALL = ("record", "payload", "data", "test_case")
"""Names of a grader's only parameter that gets everything."""


class Callables:
    """The functions that one call was given."""

    def __init__(self, home: asyncio.AbstractEventLoop | None = None) -> None:
        """``home``: the event loop on which async functions are to run; None: one aside."""
        self.functions: dict[str, Function] = {}
        self._given: dict[str, Any] = {}
        self._home = home

    def target(self, function: Function, place: Location) -> dict[str, Json]:
        """The definition of a target that is a function."""
        name = self._name(function, place)
        written = f"{name}({', '.join(_target_arguments(function, place))})"
        return {"name": _called(function) or "function", "provider": "python", FUNCTION: written}

    def grader(self, function: Function, place: Location) -> dict[str, Json]:
        """The entry of a grader that is a function."""
        written = self.written(function, place)
        called = _called(function)
        return {**({} if called is None else {"name": called}), "type": "python", FUNCTION: written}

    def written(self, function: Function, place: Location) -> str:
        """What a grader's function is recorded as."""
        arguments = _grader_arguments(function, place)
        return self._name(function, place) + ("" if arguments is None else f"({', '.join(arguments)})")

    def plain(self, value: Any, place: Location) -> Json:
        """A value as JSON has it, with the functions in it recorded. Raises UserError for what is neither."""
        if isinstance(value, Mapping):
            return {str(key): self._of_key(key, each, place.at(str(key))) for key, each in value.items()}
        if isinstance(value, (str, int, float, type(None))):
            return value
        if isinstance(value, PurePath):
            return str(value)
        if isinstance(value, (list, tuple)):
            return [self.plain(each, place.at(index)) for index, each in enumerate(value)]
        if callable(value):
            return self.grader(value, place)
        raise place.error(f"must be data as JSON has it, or a function that grades, not {shown(value)}")

    def _of_key(self, key: Any, value: Any, place: Location) -> Json:
        return self.written(value, place) if key == FUNCTION and callable(value) else self.plain(value, place)

    def _name(self, function: Function, place: Location) -> str:
        """What a function is recorded as, the same for the same one."""
        wanted = _own_name(function) or f"{_kind(function)}:{_word(place.path)}"
        name, number = wanted, 1
        while name in self._given and self._given[name] is not function:
            number += 1
            name = f"{wanted}_{number}"
        self._given[name] = function
        self.functions[name] = function if self._home is None else _at_home(function, self._home)
        return name


def _own_name(function: Function) -> str | None:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    name = name.replace(".<locals>", "")
    usable = all(part.isidentifier() for part in name.split(".")) and ":" not in module and "(" not in module
    return f"{module}:{name}" if usable else None


def _kind(function: Function) -> str:
    return LAMBDA if getattr(function, "__name__", "") == "<lambda>" else CALLABLE


def _word(path: Sequence[Step]) -> str:
    return "_".join("".join(mark if mark.isalnum() else "_" for mark in str(step)) for step in path) or "target"


def _called(function: Function) -> str | None:
    name = getattr(function, "__name__", None) or type(function).__name__
    return name if isinstance(name, str) and name.isidentifier() else None


def _at_home(function: Function, home: asyncio.AbstractEventLoop) -> Function:
    """An async function that runs on the loop of whoever awaits the evaluation, to which what it uses may belong."""
    call = function if inspect.iscoroutinefunction(function) else getattr(function, "__call__", None)  # noqa: B004
    if not inspect.iscoroutinefunction(call):
        return function

    @wraps(call)
    async def at_home(*arguments: Any) -> Any:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(function(*arguments), home))

    return at_home


# --- What functions get


def _parameters(function: Function) -> list[inspect.Parameter] | None:
    """The parameters that it is called with; None if that can't be found out."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return [each for each in found if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]


def _is_text(parameter: inspect.Parameter) -> bool:
    return parameter.annotation in (inspect.Parameter.empty, str, "str")


def _target_arguments(function: Function, place: Location) -> list[str]:
    """The first parameter gets the prompt, or the whole test if it is called ``test`` or is no text; so does another one of that name."""
    parameters = _parameters(function)
    if parameters is None:
        return ["prompt"]
    if not parameters:
        raise place.error(f"{_called(function) or 'the function'} takes no argument, where the prompt is given")
    first = WHOLE if parameters[0].name == WHOLE or not _is_text(parameters[0]) else "prompt"
    found = [first]
    for each in parameters[1:]:
        if each.name == WHOLE:
            found.append(WHOLE)
        elif each.default is each.empty:
            raise place.error(
                f"{_called(function) or 'the function'} needs {each.name!r}; a target gets the prompt, and the test as 'test'"
            )
        else:
            break
    return found


def _grader_arguments(function: Function, place: Location) -> list[str] | None:
    """None: everything in one object."""
    parameters = _parameters(function)
    if parameters is None:
        return None
    first = parameters[0] if parameters else None
    if first is not None and first.name not in _OF_GRADERS and (first.name in _ALL or not _is_text(first)):
        return None
    return _named_arguments(function, parameters, place)


def _named_arguments(function: Function, parameters: Sequence[inspect.Parameter], place: Location) -> list[str]:
    found = []
    for each in parameters:
        if each.name in _OF_GRADERS:
            found.append(_OF_GRADERS[each.name])
        elif each.default is not each.empty:
            break
        else:
            raise place.error(
                f"{_called(function) or 'the function'} needs {each.name!r}; a grader gets, by the names of its parameters, "
                f"{', '.join(_OF_GRADERS)}, or everything in one called record"
            )
    if not found:
        raise place.error(f"{_called(function) or 'the function'} takes no argument, where the answer is given")
    return found
