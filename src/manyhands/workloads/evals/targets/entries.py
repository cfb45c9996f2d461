"""Targets as they stand in files: which of them an entry stands for (``use_target``), and of which kind it is.

A kind that is none of ours may be a program of the person's own: with a ``command``, or by convention a file of that name in a folder
``.agentv/providers``, which gets the prompt as its argument and prints the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from manyhands.core.settings import shown
from manyhands.graders.programs.conventions import RUNNERS, program_of
from manyhands.io.keys import snake
from manyhands.io.locations import Findings, Location, UnknownKeys
from manyhands.workloads.evals.evalfile.interpolation import has_reference
from manyhands.workloads.evals.targets.keys import Interpolation, TargetBlock
from manyhands.workloads.evals.targets.kinds.registry import BEYOND, named_kind, near_kind, no_kind

PROVIDERS = Path(".agentv", "providers")
"""Where programs are looked for that are kinds by convention: in such folders, from the eval file's upwards."""
COMMAND = "cli"
"""The kind of targets whose kind is a program of the person's own."""
_OWN = ("judge_target", "workers")
"""Keys that count although another target stands in."""


@dataclass(frozen=True, slots=True)
class TargetEntry:
    """A target as it stands in a file."""

    name: str
    value: Mapping[str, Any]
    location: Location
    unknown: UnknownKeys | None = None
    """Takes its keys that mean nothing; without it they are refused."""

    @property
    def delegates(self) -> bool:
        """Whether another target stands in for it."""
        return self.word("use_target") is not None

    def word(self, key: str) -> str | None:
        """How a key of every target is written in it; None if it has none."""
        return next(
            (word for word, value in self.value.items() if value is not None and TargetBlock.key_of(str(word)) == key),
            None,
        )


Lookup = Callable[[str], TargetEntry | None]


def followed(entry: TargetEntry, lookup: Lookup, environ: Mapping[str, str], known: Callable[[], str]) -> TargetEntry:
    """The target that stands in for one, under that one's name, with its judge and its limit, if it says these itself.

    ``known``: names the targets there are, for messages. Raises UserError for a variable that is not set, an unknown name, and a circle.
    """
    passed = [entry.name]
    found, own = entry, _own(entry)
    while (word := found.word("use_target")) is not None:
        location = found.location.at(word)
        name = _delegate(found.value[word], location, environ)
        following = lookup(name)
        if following is None:
            raise location.error(f"there is no target {shown(name)}; {known()}")
        if following.name in passed:
            raise location.error(f"leads in a circle: {' → '.join([*passed, following.name])}")
        passed.append(following.name)
        found, own = following, {**_own(following), **own}
    if found is entry:
        return entry
    kept = {word: value for word, value in found.value.items() if TargetBlock.key_of(str(word)) not in {*own, "name"}}
    return replace(found, name=entry.name, value={**kept, **own})


def _own(entry: TargetEntry) -> dict[str, Any]:
    return {key: entry.value[word] for key in _OWN if (word := entry.word(key)) is not None}


def _delegate(value: Any, location: Location, environ: Mapping[str, str]) -> str:
    if not isinstance(value, str) or not value.strip():
        raise location.error(f"must be the name of another target, not {shown(value)}")
    interpolation = Interpolation(environ)
    unset = interpolation.unset(value, location)
    if unset is not None:
        raise location.error(f"the environment variable {unset} is not set: set it to the name of the target to use")
    return str(interpolation.value(value, location)).strip()


# --- Kinds


def settled(
    entry: TargetEntry,
    folder: Path,
    environ: Mapping[str, str] | None = None,
    told: Findings | None = None,
) -> tuple[str, Mapping[str, Any]]:
    """The kind of a target, and its keys and values. ``folder``: the eval file's; ``environ``: for a ``provider`` that is a variable;
    ``told``: gets what may be a mistake.

    Raises UserError for what is no kind.
    """
    provider = entry.value.get("provider")
    location = entry.location.at("provider")
    if provider is None:
        raise entry.location.error("provider is required")
    value = dict(entry.value)
    if environ is not None and has_reference(provider):
        value["provider"] = provider = Interpolation(environ).value(provider, location)
    kind = named_kind(provider, location)
    if kind is not None:
        return kind, value
    if _key_in(value, "command") and not is_beyond(entry):
        near = near_kind(provider)
        if near and told is not None:
            told.notice(location.says(f"{shown(provider)} is no kind of target, so that its command is run{near}"))
        return COMMAND, value
    program = program_of(provider.strip(), folder, (PROVIDERS,))
    if program is None:
        raise no_kind(provider, location, str(PROVIDERS))
    return COMMAND, {**value, "command": [*RUNNERS[program.suffix], str(program), "{PROMPT}"]}


def is_beyond(entry: TargetEntry) -> bool:
    """Whether a target is of a kind that can't be used here."""
    provider = entry.value.get("provider")
    return isinstance(provider, str) and provider.strip().lower().replace("_", "-") in BEYOND


def _key_in(value: Mapping[str, Any], key: str) -> bool:
    return any(snake(str(word)) in (key, f"{key}_template") for word in value)
