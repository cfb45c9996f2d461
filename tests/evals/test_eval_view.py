"""What there is to see of an evaluation: the table's columns, the matrix and its filters, figures, and how an answer was scored."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from manyhands.engine.contract import ItemRow
from manyhands.engine.journal.lock import RunLock
from manyhands.engine.journal.reader import JOURNAL
from manyhands.engine.journal.records import DamagedBlob
from manyhands.runs.shown.blocks import Cell, Facts, Fold, Link, Messages, Note, Section, Table, Text, block_json
from manyhands.runs.shown.run_view import RunView
from manyhands.runs.summaries import item_summaries, run_status
from manyhands.workloads.evals.results import view as view_module
from manyhands.workloads.evals.results.shown import matrix
from manyhands.workloads.evals.results.summary import SUMMARY
from tests.support.eval_runs import EvalRun, perform_eval
from tests.support.shown_blocks import browsed, damage, facts, named, notes_of, parts, rows, text_in, viewed

OWN = """\
def good(asked):
    if asked["id"] == "broken":
        raise ValueError("no luck")
    return {"text": "yes"}

def other(asked):
    if asked["id"] in ("same", "broken"):
        return {"text": "yes"}
    return {"text": "yes" if asked["id"] == "flaky" and asked["trial"] == 1 else "no"}
"""
TESTS: list[dict[str, Any]] = [
    {"id": "same", "input": "hi", "criteria": "c", "metadata": {"category": "easy"}, "tags": ["a", "b"]},
    {"id": "different", "input": "hi", "criteria": "c", "metadata": {"category": "hard"}, "tags": ["a"]},
    {"id": "broken", "input": "hi", "criteria": "c", "metadata": {"category": "hard"}},
    {"id": "flaky", "input": "hi", "criteria": "c"},
]


def write(folder: Path, tests: Sequence[dict[str, Any]] = TESTS, own: str = OWN, **more: Any) -> Path:
    (folder / "own.py").write_text(own)
    known = [{"name": name, "provider": "python", "function": f"own.py:{name}"} for name in ("good", "other")]
    suite = {
        "targets": known,
        "execution": {"targets": ["good", "other"], "trials": {"count": 2, "strategy": "mean"}},
        "assert": [{"type": "contains", "value": "yes"}],
        "tests": [*tests],
        **more,
    }
    (folder / "suite.yaml").write_text(json.dumps(suite))
    return folder


async def performed(folder: Path, **settings: Any) -> EvalRun:
    return await perform_eval(write(folder), max_attempts=1, **settings)


def matrix_of(view: RunView, **query: str) -> dict[str, dict[str, Cell]]:
    """The rows of the matrix, by test."""
    (table, *_) = parts(named(list(view.page("matrix", query)), "matrix"), Table)
    return {row["test"].text: row for row in rows(table)}


def item(view: RunView, key: str) -> ItemRow:
    found = view.reader.item_by_key(key)
    assert found is not None
    return found


def blocks_of(view: RunView, key: str) -> list[Any]:
    row = item(view, key)
    return list(view.item_blocks(row, view.reader.steps(row.number, row.attempt)))


# --- Table of items


async def test_columns_and_labels_of_items(tmp_path: Path) -> None:
    run = await performed(tmp_path)
    with viewed(run.folder) as view:
        pairs = list(item_summaries(view.reader))
        found = view.cells([row for row, _ in pairs], [summary for _, summary in pairs])
        assert len(found) == 16
        assert {name: cell.text for name, cell in found[0].items()} == {
            "target": "good", "dataset": "suite", "category": "easy", "tags": "a, b", "sample": "1 of 2", "verdict": "✓ passed",
            "turns": "1",
        }  # fmt: skip
        known = {column.name for column in view.run_columns()}
        assert all(cells.keys() <= known for cells in found)
        assert {cells["verdict"].text for cells in found} == {"✓ passed", "✗ failed", "! error"}
        assert view.labels(pairs[0][0]) == {"target": "good", "dataset": "suite", "category": "easy", "tags": "a, b"}
        assert view.labels(pairs[-1][0]) == {"target": "other", "dataset": "suite"}


# --- Matrix


async def test_the_matrix_has_each_test_at_each_target(tmp_path: Path) -> None:
    run = await performed(tmp_path)
    with viewed(run.folder) as view:
        found = matrix_of(view)
        assert {name: (row["target:good"].text, row["target:other"].text) for name, row in found.items()} == {
            "same": ("✓ 1.000 ●●", "✓ 1.000 ●●"),
            "different": ("✓ 1.000 ●●", "✗ 0.000 ○○"),
            "broken": ("! error !!", "✓ 1.000 ●●"),
            "flaky": ("✓ 1.000 ●●", "✗ 0.500 ○●"),
        }
        assert [found["different"][name].tone for name in ("target:good", "target:other")] == ["good", "bad"]
        assert found["broken"]["target:good"].tone == "warn"
        assert "no luck" in found["broken"]["target:good"].about
        assert [found["same"][name].text for name in ("category", "tags")] == ["easy", "a, b"]
        for test_id, row in found.items():
            for target in ("good", "other"):
                link = row[f"target:{target}"].link
                assert link is not None
                linked = view.reader.item(str(link.item))
                assert linked is not None
                assert (linked.payload["test"]["id"], linked.payload["target"]) == (test_id, target)
        flaky = found["flaky"]["target:other"].link
        assert flaky is not None
        assert flaky.item == item(view, "suite/flaky@other").number  # the trial that failed


@pytest.mark.parametrize(
    ("query", "tests"),
    [
        ({"show": "all"}, ["same", "different", "broken", "flaky"]),
        ({"show": "failures"}, ["different", "flaky"]),
        ({"show": "errors"}, ["broken"]),
        ({"show": "different"}, ["different", "broken", "flaky"]),
        ({"show": "flaky"}, ["flaky"]),
        ({"category": "hard"}, ["different", "broken"]),
        ({"tag": "a"}, ["same", "different"]),
        ({"tag": "a", "show": "failures"}, ["different"]),
        ({"dataset": "another"}, []),
        ({"show": "'; DROP", "after": "-7"}, ["same", "different", "broken", "flaky"]),
        ({"after": "9" * 30}, ["same", "different", "broken", "flaky"]),
        ({"after": "٣"}, ["same", "different", "broken", "flaky"]),
    ],
)
async def test_filters_of_the_matrix(tmp_path: Path, query: dict[str, str], tests: list[str]) -> None:
    run = await performed(tmp_path)
    with viewed(run.folder) as view:
        assert list(matrix_of(view, **query)) == tests


async def test_links_of_the_filters_lead_to_the_filters(tmp_path: Path) -> None:
    run = await performed(tmp_path)
    with viewed(run.folder) as view:
        sections = list(view.page("matrix", {"tag": "a", "show": "failures"}))
        links = {label: cell.link for label, cell in facts(sections).items() if cell.link is not None}
        assert links["all"] == Link(page="matrix", query={"tag": "a"})
        assert links["errors"] == Link(page="matrix", query={"show": "errors", "tag": "a"})
        assert links["tag a"] == Link(page="matrix", query={"show": "failures"})
        assert "failures" not in links
        for link in links.values():
            assert link.page is not None
            assert list(view.page(link.page, link.query))


async def test_categories_and_tags(tmp_path: Path) -> None:
    run = await performed(tmp_path)
    with viewed(run.folder) as view:
        for sections in (list(view.page("matrix", {})), list(view.page("groups", {}))):
            categories, tags = parts(named(sections, "groups"), Table)
            found = {row["category"].text: row for row in rows(categories)}
            assert {name: row["tests"].value for name, row in found.items()} == {"easy": 1, "hard": 2}
            assert (found["hard"]["target:other"].text, found["hard"]["target:other"].share) == ("0.500  1/2 ✓", 0.5)
            assert found["hard"]["target:good"].text == "1.000  1/1 ✓"
            assert "1 without a score" in found["hard"]["target:good"].about
            assert found["hard"]["category"].link == Link(page="matrix", query={"category": "hard"})
            assert {row["tag"].text: row["tests"].value for row in rows(tags)} == {"a": 2, "b": 1}


async def test_a_large_matrix_comes_page_by_page(tmp_path: Path) -> None:
    count = 2 * matrix.MAX_TESTS + 50
    tests = [{"id": f"t{number:04}", "input": "hi", "criteria": "c"} for number in range(count)]
    known = [{"name": name, "provider": "mock", "response": name} for name in ("yes", "no")]
    write(tmp_path, tests, targets=known, execution={"targets": ["yes", "no"]})
    run = await perform_eval(tmp_path)
    with viewed(run.folder) as view:
        seen, query, pages = list[str](), dict[str, str](), 0
        while True:
            (section,) = view.page("matrix", query)  # no averages of a part of the tests
            (table,) = parts(section, Table)
            found = [row["test"].text for row in rows(table)]
            assert len(found) <= matrix.MAX_TESTS
            seen, pages = seen + found, pages + 1
            if (more := facts(section).get("more")) is None or more.link is None:
                break
            query = dict(more.link.query)
        assert pages == 3
        assert seen == [test["id"] for test in tests]
        (section,) = view.page("matrix", {"show": "errors"})
        assert facts(section)["on this page"].value == 0
        assert "more" not in facts(section)


async def test_an_invalid_test_has_a_row(tmp_path: Path) -> None:
    write(tmp_path, [*TESTS, {"id": "invalid", "criteria": "no input"}])
    run = await perform_eval(tmp_path, max_attempts=1, skip_invalid=True)
    with viewed(run.folder) as view:
        row = matrix_of(view)["invalid"]
        assert row["target:good"].text == row["target:other"].text == "– invalid"
        link = row["test"].link
        assert link is not None
        found = view.reader.item(str(link.item))
        assert found is not None
        blocks = list(view.item_blocks(found, []))
        assert facts(blocks)["status"].text == "– invalid"
        assert "input" in parts(blocks, Text)[0].text
        assert view.labels(found) == {"dataset": "suite"}


@pytest.mark.parametrize("most", [200, 1])
async def test_damaged_items_are_the_only_ones_of_the_matrix_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    run = await performed(tmp_path)
    with viewed(run.folder) as view:
        sound = matrix_of(view)
        trial, unknown = item(view, "suite/flaky@good#1"), item(view, "suite/different@other")
    damage(run.folder, trial.number, "record")
    damage(run.folder, unknown.number, "payload")
    monkeypatch.setattr(matrix, "MAX_TESTS", most)
    found, query = dict[str, dict[str, Cell]](), dict[str, str]()
    notes = []
    with browsed(run.folder) as view:
        while True:
            sections = list(view.page("matrix", query))
            found |= {row["test"].text: row for row in rows(parts(sections, Table)[0])}
            notes += [note.text for note in parts(sections, Note)]
            more = facts(sections).get("more")
            if more is None:
                break
            assert more.link is not None
            query = dict(more.link.query)
        (groups,) = view.page("groups", {})
        (run.folder / SUMMARY).unlink()
        with pytest.raises(DamagedBlob):  # figures are those of all items
            list(view.page("distribution", {}))
    assert list(found) == ["same", "different", unknown.key, "broken", "flaky"]
    assert {name: row["target:good"].text for name, row in found.items()} == {
        "same": sound["same"]["target:good"].text,
        "different": sound["different"]["target:good"].text,
        unknown.key: "damaged",
        "broken": sound["broken"]["target:good"].text,
        "flaky": "damaged",
    }
    assert found["flaky"]["target:good"].link == Link(item=trial.number)
    assert found["flaky"]["target:other"].text == sound["flaky"]["target:other"].text
    assert found["different"]["target:other"].text == "damaged"  # one of its trials
    assert found[unknown.key]["test"].link == Link(item=unknown.number)
    assert [note for note in notes if "damaged" in note]
    assert "1 damaged item" in text_in(groups)


async def test_an_item_is_shown_though_others_of_its_test_are_damaged(tmp_path: Path) -> None:
    run = await performed(tmp_path)
    with viewed(run.folder) as view:
        own, elsewhere = item(view, "suite/same@good#1").number, item(view, "suite/same@other").number
    damage(run.folder, own)
    damage(run.folder, elsewhere)
    with browsed(run.folder) as view:
        blocks = blocks_of(view, "suite/same@good")
    assert "score" in facts(blocks)
    assert any("can't be told" in note.text for note in parts(blocks, Note))
    (beside,) = next(rows(table) for table in parts(blocks, Table) if table.title == "The same test at other targets")
    assert (beside["target"].text, beside["result"].text) == ("other", "damaged")


# --- Figures


async def test_the_head_has_the_scores_of_the_summary(tmp_path: Path) -> None:
    run = await performed(tmp_path)
    with viewed(run.folder) as view:
        (section,) = view.head()
        (table,) = parts(section, Table)
        found = {row["target"].text: row for row in rows(table)}
        for figures in [*run.summary["targets"], {**run.summary, "target": "all"}]:
            row = found[figures["target"]]
            assert row["mean_score"].value == figures["mean_score"]["value"]
            assert row["pass_rate"].value == figures["pass_rate"]["value"]
            interval = figures["pass_rate"]["interval"]
            assert f"{100 * interval['low']:.1f} %" in row["pass_rate"].text
            assert [row[name].value for name in ("tests", "passed", "errors")] == [
                figures["tests"][name] for name in ("in", "passed", "errors")
            ]
        assert "A test has passed with a score of 0.8 or more." in text_in(section)


async def test_figures_of_a_small_run_are_made_of_its_items_where_no_file_has_them(tmp_path: Path) -> None:
    run = await performed(tmp_path)
    with viewed(run.folder) as view:
        expected = block_json(list(view.head())), block_json(list(view.page("distribution", {})))
    written = (run.folder / SUMMARY).read_bytes()
    for text in (None, b"{", b'{"tests": {"in": 3}}', b"[]"):
        (run.folder / SUMMARY).unlink(missing_ok=True)
        if text is not None:
            (run.folder / SUMMARY).write_bytes(text)
        with viewed(run.folder) as view:
            assert (block_json(list(view.head())), block_json(list(view.page("distribution", {})))) == expected
    other = json.loads(written)
    other["targets"][0]["target"] = "of the file"
    (run.folder / SUMMARY).write_text(json.dumps(other))
    with viewed(run.folder) as view:
        assert "of the file" in text_in(list(view.head()))
    lock = RunLock(run.folder)  # it goes on, so that the file is of former times
    with viewed(run.folder) as view:
        assert "of the file" not in text_in(list(view.head()))
    lock.release()


@pytest.mark.parametrize(
    ("name", "value"), [("pass_rate", None), ("tests", None), ("tests", 3), ("targets", 3), ("targets", [7])]
)
async def test_a_summary_of_another_form_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    run = await performed(tmp_path)
    monkeypatch.setattr(view_module, "MAX_COMPUTED", 3)
    written = json.loads((run.folder / SUMMARY).read_bytes())
    del written[name]
    (run.folder / SUMMARY).write_text(json.dumps({**written, **({} if value is None else {name: value})}))
    with viewed(run.folder) as view:
        found = {each["name"]: each["value"] for each in run_status(view.reader)["figures"]}
        assert found["mean_score"] == written["mean_score"]["value"]
        assert (found["pass_rate"] is None) == (name == "pass_rate")
        assert (found["passed"] is None) == (name == "tests")
        assert notes_of(list(view.head())) == [
            f"{SUMMARY} is damaged, or another version wrote it: its figures can't be shown."
        ]


async def test_figures_of_a_killed_session_are_not_those_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await performed(tmp_path)
    with closing(sqlite3.connect(run.folder / JOURNAL)) as journal, journal:
        journal.execute("INSERT INTO sessions (process, host, started_at, heartbeat_at) VALUES (1, 'h', 2e9, 2e9)")
        journal.execute("UPDATE items SET state = 'pending', record = NULL, finished_at = NULL WHERE number <= 4")
    with viewed(run.folder) as view:
        (section,) = view.head()
        all_targets = rows(parts(section, Table)[0])[-1]
    assert all_targets["pending"].value == 2  # of the tests of one target
    monkeypatch.setattr(view_module, "MAX_COMPUTED", 3)
    with viewed(run.folder) as view:
        assert "an earlier session" in text_in(list(view.head()))
        assert "an earlier session" in text_in(list(view.page("distribution", {})))


async def test_the_distribution_has_trials_and_intervals(tmp_path: Path) -> None:
    run = await performed(tmp_path)
    with viewed(run.folder) as view:
        sections = list(view.page("distribution", {}))
    assert [section.name for section in sections] == ["distribution", "intervals", "trials", "answers"]
    good, other = parts(named(sections, "trials"), Table)
    assert (good.title, other.title) == ("Trials of good", "Trials of other")
    expected = run.summary["targets"][1]["trials"]
    assert {row["k"].text: row["pass_at_k"].value for row in rows(other)} == expected["pass_at_k"]
    assert {row["k"].text: row["pass_power_k"].value for row in rows(other)} == expected["pass_power_k"]


async def test_an_unknown_page(tmp_path: Path) -> None:
    run = await performed(tmp_path)
    with viewed(run.folder) as view, pytest.raises(KeyError):
        view.page("nothing", {})


# --- Items


async def test_how_an_answer_was_scored(tmp_path: Path) -> None:
    run = await performed(tmp_path)
    with viewed(run.folder) as view:
        blocks = blocks_of(view, "suite/different@other")
        found = facts(blocks)
        assert (found["status"].text, found["score"].text, found["limit"].text) == ("✗ failed", "0.000", "0.8")
        grader = next(block for block in blocks if isinstance(block, Fold))
        assert grader.is_open
        assert "✗" in text_in(grader)
        assert "the answer does not contain" in text_in(grader)
        texts = {text.title: text.text for text in parts(blocks, Text)}
        assert (texts["Criteria"], texts["Answer"]) == ("c", "no")
        (asked,) = [each for each in parts(blocks, Messages) if each.title == "Input"]
        assert asked.messages == [{"role": "user", "content": "hi"}]
        passed = next(block for block in blocks_of(view, "suite/same@good") if isinstance(block, Fold))
        assert not passed.is_open


async def test_an_item_leads_to_its_trials_and_to_other_targets(tmp_path: Path) -> None:
    run = await performed(tmp_path)
    with viewed(run.folder) as view:
        blocks = blocks_of(view, "suite/flaky@other")
        assert facts(blocks)["all trials together"].text == "✗ 0.500 ○●"
        tables = {table.title: rows(table) for table in parts(blocks, Table)}
        first, second = tables["Trials"]
        assert (first["status"].text, first["trial"].link) == ("✗ failed", None)
        assert (second["status"].text, second["trial"].link) == (
            "✓ passed",
            Link(item=item(view, "suite/flaky@other#1").number),
        )
        (beside,) = tables["The same test at other targets"]
        own, other = item(view, "suite/flaky@other").number, item(view, "suite/flaky@good").number
        assert (beside["target"].text, beside["result"].text) == ("good", "✓ 1.000 ●●")
        assert beside["beside"].link == Link(item=own, versus=other)


async def test_an_error_is_shown_as_it_is(tmp_path: Path) -> None:
    run = await performed(tmp_path)
    with viewed(run.folder) as view:
        blocks = blocks_of(view, "suite/broken@good")
        assert "no luck" in next(text.text for text in parts(blocks, Text) if text.title == "Error")
        assert facts(blocks)["status"].text == "! error"


async def test_trials_that_were_not_needed_are_no_invalid_ones(tmp_path: Path) -> None:
    write(tmp_path, execution={"targets": ["good", "other"], "trials": {"count": 3, "strategy": "pass_at_k"}})
    run = await perform_eval(tmp_path, max_attempts=1)
    with viewed(run.folder) as view:
        row = item(view, "suite/same@good#2")
        assert (row.state, row.reason) == ("discarded", "passed_before")
        (summary,) = [summary for each, summary in item_summaries(view.reader) if each.number == row.number]
        assert summary["verdict"] == "skipped"  # by which the index finds it, and which programs are given
        assert view.cells([row], [summary])[0]["verdict"].text == "– skipped"
        found = facts(blocks_of(view, "suite/same@good#2"))
        assert found["status"].text == "– skipped"
        assert found["all trials together"].text == "✓ 1.000 ●"
        assert matrix_of(view)["same"]["target:good"].text == "✓ 1.000 ●"


async def test_tests_that_were_run_again_say_what_they_came_to_at_first(tmp_path: Path) -> None:
    own = OWN.replace(
        '    return {"text": "yes" if',
        '    if Path("again").exists(): return {"text": "yes"}\n    return {"text": "yes" if',
    )
    own = f"from pathlib import Path\nimport os\nos.chdir({str(tmp_path)!r})\n{own}"
    write(tmp_path, own=own, execution={"targets": ["good", "other"]})
    await perform_eval(tmp_path, max_attempts=1)
    (tmp_path / "again").touch()
    run = await perform_eval(tmp_path, max_attempts=1, rerun_failed=True)
    with viewed(run.folder) as view:
        assert "re-rolled once; first: 0.000" in text_in(blocks_of(view, "suite/different@other"))
        assert "re-rolled" not in text_in(blocks_of(view, "suite/same@other"))
        assert "re-rolled once; first: 0.000" in matrix_of(view)["different"]["target:other"].about
        assert "re-rolled" in text_in(list(view.head()))
    graded = await perform_eval(tmp_path, "graded", max_attempts=1, regrade="run")
    assert graded.record("different", "other")["rerolls"] == 1
    with viewed(graded.folder) as view:
        assert "re-rolled once; first: 0.000" in text_in(blocks_of(view, "suite/different@other"))


CHANGING = """\
from pathlib import Path

def change(asked):
    (Path(asked["workspace"]) / "new.txt").write_text("hello\\n")
    call = {"tool": "write", "input": {"path": "new.txt"}, "output": "done", "duration_ms": 5}
    return {"output": [{"role": "assistant", "content": "wrote it", "tool_calls": [call]}]}
"""


async def test_file_changes_calls_and_nested_graders(tmp_path: Path) -> None:
    (tmp_path / "template").mkdir()
    (tmp_path / "template" / "old.txt").write_text("old\n")
    script = [sys.executable, "-c", 'print(\'{"score": 0.5, "misses": ["too short"], "details": {"length": 6}}\')']
    members = [
        {"type": "contains", "value": "wrote"},
        {"type": "code_judge", "name": "length", "script": script, "weight": 3},
    ]
    graders = [{"type": "composite", "name": "both", "aggregator": "weighted_average", "assert": members}]
    (tmp_path / "own.py").write_text(CHANGING)
    suite = {
        "targets": [{"name": "writer", "provider": "python", "function": "own.py:change"}],
        "workspace": {"template": "template"},
        "tests": [{"id": "a", "input": "write", "criteria": "c", "expected_output": {"done": True}, "assert": graders}],
    }
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    run = await perform_eval(tmp_path)
    with viewed(run.folder) as view:
        blocks = blocks_of(view, "suite/a@writer")
        (diff,) = [text for text in parts(blocks, Text) if text.form == "diff"]
        assert "+hello" in diff.text
        table = next(table for table in parts(blocks, Table) if table.title == "Scores")
        assert [(row["grader"].text, row["score"].text, row["weight"].text) for row in rows(table)] == [
            ("both", "0.625", "1"), ("› contains-wrote", "1.000", "1"), ("› length", "0.500", "3"),
        ]  # fmt: skip
        both = next(block for block in blocks if isinstance(block, Fold))
        (length,) = [fold for fold in parts(both, Fold) if fold.title == "length"]
        assert all(text in text_in(length) for text in ("✗", "too short", "Evidence", "length", "6"))
        (output,) = [each for each in parts(blocks, Messages) if each.title == "Output"]
        assert [message["role"] for message in output.messages] == ["assistant", "tool", "assistant"]
        assert output.messages[1]["content"] == "done"
        (calls,) = [table for table in parts(blocks, Table) if table.title == "Tool calls"]
        assert [cell.text for cell in calls.rows[0]] == ["write", "5 ms"]
        (expected,) = [each for each in parts(blocks, Messages) if each.title == "Expected"]
        assert json.loads(expected.messages[0]["content"]) == {"done": True}


async def test_turns_of_a_conversation(tmp_path: Path) -> None:
    turns = [
        {"input": "one", "assert": [{"type": "contains", "value": "yes"}]},
        {"input": "two", "assert": [{"type": "contains", "value": "never"}]},
    ]
    test = {"id": "talk", "mode": "conversation", "input": "be kind", "criteria": "c", "turns": turns}
    write(tmp_path, [test], execution={"targets": ["good"]})
    run = await perform_eval(tmp_path)
    with viewed(run.folder) as view:
        row = item(view, "suite/talk@good")
        ((_, summary),) = item_summaries(view.reader)
        assert view.cells([row], [summary])[0]["turns"].text == "2"
        folds = {fold.title: fold for fold in blocks_of(view, row.key) if isinstance(fold, Fold)}
        assert [cell.text for cell in folds["turn 1"].cells] == ["pass", "1.000"]
        assert [cell.text for cell in folds["turn 2"].cells] == ["fail", "0.000"]
        assert "two" in text_in(folds["turn 2"])


async def test_pages_are_data(tmp_path: Path) -> None:
    """Each page, and every item's part, is JSON as it stands."""
    run = await performed(tmp_path)
    with viewed(run.folder) as view:
        sections: list[Section] = [section for page in view.pages() for section in view.page(page.name, {})]
        items = [list(view.item_blocks(row, [])) for row in view.reader.items()]
    assert json.loads(json.dumps(block_json([*sections, *items])))
    assert parts(sections, Facts)
