"""Variables of a task's environments: as they are written, or those of this machine that they name, as far as a person lets tasks have
these."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from manyhands.agents.worlds.settings import Variables
from manyhands.core.errors import UserError
from manyhands.task_folders.contents import TASK_FILE, Task
from manyhands.task_folders.schema import TaskConfig

_REFERENCE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}", re.DOTALL)
_SOLUTION = "solution.env"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def wrong_reference(name: str, value: str) -> str | None:
    """Why a variable can't be set; None if it can."""
    if "=" in name or "\0" in name or not name:
        return "is no name of a variable"
    if "\0" in value:
        return "holds a NUL character"
    found = _REFERENCE.fullmatch(value)
    if found is not None and not _NAME.fullmatch(found[1]):
        return f"${{{found[1]}}} names no variable"
    return None


def resolved(values: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The values of variables. One that is ``${NAME}`` or ``${NAME:-default}`` as a whole is taken from ``environ``: what tasks may have.

    Raises UserError for one that is not there and has no default.
    """
    return {name: _value(name, value, environ) for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class Reference:
    """A variable of this machine that a field of ``task.toml`` takes."""

    field: str
    variable: str
    default: str | None
    """None: the task can't do without."""

    @property
    def of_solution(self) -> bool:
        """Whether only the task's own solution takes it."""
        return self.field.startswith(_SOLUTION)


def references(config: TaskConfig, *, solution: bool) -> Iterator[Reference]:
    """The variables of this machine that a task takes. ``solution``: also those of its solution."""
    places = [("environment.env", config.environment.env), ("verifier.env", config.verifier.env)]
    if config.verifier.environment is not None:
        places.append(("verifier.environment.env", config.verifier.environment.env))
    if solution:
        places.append((_SOLUTION, config.solution.env))
    for place, values in places:
        for name, value in values.items():
            found = _REFERENCE.fullmatch(value)
            if found is not None:
                yield Reference(f"{place}.{name}", found[1], found[2])


def refused_variable(task: Task, allowed: Variables, *, solution: bool) -> str | None:
    """What to say of the first variable that a task needs and may not have; None if there is none. ``allowed``: those that it may have, as
    ``--task_env`` names them; ``solution``: whether its solution is run."""
    names = allowed_names(allowed)
    for each in references(task.config, solution=solution):
        if each.default is None and each.variable not in names:
            return (
                f"{task.folder / TASK_FILE}: task {task.name}: {each.field} takes this machine's variable {each.variable}; "
                f"--task_env {each.variable} lets tasks have it"
            )
    return None


def allowed_names(allowed: Variables) -> frozenset[str]:
    """The names of the variables that ``--task_env`` lets tasks have."""
    return frozenset(each.partition("=")[0] for each in allowed or ())


def unused_notice(allowed: Variables, taken: Iterable[str]) -> str | None:
    """What to say of allowed variables that no task takes, as their names may be misspelt; None if there are none. ``taken``: those that
    tasks take."""
    names = allowed_names(allowed).difference(taken)
    return f"--task_env: no task takes {', '.join(sorted(names))}" if names else None


def _value(name: str, value: str, environ: Mapping[str, str]) -> str:
    found = _REFERENCE.fullmatch(value)
    if found is None:
        return value
    if found[1] in environ:
        return environ[found[1]]
    if found[2] is None:
        raise UserError(f"the variable {name} takes this machine's variable {found[1]}, which --task_env does not name")
    return found[2]
