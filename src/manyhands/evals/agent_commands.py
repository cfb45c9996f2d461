"""Known agents as commands. Each reads the prompt from a file, asks nobody anything, and leaves its answer in the output file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from manyhands.evals.placeholders import quoted


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
