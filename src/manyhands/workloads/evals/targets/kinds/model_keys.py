"""Keys of models and of the built-in agent as targets, made of the settings that they have everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, WithJsonSchema, create_model

from manyhands.agents.options import ConversationSettings
from manyhands.agents.worlds.settings import Variables, WorldSettings
from manyhands.core.settings import (
    Checked,
    OptionalList,
    OptionalText,
    Secret,
    Text,
    bare_type,
    optional_number,
    optional_whole,
    setting,
)
from manyhands.core.settings import Field as SettingField
from manyhands.io.keys import key
from manyhands.models.headers import Header
from manyhands.models.openai.errors import MAX_STATUS, MIN_STATUS, Retries
from manyhands.models.settings import ModelSettings
from manyhands.runs.options import CONVERSATION, MODEL, SANDBOX, SERVICES, TOOLS, WORLD, PriceSettings, RunOptions
from manyhands.tools.settings import ToolSettings
from manyhands.workloads.evals.evalfile.keys import DEPRECATED
from manyhands.workloads.evals.targets.keys import TargetBlock


def _statuses(value: Any) -> tuple[int, ...]:
    wrong = f"must be a list of HTTP statuses, {MIN_STATUS} to {MAX_STATUS}"
    given = value.split(",") if isinstance(value, str) else value  # a variable's value is a text
    if not isinstance(given, (list, tuple)) or any(isinstance(each, bool) for each in given):
        raise ValueError(wrong)
    texts = [str(each).strip() for each in given]
    if not all(text.isascii() and text.isdigit() and MIN_STATUS <= int(text) <= MAX_STATUS for text in texts):
        raise ValueError(wrong)
    return tuple(map(int, texts))


Statuses = Annotated[
    tuple[int, ...],
    Checked(_statuses),
    WithJsonSchema({"type": "array", "items": {"type": "integer", "minimum": MIN_STATUS, "maximum": MAX_STATUS}}),
]
RETRYING = (
    "max_retries",
    "retry_initial_delay_ms",
    "retry_backoff_factor",
    "retry_max_delay_ms",
    "retry_status_codes",
)
"""Settings of models that say how failed calls are retried."""


class AgentTargetOptions(ConversationSettings, ModelSettings, WorldSettings, ToolSettings, PriceSettings):
    """What can be set for the built-in agent, or a model, as a target."""

    headings: ClassVar[tuple[str, ...]] = RunOptions.headings

    container_env: Variables = setting(  # not recorded, so that it may hold secrets
        None,
        "Environment variables of commands in the sandbox: a mapping, or a list of NAME=value; NAME alone has the value that it has in "
        "the environment of manyhands.",
        group=WORLD,
        recorded=False,
        repeated=True,
    )

    agent_command: OptionalText = setting(
        None,
        "Command that does each task folder, inside its environment, in place of the built-in agent; it finds the instruction on standard "
        "input, in {instruction} and in the file {instruction_file}.",
        group=CONVERSATION,
        value="COMMAND",
    )
    toolsets: OptionalList = setting(None, "Toolsets that the agent may use.", group=TOOLS)
    system_prompt: str | None = setting(None, "The system prompt.", group=CONVERSATION)
    max_retries: Annotated[int | None, optional_whole(0)] = setting(
        None, "Maximum retries of a failed call (default: 3).", group=MODEL
    )
    retry_initial_delay_ms: Annotated[float | None, optional_number(0)] = setting(
        None, "Milliseconds before the first retry of a call (default: 1000).", group=MODEL
    )
    retry_backoff_factor: Annotated[float | None, optional_number(1)] = setting(
        None, "Factor by which each further delay grows (default: 2).", group=MODEL
    )
    retry_max_delay_ms: Annotated[float | None, optional_number(0)] = setting(
        None, "Maximum delay between retries in milliseconds (default: 60000).", group=MODEL
    )
    retry_status_codes: Statuses | None = setting(
        None,
        "HTTP statuses after which a call is retried (default: 500 and above, 408, 409, 425, 429).",
        group=MODEL,
    )

    def retries(self) -> Retries | None:
        """How failed calls are retried, as far as it is said; None: as usual."""
        said = {name: value for name in RETRYING if (value := getattr(self, name)) is not None}
        if not said:
            return None
        usual = Retries()
        return Retries(
            tries=usual.tries if self.max_retries is None else self.max_retries + 1,
            delay=said.get("retry_initial_delay_ms", 1000 * usual.delay) / 1000,
            max_delay=said.get("retry_max_delay_ms", 1000 * usual.max_delay) / 1000,
            factor=said.get("retry_backoff_factor", usual.factor),
            statuses=None if self.retry_status_codes is None else frozenset(self.retry_status_codes),
        )


_SECRET_TEXT = {"type": "string", "format": "password", "writeOnly": True}
_PASSWORD = WithJsonSchema(
    {"anyOf": [_SECRET_TEXT, {"type": "array", "items": _SECRET_TEXT, "minItems": 1}, {"type": "null"}]}
)
_GROUPS = frozenset((MODEL, CONVERSATION, TOOLS, SERVICES, SANDBOX, WORLD))
_MORE = ("call_timeout", "tool_timeout", "prices")
_NOT_ASKED = frozenset(("agent", "agent_command", "max_turns", "prefill_messages_file", "prefill_messages"))
_ONE_OR_MORE = [{"type": "array", "items": {"type": "string"}}, {"type": "string"}, {"type": "null"}]
_TEXTS = WithJsonSchema({"anyOf": _ONE_OR_MORE})
_HEADERS = WithJsonSchema({"anyOf": [{"type": "object", "additionalProperties": {"type": "string"}}, *_ONE_OR_MORE]})
_VALUES = {"anyOf": [{"type": "string"}, {"type": "null"}]}
_MAPPINGS = WithJsonSchema({"anyOf": [{"type": "object", "additionalProperties": _VALUES}, *_ONE_OR_MORE]})
_SHAPES = {tuple[Secret, ...]: _PASSWORD, tuple[Header, ...]: _HEADERS, tuple[str, ...]: _TEXTS}
"""How settings that may be repeated are written, by their types."""
AGENT_SPELLINGS = {"env": "container_env", "headers": "header", "workspace_template": "workspace"}
MODEL_SPELLINGS = {
    "headers": "header",
    "deployment": "model",
    "deployment_name": "model",
    "endpoint": "base_url",
    "max_output_tokens": "max_tokens",
    "timeout_seconds": "call_timeout",
    "variant": "model",
}


@lru_cache(maxsize=1)
def agent_block() -> type[TargetBlock]:
    """Keys of the built-in agent."""
    names = [name for name in AgentTargetOptions.in_order() if _is_targets(name)]
    return _block("AgentBlock", "The built-in agent.", names, AGENT_SPELLINGS)


@lru_cache(maxsize=1)
def model_block() -> type[TargetBlock]:
    """Keys of models: those of agents without tools."""
    names = [
        name
        for name in AgentTargetOptions.in_order()
        if _is_targets(name)
        and name not in _NOT_ASKED
        and name != "tool_timeout"
        and AgentTargetOptions.about(name).group not in (TOOLS, WORLD)
    ]
    api_format: Any = (
        Literal["chat", "responses"] | None,
        key(None, "The interface: chat or responses. Models are called over chat completions either way."),
    )
    budget: Any = (
        Annotated[int | None, optional_whole(1)],
        key(None, "Tokens that a model of Anthropic may think, sent as its `thinking`."),
    )
    more = {"api_format": api_format, "thinking_budget": budget}
    return _block("ModelBlock", "A model.", names, MODEL_SPELLINGS, more)


@lru_cache(maxsize=1)
def built_in_block() -> type[TargetBlock]:
    """Keys of AgentV's own judge, a model that is named with its provider."""
    model: Any = (
        Text,
        key(..., "The model, with its provider: `openai:gpt-5-mini`; also anthropic, azure, google, openrouter."),
    )
    block = create_model("BuiltInBlock", __base__=model_block(), __doc__="AgentV's own judge.", model=model)
    block.spellings = model_block().spellings
    return block


@lru_cache(maxsize=1)
def azure_block() -> type[TargetBlock]:
    """Keys of models on Azure, whose endpoint may be just the name of a resource."""
    about: Any = (str | None, key(None, "Address of the resource, or its name."))
    version: Any = (
        str | None,
        key(None, "Not needed: version 1 of the interface has none.", json_schema_extra=DEPRECATED),
    )
    block = create_model(
        "AzureBlock", __base__=model_block(), __doc__="A model on Azure.", base_url=about, version=version
    )
    block.spellings = {
        **model_block().spellings,
        "api_version": "version",
        "resource": "base_url",
        "resource_name": "base_url",
    }
    return block


def _is_targets(name: str) -> bool:
    about = AgentTargetOptions.about(name)
    return name in _MORE or (about.group in _GROUPS and (about.typed or name == "reasoning_config"))


def _block(
    name: str, doc: str, names: list[str], spellings: dict[str, str], more: Mapping[str, Any] = MappingProxyType({})
) -> type[TargetBlock]:
    """``more``: fields besides those settings."""
    fields: dict[str, Any] = {**{each: _field(each) for each in names}, **more}
    block = create_model(name, __base__=TargetBlock, __doc__=doc, **fields)
    block.spellings = {**TargetBlock.spellings, **spellings}
    return block


def _field(name: str) -> tuple[Any, Any]:
    """A setting as a field of a pydantic model."""
    setting: SettingField = AgentTargetOptions.fields[name]
    field = Field(setting.default, description=setting.description, json_schema_extra=asdict(setting.about))
    shape = _SHAPES.get(bare_type(setting.annotation)) if setting.about.repeated else None
    if name == "container_env":
        shape = _MAPPINGS
    return (setting.annotation if shape is None else Annotated[setting.annotation, shape]), field
