"""The keys of targets, by kind."""

from __future__ import annotations

import shlex
from functools import lru_cache
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, WithJsonSchema, create_model

from manyhands.agents.options import AgentOptions
from manyhands.core.settings import Flag, OptionalList, Text, number, optional_number, optional_whole, setting, whole
from manyhands.io.keys import key
from manyhands.models.openai.errors import LEAST_STATUS, MOST_STATUS, Retries
from manyhands.runs.options import CONVERSATION, MODEL, TOOLS
from manyhands.workloads.evals.evalfile.keys import DEPRECATED, REFERENCE, Block, Mapped


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(shlex.split(value))
    if not isinstance(value, (list, tuple)) or not all(isinstance(word, str) for word in value):
        raise ValueError("must be a list of words, or one text")
    return tuple(value)


def _statuses(value: Any) -> tuple[int, ...]:
    wrong = f"must be a list of HTTP statuses, {LEAST_STATUS} to {MOST_STATUS}"
    given = value.split(",") if isinstance(value, str) else value  # a variable's value is a text
    if not isinstance(given, (list, tuple)) or any(isinstance(each, bool) for each in given):
        raise ValueError(wrong)
    texts = [str(each).strip() for each in given]
    if not all(text.isascii() and text.isdigit() and LEAST_STATUS <= int(text) <= MOST_STATUS for text in texts):
        raise ValueError(wrong)
    return tuple(map(int, texts))


_COMMAND = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
Seconds = Annotated[float, number(above=0)]
Milliseconds = Annotated[float, number(least=0)]
Statuses = Annotated[
    tuple[int, ...],
    BeforeValidator(_statuses),
    WithJsonSchema({"type": "array", "items": {"type": "integer", "minimum": LEAST_STATUS, "maximum": MOST_STATUS}}),
]
RETRYING = (
    "max_retries",
    "retry_initial_delay_ms",
    "retry_backoff_factor",
    "retry_max_delay_ms",
    "retry_status_codes",
)
"""Settings of models that say how failed calls are tried again."""
Command = Annotated[Any, WithJsonSchema(_COMMAND)]
"""What ``placeholders`` checks."""
Words = Annotated[tuple[str, ...], BeforeValidator(_words), WithJsonSchema(_COMMAND)]


class TargetBlock(Block):
    """Keys of targets of every kind."""

    spellings: ClassVar = {"grader_target": "judge_target", "batch_requests": "provider_batching"}

    name: Text | None = key(None, "What it is called. (In a mapping of targets, its key.)")
    provider: Text = key(..., "The kind of target.")
    judge_target: Text | None = key(None, "The target that judges ask.")
    workers: Annotated[int, whole(1, 10_000)] | None = key(None, "Tests that it answers at once.")
    provider_batching: Flag = key(False, "Whether one invocation answers all tests.")


class HealthcheckBlock(Block):
    """How to find out whether a command can do its work."""

    spellings: ClassVar = {"command_template": "command"}

    type: Text | None = key(None, "http or command; without it, what is given tells.")
    url: Text | None = key(None, "Address that answers with 2xx.")
    command: Command = key(None, "Command that exits with 0.")
    cwd: Text | None = key(None, "Where it starts; relative to the eval file.")
    timeout_seconds: Seconds | None = key(None, "Seconds that it may take.")


class ProgramBlock(TargetBlock):
    """Keys of targets that are programs."""

    spellings: ClassVar = {
        **TargetBlock.spellings,
        "attachments_format": "files_format",
        "cli_verbose": "verbose",
        "keep_output_files": "keep_temp_files",
    }

    cwd: Text | None = key(None, "Where it starts; relative to the eval file, whose folder it is without this.")
    workspace_template: Text | None = key(None, "Folder that is copied for it to work in; relative to the eval file.")
    timeout_seconds: Seconds | None = key(None, "Seconds for one invocation; no limit without it.")
    files_format: Text = key("{path}", "How each file stands in {FILES}: with {path} and {basename}.")
    healthcheck: Annotated[
        Any, WithJsonSchema({"anyOf": [{REFERENCE: "HealthcheckBlock"}, {"type": ["string", "boolean"]}]})
    ] = key(None, "Looked at once before anything else; true: the command itself, with --healthcheck behind it.")
    verbose: Flag = key(False, "Show the commands that are run.")
    keep_temp_files: Flag = key(False, "Keep its prompt and output files.")


class CliBlock(ProgramBlock):
    """A command of the person's own."""

    spellings: ClassVar = {**ProgramBlock.spellings, "command_template": "command"}

    command: Command = key(
        ..., "The command: a line for sh, or a list of words; {PLACEHOLDERS} stand for what differs."
    )


class AgentCliBlock(ProgramBlock):
    """A known agent's command."""

    spellings: ClassVar = {
        **ProgramBlock.spellings,
        "command": "executable",
        "binary": "executable",
        "arguments": "args",
    }

    executable: Text | None = key(None, "The program, if it is not on the path by its usual name.")
    model: Text | None = key(None, "The model that it asks.")
    args: Words = key((), "More arguments for it.")


class MockBlock(TargetBlock):
    """Answers the same to everything."""

    response: Any = key(None, "The answer: a text, or anything else, which is given as JSON.")
    delay_ms: Milliseconds | None = key(None, "Milliseconds that it takes.")
    delay_min_ms: Milliseconds | None = key(None, "The least that it takes.")
    delay_max_ms: Milliseconds | None = key(None, "The most that it takes.")


class PythonBlock(TargetBlock):
    """A Python function."""

    spellings: ClassVar = {**TargetBlock.spellings, "callable": "function"}

    function: Text = key(..., "module:function, or file.py:function; looked for from the eval file's folder.")
    config: Mapped | None = key(None, "Data for it.")
    timeout_seconds: Seconds | None = key(None, "Seconds for one call.")


class ReplayBlock(TargetBlock):
    """Answers that are in a file already."""

    spellings: ClassVar = {**TargetBlock.spellings, "file": "path", "output_file": "path"}

    path: Text = key(..., "The output file: JSON Lines with a record for each test; relative to the eval file.")


class AgentTargetOptions(AgentOptions):
    """What can be set for the built-in agent, or a model, as a target."""

    toolsets: OptionalList = setting(None, "Toolsets that the agent may use.", group=TOOLS)
    system_prompt: str | None = setting(None, "The system prompt.", group=CONVERSATION)
    max_retries: Annotated[int | None, optional_whole(0)] = setting(
        None, "How often a failed call is tried again; 3 times without it.", group=MODEL
    )
    retry_initial_delay_ms: Annotated[float | None, optional_number(0)] = setting(
        None, "Milliseconds before a failed call is tried again for the first time; 1000 without it.", group=MODEL
    )
    retry_backoff_factor: Annotated[float | None, optional_number(1)] = setting(
        None, "What each further delay is longer by; 2 without it.", group=MODEL
    )
    retry_max_delay_ms: Annotated[float | None, optional_number(0)] = setting(
        None, "Milliseconds of such a delay at most; 60000 without it.", group=MODEL
    )
    retry_status_codes: Statuses | None = setting(
        None,
        "The HTTP statuses that are tried again, and no others; without it all that may pass by themselves: 500 and above, 408, 409, 425, "
        "429.",
        group=MODEL,
    )

    def retries(self) -> Retries | None:
        """How failed calls are tried again, as far as it is said; None: as usual."""
        said = {name: value for name in RETRYING if (value := getattr(self, name)) is not None}
        if not said:
            return None
        usual = Retries()
        return Retries(
            tries=usual.tries if self.max_retries is None else self.max_retries + 1,
            delay=said.get("retry_initial_delay_ms", 1000 * usual.delay) / 1000,
            longest_delay=said.get("retry_max_delay_ms", 1000 * usual.longest_delay) / 1000,
            factor=said.get("retry_backoff_factor", usual.factor),
            statuses=None if self.retry_status_codes is None else frozenset(self.retry_status_codes),
        )


_GROUPS = frozenset((MODEL, CONVERSATION, TOOLS))
_MORE = ("call_timeout", "tool_timeout", "prices")
_NOT_ASKED = frozenset(("max_turns", "prefill_messages_file", "prefill_messages"))
MODEL_SPELLINGS = {
    "deployment": "model",
    "deployment_name": "model",
    "endpoint": "base_url",
    "max_output_tokens": "max_tokens",
    "timeout_seconds": "call_timeout",
}


@lru_cache(maxsize=1)
def agent_block() -> type[TargetBlock]:
    """Keys of the built-in agent: those of ``AgentTargetOptions`` that are not about a run as a whole."""
    names = [name for name in AgentTargetOptions.in_order() if _is_targets(name)]
    return _block("AgentBlock", "The built-in agent.", names, {})


@lru_cache(maxsize=1)
def model_block() -> type[TargetBlock]:
    """Keys of models: of those of agents, the ones without a say in tools."""
    names = [
        name
        for name in AgentTargetOptions.in_order()
        if _is_targets(name)
        and name not in _NOT_ASKED
        and name != "tool_timeout"
        and AgentTargetOptions.about(name).group != TOOLS
    ]
    return _block("ModelBlock", "A model.", names, MODEL_SPELLINGS)


@lru_cache(maxsize=1)
def azure_block() -> type[TargetBlock]:
    """Keys of models on Azure, whose endpoint may be the mere name of a resource."""
    about: Any = (str | None, key(None, "The resource's address, or its name."))
    version: Any = (
        str | None,
        key(None, "Not needed: its version 1 interface has none.", json_schema_extra=DEPRECATED),
    )
    block = create_model(
        "AzureBlock", __base__=model_block(), __doc__="A model on Azure.", base_url=about, version=version
    )
    block.spellings = {**model_block().spellings, "api_version": "version", "resource": "base_url"}
    return block


def _is_targets(name: str) -> bool:
    about = AgentTargetOptions.about(name)
    return name in _MORE or (about.group in _GROUPS and (about.typed or name == "reasoning_config"))


def _block(name: str, doc: str, names: list[str], spellings: dict[str, str]) -> type[TargetBlock]:
    fields: dict[str, Any] = {
        each: (AgentTargetOptions.model_fields[each].annotation, AgentTargetOptions.model_fields[each])
        for each in names
    }
    block = create_model(name, __base__=TargetBlock, __doc__=doc, **fields)
    block.spellings = {**TargetBlock.spellings, **spellings}
    return block
