"""What imports show: where conversations come from, their scores, of here or of there, and how two imports differ."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.shown.blocks import Fold, Link, Value
from manyhands.runs.summaries import summarizer_of
from tests.support.batches import run_command
from tests.support.shown_blocks import facts as facts_of
from tests.support.shown_blocks import item_parts, notes_of, rows_of, texts, viewed
from tests.support.shown_blocks import parts as of_kind

CALL = {"id": "c1", "type": "function", "function": {"name": "count", "arguments": '{"what": "eggs"}'}}
ROW: dict[str, Any] = {
    "id": "eggs",
    "messages": [
        {"role": "user", "content": "How many?"},
        {"role": "assistant", "content": "I count.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "assistant", "content": "Three."},
    ],
    "model": "m",
    "score": 0.5,
    "metadata": {"level": 1},
}
OTHER = {"id": "ham", "messages": [{"role": "user", "content": "Ham?"}, {"role": "assistant", "content": "Yes."}]}


def imported(folder: Path, *words: str, rows: list[Any], name: str = "m") -> Path:
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = run_command(folder, "import", "--from=messages", f"{name}.jsonl", "--quiet", "--executor=local", *words)
    assert ran.code == 0, ran
    return folder / "data" / name


def test_an_import_shows_where_its_conversations_come_from(tmp_path: Path) -> None:
    run = imported(tmp_path, "--skip_bad_rows", rows=[ROW, {"messages": 5}, OTHER])
    with viewed(run) as view:
        rows = list(view.reader.items())
        cells = [texts(each) for each in view.cells(rows, summarizer_of(view.reader).items(rows))]
        labels = [view.labels(row) for row in rows]
        head = list(view.head())
        parts = item_parts(view, rows[0].key)
        columns = {column.name for column in view.run_columns()}
    assert columns == set(cells[0])
    assert cells[0] == {
        "place": "m.jsonl, line 1",
        "model": cells[0]["model"],
        "turns": "2",
        "tool_calls": "1",
        "stop": cells[0]["stop"],
        "score": "0.500",
        "verdict": cells[0]["verdict"],
    }
    assert cells[1]["score"] == ""
    assert set(labels[0]) <= {"model", "agent", "stop", "verdict"}
    assert facts_of(head)["Rows left out"].text == "1"
    assert [note for note in notes_of(head) if "line 2" in note]
    assert facts_of(head)["Mean score"].text == "0.500"
    assert facts_of(head)["Conversations"].text == "2"
    assert notes_of(parts) == ["It was graded where it took place."]
    assert facts_of(parts)["From"].text.endswith("m.jsonl, line 1")
    (fields,) = [each for each in of_kind(parts, Fold) if each.title == "Other fields of the row"]
    (value,) = of_kind([fields], Value)
    assert isinstance(value.value, dict)
    assert value.value["metadata"] == {"level": 1}


def test_grades_of_here_count_and_two_imports_are_compared(tmp_path: Path) -> None:
    (tmp_path / "checks.yaml").write_text("- {name: three, type: regex, value: Three}\n")
    graded = imported(tmp_path, "--grade=checks.yaml", rows=[ROW, OTHER])
    other = imported(tmp_path, rows=[OTHER, ROW], name="n")
    with viewed(graded) as view, closing(JournalReader(other)) as reader:
        parts = item_parts(view, "eggs")
        labels = [view.labels(row)["verdict"] for row in view.reader.items()]
        compared = list(view.compared([reader], {}))
        run_id = reader.meta("run_id")
    assert facts_of(parts)["Score"].text == "1.000"
    assert rows_of(parts, "Graders")[0]["Grader"].text == "three"
    assert labels == ["pass", "fail"]
    assert facts_of(compared)["Shown"].text == "items 1 to 2, of which both have 2"
    first = rows_of(compared, "Items that differ")[0]
    assert first["Score"].text == "1.000 → 0.500"
    assert first["Item"].link == Link(item=1, versus=2, versus_run=run_id)
