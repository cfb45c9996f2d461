"""Models as targets, and the built-in agent, which is a model with tools."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import SecretStr

from manyhands.agents.registry import load_agent
from manyhands.agents.run_settings import NeverCalled, chat_settings
from manyhands.agents.toolbox import RunTools, mcp_record
from manyhands.core.errors import UserError
from manyhands.graders.protocol import Judge
from manyhands.io.locations import Location
from manyhands.models.factory import OWN_KEY_VARIABLE, is_simulated, key_variable
from manyhands.sandboxes.protocol import SandboxBackend
from manyhands.sandboxes.selection import PacedBackend, choose_backend
from manyhands.workloads.evals.targets.keys import TargetBlock
from manyhands.workloads.evals.targets.kinds.agent import AgentTarget
from manyhands.workloads.evals.targets.kinds.model_keys import AgentTargetOptions
from manyhands.workloads.evals.targets.kinds.protocol import Checking, Making, OpenModel, TargetOpening, TargetSettings
from manyhands.workloads.evals.targets.live import LiveTarget

BASE_URLS = {
    "openai": "https://api.openai.com/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "anthropic": "https://api.anthropic.com/v1",
    "gemini": "https://generativelanguage.googleapis.com/v1beta/openai",
}
"""Where each provider speaks OpenAI chat completions, by kind. A line here is a kind."""
AZURE_KEYS = ("AZURE_OPENAI_API_KEY", "AZURE_API_KEY")
_HTTP = ("http://", "https://")
_AZURE_PATH = "/openai/v1"
_FILES = ("mcp_config", "prefill_messages_file", "prices")


@dataclass(frozen=True, slots=True)
class ModelTargetSettings(TargetSettings):
    """A model that is asked over HTTP, or the simulated one."""

    options: AgentTargetOptions
    api_key: SecretStr | None = None
    """None where the endpoint needs none."""

    @property
    def toolsets(self) -> tuple[str, ...]:
        """What it may use of tools."""
        return ()

    def judge(self, name: str, open_model: OpenModel) -> Judge:
        return Judge(name, open_model(self.options, self.api_key), chat_settings(self.options))

    async def open(self, opening: TargetOpening) -> LiveTarget:
        options = self.options
        offer = await opening.stack.enter_async_context(RunTools.opened(await mcp_record(options.mcp_config)))
        tools = offer.tools(self.toolsets)
        backend: SandboxBackend = NeverCalled()
        if any(tool.changes_world for tool in tools):
            backend = PacedBackend(choose_backend(options.sandbox, asks_for_image=False))
        model = opening.model(options, self.api_key)
        agent = AgentTarget(options, tools, model=model, backend=backend, mark=opening.mark)
        return agent if (options.temperature or 0) > 0 else opening.cached(agent, {})


@dataclass(frozen=True, slots=True)
class AgentTargetSettings(ModelTargetSettings):
    """The built-in agent: a model with tools."""

    @property
    def toolsets(self) -> tuple[str, ...]:
        return tuple(self.options.toolsets or ())

    def check(self, checking: Checking) -> None:
        """Raises UserError for an unknown agent or toolset, and for a sandbox that can't be used here."""
        options = self.options
        try:
            load_agent(options.agent)
            if options.mcp_config is not None:
                return  # its tools are known when its servers run
            tools = RunTools.recorded(None).tools(self.toolsets)
            if any(tool.changes_world for tool in tools):
                choose_backend(options.sandbox, asks_for_image=False)
        except UserError as error:
            raise checking.location.error(str(error)) from None


def model_settings(block: TargetBlock, making: Making) -> ModelTargetSettings:
    """A model at a provider's endpoint, or at one of the person's own."""
    return ModelTargetSettings(*_options(block, making))


def agent_settings(block: TargetBlock, making: Making) -> AgentTargetSettings:
    """The built-in agent."""
    return AgentTargetSettings(*_options(block, making))


def _options(block: TargetBlock, making: Making) -> tuple[AgentTargetOptions, SecretStr | None]:
    given = {name: getattr(block, name) for name in block.model_fields_set}
    values = {name: value for name, value in given.items() if name in AgentTargetOptions.model_fields}
    key: SecretStr | None = values.pop("api_key", None)
    if making.kind in BASE_URLS:
        values.setdefault("base_url", BASE_URLS[making.kind])
    elif making.kind == "azure":
        values["base_url"] = _azure(values.get("base_url"), making.location)
    if making.kind != "agent" and "model" not in values:
        raise making.location.error("model is required")
    values |= {name: str(making.path(values[name])) for name in _FILES if values.get(name)}
    try:
        options = AgentTargetOptions.make(values).resolved()
    except UserError as error:
        raise making.location.error(str(error)) from error
    return options, key or _key(options, making)


def _key(options: AgentTargetOptions, making: Making) -> SecretStr | None:
    """The API key of an endpoint from the environment. Raises UserError if there is none and the endpoint needs one."""
    variables = AZURE_KEYS if making.kind == "azure" else (key_variable(options.base_url),)
    found = next((value for name in variables if (value := making.environ.get(name))), None)
    needed = variables != (OWN_KEY_VARIABLE,) and not is_simulated(options.model, options.base_url)
    if found is None and needed:
        raise making.location.error(
            f"no key for {options.base_url}: set {' or '.join(variables)}, or say api_key: ${{{{ NAME }}}}"
        )
    return None if found is None else SecretStr(found)


def _azure(endpoint: str | None, location: Location) -> str:
    """The address at which Azure speaks OpenAI's protocol. ``endpoint``: the resource's address or its name."""
    if not endpoint:
        raise location.error("endpoint is required")
    address = endpoint if endpoint.startswith(_HTTP) else f"https://{endpoint}.openai.azure.com"
    address = address.rstrip("/")
    return address if address.endswith(_AZURE_PATH) else address + _AZURE_PATH
