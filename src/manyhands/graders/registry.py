"""The kinds of graders: ours in one table, those of other packages by entry point, those of a project by convention; and what graders
without a name are called.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from manyhands.core.jsonio import Json
from manyhands.core.settings import shown, suggestion
from manyhands.core.text import closest
from manyhands.graders.protocol import Grader
from manyhands.io.keys import Entry, Notices, snake
from manyhands.io.locations import Place

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

TRAJECTORY = "trajectory:"
_NOT = "not_"


@dataclass(frozen=True, slots=True)
class Setup:
    """What parsing a grader may need. ``folder``: what relative paths in the file start from; ``notices``: takes lines for the
    person; ``including``: the files that are being included, the outermost first, and ``eval_folder`` then that of the eval file;
    ``variables``: puts the values of variables into what such files hold."""

    folder: Path
    notices: Notices
    including: tuple[Path, ...] = ()
    eval_folder: Path | None = None
    variables: Callable[[Json], Json] | None = None

    @property
    def home(self) -> Path:
        """The eval file's folder."""
        return self.folder if self.eval_folder is None else self.eval_folder


class Parse(Protocol):
    """Makes a grader of an entry whose keys are spelled as declared. ``name`` and ``type`` are always there; the other keys that all kinds
    have never, as they are applied to whatever it finds (but see ``Entry.negates``). Raises UserError that names the place."""

    def __call__(self, entry: Mapping[str, Any], place: Place, setup: Setup) -> Grader: ...


@dataclass(frozen=True, slots=True)
class GraderKind:
    """A kind of grader. ``entry``: the class of its keys; None: a plug-in that checks its keys itself."""

    name: str
    parse: Parse
    entry: type[Entry] | None


def affirmed(spelled: Any, folder: Path | None = None) -> tuple[Any, bool]:
    """A kind without the ``not-`` that may stand before it, and whether it did: ``not-contains`` is the opposite of ``contains``, unless
    a kind of its own has that name. ``folder``: the eval file's."""
    if not isinstance(spelled, str) or not _word(spelled).startswith(_NOT):
        return spelled, False
    own = [*_plugged(), *(_conventions().names_in(folder) if folder is not None else ())]
    if _word(spelled) in map(_word, own):
        return spelled, False
    return (spelled if spelled[3] in "-_" else _word(spelled))[len(_NOT) :], True


def _word(spelled: str) -> str:
    """A kind in snake case; in those of several words with colons between them each."""
    return ":".join(map(snake, spelled.split(":")))


def kind_of(spelled: Any, place: Place, notices: Notices, folder: Path | None = None) -> str:
    """The kind that a word stands for. ``folder``: the eval file's, for kinds by convention. Raises UserError, with the nearest one, if
    there is none."""
    if not isinstance(spelled, str):
        raise place.error(f"must be the name of a kind of grader, not {shown(spelled)}")
    word = _word(spelled)
    name = ALIASES.get(word, word)
    if word in OBSOLETE:
        notices(f"{place.file}: {spelled!r} is an obsolete name of {name!r}")
    if name in BUILTIN:
        return name
    for plugged in (spelled, name):
        if plugged in _plugged():
            return plugged
    conventional = _conventions().names_in(folder) if folder is not None else []
    for stem in conventional:
        if snake(stem) == word:
            return str(stem)
    known = [*BUILTIN, *ALIASES, *_plugged(), *conventional]
    if word.startswith(TRAJECTORY):
        raise place.error(f"unknown kind of grader {shown(spelled)}; did you mean {_nearest(word)}?")
    raise place.error(f"unknown kind of grader {shown(spelled)}{suggestion(word, known)}")


def _nearest(word: str) -> str:
    """The kind of those with that first word that is most like it, as other programs write it."""
    several = [name for name in BUILTIN if name.startswith(TRAJECTORY)]
    return closest(word, several, cutoff=0)[0].replace("_", "-")


def spellings_of(name: str) -> list[str]:
    """What a kind may be called: its own name and others, with underscores or hyphens."""
    names = [name, *(alias for alias, kind in ALIASES.items() if kind == name)]
    return list(dict.fromkeys(spelled for each in names for spelled in (each, each.replace("_", "-"))))


def load_kind(name: str, place: Place) -> GraderKind:
    """A kind by its own name. Raises UserError if it is a plug-in that can't be used."""
    if name in BUILTIN:
        return _builtin(name)
    return _plugin(name, place) if name in _plugged() else _kind(name, _conventions())


@cache
def _builtin(name: str) -> GraderKind:
    return _kind(name, import_module(BUILTIN[name]))


def _plugin(name: str, place: Place) -> GraderKind:
    found = _plugged()[name]
    try:
        return _kind(name, found.load())
    except Exception as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())
        raise place.error(f"the grader plug-in {name!r} ({found.value}) can't be used: {line[:300]}") from error


def _conventions() -> Any:
    """Imported where it is needed, as the other kinds are."""
    return import_module("manyhands.graders.programs.conventions")


def _kind(name: str, source: Any) -> GraderKind:
    entries: Mapping[str, type[Entry]] = getattr(source, "ENTRIES", {})
    return GraderKind(name, source.parse, entries.get(name, getattr(source, "ENTRY", None)))


@cache
def _plugged() -> Mapping[str, Any]:
    return {found.name: found for found in entry_points(group=PLUGINS)}


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
    return f"{kind}-{value[:_REGEX_LENGTH]}" if kind == "regex" else _cut(f"{kind}-{value}")


def free_name(wanted: str, taken: Container[str]) -> str:
    """The name, or behind one that is taken the first of ``-2``, ``-3``, … that is free."""
    if wanted not in taken:
        return wanted
    return next(name for name in (f"{wanted}-{number}" for number in count(2)) if name not in taken)


def _one_line(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(_one_line(part) for part in value)
    return " ".join(str(value).split()) if isinstance(value, (str, int, float)) else ""


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_NAME else f"{text[: _MAX_NAME - 1]}…"
