"""A file of answers as a target: nothing is run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from manyhands.core.settings import Text
from manyhands.io.keys import key
from manyhands.workloads.evals.targets.keys import TargetBlock
from manyhands.workloads.evals.targets.kinds.protocol import Making, TargetOpening, TargetSettings
from manyhands.workloads.evals.targets.live import LiveTarget


class ReplayBlock(TargetBlock):
    """Answers that are in a file already."""

    spellings: ClassVar = {**TargetBlock.spellings, "file": "path", "output_file": "path"}

    path: Text = key(..., "Output file: JSON Lines with a record for each test, relative to the eval file.")


@dataclass(frozen=True, slots=True)
class ReplayTargetSettings(TargetSettings):
    """A file of answers."""

    path: Path

    async def open(self, opening: TargetOpening) -> LiveTarget:
        return await opening.answers_in(self.path)


def replay_settings(block: ReplayBlock, making: Making) -> ReplayTargetSettings:
    """The file with the answers. Raises UserError if there is no such file."""
    path = making.path(block.path)
    if not path.is_file():
        raise making.at("path").error(f"there is no file {path}")
    return ReplayTargetSettings(path)
