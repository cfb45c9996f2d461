"""Conversations as Parquet and records: one schema for all runs, which ``datasets`` reads together."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings

from manyhands.core.messages import text_of
from manyhands.export.conversations import Conversation
from manyhands.export.exporting import export
from manyhands.export.format import Format, Losses, load_format
from manyhands.export.formats.parquet import COLUMNS, schema
from manyhands.export.formats.tables import FIELDS
from manyhands.export.settings import ExportSettings
from manyhands.testing.scripted_server import RecordedRequest, Reply, chat_response
from tests.support.batches import BatchFolder, ServerThread, run_command
from tests.support.conversations import BEGAN, conversations
from tests.support.oracles import examples

many = settings(max_examples=2 * settings().max_examples, deadline=None)


def format_of(name: str, **values: Any) -> Format:
    return load_format(name)(ExportSettings(to=name, **values), Losses())


def write(path: Path, found: Iterable[Conversation], **values: Any) -> pyarrow.Table:
    """Write conversations into a file, and read it."""
    format = format_of("parquet", **values)
    sink = format.sink(path)
    for conversation in found:
        for row in format.rows(conversation):
            sink.write(row)
    sink.close()
    return pyarrow.parquet.read_table(path)


@pytest.fixture(scope="module")
def some() -> list[Conversation]:
    return examples(conversations(), 200)


def test_every_message_comes_back(tmp_path: Path, some: list[Conversation]) -> None:
    table = write(tmp_path / "x.parquet", some)
    assert table.schema.equals(schema())
    for row, conversation in zip(table.to_pylist(), some, strict=True):
        assert len(row["messages"]) == len(conversation.turns)
        for message, turn in zip(row["messages"], conversation.turns, strict=True):
            original = turn.message
            assert message["role"] == original["role"]
            assert message["content"] == text_of(original.get("content"))
            assert message["tool_calls"] == original.get("tool_calls")
            assert message["tool_call_id"] == original.get("tool_call_id")
            assert message["train"] == turn.train
            assert message["reasoning_content"] in (original.get("reasoning"), None)
        assert json.loads(row["tools"]) == list(conversation.tools)
        assert json.loads(row["source"]) == json.loads(json.dumps(dict(conversation.source)))
        assert row["started_at"].timestamp() == BEGAN
        assert (row["key"], row["score"], row["cost"]) == (
            conversation.key,
            conversation.score,
            conversation.usage.cost,
        )
        calls = json.loads(row["extra"])["calls"]
        assert [call["message"] for call in calls] == [at for at, turn in enumerate(conversation.turns) if turn.call]


def test_the_same_conversations_give_the_same_bytes(tmp_path: Path, some: list[Conversation]) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, some)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_schema_depends_on_nothing(tmp_path: Path, some: list[Conversation]) -> None:
    bare = replace(some[0], tools=(), source={}, model=None, started_at=None, seed=None, turns=some[0].turns[:1])
    empty = write(tmp_path / "empty", [])
    assert empty.schema.equals(write(tmp_path / "bare", [bare]).schema, check_metadata=True)
    assert empty.num_rows == 0
    assert empty.column_names == list(COLUMNS)


def test_what_arrow_has_no_place_for(tmp_path: Path, some: list[Conversation]) -> None:
    odd = replace(
        some[0],
        key="\ud800",
        seed=2**70,
        source={"big": 2**70, "\udfff": ["\ud800"]},
        turns=[replace(some[0].turns[-1], message={"role": "user", "content": [{"type": "text", "text": "\ud800"}]})],
    )
    (row,) = write(tmp_path / "x", [odd]).to_pylist()
    assert (row["key"], row["seed"]) == ("�", None)
    assert json.loads(row["source"])["big"] == 2**70
    (message,) = row["messages"]
    assert message["content"] == "�"
    assert json.loads(message["content_parts"])[0]["type"] == "text"


def test_row_groups_are_bounded(tmp_path: Path, some: list[Conversation]) -> None:
    long = replace(some[0], source={"text": "".join(f"{number:x}" for number in range(200_000))})  # about a megabyte
    write(tmp_path / "long", [long] * 80)
    metadata = pyarrow.parquet.ParquetFile(tmp_path / "long").metadata
    sizes = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
    assert sum(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)) == 80
    assert len(sizes) > 1
    assert max(sizes) < 64 << 20
    write(tmp_path / "many", [replace(some[0], turns=some[0].turns[:1], key="k", label="", tools=())] * 21_000)
    metadata = pyarrow.parquet.ParquetFile(tmp_path / "many").metadata
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [20_000, 1_000]


def test_it_is_said_in_one_line_what_has_to_be_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    folder = BatchFolder(tmp_path)
    with ServerThread() as server:
        assert folder.batch(f"--base_url={server.base_url}").code == 0
    ran = run_command(tmp_path, "export", "r", "--to", "parquet")
    assert ran.code == 2
    assert ran.err.strip().splitlines() == [
        "manyhands: error: writing Parquet needs more libraries: pip install 'manyhands[datasets]'"
    ]


# --- Two runs with different tools, read together by ``datasets``


def _calling(request: RecordedRequest) -> Reply:
    if any(message["role"] == "tool" for message in request.body["messages"]):
        return chat_response("2026-11-27", reasoning="Read.")
    call = {"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "date"}'}}
    return chat_response(None, reasoning="Let me see.", tool_calls=[call])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of two batches with different tools: one in which none was called and all texts that can be dates are; one whose source
    has other fields."""
    path = tmp_path_factory.mktemp("batches")
    (path / "own.yaml").write_text("plans: {description: Plans, toolsets: {todo: 100}}\n")
    plain = BatchFolder(path, [{"prompt": "2026-11-27", "id": "2026-11-28"}])
    with ServerThread([chat_response("2026-11-29", reasoning="2026-11-30")]) as server:
        own = ("--distributions_file=own.yaml", "--distribution=plans", "--run_name=plain")
        ran = plain.batch(f"--base_url={server.base_url}", *own)
        assert ran.code == 0, ran
    calling = BatchFolder(
        path, [{"prompt": "Which day is it?", "level": {"of": 1}}, {"prompt": "And now?", "level": 2}]
    )
    with ServerThread(_calling) as server:
        assert calling.batch(f"--base_url={server.base_url}", "--run_name=calling").code == 0
    return plain.run("plain"), calling.run("calling")


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``load_dataset`` of one split, without a network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")

    def loaded(*words: str, **more: Any) -> Any:
        return datasets.load_dataset(*words, split="train", cache_dir=str(tmp_path / "cache"), **more)

    return loaded


@pytest.mark.parametrize("backwards", [False, True])
def test_parquet_of_two_runs_is_one_data_set(
    runs: tuple[Path, Path], tmp_path: Path, load: Any, backwards: bool
) -> None:
    order = runs[::-1] if backwards else runs
    files = []
    for number, run in enumerate(order):
        files.append(str(tmp_path / f"{number}.parquet"))
        export([run], ExportSettings(to="parquet"), Path(files[-1]))
    rows = list(load("parquet", data_files=files))
    assert len(rows) == 3
    plain = next(row for row in rows if row["run"] == "plain")
    assert [message["content"] for message in plain["messages"][-2:]] == ["2026-11-27", "2026-11-29"]
    assert plain["label"] == "2026-11-28"
    assert [row["run"] for row in rows] == [run.name for run in order for _ in range(1 + (run.name == "calling"))]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("to", ["parquet", "jsonl"])
def test_a_folder_of_two_runs_is_read_by_its_card(
    runs: tuple[Path, Path], tmp_path: Path, load: Any, backwards: bool, to: str
) -> None:
    order = list(runs[::-1] if backwards else runs)
    export(order, ExportSettings(to=to, shard_rows=1), tmp_path / "data")
    rows = list(load(str(tmp_path / "data")))
    assert len(rows) == 3
    plain = next(row for row in rows if row["run"] == "plain")
    calling = next(row for row in rows if row["run"] == "calling")
    if to == "jsonl":
        assert plain["turns"][-1]["message"] == {
            "role": "assistant",
            "content": "2026-11-29",
            "reasoning": "2026-11-30",
            "_reasoning_field": plain["turns"][-1]["message"]["_reasoning_field"],
        }
        names = [tool["function"]["name"] for tool in calling["tools"]]
    else:
        names = [tool["function"]["name"] for tool in json.loads(calling["tools"])]
    assert "terminal" in names


def test_records_come_back_whole_by_the_card(runs: tuple[Path, Path], tmp_path: Path, load: Any) -> None:
    export(list(runs), ExportSettings(to="jsonl"), tmp_path / "data")
    lines = (tmp_path / "data/train.jsonl").read_text().splitlines()
    for row, line in zip(load(str(tmp_path / "data")), lines, strict=True):
        expected = json.loads(line)
        assert list(row) == list(expected)
        assert _rounded(dict(row)) == _rounded(expected)


def _rounded(value: Any) -> Any:
    """JSON with floats to 12 digits: what reads them for ``datasets`` may change the last one."""
    return json.loads(json.dumps(value), parse_float=lambda text: f"{float(text):.12g}")


@many
@given(conversations())
def test_the_card_declares_every_field_of_a_record(conversation: Conversation) -> None:
    assert list(conversation.to_json()) == list(FIELDS)


def test_a_card_says_what_was_simulated_and_leaves_the_licence_open(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path)
    assert folder.batch("--model=simulated").code == 0
    for to, file in (("parquet", "train.parquet"), ("jsonl", "train.jsonl")):
        assert run_command(tmp_path, "export", "r", "--to", to, "-o", to).code == 0
        card = (tmp_path / to / "README.md").read_text()
        assert "# license: (to be filled in" in card
        assert "All of them were answered by a simulated model" in card
        assert f'- "{file}"' in card
        assert "| simulated | 3 |" in card
