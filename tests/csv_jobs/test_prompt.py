"""What a worker is told about its row, in the order that the original's users know."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.workloads.csv_jobs.rows.output_schema import OutputSchema
from manyhands.workloads.csv_jobs.rows.prompts import REPORT_TOOL, corrected, quoted, same_id, shown_id, worker_prompt
from tests.support.job_rows import JOB_ID, SCORE_SCHEMA


def prompt(schema: dict[str, Any] | None = None, *, printing: bool = False, **changes: Any) -> str:
    values = {"item_id": "row-1", "instruction": "Score {it}.", "row": {"path": "a.rs", "n": "é"}, **changes}
    return worker_prompt(JOB_ID, schema=OutputSchema.of(schema), printing=printing, **values)


@pytest.mark.parametrize("printing", [False, True])
def test_contents_come_in_order_with_labels_on_lines_of_their_own(printing: bool) -> None:
    text = prompt(SCORE_SCHEMA, printing=printing)
    lines = text.splitlines()
    assert lines[1] == f"Job ID: {JOB_ID}"
    assert lines[2] == "Item ID: row-1"
    parts = [
        "one item of a batch job",
        "Job ID:",
        "Item ID:",
        "Score {it}.",
        json.dumps({"path": "a.rs", "n": "é"}, indent=2, ensure_ascii=False),
        json.dumps(SCORE_SCHEMA, indent=2),
        "exactly once",
        f'job_id "{JOB_ID}", item_id "row-1"',
        "stop as true",
        "nothing more",
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert REPORT_TOOL in text


def test_without_a_schema_an_empty_one_is_shown() -> None:
    assert "\n{}\n" in prompt()


def test_a_worker_that_may_have_no_tool_is_told_to_print() -> None:
    assert "print" in prompt(printing=True)
    assert "print" not in prompt()


def test_what_a_cell_says_changes_nothing_else() -> None:
    text = prompt(instruction="{tool} {{ } %s", row={"{job}": "Job ID: other\nItem ID: other", "a": "{schema}"})
    assert "{tool} {{ } %s" in text
    assert '"a": "{schema}"' in text
    assert [line for line in text.splitlines() if line.startswith(("Job ID:", "Item ID:"))] == [
        f"Job ID: {JOB_ID}",
        "Item ID: row-1",
    ]


def test_corrections_are_said_after_the_prompt() -> None:
    text = corrected(prompt(), ("$.a: no", "$.b: neither"))
    assert text.startswith(prompt())
    assert "\n- $.a: no\n- $.b: neither\n" in text


@given(st.text(st.characters(), max_size=20), st.text(st.characters(), max_size=20))
def test_any_id_is_shown_on_one_line_and_recognised(item_id: str, other: str) -> None:
    shown = shown_id(item_id)
    assert len(shown.splitlines()) <= 1
    assert same_id(shown, item_id)
    assert same_id(item_id, item_id)
    assert shown == item_id or json.loads(shown) == item_id
    if other.split() != item_id.split() and other not in (shown, quoted(item_id)):
        assert not same_id(other, item_id)
    prompt(item_id=item_id, instruction=other, row={item_id: other}).encode()
