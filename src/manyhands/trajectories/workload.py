"""Workload 1: each prompt is given to an agent, whose conversation becomes a training trajectory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from manyhands.agents.loop import run_agent
from manyhands.agents.task import AgentResult, AgentSettings, AgentTask
from manyhands.agents.toolbox import Toolbox
from manyhands.agents.trajectory import fold
from manyhands.agents.world import World
from manyhands.core.clock import Clock
from manyhands.core.messages import Message
from manyhands.core.outcomes import ItemState, Outcome, StopReason
from manyhands.core.usage import Usage
from manyhands.engine.context import Context, Item, Limits
from manyhands.engine.reader import JournalReader
from manyhands.engine.strays import process_mark
from manyhands.engine.workload import Execution, FinishedItem, PlannedItem, RecordedStep, RunReader
from manyhands.models.factory import make_model, reasoning_settings
from manyhands.models.protocol import ChatModel, ChatRequest, ChatSettings, Completion
from manyhands.sandboxes.pace import PacedBackend
from manyhands.sandboxes.protocol import Sandbox, SandboxBackend, SandboxLimits, SandboxRequest
from manyhands.sandboxes.selection import choose_backend
from manyhands.tools.distributions import draw
from manyhands.tools.protocol import ToolEnvironment
from manyhands.trajectories.adopted import adopted_line
from manyhands.trajectories.describe import describe_step
from manyhands.trajectories.entry import Entry
from manyhands.trajectories.exports import write_exports
from manyhands.trajectories.items import ADOPTED, Adoption, PromptItem, batch_file, plan_items
from manyhands.trajectories.offer import ToolOffer
from manyhands.trajectories.prepared import Prepared, dataset_identity, kept_file
from manyhands.trajectories.quality import count_reasoning, discard_reason, nowhere_known
from manyhands.trajectories.sharegpt import SystemTurns, as_trained, to_sharegpt
from manyhands.trajectories.spec import BatchSpec
from manyhands.trajectories.statistics import KnownTools, result_record

API_KEY = "api_key"
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
        self._mark = ""
        self.adoption = Adoption()

    @property
    def prepared(self) -> Prepared:
        return self._prepared

    @property
    def execution(self) -> Execution:
        options = self._options
        return Execution(
            executor=options.executor,
            workers=options.num_workers,
            concurrency=options.concurrency,
            max_attempts=options.max_attempts,
            item_timeout=options.item_timeout,
            max_cost=options.max_cost,
            max_total_tokens=options.max_total_tokens,
            max_seconds=options.max_seconds,
            keep_workspaces=options.keep_workspaces,
            on_divergence=options.on_divergence,
            seed=options.seed or 0,
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
            self._offer = await stack.enter_async_context(ToolOffer.opened(self._prepared, replay=replay))
            self._mark = process_mark(run_id_of(self._folder))
            if not replay:
                self._backend = PacedBackend(choose_backend(self._options.sandbox, asks_for_image=False))
                self._model = model_of(self._options, self._secrets.get(API_KEY), self._folder)
                stack.push_async_callback(self._model.close)
            yield

    async def perform(self, context: Context) -> Outcome:
        payload = PromptItem.of(context.item)
        began = context.clock.now()
        toolsets = draw(self._prepared.distribution, context.random("toolsets"))
        toolbox = self._tool_offer.toolbox(toolsets)
        result = await self._converse(context, payload, toolbox)
        return self._outcome(context, payload, toolsets, toolbox, result, began)

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
            self._offer = ToolOffer.recorded(self._prepared)
        return self._offer

    async def _converse(self, context: Context, payload: PromptItem, toolbox: Toolbox) -> AgentResult:
        options = self._options

        def request() -> SandboxRequest:
            limits = SandboxLimits(network=options.network)
            return SandboxRequest(context.workspace, self._mark, payload.image, payload.cwd, limits=limits)

        async with World(context, self._backend or NeverCalled(), request) as world:
            environment = ToolEnvironment(world.sandbox, context.clock, options.tool_timeout, MAX_TOOL_OUTPUT)
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
                settings=self._settings_of(context),
                world=world,
            )

    def _settings_of(self, context: Context) -> AgentSettings:
        if self._options.seed is None:
            return self._settings
        return replace(self._settings, chat=replace(self._settings.chat, seed=context.seed("model")))

    def _outcome(
        self,
        context: Context,
        payload: PromptItem,
        toolsets: Sequence[str],
        toolbox: Toolbox,
        result: AgentResult,
        began: float,
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
            "seed": self._settings_of(context).chat.seed,
            "times": {"began": began, "finished": context.clock.now()},
        }
        reason = discard_reason(
            reasoning, invented, keep_unreasoned=options.keep_unreasoned, keep_unknown_tools=options.keep_unknown_tools
        )
        if reason is not None:
            return Outcome(ItemState.DISCARDED, record, reason=reason)
        line = self._line(context.item, context.attempt, payload, record, result.messages, toolbox)
        return Outcome(ItemState.COMPLETED, record, line)

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
        )
        return batch_file(payload.prompt_index, self._options.batch_size), entry.line()


class NeverCalled:
    """Stands for the model and the sandboxes where everything comes from the journal."""

    simulated = False
    kind = "none"

    async def complete(self, request: ChatRequest, limits: Limits, clock: Clock) -> Completion:
        raise RuntimeError("a replay called the model")

    async def create(self, request: SandboxRequest) -> Sandbox:
        raise RuntimeError("a replay made a sandbox")

    def unavailable(self) -> str | None:
        return None

    async def close(self) -> None:
        return


def model_of(options: BatchSpec, api_key: str | None, run_folder: Path) -> ChatModel:
    """The model that the settings name. Raises UserError if it can't be used."""
    return make_model(
        model=options.model,
        base_url=options.base_url,
        api_key=api_key,
        seed=options.seed or 0,
        prices=None if options.prices is None else kept_file(run_folder, options.prices),
        latency=options.simulated_latency,
    )


def chat_settings(options: BatchSpec) -> ChatSettings:
    """How the model is asked, but for the seed."""
    routing = {
        "only": options.providers_allowed,
        "ignore": options.providers_ignored,
        "order": options.providers_order,
        "sort": options.provider_sort,
    }
    provider = {name: list(value) if isinstance(value, tuple) else value for name, value in routing.items() if value}
    return ChatSettings(
        model=options.model,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        reasoning=options.reasoning_config or reasoning_settings(options.reasoning_effort, options.reasoning_disabled),
        provider=provider or None,
        call_timeout=options.call_timeout,
    )


def run_id_of(run_folder: Path) -> str:
    """The identity of the run in a folder."""
    reader = JournalReader(run_folder)
    try:
        return str(reader.meta("run_id"))
    finally:
        reader.close()


def _uses(record: Mapping[str, Any]) -> Iterable[tuple[str, bool]]:
    """A record's tool counts as single uses: (name, failed)."""
    for name, (calls, failures) in record["tools"].items():
        yield from ((name, index < failures) for index in range(calls))
