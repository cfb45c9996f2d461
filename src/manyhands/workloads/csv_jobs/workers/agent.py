"""The built-in agent as a worker: a conversation for each row, which ends with a call of the report tool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import cast

from manyhands.agents.loop import FollowUp, run_agent
from manyhands.agents.run_settings import API_KEY, NeverCalled, chat_settings, model_of, sandbox_limits, seeded
from manyhands.agents.started_runs import own_folders, parent_run
from manyhands.agents.task import TOOLS_PROMPT, AgentResult, AgentSettings, AgentTask
from manyhands.agents.toolbox import Toolbox
from manyhands.agents.toolset_tools import ToolOffer
from manyhands.agents.world import World
from manyhands.core.errors import ItemError
from manyhands.core.jsonio import Json
from manyhands.core.messages import Message
from manyhands.engine.contract import Context
from manyhands.models.protocol import ChatModel
from manyhands.processes.strays import process_mark
from manyhands.sandboxes.project import project_note
from manyhands.sandboxes.protocol import SandboxBackend, SandboxRequest
from manyhands.sandboxes.selection import PacedBackend, choose_backend
from manyhands.tools.protocol import ParentRun, Tool, ToolEnvironment
from manyhands.workloads.csv_jobs.rows.model import Accepted, Assignment
from manyhands.workloads.csv_jobs.rows.output_schema import OutputSchema
from manyhands.workloads.csv_jobs.rows.prompts import REPORT_TOOL, quoted
from manyhands.workloads.csv_jobs.spec import JobSpec
from manyhands.workloads.csv_jobs.workers.report_tool import Reporting, ReportTool
from manyhands.workloads.csv_jobs.workers.reports import missing_report_error, tail, timeout_error

REMINDERS = 2
"""How often an agent that answers without a report is told to report."""
_SYSTEM = (
    f"You work on one item of a batch job. Its result is handed in with the tool {REPORT_TOOL}, and with nothing else: "
    "what you write in plain text is not read by anybody."
)
_REMINDER = (
    f"No result has been handed in for this item. Call {REPORT_TOOL} now, with job_id {{job_id}}, item_id {{item_id}}, and "
    "your result as a JSON object in result. If the work could not be done, say so in the result as far as its schema allows."
)


class AgentWorker:
    """Performs rows by conversations. ``opened`` makes it from a job's settings.

    ``tools``: what agents are offered besides the report tool; ``backend``: where those run; ``secrets``: what is not recorded of the
    settings, for jobs that agents start themselves.
    """

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
    ) -> None:
        self._options = options
        self._toolbox = Toolbox([*tools, ReportTool(OutputSchema.of(options.output_schema))])
        self._model = model
        self._backend = backend
        self._run_folder = run_folder
        self._secrets = dict(secrets or {})
        self._depth = depth
        self._recorded = options.recorded()
        self._settings = AgentSettings(
            chat_settings(options),
            max_turns=options.max_turns,
            sequential_tools=options.sequential_tools,
            summary=False,
        )
        self._system: tuple[str, ...] = (_SYSTEM, TOOLS_PROMPT)
        if options.project is not None and any(tool.changes_world for tool in tools):
            self._system += (project_note(options.project, sandbox=options.sandbox),)

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, options: JobSpec, *, mcp: Json, run_folder: Path, api_key: str | None, depth: int = 0, replay: bool = False
    ) -> AsyncIterator[AgentWorker]:
        """The worker that the settings describe. ``mcp``: the record of mounted servers, which are started; ``depth``: how many jobs
        this one was started from. Raises UserError if the model, the sandbox or a server can't be used."""
        async with AsyncExitStack() as stack:
            offer = await stack.enter_async_context(ToolOffer.opened(mcp, replay=replay))
            tools = [tool for tool in offer.tools(options.toolsets or ()) if tool.name != REPORT_TOOL]
            model: ChatModel = NeverCalled()
            backend: SandboxBackend = NeverCalled()
            if not replay:
                if any(tool.changes_world for tool in tools):
                    backend = PacedBackend(choose_backend(options.sandbox, asks_for_image=False))
                model = model_of(options, api_key, run_folder)
                stack.push_async_callback(model.close)
            secrets = {} if api_key is None else {API_KEY: api_key}
            yield cls(options, tools, model=model, backend=backend, run_folder=run_folder, secrets=secrets, depth=depth)

    async def run(self, context: Context, assignment: Assignment) -> Accepted:
        """As of ``Worker``; and raises what the model client does."""
        limit = asyncio.timeout(assignment.max_seconds)
        try:
            async with limit:
                return await self._performed(context, assignment)
        except TimeoutError:
            if not limit.expired():
                raise
            raise timeout_error(assignment.max_seconds) from None

    async def _performed(self, context: Context, assignment: Assignment) -> Accepted:
        async with World(context, self._backend, lambda: self._request(context, assignment.job_id)) as world:
            environment = ToolEnvironment(
                world.sandbox,
                context.clock,
                self._options.tool_timeout,
                parent=self._parent(context, assignment.job_id),
            )
            reporting = Reporting.begin(assignment, environment)
            result = await run_agent(
                context,
                self._task(assignment),
                model=self._model,
                tools=self._toolbox,
                environment=environment,
                settings=seeded(self._settings, self._options, context),
                world=world,
                follow_up=_reminding(assignment),
            )
        if reporting.accepted is None:
            raise _without_report(result, reporting)
        return reporting.accepted

    def _task(self, assignment: Assignment) -> AgentTask:
        return AgentTask(
            assignment.prompt,
            system=self._system,
            ephemeral=self._options.ephemeral_system_prompt,
            prefill=cast(Sequence[Message], self._options.prefill_messages or ()),
        )

    def _request(self, context: Context, job_id: str) -> SandboxRequest:
        project = self._options.project
        return SandboxRequest(
            context.workspace,
            process_mark(job_id),
            limits=sandbox_limits(self._options),
            project=None if project is None else Path(project),
            hidden=own_folders(self._run_folder),
        )

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


def _reminding(assignment: Assignment) -> FollowUp:
    reminder = _REMINDER.format(job_id=quoted(assignment.job_id), item_id=quoted(assignment.item_id))
    return lambda said: reminder if said < REMINDERS else None


def _without_report(result: AgentResult, reporting: Reporting) -> ItemError:
    answers = (message.get("content") for message in reversed(result.messages) if message["role"] == "assistant")
    said = next((text for text in answers if isinstance(text, str) and text.strip()), "")
    record = {**reporting.corrections.record(), "last_answer": tail(said)}
    return missing_report_error(record, stopped=result.stop_reason)
