"""Folders for Axolotl, loaded and tokenized by Axolotl."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.oracles import check, format_of, made_conversations, read_lines, rows_of, write_folder

pytestmark = [pytest.mark.oracle, pytest.mark.timeout(900)]


def test_axolotl_takes_every_row_and_learns_what_is_marked(tmp_path: Path) -> None:
    made = made_conversations()
    for number, conversation in enumerate(made):
        first = next(turn for turn in conversation.turns if turn.train)
        first.train = number % 3 > 0 or first is conversation.turns[-1]
    format = format_of("axolotl", output=str(tmp_path / "out"))
    rows = list(rows_of(format, made))
    write_folder(tmp_path / "out", format, rows, ("train", "valid"))
    found = check("axolotl", "axolotl_rows", tmp_path / "out", tmp_path / "learnt", home=tmp_path, timeout=800)
    assert found == {"datasets": {"train": 500, "valid": 500}, "failures": [], "untrained": 0}
    for row, learnt in zip(rows, read_lines(tmp_path / "learnt"), strict=True):
        ends = sum(message["role"] == "assistant" and message["train"] for message in row["messages"])
        said = sum(str(message).count("<|im_end|>") for message in row["messages"])
        assert ends <= learnt.count("<|im_end|>") <= ends + said
        position = 0
        for message in row["messages"]:
            if message.get("train"):
                for part in (message.get("reasoning_content", ""), message["content"].strip()):
                    position = learnt.index(part, position)
