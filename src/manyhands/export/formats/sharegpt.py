"""Conversations as a batch's ``trajectories.jsonl`` has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from manyhands.agents.task import BASE_PROMPT, TOOLS_PROMPT, WHOLE
from manyhands.core.jsonio import Json, line
from manyhands.core.messages import Message, text_of
from manyhands.export.chat import check_answered, images_in
from manyhands.export.conversations import Conversation
from manyhands.export.format import Format, Losses, Unfit
from manyhands.export.formats.training import (
    IMAGES,
    argument_object,
    check_calls,
    count_untrained,
    ordered_results,
)
from manyhands.export.settings import ExportSettings
from manyhands.export.sharegpt import Escaping, SystemTurns, Turn, to_sharegpt
from manyhands.export.sharegpt_reading import ESCAPED_TAGS

NO_SCORE = -1.0
"""Of what was not graded; no column is null, so that all files have the same types."""
NO_SEED = -1
_OUR_PROMPTS = (BASE_PROMPT, f"{BASE_PROMPT}\n\n{TOOLS_PROMPT}")
"""System messages that trajectories do not repeat, because nobody gave them."""


class ShareGpt(Format):
    """JSON Lines of ``{conversations, metadata, completed, partial}``: turns from system, human, gpt and tool as in ``trajectories.jsonl``.

    The system turn has this program's wording around the tools. Reasoning stands between think tags (with ``drop``, the tags stand
    alone; with ``field``, it is in the turn's ``reasoning``), and tags in texts are escaped. ``export.sharegpt_reading`` reads it back.
    """

    name = "sharegpt"
    about = "ShareGPT: the turns of trajectories.jsonl, with what is known of a conversation as metadata"
    reasoning = "keep"

    def __init__(self, settings: ExportSettings, losses: Losses) -> None:
        super().__init__(settings, losses)
        self._system_turns = SystemTurns()

    def rows(self, conversation: Conversation) -> Iterator[Mapping[str, Json]]:
        check_answered(conversation)
        check_calls(conversation.turns)
        messages = conversation.messages
        system = messages[0] if messages[0]["role"] == "system" else None
        spoken = ordered_results(messages[1:] if system is not None else messages)
        if any(message["role"] == "system" for message in spoken):
            raise Unfit("with a system message behind the first")
        own = None if system is None else text_of(system.get("content"))
        given = None if own in _OUR_PROMPTS else own or None
        turns, tags = self._turns(spoken, given, conversation.tools)
        self._count(conversation)
        self.losses.add("system prompts of this program", own in _OUR_PROMPTS)
        yield {
            "conversations": turns,
            "metadata": _metadata(conversation, given, tags),
            "completed": not conversation.truncated,
            "partial": conversation.stop_reason not in WHOLE,
        }

    def _turns(
        self, messages: Sequence[Message], own: str | None, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[Sequence[Turn], int]:
        escaping = Escaping()
        text, tags = self._system_turns.of_definitions(tools)
        system = f"{escaping.text(own)}\n\n{text}" if own else text
        kept = messages if self.reasoning_mode == "keep" else [_without_reasoning(message) for message in messages]
        turns = to_sharegpt(kept, system, keep_synthetic=True, escaping=escaping)
        if self.reasoning_mode == "field":
            thoughts = iter([message.get("reasoning") or "" for message in messages if message["role"] == "assistant"])
            turns = [{**turn, "reasoning": next(thoughts) if turn["from"] == "gpt" else ""} for turn in turns]
        return turns, tags + escaping.count

    def _count(self, conversation: Conversation) -> None:
        self.losses.add(IMAGES, images_in(conversation.turns))
        count_untrained(conversation.turns, self.losses)
        if self.reasoning_mode == "drop":
            thoughts = sum(bool((message.get("reasoning") or "").strip()) for message in conversation.messages)
            self.losses.add("messages' reasoning", thoughts)
        calls = [call for message in conversation.messages for call in message.get("tool_calls") or ()]
        self.losses.add(
            "calls' unreadable arguments", sum(not _readable(call["function"]["arguments"]) for call in calls)
        )


def _metadata(conversation: Conversation, given: str | None, tags: int) -> dict[str, Any]:
    usage = conversation.usage.to_json()
    cost = usage.pop("cost", 0.0)
    began, ended = conversation.started_at, conversation.finished_at
    return {
        "run": conversation.run,
        "prompt": conversation.prompt_key,
        "item": conversation.key,
        "name": conversation.name,
        "sample": conversation.sample,
        "attempt": conversation.attempt,
        "timestamp": "" if ended is None else datetime.fromtimestamp(ended, UTC).isoformat(timespec="microseconds"),
        "model": conversation.model or "",
        "agent": conversation.agent or "",
        "seed": NO_SEED if conversation.seed is None else conversation.seed,
        "stop_reason": conversation.stop_reason or "",
        "finished_at": 0.0 if ended is None else float(ended),
        "duration_seconds": 0.0 if began is None or ended is None else round(float(ended - began), 3),
        "simulated": conversation.simulated,
        "usage": usage,
        "cost": float(cost or 0),
        ESCAPED_TAGS: tags,
        "score": NO_SCORE if conversation.score is None else float(conversation.score),
        "verdict": conversation.verdict or "",
        "given": line({"system": given}) if given else "{}",
        "source": line(dict(conversation.source)),
    }


def _without_reasoning(message: Message) -> Message:
    return cast(Message, {key: value for key, value in message.items() if key != "reasoning"})


def _readable(arguments: Json) -> bool:
    try:
        argument_object(arguments)
    except Unfit:
        return False
    return True
