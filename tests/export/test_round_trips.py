"""What is exported, imported and exported again gives the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from manyhands.core.jsonio import Json, dumps, loads
from manyhands.core.messages import Message
from manyhands.export.conversations import Conversation, plain_turns
from manyhands.export.format import Format, Losses, load_format
from manyhands.export.readers.fields import Field
from manyhands.export.readers.reader import load_reader
from manyhands.export.readers.records import from_kept, kept_record
from manyhands.export.settings import ExportSettings
from tests.support.batches import BatchFolder, read_lines, run_command
from tests.support.conversations import conversations

FORMATS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "openai": ("messages", {}),
    "messages": ("messages", {}),
    "messages-thinking": ("messages", {"reasoning": "keep"}),
    "messages-split": ("messages", {"layout": "prompt_completion"}),
    "sharegpt": ("sharegpt", {}),
    "sharegpt-field": ("sharegpt", {"reasoning": "field"}),
    "sharegpt-drop": ("sharegpt", {"reasoning": "drop"}),
    "atif": ("atif", {}),
    "atif-1.8": ("atif", {"atif_version": "1.8"}),
    "jsonl": ("jsonl", {}),
}
"""By export format (and what it is given): the import format that reads it."""


def made(name: str) -> Format:
    format = name.partition("-")[0]
    return load_format(format)(ExportSettings(to=format, **FORMATS[name][1]), Losses())


def rows(name: str, conversation: Conversation) -> list[Json]:
    return [loads(dumps(row)) for row in made(name).rows(conversation)]


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=2 * settings().max_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(conversation=conversations())
def test_rows_come_back_equal(name: str, conversation: Conversation) -> None:
    reader = load_reader(FORMATS[name][0])()
    before = rows(name, conversation)
    again = []
    for row in before:
        found = reader.conversation(Field(row), Path("rows.jsonl"))
        again += rows(name, from_kept(loads(dumps(kept_record(found)))))
    assert again == before


@pytest.mark.parametrize("name", ["messages", "sharegpt", "atif", "jsonl"])
def test_a_run_comes_back_from_its_export(name: str, tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, [{"prompt": f"Count to {number}.", "level": number} for number in range(5)])
    assert folder.batch("--model=simulated", "--keep_unreasoned").code == 0
    exported = [f"--to={name}", "--reasoning=field" if name != "sharegpt" else "--reasoning=keep"]
    assert run_command(tmp_path, "export", "r", *exported, "--output=one.jsonl").code == 0
    assert run_command(tmp_path, "import", f"--from={name}", "one.jsonl", "--run_name=again").code == 0
    assert run_command(tmp_path, "export", "again", *exported, "--output=two.jsonl").code == 0
    assert len(read_lines(tmp_path / "one.jsonl")) == 5
    assert read_lines(tmp_path / "two.jsonl") == read_lines(tmp_path / "one.jsonl")


@pytest.mark.parametrize("name", ["openai", "messages", "sharegpt", "atif", "jsonl"])
def test_tools_that_say_little_come_back(name: str) -> None:
    tools = [{"type": "function", "function": {"name": "bare"}}]
    messages: list[Message] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    conversation = Conversation(
        run="r", run_id="i", workload="w", item=1, key="k", turns=plain_turns(messages), tools=tools
    )
    conversation.stop_reason = "answered"
    (before,) = rows(name, conversation)
    found = load_reader(FORMATS[name][0])().conversation(Field(before), Path("rows.jsonl"))
    assert [tool["function"]["name"] for tool in found.tools] == ["bare"]
    assert rows(name, found) == [before]


def test_a_part_of_a_run_keeps_its_ids(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, [f"Count to {number}." for number in range(4)])
    assert folder.batch("--model=simulated", "--keep_unreasoned").code == 0
    for run, select, output in (("r", "item=3", "one.jsonl"), ("again", "item=1", "two.jsonl")):
        words = ("--to=atif", f"--select={select}", f"--output={output}")
        assert run_command(tmp_path, "export", run, *words).code == 0
        if run == "r":
            assert run_command(tmp_path, "import", "--from=atif", "one.jsonl", "--run_name=again").code == 0
    (row,) = read_lines(tmp_path / "two.jsonl")
    assert [row] == read_lines(tmp_path / "one.jsonl")
    assert row["extra"]["manyhands"]["item"] == 3


def test_the_best_of_imported_samples_are_found_by_the_items_of_their_own_run(tmp_path: Path) -> None:
    record = {"turns": [{"message": {"role": "assistant", "content": ""}, "train": True}], "prompt_key": "p"}
    rows = [{**record, "key": f"k{n}", "item": 7, "stop_reason": "answered", "score": n / 4} for n in range(4)]
    for number, row in enumerate(rows):
        row["turns"] = [{"message": {"role": "assistant", "content": f"Answer {number}."}, "train": True}]
    (tmp_path / "m.jsonl").write_bytes(b"".join(dumps(row) + b"\n" for row in rows))
    assert run_command(tmp_path, "import", "--from=jsonl", "m.jsonl").code == 0
    assert run_command(tmp_path, "export", "m", "--to=jsonl", "--best_of=1", "--output=best.jsonl").code == 0
    assert [row["key"] for row in read_lines(tmp_path / "best.jsonl")] == ["k3"]
