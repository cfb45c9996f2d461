"""Variables of a task's environments: as they are written, or those of this machine that they name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from manyhands.core.errors import UserError
from manyhands.task_folders.schema import TaskConfig

_REFERENCE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}", re.DOTALL)
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
    """The values of variables. One that is ``${NAME}`` or ``${NAME:-default}`` as a whole is taken from ``environ``.

    Raises UserError for one that is not set there and has no default.
    """
    return {name: _value(name, value, environ) for name, value in values.items()}


def named_variables(config: TaskConfig) -> Iterator[tuple[str, str | None]]:
    """The variables of this machine that a task names: (name, default)."""
    environments = [config.environment]
    if config.verifier.environment is not None:
        environments.append(config.verifier.environment)
    for values in (*(each.env for each in environments), config.verifier.env, config.solution.env):
        yield from references(values.values())


def handed_notice(names: Iterable[str]) -> str:
    """What to say of variables of this machine that tasks take, as a task's author may name any."""
    return f"tasks take the values of {', '.join(sorted(names))} from the environment; their commands can read and send them"


def missing_variables(config: TaskConfig, environ: Mapping[str, str]) -> list[str]:
    """The variables that a task can't do without and that are not set in ``environ``."""
    return [name for name, default in named_variables(config) if default is None and name not in environ]


def references(values: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """The variables of this machine that are named: (name, default)."""
    for value in values:
        found = _REFERENCE.fullmatch(value)
        if found is not None:
            yield found[1], found[2]


def _value(name: str, value: str, environ: Mapping[str, str]) -> str:
    found = _REFERENCE.fullmatch(value)
    if found is None:
        return value
    if found[1] in environ:
        return environ[found[1]]
    if found[2] is None:
        raise UserError(f"the variable {name} takes its value from {found[1]}, which is not set")
    return found[2]
