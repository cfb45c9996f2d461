"""Imported conversations for people, for summaries and for exports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from manyhands.core.messages import text_of
from manyhands.core.outcomes import GRADE
from manyhands.core.usage import Usage
from manyhands.engine.contract import ItemRow, RecordedStep
from manyhands.export.conversations import Conversation, ConversationSource, Turn, judges_named, side_conversations
from manyhands.runs.summaries import Figure, ItemFacts, Summarizer, figure, number_in
from manyhands.workloads.imported.planning import ImportedItem
from manyhands.workloads.imported.results import SUMMARY, score_of


class ImportedConversations(ConversationSource):
    """The conversation of each item, with those of its judges: here, and where it took place."""

    def conversations(self, row: ItemRow, steps: Sequence[RecordedStep], usage: Usage) -> Iterator[Conversation]:
        found = ImportedItem.of(row.item).conversation
        found.run, found.run_id = found.run or self.reader.folder.name, found.run_id or self.run_id
        found.workload = found.workload or self.workload
        found.item, found.key = found.item or row.number, found.key or row.key
        found.label = found.label or found.key
        found.state, found.reason = row.state, row.reason or row.cause
        found.usage = found.usage + usage
        if (grade := (row.record or {}).get(GRADE)) is not None:
            found.score, found.verdict, found.scores = grade["score"], grade["verdict"], grade["scores"]
        found.simulated = found.simulated or usage.simulated_calls > 0
        found.others = [*found.others, *judges_named(side_conversations(found, steps), found.scores)]
        yield found


class ImportedSummarizer(Summarizer):
    """What a conversation was asked and what it came to, and its score: that of graders here, else the one that it came with."""

    def facts(self, row: ItemRow) -> ItemFacts:
        found = ImportedItem.of(row.item).conversation
        return ItemFacts(
            found.label or row.key,
            found.sample,
            *score_of(found, row.record),
            input=_first(found.turns, "user"),
            outcome=row.message or _first(reversed(found.turns), "assistant") or found.stop_reason,
        )

    def figures(self) -> list[Figure]:
        found = self.read_results(SUMMARY)
        is_scored = bool(number_in(found, "scores", "scored"))
        return [figure("mean_score", number_in(found, "scores", "mean"), ".3f")] if is_scored else []


def _first(turns: Any, role: str) -> str:
    return next((text for turn in turns if turn.role == role and (text := text_of(turn.message.get("content")))), "")


def described_turns(item: ImportedItem) -> Iterator[tuple[str, str]]:
    """The turns of a conversation as people are shown them: pairs of a label and text."""
    conversation = item.conversation
    yield "from", item.place
    if conversation.tools:
        yield "tools", ", ".join(str(tool["function"]["name"]) for tool in conversation.tools)
    for turn in conversation.turns:
        yield from _described(turn)


def _described(turn: Turn) -> Iterator[tuple[str, str]]:
    message, given = turn.message, " (given)" if "_given" in turn.message else ""
    name = f", {message['name']}" if "name" in message else ""
    if message.get("reasoning"):
        yield f"{turn.role}{given}, reasoning", message["reasoning"]
    calls = message.get("tool_calls") or ()
    if (text := text_of(message.get("content"))) or not calls:
        yield f"{turn.role}{name}{given}", text
    for call in calls:
        yield f"{turn.role}{given}, calls", f"{call['function']['name']}({call['function']['arguments']})"
