"""What all conversations of a run have in common: datasets, tests, wording, filler and the way tokens are counted.

The tests are in files, ``definitions/DATASET/EXAMPLE.def.json``, which are read and written here.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from manyhands.core.digests import digest
from manyhands.core.errors import UserError
from manyhands.core.settings import shown
from manyhands.core.text import suggestion
from manyhands.io.files import written_aside
from manyhands.io.json_files import read_object
from manyhands.io.locations import Location
from manyhands.workloads.memory.conversation.definitions import Ask, Definition, Json, Wait, default_waits
from manyhands.workloads.memory.conversation.filler import (
    Fact,
    FactFiller,
    Wording,
    builtin_facts,
    default_wording,
    read_facts,
    read_wording,
)
from manyhands.workloads.memory.conversation.schedule import ScheduledTest, SchedulerSettings
from manyhands.workloads.memory.conversation.scheduler import Scheduler
from manyhands.workloads.memory.conversation.tokens import TokenCounter, counter_named
from manyhands.workloads.memory.datasets.base import BaseDataset
from manyhands.workloads.memory.datasets.configuration import Configuration
from manyhands.workloads.memory.datasets.registry import dataset_ids, dataset_of, reset_messages


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark whose tests are made."""

    configuration: Configuration
    datasets: Mapping[str, BaseDataset]
    """By name."""
    definitions: tuple[Definition, ...]
    """Of all tests, in order of their names."""
    wording: Wording
    facts: Sequence[Fact]
    tokens: TokenCounter

    @property
    def tests(self) -> list[ScheduledTest]:
        found = []
        for definition in self.definitions:
            dataset = self.datasets[definition.dataset]
            found.append(
                ScheduledTest(definition, dataset, dataset.arguments.memory_span or None, dataset.reset_message)
            )
        return found

    @property
    def digest(self) -> str:
        """Changes with the tests, and with what is said around them."""
        said = [self.wording.intro_message, self.wording.filler_preamble, dict(self.wording.reset_messages)]
        return digest("tests", [*map(format_definition, self.definitions), *map(str, said)]).hex()[:32]

    def scheduler(self, *, isolated: bool, max_message_size: int, tokens: TokenCounter | None = None) -> Scheduler:
        """A schedule for one conversation. ``tokens``: how its agent counts them; None: as the benchmark does."""
        tokens = tokens or self.tokens
        filler = FactFiller(self.facts, self.wording, tokens)
        incompatibilities = [frozenset(group) for group in self.configuration.incompatibilities]
        settings = SchedulerSettings(
            self.configuration.memory_span,
            self.wording.intro_message,
            self.wording.reset_messages,
            incompatibilities,
            isolated,
            max_message_size,
        )
        return Scheduler(self.tests, settings, filler, tokens)


def datasets_of(configuration: Configuration, tokens: TokenCounter) -> dict[str, BaseDataset]:
    """The datasets of a benchmark by name. Raises UserError with a line for each that is unknown or has wrong arguments."""
    found: dict[str, BaseDataset] = {}
    problems: list[str] = []
    for entry in configuration.datasets:
        try:
            dataset = dataset_of(entry, configuration.scoring, tokens)
        except UserError as error:
            problems += str(error).splitlines()
            continue
        if dataset.name in found:
            problems.append(entry.location.says(f"two datasets have the name {dataset.name!r}, and so the same folder"))
        found.setdefault(dataset.name, dataset)
    problems += _unknown_incompatibilities(configuration)
    if problems:
        raise UserError("\n".join(problems))
    return found


def _unknown_incompatibilities(configuration: Configuration) -> Iterator[str]:
    """A line for each id in the groups of incompatible datasets that no dataset has: such a group would exclude nothing."""
    known = dataset_ids()
    for number, group in enumerate(configuration.incompatibilities):
        for index, dataset_id in enumerate(group):
            if dataset_id not in known:
                location = configuration.location.at("config", "incompatibilities", number, index)
                yield location.says(f"unknown dataset {shown(dataset_id)}{suggestion(dataset_id, known)}")


def generate(
    configuration: Configuration, datasets: Mapping[str, BaseDataset]
) -> Generator[Ask, str, list[Definition]]:
    """Make all tests. Requests for a model are yielded. Raises UserError for tests that can't be made."""
    definitions: list[Definition] = []
    by_id = {dataset.id: dataset for dataset in datasets.values()}
    for entry in configuration.datasets:
        dataset = by_id.pop(entry.id, None)
        if dataset is not None:
            try:
                made = yield from dataset.generate(entry.examples, entry.seed, entry.memory_span)
            except UserError as error:
                raise UserError("\n".join(map(entry.location.says, str(error).splitlines()))) from None
            definitions += made
    return sorted(definitions, key=lambda definition: definition.unique_id)


def generated_alone(configuration: Configuration, datasets: Mapping[str, BaseDataset]) -> list[Definition] | None:
    """The tests, if no model has to be called for them; else None."""
    making = generate(configuration, datasets)
    try:
        next(making)
    except StopIteration as end:
        definitions: list[Definition] = end.value
        return definitions
    making.close()
    return None


def load_benchmark(
    configuration: Configuration, definitions: Path, *, wording: str | None, filler: str | None, tokenizer: str
) -> Benchmark:
    """A benchmark whose tests are made. Raises UserError naming what can't be used."""
    tokens = counter_named(tokenizer)
    datasets = datasets_of(configuration, tokens)
    tests = read_definitions(definitions)
    unknown = sorted({test.dataset for test in tests} - set(datasets))
    if unknown:
        raise UserError(
            f"{definitions}: holds tests of datasets that the configuration does not name: {', '.join(unknown)}"
        )
    if not tests:
        raise UserError(f"{definitions}: holds no tests")
    return Benchmark(
        configuration,
        datasets,
        tuple(tests),
        default_wording(reset_messages(datasets.values())) if wording is None else read_wording(Path(wording)),
        builtin_facts() if filler is None else read_facts(Path(filler)),
        tokens,
    )


SUFFIX = ".def.json"


def read_definitions(folder: Path) -> list[Definition]:
    """All tests of a folder of definitions, sorted by their names. Raises UserError that names file and field."""
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder")
    found = [
        path for each in folder.iterdir() if each.is_dir() for path in each.iterdir() if path.name.endswith(SUFFIX)
    ]
    return sorted((read_definition(path) for path in found), key=lambda definition: definition.unique_id)


_Amount = Annotated[float, Field(ge=0)]


class _WaitFields(BaseModel):
    model_config = ConfigDict(strict=True)

    tokens: _Amount = 0.0
    time: _Amount = 0.0
    percentage_finished: _Amount = 0.0


class _DefinitionFields(BaseModel):
    """What the file of a test holds, in the second and third version of the format."""

    model_config = ConfigDict(strict=True)

    script: list[str]
    is_question: list[bool]
    is_temporal: bool = False
    waits: list[_WaitFields]
    expected_responses: Json = Field(default_factory=list)
    can_be_interleaved: bool = True
    uses_callback: bool = False


_WANTED = {
    "missing": "a list",
    "list_type": "a list",
    "string_type": "a text",
    "bool_type": "true or false",
    "model_type": "an object",
}
"""What a field should be, by the problem that pydantic finds; else a number of at least 0."""


def read_definition(path: Path) -> Definition:
    """A test from its file, of the second or third version of the format; its dataset is the folder's name."""
    found = read_object(path)
    if "waits" not in found and "time_jumps" in found:
        raise UserError(f"{path}: waits: missing; definitions of the format's first version can't be used")
    try:
        fields = _DefinitionFields.model_validate(found)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        wanted = _WANTED.get(detail["type"], "a number of at least 0")
        raise UserError(f"{path}: {Location('').at(*detail['loc']).name}: not {wanted}") from None
    lines = len(fields.is_question)
    if lines - len(fields.script) not in ((0, 1) if fields.is_temporal else (0,)):
        raise UserError(f"{path}: is_question: has {lines} entries for {len(fields.script)} lines of the script")
    if fields.waits and len(fields.waits) != lines:
        raise UserError(f"{path}: waits: has {len(fields.waits)} entries, not one for each of {lines} lines")
    waits = [Wait(int(each.tokens), each.time, each.percentage_finished) for each in fields.waits]
    return Definition(
        dataset=path.parent.name,
        example_id=path.name.removesuffix(SUFFIX),
        script=tuple(fields.script),
        is_question=tuple(fields.is_question),
        waits=tuple(waits or default_waits(lines)),
        expected_responses=fields.expected_responses,
        can_be_interleaved=fields.can_be_interleaved,
        is_temporal=fields.is_temporal,
        uses_callback=fields.uses_callback,
    )


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
