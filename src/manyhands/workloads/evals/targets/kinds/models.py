"""Models as targets, and the built-in agent, which is a model with tools."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from manyhands.agents.registry import load_agent
from manyhands.agents.run_settings import (
    NeverCalled,
    chat_settings,
    check_tool_choice,
    own_folders,
    sandbox_limits,
    seeded,
    services_for,
)
from manyhands.agents.task import BASE_PROMPT, TOOLS_PROMPT, AgentResult, AgentSettings, AgentTask, moment
from manyhands.agents.toolbox import RunTools, Toolbox, outside_record, services_of, with_functions, with_services
from manyhands.agents.worlds.archives import FETCHED, SENT, fetch, send
from manyhands.agents.worlds.furnishing import Furnishing, as_secret, check_world, world_name, world_note
from manyhands.agents.worlds.item_world import ItemWorld
from manyhands.agents.worlds.settings import looked_up
from manyhands.agents.worlds.world import World
from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json
from manyhands.core.messages import Message
from manyhands.core.settings import Secret
from manyhands.engine.contract import Context
from manyhands.graders.messages import figures_of, output_of
from manyhands.graders.protocol import Judge
from manyhands.io.locations import Location
from manyhands.models.addresses import Addresses, addresses_of, paired
from manyhands.models.factory import (
    OWN_KEY_VARIABLE,
    SIMULATED,
    is_key_header,
    is_simulated,
    key_variable,
    resolve_api_keys,
)
from manyhands.models.protocol import ChatModel
from manyhands.runs.options import is_file_of_values
from manyhands.sandboxes.kinds import AUTO, kind_named
from manyhands.sandboxes.lifecycle.backend import opened_backend
from manyhands.sandboxes.project import checked_project
from manyhands.sandboxes.protocol import SandboxBackend, SandboxRequest
from manyhands.sandboxes.selection import check_backend
from manyhands.sandboxes.settings import SandboxSettings
from manyhands.task_folders.agents import TaskProgram, command_template
from manyhands.task_folders.contents import Task
from manyhands.task_folders.rules import TaskRules
from manyhands.task_folders.session import TaskSession
from manyhands.task_folders.settings import ORACLE
from manyhands.tools.protocol import Tool, ToolEnvironment
from manyhands.tools.services.registry import ToolServices, choose_services, service_secrets
from manyhands.workloads.evals.evalfile.contents import Test
from manyhands.workloads.evals.targets.answers import Answer, read_record
from manyhands.workloads.evals.targets.keys import TargetBlock
from manyhands.workloads.evals.targets.kinds.model_keys import AgentTargetOptions
from manyhands.workloads.evals.targets.kinds.protocol import (
    Checking,
    JudgeOpening,
    Making,
    TargetOpening,
    TargetSettings,
)
from manyhands.workloads.evals.targets.live import LiveTarget
from manyhands.workloads.evals.workspaces.workspace import TestWorkspace, keep_folder

BASE_URLS = {
    "openai": "https://api.openai.com/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "anthropic": "https://api.anthropic.com/v1",
    "gemini": "https://generativelanguage.googleapis.com/v1beta/openai",
}
"""Where each provider speaks OpenAI chat completions, by kind. A line here is a kind."""
BUILT_IN = "agentv"
"""The kind of AgentV's own judge."""
_BUILT_IN = {
    "openai": "openai",
    "anthropic": "anthropic",
    "azure": "azure",
    "google": "gemini",
    "openrouter": "openrouter",
}
"""What stands before its models, and the kind of each."""
GEMINI_MODEL = "gemini-2.5-flash"
"""The model of Gemini, where none is named."""
AZURE_ENDPOINTS = ("AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_RESOURCE_NAME")
AZURE_KEYS = ("AZURE_OPENAI_API_KEY", "AZURE_API_KEY")
_HTTP = ("http://", "https://")
_HOST = re.compile(r"https?://[^/?#]+/?")
_AZURE_PATH = "/openai/v1"
_FILES = ("mcp_config", "prefill_messages_file", "prices")
_FOLDERS = ("workspace", "project")


@dataclass(frozen=True, slots=True)
class ModelTargetSettings(TargetSettings):
    """A model that is called over HTTP, or the simulated one."""

    options: AgentTargetOptions
    api_key: tuple[Secret, ...] = ()
    """Empty where the endpoint needs none."""

    @property
    def toolsets(self) -> tuple[str, ...]:
        """What it may use of tools."""
        return ()

    @property
    def sandbox_settings(self) -> SandboxSettings | None:
        return self.options

    def judge(self, name: str, opening: JudgeOpening) -> Judge:
        return Judge(name, opening.model(self.options, self.api_key), chat_settings(self.options))

    async def open(self, opening: TargetOpening) -> LiveTarget:
        options = self.options
        record = await outside_record(options, opening.services)
        run_tools = await opening.stack.enter_async_context(RunTools.opened(record))
        services = await self._services(opening, services_of(record))
        tools = run_tools.tools(self.toolsets)
        backend: SandboxBackend = NeverCalled()
        furnishing = self.furnishing(opening)
        if opening.has_tasks or furnishing.needs_sandbox or any(tool.changes_world for tool in tools):
            backend = await opening.stack.enter_async_context(opened_backend(options, opening.pins, opening.run_folder))
        model = opening.model(options, self.api_key)
        agent = AgentTarget(
            options,
            tools,
            model=model,
            backend=backend,
            mark=opening.mark,
            furnishing=furnishing,
            tasks=_task_session(options, opening, backend) if opening.has_tasks else None,
            services=services,
        )
        changes = (
            opening.has_tasks
            or (options.temperature or 0) > 0
            or furnishing.needs_sandbox
            or furnishing.project is not None
        )
        return agent if changes else opening.cached(agent, {})

    async def _services(self, opening: TargetOpening, records: Mapping[str, Json]) -> ToolServices:
        options = self.options.changed({"api_key": self.api_key}) if self.api_key else self.options
        secrets = service_secrets(records, options, opening.environ)
        return await opening.stack.enter_async_context(services_for(options, records, secrets, opening.run_folder))

    def services(self, environ: Mapping[str, str]) -> dict[str, Json]:
        """What there is of services for its tools, to be recorded. Raises UserError for settings that can't be used."""
        return choose_services(self.options, environ) if self.toolsets or self.options.tools else {}

    def furnishing(self, opening: TargetOpening) -> Furnishing:
        """What its sandboxes are given. Raises UserError for a variable that is not set."""
        options = self.options.changed({"workspace": None})  # which is that of the test, see ``TestWorkspace``
        secrets = as_secret(
            looked_up(options.container_env, opening.environ, needed=False)
        )  # whether all are set is checked before
        return Furnishing.of(options, sandbox_limits(options), secrets, hidden=own_folders(opening.run_folder))


@dataclass(frozen=True, slots=True)
class AgentTargetSettings(ModelTargetSettings):
    """The built-in agent: a model with tools."""

    @property
    def toolsets(self) -> tuple[str, ...]:
        return tuple(self.options.toolsets or ())

    @property
    def workspace_template(self) -> Path | None:
        return None if self.options.workspace is None else Path(self.options.workspace)

    @property
    def image_settings(self) -> SandboxSettings | None:
        options = self.options
        return options if self.toolsets and options.image is not None and not options.ignore_images else None

    def check(self, checking: Checking) -> None:
        """Raises UserError for an unknown agent or toolset, and for a sandbox that can't be used here."""
        options = self.options
        try:
            if options.agent_command is not None:
                if options.agent is not None:
                    raise UserError("agent and agent_command are two agents; leave one of them out")
                command_template(options.agent_command)
            if options.agent == ORACLE:
                return
            load_agent(options.agent)
            in_images = checking.images or self.image_settings is not None
            check_world(options, images=in_images)
            if options.project is not None:
                checked_project(options.project, sandbox=options.sandbox)
            looked_up(options.container_env, checking.environ)
            if options.mcp_config is not None:
                return  # its tools are known when its servers run
            tools = RunTools.recorded(
                with_functions(with_services(None, self.services(checking.environ)), options.tools or ())
            ).tools(self.toolsets)
            needed = (
                any(tool.changes_world for tool in tools) or options.setup is not None or options.collect is not None
            )
            if needed and not in_images:
                check_backend(options)
        except UserError as error:
            raise checking.location.error(str(error)) from None


def model_settings(block: TargetBlock, making: Making) -> ModelTargetSettings:
    """A model at a provider's endpoint, or at one of the person's own."""
    return ModelTargetSettings(*_options(block, making))


def agent_settings(block: TargetBlock, making: Making) -> AgentTargetSettings:
    """The built-in agent."""
    return AgentTargetSettings(*_options(block, making))


def _options(block: TargetBlock, making: Making) -> tuple[AgentTargetOptions, tuple[Secret, ...]]:
    given = {name: getattr(block, name) for name in block.model_fields_set}
    values = {name: value for name, value in given.items() if name in AgentTargetOptions.fields}
    keys: tuple[Secret, ...] | None = values.pop("api_key", None)
    provider = making.kind
    if provider == BUILT_IN:
        provider, values["model"] = _built_in(values["model"], making)
    if provider in BASE_URLS:
        values.setdefault("base_url", BASE_URLS[provider])
        values["base_url"] = _with_version(values["base_url"]) if provider == "openai" else values["base_url"]
    elif provider == "azure":
        endpoint = values.get("base_url") or (making.kind == BUILT_IN and _azure_endpoint(making.environ)) or None
        values["base_url"] = _azure(endpoint, making.location)
    if is_file_of_values(file := values.get("base_url")):
        values["base_url"] = f"@{making.path(file[1:])}"
    if provider == "gemini":
        values.setdefault("model", GEMINI_MODEL)
    if making.kind == BUILT_IN:
        values.setdefault("temperature", 0.0)
    if (budget := given.get("thinking_budget")) is not None and provider == "anthropic":
        thinking = {"thinking": {"type": "enabled", "budget_tokens": budget}}
        values["extra_body"] = values.get("extra_body") or thinking
    if making.kind != "agent" and "model" not in values:
        raise making.location.error("model is required")
    values |= _paths(values, making)
    if sources := values.get("tools"):
        from manyhands.tools.own_functions import absolute_source  # it takes long to import, and is rarely needed

        values["tools"] = [absolute_source(each, making.folder) for each in sources]
    try:
        options = AgentTargetOptions.make(values)
        if _calls_no_model(options):  # so it needs no key of one
            options = options.changed({"model": SIMULATED, "base_url": AgentTargetOptions().base_url})
        options = options.resolved()
        addresses = addresses_of(options.base_url)
        keys = keys or _keys(options, addresses, making.environ, azure=provider == "azure")
        paired(addresses, [key.text for key in keys])
    except (UserError, ValueError) as error:
        raise making.location.error(str(error)) from error
    return options, keys


def _paths(values: Mapping[str, Any], making: Making) -> dict[str, str]:
    """Files and folders that settings name, as absolute paths. Raises UserError for a folder that is not there."""
    paths = {name: str(making.path(values[name])) for name in (*_FILES, *_FOLDERS) if values.get(name)}
    for name in _FOLDERS:
        if name in paths and not Path(paths[name]).is_dir():
            raise making.at(name).error(f"there is no folder {paths[name]}")
    return paths


def _built_in(model: str, making: Making) -> tuple[str, str]:
    """The kind and the name of a model that is named with its provider."""
    before, colon, name = model.partition(":")
    if not colon or before not in _BUILT_IN or not name:
        raise making.at("model").error(
            f"must be PROVIDER:MODEL, as openai:gpt-5-mini, with one of {', '.join(_BUILT_IN)}"
        )
    return _BUILT_IN[before], name


def _with_version(address: Addresses) -> Addresses:
    """An address that is a host alone, with the path that OpenAI's interface has at its own."""
    is_host = isinstance(address, str) and _HOST.fullmatch(address) is not None
    return f"{address.rstrip('/')}/v1" if is_host else address  # type: ignore[union-attr]


def _azure_endpoint(environ: Mapping[str, str]) -> str | None:
    return next((value for name in AZURE_ENDPOINTS if (value := environ.get(name))), None)


def _keys(
    options: AgentTargetOptions, addresses: Sequence[str], environ: Mapping[str, str], *, azure: bool
) -> tuple[Secret, ...]:
    """The API keys of an endpoint from the environment. Raises ValueError if there is none and the endpoint needs one."""
    variables = AZURE_KEYS if azure else tuple(dict.fromkeys(map(key_variable, addresses)))
    if azure:
        found = tuple(value for name in variables if (value := environ.get(name)))[:1]
    else:
        found = resolve_api_keys((), options.base_url, environ)
    needed = variables != (OWN_KEY_VARIABLE,) and not is_simulated(options.model, options.base_url)
    if needed and not all(found or [""]) and not any(is_key_header(header.name) for header in options.header or ()):
        raise ValueError(f"no key for {addresses[0]}: set {' or '.join(variables)}, or say api_key: ${{{{ NAME }}}}")
    return tuple(map(Secret, found))


def _azure(endpoint: str | None, location: Location) -> str:
    """The address at which Azure speaks OpenAI's protocol. ``endpoint``: the resource's address or its name."""
    if not endpoint:
        raise location.error("endpoint is required")
    address = endpoint if endpoint.startswith(_HTTP) else f"https://{endpoint}.openai.azure.com"
    address = address.rstrip("/")
    return address if address.endswith(_AZURE_PATH) else address + _AZURE_PATH


# --- The built-in agent, and a model without tools


class AgentTarget:
    """A ``LiveTarget``. Every model call and tool call is a step. Without tools it is a plain model.

    A test's workspace is that of the sandbox: what is in it is there before the first tool call. Where the sandbox's files lie elsewhere,
    it is copied there, and back before anything is graded.
    """

    def __init__(
        self,
        options: AgentTargetOptions,
        tools: Sequence[Tool],
        *,
        model: ChatModel,
        backend: SandboxBackend,
        mark: str,
        furnishing: Furnishing | None = None,
        tasks: TaskSession | None = None,
        services: ToolServices | None = None,
    ) -> None:
        """``furnishing``: what sandboxes are given; ``tasks``: where tests are task folders; ``services``: what tools need besides."""
        self._options = options
        self._services = services
        self._furnishing = furnishing or Furnishing(limits=sandbox_limits(options))
        self._tasks = tasks
        self._agent = load_agent(None if options.agent == ORACLE else options.agent)
        self._toolbox = Toolbox(tools)
        if tools:
            check_tool_choice(options, self._toolbox.names)
        self._model = model
        self._backend = backend
        self._mark = mark
        self._settings = AgentSettings(
            chat_settings(options),
            max_turns=options.max_turns,
            sequential_tools=options.sequential_tools,
            summary=False,
        )

    @property
    def simulated(self) -> bool:
        return self._model.simulated and (self._tasks is None or self._tasks.program is None)

    async def answer(self, context: Context, test: Test, sample: int, workspace: TestWorkspace | None = None) -> Answer:
        return await self.answered(context, test, workspace)

    @asynccontextmanager
    async def conversing(self, context: Context, test: Test) -> AsyncIterator[AgentConversation]:
        """See ``Conversational``: one sandbox for all turns."""
        async with World(context, self._backend, lambda: self._request(context, _item_world(test))) as world:
            yield AgentConversation(self, world)

    async def answered(
        self,
        context: Context,
        test: Test,
        workspace: TestWorkspace | None,
        world: World | None = None,
        *,
        prepared: bool = False,
    ) -> Answer:
        """The answer to a test. ``world``: the sandbox that tools change; without one, it is the answer's own; ``prepared``: whether it has
        been given what belongs into it."""
        if test.task:
            return await self._task_done(context, test)
        if _calls_no_model(self._options):
            raise ItemError(Cause.INVALID_INPUT, "the target does task folders only, as it calls no model")
        if workspace is not None:
            await workspace.begin()
        began = await moment(context)
        item = _item_world(test)
        furnished = self._furnishing.for_item(item, {**test.metadata, "test_id": test.id})
        copied = (
            workspace
            if self._lies_elsewhere(item) and (self._toolbox.changes_world or furnished.needs_sandbox)
            else None
        )
        async with AsyncExitStack() as stack:
            if world is None:
                own = World(context, self._backend, lambda: self._request(context, item))
                world = await stack.enter_async_context(own)
            if copied is not None and not prepared:
                await send(context.scope(SENT), world, copied.path)
            if not prepared:
                await furnished.prepare(context, world, used=self._toolbox.changes_world)
            result = await self._converse(context, test, world)
            collected = await furnished.collect(context, world)
            notices = [] if copied is None else await fetch(context.scope(FETCHED), world, copied.path)
        ended = await moment(context)
        if workspace is not None:
            await workspace.end()
        if self._options.keep_workspaces and Path(context.workspace).is_dir():
            await asyncio.to_thread(keep_folder, Path(context.workspace))
        answer = read_record(_conversation_record(result, ended - began))
        kept = None if collected is None else collected.kept()
        return replace(answer, collected=kept, notices=(*answer.notices, *notices))

    async def _task_done(self, context: Context, test: Test) -> Answer:
        """The work on a task, verified. That its time was over, or that it gave no answer, is no error then."""
        if self._tasks is None:
            raise ItemError(Cause.INVALID_INPUT, "the target can't do task folders")
        tasks, task = self._tasks, Task.from_json(test.task, test.prompt())
        seconds, furnished = tasks.rules.agent_seconds(task), self._furnishing.for_item(ItemWorld())
        began = await moment(context)

        def around() -> SandboxRequest:
            return self._request(context, ItemWorld())

        async with World(context, self._backend, lambda: tasks.request(task, around())) as world:
            trial = tasks.trial(task, context, world, around)
            await trial.prepare()
            await furnished.prepare(context, world)
            if tasks.program is not None:
                result = await tasks.program.run(context, world, task, seconds)
            else:
                result = await self._converse(context, test, world, seconds)
            collected = await furnished.collect(context, world)
            verified = await trial.verify(await trial.collect())
        ended = await moment(context)
        if self._options.keep_workspaces and Path(context.workspace).is_dir():
            await asyncio.to_thread(keep_folder, Path(context.workspace))
        record = _conversation_record(result, ended - began)
        ending = record.pop("error", None)
        kept = None if collected is None else collected.kept()
        answer = replace(read_record(record), verified=verified.to_json(), collected=kept)
        return answer if ending is None else replace(answer, notices=(*answer.notices, ending))

    async def _converse(
        self, context: Context, test: Test, world: World, time_limit: float | None = None
    ) -> AgentResult:
        made = ToolEnvironment(world.sandbox, context.clock, self._options.tool_timeout, services=self._services)
        settings = replace(self._settings, time_limit=time_limit)
        async with made as environment:
            return await self._agent(
                context,
                self._task(test),
                model=self._model,
                tools=self._toolbox,
                environment=environment,
                settings=seeded(settings, self._options, context),
                world=world,
            )

    def _request(self, context: Context, item: ItemWorld) -> SandboxRequest:
        run = self._mark.partition(".")[0]
        return self._furnishing.for_item(item).request(Path(context.workspace), self._mark, world_name(run, context))

    def _lies_elsewhere(self, item: ItemWorld) -> bool:
        """Whether the files of a sandbox lie elsewhere than in the attempt's folder."""
        options = self._options
        in_image = (item.image or options.image) is not None and not options.ignore_images
        return in_image or (options.sandbox != AUTO and kind_named(options.sandbox).driven)

    def _system(self) -> Sequence[str] | None:
        """With what there is to say of the project, unless the person has written a system prompt."""
        own = system_prompt(self._options, with_tools=bool(self._toolbox.names))
        if own is not None or self._options.project is None or not self._toolbox.changes_world:
            return own
        note = world_note(self._options)
        return None if note is None else (BASE_PROMPT, TOOLS_PROMPT, note)

    def _task(self, test: Test) -> AgentTask:
        """The test's conversation: its last message is the task, those before it are history."""
        chat = test.chat()
        *before, last = chat or [{"role": "user", "content": test.prompt()}]
        return AgentTask(
            last["content"],
            system=self._system(),
            ephemeral=self._options.ephemeral_system_prompt,
            prefill=[*(self._options.prefill_messages or ()), *cast(Sequence[Message], before)],  # type: ignore[list-item]
        )


def _task_session(options: AgentTargetOptions, opening: TargetOpening, backend: SandboxBackend) -> TaskSession:
    """What tests that are task folders need."""
    rules = TaskRules.of(options, sandbox_limits(options), **opening.task_limits)
    environ = opening.task_environ
    command = opening.agent_command or options.agent_command
    program = TaskProgram(command, environ) if command is not None or options.agent == ORACLE else None
    return TaskSession(rules, opening.run_folder, environ, program, backend, opening.end_processes)


class AgentConversation:
    """A ``Talk``: an agent in one conversation, whose turns share a sandbox."""

    def __init__(self, agent: AgentTarget, world: World) -> None:
        self._agent = agent
        self._world = world
        self._prepared = False

    @property
    def simulated(self) -> bool:
        return self._agent.simulated

    async def answer(self, context: Context, test: Test, sample: int, workspace: TestWorkspace | None = None) -> Answer:
        prepared, self._prepared = self._prepared, True
        return await self._agent.answered(context, test, workspace, self._world, prepared=prepared)

    def still(self) -> AbstractAsyncContextManager[None]:
        return self._world.still()


def _calls_no_model(options: AgentTargetOptions) -> bool:
    return options.agent == ORACLE or options.agent_command is not None


def _item_world(test: Test) -> ItemWorld:
    """What a test asks of the sandbox in which an agent works on it."""
    own = test.workspace
    return ItemWorld() if own is None else ItemWorld(image=own.image, cpus=own.cpus, memory=own.memory)


def system_prompt(options: AgentTargetOptions, *, with_tools: bool) -> Sequence[str] | None:
    """The paragraphs of a target's system prompt; None for this program's own, which agents with tools have that are given none."""
    own = options.system_prompt
    return None if own is None and with_tools else [own] if own else ()


def _conversation_record(result: AgentResult, seconds: float) -> dict[str, Any]:
    """A conversation as a record, the like of those that commands write."""
    figures = figures_of(result.usage + result.tool_usage, 1000 * seconds)
    record: dict[str, Any] = {
        "output": list(output_of(result.messages)),
        **{name: value for name, value in figures.items() if value is not None},
    }
    if not result.completed:
        record["error"] = f"the conversation ended without an answer: {result.stop_reason}"
        if result.exit_code:
            record["error"] = f"the agent's command ended with exit code {result.exit_code}"
    return record
