"""The kinds of graders: ours in one table, those of other packages by entry point, those of a project by convention; and what graders
without a name are called.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from manyhands.core.jsonio import Json
from manyhands.core.settings import shown
from manyhands.core.text import closest, cut, suggestion
from manyhands.graders.protocol import Grader
from manyhands.io.keys import Entry, Notices, snake
from manyhands.io.locations import Location, UnknownKeys
from manyhands.io.plugins import plugins

PLUGINS = "manyhands.graders"
"""The entry point group: each entry names a module, or another object, with ``parse`` and, if its keys are to be checked, ``ENTRY``."""

BUILTIN = {
    **dict.fromkeys(
        (
            *("contains", "contains_any", "contains_all", "icontains", "icontains_any", "icontains_all"),
            *("equals", "starts_with", "ends_with", "is_json"),
        ),
        "manyhands.graders.text.rules",
    ),
    "regex": "manyhands.graders.text.patterns",
    "tool_trajectory": "manyhands.graders.trajectory.tool_calls",
    **dict.fromkeys(
        (
            *("trajectory:tool_used", "trajectory:tool_sequence", "trajectory:tool_args_match"),
            "trajectory:step_count",
        ),
        "manyhands.graders.trajectory.step_rules",
    ),
    "trajectory:goal_success": "manyhands.graders.judged.goal",
    **dict.fromkeys(("skill_used", "skill_trigger"), "manyhands.graders.trajectory.skills"),
    "field_accuracy": "manyhands.graders.text.fields",
    "verifier": "manyhands.graders.trajectory.verifier",
    "latency": "manyhands.graders.trajectory.metrics",
    "cost": "manyhands.graders.trajectory.metrics",
    "token_usage": "manyhands.graders.trajectory.metrics",
    "execution_metrics": "manyhands.graders.trajectory.metrics",
    "composite": "manyhands.graders.composite",
    "code_judge": "manyhands.graders.programs.code",
    "code_grader": "manyhands.graders.programs.code",
    "python": "manyhands.graders.programs.python",
    "llm_judge": "manyhands.graders.judged.judge",
    "rubrics": "manyhands.graders.judged.rubrics",
    "agent_judge": "manyhands.graders.judged.agent_judge",
}
"""Modules by kind. One that is not used is not imported."""

ALIASES = {
    "script": "code_grader",
    "command": "code_grader",
    "function": "python",
    "python_function": "python",
    "llm_grader": "llm_judge",
    "llm_rubric": "llm_judge",
    "rubric": "rubrics",
    "agent_rubric": "agent_judge",
    "agent_grader": "agent_judge",
}
"""Other names, in snake case. ``code_grader`` is a kind of its own, since that name has another contract."""

OBSOLETE = frozenset(("rubric",))
"""Those that are older than the format's present version."""

JUDGED = ("llm_judge", "rubrics", "agent_judge", "trajectory:goal_success")
"""Kinds that ask a judge, whatever their settings."""

PROGRAMS = ("code_judge", "code_grader")
"""Kinds whose program may ask a judge: see ``judge_access``."""

TRAJECTORY = "trajectory:"
_NOT = "not_"


@dataclass(frozen=True, slots=True)
class Setup:
    """What parsing a grader may need."""

    folder: Path
    """What relative paths in the file start from."""
    notices: Notices
    """Takes lines for the person."""
    including: tuple[Path, ...] = ()
    """The files that are being included, the outermost first."""
    eval_folder: Path | None = None
    """The eval file's folder where ``folder`` is that of an included file."""
    reading: Callable[[Json, Location], Json] | None = None
    """Makes of what an included file holds, and where, what is read: puts the values of variables in, for example."""
    unknown: UnknownKeys | None = None
    """Takes keys that mean nothing; without it they are refused."""
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """Those that were given in Python, by what they are recorded as."""

    @property
    def home(self) -> Path:
        """The eval file's folder."""
        return self.folder if self.eval_folder is None else self.eval_folder


class Parse(Protocol):
    """Makes a grader of an entry whose keys are spelled as declared. ``name`` and ``type`` are always there; the other keys that all kinds
    have never, as they are applied to whatever it finds (but see ``GraderKind.negates``). Raises UserError that names the location."""

    def __call__(self, entry: Mapping[str, Any], location: Location, setup: Setup) -> Grader: ...


@dataclass(frozen=True, slots=True)
class GraderKind:
    """A kind of grader."""

    name: str
    parse: Parse
    entry: type[Entry] | None
    """The class of its keys; None: a plug-in that checks its keys itself."""

    @property
    def members(self) -> str | None:
        """The key whose value is a list of graders, which the class of its keys names as ``members``."""
        members: str | None = getattr(self.entry, "members", None)
        return members

    @property
    def negates(self) -> bool:
        """Whether its graders see to ``negate`` themselves, as the opposite of what they look for is not 1 − score: the class of its keys
        says so by ``negates``."""
        return bool(getattr(self.entry, "negates", False))


def affirmed(spelled: Any, folder: Path | None = None) -> tuple[Any, bool]:
    """A kind without the ``not-`` that may stand before it, and whether it did: ``not-contains`` is the opposite of ``contains``, unless
    a kind of its own has that name. ``folder``: the eval file's."""
    if not isinstance(spelled, str) or not _word(spelled).startswith(_NOT):
        return spelled, False
    own = [*plugins(PLUGINS), *(_conventions().names_in(folder) if folder is not None else ())]
    if _word(spelled) in map(_word, own):
        return spelled, False
    return (spelled if spelled[3] in "-_" else _word(spelled))[len(_NOT) :], True


def _word(spelled: str) -> str:
    """A kind in snake case; in those of several words with colons between them each."""
    return ":".join(map(snake, spelled.split(":")))


def kind_of(spelled: Any, location: Location, notices: Notices, folder: Path | None = None) -> str:
    """The kind that a word stands for. ``folder``: the eval file's, for kinds by convention. Raises UserError, with the nearest one, if
    there is none."""
    if not isinstance(spelled, str):
        raise location.error(f"must be the name of a kind of grader, not {shown(spelled)}")
    word = _word(spelled)
    name = ALIASES.get(word, word)
    if word in OBSOLETE:
        notices(f"{location.file}: {spelled!r} is an obsolete name of {name!r}")
    if name in BUILTIN:
        return name
    for plugged in (spelled, name):
        if plugged in plugins(PLUGINS):
            return plugged
    conventional = _conventions().names_in(folder) if folder is not None else []
    for stem in conventional:
        if snake(stem) == word:
            return str(stem)
    known = [*BUILTIN, *ALIASES, *plugins(PLUGINS), *conventional]
    if word.startswith(TRAJECTORY):
        raise location.error(f"unknown kind of grader {shown(spelled)}; did you mean {_nearest(word)}?")
    raise location.error(f"unknown kind of grader {shown(spelled)}{suggestion(word, known)}")


def _nearest(word: str) -> str:
    """The kind of those with that first word that is most like it, as other programs write it."""
    several = [name for name in BUILTIN if name.startswith(TRAJECTORY)]
    return closest(word, several, cutoff=0)[0].replace("_", "-")


def judge_access(entry: Mapping[str, Any]) -> Any:
    """What an entry of ``PROGRAMS`` says about asking a judge: ``target``, or for a ``code_grader`` AgentV 5's word ``provider``, where it
    is true or nothing but a number of calls. (Else it is a setting of the program's own.)"""
    provider = entry.get("provider") if entry["type"] == "code_grader" else None
    access = provider is True or (isinstance(provider, Mapping) and provider.keys() <= {"max_calls"})
    return provider if access and entry.get("target") is None else entry.get("target")


def spellings_of(name: str) -> list[str]:
    """What a kind may be called: its own name and others, with underscores or hyphens."""
    names = [name, *(alias for alias, kind in ALIASES.items() if kind == name)]
    return list(dict.fromkeys(spelled for each in names for spelled in (each, each.replace("_", "-"))))


def load_kind(name: str, location: Location) -> GraderKind:
    """A kind by its own name. Raises UserError if it is a plug-in that can't be used."""
    if name in BUILTIN:
        return _builtin(name)
    return _plugin(name, location) if name in plugins(PLUGINS) else _kind(name, _conventions())


@cache
def _builtin(name: str) -> GraderKind:
    return _kind(name, import_module(BUILTIN[name]))


def _plugin(name: str, location: Location) -> GraderKind:
    found = plugins(PLUGINS)[name]
    try:
        return _kind(name, found.load())
    except Exception as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())
        raise location.error(f"the grader plug-in {name!r} ({found.value}) can't be used: {line[:300]}") from error


def _conventions() -> Any:
    """Imported where it is needed, as the other kinds are."""
    return import_module("manyhands.graders.programs.conventions")


def _kind(name: str, source: Any) -> GraderKind:
    entries: Mapping[str, type[Entry]] = getattr(source, "ENTRIES", {})
    return GraderKind(name, source.parse, entries.get(name, getattr(source, "ENTRY", None)))


_MAX_NAME = 60
_REGEX_LENGTH = 30


def name_for(entry: Mapping[str, Any]) -> str:
    """The kind and, where that says more, what it looks for: ``contains-CLEAR``, ``regex-`` with the first 30 characters, ``latency``."""
    kind = str(entry["type"])
    value = entry.get("value", entry.get("skill") if kind == "skill_trigger" else None)
    if isinstance(value, Mapping):
        value = value.get("pattern") or value.get("name") or value.get("goal")
    value = _one_line(value)
    if not value:
        return kind
    return f"{kind}-{value[:_REGEX_LENGTH]}" if kind == "regex" else cut(f"{kind}-{value}", _MAX_NAME)


def free_name(wanted: str, taken: Container[str]) -> str:
    """The name, or behind one that is taken the first of ``-2``, ``-3``, … that is free."""
    if wanted not in taken:
        return wanted
    return next(name for name in (f"{wanted}-{number}" for number in count(2)) if name not in taken)


def _one_line(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(_one_line(part) for part in value)
    return " ".join(str(value).split()) if isinstance(value, (str, int, float)) else ""
