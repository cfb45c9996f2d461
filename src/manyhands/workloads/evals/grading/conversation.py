"""Conversations: tests of several turns, each answered and graded before the next is said.

The target gets the test's input and all turns so far with its own answers; with a window, the system's messages and the last ones. A
turn's graders look at its answer, the test's own graders at the whole conversation, as text: that is one more score, ``conversation``. The
test's score is the mean, minimum or maximum of these. A turn without graders scores 1; one that is not reached, as the conversation stopped
before it, 0. An answer that is an error, or a grader that breaks, ends the test without a score.

Every answer and every judgement is a step in a scope of its turn's, so that a resumed conversation goes on where it was.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json, dumps
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.statistics import weighted_mean
from manyhands.core.usage import ZERO
from manyhands.engine.contract import Context, Effect
from manyhands.graders.protocol import Candidate, Score, verdict_of
from manyhands.graders.scoring import Total, combine, heeded
from manyhands.workloads.evals.evalfile.contents import Conversation, Test, Turn, entries_of
from manyhands.workloads.evals.evalfile.messages import MessageJson, Messages
from manyhands.workloads.evals.grading.graded_answer import answer_record, candidate_of, left_out_notice
from manyhands.workloads.evals.items import ERROR, FAILED, GRADER_ERROR, PASSED, UNGRADED, TestItem
from manyhands.workloads.evals.targets.answer_figures import FIGURES, figures_given
from manyhands.workloads.evals.targets.answers import Answer, read_record, read_text
from manyhands.workloads.evals.workspaces.workspace import Seen, TestWorkspace

STOP = "stop"
"""What is done by default after a turn that failed: nothing more is said."""
TURN, WHOLE = "turn", "conversation"
"""What stands as type of the scores of turns, and of the whole."""
SKIP = "skip"
"""The verdict on a turn that was not reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversing:
    """What a conversation needs."""

    ask: Callable[[Context, TestItem, int], Awaitable[Answer]]
    """Asks the target: an item with a test whose input is what the target gets, and the turn's number, from 1."""
    grade: Callable[[Context, Sequence[Mapping[str, Any]], Candidate], Awaitable[Sequence[Score]]]
    """Has graders, in normal form, look at a candidate."""
    threshold: float
    """The score from which on a turn, and the test, has passed."""
    folder: Path
    """The eval file's."""
    judged: bool
    """Whether there is a judge for tests without graders."""
    simulated: Callable[[], bool]
    """Whether the answers are made up."""
    seen: Callable[[], Seen | None]
    """The workspace, as it is when this is called."""
    answered: Callable[[], Awaitable[None]]
    """Called when no more turns follow."""


async def converse(context: Context, item: TestItem, means: Conversing) -> Outcome:
    """Have a test's conversation. Raises ItemError, with the record so far, where the target or a grader fails."""
    return await _Conversation(context, item, means).outcome()


def written_graders(test: Mapping[str, Json]) -> list[Mapping[str, Any]]:
    """All graders of a test as the journal holds it, those of its turns too."""
    turns = test.get("conversation", {}).get("turns", ())
    return [*test.get("graders", ()), *(grader for turn in turns for grader in turn.get("graders", ()))]


def functions_among(test: Mapping[str, Json]) -> Iterator[str]:
    """What names the Python functions among the graders of a test as the journal holds it."""
    left: list[Mapping[str, Any]] = written_graders(test)
    while left:
        grader = left.pop()
        if grader["type"] == "python":
            yield grader["function"]
        left += grader.get("assert", ()) if grader["type"] == "composite" else ()


def windowed(history: Sequence[MessageJson], size: int | None) -> Messages:
    """The messages that a target gets of a conversation whose last one is the user's: all; or the system's and, of the others, the last two
    for each of ``size`` turns."""
    if size is None:
        return tuple(history)
    others = [index for index, message in enumerate(history) if message["role"] != "system"]
    kept = set(others[-2 * size :])
    return tuple(message for index, message in enumerate(history) if message["role"] == "system" or index in kept)


def transcript(history: Sequence[MessageJson]) -> str:
    """A conversation as graders of the whole see it: each message behind its role."""
    return "\n\n".join(f"{message['role']}: {_content(message)}" for message in history)


def aggregated(scores: Sequence[float], aggregation: str) -> float:
    """One score of those of the turns and of the whole."""
    if aggregation == "mean":
        return weighted_mean([(score, 1) for score in scores])
    return min(scores) if aggregation == "min" else max(scores)


class _Conversation:
    """One conversation while it is had."""

    def __init__(self, context: Context, item: TestItem, means: Conversing) -> None:
        if item.test.conversation is None:
            raise ValueError(f"test {item.test_id} has no turns")
        self._context = context
        self._item = item
        self._means = means
        self._test: Test = item.test
        self._settings: Conversation = item.test.conversation
        self._history: list[MessageJson] = list(item.test.input)
        self._output: list[MessageJson] = []
        self._answers: list[Answer] = []
        self._turns: list[dict[str, Json]] = []
        self._scores: list[Score] = []
        self._notices: list[str] = []

    async def outcome(self) -> Outcome:
        failed: int | None = None
        for number, turn in enumerate(self._settings.turns, 1):
            if failed is not None and self._settings.on_turn_failure == STOP:
                self._leave_out(number, turn, failed)
                continue
            if await self._run_turn(number, turn) < self._means.threshold and failed is None:
                failed = number
        await self._means.answered()
        whole = await self._whole()
        if whole is None and not any(turn.graders for turn in self._settings.turns):
            return Outcome(ItemState.COMPLETED, {**self._record(), "status": UNGRADED})
        if not heeded([score for score in self._scores if score.scores]):  # turns that nobody grades say nothing
            return Outcome(ItemState.COMPLETED, {**self._record(), **self._graded(), "status": UNGRADED})
        values = [score.value or 0.0 for score in heeded(self._scores)]
        value = aggregated(values, self._settings.aggregation)
        graded = self._graded() | {"reasoning": whole.reasoning if whole is not None else None}
        status = PASSED if value >= self._means.threshold else FAILED
        found = {"status": status, "score": value, "verdict": verdict_of(value, self._means.threshold)}
        return Outcome(ItemState.COMPLETED, {**self._record(), **graded, **found})

    async def _run_turn(self, number: int, turn: Turn) -> float:
        """Have a turn answered and graded; its score, 1 where nothing speaks against it."""
        about: dict[str, Json] = {"turn": number, "input": list(turn.input)}
        self._turns.append(about)
        self._history += turn.input
        self._output += turn.input
        test = self._turn_test(number, turn)
        answer = await self._answer(number, test, about)
        self._answers.append(answer)
        said: MessageJson = {"role": "assistant", "content": answer.text}
        self._history.append(said)
        self._output += map(dict, answer.output or (said,))
        about |= {"answer": answer.text, "output": list(answer.output or (said,)), **figures_given(answer)}
        candidate = candidate_of(test, answer, self._means.folder, self._means.seen())
        candidate = replace(candidate, question=transcript(test.input))
        total = await self._graders(f"{TURN}-{number}", TURN, turn.graders, candidate)
        if total is not None and total.value is None:  # nothing to compare: neither good nor bad
            about |= {"score": None, "verdict": total.verdict}
            return 1.0
        value = 1.0 if total is None else total.value or 0.0
        if total is None:
            self._scores.append(Score(f"{TURN}-{number}", TURN, value, verdict_of(value, self._means.threshold)))
        about |= {"score": value, "verdict": verdict_of(value, self._means.threshold)}
        return value

    async def _answer(self, number: int, test: Test, about: dict[str, Json]) -> Answer:
        try:
            scope = self._context.scope(f"{TURN}-{number}")
            answer = await self._means.ask(scope, replace(self._item, _test=test), number)
        except ItemError as failure:
            about["error"] = failure.message
            raise self._broken(failure.cause, f"turn {number}: {failure.message}", failure) from failure
        if answer.error is not None:
            about["error"] = answer.error
            raise self._broken(Cause.TARGET_ERROR, f"turn {number}: {answer.error}")
        return answer

    def _leave_out(self, number: int, turn: Turn, failed: int) -> None:
        why = f"not reached, as turn {failed} is below the limit"
        self._scores.append(Score(f"{TURN}-{number}", TURN, 0.0, SKIP, misses=(why,)))
        self._turns.append({"turn": number, "input": list(turn.input), "score": 0.0, "verdict": SKIP})

    async def _whole(self) -> Total | None:
        """Have the conversation as a whole graded; None if nobody looks at it."""
        entries: Sequence[Mapping[str, Any]] = self._test.graders
        if not entries and not any(turn.graders for turn in self._settings.turns):
            entries = entries_of(self._test, judged=self._means.judged)
        if not entries:
            return None
        inputs = [message for message in self._history if message["role"] != "assistant"]
        candidate = replace(
            candidate_of(self._test, self._together(), self._means.folder, self._means.seen()),
            answer=transcript(self._history),
            question=transcript(inputs),
            input=tuple(self._history),
        )
        return await self._graders(WHOLE, WHOLE, entries, candidate)

    async def _graders(
        self, name: str, kind: str, entries: Sequence[Mapping[str, Any]], candidate: Candidate
    ) -> Total | None:
        """What graders find together, which becomes a score of that name; None without graders."""
        if not entries:
            return None
        try:
            scores = await self._means.grade(self._context.scope(f"{name}-graders"), entries, candidate)
        except ItemError as failure:
            raise self._broken(failure.cause, f"{name}: {failure.message}", failure, status=GRADER_ERROR) from failure
        total = combine(scores, self._means.threshold)
        usage = reduce(add, (score.usage for score in scores), ZERO)
        found = Score(
            name, kind, total.value, total.verdict, total.hits, total.misses, total.reasoning, scores=tuple(scores)
        )
        unscored = "; ".join(total.left_out) if total.value is None and total.error is None else None
        self._scores.append(replace(found, error=total.error, usage=usage, left_out=unscored))
        self._notices += [left_out_notice(f"{name}, {each}") for each in total.left_out]
        if total.error is not None:
            raise self._broken(Cause.GRADER_ERROR, f"{name}: {total.error}", status=GRADER_ERROR)
        return total

    def _turn_test(self, number: int, turn: Turn) -> Test:
        """What the target and the turn's graders get to see."""
        return replace(
            self._test,
            id=f"{self._test.id}/{TURN}-{number}",
            input=windowed(self._history, self._settings.window_size),
            expected_output=turn.expected_output,
            graders=turn.graders,
            conversation=None,
        )

    def _broken(
        self, cause: Cause, message: str, failure: ItemError | None = None, *, status: str = ERROR
    ) -> ItemError:
        record = {**self._record(), **self._graded(), "status": status, "error": message}
        return ItemError(cause, message, retry_after=None if failure is None else failure.retry_after, record=record)

    def _together(self) -> Answer:
        """All answers as one: the conversation's messages, the last answer, the sums of figures."""
        if not self._answers:
            return read_text("", error="no turn was answered")
        figures: dict[str, Any] = {}
        for figure in FIGURES:
            known = [value for answer in self._answers if (value := getattr(answer, figure.name)) is not None]
            figures |= {figure.name: figure.of_turns(known)} if known else {}
        notices = tuple(notice for answer in self._answers for notice in answer.notices)
        found = read_record({"output": list(self._output), **figures})
        cached_in_input = any(answer.cached_in_input for answer in self._answers)
        last = self._answers[-1]
        return replace(
            found, text=last.text, notices=notices, collected=last.collected, cached_in_input=cached_in_input
        )

    def _record(self) -> dict[str, Any]:
        record = answer_record(self._item, self._together(), simulated=self._means.simulated())
        return {**record, "notices": [*record["notices"], *self._notices], "turns": self._turns}

    def _graded(self) -> dict[str, Any]:
        return {
            "scores": [score.to_json() for score in self._scores],
            "hits": [hit for score in self._scores for hit in score.hits],
            "misses": [miss for score in self._scores for miss in score.misses],
            "threshold": self._means.threshold,
        }


def _content(message: MessageJson) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else dumps(content).decode()


class SharedWorkspace(TestWorkspace):
    """A test's workspace as it is to each of its turns: made before the first, looked at after the last, and left alone between."""

    def __init__(self, whole: TestWorkspace) -> None:
        self._whole = whole
        self.path = whole.path

    @property
    def seen(self) -> Seen:
        return self._whole.seen

    def around(self, effect: Callable[[], Awaitable[Effect]]) -> Callable[[], Awaitable[Effect]]:
        return effect

    async def recall(self, output: Mapping[str, Json]) -> None:
        self._whole.check()

    async def begin(self) -> None:
        self._whole.check()

    async def end(self) -> None:
        return
