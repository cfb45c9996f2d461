"""Rows of chat messages, as fine-tuning at OpenAI and TRL have them.

``messages`` with ``tools``; or ``prompt`` and ``completion``, each as messages or text. Layouts: OpenAI's guide to supervised fine-tuning,
and the page on dataset formats in TRL's documentation.
"""

from __future__ import annotations

from pathlib import Path

from manyhands.export.conversations import Conversation, Turn
from manyhands.export.readers.chat import Calls, begun, chat_turns, ending_of, tool_definitions
from manyhands.export.readers.fields import Field
from manyhands.export.readers.reader import Reader, other_fields

_TAKEN = ("messages", "tools", "functions", "parallel_tool_calls")


class MessagesReader(Reader):
    """Rows with ``messages``, or with ``prompt`` and ``completion``."""

    name = "messages"
    about = "chat messages with tools, as OpenAI's fine-tuning and TRL have them"

    def conversation(self, row: Field, path: Path) -> Conversation:
        messages = row.get("messages").parsed()
        taken: tuple[str, ...] = _TAKEN
        if messages.given:
            turns = chat_turns(messages)
        elif row.get("prompt").given and row.get("completion").given:
            turns, taken = _prompt_and_completion(row), (*_TAKEN, "prompt", "completion")
        else:
            raise row.error('has no "messages", and no "prompt" with a "completion"')
        if not turns:
            raise messages.error("has no messages")
        parallel = row.get("parallel_tool_calls")
        key, id_field = self.row_id(row)
        found = begun(key)
        found.turns, found.tools = turns, tool_definitions(row.first("tools", "functions"))
        found.stop_reason = ending_of(turns)
        found.parallel_tool_calls = parallel.flag() if parallel.given else None
        found.source = other_fields(row, *taken, id_field, *with_figures(found, row))
        return found


def with_figures(conversation: Conversation, row: Field) -> list[str]:
    """Give a conversation what a row says of its score and model, where it says it in a way that is known; the names of those fields.
    Whether a model was simulated is never lost."""
    taken = []
    score, model = row.get("score").value, row.get("model").value
    if isinstance(score, (int, float)) and not isinstance(score, bool) and 0 <= score <= 1:
        conversation.score = float(score)
        taken.append("score")
    if isinstance(model, str) and model:
        conversation.model = model
        taken.append("model")
    if isinstance(row.get("simulated").value, bool):
        conversation.simulated = row.get("simulated").value
        taken.append("simulated")
    return taken


def _prompt_and_completion(row: Field) -> list[Turn]:
    """The answers in a prompt are there to be gone on from, so they are not trained on."""
    calls = Calls()
    prompt, completion = (
        _as_list(row.get(name), role) for name, role in (("prompt", "user"), ("completion", "assistant"))
    )
    return [*chat_turns(prompt, trained=False, calls=calls), *chat_turns(completion, calls=calls)]


def _as_list(field: Field, role: str) -> Field:
    if isinstance(field.value, str):
        return Field([{"role": role, "content": field.value}], field.path)
    return field
