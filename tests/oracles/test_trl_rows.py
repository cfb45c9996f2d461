"""Folders for TRL, through its functions, its chat templates and one step of its trainers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.oracles import (
    EXAMPLES,
    check,
    format_of,
    made_conversations,
    made_pairs,
    pair_rows,
    read_lines,
    rows_of,
    write_folder,
)

OF_MODELS = (
    "roles must alternate",
    "System role not supported",
    "only supports single tool-calls at once",
    "Cannot pass both content and thinking",
    "str object",  # templates of vision models, which take content parts alone
    'can only concatenate str (not "dict")',  # deepseekv3: the only one that wants arguments as text
)
"""What chat templates refuse because their models have not learnt it."""
pytestmark = [pytest.mark.oracle, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("kind", "name", "settings"),
    [
        ("sft-answers", "messages", {}),
        ("sft", "messages", {"tools": "struct", "reasoning": "keep"}),
        ("sft", "messages", {"layout": "prompt_completion"}),
        ("dpo", "preference", {}),
        ("kto", "kto", {}),
    ],
)
def test_trl_takes_and_trains_on_every_row(tmp_path: Path, kind: str, name: str, settings: Mapping[str, Any]) -> None:
    format = format_of(name, **settings)
    if kind == "dpo":
        rows = list(pair_rows(format, made_pairs()))
    else:
        made = made_conversations()
        for number, conversation in enumerate(made):
            conversation.score = number % 4 / 3
        rows = list(rows_of(format, made))
    write_folder(tmp_path / "out", format, rows, shard_rows=300)
    found = check("trl", "trl_rows", kind, tmp_path / "out", home=tmp_path, timeout=800)
    refused = {what: name for name, those in found.pop("templates").items() for what in those}
    assert found == {"rows": EXAMPLES, "failures": [], "trained": EXAMPLES, "untrained": 0, "loss": True}
    assert [(what, name) for what, name in refused.items() if not any(known in what for known in OF_MODELS)] == []


def test_with_a_loss_of_answers_alone_these_are_learnt_and_nothing_else(tmp_path: Path) -> None:
    format, made = format_of("messages"), made_conversations()[:200]
    rows = list(rows_of(format, made))
    write_folder(tmp_path / "out", format, rows)
    check("trl", "trl_rows", "sft-answers", tmp_path / "out", home=tmp_path, timeout=800)
    for row, learnt in zip(rows, read_lines(tmp_path / "out.trained"), strict=True):
        assert learnt.count("<|im_start|>") == 0
        position = 0
        for message in row["messages"]:
            if message["role"] == "assistant":
                parts = [message.get("reasoning_content", ""), message["content"]]
                parts += [call["function"]["name"] for call in message.get("tool_calls", ())]
                for part in parts:
                    position = learnt.index(part, position)
