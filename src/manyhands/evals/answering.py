"""What a target is to the workload: something that answers a test."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from manyhands.engine.context import Context
from manyhands.evals.model import Test
from manyhands.evals.records import Answer
from manyhands.evals.workspaces import TestWorkspace


class Answerer(Protocol):
    """A target, ready to be questioned. Made by ``Opening``; one for each target of each eval file."""

    @property
    def simulated(self) -> bool:
        """Whether its answers are made up."""
        ...

    async def answer(self, context: Context, test: Test, trial: int, workspace: TestWorkspace | None = None) -> Answer:
        """``workspace``: where it works, if the test has a workspace; the answerer has it made when the target is really asked.

        Whatever is paid for or takes effect outside is a step of the context, so that a resumed run does not ask again. An answer
        with an ``error`` is a target that failed. Raises ItemError for what may pass (an endpoint that is down …).
        """
        ...


class Talk(Answerer, Protocol):
    """An answerer of all turns of one conversation."""

    def still(self) -> AbstractAsyncContextManager[None]:
        """Within this nothing that the target started runs, so that what is in its workspace can be looked at."""
        ...


@runtime_checkable
class Conversational(Protocol):
    """An answerer that keeps something from one turn of a conversation to the next."""

    def conversing(self, context: Context) -> AbstractAsyncContextManager[Talk]:
        """What answers all turns of one conversation. ``context``: the item's, of which each turn has a scope."""
        ...


Opening = AbstractAsyncContextManager[Answerer]
