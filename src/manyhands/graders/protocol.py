"""What is graded, by what, with what result, and how graders write down what they found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Required, TypedDict

from manyhands.core.jsonio import Json
from manyhands.core.usage import ZERO, Usage
from manyhands.engine.contract import Context
from manyhands.models.protocol import ChatModel, ChatSettings
from manyhands.processes.scripts import ScriptPool

PASS_LIMIT = 0.8
"""The score from which on a verdict is ``pass``: one limit for graders, tests, reports and exit codes, unless the person sets another."""
BORDERLINE = 0.6
MessageJson = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One tool call of a target."""

    tool: str
    input: Json = None
    output: Json = None
    duration_ms: float | None = None
    """Milliseconds; None where nobody measured it."""


@dataclass(slots=True)  # not frozen: see Outcome
class Candidate:
    """An answer to be graded, and everything about its test that graders may know.

    User data is as the person wrote it: no key of it is ever renamed.
    """

    test_id: str
    answer: str
    """The text."""
    question: str = ""
    criteria: str = ""
    input: Sequence[MessageJson] = ()
    expected_output: Sequence[MessageJson] = ()
    reference_answer: str = ""
    output: Sequence[MessageJson] | None = None
    """The target's messages; None where it gave none."""
    tool_uses: Sequence[ToolUse] = ()
    trace: Mapping[str, Any] | None = None
    """A summary of its tool calls; None without one."""
    duration_ms: float | None = None
    """Milliseconds; None where not known."""
    cost_usd: float | None = None
    """None where not known."""
    token_usage: Mapping[str, float] | None = None
    """``{"input", "output", "cached"?}``; None where not known."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    folder: Path = Path()
    """The eval file's."""
    files: Sequence[Path] = ()
    """The input files."""
    guideline_files: Sequence[Path] = ()
    """Those of the input files that are guidelines."""
    workspace: Path | None = None
    file_changes: str | None = None
    """A unified diff of what the target changed in the workspace; None where that is not known."""
    cached_in_input: bool = False
    """Whether cached tokens are part of the input, and not besides."""
    verified: Mapping[str, Any] | None = None
    """Of a task folder: what its verifier came to (``rewards``, or ``error``; ``exit_code``, ``output``)."""


class ScoreRecord(TypedDict, total=False):
    """A score as results hold it."""

    name: Required[str]
    type: Required[str]
    score: Required[float | None]
    weight: Required[float]
    verdict: Required[str]
    hits: Required[list[str]]
    misses: Required[list[str]]
    reasoning: str
    required: float
    min_score: float
    details: Mapping[str, Any]
    scores: list[ScoreRecord]
    error: str
    left_out: str
    simulated: bool


@dataclass(slots=True)  # not frozen: see Outcome
class Score:
    """What a grader found."""

    name: str
    type: str
    value: float | None
    """0 to 1; None if the grader itself failed (see ``error``), or if there was nothing that it could have compared (see ``left_out``)."""
    verdict: str
    """``pass``, ``borderline``, ``fail``, ``error`` or ``left_out``; empty from a grader that leaves it to the run's pass limit."""
    hits: tuple[str, ...] = ()
    misses: tuple[str, ...] = ()
    reasoning: str | None = None
    weight: float = 1.0
    minimum: float | None = None
    """What a required grader must reach; None if it is not required."""
    details: Mapping[str, Any] | None = None
    scores: tuple[Score, ...] = ()
    """Those of a composite's members."""
    error: str | None = None
    """How the grader itself failed."""
    usage: Usage = ZERO
    min_score: float | None = None
    """The score from which on this grader's own verdict is pass; None if that is the run's pass limit."""
    left_out: str | None = None
    """What is missing to compare the answer with; the grader counts as if it were not there."""

    @property
    def simulated(self) -> bool:
        """Whether a simulated model had a say in it."""
        return self.usage.simulated_calls > 0

    def to_json(self) -> ScoreRecord:
        """As results hold it: ``score`` is the value."""
        value: ScoreRecord = {
            "name": self.name,
            "type": self.type,
            "score": self.value,
            "weight": self.weight,
            "verdict": self.verdict,
            "hits": list(self.hits),
            "misses": list(self.misses),
        }
        if self.reasoning is not None:
            value["reasoning"] = self.reasoning
        if self.minimum is not None:
            value["required"] = self.minimum
        if self.min_score is not None:
            value["min_score"] = self.min_score
        if self.details is not None:
            value["details"] = self.details
        if self.scores:
            value["scores"] = [score.to_json() for score in self.scores]
        if self.error is not None:
            value["error"] = self.error
        if self.left_out is not None:
            value["left_out"] = self.left_out
        if self.simulated:
            value["simulated"] = True
        return value


@dataclass(frozen=True, slots=True)
class Judge:
    """Whom graders may ask: a model, or a program or a function that answers as one does."""

    name: str
    model: ChatModel
    settings: ChatSettings
    working: Callable[[str, Path | None], ChatModel] | None = None
    """Of a program or function: the like at work on a test, of which it is given the id and the workspace; None for a model."""

    def about(self, candidate: Candidate) -> Judge:
        """The judge as it works on a candidate."""
        if self.working is None:
            return self
        return replace(self, model=self.working(candidate.test_id, candidate.workspace))


class Judges(Protocol):
    """Those whom graders may ask, made ready when one is first needed."""

    async def judge(self, name: str | None) -> Judge:
        """The judge of that name; None: the test's own. Raises GraderError if there is none, or it can't be used."""
        ...


@dataclass(slots=True)  # not frozen: see Outcome
class Grading:
    """What graders work with."""

    context: Context
    """For their steps: everything that is paid for, takes effect outside or could come out differently is one."""
    judges: Judges
    scripts: ScriptPool
    seconds: float = 120.0
    """The time limit of a grader's program or function."""
    pass_limit: float = PASS_LIMIT


LEFT_OUT = "left_out"
"""The verdict of a grader that found nothing to compare."""


class Grader(Protocol):
    """One entry of a list of graders, checked and ready. It may say ``answer_only = True``: see ``is_answer_only``."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> str: ...

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        """Never raises for what the candidate or a grader's program does: a grader that broke gives a Score with ``error``. What the
        engine raises (interruption, divergence, budget, a failing journal) passes through."""
        ...


def is_answer_only(grader: Grader) -> bool:
    """Whether a grader says, by an attribute ``answer_only`` that is true, that it looks at nothing but the candidate's ``answer`` and
    waits for nothing. Where all graders of a test say so, they get a candidate with nothing but ``test_id`` and ``answer``:
    ``reference_answer`` and ``question`` are empty, ``output`` and ``trace`` None, whatever the test has."""
    return bool(getattr(grader, "answer_only", False))


def verdict_of(value: float, pass_limit: float = PASS_LIMIT) -> str:
    """``pass`` from the limit on, ``borderline`` from 0.6 on (if that is below the limit), else ``fail``."""
    if value >= pass_limit:
        return "pass"
    return "borderline" if value >= BORDERLINE else "fail"


def found(
    grader: Any,
    value: float,
    hits: Sequence[str] = (),
    misses: Sequence[str] = (),
    *,
    reasoning: str | None = None,
    details: Mapping[str, Any] | None = None,
    pass_limit: float | None = None,
) -> Score:
    """The score of a grader (anything with ``name`` and ``type``). Without ``pass_limit`` its verdict is left to ``scoring.Configured``."""
    return Score(
        grader.name,
        grader.type,
        value,
        "" if pass_limit is None else verdict_of(value, pass_limit),
        tuple(hits),
        tuple(misses),
        reasoning,
        details=details,
    )


def nothing_to_compare(grader: Any, why: str, details: Mapping[str, Any] | None = None) -> Score:
    """What a grader gives that has nothing to hold the answer against: neither 0 nor 1."""
    return Score(grader.name, grader.type, None, LEFT_OUT, details=details, left_out=why)


def all_or_nothing(grader: Any, passed: bool, hit: str, miss: str, pass_limit: float | None = None) -> Score:
    """1 with the hit, or 0 with the miss."""
    if passed:
        return found(grader, 1.0, hits=(hit,), pass_limit=pass_limit)
    return found(grader, 0.0, misses=(miss,), pass_limit=pass_limit)
