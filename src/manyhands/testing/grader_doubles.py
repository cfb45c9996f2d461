"""What graders work with, without an evaluation around them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyhands.core.errors import GraderError
from manyhands.core.jsonio import Json, dumps, loads
from manyhands.engine.contract import Context
from manyhands.graders.config import parse_graders
from manyhands.graders.protocol import PASS_LIMIT, Candidate, Grader, Grading, Judge, Judges, Score
from manyhands.io.locations import Location
from manyhands.models.protocol import ChatModel, ChatSettings
from manyhands.processes.scripts import ScriptPool, ScriptResult
from manyhands.testing.context import MemoryContext

FILE = "checks.yaml"


@dataclass(slots=True)
class ScriptedPrograms:
    """A ``ScriptPool`` that runs nothing."""

    results: list[ScriptResult] = field(default_factory=list)
    """How each program ends, in order."""
    calls: list[dict[str, Any]] = field(default_factory=list)
    """What was to be run, each as ``{"command", "payload", "folder", "seconds"}`` with the payload read as JSON."""

    @classmethod
    def printing(cls, *outputs: Json) -> ScriptedPrograms:
        """Programs that end well; what is no text is printed as JSON."""
        texts = (output.encode() if isinstance(output, str) else dumps(output) for output in outputs)
        return cls([ScriptResult(0, text, b"", 0.01) for text in texts])

    async def run(
        self,
        command: str | Sequence[str],
        payload: bytes,
        *,
        folder: Path,
        seconds: float | None,
        environment: Mapping[str, str],
    ) -> ScriptResult:
        self.calls.append({"command": command, "payload": loads(payload), "folder": folder, "seconds": seconds})
        if not self.results:
            raise AssertionError(f"no result is scripted for {command!r}")
        return self.results.pop(0)


@dataclass(slots=True)
class NamedJudges:
    """``Judges`` of one model that goes by several names."""

    model: ChatModel | None = None
    names: frozenset[str | None] = frozenset((None,))
    asked: list[str | None] = field(default_factory=list)
    """The names that were asked for."""

    async def judge(self, name: str | None) -> Judge:
        self.asked.append(name)
        if self.model is None or name not in self.names:
            raise GraderError(f"no judge is called {name}")
        return Judge(name or "judge", self.model, ChatSettings("scripted"))


def make_grading(
    context: Context | None = None,
    *,
    scripts: ScriptPool | None = None,
    judges: Judges | None = None,
    seconds: float = 120.0,
    pass_limit: float = PASS_LIMIT,
) -> Grading:
    """What graders work with; each part that is not given is one that has nothing."""
    return Grading(
        context or MemoryContext(), judges or NamedJudges(), scripts or ScriptedPrograms(), seconds, pass_limit
    )


def graders_of(*entries: Json, folder: Path | None = None, notices: list[str] | None = None) -> tuple[Grader, ...]:
    """The graders of entries as a file would hold them. Raises UserError for what is wrong with them."""
    said = [] if notices is None else notices
    return parse_graders(list(entries), Location(FILE), folder=folder or Path(), notices=said.append)


async def grade(entry: Json, candidate: Candidate | str, grading: Grading | None = None) -> Score:
    """The score of one grader. ``candidate``: or just its answer."""
    (grader,) = graders_of(entry)
    return await grader.grade(
        Candidate("test", candidate) if isinstance(candidate, str) else candidate, grading or make_grading()
    )


def texts(scores: Iterable[Score]) -> list[tuple[str, float | None]]:
    """Names and values, for comparing."""
    return [(score.name, score.value) for score in scores]
