"""The conversations of a batch, for exports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from manyhands.agents.task import AgentTask
from manyhands.agents.toolbox import RunTools
from manyhands.agents.trajectory import AGENT, PROGRAM
from manyhands.core.digests import content_key
from manyhands.core.messages import Message
from manyhands.core.outcomes import GRADE
from manyhands.core.usage import Usage
from manyhands.engine.contract import ItemRow, RecordedStep
from manyhands.engine.journal.reader import JournalReader
from manyhands.export.conversations import (
    Conversation,
    ConversationSource,
    judges_named,
    plain_turns,
    side_conversations,
    turns_of,
)
from manyhands.export.sharegpt_reading import messages_of
from manyhands.task_folders.agents import program_of
from manyhands.workloads.trajectories.items import PromptItem
from manyhands.workloads.trajectories.prepared import Prepared
from manyhands.workloads.trajectories.records import ADOPTED


class TrajectoryConversations(ConversationSource):
    """The one conversation of each prompt, with those of its judges."""

    def __init__(self, reader: JournalReader) -> None:
        super().__init__(reader)
        self._prepared = Prepared.from_json(self.spec, reader.folder.parent)
        self._tools = RunTools.recorded(self._prepared.mcp, self._prepared.toolsets)

    def conversations(self, row: ItemRow, steps: Sequence[RecordedStep], usage: Usage) -> Iterator[Conversation]:
        payload, record, options = PromptItem.of(row.item), row.record or {}, self._prepared.options
        found = self.begun(row, usage)
        found.label = payload.id or f"prompt {payload.prompt_index}"
        found.sample, found.source = payload.sample, payload.source
        found.prompt_key = content_key([payload.prompt, payload.system, list(payload.messages)])
        found.model, found.seed = record.get("model", options.model), record.get("seed")
        found.stop_reason = record.get("stop_reason")
        found.collected = record.get("collected")
        _graded(found, record.get(GRADE))
        if ADOPTED in record:
            if record[ADOPTED] is None:
                return
            found.turns = plain_turns(messages_of(record[ADOPTED]))
            found.model = None
            found.stop_reason = "answered" if record[ADOPTED].get("completed") else None
            yield found
            return
        if (program := next((step for step in steps if step.kind == AGENT), None)) is not None:
            found.agent = program_of(program.request["command"])
            found.version = program.output.get(PROGRAM, {}).get("version", "unknown")
            found.model = found.model or None
            found.turns = turns_of(steps)
        else:
            found.tools, found.tools_changed = self._tools_of(record, steps)
            found.ephemeral, found.prefill = options.ephemeral_system_prompt, self._prefill
            found.turns = turns_of(steps, head=self._head(payload, bool(found.tools)))
        found.others = judges_named(side_conversations(found, steps), found.scores)
        yield found

    @property
    def _prefill(self) -> Sequence[Message]:
        return cast(Sequence[Message], self._prepared.options.prefill_messages or ())

    def _head(self, payload: PromptItem, with_tools: bool) -> list[Message]:
        system = None if payload.system is None else (payload.system,)
        text = AgentTask(payload.prompt, system=system).system_message(with_tools)
        return [{"role": "system", "content": text}] if text else []

    def _tools_of(
        self, record: Mapping[str, Any], steps: Sequence[RecordedStep]
    ) -> tuple[Sequence[Mapping[str, Any]], bool]:
        """The tools of an item, and whether they are not as they were sent."""
        if "toolsets" not in record:
            return (), bool(steps)
        box = self._tools.toolbox(record["toolsets"])
        sent = next((step.request.get("tools") for step in steps if step.kind == "model"), box.digest)
        return box.definitions, sent != box.digest


def _graded(found: Conversation, grade: Mapping[str, Any] | None) -> None:
    if grade is not None:
        found.score, found.verdict, found.scores = grade["score"], grade["verdict"], grade["scores"]
