"""The datasets of Axolotl, from its ``docs/dataset-formats/conversation.qmd``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from manyhands.core.jsonio import Json
from manyhands.export.conversations import Conversation
from manyhands.export.format import Format
from manyhands.export.formats.training import (
    CARD,
    JSON_LIST,
    hub_card,
    text_messages,
    tools_text,
    trainable,
    with_text_arguments,
)

LINES = "axolotl.yaml"
_LINES = """\
# Paste this into the configuration of a training with Axolotl. The chat template must write tool calls and reasoning_content, as
# qwen3 does; with chatml or llama3 they are lost without a word.
chat_template: tokenizer_default
datasets:
"""
_DATASET = """\
  - path: {path}
    split: {split}
    type: chat_template
    field_messages: messages
    field_tools: tools
    message_field_training: train
    roles_to_train: [assistant]
    train_on_eos: turn
"""


class Axolotl(Format):
    """A folder of JSON Lines of ``{messages, tools}``, with the lines to paste into Axolotl's configuration.

    Reasoning is in ``reasoning_content``, the only field that it knows. Arguments are JSON text, which it parses itself: of objects it
    would drop what is null. ``train`` says of each answer whether it is trained on; ``tools`` is JSON text. A dataset card says the
    types.
    """

    name = "axolotl"
    about = (
        "Axolotl: messages with reasoning and a train flag for each answer; a folder with lines for its configuration"
    )
    reasoning = "field"
    in_folder = True

    def rows(self, conversation: Conversation) -> Iterator[Mapping[str, Json]]:
        turns = trainable(conversation)
        messages = with_text_arguments(text_messages(turns, self.reasoning_mode, self.losses))
        for turn, message in zip(turns, messages, strict=True):
            if turn.role == "assistant":
                message["train"] = turn.train
        yield {"messages": messages, "tools": tools_text(conversation)}

    def extra_files(self, files: Mapping[str, Sequence[str]]) -> Mapping[str, str]:
        path = json.dumps(self.settings.output or self.name, ensure_ascii=False)
        lines = _LINES
        for number, split in enumerate(files):
            if number == 1:
                lines += "test_datasets:\n"
            lines += _DATASET.format(path=path, split=split or "train")
        columns = {"messages": JSON_LIST, "tools": "string"}
        about = f"Conversations for Axolotl; see {LINES}."
        return {LINES: lines, CARD: hub_card(files, columns, about, simulated=self.simulated)}
