"""Kinds of targets: their names, their keys, and what makes their settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from manyhands.core.places import Place
from manyhands.core.settings import shown, suggestion
from manyhands.evals import target_settings as make
from manyhands.evals.agent_commands import AGENT_COMMANDS
from manyhands.evals.target_blocks import (
    AgentCliBlock,
    CliBlock,
    MockBlock,
    PythonBlock,
    ReplayBlock,
    TargetBlock,
    agent_block,
    azure_block,
    model_block,
)


@dataclass(frozen=True, slots=True)
class Kind:
    """``block``: gives the class of its keys; ``settings``: makes what it is set to of such a block."""

    block: Callable[[], type[TargetBlock]]
    settings: Callable[[Any, make.Making], make.TargetSettings]


KINDS = {
    "cli": Kind(lambda: CliBlock, make.cli),
    "agent": Kind(agent_block, make.agent),
    **dict.fromkeys(
        ("model", "openai", "openrouter", "anthropic", "gemini"),
        Kind(model_block, make.model),
    ),
    "azure": Kind(azure_block, make.model),
    "mock": Kind(lambda: MockBlock, make.mock),
    "python": Kind(lambda: PythonBlock, make.python),
    "replay": Kind(lambda: ReplayBlock, make.replay),
    **dict.fromkeys(AGENT_COMMANDS, Kind(lambda: AgentCliBlock, make.agent_cli)),
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
