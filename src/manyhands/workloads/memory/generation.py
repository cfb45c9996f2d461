"""The tests of a configuration, made before any agent runs.

Where a model has to write them, that is a run of its own, in the folder of definitions, so that no call is paid twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands.agents.run_settings import check_prices
from manyhands.core.digests import digest
from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import Context, PlannedItem, RunReader
from manyhands.io.files import written_aside
from manyhands.runs.folders import is_made
from manyhands.runs.making import Opened, keep_files, make_run, recorded_run
from manyhands.runs.progress import Notice
from manyhands.workloads.memory.conversation.definitions import Definition
from manyhands.workloads.memory.conversation.tokens import counter_named
from manyhands.workloads.memory.datasets.benchmark import (
    SUFFIX,
    datasets_of,
    format_definition,
    generated_alone,
    read_definitions,
)
from manyhands.workloads.memory.datasets.configuration import Configuration, read_configuration
from manyhands.workloads.memory.folders import CONFIGURATION, DEFINITIONS, run_folder
from manyhands.workloads.memory.judge import JudgeRun, judge_of
from manyhands.workloads.memory.opening import (
    check_same_tests,
    keep_configuration,
    put_aside,
    refuse_if_open,
    write_tests,
)
from manyhands.workloads.memory.settings import GenerationSpec, judge_keys, with_endpoints, with_recorded_endpoints

SOURCE = "source.yml"
"""The copy of the configuration whose tests are being made."""


class GenerationWorkload(JudgeRun):
    """The tests of each dataset, as an item. ``spec``: ``{"options": …}``; the configuration is in the run folder."""

    name = "memory_definitions"

    def __init__(self, spec: dict[str, Any], run_folder: Path) -> None:
        self.spec = spec
        self._folder = run_folder
        self._options: GenerationSpec = GenerationSpec.from_record(spec["options"])

    @property
    def options(self) -> GenerationSpec:
        """The settings."""
        return self._options

    @property
    def configuration(self) -> Configuration:
        return read_configuration(self._folder / SOURCE)

    def input_identity(self) -> str | None:
        return digest("configuration", self.configuration.text).hex()

    def plan(self) -> Iterable[PlannedItem]:
        for number, entry in enumerate(self.configuration.datasets):
            yield PlannedItem(f"{number} {entry.id}", {"entry": number})

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
    """The tests of a configuration, made or to be made."""

    folder: Path
    """Of the definitions."""
    tests: int
    """How many there are."""
    workload: GenerationWorkload | None
    """What has yet to be executed for them; None if they are made."""


def generated_tests(options: GenerationSpec, *, environ: Mapping[str, str], notice: Notice) -> Generated:
    """Make the tests that no model has to write, or a run in which a model writes them.

    Raises UserError, RunError, StorageError.
    """
    options = options.resolved()
    configuration = read_configuration(Path(options.configuration))
    datasets = datasets_of(configuration, counter_named(options.tokenizer))
    whole = run_folder(Path(options.data_dir), configuration.run_name, isolated=options.isolated)
    folder = whole / DEFINITIONS
    refuse_if_open(whole)
    refuse_if_open(folder)
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


def _check_writer(options: GenerationSpec) -> None:
    if options.judge_model is None:
        raise UserError(f"{options.configuration}: some tests have to be written by a model; give --judge_model")


def _workload(
    options: GenerationSpec, folder: Path, text: str, environ: Mapping[str, str], notice: Notice
) -> GenerationWorkload:
    if is_made(folder):
        options = with_recorded_endpoints(options, _recorded(folder).options.values())
    options = with_endpoints(options, (), environ, notice)
    keys = judge_keys(options, environ)
    check_prices(options)
    if is_made(folder):
        workload = _recorded(folder)
    else:
        with written_aside(folder / SOURCE) as handle:
            handle.write(text)
        workload = GenerationWorkload({"options": options.recorded()}, folder)
        make_run(Opened(folder, workload), options, notice)
    workload.set_secrets(keys)
    return workload


def reopen_generation(folder: Path, *, environ: Mapping[str, str]) -> GenerationWorkload:
    """Continue a run that makes tests as it was. Raises UserError, RunError, StorageError."""
    workload = _recorded(folder)
    workload.set_secrets(judge_keys(workload.options, environ))
    return workload


def _recorded(folder: Path) -> GenerationWorkload:
    workload = GenerationWorkload(recorded_run(folder, GenerationWorkload.name).spec, folder)
    keep_files(workload.options, folder)
    return workload
