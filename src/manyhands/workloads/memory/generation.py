"""The tests of a configuration, made before any agent is asked.

Where a model has to write them, that is a run of its own, in the folder of definitions, so that no call is paid twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands.agents.descriptions import describe_step
from manyhands.agents.run_settings import execution_of
from manyhands.core.digests import digest
from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.version import VERSION
from manyhands.engine.contract import Context, Execution, PlannedItem, RecordedStep, RunReader, Workload
from manyhands.io.files import written_aside
from manyhands.runs.folders import is_made
from manyhands.runs.making import create_run, recorded_run
from manyhands.runs.progress import Notice
from manyhands.workloads.memory.conversation.definitions import Definition
from manyhands.workloads.memory.conversation.tokens import counter_named
from manyhands.workloads.memory.datasets.benchmark import datasets_of, generated_alone
from manyhands.workloads.memory.datasets.configuration import Configuration, read_configuration
from manyhands.workloads.memory.datasets.definition_files import SUFFIX, format_definition, read_definitions
from manyhands.workloads.memory.folders import CONFIGURATION, DEFINITIONS, run_folder
from manyhands.workloads.memory.judge import judge_of
from manyhands.workloads.memory.opening import (
    check_same_tests,
    keep_configuration,
    put_aside,
    refuse_if_performed,
    write_tests,
)
from manyhands.workloads.memory.settings import MemorySpec, keys_of

SOURCE = "source.yml"
"""The copy of the configuration whose tests are being made."""


class GenerationWorkload(Workload):
    """The tests of each dataset, as an item. ``spec``: ``{"options": …}``; the configuration is in the run folder."""

    name = "memory_definitions"

    def __init__(self, spec: dict[str, Any], run_folder: Path) -> None:
        self.spec = spec
        self._folder = run_folder
        self._options = MemorySpec(**spec["options"])
        self._secrets: dict[str, str] = {}

    @property
    def configuration(self) -> Configuration:
        return read_configuration(self._folder / SOURCE)

    @property
    def execution(self) -> Execution:
        options = self._options.model_copy(update={"executor": "local"})
        return execution_of(options, workers=1, concurrency=options.concurrency, item_timeout=options.item_timeout)

    def input_identity(self) -> str | None:
        return digest("configuration", self.configuration.text).hex()

    def plan(self) -> Iterable[PlannedItem]:
        for number, entry in enumerate(self.configuration.datasets):
            yield PlannedItem(f"{number} {entry.id}", {"entry": number})

    def secrets(self) -> dict[str, str]:
        return self._secrets

    def set_secrets(self, secrets: Mapping[str, str]) -> None:
        self._secrets = dict(secrets)

    async def run(self, context: Context) -> Outcome:
        configuration = self.configuration
        entry = configuration.datasets[context.item.payload["entry"]]
        datasets = datasets_of(configuration, counter_named(self._options.tokenizer))
        dataset = next(each for each in datasets.values() if each.id == entry.id)
        judge = judge_of(self._options, self._secrets, self._folder)
        making = dataset.generate(entry.examples, entry.seed, entry.memory_span)
        try:
            ask = next(making)
            while True:
                if judge is None:
                    raise ItemError(
                        Cause.INVALID_INPUT, f"{entry.id}: a model has to write its tests; give --judge_model"
                    )
                text, _ = await judge.ask(context, ask)
                ask = making.send(text)
        except StopIteration as end:
            definitions: Sequence[Definition] = end.value
        except UserError as error:
            raise ItemError(Cause.INVALID_OUTPUT, str(error)) from error
        finally:
            if judge is not None:
                await judge.close()
        return Outcome(ItemState.COMPLETED, {"definitions": [_packed(each) for each in definitions]})

    def describe_step(self, step: RecordedStep) -> Iterable[tuple[str, str]]:
        return describe_step(step)

    def export(self, reader: RunReader) -> None:
        """The definitions, when all are made, and last the configuration, without which there are none."""
        if write_made(reader, self._folder) is not None:
            keep_configuration(self._folder, self.configuration.text)


def write_made(reader: RunReader, folder: Path) -> int | None:
    """Write all tests into a folder of definitions; how many there are, None if some datasets are not done. Raises StorageError."""
    rows = [row for row in reader.items() if not row.left_input]
    if any(row.state is not ItemState.COMPLETED for row in rows):
        return None
    made = [each for row in rows for each in row.record["definitions"]]
    for each in made:
        path = folder / each["dataset"] / f"{each['id']}{SUFFIX}"
        with written_aside(path) as handle:
            handle.write(each["text"])
    return len(made)


def _packed(definition: Definition) -> dict[str, Any]:
    return {"dataset": definition.dataset, "id": definition.example_id, "text": format_definition(definition)}


@dataclass(frozen=True, slots=True)
class Generated:
    """``folder``: of the definitions; ``tests``: how many there are; ``workload``: what has yet to be performed for them, None if they
    are made."""

    folder: Path
    tests: int
    workload: GenerationWorkload | None


def generated_tests(options: MemorySpec, *, environ: Mapping[str, str], notice: Notice) -> Generated:
    """Make the tests that no model has to write, or a run in which a model writes them.

    Raises UserError, RunError, StorageError.
    """
    options = options.resolved()
    configuration = read_configuration(Path(options.configuration))
    datasets = datasets_of(configuration, counter_named(options.tokenizer))
    whole = run_folder(Path(options.data_dir), configuration.run_name, isolated=options.isolated)
    folder = whole / DEFINITIONS
    refuse_if_performed(whole)
    refuse_if_performed(folder)
    if (folder / CONFIGURATION).is_file() and not options.regenerate:
        check_same_tests(folder, configuration, notice)
        return Generated(folder, len(read_definitions(folder)), None)
    tests = generated_alone(configuration, datasets)
    if tests is None:
        _check_writer(options)
    if options.regenerate and whole.is_dir():  # only now that nothing can be wrong with the new ones
        put_aside(whole, notice)
    if tests is not None:
        write_tests(folder, configuration, tests)
        return Generated(folder, len(tests), None)
    return Generated(folder, 0, _workload(options, folder, configuration.text, environ, notice))


def _check_writer(options: MemorySpec) -> None:
    if options.judge_model is None:
        raise UserError(f"{options.configuration}: some tests have to be written by a model; give --judge_model")


def _workload(
    options: MemorySpec, folder: Path, text: str, environ: Mapping[str, str], notice: Notice
) -> GenerationWorkload:
    keys = keys_of(options, (), environ)
    if is_made(folder):
        workload = GenerationWorkload(recorded_run(folder, GenerationWorkload.name).spec, folder)
    else:
        with written_aside(folder / SOURCE) as handle:
            handle.write(text)
        workload = GenerationWorkload({"options": options.recorded()}, folder)
        create_run(folder, workload.name, workload, version=VERSION, notice=notice)
    workload.set_secrets(keys)
    return workload
