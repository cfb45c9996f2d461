"""Lists of graders as they stand in files.

A list is read in two stages. ``normal_entries`` turns it into data with one spelling for everything: includes are put in, plain
strings become rubrics, kinds and keys get their present names. ``build_graders`` makes graders of such data.

``- include: NAME`` stands for graders that several files share. A path (with a slash or an ending, relative to the file that names it)
is that file; a mere name stands for ``NAME.yaml`` or ``NAME.yml`` in the nearest ``.agentv/templates`` folder, from the file's own folder
upwards. The file holds a list of graders, or a mapping with one under ``assert`` (or ``assertions``, ``evaluators``). Paths within the
included graders start, like all others, from the eval file's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.settings import Flag, Text, number, shown
from manyhands.graders.preprocessors import PreprocessorEntry
from manyhands.graders.protocol import Grader
from manyhands.graders.registry import (
    ALIASES,
    BUILTIN,
    Setup,
    affirmed,
    free_name,
    kind_of,
    load_kind,
    name_for,
    spellings_of,
)
from manyhands.graders.scoring import Configured
from manyhands.io.keys import Entry, Notices, key, read, respelled, share_of_one, snake
from manyhands.io.locations import Findings, Location, UnknownKeys
from manyhands.io.yaml_files import read_yaml

MAX_NESTED = 20
"""Composites within composites."""
_APPLIED = ("weight", "required", "min_score", "preprocessors", "negate")
Located = tuple[dict[str, Any], Location]
MAX_INCLUDE_DEPTH = 10
_TEMPLATES = (".agentv", "templates")
_ENDINGS = (".yaml", ".yml")
_LISTS = ("assert", "assertions", "evaluators")


def _minimum(value: Any) -> float | bool:
    if isinstance(value, bool):
        return value
    return share_of_one(value, problem="must be true, or a number above 0 and up to 1")


class Common(Entry):
    """Keys that every grader has."""

    entries: ClassVar = {"preprocessors": PreprocessorEntry}
    type: str = key(..., "The kind of grader.")
    name: Text | None = key(None, "What results call it; without one it is named after its kind and value.")
    weight: Annotated[float, number(minimum=0)] = key(1.0, "How much its score counts, 0 or more.")
    required: Annotated[float | bool, BeforeValidator(_minimum)] | None = key(
        None, "The score below which the whole test scores 0; true: its min_score, or without one the pass limit."
    )
    min_score: Annotated[float, BeforeValidator(share_of_one)] | None = key(
        None, "The score from which on its verdict is pass; the pass limit without it."
    )
    negate: Flag = key(False, "Whether its score is turned round: 1 − score.")
    preprocessors: tuple[PreprocessorEntry, ...] | None = key(
        None, "Programs that turn files in the answer into text: a list of mappings with type and command."
    )


_COMMON = Common.key_names()


def parse_graders(
    entries: Any,
    location: Location,
    *,
    folder: Path,
    notices: Notices,
    unknown: UnknownKeys | None = None,
    functions: Mapping[str, Callable[..., Any]] | None = None,
) -> tuple[Grader, ...]:
    """The graders of a list, checked and ready. ``folder``: what relative paths start from, the eval file's. Each obsolete name
    goes to ``notices`` once. ``unknown`` and ``functions``: see ``Setup``.

    Raises UserError with file, line and field for whatever is wrong.
    """
    setup = Setup(folder, _once(notices), unknown=unknown, functions=functions or {})
    return build_graders(_normal(entries, location, setup), setup)


def normal_entries(entries: Any, location: Location, *, folder: Path, notices: Notices) -> list[dict[str, Any]]:
    """A list of graders as data with one spelling for everything; normal data stays as it is.

    Raises UserError for an entry whose kind or keys are unknown; values are looked at by ``parse_graders`` only.
    """
    return plain_entries(located_entries(entries, location, folder=folder, notices=notices))


def located_entries(
    entries: Any,
    location: Location,
    *,
    folder: Path,
    notices: Notices,
    reading: Callable[[Json, Location], Json] | None = None,
    unknown: UnknownKeys | None = None,
) -> list[Located]:
    """The same with the location of each entry; those within it know theirs too (``Members``). ``reading`` and ``unknown``: see
    ``Setup``. Raises as ``normal_entries``."""
    return _normal(entries, location, Setup(folder, _once(notices), reading=reading, unknown=unknown))


def plain_entries(located: Sequence[Located]) -> list[dict[str, Any]]:
    """The entries without their locations."""
    return [_plain(entry) for entry, _ in located]


def _plain(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: [_plain(part) for part in value] if isinstance(value, Members) else value for name, value in entry.items()
    }


def grader_types() -> dict[str, dict[str, Any]]:
    """The JSON Schema of an entry of each built-in kind, by its name."""
    return {name: _schema(load_kind(name, Location("")).entry, name) for name in BUILTIN}


# --- Normal data


class Members(list[dict[str, Any]]):
    """Normal entries within an entry, which know their locations: an included one is in another file."""

    def __init__(self, located: Sequence[Located]) -> None:
        super().__init__(entry for entry, _ in located)
        self.located = located


def _normal(entries: Any, location: Location, setup: Setup, depth: int = 0) -> list[Located]:
    if not isinstance(entries, Sequence) or isinstance(entries, (str, bytes)):
        raise location.error(f"must be a list of graders, not {shown(entries)}")
    if depth > MAX_NESTED:
        raise location.error(f"composites are nested more than {MAX_NESTED} deep")
    found: list[Located] = []
    strings: dict[str, Any] | None = None
    findings = Findings()
    for index, entry in enumerate(entries):
        at = location.at(index)
        with findings.catching():
            if isinstance(entry, str):
                _check_rubric(entry, at)
                if strings is None:
                    strings = {"type": "rubrics", "weight": 0, "criteria": []}
                    found.append((strings, at))
                strings["criteria"].append(entry)
                strings["weight"] += 1  # each text counts as much as a grader
            else:
                found += _entry(entry, at, setup, depth)
    _raise_all(findings.problems)
    return found


def _raise_all(problems: Sequence[str]) -> None:
    """Raises UserError with a line for each problem, if there is any."""
    if problems:
        raise UserError("\n".join(problems))


def _check_rubric(text: str, location: Location) -> None:
    if not text.strip():
        raise location.error("a rubric must not be empty")
    kind = snake(text.strip())
    if ALIASES.get(kind, kind) in BUILTIN:
        raise location.error(
            f"a text is a rubric, and {shown(text)} a kind of grader; did you mean {{type: {text.strip()}}}?"
        )


def _entry(entry: Any, location: Location, setup: Setup, depth: int) -> Iterator[Located]:
    if not isinstance(entry, Mapping):
        raise location.error(f"a grader is a mapping with a type, or a text that is a rubric, not {shown(entry)}")
    words = {snake(word): word for word in entry if isinstance(word, str)}
    if "include" in words and "type" not in words:
        yield from _included(entry, words["include"], location, setup, depth)
    elif "type" not in words:
        raise location.error("type is required")
    else:
        yield _normal_entry(entry, words["type"], location, setup, depth), location


def _included(entry: Mapping[str, Any], word: str, location: Location, setup: Setup, depth: int) -> Iterator[Located]:
    for other in entry:
        if other != word:
            raise location.at(str(other)).error("nothing may stand beside include")
    if len(setup.including) >= MAX_INCLUDE_DEPTH:
        raise location.error(f"files are included more than {MAX_INCLUDE_DEPTH} deep")
    path, entries, at = included(entry[word], location.at(word), setup)
    if setup.reading is not None:
        entries = setup.reading(entries, at)
    inner = replace(setup, folder=path.parent, including=(*setup.including, path), eval_folder=setup.home)
    yield from _normal(entries, at, inner, depth)


def _normal_entry(entry: Mapping[str, Any], word: str, location: Location, setup: Setup, depth: int) -> dict[str, Any]:
    spelled, opposite = affirmed(entry[word], setup.home)
    kind = load_kind(kind_of(spelled, location.at(word), setup.notices, setup.home), location)
    common = {name: value for name, value in entry.items() if _is_common(name)}
    rest = {name: value for name, value in entry.items() if not _is_common(name)}
    normal = respelled(Common, common, location, setup.notices, unknown=setup.unknown) | {"type": kind.name}
    if opposite:
        _check_sense(normal, entry[word], location)
        normal["negate"] = True
    if kind.entry is None:
        return {**normal, **rest}
    keys = respelled(kind.entry, rest, location, setup.notices, _COMMON, setup.unknown)
    members = kind.members
    if members is not None and members in keys:
        at = location.at(_written(kind.entry, rest, members))
        keys[members] = Members(_normal(keys[members], at, setup, depth + 1))
    return {**normal, **keys}


def _check_sense(entry: Mapping[str, Any], kind: str, location: Location) -> None:
    if entry.get("negate", True) is not True:
        raise location.at("negate").error(f"contradicts the kind {kind}")


def _is_common(word: Any) -> bool:
    return isinstance(word, str) and Common.key_of(word) is not None


def _written(model: type[Entry], entry: Mapping[str, Any], key: str) -> str:
    return next(word for word in entry if isinstance(word, str) and model.key_of(word) == key)


def _once(notices: Notices) -> Notices:
    said: set[str] = set()

    def notice(text: str) -> None:
        if text not in said:
            said.add(text)
            notices(text)

    return notice


# --- Graders


def members_of(entries: Sequence[Any], location: Location, setup: Setup) -> tuple[Grader, ...]:
    """The graders within one. ``entries``: as its normal data has them."""
    return build_graders(entries.located if isinstance(entries, Members) else _normal(entries, location, setup), setup)


def build_graders(entries: Sequence[Located], setup: Setup) -> tuple[Grader, ...]:
    """Graders of normal entries, each with the location it came from. Their names are made different."""
    taken: set[str] = set()
    own = {entry["name"] for entry, _ in entries if isinstance(entry.get("name"), str)}
    graders = []
    findings = Findings()
    for entry, at in entries:
        with findings.catching():
            common = read(Common, {name: value for name, value in entry.items() if name in _COMMON}, at)
            name = free_name(common.name, taken) if common.name else free_name(name_for(entry), own | taken)
            graders.append(_grader(entry, common, name, at, setup))
            taken.add(graders[-1].name)
    _raise_all(findings.problems)
    return tuple(graders)


def _grader(entry: Mapping[str, Any], common: Common, name: str, location: Location, setup: Setup) -> Configured:
    kind = load_kind(entry["type"], location)
    negate = common.negate and not kind.negates
    applied = _APPLIED[:-1] if common.negate and not negate else _APPLIED
    given = {key: value for key, value in entry.items() if key not in applied} | {"name": name}
    grader = kind.parse(given, location, setup)
    required, min_score = common.required, common.min_score
    if min_score is not None and isinstance(required, float) and required != min_score:
        setup.notices(location.at("required").says(f"{required:g} has no effect beside min_score, which holds instead"))
    return Configured(grader, name, kind.name, common.weight, required, negate, min_score, common.preprocessors or ())


def _schema(model: type[Entry] | None, name: str) -> dict[str, Any]:
    common = Common.model_json_schema()
    own = {} if model is None else model.model_json_schema(ref_template="#/$defs/{model}")
    spelled = spellings_of(name)
    types = {"enum": [*spelled, *(f"not-{word}" for word in spelled)]}
    properties = {**common["properties"], **own.get("properties", {}), "type": types}
    found: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": ["type", *own.get("required", ())],
        "additionalProperties": model is None or model.open,
    }
    return found | {"$defs": {**common.get("$defs", {}), **own.get("$defs", {})}}


def included(value: Any, location: Location, setup: Setup) -> tuple[Path, Any, Location]:
    """The file that an entry includes, its list of graders, and that list's location.

    Raises UserError if there is no such file, if it can't be read, or if it includes itself.
    """
    if not isinstance(value, str) or not value.strip():
        raise location.error(f"must be the name of a file with graders, not {shown(value)}")
    path = _path(value.strip(), setup.folder)
    if path is None:
        raise location.error(
            f"there is no {value}.yaml in a folder {'/'.join(_TEMPLATES)} of this folder or one above it"
        )
    if not path.is_file():
        raise location.error(f"there is no file {path}")
    if path.resolve() in setup.including:
        raise location.error(f"{path} includes itself")
    entries, top = read_yaml(path)
    if isinstance(entries, Mapping):
        name = next((name for name in _LISTS if name in entries), None)
        if name is None:
            raise top.error("must be a list of graders, or a mapping that has one under assert")
        entries, top = entries[name], top.at(name)
    return path.resolve(), entries, top


def _path(value: str, folder: Path) -> Path | None:
    if "/" in value or value.endswith(_ENDINGS):
        return folder / value
    start = folder.resolve()
    candidates = (
        parent.joinpath(*_TEMPLATES, value + ending) for parent in (start, *start.parents) for ending in _ENDINGS
    )
    return next((path for path in candidates if path.is_file()), None)
