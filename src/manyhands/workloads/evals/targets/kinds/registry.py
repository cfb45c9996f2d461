"""Kinds of targets by name, each with its keys, its settings and what is true of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.settings import shown
from manyhands.core.text import suggestion
from manyhands.io.locations import Location
from manyhands.workloads.evals.targets.keys import TargetBlock
from manyhands.workloads.evals.targets.kinds.given_answers import MockBlock, ReplayBlock, mock_settings, replay_settings
from manyhands.workloads.evals.targets.kinds.known_agents import AGENT_COMMANDS, agent_cli_settings, block_of_agent
from manyhands.workloads.evals.targets.kinds.model_keys import agent_block, azure_block, built_in_block, model_block
from manyhands.workloads.evals.targets.kinds.models import BASE_URLS, BUILT_IN, agent_settings, model_settings
from manyhands.workloads.evals.targets.kinds.programs import CliBlock, cli_settings
from manyhands.workloads.evals.targets.kinds.protocol import Making, TargetSettings
from manyhands.workloads.evals.targets.kinds.python_function import PythonBlock, python_settings
from manyhands.workloads.evals.targets.kinds.recorded_sessions import (
    CopilotLogBlock,
    TranscriptBlock,
    copilot_log_settings,
    transcript_settings,
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of target."""

    block: Callable[[], type[TargetBlock]]
    """Gives the class of its keys."""
    settings: Callable[[Any, Making], TargetSettings]
    """Makes the settings of such a block."""
    calls_models: bool = False
    """Whether this program asks a model for it, which judges its own answers where nobody else does, and whose tokens are counted as its
    endpoint counts them."""
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

    @property
    def judges(self) -> bool:
        """Whether it can judge: whatever answers a prompt can."""
        return not self.one_file_for_all


KINDS = {
    "cli": Kind(lambda: CliBlock, cli_settings, starts_programs=True, cost_at_end=True, batches=True),
    "agent": Kind(agent_block, agent_settings, calls_models=True, conversational=True),
    **dict.fromkeys(("model", *BASE_URLS), Kind(model_block, model_settings, calls_models=True)),
    "azure": Kind(azure_block, model_settings, calls_models=True),
    BUILT_IN: Kind(built_in_block, model_settings, calls_models=True),
    "mock": Kind(lambda: MockBlock, mock_settings, simulated=True),
    "python": Kind(lambda: PythonBlock, python_settings, cost_at_end=True),
    "replay": Kind(lambda: ReplayBlock, replay_settings, one_file_for_all=True),
    "transcript": Kind(lambda: TranscriptBlock, transcript_settings, one_file_for_all=True),
    "copilot-log": Kind(lambda: CopilotLogBlock, copilot_log_settings, one_file_for_all=True),
    **{
        name: Kind(block_of_agent(name), agent_cli_settings, starts_programs=True, cost_at_end=True)
        for name in AGENT_COMMANDS
    },
}
"""By name, in lower case with hyphens."""
ALIASES = {
    "azure-openai": "azure",
    "google": "gemini",
    "google-gemini": "gemini",
    "openai-compatible": "model",
    "codex-cli": "codex",
    "codex-sdk": "codex",
    "copilot-sdk": "copilot",
    "copilot-cli": "copilot",
    "pi-cli": "pi",
    "pi-coding-agent": "pi",
    "pi-agent-sdk": "pi",
    "claude-code": "claude",
    "claude-cli": "claude",
    "claude-sdk": "claude",
    "gemini-code": "gemini-cli",
    "function": "python",
    "callable": "python",
    "built-in": "agent",
}
BEYOND = {
    "vscode": "VS Code shows what its agent says only in its window",
    "vscode-insiders": "VS Code shows what its agent says only in its window",
    "bedrock": "it speaks no OpenAI chat completions",
    "vertex": "it speaks no OpenAI chat completions",
}
"""Kinds of other versions of the format that can't be used, and why. They may stand in files; only their use is an error."""


def named_kind(spelled: Any, location: Location) -> str | None:
    """The kind of a ``provider``, in any spelling; None if it is none of ours. Raises UserError for what is no text."""
    if not isinstance(spelled, str) or not spelled.strip():
        raise location.error(f"must be a kind of target, not {shown(spelled)}")
    word = _word(spelled)
    name = ALIASES.get(word, word)
    return name if name in KINDS else None


def no_kind(spelled: str, location: Location, programs: str = "") -> UserError:
    """What is said of what is no kind. ``programs``: the folder in which programs that are kinds were looked for."""
    word = _word(spelled)
    if word in BEYOND:
        return location.error(
            f"{shown(spelled)} is a kind of target that can't be used: {BEYOND[word]}; "
            "use provider: cli with a command that prints an answer"
        )
    where = "" if not programs else f", and {programs} has no program of that name"
    return location.error(
        f"{shown(spelled)} is no kind of target{where}{near_kind(spelled)}; known: {', '.join(KINDS)}"
    )


def near_kind(spelled: str) -> str:
    """A hint to the kind that was meant, if one is spelled nearly so."""
    return suggestion(_word(spelled), [*KINDS, *ALIASES])


def _word(spelled: str) -> str:
    return spelled.strip().lower().replace("_", "-")
