"""What the verifiers of tasks come to, in the records of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manyhands.core.errors import GraderError, ItemError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import GRADE
from manyhands.task_folders.trial import Verified

REWARDS = "rewards"
"""In an item's record: its rewards as the verifier gave them."""
VERIFIER = "verifier"
"""In an item's record: how the verifier ended."""


def graded_by_verifier(verified: Verified, record: Mapping[str, Any], reward: str | None) -> dict[str, Any]:
    """An item's record with the rewards and the score. ``reward``: the one that is the score. Raises ItemError(GRADER_ERROR), with the
    record, if there is no score."""
    from manyhands.graders.protocol import PASS_LIMIT, Score, verdict_of  # graders take long to import
    from manyhands.graders.trajectory.verifier import clipped, raw_score

    about: dict[str, Any] = {"exit_code": verified.exit_code, "seconds": verified.seconds}
    if verified.ended_processes:
        about["ended_processes"] = True
    if verified.rewards is None:
        error = verified.error or "the verifier gave no reward"
        raise ItemError(Cause.GRADER_ERROR, error, record={**record, VERIFIER: {**about, "error": error}})
    known = {**record, VERIFIER: about, REWARDS: dict(verified.rewards)}
    try:
        raw = raw_score(verified.rewards, reward)
    except GraderError as error:
        raise ItemError(Cause.GRADER_ERROR, f"{error} (--reward)", record=known) from error
    value = clipped(raw)
    verdict = verdict_of(value, PASS_LIMIT)
    score = Score(VERIFIER, VERIFIER, value, verdict)
    found = {"score": value, "verdict": verdict, "threshold": PASS_LIMIT, "scores": [score.to_json()]}
    return {**known, GRADE: found if value == raw else {**found, "clipped": raw}}
