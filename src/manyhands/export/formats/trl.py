"""The datasets of TRL, Hugging Face's trainers, from its ``docs/source/dataset_formats.md``.

Arguments of tool calls are objects here: nearly all chat templates write them out by themselves, and quote a text once more. Objects of
different shape make no column of one Arrow type, so in a folder (``--split``, ``--shard_rows``) a dataset card says that these are
columns of JSON, which ``datasets`` reads from 4.7 on; of a single file it has to guess that from the first ten megabytes. ``tools`` is in
every row: as JSON text, which TRL parses, or with ``--tools struct`` as objects. A call's content is empty, not null, which some
templates refuse. Reasoning is in ``reasoning_content``, the name that templates know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from manyhands.core.jsonio import Json
from manyhands.export.chat import tool_definitions
from manyhands.export.conversations import Conversation, Turn
from manyhands.export.format import Format, Unfit
from manyhands.export.formats.training import (
    CARD,
    JSON_LIST,
    count_untrained,
    hub_card,
    pair_of,
    prompt_and_rest,
    text_messages,
    tools_text,
    trainable,
    with_object_arguments,
)


class _Trl(Format):
    """What the layouts have in common."""

    reasoning = "field"
    columns: ClassVar[Mapping[str, str]]
    """The types of the columns but ``tools``."""

    def extra_files(self, files: Mapping[str, Sequence[str]]) -> Mapping[str, str]:
        tools = JSON_LIST if self.settings.tools == "struct" else "string"
        about = f"Conversations for TRL: {self.about}."
        return {CARD: hub_card(files, {**self._columns, "tools": tools}, about, simulated=self.simulated)}

    @property
    def _columns(self) -> Mapping[str, str]:
        return self.columns

    def _tools(self, conversation: Conversation) -> Json:
        return tool_definitions(conversation) if self.settings.tools == "struct" else tools_text(conversation)

    def _messages(self, turns: Sequence[Turn]) -> list[dict[str, Any]]:
        return with_object_arguments(text_messages(turns, self.reasoning_mode, self.losses))


class Messages(_Trl):
    """For ``SFTTrainer``: JSON Lines of ``{messages, tools}``, or with ``--layout prompt_completion`` of ``{prompt, completion, tools}``,
    the completion being the last answer.

    TRL has no flag for a message: of ``messages`` it trains on all, with ``assistant_only_loss=True`` on all answers, of a completion on
    all of it.
    """

    name = "messages"
    about = "TRL, supervised: whole conversations, or prompts and completions"
    options = frozenset({"tools", "layout", "best_of"})
    columns: ClassVar[Mapping[str, str]] = {"messages": JSON_LIST}

    @property
    def _columns(self) -> Mapping[str, str]:
        parts = self.settings.layout == "prompt_completion"
        return {"prompt": JSON_LIST, "completion": JSON_LIST} if parts else self.columns

    def rows(self, conversation: Conversation) -> Iterator[Mapping[str, Json]]:
        turns = trainable(conversation)
        if self.settings.layout == "messages":
            messages = self._messages(turns)
            count_untrained(turns, self.losses)
            yield {"messages": messages, "tools": self._tools(conversation)}
            return
        if not turns[-1].train:
            raise Unfit("whose last answer is not to be trained on")
        prompt, answer = prompt_and_rest(turns, len(turns) - 1)
        yield {
            "prompt": self._messages(prompt),
            "completion": self._messages(answer),
            "tools": self._tools(conversation),
        }


class Preference(_Trl):
    """For ``DPOTrainer`` and others that learn from pairs: JSON Lines of ``{prompt, chosen, rejected, score_chosen, score_rejected,
    tools}``.

    The prompt is what comes before the first answer; chosen and rejected are all that follows, with tool results, which TRL does not
    mask.
    """

    name = "preference"
    about = "TRL, preference: a prompt, what was better and what was worse, with scores"
    takes = "pairs"
    options = frozenset({"tools", "pairs", "min_gap"})
    needs_score = True
    columns: ClassVar[Mapping[str, str]] = {
        "prompt": JSON_LIST,
        "chosen": JSON_LIST,
        "rejected": JSON_LIST,
        "score_chosen": "float64",
        "score_rejected": "float64",
    }

    def pair(self, chosen: Conversation, rejected: Conversation) -> Mapping[str, Json]:
        prompt, better, worse = pair_of(chosen, rejected)
        row = {
            "prompt": self._messages(prompt),
            "chosen": self._messages(better),
            "rejected": self._messages(worse),
            "score_chosen": float(chosen.score or 0),
            "score_rejected": float(rejected.score or 0),
            "tools": self._tools(chosen),
        }
        count_untrained([*better, *worse], self.losses)
        return row


class Kto(_Trl):
    """For ``KTOTrainer``: JSON Lines of ``{prompt, completion, label, tools}``; the label is true from a score of ``--threshold`` on.

    Prompt and completion are divided as those of ``preference``.
    """

    name = "kto"
    about = "TRL, KTO: a prompt, what followed, and whether it was desirable"
    options = frozenset({"tools", "threshold", "best_of"})
    needs_score = True
    columns: ClassVar[Mapping[str, str]] = {"prompt": JSON_LIST, "completion": JSON_LIST, "label": "bool"}

    def rows(self, conversation: Conversation) -> Iterator[Mapping[str, Json]]:
        prompt, rest = prompt_and_rest(trainable(conversation))
        row = {
            "prompt": self._messages(prompt),
            "completion": self._messages(rest),
            "label": (conversation.score or 0) >= self.settings.threshold,
            "tools": self._tools(conversation),
        }
        count_untrained(rest, self.losses)
        yield row
