"""Folders and files of training formats, loaded by ``datasets``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.jsonio import Json
from manyhands.export.conversations import Conversation
from tests.support.oracles import (
    check,
    difference,
    format_of,
    made_conversations,
    made_pairs,
    pair_rows,
    read_lines,
    rows_of,
    write_folder,
    write_lines,
)

pytestmark = [pytest.mark.oracle, pytest.mark.timeout(600)]
FOLDERS: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("messages", {}),
    ("messages", {"tools": "struct"}),
    ("messages", {"reasoning": "drop"}),
    ("messages", {"layout": "prompt_completion"}),
    ("preference", {"tools": "struct"}),
    ("kto", {}),
    ("axolotl", {}),
)


def rows_to_load(name: str, **settings: Any) -> list[Mapping[str, Json]]:
    """Those without tools first, so that the first file does not show what comes later."""
    format = format_of(name, **settings)
    if format.takes == "pairs":
        made = sorted(made_pairs(), key=lambda pair: bool(pair[0].tools))
        return list(pair_rows(format, made))
    return list(rows_of(format, sorted(scored(), key=lambda each: bool(each.tools))))


def scored() -> list[Conversation]:
    found = made_conversations()
    for number, conversation in enumerate(found):
        conversation.score = number % 5 / 4
    return found


@pytest.mark.parametrize(("name", "settings"), FOLDERS)
def test_a_folder_comes_back_as_it_was_written(tmp_path: Path, name: str, settings: Mapping[str, Any]) -> None:
    rows = rows_to_load(name, **settings)
    written = write_folder(tmp_path / "out", format_of(name, **settings), rows, ("train", "valid"), shard_rows=150)
    found = check("datasets", "load_folder", tmp_path / "out", tmp_path, home=tmp_path)
    assert found["splits"] == {split: len(those) for split, those in written.items()}
    for split, those in written.items():
        assert difference(read_lines(tmp_path / f"{split}.jsonl"), those) == ""


def test_a_split_may_be_empty(tmp_path: Path) -> None:
    rows = rows_to_load("messages")[:3]
    write_folder(tmp_path / "out", format_of("messages"), rows, ("train", "valid", "test", "more"))
    found = check("datasets", "load_folder", tmp_path / "out", tmp_path, home=tmp_path)
    assert found["splits"] == {"train": 1, "valid": 1, "test": 1}


@pytest.mark.parametrize("name", ["messages", "sharegpt", "llamafactory"])
def test_a_file_of_mixed_rows_comes_back_as_it_was_written(tmp_path: Path, name: str) -> None:
    rows = list(rows_of(format_of(name), made_conversations()))
    path = write_lines(tmp_path / "rows.jsonl", rows)
    check("datasets", "load_folder", path, tmp_path, home=tmp_path)
    assert difference(read_lines(tmp_path / "train.jsonl"), rows) == ""
