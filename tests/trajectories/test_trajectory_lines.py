"""Lines of trajectories.jsonl, read by the libraries that people read them with."""

from __future__ import annotations

import json
from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from pyarrow import unify_schemas

from manyhands.core.jsonio import line
from manyhands.core.outcomes import StopReason
from manyhands.core.usage import Usage
from manyhands.workloads.trajectories.dataset.source_fields import SourceFieldsBuilder
from manyhands.workloads.trajectories.lines.entry import Entry, local_time
from manyhands.workloads.trajectories.lines.schema import FIRST_LAYOUT
from manyhands.workloads.trajectories.records import ToolColumns

KNOWN = ToolColumns(["terminal", "read_file"])


def entry(number: int = 0, **other: Any) -> Entry:
    return Entry(
        **{
            "prompt_index": number,
            "conversations": [{"from": "system", "value": "S"}, {"from": "human", "value": "ä"}],
            "batch_num": 0,
            "timestamp": 1_700_000_000.25,
            "model": "m",
            "completed": True,
            "partial": False,
            "api_calls": 1,
            "toolsets_used": ["file"],
            "tool_stats": KNOWN.stats([("read_file", True)]),
            "stop_reason": StopReason.ANSWERED,
            "item_key": "k",
            "usage": Usage(calls=1, cost=number),
            **other,
        }
    )


def test_keys_come_in_the_original_s_order() -> None:
    text = entry().line().decode()
    assert "ä" in text
    value = json.loads(text)
    assert list(value) == [
        "prompt_index",
        "conversations",
        "metadata",
        "completed",
        "partial",
        "api_calls",
        "toolsets_used",
        "tool_stats",
        "tool_error_counts",
    ]
    assert list(value["metadata"])[:3] == ["batch_num", "timestamp", "model"]
    assert value["tool_error_counts"] == {"read_file": 1, "terminal": 0}
    assert text.startswith('{"prompt_index": 0, "conversations": [{"from": "system", "value": "S"}')


@pytest.mark.parametrize("uses", [[], [("read_file", True)], [("terminal", False)] * 3])
@pytest.mark.parametrize("text", ["plain", 'a "quoted" <tool> \n', "ä €", "half a \ud83d", ""])
def test_a_line_put_together_from_kept_parts_is_the_entry_in_json(uses: list[tuple[str, bool]], text: str) -> None:
    turns = [{"from": "system", "value": text}, {"from": "human", "value": text}, {"from": "gpt", "value": text}]
    for number in range(2):  # the second time from kept parts
        one = entry(number, conversations=turns, tool_stats=KNOWN.stats(uses), unknown_tools=[text])
        assert one.line() == line(one.to_json()).encode()
    empty = entry(conversations=[], tool_stats={})
    assert empty.line() == line(empty.to_json()).encode()


def test_times_are_local_with_microseconds() -> None:
    assert len(local_time(1_700_000_000.0)) == len("2025-07-15T10:23:41.123456")
    assert datetime.fromisoformat(local_time(1_700_000_000.25)).timestamp() == 1_700_000_000.25


SMALL = 32 << 10
"""Bytes that the readers take at a time here. (Their defaults are 1 MB and more.)"""
SOURCES: list[dict[str, Any]] = [
    {"id": 1, "label": "a", "extra": {"x": 1}, "tags": [], "score": 1},
    {"id": "two", "label": None, "tags": ["t"], "score": 0.5},
    {"level": 3, "extra": [1], "meta": {}},
    {},
]


def write(path: Path, sources: list[dict[str, Any]], copies: int = 1) -> Path:
    """Lines in the first layout, in which a run's own dataset decides about the fields of ``source``."""
    builder = SourceFieldsBuilder()
    for source in sources:
        builder.add(source)
    plan = builder.build()
    rows = sources * copies
    with path.open("wb") as file:
        for number, source in enumerate(rows):
            unknown = ["fly"] if number % 2 else []
            line = entry(
                number,
                source=plan.arrange(source),
                unknown_tools=unknown,
                seed=number,
                duration=number,
                layout=FIRST_LAYOUT,
            ).line()
            file.write(line + b"\n")
    return path


WHOLE: list[dict[str, Any]] = [{"n": n, "x": n / 2 or 1, "t": "a", "l": ["b"], "o": {"p": True}} for n in range(4)]


@pytest.mark.parametrize("sources", [SOURCES, SOURCES[::-1], [{}, {}], SOURCES[:1], WHOLE])
def test_arrow_and_parquet_read_all_lines_with_one_schema(tmp_path: Path, sources: list[dict[str, Any]]) -> None:
    import pyarrow.json as arrow_json
    import pyarrow.parquet as parquet

    path = write(tmp_path / "trajectories.jsonl", sources, copies=100)
    small_blocks = arrow_json.ReadOptions(block_size=SMALL)
    assert path.stat().st_size > 2 * SMALL
    table = arrow_json.read_json(path, read_options=small_blocks)
    assert table.num_rows == 100 * len(sources)
    assert str(table.schema.field("metadata").type.field("cost").type) == "double"
    assert str(table.schema.field("metadata").type.field("timestamp").type) == "string"
    parquet.write_table(table, tmp_path / "t.parquet")
    assert parquet.read_table(tmp_path / "t.parquet").num_rows == table.num_rows
    # Every line alone gives the same types or nulls, so behind the first part of a file it does not matter where a reader cuts it.
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines()):
        if number % 25 < 4:
            alone = arrow_json.read_json(BytesIO(text.encode())).schema
            assert alone == table.schema or sources is not WHOLE
            assert unify_schemas([table.schema, alone], promote_options="permissive") == table.schema


def test_source_comes_back_as_it_was(tmp_path: Path) -> None:
    lines = write(tmp_path / "t.jsonl", SOURCES).read_text(encoding="utf-8").splitlines()
    sources = [json.loads(line)["metadata"]["source"] for line in lines]
    assert {tuple(source) for source in sources} == {("id", "label", "extra", "tags", "score", "level", "meta")}
    assert [source["id"] for source in sources] == ["1", '"two"', "null", "null"]
    assert [source["label"] for source in sources] == ["a", None, None, None]
    assert [source["score"] for source in sources] == [1.0, 0.5, None, None]
    assert [source["level"] for source in sources] == [None, None, 3, None]
    assert [json.loads(source["tags"]) for source in sources] == [[], ["t"], None, None]


@pytest.mark.parametrize("sources", [SOURCES, SOURCES[::-1], [{}], WHOLE])
def test_datasets_loads_all_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: list[dict[str, Any]]
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets

    path = write(tmp_path / "trajectories.jsonl", sources, copies=100)
    cache = str(tmp_path / "cache")
    loaded = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=cache, chunksize=SMALL)
    assert loaded.num_rows == 100 * len(sources)
    assert loaded[0]["tool_stats"]["read_file"] == {"count": 1, "success": 0, "failure": 1}
    if sources is SOURCES:
        assert loaded[1]["metadata"]["source"]["id"] == '"two"'
