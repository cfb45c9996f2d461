"""Rows for OpenAI's fine-tuning, by the types of OpenAI's client."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyhands.export.conversations import Conversation
from tests.support.oracles import (
    EXAMPLES,
    check,
    format_of,
    made_conversations,
    made_pairs,
    pair_rows,
    rows_of,
    write_lines,
)

pytestmark = [pytest.mark.oracle, pytest.mark.timeout(600)]


@pytest.mark.parametrize("reasoning", ["drop", "keep"])
def test_all_messages_and_tools_have_openais_types(tmp_path: Path, reasoning: str) -> None:
    rows = rows_of(format_of("openai", reasoning=reasoning), made_conversations())
    path = write_lines(tmp_path / "rows.jsonl", rows)
    assert check("openai", "openai_messages", path, home=tmp_path) == {"rows": EXAMPLES, "rejects": []}


def test_all_pairs_have_openais_types(tmp_path: Path) -> None:
    alike = [pair for pair in made_pairs() if all(answers(each) == 1 for each in pair)]
    assert len(alike) > EXAMPLES / 10
    path = write_lines(tmp_path / "rows.jsonl", pair_rows(format_of("openai-dpo"), alike))
    assert check("openai", "openai_messages", path, home=tmp_path) == {"rows": len(alike), "rejects": []}


def test_images_have_openais_types(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    made = [each for each in made_conversations() if each.tools and len(each.turns) > 4]
    for conversation in made:
        for turn in conversation.turns:
            if turn.role in ("user", "tool"):
                turn.message["content"] = [{"type": "text", "text": "See:"}, image]
    path = write_lines(tmp_path / "rows.jsonl", rows_of(format_of("openai"), made))
    assert check("openai", "openai_messages", path, home=tmp_path) == {"rows": len(made), "rejects": []}


def answers(conversation: Conversation) -> int:
    return sum(turn.role == "assistant" for turn in conversation.turns)
