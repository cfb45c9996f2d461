"""The workload of imported conversations, which took place elsewhere: nothing is done for them but that graders look at them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.agents.run_settings import keys_in
from manyhands.agents.trajectory import describe_step
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import Context, Execution, ItemRow, PlannedItem, RecordedStep, RunReader, Workload
from manyhands.engine.journal.reader import run_id_of
from manyhands.models.factory import late_imports
from manyhands.models.headers import headers_among
from manyhands.processes.strays import process_mark
from manyhands.workloads.imported.describing import described_turns
from manyhands.workloads.imported.planning import ImportedItem, LeftOut, planned_items, record_of
from manyhands.workloads.imported.results import write_results
from manyhands.workloads.imported.spec import ImportSpec

if TYPE_CHECKING:
    from manyhands.graders.conversations.grading import ConversationGrader

JUDGE_KEY = "judge_api_key"
"""The name of the key of the judge's endpoint among the workload's secrets."""


class ImportedWorkload(Workload):
    """Conversations of files. ``spec``: ``options``, the settings; ``identity`` of the files; ``left_out``, the rows that were left out
    (absent if there were none)."""

    name = "imported"
    spec_class = ImportSpec

    def __init__(self, spec: dict[str, Any], run_folder: Path) -> None:
        self.spec = spec
        self.options = ImportSpec.from_record(spec["options"], data_dir=str(run_folder.parent))
        self.left_out = LeftOut()
        self._folder = run_folder
        self._grader: ConversationGrader | None = None

    @property
    def is_graded(self) -> bool:
        """Whether graders score its conversations."""
        return self.options.grade_checks is not None

    @property
    def execution(self) -> Execution:
        options = self.options
        return options.execution(
            executor=options.executor if self.is_graded else "local",
            workers=options.num_workers if self.is_graded else 1,
            concurrency=options.concurrency,
            max_in_flight=options.max_concurrency,
            calls_wanted=options.max_concurrency or options.num_workers * options.concurrency,
            item_timeout=options.item_timeout,
            seed=options.seed or 0,
        )

    def input_identity(self) -> str | None:
        """What was imported stays, whatever becomes of the files."""
        identity: str = self.spec["identity"]
        return identity

    def plan(self) -> Iterable[PlannedItem]:
        self.left_out = LeftOut()
        return planned_items(self.options, self.left_out)

    @property
    def late_imports(self) -> Sequence[str]:
        return late_imports(self.options.model, self.options.base_url)

    @property
    def modules(self) -> Sequence[tuple[str, Path]]:
        if self.options.grade_checks is None:
            return ()
        from manyhands.graders.conversations.grade_file import GradeFile  # graders take long to import

        return GradeFile.from_json(self.options.grade_checks).modules

    @asynccontextmanager
    async def opened(self, *, replay: bool = False) -> AsyncIterator[None]:
        if self.options.grade_checks is None:
            yield
            return
        # Graders take long to import.
        from manyhands.graders.conversations.grade_file import GradeFile
        from manyhands.graders.conversations.grading import ConversationGrader, programs_at_once

        checks = GradeFile.from_json(self.options.grade_checks)
        async with ConversationGrader.opened(
            checks,
            checks.judge_options(self.options),
            self.options,
            keys=keys_in(self._secrets, JUDGE_KEY),
            headers=headers_among(self._secrets, JUDGE_KEY),
            run_folder=self._folder,
            mark=process_mark(run_id_of(self._folder)),
            replay=replay,
            at_once=programs_at_once(self.options),
        ) as grader:
            self._grader = grader
            yield

    async def run(self, context: Context) -> Outcome:
        conversation = ImportedItem.of(context.item).conversation
        record = record_of(conversation)
        if self._grader is not None:
            from manyhands.workloads.imported.grading import candidate_of  # graders take long to import

            candidate = candidate_of(context.item.key, conversation, self._grader.folder)
            record = await self._grader.graded(context, candidate, record)
        return Outcome(ItemState.COMPLETED, record)

    def describe_item(self, row: ItemRow) -> Iterable[tuple[str, str]]:
        return described_turns(ImportedItem.of(row.item))

    def describe_step(self, step: RecordedStep) -> Iterable[tuple[str, str]]:
        return describe_step(step)

    def export(self, reader: RunReader) -> None:
        write_results(reader, self.spec)
