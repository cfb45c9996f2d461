"""A session held without an agent, an engine or a file, to see how its tests would be interleaved.

An agent that remembers nothing replies, and rules judge in place of a model; a reply takes no time. So a session is as long as can be
expected of an agent with short replies, and a test that stops where it is answered wrong is at its shortest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from manyhands.core.errors import UserError
from manyhands.core.usage import Usage
from manyhands.memory.actions import AskModel, Done, Evaluate, ResetAgent, Send, Travel
from manyhands.memory.agents.cost import CostEstimator
from manyhands.memory.agents.protocol import Incoming
from manyhands.memory.agents.scripted import NOTHING
from manyhands.memory.model import Evaluation
from manyhands.memory.report.timeline import Timeline, timeline_of
from manyhands.memory.rule_judge import rule_judge
from manyhands.memory.scheduler import Scheduler
from manyhands.memory.tokens import TokenCounter

MOST_ACTIONS = 2_000_000
"""After which a session counts as one without an end."""
START = 1_704_103_200.0
"""When sessions begin, in virtual time: seconds since 1970 UTC."""
Reply = Callable[[Incoming], str]


@dataclass(slots=True)
class SimulatedSession:
    """``judged``: how often the judge was asked, by test; ``messages``: how many the agent was sent; ``answered``: to how many of these it
    had to reply itself."""

    scheduler: Scheduler
    judged: dict[str, int] = field(default_factory=dict)
    messages: int = 0
    answered: int = 0
    now: float = START

    def timeline(self, tokens: TokenCounter) -> Timeline:
        return timeline_of(self.scheduler.events, tokens)


def forgetful(incoming: Incoming) -> str:
    """Remembers nothing."""
    return NOTHING if incoming.expected_reply is None else incoming.expected_reply


def simulate(
    scheduler: Scheduler,
    reply: Reply = forgetful,
    reset: Callable[[], None] = lambda: None,
    *,
    most_actions: int = MOST_ACTIONS,
) -> SimulatedSession:
    """Hold a session to its end. Raises UserError if it has none."""
    session = SimulatedSession(scheduler)
    for _ in range(most_actions):
        action = scheduler.next(session.now)
        match action:
            case Send():
                _send(session, action, reply)
            case AskModel():
                _note(session, action.test_id)
                scheduler.answered(rule_judge(action.ask), session.now)
            case Evaluate():
                scheduler.evaluated(_evaluated(session, action))
            case Travel():
                session.now = action.to
            case ResetAgent():
                reset()
            case Done():
                return session
            case _:
                pass
    raise UserError(f"the session has no end: after {most_actions:,} actions there are tests left")


def estimated_cost(scheduler: Scheduler, estimator: CostEstimator) -> Usage:
    """What a model would use in a session, as the agent ``cost(…)`` has it. Raises UserError if the session has no end."""
    simulate(scheduler, lambda incoming: estimator.answer(incoming).text, estimator.forget)
    return estimator.spent


def _send(session: SimulatedSession, send: Send, reply: Reply) -> None:
    session.messages += 1
    session.answered += send.expected_reply is None
    text = reply(Incoming(session.messages, send.message, session.now, send.expected_reply))
    session.scheduler.replied(text, session.now, session.now)


def _note(session: SimulatedSession, test_id: str) -> None:
    session.judged[test_id] = session.judged.get(test_id, 0) + 1


def _evaluated(session: SimulatedSession, action: Evaluate) -> Evaluation:
    scoring = session.scheduler.runs[action.test_id].test.dataset.evaluate(action.exchange)
    try:
        ask = next(scoring)
        while True:
            _note(session, action.test_id)
            ask = scoring.send(rule_judge(ask))
    except StopIteration as end:
        evaluation: Evaluation = end.value
        return evaluation
