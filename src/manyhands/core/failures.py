"""The one table of failures: what each cause means for retry, for scores and for reports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Why an attempt at an item failed. The value is what the journal, the files and the command line show."""

    MODEL_ERROR = "model_error"
    """The endpoint failed: 5xx, a broken connection, a truncated or unreadable answer."""
    MODEL_REFUSED = "model_refused"
    """The endpoint refused the request for good: 400, 404, 422, unknown model."""
    AUTHENTICATION = "authentication"
    """No key, a wrong key, no permission (401, 403)."""
    PAYMENT = "payment"
    """The account has no credit (402)."""
    RATE_LIMIT = "rate_limit"
    """429 or 529 for longer than anyone waits."""
    CONTEXT_OVERFLOW = "context_overflow"
    """The conversation does not fit the model's context window."""
    SANDBOX_LOST = "sandbox_lost"
    """The sandbox could not be made, or died."""
    SANDBOX_LIMIT = "sandbox_limit"
    """What ran in the sandbox took more disk space than it may, and did not stop at that."""
    TOOL_ERROR = "tool_error"
    """A tool's own code broke (not: a command that failed, which the model sees and handles)."""
    TIMEOUT = "timeout"
    """The item's wall-clock limit."""
    INVALID_OUTPUT = "invalid_output"
    """What came out does not fit what was requested."""
    INVALID_INPUT = "invalid_input"
    """The item itself can't be executed as given."""
    WORKER_CRASH = "worker_crash"
    """The process that executed the item died."""
    NODE_LOST = "node_lost"
    """The machine on which it was executed is gone. Ten times of an item count for nothing."""
    WORKER_ERROR = "worker_error"
    """The external command or function that was to do the work failed."""
    TARGET_ERROR = "target_error"
    """What was questioned gave no answer that could be graded."""
    GRADER_ERROR = "grader_error"
    """A grader broke; says nothing about what was graded."""
    INTERNAL = "internal"
    """A defect of this program or of a plug-in."""
    OVER_BUDGET = "over_budget"
    """The run's budget was used up before the item could end."""
    CANCELLED = "cancelled"
    """A person stopped it."""


@dataclass(frozen=True, slots=True)
class FailureRule:
    """What happens after a failure."""

    retried: bool
    max_attempts: int = 1
    """How often an item may be executed in all before this cause ends it. A run's own ``max_attempts`` lowers or raises it where
    ``retried``."""
    delay: float = 0.0
    """Seconds before an item is executed for the second time, doubled for each further time."""
    max_delay: float = 60.0
    """Seconds that ``delay`` grows to at most."""
    fresh_attempt: bool = False
    """Whether the item then starts from nothing rather than from its last recorded step."""
    counts: bool = False
    """Whether an evaluation counts the item as the target's failure (True) or as an error without a score (False)."""
    blameless: int = 0
    """How many such failures of an item say nothing of it, so that they count for nothing. From the next one on it is to blame as well."""
    stops_run: bool = False
    """Whether the rest of the run would meet the same failure, so that claiming stops and the items stay pending."""


FAILURES: dict[Cause, FailureRule] = {
    Cause.MODEL_ERROR: FailureRule(retried=True, max_attempts=3, delay=2.0),
    Cause.MODEL_REFUSED: FailureRule(retried=False),
    Cause.AUTHENTICATION: FailureRule(retried=False, stops_run=True),
    Cause.PAYMENT: FailureRule(retried=False, stops_run=True),
    Cause.RATE_LIMIT: FailureRule(retried=True, max_attempts=5, delay=15.0, max_delay=300.0),
    Cause.CONTEXT_OVERFLOW: FailureRule(retried=False, counts=True),
    Cause.SANDBOX_LOST: FailureRule(retried=True, max_attempts=3, delay=1.0),
    Cause.SANDBOX_LIMIT: FailureRule(retried=False, fresh_attempt=True, counts=True),
    Cause.TOOL_ERROR: FailureRule(retried=True, max_attempts=2, delay=1.0),
    Cause.TIMEOUT: FailureRule(retried=False, counts=True),
    Cause.INVALID_OUTPUT: FailureRule(retried=True, max_attempts=2, fresh_attempt=True, counts=True),
    Cause.INVALID_INPUT: FailureRule(retried=False),
    Cause.WORKER_CRASH: FailureRule(retried=True, max_attempts=3, delay=1.0),
    Cause.NODE_LOST: FailureRule(retried=True, max_attempts=3, delay=1.0, blameless=10),
    Cause.WORKER_ERROR: FailureRule(retried=True, max_attempts=2, delay=1.0, fresh_attempt=True, counts=True),
    Cause.TARGET_ERROR: FailureRule(retried=False),
    Cause.GRADER_ERROR: FailureRule(retried=True, max_attempts=2, delay=1.0),
    Cause.INTERNAL: FailureRule(retried=False),
    Cause.OVER_BUDGET: FailureRule(retried=False, stops_run=True),
    Cause.CANCELLED: FailureRule(retried=False),
}
