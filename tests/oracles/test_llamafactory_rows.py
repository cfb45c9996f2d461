"""Folders for LLaMA-Factory, through its converter and the formatters of its templates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from manyhands.export.conversations import Conversation
from tests.support.oracles import (
    EXAMPLES,
    check,
    difference,
    format_of,
    made_conversations,
    read_lines,
    rows_of,
    write_folder,
)

pytestmark = [pytest.mark.oracle, pytest.mark.timeout(600)]


@pytest.mark.parametrize("reasoning", ["keep", "drop", "field"])
def test_no_row_is_skipped_and_every_call_is_understood(tmp_path: Path, reasoning: str) -> None:
    made, format = made_conversations(), format_of("llamafactory", reasoning=reasoning)
    write_folder(tmp_path / "out", format, list(rows_of(format, made)), ("train", "valid"), shard_rows=300)
    found = check("llamafactory", "llamafactory_rows", tmp_path / "out", tmp_path / "copy", home=tmp_path)
    assert found == {"rows": EXAMPLES, "skipped": 0, "warnings": [], "failures": []}
    for conversation, row in zip(made, read_lines(tmp_path / "copy"), strict=True):
        assert difference([each["calls"] for each in row["parsed"]], calls_of(conversation)) == ""
        assert row["roles"][-1] == "assistant"
        if reasoning == "keep":
            assert_said(conversation, [each["rest"] for each in row["parsed"]])


def test_rows_of_sharegpt_are_read_too(tmp_path: Path) -> None:
    """With the names of its speakers; calls and results are texts there."""
    rows = list(rows_of(format_of("sharegpt"), made_conversations()))
    write_folder(tmp_path / "out", format_of("sharegpt"), rows)
    names = {"role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt"}
    tags = {**names, "observation_tag": "tool", "function_tag": "function_call", "system_tag": "system"}
    info = {
        "file_name": "train.jsonl",
        "formatting": "sharegpt",
        "columns": {"messages": "conversations"},
        "tags": tags,
    }
    (tmp_path / "out/dataset_info.json").write_text(json.dumps({"ours": info}))
    found = check("llamafactory", "llamafactory_rows", tmp_path / "out", tmp_path / "copy", home=tmp_path)
    assert found == {"rows": EXAMPLES, "skipped": 0, "warnings": [], "failures": []}


def calls_of(conversation: Conversation) -> list[list[list[object]]]:
    """Name and arguments of each call, by message."""
    return [
        [[call["function"]["name"], json.loads(call["function"]["arguments"])] for call in calls]
        for message in conversation.messages
        if (calls := message.get("tool_calls"))
    ]


def assert_said(conversation: Conversation, rest: list[str]) -> None:
    """What was thought and said beside calls is still there, unless it has tags."""
    with_calls = [message for message in conversation.messages if message.get("tool_calls")]
    for message, text in zip(with_calls, rest, strict=True):
        for wanted in (message.get("reasoning") or "", message.get("content") or ""):
            if "<" not in wanted:
                assert wanted.strip() in text
