"""An agent of your own, in a package of your own: the built-in one, asked once to check its answer."""

from __future__ import annotations

from typing import Any

from manyhands.agents.loop import FollowUp, run_agent
from manyhands.agents.task import AgentResult, AgentTask
from manyhands.engine.contract import Context

CHECK = "Check your answer against the task, and give it again, corrected where that is needed."


async def careful(
    context: Context, task: AgentTask, *, follow_up: FollowUp | None = None, **others: Any
) -> AgentResult:
    """Have the agent check its answer before anything else is said to it."""

    def said(times: int) -> str | None:
        if times == 0:
            return CHECK
        return None if follow_up is None else follow_up(times - 1)

    return await run_agent(context, task, follow_up=said, **others)
