"""Known agents as targets: programs whose commands are ready-made, and whose events say which tools they called and what it cost.

A command reads the prompt from a file (or has it as an argument, where the program reads none), asks nobody anything, and prints to the
output file. What AgentV runs by a program's library is run by the program here: the kinds are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from manyhands.agents.program_messages import read_launch
from manyhands.core.jsonio import object_or_list
from manyhands.core.redaction import protect
from manyhands.core.settings import Flag, Text, number, whole
from manyhands.core.text import expand_home
from manyhands.core.usage import Usage
from manyhands.io.keys import key
from manyhands.models.pricing import PriceTable
from manyhands.processes.templates import quoted
from manyhands.workloads.evals.evalfile.keys import Mapped
from manyhands.workloads.evals.targets.answers import Answer, read_record
from manyhands.workloads.evals.targets.command import Read, parse_command, read_answer, text_of
from manyhands.workloads.evals.targets.keys import IDLE, TargetBlock, Words
from manyhands.workloads.evals.targets.kinds.programs import CliTargetSettings, ProgramBlock, program_settings
from manyhands.workloads.evals.targets.kinds.protocol import Making


class AgentCliBlock(ProgramBlock):
    """A known agent's command."""

    heading: ClassVar[str] = "Known agents"
    spellings: ClassVar = {
        **ProgramBlock.spellings,
        "command": "executable",
        "binary": "executable",
        "cli_path": "executable",
        "arguments": "args",
        "log_directory": "log_dir",
    }
    idle: ClassVar = IDLE | {"stream_log"}

    executable: Text | None = key(None, "The program (default: its usual name, looked for on the PATH).")
    model: Text | None = key(None, "Model of the agent.")
    args: Words = key((), "Further arguments.")
    system_prompt: Text | None = key(None, "Text before each prompt.")
    log_dir: Text | None = key(
        None, "Folder for what it prints, a file for each answer, relative to the eval file (default: not kept)."
    )


class ClaudeBlock(AgentCliBlock):
    """Claude Code's command."""

    heading: ClassVar[str] = "`claude`"

    max_turns: Annotated[int, whole(1)] | None = key(None, "Maximum turns of the agent.")
    max_budget_usd: Annotated[float, number(above=0)] | None = key(None, "US dollars that the agent itself keeps to.")
    bypass_permissions: Flag = key(
        False,
        "Let it use all tools without asking (--dangerously-skip-permissions), on this machine; false: as it is configured.",
    )


class MirrorBlock(ClaudeBlock):
    """A variant of Claude Code that cc-mirror installed."""

    heading: ClassVar[str] = "`cc-mirror`"

    variant: Text | None = key(None, "The variant, below ~/.cc-mirror (default: the target's name).")


class CodexBlock(AgentCliBlock):
    """Codex' command."""

    heading: ClassVar[str] = "`codex`"
    spellings: ClassVar = {**AgentCliBlock.spellings, "reasoning_effort": "model_reasoning_effort"}

    model_reasoning_effort: Literal["minimal", "low", "medium", "high", "xhigh"] | None = key(
        None, "Reasoning effort of the model: minimal, low, medium, high or xhigh."
    )


class CopilotBlock(AgentCliBlock):
    """GitHub Copilot's command."""

    heading: ClassVar[str] = "`copilot`"
    idle: ClassVar = AgentCliBlock.idle | {"cli_url"}

    github_token: Text | None = key(None, "Token of GitHub: a variable of the environment.")
    subprovider: Text | None = key(None, "Kind of an endpoint of one's own: openai, azure or anthropic.")
    base_url: Text | None = key(None, "Address of an endpoint of one's own.")
    api_key: Text | None = key(None, "Key of that endpoint: a variable of the environment.")
    bearer_token: Text | None = key(None, "Token of that endpoint instead of a key: a variable of the environment.")
    api_version: Text | None = key(None, "Version of that endpoint's interface, on Azure.")
    api_format: Text | None = key(None, "How that endpoint is spoken to, as the program calls it.")
    byok: Mapped | None = key(None, "The same in one mapping: type, base_url, api_key, bearer_token, api_version.")


class PiBlock(AgentCliBlock):
    """Pi's command."""

    heading: ClassVar[str] = "`pi`"
    spellings: ClassVar = {
        **AgentCliBlock.spellings,
        "endpoint": "base_url",
        **{f"pi_{name}": name for name in ("model", "tools", "thinking")},
    }

    subprovider: Text | None = key(None, "Provider of its model.")
    base_url: Text | None = key(
        None, "Address of the provider, where it takes one: of Azure, the address or the resource's name."
    )
    api_key: Text | None = key(None, "Key of the provider: a variable of the environment.")
    tools: Text | None = key(None, "Tools that it may use, with commas between.")
    thinking: Text | None = key(None, "How much it thinks: off, minimal, low, medium, high or xhigh.")


# --- Their commands


@dataclass(frozen=True, slots=True)
class AgentCommand:
    """The command of a known agent."""

    program: str
    """Its usual name."""
    line: str
    """The command, in which ``PROGRAM`` and ``OPTIONS`` stand for what the person may choose."""
    block: type[AgentCliBlock] = AgentCliBlock
    """The class of its keys."""
    options: Callable[[Any], Sequence[str]] = lambda block: ()
    """The words for keys that only it has."""
    environment: Callable[[Any], Mapping[str, str | None]] = lambda block: {}
    """What its keys add to its environment."""

    def command(self, block: AgentCliBlock, executable: str | None = None) -> str:
        """The command, for ``sh``. ``executable``: the program, if the block names none."""
        options = [*self.options(block), *(["--model", block.model] if block.model else []), *block.args]
        line = self.line.replace(" OPTIONS", "".join(f" {quoted(word)}" for word in options))
        return line.replace("PROGRAM", quoted(block.executable or executable or self.program), 1)


def _claude_options(block: ClaudeBlock) -> list[str]:
    words = ["--dangerously-skip-permissions"] if block.bypass_permissions else []
    words += ["--max-turns", str(block.max_turns)] if block.max_turns is not None else []
    return words + (["--max-budget-usd", f"{block.max_budget_usd:g}"] if block.max_budget_usd is not None else [])


def _no_session(block: AgentCliBlock) -> dict[str, str]:
    """So that it also starts within a session of Claude Code."""
    return {"CLAUDECODE": "", "CLAUDE_CODE_ENTRYPOINT": ""}


def _codex_options(block: CodexBlock) -> list[str]:
    effort = block.model_reasoning_effort
    return [] if effort is None else ["--config", f"model_reasoning_effort={effort}"]


def _copilot_environment(block: CopilotBlock) -> dict[str, str | None]:
    own = block.byok or {}
    given = {name: getattr(block, name) or own.get(name) for name in ("base_url", "api_key", "bearer_token")}
    if not given["base_url"]:
        return {"GH_TOKEN": block.github_token}
    beginning = "COPILOT_PROVIDER_"
    key_name = "BEARER_TOKEN" if given["bearer_token"] else "API_KEY"
    return {
        "GH_TOKEN": block.github_token,
        f"{beginning}BASE_URL": given["base_url"],
        f"{beginning}TYPE": block.subprovider or own.get("type"),
        f"{beginning}{key_name}": given["bearer_token"] or given["api_key"],
        f"{beginning}WIRE_API": block.api_format or own.get("api_format"),
        f"{beginning}AZURE_API_VERSION": block.api_version or own.get("api_version"),
    }


_PI_KEYS = {
    **dict.fromkeys(("google", "gemini"), "GEMINI_API_KEY"),
    **{name: f"{name.upper()}_API_KEY" for name in ("anthropic", "openai", "groq", "xai", "openrouter")},
    "azure": "AZURE_OPENAI_API_KEY",
}
_AZURE = "azure-openai-responses"
"""What Pi calls Azure."""


def _pi_options(block: PiBlock) -> list[str]:
    provider = None if block.subprovider is None else _AZURE if _is_azure(block) else block.subprovider
    given = {"--provider": provider, "--tools": block.tools, "--thinking": block.thinking}
    return [word for option, value in given.items() if value for word in (option, value)]


def _pi_environment(block: PiBlock) -> dict[str, str | None]:
    """Keys go by the environment, as everybody can read the arguments of a process."""
    found: dict[str, str | None] = {}
    provider = (block.subprovider or "google").lower()
    if provider in _PI_KEYS:
        found[_PI_KEYS[provider]] = block.api_key
    if _is_azure(block) and block.base_url:
        full = block.base_url.startswith(("http://", "https://"))
        found["AZURE_OPENAI_BASE_URL" if full else "AZURE_OPENAI_RESOURCE_NAME"] = block.base_url
    elif block.base_url:
        found[f"{provider.upper()}_BASE_URL"] = block.base_url
    return found


def _is_azure(block: PiBlock) -> bool:
    return (block.subprovider or "").lower() == "azure"


_CLAUDE = "PROGRAM --print --output-format stream-json --verbose OPTIONS < {PROMPT_FILE} > {OUTPUT_FILE}"
AGENT_COMMANDS = {
    "claude": AgentCommand("claude", _CLAUDE, ClaudeBlock, _claude_options, _no_session),
    "cc-mirror": AgentCommand("claude", _CLAUDE, MirrorBlock, _claude_options, _no_session),
    "codex": AgentCommand(
        "codex",
        "PROGRAM --ask-for-approval never exec --json --color never --skip-git-repo-check OPTIONS - < {PROMPT_FILE} > {OUTPUT_FILE}",
        CodexBlock,
        _codex_options,
    ),
    "copilot": AgentCommand(
        "copilot",
        "PROGRAM --silent --allow-all-tools --no-color OPTIONS --prompt={PROMPT} > {OUTPUT_FILE}",
        CopilotBlock,
        environment=_copilot_environment,
    ),
    "gemini-cli": AgentCommand("gemini", "PROGRAM OPTIONS < {PROMPT_FILE} > {OUTPUT_FILE}"),
    "pi": AgentCommand(
        "pi",
        "PROGRAM --print --mode json --no-session OPTIONS < {PROMPT_FILE} > {OUTPUT_FILE}",
        PiBlock,
        _pi_options,
        _pi_environment,
    ),
}
"""By kind. An agent whose command changes is used as ``provider: cli`` with a command of one's own."""


def agent_cli_settings(block: AgentCliBlock, making: Making) -> CliTargetSettings:
    """A known agent's command. Raises UserError for arguments with unknown placeholders, and a variant that is not installed."""
    agent = AGENT_COMMANDS[making.kind]
    executable = _variant(block, making) if isinstance(block, MirrorBlock) and block.executable is None else None
    template = parse_command(agent.command(block, executable), making.at("args"))
    environment = {name: value for name, value in agent.environment(block).items() if value is not None}
    protect([value for name, value in environment.items() if name.endswith(("_KEY", "_TOKEN"))])
    return program_settings(
        block,
        template,
        making,
        own=environment,
        before=block.system_prompt or "",
        read=_reader(block.model),
        log_folder=None if block.log_dir is None else making.path(block.log_dir),
    )


def _variant(block: MirrorBlock, making: Making) -> str:
    """The program of a variant of Claude Code."""
    name = block.variant or block.name or str(making.location.path[-1])
    path = Path(expand_home("~/.cc-mirror")) / name / "variant.json"
    try:
        found = object_or_list(path.read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError):
        found = None
    program = found.get("binaryPath") if isinstance(found, dict) else None
    if not isinstance(program, str) or not program.strip():
        raise making.at("variant").error(
            f"{path} names no program (binaryPath): install the variant, or give executable"
        )
    return program


def _reader(model: str | None) -> Read:
    """Reads what a program printed. ``model``: for its price, where the program says only tokens."""

    def priced(usage: Usage) -> float | None:
        price = None if model is None else PriceTable().price(model)
        return None if price is None else price.cost(usage)

    def read(data: bytes) -> Answer:
        record = read_launch(text_of(data), priced)
        return read_answer(data) if record is None else read_record(record)

    return read


def block_of_agent(kind: str) -> Callable[[], type[TargetBlock]]:
    """Gives the class of the keys of a known agent."""
    return lambda: AGENT_COMMANDS[kind].block
