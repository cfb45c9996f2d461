"""An agent as a worker: a conversation for each row, which ends with a call of the report tool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from pydantic import Field

from manyhands.agents.loop import FollowUp
from manyhands.agents.registry import load_agent
from manyhands.agents.run_settings import (
    API_KEY,
    NeverCalled,
    chat_settings,
    check_tool_choice,
    keys_in,
    model_of,
    own_folders,
    parent_run,
    sandbox_limits,
    seeded,
    services_for,
)
from manyhands.agents.task import TOOLS_PROMPT, AgentResult, AgentSettings, AgentTask
from manyhands.agents.toolbox import RunTools, Toolbox, services_of
from manyhands.agents.worlds.furnishing import Furnished, Furnishing, world_name, world_note
from manyhands.agents.worlds.world import World
from manyhands.core.errors import ItemError, ToolError
from manyhands.core.jsonio import Json, line
from manyhands.core.messages import Message
from manyhands.engine.contract import Context
from manyhands.models.headers import headers_among
from manyhands.models.protocol import ChatModel
from manyhands.processes.strays import process_mark
from manyhands.sandboxes.images.pins import NO_PINS, Pins
from manyhands.sandboxes.lifecycle.backend import opened_backend
from manyhands.sandboxes.protocol import SandboxBackend, SandboxRequest
from manyhands.tools.protocol import ParentRun, Tool, ToolEnvironment, ToolResult
from manyhands.tools.schema import Arguments, checked
from manyhands.tools.services.registry import ToolServices
from manyhands.workloads.csv_jobs.rows.output_schema import OutputSchema
from manyhands.workloads.csv_jobs.rows.prompts import REPORT_TOOL, quoted, same_id
from manyhands.workloads.csv_jobs.rows.worlds import RowWorlds
from manyhands.workloads.csv_jobs.spec import JobSpec
from manyhands.workloads.csv_jobs.workers.reports import (
    Accepted,
    Assignment,
    Corrections,
    missing_report_error,
    tail,
    timeout_error,
)

REMINDERS = 2
"""How often an agent that answers without a report is reminded to report."""
_SYSTEM = (
    f"You work on one item of a batch job. Its result is handed in with the tool {REPORT_TOOL}, and with nothing else: "
    "what you write in plain text is not read by anybody."
)
_REMINDER = (
    f"No result has been handed in for this item. Call {REPORT_TOOL} now, with job_id {{job_id}}, item_id {{item_id}}, and "
    "your result as a JSON object in result. If the work could not be done, say so in the result as far as its schema allows."
)


class AgentWorker:
    """Executes rows by conversations. ``opened`` makes it from a job's settings."""

    def __init__(
        self,
        options: JobSpec,
        tools: Sequence[Tool],
        *,
        model: ChatModel,
        backend: SandboxBackend,
        run_folder: Path,
        secrets: Mapping[str, str] | None = None,
        depth: int = 0,
        services: ToolServices | None = None,
    ) -> None:
        """``tools``: tools of agents besides the report tool; ``backend``: where those run; ``services``: what else they
        need; ``secrets``: what is not recorded of the settings, for jobs that agents start themselves."""
        self._options = options
        self._agent = load_agent(options.agent)
        self._tasks = AgentTasks(options, tools)
        check_tool_choice(options, self._tasks.toolbox(OutputSchema.of(options.output_schema)).names)
        self._model = model
        self._backend = backend
        self._services = services
        self._run_folder = run_folder
        self._secrets = dict(secrets or {})
        self._depth = depth
        self._recorded = options.recorded()
        self._worlds = worlds_of(options, self._secrets, run_folder)
        self._settings = AgentSettings(
            chat_settings(options),
            max_turns=options.max_turns,
            sequential_tools=options.sequential_tools,
            summary=False,
        )

    @classmethod
    @asynccontextmanager
    async def opened(
        cls,
        options: JobSpec,
        *,
        mcp: Json,
        run_folder: Path,
        secrets: Mapping[str, str],
        depth: int = 0,
        pins: Pins = NO_PINS,
        replay: bool = False,
    ) -> AsyncIterator[AgentWorker]:
        """The worker that the settings describe. ``mcp``: the record of mounted servers, which are started; ``secrets``: the workload's;
        ``depth``: how many jobs this one was started from; ``pins``: what the names of images mean. Raises UserError if the model, the
        sandbox or a server can't be used."""
        async with AsyncExitStack() as stack:
            run_tools = await stack.enter_async_context(RunTools.opened(mcp, replay=replay))
            tools = tools_of(options, run_tools)
            model: ChatModel = NeverCalled()
            services: ToolServices | None = None
            backend: SandboxBackend = NeverCalled()
            if not replay:
                if any(tool.changes_world for tool in tools) or worlds_of(options, secrets, run_folder).needs_sandbox:
                    backend = await stack.enter_async_context(opened_backend(options, pins, run_folder))
                headers = headers_among(secrets, API_KEY)
                model = model_of(options, keys_in(secrets, API_KEY), run_folder, options, headers=headers)
                stack.push_async_callback(model.close)
                services = await stack.enter_async_context(services_for(options, services_of(mcp), secrets, run_folder))
            yield cls(
                options,
                tools,
                model=model,
                backend=backend,
                run_folder=run_folder,
                secrets=secrets,
                depth=depth,
                services=services,
            )

    async def run(self, context: Context, assignment: Assignment) -> Accepted:
        """As of ``Worker``; and raises what the model client does."""
        limit: asyncio.Timeout | None = None
        try:
            async with context.time_limit(assignment.max_seconds) as limit:
                return await self._execute(context, assignment)
        except TimeoutError:
            if limit is None or not limit.expired():
                raise
            raise timeout_error(assignment.max_seconds) from None

    async def _execute(self, context: Context, assignment: Assignment) -> Accepted:
        furnished = self._worlds.furnished(assignment.row, assignment.columns)
        async with World(context, self._backend, lambda: self._request(context, assignment, furnished)) as world:
            toolbox = self._tasks.toolbox(assignment.schema)
            await furnished.prepare(context, world, used=toolbox.changes_world)
            made = ToolEnvironment(
                world.sandbox,
                context.clock,
                self._options.tool_timeout,
                parent=self._parent(context, assignment.job_id),
                services=self._services,
            )
            async with made as environment:
                reporting = Reporting.begin(assignment, environment)
                result = await self._agent(
                    context,
                    self._tasks.task(assignment),
                    model=self._model,
                    tools=toolbox,
                    environment=environment,
                    settings=seeded(self._settings, self._options, context),
                    world=world,
                    follow_up=_reminding(assignment),
                )
            if reporting.accepted is None:
                raise _without_report(result, reporting)
            collected = await furnished.collect(context, world)
        if collected is None:
            return reporting.accepted
        return replace(reporting.accepted, collected=collected.kept())

    def _request(self, context: Context, assignment: Assignment, furnished: Furnished) -> SandboxRequest:
        stage = assignment.stage
        # A stage has a folder of its own: what is recorded of a folder is how the steps of one conversation left it.
        folder = context.workspace if stage is None else context.workspace / f"stage-{stage.number}"
        part = None if stage is None else stage.number
        return furnished.request(folder, process_mark(assignment.job_id), world_name(assignment.job_id, context, part))

    def _parent(self, context: Context, job_id: str) -> ParentRun:
        return parent_run(
            context,
            self._run_folder,
            job_id,
            self._recorded,
            self._secrets,
            depth=self._depth + 1,
            max_depth=self._options.max_depth,
        )


def worlds_of(options: JobSpec, secrets: Mapping[str, str], run_folder: Path) -> RowWorlds:
    """What a job's rows get. ``secrets``: the workload's."""
    furnishing = Furnishing.of(options, sandbox_limits(options), secrets, hidden=own_folders(run_folder))
    return RowWorlds(options, furnishing)


def tools_of(options: JobSpec, run_tools: RunTools) -> list[Tool]:
    """The tools of a job's agents besides the report tool. Raises UserError for a toolset that there is not."""
    return [tool for tool in run_tools.tools(options.toolsets or ()) if tool.name != REPORT_TOOL]


class AgentTasks:
    """What a job's agents get for rows: their tasks and tools."""

    def __init__(self, options: JobSpec, tools: Sequence[Tool]) -> None:
        """``tools``: those besides the report tool."""
        self._options = options
        self._tools = tuple(tools)
        self._toolboxes: dict[bytes | None, Toolbox] = {}
        self._system: tuple[str, ...] = (_SYSTEM, TOOLS_PROMPT)
        note = world_note(options, files=options.files_field is not None)
        if note is not None and any(tool.changes_world for tool in tools):
            self._system += (note,)

    def task(self, assignment: Assignment) -> AgentTask:
        """The task of a row, or of one of its stages."""
        return AgentTask(
            assignment.prompt,
            system=(*self._system, *self.of_row(assignment)),
            ephemeral=self._options.ephemeral_system_prompt,
            prefill=cast(Sequence[Message], self._options.prefill_messages or ()),
        )

    def toolbox(self, schema: OutputSchema) -> Toolbox:
        """The tools, with the report tool for results of that schema."""
        if schema.encoded not in self._toolboxes:
            self._toolboxes[schema.encoded] = Toolbox([*self._tools, ReportTool(schema)])
        return self._toolboxes[schema.encoded]

    def of_row(self, assignment: Assignment) -> tuple[str, ...]:
        """The row's own paragraphs of the system prompt."""
        value = assignment.row.get(self._options.system_column) if self._options.system_column else None
        text = value if isinstance(value, str) else "" if value is None else line(value)
        return (text,) if text.strip() else ()


def _reminding(assignment: Assignment) -> FollowUp:
    reminder = _REMINDER.format(job_id=quoted(assignment.job_id), item_id=quoted(assignment.item_id))
    return lambda reminders: reminder if reminders < REMINDERS else None


def _without_report(result: AgentResult, reporting: Reporting) -> ItemError:
    answers = (message.get("content") for message in reversed(result.messages) if message["role"] == "assistant")
    last = next((text for text in answers if isinstance(text, str) and text.strip()), "")
    record = {**reporting.corrections.record(), "last_answer": tail(last)}
    return missing_report_error(record, stopped=result.stop_reason)


_STATE = "csv_jobs.report"
_DESCRIPTION = (
    "Hand in the result of the item you were given. Call it exactly once, when the work is done. A result that does not fit "
    "is refused with the reasons, and can be corrected and handed in again; once it is accepted, you are finished."
)


class _Report(Arguments):
    job_id: str = Field(description="The job, as the task names it.")
    item_id: str = Field(description="The item, as the task names it.")
    result: Any = Field(description="The result: a JSON object.")
    stop: bool = Field(False, description="True ends the whole job before its other items. Leave it out as a rule.")


@dataclass(slots=True)
class Reporting:
    """Where an item's report stands."""

    assignment: Assignment
    corrections: Corrections
    accepted: Accepted | None = None

    @classmethod
    def begin(cls, assignment: Assignment, environment: ToolEnvironment) -> Reporting:
        """Make the environment that of one item's conversation."""
        reporting = environment.state[_STATE] = cls(assignment, Corrections(assignment.corrections))
        return reporting


class ReportTool:
    """``report_agent_job_result``, whose ``result`` is described by the job's output schema."""

    name = REPORT_TOOL
    description = _DESCRIPTION
    changes_world = False

    def __init__(self, schema: OutputSchema) -> None:
        self._schema = schema
        result = embedded(schema.value or {}, ("properties", "result"))
        result.schema.setdefault("description", "The result: a JSON object.")
        fields = _Report.model_fields
        self.parameters: Mapping[str, Any] = {
            "type": "object",
            "properties": {
                "job_id": {"type": "string", "description": fields["job_id"].description},
                "item_id": {"type": "string", "description": fields["item_id"].description},
                "result": result.schema,
                "stop": {"type": "boolean", "description": fields["stop"].description},
            },
            "required": ["job_id", "item_id", "result"],
            "additionalProperties": False,
            **result.definitions,
        }

    async def call(self, arguments: dict[str, Any], environment: ToolEnvironment) -> ToolResult:
        """Take a report. Raises ToolError for one that is not about this item or comes too late, and
        ItemError(INVALID_OUTPUT) when one does not fit and no correction is left."""
        reporting: Reporting = environment.state[_STATE]
        report = self._read(arguments)
        _check_identity(report, reporting.assignment)
        if reporting.accepted is not None:
            raise ToolError(
                "A result was accepted for this item already, and a second one is not taken. You are finished."
            )
        violations = await self._schema.check(report["result"])
        if violations:
            return _refused(reporting.corrections, report["result"], violations)
        now = environment.clock.now()
        reporting.accepted = _accepted(report, now, reporting.corrections)
        return ToolResult({"accepted": True, "reported_at": now}, ends=True)

    def restore(self, arguments: dict[str, Any], result: ToolResult, environment: ToolEnvironment) -> None:
        """Bring the state to where a recorded call left it."""
        reporting: Reporting = environment.state[_STATE]
        content = result.content
        if not isinstance(content, dict):
            return
        if "violations" in content:
            reporting.corrections.refuse(self._read(arguments)["result"], tuple(content["violations"]))
        elif content.get("accepted"):
            reporting.accepted = _accepted(self._read(arguments), content["reported_at"], reporting.corrections)

    def _read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as they are meant: an object that was written as JSON text is read as an object."""
        return checked(self.name, _Report, self.parameters, arguments)


def _check_identity(report: Mapping[str, Any], assignment: Assignment) -> None:
    wanted = {"job_id": assignment.job_id, "item_id": assignment.item_id}
    wrong = [f"{name} {report[name]!r}" for name, identity in wanted.items() if not same_id(report[name], identity)]
    if wrong:
        raise ToolError(
            f"The report was not taken: {' and '.join(wrong)} is not what you were given. "
            f"You work on job_id {assignment.job_id!r}, item_id {assignment.item_id!r}: report that."
        )


def _refused(corrections: Corrections, result: Json, violations: tuple[str, ...]) -> ToolResult:
    corrections.refuse(result, violations)
    if corrections.used_up:
        raise corrections.failure()
    content = {
        "accepted": False,
        "error": f"The result does not fit. Mend what the violations name, and report again. {corrections.tries()}",
        "violations": list(violations),
        "corrections_left": corrections.left,
    }
    return ToolResult(content, failed=True)


def _accepted(report: Mapping[str, Any], reported_at: float, corrections: Corrections) -> Accepted:
    return Accepted(report["result"], reported_at, "tool", bool(report["stop"]), corrections.refused)


_DEFINITIONS = ("$defs", "definitions")
_ABOUT_THE_WHOLE = ("$schema", "$id", *_DEFINITIONS)
_MAPS_OF_SCHEMAS = ("properties", "patternProperties", "dependentSchemas", *_DEFINITIONS)
_NOT_SCHEMAS = ("const", "default", "enum", "examples")
_REFERENCES = ("$ref", "$dynamicRef")


class Embedded(NamedTuple):
    """A schema within another one."""

    schema: dict[str, Any]
    definitions: dict[str, Any]
    """``$defs`` and the like, if it has any, for the top of the whole."""


def embedded(schema: Mapping[str, Any], path: Sequence[str]) -> Embedded:
    """A schema of objects as it reads at a location in another schema: what refers to a part of it still does.

    Definitions move to the top, where endpoints and models look for them, so that references to them stay as they are; other
    references within the schema are prefixed with the location.
    """
    prefix = "#/" + "/".join(path)
    definitions = {name: _moved_part(name, schema[name], prefix) for name in _DEFINITIONS if name in schema}
    rest = {name: part for name, part in schema.items() if name not in _ABOUT_THE_WHOLE}
    return Embedded({**_moved(rest, prefix), "type": "object"}, definitions)


def _moved(value: Json, prefix: str) -> Any:
    if isinstance(value, list):
        return [_moved(part, prefix) for part in value]
    if (
        not isinstance(value, Mapping) or "$id" in value
    ):  # within a schema of its own name references mean something else
        return value
    return {name: _moved_part(name, part, prefix) for name, part in value.items()}


def _moved_part(name: str, part: Json, prefix: str) -> Json:
    if name in _REFERENCES and isinstance(part, str):
        return _moved_reference(part, prefix)
    if name in _MAPS_OF_SCHEMAS and isinstance(part, Mapping):
        return {key: _moved(inner, prefix) for key, inner in part.items()}
    return part if name in _NOT_SCHEMAS else _moved(part, prefix)


def _moved_reference(reference: str, prefix: str) -> str:
    if reference == "#":
        return prefix
    if not reference.startswith("#/") or reference.startswith(tuple(f"#/{name}/" for name in _DEFINITIONS)):
        return reference
    return prefix + reference[1:]
