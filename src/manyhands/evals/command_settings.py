"""What a target's command needs besides its placeholders' values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from manyhands.evals.placeholders import CommandTemplate


@dataclass(frozen=True, slots=True)
class CommandSettings:
    """A target's command. ``folder``: where it starts; ``seconds``: its time limit, None for none; ``eval_file``: whose tests it
    answers; ``files_format``: see ``placeholders.Values``; ``keep_files``: whether its files in a temporary place stay there;
    ``own_folder``: whether it starts in its folder also where there is a workspace; ``additions``: to its environment, besides what
    its placeholders stand for."""

    template: CommandTemplate
    folder: Path
    eval_file: Path | None = None
    seconds: float | None = None
    files_format: str = "{path}"
    keep_files: bool = False
    own_folder: bool = False
    additions: Mapping[str, str] = field(default_factory=dict)

    def within(self, workspace: Path | None) -> CommandSettings:
        """The command as it starts in a workspace, if there is one."""
        return self if workspace is None or self.own_folder else replace(self, folder=workspace)
