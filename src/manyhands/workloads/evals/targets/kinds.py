"""Kinds of targets: their names, their keys, their settings with the values of the environment in place (which hold secrets and are not
recorded), and known agents as commands.

Each known agent's command reads the prompt from a file, asks nobody anything, and leaves its answer in the output file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, dumps
from manyhands.core.settings import shown, suggestion
from manyhands.io.findings import Findings, told
from manyhands.io.keys import Spellings, collect
from manyhands.io.locations import Place
from manyhands.models.factory import OWN_KEY_VARIABLE, is_simulated, key_variable
from manyhands.processes.templates import CommandTemplate, quoted
from manyhands.workloads.evals.targets.command_lines import CommandSettings, check_files_format, parse_command
from manyhands.workloads.evals.targets.keys import (
    AgentCliBlock,
    AgentTargetOptions,
    CliBlock,
    HealthcheckBlock,
    MockBlock,
    ProgramBlock,
    PythonBlock,
    ReplayBlock,
    TargetBlock,
    agent_block,
    azure_block,
    model_block,
)

HEALTHCHECK_FLAG = "--healthcheck"
HEALTHCHECK_SECONDS = 60.0
"""What a healthcheck may take where neither it nor its target says."""
MOCK_RESPONSE = '{"answer":"Mock dry-run response"}'
_HTTP = ("http://", "https://")


@dataclass(frozen=True, slots=True)
class Healthcheck:
    """Looked at once before a command is used: an address that answers with 2xx, or a command that exits with 0."""

    seconds: float
    folder: Path
    url: str | None = None
    template: CommandTemplate | None = None


@dataclass(frozen=True, slots=True)
class CliSettings:
    """A program that answers one test, or all of them (``batching``). ``workspace_template``: the folder that is copied for it."""

    command: CommandSettings
    batching: bool = False
    healthcheck: Healthcheck | None = None
    workspace_template: Path | None = None
    verbose: bool = False


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """A model that is asked over HTTP, or the simulated one. ``given``: the options that the target says something about; ``api_key``: None
    where the endpoint needs none."""

    options: AgentTargetOptions
    given: frozenset[str] = frozenset()
    api_key: SecretStr | None = None


@dataclass(frozen=True, slots=True)
class AgentSettings(ModelSettings):
    """The built-in agent: a model with tools."""


@dataclass(frozen=True, slots=True)
class MockSettings:
    """The same answer to everything. ``least``, ``most``: seconds that it takes."""

    response: str = MOCK_RESPONSE
    least: float = 0.0
    most: float = 0.0


@dataclass(frozen=True, slots=True)
class PythonSettings:
    """A function: ``module:function`` or ``file.py:function``, looked for from ``folder``. ``config``: data for it."""

    function: str
    folder: Path
    config: Mapping[str, Json] = field(default_factory=dict)
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """An output file that is there already."""

    path: Path


TargetSettings = CliSettings | ModelSettings | AgentSettings | MockSettings | PythonSettings | ReplaySettings


@dataclass(frozen=True, slots=True)
class Making:
    """What settings are made with. ``place``: the target's; ``words``: how its keys are written; ``folder``: what its paths start from, the
    eval file's; ``environ``: where keys are looked for that it does not name."""

    kind: str
    place: Place
    words: Spellings
    folder: Path
    eval_file: Path | None
    environ: Mapping[str, str]

    def at(self, key: str) -> Place:
        """The place of a key, by its present name."""
        return self.place.at(self.words.get((key,), key))

    def path(self, named: str | None) -> Path:
        """Absolute, without links; the folder itself for nothing."""
        return self.folder if named is None else (self.folder / Path(named).expanduser()).absolute()


# --- Programs


def cli_settings(block: CliBlock, making: Making) -> CliSettings:
    """Raises UserError for a command with unknown placeholders, or a healthcheck that is none."""
    template = parse_command(block.command, making.at("command"))
    return _program(block, template, making)


def agent_cli_settings(block: AgentCliBlock, making: Making) -> CliSettings:
    """A known agent's command. Raises UserError for arguments with unknown placeholders."""
    line = AGENT_COMMANDS[making.kind].command(block.executable, block.model, block.args)
    return _program(block, parse_command(line, making.at("args")), making)


def _program(block: ProgramBlock, template: CommandTemplate, making: Making) -> CliSettings:
    if block.cwd is not None and block.workspace_template is not None:
        raise making.at("cwd").error("can't be given together with workspace_template")
    folder = making.path(block.cwd)
    if not folder.is_dir():
        raise making.at("cwd").error(f"there is no folder {folder}")
    command = CommandSettings(
        template,
        folder,
        making.eval_file,
        block.timeout_seconds,
        check_files_format(block.files_format, making.at("files_format")),
        block.keep_temp_files,
        own_folder=block.cwd is not None,
    )
    return CliSettings(
        command,
        batching=block.provider_batching,
        healthcheck=_healthcheck(block.healthcheck, command, making),
        workspace_template=_template_folder(block.workspace_template, making),
        verbose=block.verbose,
    )


def _template_folder(named: str | None, making: Making) -> Path | None:
    path = making.path(named)
    if named is not None and not path.is_dir():
        raise making.at("workspace_template").error(f"there is no folder {path}")
    return None if named is None else path


def _healthcheck(value: Json, command: CommandSettings, making: Making) -> Healthcheck | None:
    """``true``: the command itself with ``--healthcheck``; a text: an address, such an argument, or a command; or a mapping."""
    place = making.at("healthcheck")
    seconds = command.seconds or HEALTHCHECK_SECONDS
    if value is None or value is False:
        return None
    if value is True or (isinstance(value, str) and value.startswith("-")):
        flag = HEALTHCHECK_FLAG if value is True else str(value)
        return Healthcheck(seconds, command.folder, template=command.template.with_word(flag))
    if isinstance(value, str):
        value = {"url" if value.startswith(_HTTP) else "command": value}
    return _healthcheck_mapping(value, seconds, command, making, place)


def _healthcheck_mapping(
    value: Any, seconds: float, command: CommandSettings, making: Making, place: Place
) -> Healthcheck:
    findings = Findings()
    found = collect(HealthcheckBlock, value, place, findings)
    if found is None:
        raise told(findings.problems)
    block = found.block
    if (block.url is None) == (block.command is None) or block.type not in (None, "http" if block.url else "command"):
        raise place.error("needs either type http with a url, or type command with a command")
    if block.url is not None and not block.url.startswith(_HTTP):
        raise found.at("url").error(f"must be an address that starts with http:// or https://, not {shown(block.url)}")
    template = None if block.command is None else parse_command(block.command, found.at("command"))
    folder = command.folder if block.cwd is None else making.path(block.cwd)
    return Healthcheck(block.timeout_seconds or seconds, folder, block.url, template)


# --- Models

BASE_URLS = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com/v1",
    "gemini": "https://generativelanguage.googleapis.com/v1beta/openai",
    "openrouter": "https://openrouter.ai/api/v1",
}
"""Where each provider speaks OpenAI chat completions."""
AZURE_KEYS = ("AZURE_OPENAI_API_KEY", "AZURE_API_KEY")
_AZURE_PATH = "/openai/v1"
_FILES = ("mcp_config", "prefill_messages_file", "prices")


def model_settings(block: TargetBlock, making: Making) -> ModelSettings:
    """A model at a provider's endpoint, or at one of the person's own."""
    return ModelSettings(*_options(block, making))


def agent_settings(block: TargetBlock, making: Making) -> AgentSettings:
    """The built-in agent."""
    return AgentSettings(*_options(block, making))


def _options(block: TargetBlock, making: Making) -> tuple[AgentTargetOptions, frozenset[str], SecretStr | None]:
    given = {name: getattr(block, name) for name in block.model_fields_set}
    values = {name: value for name, value in given.items() if name in AgentTargetOptions.model_fields}
    key: SecretStr | None = values.pop("api_key", None)
    if making.kind in BASE_URLS:
        values.setdefault("base_url", BASE_URLS[making.kind])
    elif making.kind == "azure":
        values["base_url"] = _azure(values.get("base_url"), making.place)
    if making.kind != "agent" and "model" not in values:
        raise making.place.error("model is required")
    values |= {name: str(making.path(values[name])) for name in _FILES if values.get(name)}
    try:
        options = AgentTargetOptions.make(values).resolved()
    except UserError as error:
        raise making.place.error(str(error)) from error
    return options, frozenset(values), key or _key(options, making)


def _key(options: AgentTargetOptions, making: Making) -> SecretStr | None:
    """The key that the environment has for an endpoint. Raises UserError if it has none, and the endpoint needs one."""
    variables = AZURE_KEYS if making.kind == "azure" else (key_variable(options.base_url),)
    found = next((value for name in variables if (value := making.environ.get(name))), None)
    needed = variables != (OWN_KEY_VARIABLE,) and not is_simulated(options.model, options.base_url)
    if found is None and needed:
        raise making.place.error(
            f"no key for {options.base_url}: set {' or '.join(variables)}, or say api_key: ${{{{ NAME }}}}"
        )
    return None if found is None else SecretStr(found)


def _azure(endpoint: str | None, place: Place) -> str:
    """The address under which Azure speaks the same as OpenAI does. ``endpoint``: the resource's address or its name."""
    if not endpoint:
        raise place.error("endpoint is required")
    address = endpoint if endpoint.startswith(_HTTP) else f"https://{endpoint}.openai.azure.com"
    address = address.rstrip("/")
    return address if address.endswith(_AZURE_PATH) else address + _AZURE_PATH


# --- The others


def mock_settings(block: MockBlock, making: Making) -> MockSettings:
    """Raises UserError if the least delay is more than the most."""
    answer = block.response
    response = MOCK_RESPONSE if answer is None else answer if isinstance(answer, str) else dumps(answer).decode()
    least = block.delay_min_ms if block.delay_min_ms is not None else block.delay_ms or 0.0
    most = block.delay_max_ms if block.delay_max_ms is not None else max(least, block.delay_ms or 0.0)
    if least > most:
        raise making.at("delay_min_ms").error("must not be more than delay_max_ms")
    return MockSettings(response, least / 1000, most / 1000)


def python_settings(block: PythonBlock, making: Making) -> PythonSettings:
    """Raises UserError for a name that is none of a function."""
    module, colon, name = block.function.rpartition(":")
    if not colon or not module or not name.isidentifier():
        raise making.at("function").error(f"must be module:function or file.py:function, not {shown(block.function)}")
    return PythonSettings(block.function, making.folder, block.config or {}, block.timeout_seconds)


def replay_settings(block: ReplayBlock, making: Making) -> ReplaySettings:
    """Raises UserError if there is no such file."""
    path = making.path(block.path)
    if not path.is_file():
        raise making.at("path").error(f"there is no file {path}")
    return ReplaySettings(path)


@dataclass(frozen=True, slots=True)
class AgentCommand:
    """``line``: the command, in which ``PROGRAM`` and ``OPTIONS`` stand for what the person may choose."""

    program: str
    line: str

    def command(self, executable: str | None, model: str | None, args: Sequence[str]) -> str:
        """The command, for ``sh``."""
        options = [*(["--model", model] if model else []), *args]
        line = self.line.replace(" OPTIONS", "".join(f" {quoted(word)}" for word in options))
        return line.replace("PROGRAM", quoted(executable or self.program), 1)


AGENT_COMMANDS = {
    "claude": AgentCommand("claude", "PROGRAM --print --output-format text OPTIONS < {PROMPT_FILE} > {OUTPUT_FILE}"),
    "codex": AgentCommand(
        "codex",
        "PROGRAM exec --skip-git-repo-check --output-last-message {OUTPUT_FILE} OPTIONS - < {PROMPT_FILE}",
    ),
    "copilot": AgentCommand("copilot", "PROGRAM --no-color OPTIONS --prompt={PROMPT} > {OUTPUT_FILE}"),
    "gemini-cli": AgentCommand("gemini", "PROGRAM OPTIONS < {PROMPT_FILE} > {OUTPUT_FILE}"),
    "pi": AgentCommand("pi", "PROGRAM --print OPTIONS < {PROMPT_FILE} > {OUTPUT_FILE}"),
}
"""By kind. An agent whose command changes is used as ``provider: cli`` with a command of one's own."""


@dataclass(frozen=True, slots=True)
class Kind:
    """``block``: gives the class of its keys; ``settings``: makes what it is set to of such a block."""

    block: Callable[[], type[TargetBlock]]
    settings: Callable[[Any, Making], TargetSettings]


KINDS = {
    "cli": Kind(lambda: CliBlock, cli_settings),
    "agent": Kind(agent_block, agent_settings),
    **dict.fromkeys(
        ("model", "openai", "openrouter", "anthropic", "gemini"),
        Kind(model_block, model_settings),
    ),
    "azure": Kind(azure_block, model_settings),
    "mock": Kind(lambda: MockBlock, mock_settings),
    "python": Kind(lambda: PythonBlock, python_settings),
    "replay": Kind(lambda: ReplayBlock, replay_settings),
    **dict.fromkeys(AGENT_COMMANDS, Kind(lambda: AgentCliBlock, agent_cli_settings)),
}
"""By name, in lower case with hyphens."""
ALIASES = {
    "azure-openai": "azure",
    "google": "gemini",
    "google-gemini": "gemini",
    "openai-compatible": "model",
    "codex-cli": "codex",
    "copilot-sdk": "copilot",
    "copilot-cli": "copilot",
    "pi-coding-agent": "pi",
    "pi-agent-sdk": "pi",
    "claude-code": "claude",
    "claude-sdk": "claude",
    "gemini-code": "gemini-cli",
    "function": "python",
    "callable": "python",
    "built-in": "agent",
}
BEYOND = ("vscode", "vscode-insiders", "bedrock", "vertex")
"""Kinds of other versions of the format that can't be used."""


def kind_of(spelled: Any, place: Place) -> str:
    """The kind that a word stands for. Raises UserError that lists the known ones."""
    if not isinstance(spelled, str) or not spelled.strip():
        raise place.error(f"must be a kind of target, not {shown(spelled)}")
    word = spelled.strip().lower().replace("_", "-")
    name = ALIASES.get(word, word)
    if name in KINDS:
        return name
    what = "is a kind of target that is not supported" if name in BEYOND else "is no kind of target"
    hint = "" if name in BEYOND else suggestion(word, [*KINDS, *ALIASES])
    raise place.error(f"{shown(spelled)} {what}{hint}; known: {', '.join(KINDS)}")
