"""An answer graded: its scores, verdict and status, as they are recorded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import dumps
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import Context, OwnLimit
from manyhands.graders.config import parse_graders
from manyhands.graders.protocol import Candidate, Grader, Grading, Judges, Score, is_answer_only
from manyhands.graders.scoring import combine, grade_all
from manyhands.io.locations import UnknownKeys
from manyhands.processes.python_functions import Function
from manyhands.processes.scripts import ScriptPool, ScriptResult, ScriptsWith
from manyhands.workloads.evals.evalfile.contents import Test, entries_of
from manyhands.workloads.evals.items import ERROR, FAILED, GRADER_ERROR, PASSED, UNGRADED, TestItem
from manyhands.workloads.evals.targets.answer_figures import FIGURES, GRADED
from manyhands.workloads.evals.targets.answers import Answer
from manyhands.workloads.evals.workspaces.workspace import Seen

PROGRAMS = "graders"
"""The limit of the run for programs of graders."""
_LISTS_KEPT = 256
"""Lists of graders that are kept parsed."""


@dataclass(frozen=True, slots=True)
class GradingSettings:
    """What holds for all graders of a run. Lists have an entry for each eval file."""

    thresholds: Sequence[float]
    """The score from which on a test has passed, unless the test says otherwise."""
    folders: Sequence[Path]
    """Where graders' paths start."""
    seconds: float
    """Time limit of a grader's program."""
    environments: Sequence[Mapping[str, str]]
    """What is added to the environment of such programs."""
    functions: Mapping[str, Function] = field(default_factory=dict)
    """Those that were given in Python, by what they are recorded as."""


class ItemJudges(Judges, Protocol):
    """The judges of one item's graders. ``own``: the one that judges where no other is named; None if there is none."""

    @property
    def own(self) -> object: ...


@dataclass(frozen=True, slots=True)
class ScriptsInTurn:
    """A ``ScriptPool`` for the graders of one item, whose programs wait for their turn among those of the whole run."""

    scripts: ScriptPool
    context: Context

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
        async with OwnLimit(PROGRAMS).held(self.context.limits):
            return await self.scripts.run(command, payload, folder=folder, seconds=seconds, environment=environment)


class TestGrader:
    """Grades answers. One for a run."""

    def __init__(self, settings: GradingSettings, scripts: ScriptPool) -> None:
        self._settings = settings
        self._scripts = [ScriptsWith.of(scripts, added) for added in settings.environments]
        self._lists: OrderedDict[tuple[str, bytes], tuple[tuple[Grader, ...], bool]] = OrderedDict()
        self._latest: tuple[int, Sequence[Mapping[str, Any]], tuple[tuple[Grader, ...], bool]] | None = None

    async def outcome(
        self,
        context: Context,
        item: TestItem,
        answer: Answer,
        *,
        judges: ItemJudges,
        simulated: bool,
        limited: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
        seen: Seen | None = None,
    ) -> Outcome:
        """What is recorded. ``judges``: of this item; a test without graders is judged by its own one, if it has one; ``limited``: holds
        graders that may wait to the test's time; ``seen``: the workspace, if there is one.

        Raises ItemError, with the record, for an answer that is an error, for a grader that broke, and where grading failed otherwise (a
        judge's endpoint is down, it took too long).
        """
        record = answer_record(item, answer, simulated=simulated)
        if answer.error is not None:
            raise ItemError(Cause.TARGET_ERROR, answer.error, record={**record, "status": ERROR, "error": answer.error})
        folder = self._settings.folders[item.file]
        graders, answer_only = self._graders(item, folder, judged=judges.own is not None)
        if not graders:
            return Outcome(ItemState.COMPLETED, {**record, "status": UNGRADED})
        threshold = self._threshold(item)
        grading = self._grading(context, item, judges)
        scores: Sequence[Score]
        try:
            if answer_only:
                candidate = Candidate(item.test_id, answer.text)
                scores = [await grader.grade(candidate, grading) for grader in graders]
            else:
                async with limited():
                    scores = await grade_all(graders, candidate_of(item.test, answer, folder, seen), grading)
        except ItemError as failure:
            record |= {"status": GRADER_ERROR, "error": failure.message}
            raise ItemError(failure.cause, failure.message, retry_after=failure.retry_after, record=record) from failure
        return _graded(record, scores, threshold)

    async def scores(
        self,
        context: Context,
        item: TestItem,
        entries: Sequence[Mapping[str, Any]],
        candidate: Candidate,
        *,
        judges: ItemJudges,
        limited: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> Sequence[Score]:
        """What graders find in something else than a test's answer. ``entries``: theirs, in normal form; for the rest see ``outcome``."""
        graders, _ = self._parsed(entries, item, self._settings.folders[item.file])
        grading = self._grading(context, item, judges)
        async with limited():
            return await grade_all(graders, candidate, grading)

    def _grading(self, context: Context, item: TestItem, judges: ItemJudges) -> Grading:
        scripts = ScriptsInTurn(self._scripts[item.file], context)
        return Grading(context, judges, scripts, self._settings.seconds, self._threshold(item))

    def _threshold(self, item: TestItem) -> float:
        return self._settings.thresholds[item.file] if item.threshold is None else item.threshold

    def _graders(self, item: TestItem, folder: Path, *, judged: bool) -> tuple[tuple[Grader, ...], bool]:
        """The graders of a test, and whether all of them look at nothing but the answer's text."""
        entries = item.graders or entries_of(item.test, judged=judged)
        if self._latest is None or self._latest[:2] != (item.file, entries):  # mostly all tests have the same ones
            self._latest = item.file, entries, self._parsed(entries, item, folder)
        return self._latest[2]

    def _parsed(
        self, entries: Sequence[Mapping[str, Any]], item: TestItem, folder: Path
    ) -> tuple[tuple[Grader, ...], bool]:
        key = (str(folder), dumps(list(entries)))
        found = self._lists.get(key)
        if found is None:
            graders = parse_graders(
                list(entries),
                item.test.location,
                folder=folder,
                notices=lambda text: None,
                unknown=UnknownKeys(),
                functions=self._settings.functions,
            )
            found = self._lists[key] = (graders, all(map(is_answer_only, graders)))
            if len(self._lists) > _LISTS_KEPT:
                self._lists.popitem(last=False)
        return found


def _graded(record: dict[str, Any], scores: Sequence[Score], threshold: float) -> Outcome:
    """The end of an item whose answer has these scores. Raises ItemError for a grader that broke."""
    total = combine(scores, threshold)
    record |= {
        "scores": [score.to_json() for score in scores],
        "hits": list(total.hits),
        "misses": list(total.misses),
        "reasoning": total.reasoning,
        "verdict": total.verdict,
        "threshold": threshold,
    }
    if total.left_out:
        record["notices"] = [*record["notices"], *map(left_out_notice, total.left_out)]
    if total.value is None and total.error is None:
        return Outcome(ItemState.COMPLETED, {**record, "status": UNGRADED, "verdict": None})
    if total.value is None:
        error = total.error or "a grader broke"
        raise ItemError(Cause.GRADER_ERROR, error, record={**record, "status": GRADER_ERROR, "error": error})
    record["status"] = PASSED if total.value >= threshold else FAILED
    record["score"] = total.value
    return Outcome(ItemState.COMPLETED, record)


def left_out_notice(of: str) -> str:
    """What a result says of a grader that found nothing to compare. ``of``: its name and why."""
    return f"grader left out of the score: {of}"


def candidate_of(test: Test, answer: Answer, folder: Path, seen: Seen | None = None) -> Candidate:
    """What graders get to see. ``folder``: the eval file's."""
    return Candidate(
        test_id=test.id,
        answer=answer.text,
        question=test.question,
        criteria=test.criteria,
        input=test.input,
        expected_output=test.expected_output,
        reference_answer=test.reference_answer,
        output=answer.output,
        tool_uses=answer.tool_uses,
        trace=answer.trace or None,
        cached_in_input=answer.cached_in_input,
        metadata=test.metadata,
        folder=folder,
        files=test.files,
        guideline_files=test.guideline_files,
        workspace=None if seen is None else seen.path,
        file_changes=None if seen is None else seen.changes,
        verified=answer.verified,
        **{name: getattr(answer, name) for name in GRADED},
    )


def answer_record(item: TestItem, answer: Answer, *, simulated: bool) -> dict[str, Any]:
    """What is recorded of an answer, before it is graded."""
    return {
        "status": ERROR,
        "score": None,
        "target": item.target,
        "trial": item.sample,
        "answer": answer.text,
        "output": None if answer.output is None else list(answer.output),
        "trace": dict(answer.trace) or None,
        **{each.name: getattr(answer, each.name) for each in FIGURES},
        "notices": list(answer.notices),
        "simulated": simulated,
        **({} if answer.collected is None else {"collected": dict(answer.collected)}),
        **({} if answer.verified is None else {"verified": dict(answer.verified)}),
    }
