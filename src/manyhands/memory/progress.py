"""Where a session stands, for whoever watches it."""

from __future__ import annotations

from dataclasses import dataclass

from manyhands.memory.session import Session


@dataclass(frozen=True, slots=True)
class WaitingTest:
    """A test that waits. ``tokens``: of conversation that it still waits for; ``seconds``: of virtual time."""

    test: str
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Standing:
    """``speaking``: the test whose message was last sent, empty for filler; ``now``: virtual time, in seconds since 1970 UTC;
    ``tokens``: of the whole conversation; ``ended``, ``tests``: how many tests have ended, and how many there are; ``score``: the mean of
    those that have; ``real_until``: a time of day, where real time has to pass until then."""

    agent: str
    speaking: str
    waiting: tuple[WaitingTest, ...]
    now: float
    tokens: int
    ended: int
    tests: int
    score: float | None
    real_until: float | None = None


def standing(session: Session) -> Standing:
    """Where it stands now."""
    scheduler = session.scheduler
    total = scheduler.counters.total_tokens
    waiting = tuple(
        WaitingTest(test, max(0, target.tokens - total), max(0.0, target.time - session.now))
        for test, target in ((test, scheduler.waiting[test]) for test in scheduler.waiting)
    )
    shares = [each.evaluation.share for each in scheduler.ended if each.test.id not in session.unscored]
    return Standing(
        session.agent.name,
        session.sending.test_id if session.sending is not None else "",
        tuple(sorted(waiting, key=lambda each: (each.tokens, each.seconds))),
        session.now,
        total,
        len(scheduler.ended),
        len(scheduler.ended) + len(scheduler.tests),
        sum(shares) / len(shares) if shares else None,
        session.real_until,
    )
