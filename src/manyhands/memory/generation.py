"""Making tests that a model has to write: a run of its own, in the folder of definitions, so that no call is paid twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from manyhands.agents.asking import chat_settings, model_of
from manyhands.agents.describe import describe_step
from manyhands.agents.setup import execution_of
from manyhands.core.digests import digest
from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.context import Context
from manyhands.engine.files import written_aside
from manyhands.engine.workload import Execution, FinishedItem, PlannedItem, RecordedStep, RunReader
from manyhands.memory.agents.model_steps import ModelCaller
from manyhands.memory.benchmark import datasets_of
from manyhands.memory.configuration import Configuration, read_configuration
from manyhands.memory.definition_files import SUFFIX, format_definition
from manyhands.memory.judging import ModelJudge, RuleJudge
from manyhands.memory.keys import JUDGE_KEY
from manyhands.memory.model import Definition
from manyhands.memory.opening import keep_configuration
from manyhands.memory.places import writing
from manyhands.memory.spec import MemorySpec
from manyhands.memory.tokens import counter_named
from manyhands.models.factory import is_simulated

SOURCE = "source.yml"
"""The copy of the configuration whose tests are being made."""


class GenerationWorkload:
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

    @asynccontextmanager
    async def performing(self, *, replay: bool = False) -> AsyncIterator[None]:
        yield

    async def perform(self, context: Context) -> Outcome:
        configuration = self.configuration
        entry = configuration.datasets[context.item.payload["entry"]]
        datasets = datasets_of(configuration, counter_named(self._options.tokenizer))
        dataset = next(each for each in datasets.values() if each.id == entry.id)
        judge = self._judge()
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

    def render(self, finished: FinishedItem, steps: Sequence[RecordedStep]) -> tuple[str, str] | None:
        return None

    def export(self, reader: RunReader) -> None:
        """The definitions, when all are made, and last the configuration, without which there are none."""
        if write_made(reader, self._folder) is not None:
            keep_configuration(self._folder, self.configuration.text)

    def _judge(self) -> ModelJudge | RuleJudge | None:
        options = self._options
        if options.judge_model is None:
            return None
        if is_simulated(options.judge_model, options.judge_base_url or options.base_url):
            return RuleJudge()
        url = options.judge_base_url or options.base_url
        asked = options.model_copy(update={"model": options.judge_model, "base_url": url})
        return ModelJudge(
            ModelCaller(model_of(asked, self._secrets.get(JUDGE_KEY), self._folder), chat_settings(asked))
        )


def write_made(reader: RunReader, folder: Path) -> int | None:
    """Write all tests into a folder of definitions; how many there are, None if some datasets are not done. Raises StorageError."""
    rows = [row for row in reader.items() if not row.left_input]
    if any(row.state is not ItemState.COMPLETED for row in rows):
        return None
    made = [each for row in rows for each in row.record["definitions"]]
    for each in made:
        path = folder / each["dataset"] / f"{each['id']}{SUFFIX}"
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        with written_aside(path) as handle:
            handle.write(each["text"])
    return len(made)


def _packed(definition: Definition) -> dict[str, Any]:
    return {"dataset": definition.dataset, "id": definition.example_id, "text": format_definition(definition)}
