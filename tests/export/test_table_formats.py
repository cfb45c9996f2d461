"""The flat table of conversations, and the canonical record."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from manyhands.core.messages import text_of
from manyhands.core.usage import Usage
from manyhands.export.conversations import Conversation, Turn
from manyhands.export.exporting import export
from manyhands.export.format import Losses, load_format
from manyhands.export.formats.tables import COLUMNS
from manyhands.export.settings import ExportSettings
from manyhands.runs.folders import open_reader
from tests.support.batches import BatchFolder, run_command
from tests.support.conversations import conversations

many = settings(
    max_examples=2 * settings().max_examples, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def table(path: Path, found: Sequence[Conversation]) -> list[dict[str, str]]:
    """Conversations written as CSV, and read by another's parser."""
    path.unlink(missing_ok=True)
    format = load_format("csv")(ExportSettings(to="csv"), Losses())
    sink = format.sink(path)
    for conversation in found:
        for row in format.rows(conversation):
            sink.write(row)
    sink.close()
    return list(csv.DictReader(io.StringIO(path.read_bytes().decode(), newline="")))


def unmarked(cell: str) -> str:
    """A cell without the apostrophe that keeps it from being a formula."""
    return cell[1:] if cell[:1] == "'" and cell[1:2] in "=+-@\t\r\n\0＝＋－＠" else cell


@many
@given(conversations())
def test_a_row_has_the_figures_of_a_conversation(tmp_path: Path, conversation: Conversation) -> None:
    (row,) = table(tmp_path / "x.csv", [conversation])
    assert list(row) == list(COLUMNS)
    messages = conversation.messages
    answers = [message for message in messages if message["role"] == "assistant"]
    assert int(row["messages"]) == len(messages)
    assert int(row["answers"]) == len(answers)
    assert int(row["tool_calls"]) == sum(len(message.get("tool_calls") or ()) for message in answers)
    assert int(row["failed_calls"]) == sum(bool(message.get("_failed")) for message in messages)
    prompt = next(message for message in messages if message["role"] == "user")
    assert unmarked(row["prompt"]) == text_of(prompt["content"])
    assert unmarked(row["answer"]) == text_of(answers[-1]["content"])
    assert unmarked(row["key"]) == conversation.key
    assert (float(row["cost"]), int(row["input_tokens"])) == (conversation.usage.cost, conversation.usage.input_tokens)
    assert row["score"] == ("" if conversation.score is None else f"{conversation.score}")
    assert json.loads(row["source"]) == json.loads(json.dumps(dict(conversation.source)))
    assert float(row["seconds"]) == len(messages)


@pytest.mark.parametrize("text", ['=cmd|" /C calc"!A0', "@SUM(1)", "-2+3", "+1+1", "\t=1", "＝1"])
def test_no_cell_is_a_formula(tmp_path: Path, text: str) -> None:
    turns = [Turn({"role": "user", "content": text}), Turn({"role": "assistant", "content": text})]
    fields: dict[str, Any] = {"run_id": "0", "workload": "w", "item": 1, "key": text, "label": text, "turns": turns}
    (row,) = table(tmp_path / "x.csv", [Conversation(run=text, **fields, model=text)])
    for name in ("run", "key", "label", "model", "prompt", "answer"):
        assert row[name] == f"'{text}"


def test_what_is_not_known_is_an_empty_cell(tmp_path: Path) -> None:
    (row,) = table(tmp_path / "x.csv", [Conversation(run="r", run_id="0", workload="w", item=1, key="\ud800")])
    assert [row[name] for name in ("score", "seed", "started_at", "seconds", "tokens", "prompt", "answer")] == [""] * 7
    assert (row["source"], row["scores"], row["simulated"]) == ("{}", "{}", "false")


@many
@given(conversations())
def test_a_record_is_read_back_as_the_conversation(conversation: Conversation) -> None:
    format = load_format("jsonl")(ExportSettings(to="jsonl"), Losses())
    (row,) = format.rows(replace(conversation, others=[conversation]))
    again = Conversation.from_json(json.loads(json.dumps(row)))
    assert again.to_json() == row
    assert again.turns == conversation.turns
    assert again.usage == conversation.usage


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = BatchFolder(tmp_path_factory.mktemp("batch"), [{"prompt": f"Count to {n}.", "level": n} for n in range(5)])
    ran = folder.batch("--model=simulated")
    assert ran.code == 0, ran
    return folder.run()


def test_the_table_of_a_run_adds_up_to_its_ledger(run: Path, tmp_path: Path) -> None:
    report = export([run], ExportSettings(to="csv"), tmp_path / "x.csv")
    rows = list(csv.DictReader((tmp_path / "x.csv").open(newline="", encoding="utf-8")))
    assert report.rows == len(rows) == 5
    reader = open_reader(run)
    try:
        total = reader.usage()
    finally:
        reader.close()
    for name in ("calls", "input_tokens", "output_tokens", "simulated_calls"):
        assert sum(int(row[name]) for row in rows) == getattr(total, name) > 0
    assert [json.loads(row["source"]) for row in rows] == [{"level": n} for n in range(5)]


@pytest.mark.parametrize(("to", "output"), [("csv", "x.csv"), ("jsonl", "x.jsonl")])
def test_the_same_run_gives_the_same_bytes(run: Path, tmp_path: Path, to: str, output: str) -> None:
    found = []
    for _ in range(2):
        ran = run_command(tmp_path, "export", str(run), "--to", to, "-o", output)
        assert ran.code == 0, ran
        found.append((tmp_path / output).read_text())
    assert found[0] == found[1]
    assert len(found[0].splitlines()) == 5 + (to == "csv")


def test_records_without_a_suffix_are_a_folder_with_a_card(run: Path, tmp_path: Path) -> None:
    assert run_command(tmp_path, "export", str(run), "--to", "jsonl", "-o", "data").code == 0
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [
        "README.md",
        "export_summary.json",
        "train.jsonl",
    ]
    assert run_command(tmp_path, "export", str(run), "--to", "jsonl", "-o", "x.jsonl").code == 0
    assert (tmp_path / "x.jsonl").read_bytes() == (tmp_path / "data/train.jsonl").read_bytes()


def test_a_usage_without_a_part_of_it_is_the_rest() -> None:
    whole = Usage(calls=3, input_tokens=10, output_tokens=5, cost=0.3)
    part = Usage(calls=1, input_tokens=4, cost=0.1)
    assert whole.without(part) == Usage(calls=2, input_tokens=6, output_tokens=5, cost=0.2)
