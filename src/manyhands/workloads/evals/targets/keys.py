"""Keys of targets of every kind, forms of values that several kinds have, and environment variables in values.

``${{ NAME }}`` in a value, as a whole text or within one, is a variable, and ``${{ NAME:-text }}`` one with a default. A variable that is
empty counts as not set. Only what a person wrote is looked at: a value from the environment is put in as it is.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, WithJsonSchema

from manyhands.core.jsonio import Json
from manyhands.core.settings import Flag, Text, number, whole
from manyhands.io.keys import Entry, key
from manyhands.io.locations import Location
from manyhands.workloads.evals.evalfile.interpolation import MEANING, REFERENCE, SECRET_NAME
from manyhands.workloads.evals.evalfile.keys import Block


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(shlex.split(value))
    if not isinstance(value, (list, tuple)) or not all(isinstance(word, str) for word in value):
        raise ValueError("must be a list of words, or one text")
    return tuple(value)


_COMMAND = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
Seconds = Annotated[float, number(above=0)]
Command = Annotated[Any, WithJsonSchema(_COMMAND)]
"""A command, which ``targets.command`` checks."""
Words = Annotated[tuple[str, ...], BeforeValidator(_words), WithJsonSchema(_COMMAND)]


IDLE = frozenset(("subagent_mode_allowed", "fallback_targets", "log_format", "log_output_format"))
"""Keys of all kinds that change nothing here."""


class TargetBlock(Block):
    """Keys of targets of every kind."""

    heading: ClassVar[str] = "Every kind"
    """What documents call those that have these keys, if not by the kinds' names."""
    mappings: ClassVar[Mapping[str, type[Entry]]] = {}
    """Keys that may be a mapping, besides other things, and the keys of that."""
    spellings: ClassVar = {"grader_target": "judge_target", "batch_requests": "provider_batching"}
    idle: ClassVar[frozenset[str]] = IDLE
    """Keys of other versions, in snake case, that may be there and change nothing here; a note names them."""

    name: Text | None = key(None, "Name of the target. In a mapping of targets, its key.")
    provider: Text = key(..., "Kind of target.")
    use_target: Text | None = key(None, "Another target that stands in for this one.")
    judge_target: Text | None = key(None, "Target that judges its answers.")
    workers: Annotated[int, whole(1, 10_000)] | None = key(None, "Maximum concurrent tests of this target.")
    provider_batching: Flag = key(False, "One invocation answers all tests.")


# --- Variables of the environment


def is_reference(value: Json) -> bool:
    """Whether a value is a variable and nothing else, without a default."""
    whole = REFERENCE.fullmatch(value.strip()) if isinstance(value, str) else None
    meant = MEANING.fullmatch(whole[1]) if whole is not None else None
    return meant is not None and meant[2] is None


def variables(value: Json, location: Location) -> Iterator[str]:
    """The variables in a value that have no default. Raises UserError for malformed ones."""
    if isinstance(value, str):
        yield from (name for name, default in _references(value, location) if default is None)
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from variables(entry, location.at(key))
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from variables(entry, location.at(index))


@dataclass(frozen=True, slots=True)
class Interpolation:
    """Puts values of environment variables in."""

    environ: Mapping[str, str]
    used: dict[str, str] = field(default_factory=dict)
    """Those that were put in, by name."""

    @property
    def secrets(self) -> list[str]:
        """The values that were put in for variables whose names say that they are secrets."""
        return [value for name, value in self.used.items() if SECRET_NAME.search(name)]

    def value(self, value: Json, location: Location) -> Json:
        """The value with all variables replaced; keys are left alone. Raises UserError for a variable that is not set."""
        if isinstance(value, str):
            return self._text(value, location)
        if isinstance(value, Mapping):
            return {key: self.value(entry, location.at(key)) for key, entry in value.items()}
        if isinstance(value, list):
            return [self.value(entry, location.at(index)) for index, entry in enumerate(value)]
        return value

    def is_set(self, name: str) -> bool:
        """Whether there is a variable of that name with a value."""
        return bool(self.environ.get(name))

    def unset(self, value: Json, location: Location) -> str | None:
        """The first variable in a value that is not set and has no default; None if there is none. Raises UserError as ``value``."""
        return next((name for name in variables(value, location) if not self.is_set(name)), None)

    def _text(self, text: str, location: Location) -> str:
        if "${{" not in text:
            return text
        found = iter(list(_references(text, location)))
        whole = text.strip() if REFERENCE.fullmatch(text.strip()) else text
        return REFERENCE.sub(lambda _: self._variable(*next(found), location), whole)

    def _variable(self, name: str, default: str | None, location: Location) -> str:
        value = self.environ.get(name)
        if value:
            self.used[name] = value
            return value
        if default is None:
            raise location.error(f"the environment variable {name} is not set")
        return default


def _references(text: str, location: Location) -> Iterator[tuple[str, str | None]]:
    """The names and defaults of a text's variables, in order."""
    for found in REFERENCE.finditer(text):
        meant = MEANING.fullmatch(found[1])
        if meant is None:
            raise location.error(f"{found[0]} is no variable; write ${{{{ NAME }}}} or ${{{{ NAME:-text }}}}")
        yield meant[1], None if meant[2] is None else meant[2].strip()
