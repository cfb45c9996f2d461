"""Traces and tables for analysis, by the code of those who read them: Harbor, atif, verifiers, datasets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.messages import text_of
from manyhands.core.usage import ZERO
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
    write_lines,
)

pytestmark = [pytest.mark.oracle, pytest.mark.timeout(600)]


def with_judges() -> list[Conversation]:
    """The made conversations, every third with two others that took place for it."""
    found = made_conversations()
    for at in range(0, len(found) - 2, 3):
        judges = [replace(found[at + more], name=f"judge {more}", usage=ZERO, others=()) for more in (1, 2)]
        found[at].others = judges
        found[at].usage = sum((judge.own_usage for judge in judges), start=found[at].usage)
    return found


@pytest.mark.parametrize("library", ["harbor", "atif"])
@pytest.mark.parametrize("version", ["1.7", "1.8"])
@pytest.mark.parametrize("reasoning", ["field", "keep"])
def test_atif_is_valid_and_comes_back_as_it_was(tmp_path: Path, library: str, version: str, reasoning: str) -> None:
    format = format_of("atif", atif_version=version, reasoning=reasoning)
    path = write_lines(tmp_path / "rows.jsonl", rows_of(format, with_judges()))
    assert check(library, "atif_trajectories", library, path, home=tmp_path) == {"rows": EXAMPLES, "rejects": []}


def test_harbors_validator_takes_every_file(tmp_path: Path) -> None:
    format = format_of("atif")
    write_folder(tmp_path / "out", format, list(rows_of(format, with_judges())))
    assert check("harbor", "atif_trajectories", "harbor", tmp_path / "out", home=tmp_path) == {
        "rows": EXAMPLES,
        "rejects": [],
    }


def test_verifiers_loses_nothing_of_an_episode(tmp_path: Path) -> None:
    format, made = format_of("verifiers"), with_judges()
    write_folder(tmp_path / "out", format, list(rows_of(format, made)))
    found = check("verifiers", "verifiers_episodes", tmp_path / "out", home=tmp_path)
    assert found == {"rows": EXAMPLES, "rejects": [], "reward": sum(each.score or 0.0 for each in made)}


def test_verifiers_earlier_interface_reads_every_rollout(tmp_path: Path) -> None:
    format = format_of("verifiers", verifiers_version="v0")
    write_folder(tmp_path / "out", format, list(rows_of(format, made_conversations())))
    found = check("verifiers-v0", "verifiers_rollouts", tmp_path / "out", home=tmp_path)
    assert (found["rows"], found["complete"]) == (EXAMPLES, True)
    required = {"example_id", "prompt", "completion", "reward", "timing", "is_completed", "is_truncated", "metrics"}
    assert required <= set(found["columns"])


def test_sessions_of_pi_have_their_tool_calls_for_datasets(tmp_path: Path) -> None:
    format, made = format_of("hf-traces", hf_layout="pi"), made_conversations()[:200]
    for number, conversation in enumerate(made):
        conversation.item = number  # the files are read in order of their names
    write_folder(tmp_path / "out", format, list(rows_of(format, made)))
    found = check("teich", "agent_sessions", tmp_path / "out", tmp_path / "read.jsonl", home=tmp_path)
    assert found == {"rows": len(made), "harness": ["pi"]}
    for messages, conversation in zip(read_lines(tmp_path / "read.jsonl"), made, strict=True):
        expected = [
            [call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])]
            for message in conversation.messages
            for call in message.get("tool_calls") or ()
        ]
        assert difference(_calls(messages), expected) == ""
        results = [message["content"].strip() for message in conversation.messages if message["role"] == "tool"]
        assert [message["content"].strip() for message in messages if message["role"] == "tool"] == results


def _calls(messages: list[dict[str, Any]]) -> list[list[Any]]:
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return [[call["id"], call["function"]["name"], call["function"]["arguments"]] for call in calls]


def test_parquet_of_all_kinds_is_read_together(tmp_path: Path) -> None:
    format = format_of("parquet")
    made = sorted(made_conversations(), key=lambda each: bool(each.tools))
    write_folder(tmp_path / "out", format, list(rows_of(format, made)), shard_rows=150)
    files = sorted((tmp_path / "out").glob("*.parquet"))
    found = check("datasets", "one_schema", tmp_path / "read.jsonl", *files, home=tmp_path)
    assert found["rows"] == [EXAMPLES, EXAMPLES]
    for messages, conversation in zip(read_lines(tmp_path / "read.jsonl"), made, strict=True):
        assert [
            (each["role"], each["content"], each["tool_calls"], each["tool_call_id"], each["reasoning_content"] or "")
            for each in messages
        ] == [
            (
                message["role"],
                text_of(message.get("content")),
                message.get("tool_calls"),
                message.get("tool_call_id"),
                thought if (thought := message.get("reasoning") or "").strip() else "",
            )
            for message in conversation.messages
        ]


def test_records_are_read_by_their_card(tmp_path: Path) -> None:
    format = format_of("jsonl", output="out")
    made = sorted(made_conversations(), key=lambda each: bool(each.tools))
    rows = list(rows_of(format, made))
    write_folder(tmp_path / "out", format, rows, shard_rows=150)
    found = check("datasets", "load_folder", tmp_path / "out", tmp_path, home=tmp_path)
    assert found["splits"] == {"train": EXAMPLES}
    for read, row in zip(read_lines(tmp_path / "train.jsonl"), rows, strict=True):
        known = {name: value for name, value in json.loads(json.dumps(row)).items() if value is not None}
        assert difference(read, known) == ""
