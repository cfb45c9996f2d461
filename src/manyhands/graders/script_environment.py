"""Graders' programs that have more in their environment than this program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from manyhands.core.redaction import Redactor
from manyhands.graders.protocol import ScriptPool, ScriptResult


@dataclass(frozen=True, slots=True)
class ScriptsWith:
    """A ``ScriptPool`` that adds to the environment of its programs, and takes the secrets in it out of what they print. Made by ``of``."""

    scripts: ScriptPool
    additions: Mapping[str, str]
    redactor: Redactor

    @classmethod
    def of(cls, scripts: ScriptPool, additions: Mapping[str, str]) -> ScriptPool:
        """``additions``: what is added; the pool itself if that is nothing."""
        return cls(scripts, additions, Redactor.of(additions)) if additions else scripts

    async def run(
        self,
        command: str | Sequence[str],
        payload: bytes,
        *,
        folder: Path,
        seconds: float | None,
        environment: Mapping[str, str],
    ) -> ScriptResult:
        """See ``ScriptPool``."""
        environment = {**self.additions, **environment}
        result = await self.scripts.run(command, payload, folder=folder, seconds=seconds, environment=environment)
        stdout, stderr = (self.redactor.data(data) for data in (result.stdout, result.stderr))
        return replace(result, stdout=stdout, stderr=stderr)
