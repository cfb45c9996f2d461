"""Kinds of targets by name, each with its keys, its settings and what is true of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from manyhands.core.settings import shown
from manyhands.core.text import suggestion
from manyhands.io.locations import Location
from manyhands.workloads.evals.targets.keys import TargetBlock
from manyhands.workloads.evals.targets.kinds.given_answers import MockBlock, ReplayBlock, mock_settings, replay_settings
from manyhands.workloads.evals.targets.kinds.model_keys import agent_block, azure_block, model_block
from manyhands.workloads.evals.targets.kinds.models import BASE_URLS, agent_settings, model_settings
from manyhands.workloads.evals.targets.kinds.programs import (
    AGENT_COMMANDS,
    AgentCliBlock,
    CliBlock,
    agent_cli_settings,
    cli_settings,
)
from manyhands.workloads.evals.targets.kinds.protocol import Making, TargetSettings
from manyhands.workloads.evals.targets.kinds.python_function import PythonBlock, python_settings


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of target."""

    block: Callable[[], type[TargetBlock]]
    """Gives the class of its keys."""
    settings: Callable[[Any, Making], TargetSettings]
    """Makes the settings of such a block."""
    calls_models: bool = False
    """Whether this program asks a model for it, which can also judge and whose tokens are counted as its endpoint counts them."""
    starts_programs: bool = False
    """Whether it starts a program for its tests."""
    cost_at_end: bool = False
    """Whether what it costs is known only when it has ended."""
    batches: bool = False
    """Whether one invocation may answer all tests (``provider_batching``)."""
    one_file_for_all: bool = False
    """Whether a file holds its answers to all tests, so that nothing is run."""
    conversational: bool = False
    """Whether it keeps something from one turn of a conversation to the next."""
    simulated: bool = False
    """Whether its answers are always made up."""


KINDS = {
    "cli": Kind(lambda: CliBlock, cli_settings, starts_programs=True, cost_at_end=True, batches=True),
    "agent": Kind(agent_block, agent_settings, calls_models=True, conversational=True),
    **dict.fromkeys(("model", *BASE_URLS), Kind(model_block, model_settings, calls_models=True)),
    "azure": Kind(azure_block, model_settings, calls_models=True),
    "mock": Kind(lambda: MockBlock, mock_settings, simulated=True),
    "python": Kind(lambda: PythonBlock, python_settings, cost_at_end=True),
    "replay": Kind(lambda: ReplayBlock, replay_settings, one_file_for_all=True),
    **dict.fromkeys(
        AGENT_COMMANDS, Kind(lambda: AgentCliBlock, agent_cli_settings, starts_programs=True, cost_at_end=True)
    ),
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


def kind_of(spelled: Any, location: Location) -> str:
    """The kind of a ``provider``, in any spelling. Raises UserError that lists the known ones."""
    if not isinstance(spelled, str) or not spelled.strip():
        raise location.error(f"must be a kind of target, not {shown(spelled)}")
    word = spelled.strip().lower().replace("_", "-")
    name = ALIASES.get(word, word)
    if name in KINDS:
        return name
    what = "is a kind of target that is not supported" if name in BEYOND else "is no kind of target"
    hint = "" if name in BEYOND else suggestion(word, [*KINDS, *ALIASES])
    raise location.error(f"{shown(spelled)} {what}{hint}; known: {', '.join(KINDS)}")
