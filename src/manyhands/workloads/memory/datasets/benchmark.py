"""What all sessions of a run have in common: datasets, tests, wording, filler and the way tokens are counted."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from manyhands.core.digests import digest
from manyhands.core.errors import UserError
from manyhands.core.settings import shown, suggestion
from manyhands.workloads.memory.conversation.definitions import Ask, Definition
from manyhands.workloads.memory.conversation.filler import Fact, FactFiller, builtin_facts, read_facts
from manyhands.workloads.memory.conversation.running_tests import ScheduledTest
from manyhands.workloads.memory.conversation.schedule import SchedulerSettings
from manyhands.workloads.memory.conversation.scheduler import Scheduler
from manyhands.workloads.memory.conversation.tokens import TokenCounter, counter_named
from manyhands.workloads.memory.conversation.wording import Wording, default_wording, read_wording
from manyhands.workloads.memory.datasets.base import BaseDataset
from manyhands.workloads.memory.datasets.configuration import Configuration
from manyhands.workloads.memory.datasets.definition_files import format_definition, read_definitions
from manyhands.workloads.memory.datasets.registry import dataset_ids, dataset_of


@dataclass(frozen=True, slots=True)
class Benchmark:
    """``datasets``: by name; ``tests``: the definitions, in order of their names."""

    configuration: Configuration
    datasets: Mapping[str, BaseDataset]
    definitions: tuple[Definition, ...]
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
            problems.append(entry.place.says(f"two datasets have the name {dataset.name!r}, and so the same folder"))
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
                place = configuration.place.at("config", "incompatibilities", number, index)
                yield place.says(f"unknown dataset {shown(dataset_id)}{suggestion(dataset_id, known)}")


def generate(
    configuration: Configuration, datasets: Mapping[str, BaseDataset]
) -> Generator[Ask, str, list[Definition]]:
    """Make all tests. What a model has to be asked is yielded. Raises UserError for tests that can't be made."""
    definitions: list[Definition] = []
    by_id = {dataset.id: dataset for dataset in datasets.values()}
    for entry in configuration.datasets:
        dataset = by_id.pop(entry.id, None)
        if dataset is not None:
            try:
                made = yield from dataset.generate(entry.examples, entry.seed, entry.memory_span)
            except UserError as error:
                raise UserError("\n".join(map(entry.place.says, str(error).splitlines()))) from None
            definitions += made
    return sorted(definitions, key=lambda definition: definition.unique_id)


def generated_alone(configuration: Configuration, datasets: Mapping[str, BaseDataset]) -> list[Definition] | None:
    """The tests, if no model has to be asked for them; else None."""
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
        default_wording() if wording is None else read_wording(Path(wording)),
        builtin_facts() if filler is None else read_facts(Path(filler)),
        tokens,
    )
