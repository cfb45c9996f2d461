"""The settings of agents: of their conversations, and all of them together with those of their model, tools, sandbox and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from manyhands.agents.worlds.settings import RowWorldSettings, WorldSettings
from manyhands.core.errors import UserError
from manyhands.core.jsonio import loads
from manyhands.core.settings import (
    Checked,
    OptionalPath,
    OptionalText,
    setting,
    whole,
)
from manyhands.models.settings import ModelSettings
from manyhands.runs.options import (
    CONVERSATION,
    OUTPUT,
    SPEED,
    FileSettings,
    RunOptions,
    TerminalSettings,
    read_text,
)
from manyhands.sandboxes.settings import RowImageSettings
from manyhands.tools.settings import ToolSettings

_ROLES = frozenset(("system", "developer", "user", "assistant", "tool"))


def load_prefill(path: str) -> tuple[dict[str, Any], ...]:
    """The messages of a prefill file.

    Raises UserError naming the file, and the message that is wrong.
    """
    try:
        value = loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}") from error
    try:
        return check_messages(value)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


def _prefill(value: Any) -> tuple[dict[str, Any], ...] | None:
    return None if value is None else check_messages(value)


def check_messages(value: Any) -> tuple[dict[str, Any], ...]:
    """A list of chat messages, each an object with a role and content. Raises ValueError naming the first wrong one."""
    if not isinstance(value, (list, tuple)):
        raise ValueError("must be an array of messages")
    for number, message in enumerate(value, 1):
        problem = _message_problem(message)
        if problem:
            raise ValueError(f"message {number} {problem}")
    return tuple(value)


def _message_problem(message: Any) -> str | None:
    if not isinstance(message, dict):
        return "is not an object"
    if message.get("role") not in _ROLES:
        return f'has no "role" out of {", ".join(sorted(_ROLES))}'
    if not isinstance(message.get("content"), (str, list)) and not message.get("tool_calls"):
        return 'has no "content" (text, or a list of content parts)'
    return None


class ConversationSettings(FileSettings):
    """What a conversation begins with, and how long it may be."""

    contents: ClassVar[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
        "prefill_messages_file": ("prefill_messages", load_prefill)
    }

    agent: OptionalText = setting(
        None,
        "Agent of an installed package (default: the built-in one).",
        group=CONVERSATION,
        identity=True,
        value="NAME",
    )
    max_turns: Annotated[int, whole(1)] = setting(
        10, "Maximum model calls per conversation.", group=CONVERSATION, identity=True
    )
    ephemeral_system_prompt: OptionalText = setting(
        None,
        "Text added to the system prompt of every call, and not saved with conversations.",
        group=CONVERSATION,
        identity=True,
    )
    prefill_messages_file: OptionalPath = setting(
        None,
        "JSON file with an array of messages (role, content) that precede every conversation; they are not saved with it.",
        group=CONVERSATION,
        recorded=False,
        value="FILE",
    )
    prefill_messages: Annotated[tuple[dict[str, Any], ...] | None, Checked(_prefill)] = setting(
        None, "What prefill_messages_file holds.", typed=False, identity=True
    )


class AgentOptions(
    ConversationSettings,
    ModelSettings,
    RowImageSettings,
    WorldSettings,
    RowWorldSettings,
    ToolSettings,
    RunOptions,
):
    """What can be set for agents, their model and the run that executes them."""

    executor: Literal["processes", "local", "ray"] = setting(
        "processes",
        "Where items run: processes (worker processes), local (this process), or ray (worker processes on the nodes of a Ray cluster).",
        group=SPEED,
    )


class AgentTerminalSettings(TerminalSettings):
    """What is shown of agents on the terminal."""

    log_prefix_chars: Annotated[int, whole(0)] = setting(
        100, "Length of previews of tool arguments and results in logs, in characters.", group=OUTPUT
    )
