"""The judges of one session of a run, made ready when one is first needed."""

from __future__ import annotations

from manyhands.core.errors import GraderError
from manyhands.graders.protocol import Judge
from manyhands.workloads.evals.opening import Openings
from manyhands.workloads.evals.prepared import PreparedEval
from manyhands.workloads.evals.targets.definitions import Target


class SessionJudges:
    """``openings``: what they are opened with."""

    def __init__(self, prepared: PreparedEval, openings: Openings) -> None:
        self._prepared = prepared
        self._openings = openings
        self._judges: dict[str, Judge] = {}

    def of(self, target: Target) -> Judge:
        """A target as a judge. Raises GraderError."""
        if target.name not in self._judges:
            self._judges[target.name] = self._openings.judge(target)
        return self._judges[target.name]

    def named(self, file: int, name: str) -> Judge:
        """One that a test of a file names. Raises GraderError."""
        known = (*self._prepared.files[file].judges, *self._prepared.files[file].targets)
        found = next((target for target in known if target.name == name), None)
        if found is None:
            raise GraderError(f"no judge is called {name!r}; name it in judge_target, or give --judge_target")
        return self.of(found)


class OwnJudge:
    """The judges of the graders of a file's tests. ``own``: the one of a target, which is asked where none is named."""

    def __init__(self, judges: SessionJudges, file: int, own: Target | None) -> None:
        self._judges = judges
        self._file = file
        self.own = own

    async def judge(self, name: str | None) -> Judge:
        """See ``Judges``."""
        if name is not None:
            return self._judges.named(self._file, name)
        if self.own is None:
            raise GraderError("no judge is configured: give the target a judge_target, or --judge_target")
        return self._judges.of(self.own)
