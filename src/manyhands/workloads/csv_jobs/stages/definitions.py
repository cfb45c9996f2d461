"""Stages as a person writes them, in a file or as ``NAME=INSTRUCTION``, and as a job records them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

from pydantic import BeforeValidator

from manyhands.core.errors import UserError
from manyhands.core.jsonio import loads
from manyhands.core.settings import shown
from manyhands.core.text import expand_home
from manyhands.io.keys import Entry, SomeWords, collect, key
from manyhands.io.locations import Findings, Location, problems_error
from manyhands.runs.options import read_text
from manyhands.workloads.csv_jobs.rows.output_schema import OutputSchema
from manyhands.workloads.csv_jobs.stages.conditions import Condition

MAX_STAGES = 100
MAX_NAME_CHARS = 100
NAMING = "may be any text of one line without the characters . / { } ="
_STAGES = "stages"
_COLUMN = "--column"
_NOT_IN_NAMES = frozenset("./{}=")


class Definition(TypedDict, total=False):
    """A stage as it is recorded: what is in files is read in."""

    name: str
    instruction: str
    output_schema: dict[str, Any]
    when: str
    """Only if there is a condition."""


class Definitions(tuple[Definition, ...]):
    """A job's stages in order, and where the fields of each are written, for messages."""

    locations: Sequence[Mapping[str, Location]]

    def __new__(
        cls, stages: Iterable[Definition], locations: Sequence[Mapping[str, Location]] | None = None
    ) -> Definitions:
        made = super().__new__(cls, stages)
        made.locations = [{} for _ in made] if locations is None else locations
        return made

    def at(self, index: int, field: str) -> Location:
        """Where a field of a stage is written."""
        return self.locations[index].get(field) or Location(_STAGES, (), {}).at(index, field)


def _mapping_or_text(value: Any) -> Any:
    if isinstance(value, (dict, str)):
        return value
    raise ValueError("must be a mapping, or the name of a file")


class _Stage(Entry):
    """The keys of a stage in a file."""

    name: SomeWords = key(..., "Name of the stage, of its result in later stages, and of its column.")
    instruction: SomeWords | None = key(None, "Instruction of the stage.")
    instruction_file: SomeWords | None = key(None, "File with the instruction.")
    output_schema: Annotated[Any, BeforeValidator(_mapping_or_text)] = key(
        None, "JSON Schema for the result: a mapping, or a file."
    )
    when: SomeWords | None = key(None, "Condition.")


def own_schema(name: str) -> dict[str, Any]:
    """The schema of a stage without one: an object with one value, which is called as the stage."""
    value = {"type": ["string", "number", "boolean", "null"]}
    return {"type": "object", "properties": {name: value}, "required": [name], "additionalProperties": False}


def stages_of_columns(texts: Sequence[str]) -> Definitions:
    """The stages that ``NAME=INSTRUCTION`` texts stand for. Raises UserError that names the text."""
    stages: list[Definition] = []
    locations, problems = [], []
    for number, text in enumerate(texts, 1):
        name, equals, instruction = text.partition("=")
        location = Location(f"{_COLUMN} {number}" if len(texts) > 1 else _COLUMN)
        if not equals or not name.strip() or not instruction.strip():
            problems.append(location.says(f"must be NAME=INSTRUCTION, not {shown(text)}"))
            continue
        stages.append({"name": name.strip(), "instruction": instruction, "output_schema": own_schema(name.strip())})
        locations.append(dict.fromkeys(("name", "instruction"), location))
    if problems:
        raise problems_error(problems)
    return _checked(Definitions(stages, locations))


def stages_of_records(records: Sequence[Mapping[str, Any]]) -> Definitions:
    """Stages given as mappings, by Python code or by the record of a job. Raises UserError."""
    return _of_list(list(records), Location(_STAGES), Path())


def recorded_stages(value: Any) -> Definitions | None:
    """Stages as a job records them. Raises UserError, and ValueError for what would have a file read."""
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, Mapping) for each in value):
        raise ValueError("must be a list of mappings")
    # A stage that is given may name its files by these keys or others.
    if any(each.keys() - Definition.__annotations__ or isinstance(each.get("output_schema"), str) for each in value):
        raise ValueError("must hold what is in the files that stages name")
    return stages_of_records(value)


def stages_of_file(name: str) -> Definitions:
    """The stages of a YAML or JSON file: a list, or a mapping with the list as ``stages``. Files that it names are relative to it.

    Raises UserError with a line for each problem, which names file, line and field.
    """
    from manyhands.io.yaml_files import read_yaml  # takes long, and most jobs have no such file

    path = expand_home(name)
    value, location = read_yaml(path, name)
    if isinstance(value, Mapping):
        if set(value) != {_STAGES}:
            raise location.error(f"must be a list of stages, or have one key: {_STAGES}")
        value, location = value[_STAGES], location.at(_STAGES)
    return _of_list(value, location, path.parent)


def _of_list(value: Any, location: Location, folder: Path) -> Definitions:
    if not isinstance(value, list) or not value:
        raise location.error(f"must be a list of stages, not {shown(value)}" if value else "has no stages")
    if len(value) > MAX_STAGES:
        raise location.error(f"has {len(value)} stages, and at most {MAX_STAGES} are supported")
    findings = Findings()
    stages: list[Definition] = []
    locations: list[Mapping[str, Location]] = []
    for index, entry in enumerate(value):
        read = collect(_Stage, entry, location.at(index), findings)
        if read is not None:
            fields = {field: read.at(field) for field in _Stage.model_fields}
            with findings.catching():
                stages.append(_definition(read.block, fields, folder))
                locations.append(fields)
    if findings.problems:
        raise problems_error(findings.problems)
    return _checked(Definitions(stages, locations))


def _definition(stage: _Stage, at: dict[str, Location], folder: Path) -> Definition:
    """``at``: the locations of the fields; that of an instruction in a file becomes the file."""
    if (stage.instruction is None) == (stage.instruction_file is None):
        raise at["name"].error("the stage needs an instruction or an instruction_file, and not both")
    instruction = stage.instruction
    if instruction is None:
        path = str(folder / expand_home(str(stage.instruction_file)))
        instruction = _content(path, at["instruction_file"])
        at["instruction"] = Location(path, (), {(): 1})
    name = stage.name.strip()
    found: Definition = {"name": name, "instruction": instruction}
    schema = stage.output_schema
    if isinstance(schema, str):
        schema = _schema_of(schema, at["output_schema"], folder)
    found["output_schema"] = own_schema(name) if schema is None else schema
    if stage.when is not None:
        found["when"] = stage.when.strip()
    return found


def _content(path: str, location: Location) -> str:
    try:
        return read_text(path)
    except UserError as error:
        raise location.error(str(error)) from None


def _schema_of(text: str, location: Location, folder: Path) -> dict[str, Any]:
    """A schema as JSON, or in a JSON file."""
    inline = text.lstrip().startswith("{")
    path = str(folder / expand_home(text.strip()))
    try:
        found = loads(text if inline else _content(path, location))
    except (ValueError, RecursionError) as error:
        raise location.error(f"{'it' if inline else path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise location.error(f"{'it' if inline else path} must hold a JSON object")
    return found


def _checked(stages: Definitions) -> Definitions:
    """The stages, once what can be said without the table is all right with them. Raises UserError with a line for each problem."""
    findings = Findings()
    first: dict[str, int] = {}
    for index, stage in enumerate(stages):
        name, at = stage["name"], stages.at(index, "name")
        if not name or _NOT_IN_NAMES & set(name) or not name.isprintable() or len(name) > MAX_NAME_CHARS:
            findings.problem(at, f"{shown(name)} can't be the name of a stage, which {NAMING}")
        elif first.setdefault(name.casefold(), index) != index:
            findings.problem(at, f"there are two stages called {shown(name)}")
        if not stage["instruction"].strip():
            findings.problem(stages.at(index, "instruction"), "must not be empty")
        with findings.catching():
            _check_schema(stage["output_schema"], stages.at(index, "output_schema"))
        try:
            Condition.parse(stage.get("when", "true"))
        except ValueError as error:
            findings.problem(stages.at(index, "when"), f"{error} in {shown(stage['when'])}")
    if findings.problems:
        raise problems_error(findings.problems)
    return stages


def _check_schema(schema: dict[str, Any], location: Location) -> None:
    try:
        OutputSchema.of(schema)
    except UserError as error:
        raise location.error(str(error)) from None
