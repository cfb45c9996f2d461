"""Scoring trajectories: what graders get to see of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from manyhands.agents.task import AgentResult
from manyhands.core.messages import Message
from manyhands.engine.contract import Context
from manyhands.graders.conversations.grading import ConversationGrader, ended_conversation
from manyhands.graders.messages import figures_of
from manyhands.graders.protocol import MessageJson
from manyhands.workloads.trajectories.items import PromptItem


class TrajectoryGrader(ConversationGrader):
    """Scores the trajectories of a run. Made by ``opened``."""

    async def graded_trajectory(
        self,
        context: Context,
        payload: PromptItem,
        messages: Sequence[Message],
        result: AgentResult,
        record: Mapping[str, Any],
    ) -> dict[str, Any]:
        """As ``graded``. ``messages``: those that are saved."""
        times = record["times"]
        candidate = ended_conversation(
            context.item.key,
            [message for message in messages if "_given" not in message],
            question=payload.prompt,
            input=_input(payload),
            source=payload.source,
            figures=figures_of(result.usage + result.tool_usage, round(1000 * (times["finished"] - times["began"]), 3)),
            failed=sum(use.failed for use in result.tool_uses),
            folder=self.folder,
        )
        return await self.graded(context, candidate, record)


def _input(payload: PromptItem) -> tuple[MessageJson, ...]:
    """The row's own conversation."""
    system: list[MessageJson] = [{"role": "system", "content": payload.system}] if payload.system is not None else []
    opening = payload.messages or [{"role": "user", "content": payload.prompt}]
    return (*system, *(dict(message) for message in opening))
