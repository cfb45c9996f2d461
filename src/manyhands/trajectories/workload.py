"""Workload 1: each prompt is given to an agent, whose conversation becomes a training trajectory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

from manyhands.agents.asking import chat_settings, model_of, sandbox_limits, seeded
from manyhands.agents.describe import describe_step
from manyhands.agents.loop import run_agent
from manyhands.agents.moments import moment
from manyhands.agents.never_called import NeverCalled
from manyhands.agents.offer import ToolOffer
from manyhands.agents.parent import parent_run, standard_toolsets
from manyhands.agents.setup import API_KEY, execution_of
from manyhands.agents.task import AgentResult, AgentSettings, AgentTask
from manyhands.agents.toolbox import Toolbox
from manyhands.agents.trajectory import fold
from manyhands.agents.world import World
from manyhands.core.messages import Message
from manyhands.core.outcomes import ItemState, Outcome, StopReason
from manyhands.core.usage import Usage
from manyhands.engine.context import Context, Item
from manyhands.engine.reader import run_id_of
from manyhands.engine.strays import process_mark
from manyhands.engine.workload import Execution, FinishedItem, PlannedItem, RecordedStep, RunReader
from manyhands.models.protocol import ChatModel
from manyhands.sandboxes.pace import PacedBackend
from manyhands.sandboxes.protocol import SandboxBackend, SandboxRequest
from manyhands.sandboxes.selection import choose_backend
from manyhands.tools.distributions import draw
from manyhands.tools.protocol import ParentRun, ToolEnvironment
from manyhands.trajectories.adopted import adopted_line
from manyhands.trajectories.checks import Checks
from manyhands.trajectories.entry import Entry
from manyhands.trajectories.exports import write_exports
from manyhands.trajectories.grading import GRADE, JUDGE_KEY, TrajectoryGrader, score_of
from manyhands.trajectories.items import ADOPTED, Adoption, PromptItem, batch_file, plan_items
from manyhands.trajectories.prepared import Prepared, dataset_identity
from manyhands.trajectories.quality import LOW_SCORE, REMEDIES, count_reasoning, discard_reason, nowhere_known
from manyhands.trajectories.sharegpt import SystemTurns, as_trained, to_sharegpt
from manyhands.trajectories.spec import BatchSpec
from manyhands.trajectories.statistics import KnownTools, result_record

MAX_TOOL_OUTPUT = 50_000


class TrajectoryWorkload:
    """Prompts become trajectories. ``spec`` is what ``Prepared.to_json`` gives."""

    name = "trajectories"
    spec_class = BatchSpec

    def __init__(self, spec: dict[str, Any], run_folder: Path) -> None:
        self.spec = spec
        self._folder = run_folder
        self._prepared = Prepared.from_json(spec, run_folder.parent)
        self._options = self._prepared.options
        self._secrets: dict[str, str] = {}
        self._known = KnownTools(self._prepared.tools)
        self._system_turns = SystemTurns(self._options.system_template_text)
        self._settings = AgentSettings(
            chat_settings(self._options),
            max_turns=self._options.max_turns,
            sequential_tools=self._options.sequential_tools,
            # A summary is this program's idea: where it would be left out, it is not paid for either.
            summary=self._options.keep_synthetic,
        )
        self._model: ChatModel | None = None
        self._backend: SandboxBackend | None = None
        self._offer: ToolOffer | None = None
        self._grader: TrajectoryGrader | None = None
        self._run_id = ""
        self.adoption = Adoption()

    @property
    def remedies(self) -> Mapping[str, str]:
        """What keeps trajectories of each kind that is discarded."""
        return REMEDIES

    @property
    def prepared(self) -> Prepared:
        return self._prepared

    @property
    def execution(self) -> Execution:
        options = self._options
        return execution_of(
            options, workers=options.num_workers, concurrency=options.concurrency, item_timeout=options.item_timeout
        )

    def input_identity(self) -> str | None:
        return dataset_identity(self._options)

    def plan(self) -> Iterable[PlannedItem]:
        self.adoption = Adoption()
        return plan_items(self._options, self._folder, self._prepared.tools, self.adoption)

    def secrets(self) -> dict[str, str]:
        return dict(self._secrets)

    def set_secrets(self, secrets: Mapping[str, str]) -> None:
        self._secrets = dict(secrets)

    @asynccontextmanager
    async def performing(self, *, replay: bool = False) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            self._offer = await stack.enter_async_context(
                ToolOffer.opened(self._prepared.mcp, self._prepared.toolsets, replay=replay)
            )
            self._run_id = run_id_of(self._folder)
            if not replay:
                self._backend = PacedBackend(choose_backend(self._options.sandbox, asks_for_image=False))
                self._model = model_of(self._options, self._secrets.get(API_KEY), self._folder)
                stack.push_async_callback(self._model.close)
            if self._options.grade_checks is not None:
                self._grader = await stack.enter_async_context(
                    TrajectoryGrader.opened(
                        Checks.from_json(self._options.grade_checks),
                        self._options,
                        key=self._secrets.get(JUDGE_KEY),
                        run_folder=self._folder,
                        mark=process_mark(self._run_id),
                        replay=replay,
                    )
                )
            yield

    async def perform(self, context: Context) -> Outcome:
        payload = PromptItem.of(context.item)
        began = await self._moment(context, "began")
        toolsets = draw(self._prepared.distribution, context.random("toolsets"))
        toolbox = self._tool_offer.toolbox(toolsets)
        result = await self._converse(context, payload, toolsets, toolbox)
        times = {"began": began, "finished": await self._moment(context, "finished")}
        return await self._outcome(context, payload, toolsets, toolbox, result, times)

    def describe_step(self, step: RecordedStep) -> Iterable[tuple[str, str]]:
        return describe_step(step)

    def render(self, finished: FinishedItem, steps: Sequence[RecordedStep]) -> tuple[str, str] | None:
        if finished.outcome.state is not ItemState.COMPLETED:
            return None
        record = finished.outcome.record
        if record.get(ADOPTED):
            return adopted_line(finished.item, record, self._prepared)
        payload, toolbox = PromptItem.of(finished.item), self._tool_offer.toolbox(record["toolsets"])
        return self._line(finished.item, finished.attempt, payload, record, fold(steps), toolbox)

    def export(self, reader: RunReader) -> None:
        write_exports(reader, self._prepared, self._folder.name)

    @property
    def _tool_offer(self) -> ToolOffer:
        if self._offer is None:
            self._offer = ToolOffer.recorded(self._prepared.mcp, self._prepared.toolsets)
        return self._offer

    async def _converse(
        self, context: Context, payload: PromptItem, toolsets: Sequence[str], toolbox: Toolbox
    ) -> AgentResult:
        options, mark = self._options, process_mark(self._run_id)

        def request() -> SandboxRequest:
            limits = sandbox_limits(options)
            return SandboxRequest(context.workspace, mark, payload.image, payload.cwd, limits=limits)

        parent = self._parent(context, toolsets)
        async with World(context, self._backend or NeverCalled(), request) as world:
            environment = ToolEnvironment(
                world.sandbox, context.clock, options.tool_timeout, MAX_TOOL_OUTPUT, parent=parent
            )
            return await run_agent(
                context,
                AgentTask(
                    payload.prompt,
                    ephemeral=options.ephemeral_system_prompt,
                    prefill=cast(Sequence[Message], options.prefill_messages or ()),
                ),
                model=self._model or NeverCalled(),
                tools=toolbox,
                environment=environment,
                settings=seeded(self._settings, options, context),
                world=world,
            )

    def _parent(self, context: Context, toolsets: Sequence[str]) -> ParentRun:
        inherited = {**self.spec["options"], "toolsets": standard_toolsets(toolsets, self._prepared.toolsets)}
        return parent_run(context, self._folder, self._run_id, inherited, self._secrets)

    async def _moment(self, context: Context, name: str) -> float:
        """Now. Graders are told how long it took, so for them it is recorded, and the same on a replay."""
        return context.clock.now() if self._grader is None else await moment(context.scope(name))

    async def _outcome(
        self,
        context: Context,
        payload: PromptItem,
        toolsets: Sequence[str],
        toolbox: Toolbox,
        result: AgentResult,
        times: Mapping[str, float],
    ) -> Outcome:
        options = self._options
        kept = result.messages if options.keep_synthetic else as_trained(result.messages)
        reasoning = count_reasoning(kept)
        invented = nowhere_known(result.unknown_tools, self._prepared.tools)
        record = {
            **result_record(result, reasoning),
            "completed": result.completed,
            "partial": result.partial,
            "toolsets": list(toolsets),
            "model": options.model,
            "unknown_tools": list(result.unknown_tools),
            "seed": seeded(self._settings, options, context).chat.seed,
            "times": times,
        }
        reason = discard_reason(
            reasoning, invented, keep_unreasoned=options.keep_unreasoned, keep_unknown_tools=options.keep_unknown_tools
        )
        if reason is not None:
            return Outcome(ItemState.DISCARDED, record, reason=reason)
        if self._grader is not None:
            record = await self._grader.graded(context, payload, kept, result, record)
            if (low := self._too_low(record)) is not None:
                return Outcome(ItemState.DISCARDED, record, reason=LOW_SCORE, message=low)
        line = self._line(context.item, context.attempt, payload, record, result.messages, toolbox)
        return Outcome(ItemState.COMPLETED, record, line)

    def _too_low(self, record: Mapping[str, Any]) -> str | None:
        score, least = score_of(record), self._options.min_score
        return None if score is None or least is None or score >= least else f"scored {score:g}, less than {least:g}"

    def _line(
        self,
        item: Item,
        attempt: int,
        payload: PromptItem,
        record: Mapping[str, Any],
        messages: Sequence[Message],
        toolbox: Toolbox,
    ) -> tuple[str, str]:
        usage = Usage.from_json(record["usage"])
        entry = Entry(
            prompt_index=payload.prompt_index,
            conversations=to_sharegpt(
                messages, self._system_turns.text(toolbox), keep_synthetic=self._options.keep_synthetic
            ),
            batch_num=payload.prompt_index // self._options.batch_size,
            timestamp=record["times"]["finished"],
            model=record["model"],
            completed=record["completed"],
            partial=record["partial"],
            api_calls=record["api_calls"],
            toolsets_used=record["toolsets"],
            tool_stats=self._known.stats(_uses(record)),
            stop_reason=StopReason(record["stop_reason"]),
            item_key=item.key,
            sample=payload.sample,
            attempt=attempt,
            seed=record["seed"],
            duration=record["times"]["finished"] - record["times"]["began"],
            simulated=usage.simulated_calls > 0,
            usage=usage,
            unknown_tools=record["unknown_tools"],
            source=self._prepared.source_fields.arrange(payload.source),
            grade=record.get(GRADE),
        )
        return batch_file(payload.prompt_index, self._options.batch_size), entry.line()


def _uses(record: Mapping[str, Any]) -> Iterable[tuple[str, bool]]:
    """A record's tool counts as single uses: (name, failed)."""
    for name, (calls, failures) in record["tools"].items():
        yield from ((name, index < failures) for index in range(calls))
