"""How calls of a model that fail are tried again."""

from __future__ import annotations

from dataclasses import dataclass, replace

from manyhands.core.digests import derived_random
from manyhands.core.failures import Cause
from manyhands.models.openai_errors import Problem

TRIES = 4
"""How often a call is tried in all when what broke may pass by itself."""
LONGEST_DELAY = 60.0
LEAST_STATUS, MOST_STATUS = 400, 599
"""The HTTP statuses that mean an error."""
_TOO_MANY_REQUESTS = 429


@dataclass(frozen=True, slots=True)
class Retries:
    """``tries``: how often a call is tried in all. The pause after the nth failure is ``delay · factorⁿ⁻¹`` seconds, up to a quarter more
    or less so that calls which failed together don't return together, and no more than ``longest_delay``.

    ``statuses``: the HTTP statuses that are tried again, and no other ones are; each such answer counts as a try. None: what an error
    means decides (``openai_errors.classify``), and rate limits are waited out beside the tries, unless there is but one.
    """

    tries: int = TRIES
    delay: float = 1.0
    longest_delay: float = LONGEST_DELAY
    factor: float = 2.0
    statuses: frozenset[int] | None = None

    def pause(self, failures: int, digest: str) -> float:
        """Seconds before the next try. ``digest``: the request's, so that its pauses are always the same."""
        delay = self.delay
        for _ in range(failures - 1):
            delay = min(delay * self.factor, self.longest_delay)
        return min(delay * (0.75 + 0.5 * derived_random("retry", digest, failures).random()), self.longest_delay)

    def judged(self, problem: Problem) -> Problem:
        """The problem, tried again if its status is one of ``statuses``. Those that waiting can't mend are not, whatever the status."""
        if self.statuses is None or problem.status is None or _is_lasting(problem):
            return problem
        return replace(problem, passing=problem.status in self.statuses)

    def waits_out(self, problem: Problem) -> bool:
        """Whether a problem is a rate limit that is waited out, however often it comes."""
        return problem.rate_limited and self.tries > 1 and (self.statuses is None or problem.status is None)


def _is_lasting(problem: Problem) -> bool:
    no_credit = problem.cause is Cause.PAYMENT and problem.status == _TOO_MANY_REQUESTS
    return no_credit or problem.cause is Cause.CONTEXT_OVERFLOW


ONCE = Retries(tries=1)
"""No call is made a second time."""
