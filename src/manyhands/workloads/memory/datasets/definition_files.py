"""The files that hold tests: ``definitions/<dataset>/<example>.def.json``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from manyhands.core.errors import UserError
from manyhands.io.files import written_aside
from manyhands.io.json_files import read_object
from manyhands.workloads.memory.conversation.definitions import Definition, Json, Wait, default_waits

SUFFIX = ".def.json"


def read_definitions(folder: Path) -> list[Definition]:
    """All tests of a folder of definitions, sorted by their names. Raises UserError that names file and field."""
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder")
    found = [
        path for each in folder.iterdir() if each.is_dir() for path in each.iterdir() if path.name.endswith(SUFFIX)
    ]
    return sorted((read_definition(path) for path in found), key=lambda definition: definition.unique_id)


def read_definition(path: Path) -> Definition:
    """A test from its file, of the second or third version of the format; its dataset is the folder's name."""
    found = read_object(path)
    if "waits" not in found and "time_jumps" in found:
        raise UserError(f"{path}: waits: missing; definitions of the format's first version can't be used")
    return _definition(found, path)


def _definition(found: dict[str, Json], path: Path) -> Definition:
    script = _list(found, "script", str, path)
    is_question = _list(found, "is_question", bool, path)
    is_temporal = _flag(found, "is_temporal", path)
    if len(is_question) - len(script) not in ((0, 1) if is_temporal else (0,)):
        raise UserError(f"{path}: is_question: has {len(is_question)} entries for {len(script)} lines of the script")
    waits = [_wait(each, f"{path}: waits[{at}]") for at, each in enumerate(_list(found, "waits", dict, path))]
    if waits and len(waits) != len(is_question):
        raise UserError(f"{path}: waits: has {len(waits)} entries, not one for each of {len(is_question)} lines")
    return Definition(
        dataset=path.parent.name,
        example_id=path.name.removesuffix(SUFFIX),
        script=tuple(script),
        is_question=tuple(is_question),
        waits=tuple(waits or default_waits(len(is_question))),
        expected_responses=found.get("expected_responses", []),
        can_be_interleaved=_flag(found, "can_be_interleaved", path, default=True),
        is_temporal=is_temporal,
        uses_callback=_flag(found, "uses_callback", path),
    )


def _list(found: dict[str, Json], name: str, wanted: type, path: Path) -> list[Json]:
    values = found.get(name)
    if not isinstance(values, list):
        raise UserError(f"{path}: {name}: not a list")
    for at, value in enumerate(values):
        if not isinstance(value, wanted):
            described = {str: "a text", bool: "true or false", dict: "an object"}[wanted]
            raise UserError(f"{path}: {name}[{at}]: not {described}")
    return values


def _flag(found: dict[str, Json], name: str, path: Path, *, default: bool = False) -> bool:
    value = found.get(name, default)
    if not isinstance(value, bool):
        raise UserError(f"{path}: {name}: not true or false")
    return value


def _wait(found: dict[str, Json], place: str) -> Wait:
    values = {}
    for name in ("tokens", "time", "percentage_finished"):
        value = found.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise UserError(f"{place}.{name}: not a number of at least 0")
        values[name] = value
    return Wait(int(values["tokens"]), float(values["time"]), float(values["percentage_finished"]))


def format_definition(definition: Definition) -> str:
    """What the file of a test holds, in the third version of the format."""
    content = {
        "script": definition.script,
        "is_question": definition.is_question,
        "waits": [_wait_content(wait) for wait in definition.waits],
        "expected_responses": definition.expected_responses,
        "can_be_interleaved": definition.can_be_interleaved,
        "is_temporal": definition.is_temporal,
        "uses_callback": definition.uses_callback,
    }
    return json.dumps(content, indent=2)


def _wait_content(wait: Wait) -> dict[str, Json]:
    content: dict[str, Json] = {
        "tokens": wait.tokens,
        "time": int(wait.seconds),
        "percentage_finished": wait.percentage,
    }
    return {name: value for name, value in content.items() if value}


def definition_path(folder: Path, definition: Definition) -> Path:
    """Where a test's file is, below the folder of definitions."""
    return folder / definition.dataset / f"{definition.example_id}{SUFFIX}"


def write_definitions(folder: Path, definitions: Sequence[Definition]) -> None:
    """Write tests, one file each; a file appears whole or not at all. Raises StorageError."""
    for definition in definitions:
        path = definition_path(folder, definition)
        with written_aside(path) as handle:
            handle.write(format_definition(definition))
