"""The workload of trajectories: each prompt is given to an agent, whose conversation becomes a line of training data."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from manyhands.agents.loop import run_agent
from manyhands.agents.registry import Agent, load_agent
from manyhands.agents.run_settings import (
    API_KEY,
    NeverCalled,
    chat_settings,
    check_node,
    item_seed,
    keys_in,
    model_of,
    own_folders,
    parent_run,
    sandbox_limits,
    seeded,
    services_for,
    standard_toolsets,
)
from manyhands.agents.task import BASE_PROMPT, TOOLS_PROMPT, AgentResult, AgentSettings, AgentTask, moment
from manyhands.agents.toolbox import RunTools, Toolbox, function_modules, services_of
from manyhands.agents.trajectory import describe_step, fold
from manyhands.agents.worlds.furnishing import Furnished, Furnishing, world_name, world_note
from manyhands.agents.worlds.recorded_commands import CommandRecord
from manyhands.agents.worlds.world import World
from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json
from manyhands.core.messages import Message
from manyhands.core.outcomes import GRADE, ItemState, Outcome, OutputLine, StopReason
from manyhands.core.usage import Usage
from manyhands.engine.contract import (
    Context,
    Execution,
    FinishedItem,
    Item,
    PlannedItem,
    RecordedStep,
    RunReader,
    Workload,
    Worlds,
)
from manyhands.engine.journal.reader import run_id_of
from manyhands.export.sharegpt import (
    Escaping,
    SystemTurns,
    Turn,
    as_trained,
    template_name,
    to_sharegpt,
)
from manyhands.models.factory import late_imports
from manyhands.models.headers import headers_among
from manyhands.models.protocol import ChatModel
from manyhands.processes.strays import process_mark
from manyhands.sandboxes.lifecycle.backend import opened_backend
from manyhands.sandboxes.lifecycle.keeping import worlds_of
from manyhands.sandboxes.protocol import SandboxBackend, SandboxRequest
from manyhands.sandboxes.remote.exported.archive import EXPORTS
from manyhands.task_folders.agents import named_model
from manyhands.task_folders.contents import Task
from manyhands.task_folders.session import TaskSession, is_external
from manyhands.task_folders.trial import Verified
from manyhands.tools.distributions import draw
from manyhands.tools.protocol import ParentRun, ToolEnvironment
from manyhands.tools.services.artifacts import ArtifactStore, picture_places
from manyhands.tools.services.registry import ToolServices
from manyhands.workloads.trajectories.dataset.rows import HowRead
from manyhands.workloads.trajectories.items import Adoption, PromptItem, adopted_line, batch_file, plan_items
from manyhands.workloads.trajectories.lines.entry import Entry
from manyhands.workloads.trajectories.lines.schema import FIRST_LAYOUT
from manyhands.workloads.trajectories.prepared import Prepared, dataset_identity
from manyhands.workloads.trajectories.records import (
    ADOPTED,
    JUDGE_KEY,
    LOW_SCORE,
    REMEDIES,
    TAGS_IN_VALUES,
    ToolColumns,
    ToolStats,
    count_reasoning,
    discard_reason,
    nowhere_known,
    result_record,
    score_of,
)
from manyhands.workloads.trajectories.results.exports import write_exports
from manyhands.workloads.trajectories.spec import BatchSpec
from manyhands.workloads.trajectories.tasks import REWARDS, graded_by_verifier

if TYPE_CHECKING:
    from manyhands.workloads.trajectories.grading import TrajectoryGrader

NO_TOOLSETS = ("none",)
"""Written where none were drawn, as a program did the task: an empty list has no type."""
MAX_TOOL_OUTPUT = 50_000
"""Maximum characters of a tool's result."""


@dataclass(slots=True)  # not frozen: see Outcome
class _Saved:
    """A conversation as it is saved."""

    turns: list[Turn]
    tags: int
    """How many tags stood in its texts."""
    all_tags: int
    """How many in those and in the descriptions of the available tools."""


class TrajectoryWorkload(Workload):
    """Prompts become trajectories. ``spec`` is what ``Prepared.to_json`` gives."""

    name = "trajectories"
    spec_class = BatchSpec
    remedies = REMEDIES
    worker_files = (*Workload.worker_files, EXPORTS)

    def __init__(self, spec: dict[str, Any], run_folder: Path) -> None:
        self.spec = spec
        self._folder = run_folder
        self._prepared = Prepared.from_json(spec, run_folder.parent)
        self._options = self._prepared.options
        self._columns = ToolColumns(self._prepared.columns)
        self._others = frozenset(self._prepared.tools).difference(self._prepared.columns)
        self._escapes_tags = self._options.tags_in_values != "keep"
        self._system_turns = SystemTurns(self._options.system_template_text, escape_tags=self._escapes_tags)
        self._settings = AgentSettings(
            chat_settings(self._options),
            max_turns=self._options.max_turns,
            sequential_tools=self._options.sequential_tools,
            # A summary is this program's idea: where it would be left out, it is not paid for either.
            summary=self._options.keep_synthetic,
            time_limit=self._options.time_limit,
        )
        self._model: ChatModel | None = None
        self._services: ToolServices | None = None
        self._backend: SandboxBackend | None = None
        self._run_tools: RunTools | None = None
        self._grader: TrajectoryGrader | None = None
        self._agent: Agent = run_agent
        self._furnishing = Furnishing()
        self._tasks: TaskSession | None = None
        self._run_id = ""
        self._reader: RunReader | None = None
        self.adoption = Adoption()

    @property
    def prepared(self) -> Prepared:
        return self._prepared

    @property
    def execution(self) -> Execution:
        options = self._options
        return options.execution(
            executor=options.executor,
            workers=options.num_workers,
            concurrency=options.concurrency,
            max_in_flight=options.max_concurrency,
            calls_wanted=options.max_concurrency or options.num_workers * options.concurrency,
            item_timeout=options.item_timeout,
            keep_workspaces=options.keep_workspaces,
            seed=options.seed or 0,
        )

    def input_identity(self) -> str | None:
        return dataset_identity(self._options, self._prepared.pins.missing)

    def plan(self) -> Iterable[PlannedItem]:
        self.adoption = Adoption()
        prepared = self._prepared
        how: HowRead = {**prepared.how_read(), "artifacts": ArtifactStore(self._folder)}
        if prepared.pins.missing:
            how["missing_images"] = prepared.pins.missing
        return plan_items(self._options, self._folder, prepared.tools, self.adoption, how=how)

    @property
    def late_imports(self) -> Sequence[str]:
        return late_imports(self._options.model, self._options.base_url)

    def begin(self, reader: RunReader) -> None:
        self._reader = reader

    def facts(self, item: Item, attempt: int, *, begun: bool) -> Json:
        if not begun or self._reader is None or self._options.executor != "ray":
            return None
        return ArtifactStore(self._folder).carried(self._reader.steps(item.number, attempt)) or None

    @property
    def modules(self) -> Sequence[tuple[str, Path]]:
        found = function_modules(self._prepared.mcp)
        if self._options.grade_checks is None:
            return found
        from manyhands.graders.conversations.grade_file import GradeFile  # graders take long to import

        return [*found, *GradeFile.from_json(self._options.grade_checks).modules]

    @asynccontextmanager
    async def opened(self, *, replay: bool = False) -> AsyncIterator[None]:
        if self._options.executor == "ray" and not replay:
            tasks = self._options.dataset_file if self._prepared.tasks else None
            check_node(
                {"--project": self._options.project, "--workspace": self._options.workspace, "--dataset_file": tasks}
            )
        async with AsyncExitStack() as stack:
            self._run_tools = await stack.enter_async_context(
                RunTools.opened(self._prepared.mcp, self._prepared.toolsets, replay=replay)
            )
            self._run_id = run_id_of(self._folder)
            external = is_external(self._options, self._options.agent)
            self._agent = load_agent(None if external else self._options.agent)
            self._furnishing = Furnishing.of(
                self._options, sandbox_limits(self._options), self._secrets, hidden=own_folders(self._folder)
            )
            if not replay:
                self._backend = await stack.enter_async_context(
                    opened_backend(self._options, self._prepared.pins, self._folder)
                )
                if not external:
                    self._model = model_of(
                        self._options,
                        keys_in(self._secrets, API_KEY),
                        self._folder,
                        self._options,
                        headers=headers_among(self._secrets, API_KEY),
                    )
                    stack.push_async_callback(self._model.close)
                    self._services = await stack.enter_async_context(
                        services_for(self._options, services_of(self._prepared.mcp), self._secrets, self._folder)
                    )
            if self._prepared.tasks:
                self._tasks = TaskSession.of(
                    self._options, self._options.agent, self._folder, self._secrets, self._backend
                )
            if self._options.grade_checks is not None:
                # Graders take long to import.
                from manyhands.graders.conversations.grade_file import GradeFile
                from manyhands.graders.conversations.grading import programs_at_once
                from manyhands.workloads.trajectories.grading import TrajectoryGrader

                checks = GradeFile.from_json(self._options.grade_checks)
                self._grader = await stack.enter_async_context(
                    TrajectoryGrader.opened(
                        checks,
                        checks.judge_options(self._options),
                        self._options,
                        keys=keys_in(self._secrets, JUDGE_KEY),
                        headers=headers_among(self._secrets, JUDGE_KEY),
                        run_folder=self._folder,
                        mark=process_mark(self._run_id),
                        replay=replay,
                        at_once=programs_at_once(self._options),
                    )
                )
            yield

    async def run(self, context: Context) -> Outcome:
        payload = PromptItem.of(context.item)
        if context.facts is not None:
            await asyncio.to_thread(ArtifactStore(self._folder).take, context.facts)
        began = await self._moment(context, "began")
        toolsets = draw(self._prepared.distribution, lambda: context.random("toolsets"))
        toolbox = self._opened_tools.toolbox(toolsets)
        task = self._task(payload, toolbox)
        result, collected, verified = await self._converse(context, payload, task, toolsets, toolbox)
        times = {"began": began, "finished": await self._moment(context, "finished")}
        setup = self._setup(payload, task, toolsets, toolbox)
        if collected is not None:
            setup["collected"] = collected.kept()
        return await self._outcome(context, payload, setup, toolbox, result, times, verified)

    def worlds(self) -> Worlds | None:
        return worlds_of([(self._options, self._prepared.pins)], self._folder)

    def describe_step(self, step: RecordedStep) -> Iterable[tuple[str, str]]:
        return describe_step(step)

    def render(self, finished: FinishedItem, steps: Sequence[RecordedStep]) -> OutputLine | None:
        if finished.outcome.state is not ItemState.COMPLETED:
            return None
        record = finished.outcome.record
        if record.get(ADOPTED):
            return adopted_line(finished.item, record, self._prepared)
        payload, toolbox = PromptItem.of(finished.item), self._opened_tools.toolbox(record["toolsets"])
        saved = self._saved(self._kept(fold(steps)), payload, toolbox)
        return self._line(finished.item, finished.attempt, payload, record, saved)

    def export(self, reader: RunReader) -> None:
        write_exports(reader, self._prepared, self._folder.name, self.render)

    @property
    def _opened_tools(self) -> RunTools:
        if self._run_tools is None:
            self._run_tools = RunTools.recorded(self._prepared.mcp, self._prepared.toolsets)
        return self._run_tools

    def _setup(self, payload: PromptItem, task: AgentTask, toolsets: Sequence[str], toolbox: Toolbox) -> dict[str, Any]:
        """What is recorded of what the model was given. In runs of earlier versions only what those recorded, so that a check of all
        of their items agrees."""
        if self._prepared.layout == FIRST_LAYOUT:
            return {"toolsets": list(toolsets)}
        if self._is_external(payload):
            return {"toolsets": [], "offered": [], "system_prompt": "", "external": True}
        return {
            "toolsets": list(toolsets),
            "offered": self._opened_tools.with_tools(toolsets),
            "system_prompt": task.system_message(with_tools=bool(toolbox.names)),
            **({"own_system": True} if payload.system is not None else {}),
        }

    def _task(self, payload: PromptItem, toolbox: Toolbox) -> AgentTask:
        """The row's system prompt takes the place of this program's own, and of what that says of the workspace; what is ephemeral stands
        behind either."""
        options = self._options
        system: Sequence[str] | None = None if payload.system is None else (payload.system,)
        if system is None and toolbox.changes_world:
            note = world_note(options, cwd=payload.cwd, files=bool(payload.world.get("files")))
            system = None if note is None else (BASE_PROMPT, TOOLS_PROMPT, note)
        return AgentTask(
            payload.prompt,
            system=system,
            ephemeral=options.ephemeral_system_prompt,
            prefill=cast(Sequence[Message], options.prefill_messages or ()),
            messages=_as_given(payload.messages),
        )

    async def _converse(
        self, context: Context, payload: PromptItem, task: AgentTask, toolsets: Sequence[str], toolbox: Toolbox
    ) -> tuple[AgentResult, CommandRecord | None, Verified | None]:
        options, tasks = self._options, self._tasks
        furnished, name = self._furnished(payload), world_name(self._run_id, context)
        done = Task.from_json(payload.task, payload.prompt) if payload.task else None
        settings = seeded(self._settings, options, context)
        if tasks is not None and done is not None:
            settings = replace(settings, time_limit=tasks.rules.agent_seconds(done))

        def around() -> SandboxRequest:
            return furnished.request(context.workspace, process_mark(self._run_id), name)

        def request() -> SandboxRequest:
            return around() if tasks is None or done is None else tasks.request(done, around())

        parent = self._parent(context, toolsets)
        async with World(context, self._backend or NeverCalled(), request) as world:
            trial = None if tasks is None or done is None else tasks.trial(done, context, world, around)
            if trial is not None:
                await trial.prepare()
            await furnished.prepare(context, world, used=toolbox.changes_world)
            if tasks is not None and tasks.program is not None and done is not None:
                result = await tasks.program.run(context, world, done, settings.time_limit)
            else:
                made = ToolEnvironment(
                    world.sandbox,
                    context.clock,
                    options.tool_timeout,
                    MAX_TOOL_OUTPUT,
                    parent=parent,
                    services=self._services,
                )
                async with made as environment:
                    result = await self._agent(
                        context,
                        task,
                        model=self._model or NeverCalled(),
                        tools=toolbox,
                        environment=environment,
                        settings=settings,
                        world=world,
                    )
            collected = await furnished.collect(context, world)
            return result, collected, None if trial is None else await trial.verify(await trial.collect())

    def _furnished(self, payload: PromptItem) -> Furnished:
        for name in self._prepared.command_fields:
            if name not in payload.fields:
                raise ItemError(Cause.INVALID_INPUT, f"the row has no field {name!r}, which a command of the run names")
        return self._furnishing.for_item(payload.item_world, payload.fields)

    def _parent(self, context: Context, toolsets: Sequence[str]) -> ParentRun:
        inherited = {**self.spec["options"], "toolsets": standard_toolsets(toolsets, self._prepared.toolsets)}
        return parent_run(context, self._folder, self._run_id, inherited, self._secrets)

    async def _moment(self, context: Context, name: str) -> float:
        """Now. Graders get how long it took, so for them it is recorded, and the same on a replay."""
        return context.clock.now() if self._grader is None else await moment(context.scope(name))

    async def _outcome(
        self,
        context: Context,
        payload: PromptItem,
        setup: Mapping[str, Any],
        toolbox: Toolbox,
        result: AgentResult,
        times: Mapping[str, float],
        verified: Verified | None,
    ) -> Outcome:
        options = self._options
        kept = self._kept(result.messages)
        reasoning = count_reasoning(kept)
        invented = nowhere_known(result.unknown_tools, self._prepared.tools)
        record = {
            **result_record(result, reasoning),
            "completed": result.completed,
            "partial": result.partial,
            **setup,
            "model": self._answering_model(payload, result),
            "unknown_tools": list(result.unknown_tools),
            "seed": item_seed(options, context),
            "times": times,
        }
        reason = (
            None
            if self._is_external(payload)
            else discard_reason(
                reasoning,
                invented,
                keep_unreasoned=options.keep_unreasoned,
                keep_unknown_tools=options.keep_unknown_tools,
            )
        )
        if reason is not None:
            return Outcome(ItemState.DISCARDED, record, reason=reason)
        saved = self._saved(kept, payload, toolbox)
        if saved.tags and options.tags_in_values == "discard":
            message = f"tags in its texts: {saved.tags}"
            return Outcome(ItemState.DISCARDED, record, reason=TAGS_IN_VALUES, message=message)
        if self._grader is not None:
            record = await self._grader.graded_trajectory(context, payload, kept, result, record)
        elif self._tasks is not None and verified is not None:
            record = graded_by_verifier(verified, record, options.reward)
        if (low := self._too_low(record)) is not None:
            return Outcome(ItemState.DISCARDED, record, reason=LOW_SCORE, message=low)
        if not options.batch_files:
            return Outcome(ItemState.COMPLETED, record)
        return Outcome(ItemState.COMPLETED, record, self._line(context.item, context.attempt, payload, record, saved))

    def _too_low(self, record: Mapping[str, Any]) -> str | None:
        score, minimum = score_of(record), self._options.min_score
        return (
            None if score is None or minimum is None or score >= minimum else f"scored {score:g}, less than {minimum:g}"
        )

    def _kept(self, messages: list[Message]) -> list[Message]:
        """Those of a conversation's messages that are saved."""
        return messages if self._options.keep_synthetic else as_trained(messages)

    def _saved(self, kept: Sequence[Message], payload: PromptItem, toolbox: Toolbox) -> _Saved:
        escaping = Escaping(active=self._escapes_tags)
        own = None if payload.system is None else escaping.text(payload.system)
        if self._is_external(payload):  # nobody knows what its model was told
            turns = to_sharegpt(kept, "", keep_synthetic=True, escaping=escaping)[1:]
            return _Saved(turns, escaping.count, escaping.count)
        turns = to_sharegpt(kept, self._system_turns.text(toolbox, own), keep_synthetic=True, escaping=escaping)
        return _Saved(turns, escaping.count, escaping.count + self._system_turns.tags(toolbox))

    def _line(
        self, item: Item, attempt: int, payload: PromptItem, record: Mapping[str, Any], saved: _Saved
    ) -> OutputLine:
        usage, prepared = Usage.from_json(record["usage"]), self._prepared
        of_tools = Usage.from_json(record["usage"].get("tools", {}))
        entry = Entry(
            prompt_index=payload.prompt_index,
            conversations=saved.turns,
            batch_num=payload.prompt_index // self._options.batch_size,
            timestamp=record["times"]["finished"],
            model=record["model"],
            completed=record["completed"],
            partial=record["partial"],
            api_calls=record["api_calls"],
            toolsets_used=record["toolsets"] or NO_TOOLSETS,
            tool_stats=self._columns.stats(_uses(record)),
            stop_reason=StopReason(record["stop_reason"]),
            item_key=item.key,
            sample=payload.sample,
            attempt=attempt,
            seed=record["seed"],
            duration=record["times"]["finished"] - record["times"]["began"],
            simulated=usage.simulated_calls + of_tools.simulated_calls > 0,
            usage=usage,
            tool_usage=of_tools,
            unknown_tools=record["unknown_tools"],
            escaped_tags=saved.all_tags if prepared.counts_tags else None,
            source=prepared.source_fields.arrange(payload.source)
            if prepared.layout == FIRST_LAYOUT
            else payload.source,
            grade=record.get(GRADE),
            layout=prepared.layout,
            other_tool_stats=self._other_stats(record),
            toolsets_offered=record.get("offered", ()),
            system_prompt=record.get("system_prompt"),
            system_template=template_name(self._options.system_template_text),
            given=self._given(payload),
            collected=record.get("collected"),
            rewards=record.get(REWARDS),
        )
        return batch_file(payload.prompt_index, self._options.batch_size), entry.line()

    def _is_external(self, payload: PromptItem) -> bool:
        """Whether something else does the item than an agent that calls the run's model."""
        return bool(payload.task) and is_external(self._options, self._options.agent)

    def _answering_model(self, payload: PromptItem, result: AgentResult) -> str:
        """Empty where a program did the task and nobody knows its model."""
        options = self._options
        return (result.model or named_model(options.agent_command)) if self._is_external(payload) else options.model

    def _given(self, payload: PromptItem) -> dict[str, Any]:
        """What the row gave besides the text of its prompt."""
        given: dict[str, Any] = {} if payload.system is None else {"system": payload.system}
        if payload.messages:
            given["turns"] = len(to_sharegpt(payload.messages, "", keep_synthetic=self._options.keep_synthetic)) - 1
        contents = [message.get("content") for message in payload.messages] or [payload.prompt]
        if images := [place for content in contents for place in picture_places(content)]:
            given["images"] = images
        pinned = self._prepared.pins.images.get(payload.image or self._options.image or "")
        if pinned is not None and not self._options.ignore_images:
            given |= {"sandbox_image": pinned.reference, "sandbox_image_pin": pinned.pin}
        return given

    def _other_stats(self, record: Mapping[str, Any]) -> ToolStats:
        """Of the tools that have no column and were called. Names that nobody has are no tools."""
        if not record["tools"]:
            return {}
        invented = set(record["unknown_tools"]) - self._others
        used = [name for name in record["tools"] if name not in self._columns and name not in invented]
        return ToolColumns(used).stats(_uses(record))


def _as_given(messages: Sequence[Message]) -> list[Message]:
    """A row's messages, marked but for the prompt at their end: that is sent here, and all before it was said elsewhere."""
    marked = [cast(Message, {**message, "_given": True}) for message in messages]
    return [*marked[:-1], messages[-1]] if messages and messages[-1]["role"] == "user" else marked


def _uses(record: Mapping[str, Any]) -> Iterable[tuple[str, bool]]:
    """A record's tool counts as single uses: (name, failed)."""
    for name, (calls, failures) in record["tools"].items():
        yield from ((name, index < failures) for index in range(calls))
