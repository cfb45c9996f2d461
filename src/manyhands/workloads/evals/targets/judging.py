"""Targets as judges that are no models: a command, an agent's program, a function, the mock.

Graders ask them as they ask a model: the conversation becomes one prompt, and the answer's text is read like a model's reply. A known
agent works in the workspace of the test that is judged; a command of the person's own starts where it always does, and
``{WORKSPACE}`` is that workspace.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from manyhands.core.clock import Clock
from manyhands.core.errors import GraderError, ItemError
from manyhands.core.failures import Cause
from manyhands.core.messages import Message, text_of
from manyhands.core.usage import ZERO, Reserve, Usage, as_cost
from manyhands.engine.contract import CallReport, Limits
from manyhands.graders.protocol import Judge
from manyhands.models.protocol import ChatRequest, ChatSettings, Completion
from manyhands.workloads.evals.targets.answers import Answer

NO_TEST = "judge"
"""The id of the test where a judge is asked by a grader's program, which names none."""
_BROKEN = (Cause.WORKER_ERROR, Cause.INVALID_OUTPUT, Cause.INVALID_INPUT)
"""Failures of a judge that don't pass by themselves."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a judge is asked."""

    test_id: str
    """The test whose answer is judged."""
    prompt: str
    workspace: Path | None = None
    """That test's."""


Ask = Callable[[Asked], Awaitable[Answer]]


def judge_of(name: str, ask: Ask, *, simulated: bool = False) -> Judge:
    """A target as a judge. ``name``: the target's; ``ask``: has it answer a prompt; ``simulated``: whether its answers are made up."""
    model = TargetModel(name, ask, simulated=simulated)
    return Judge(name, model, ChatSettings(name), model.working)


@dataclass(frozen=True, slots=True)
class TargetModel:
    """A ``ChatModel`` that has a target answer."""

    name: str
    ask: Ask
    simulated: bool = False
    test_id: str = NO_TEST
    """The test whose answer is judged."""
    workspace: Path | None = None
    """That test's."""

    def working(self, test_id: str, workspace: Path | None) -> TargetModel:
        """The like for a test."""
        return replace(self, test_id=test_id, workspace=workspace)

    async def complete(self, request: ChatRequest, limits: Limits, clock: Clock) -> Completion:
        """Ask once. Raises GraderError if the target fails, ItemError for what may pass, as a timeout."""
        permit = await limits.acquire(f"judge {self.name}", Reserve())
        report = CallReport(failed=True)
        try:
            answer = await self.ask(Asked(self.test_id, prompt_of(request.messages), self.workspace))
            usage = self._usage(answer)
            report = CallReport(usage)
        except ItemError as error:
            if error.cause not in _BROKEN:
                raise
            raise GraderError(f"the judge {self.name} can't be asked: {error.message}") from error
        finally:
            limits.release(permit, report)
        if answer.error is not None:
            raise GraderError(f"the judge {self.name} gave no answer: {answer.error}")
        return Completion({"role": "assistant", "content": answer.text}, "stop", usage)

    async def close(self) -> None:
        """Nothing is open."""

    def _usage(self, answer: Answer) -> Usage:
        """What the target says that it used."""
        tokens, cost = answer.token_usage or {}, as_cost(answer.cost_usd)
        if not tokens and cost is None and not self.simulated:
            return ZERO
        return Usage(
            calls=1,
            input_tokens=int(tokens.get("input", 0)),
            output_tokens=int(tokens.get("output", 0)),
            cached_tokens=int(tokens.get("cached", 0)),
            cost=cost or 0.0,
            unpriced_calls=int(cost is None and not self.simulated),
            simulated_calls=int(self.simulated),
        )


def prompt_of(messages: Sequence[Message]) -> str:
    """A conversation as one text. What the judge itself said before is marked as that."""
    texts = [(message["role"], text_of(message.get("content"))) for message in messages]
    return "\n\n".join(
        f"[[ ## your earlier reply ## ]]\n{text}" if role == "assistant" else text for role, text in texts
    )
