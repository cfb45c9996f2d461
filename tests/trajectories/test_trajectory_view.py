"""What batches show: columns, statistics from the file and from the journal, grades, lines, and how two batches differ."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path

import pytest

from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.shown.blocks import Chart, Fold, Link, Value
from manyhands.runs.shown.run_view import RunView
from manyhands.runs.summaries import summarizer_of
from manyhands.testing.scripted_server import RecordedRequest, Reply, chat_response
from tests.support.batches import BatchFolder, ServerThread, prompt_of
from tests.support.shown_blocks import facts as facts_of
from tests.support.shown_blocks import item_parts, notes_of, page_parts, rows_of, texts, viewed
from tests.support.shown_blocks import parts as of_kind

JUDGE = """
import json, sys
words = json.load(sys.stdin)["answer"].split()
score = 1.0 if len(words) > 2 else 0.5
print(json.dumps({"score": score, "hits": ["an answer"], "misses": [] if score == 1 else ["too short"], "reasoning": "Counted."}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> BatchFolder:
    (tmp_path / "judge.py").write_text(JUDGE)
    (tmp_path / "checks.yaml").write_text(
        f"- {{name: own, type: code_judge, script: [{sys.executable}, judge.py]}}\n- {{name: e, type: regex, value: e}}\n"
    )
    return BatchFolder(tmp_path)


def reply(request: RecordedRequest) -> Reply:
    """The first prompt calls two tools, of which one fails; the second is not reasoned about."""
    asked = prompt_of(request)
    if asked == "two":
        return chat_response("Done.")
    if asked == "one" and all(message["role"] != "tool" for message in request.body["messages"]):
        calls = [
            {"id": f"c{n}", "type": "function", "function": {"name": "terminal", "arguments": json.dumps(each)}}
            for n, each in enumerate(({"command": "echo hello"}, {}))
        ]
        return chat_response("I look.", reasoning="Let me see.", tool_calls=calls)
    return chat_response("Done, as was asked." if asked == "one" else "Done here.", reasoning="I think so.")


def make(folder: BatchFolder, *options: str, code: int = 0) -> None:
    with ServerThread(reply) as server:
        ran = folder.batch(f"--base_url={server.base_url}", "--model=m", *options)
    assert ran.code == code, ran


def cells(view: RunView) -> list[dict[str, str]]:
    rows = list(view.reader.items())
    return [texts(each) for each in view.cells(rows, summarizer_of(view.reader).items(rows))]


def test_columns_and_labels_say_how_trajectories_went(folder: BatchFolder) -> None:
    make(folder, "--grade=checks.yaml")
    with viewed(folder.run()) as view:
        found = cells(view)
        labels = [view.labels(row) for row in view.reader.items()]
        names = [column.name for column in view.run_columns()]
    assert set(found[0]) == set(names)
    assert found[0] == {
        "prompt": "0",
        "sample": "0",
        "model": "m",
        "turns": "2",
        "reasoned": "100%",
        "tool_calls": "2",
        "tool_failures": "1",
        "stop": "answered",
        "score": "1.000",
        "verdict": "pass",
    }
    assert (found[1]["reasoned"], found[1]["score"], found[2]["verdict"]) == ("0%", "", "borderline")
    assert labels == [
        {"toolsets": "file, terminal", "stop": "answered", "verdict": "pass"},
        {"toolsets": "file, terminal", "stop": "answered", "discarded": "no_reasoning"},
        {"toolsets": "file, terminal", "stop": "answered", "verdict": "borderline"},
    ]


def test_all_of_the_statistics_is_shown(folder: BatchFolder) -> None:
    make(folder, "--grade=checks.yaml")
    found = folder.json("statistics.json")
    with viewed(folder.run()) as view:
        parts = page_parts(view, "statistics")
        with pytest.raises(KeyError):
            view.page("nothing", {})
    facts = facts_of(parts)
    (tool,) = rows_of(parts)[:1]
    assert texts(tool) == {
        "Tool": "terminal",
        "Calls": "2",
        "Successes": "1",
        "Failures": "1",
        "Success rate": "50.00",
        "Failure rate": "50.00",
    }
    (chart,) = of_kind(parts, Chart)
    assert [(each.name, list(each.points)) for each in chart.series] == [
        ("successes", [("terminal", 1.0)]),
        ("failures", [("terminal", 1.0)]),
    ]
    reasoning = found["reasoning_statistics"]
    assert facts["Assistant turns"].value == reasoning["total_assistant_turns"]
    assert facts["With reasoning"].value == reasoning["turns_with_reasoning"]
    assert facts["Mean score"].value == found["scores"]["mean"]
    assert facts["Discarded without reasoning"].value == 1
    assert facts["Tokens in"].value == found["usage"]["input_tokens"]
    assert [texts(each) for each in rows_of(parts, "Discarded, by reason")] == [
        {"Reason": "no_reasoning", "Count": "1"}
    ]
    assert rows_of(parts, "Items")[0]["State"].link == Link(query={"state": "completed"})
    assert rows_of(parts, "Stop reasons of trajectories")[0]["Stop reason"].link == Link(query={"stop": "answered"})
    assert [each["Processed"].text for each in rows_of(parts, "Batches")] == ["2", "1"]
    assert facts["Completed prompts"].value == 3


def test_without_the_file_the_figures_come_from_the_journal(folder: BatchFolder) -> None:
    make(folder, "--grade=checks.yaml", "--samples=2", "--best_of=true")
    with viewed(folder.run()) as view:
        written = facts_of(page_parts(view, "statistics"))
        (folder.run() / "statistics.json").unlink()
        (folder.run() / "checkpoint.json").unlink()
        computed = facts_of(page_parts(view, "statistics"))
    left_out = {"Written at", "Tags", "Trajectories with any", "Completed prompts", "Last updated", "Batches"}
    assert computed.keys() >= written.keys() - left_out
    same = computed.keys() - left_out
    assert {name: computed[name] for name in same} == {name: written[name] for name in same}
    assert computed["Not the best"].value == 2


@pytest.mark.parametrize("text", ["", "[]", '{"tool_statistics": 5, "scores": [], "made_by": [1], "cost": "x"}', "{"])
def test_a_file_that_is_not_as_it_was_written_breaks_no_page(folder: BatchFolder, text: str) -> None:
    make(folder)
    for name in ("statistics.json", "checkpoint.json"):
        (folder.run() / name).write_text(text)
    with viewed(folder.run()) as view:
        assert page_parts(view, "statistics")
        assert list(view.head())


def test_an_item_has_its_grade_its_tools_and_its_line(folder: BatchFolder) -> None:
    make(folder, "--grade=checks.yaml")
    with viewed(folder.run()) as view:
        keys = [row.key for row in view.reader.items()]
        first, second, third = (item_parts(view, key) for key in keys)
    assert facts_of(first)["Score"].text == "1.000"
    assert [texts(each) for each in rows_of(first, "Tools")] == [
        {"Tool": "terminal", "Calls": "2", "Failures": "1", "Success rate": "50.0%"}
    ]
    assert facts_of(first)["Sampled"].text == "terminal, file"
    (line,) = [each for each in of_kind(first, Fold) if each.title.startswith("Its line")]
    assert line.title == "Its line in batch_0.jsonl"
    assert of_kind([line], Value)[0].value == folder.lines("batch_0.jsonl")[0]
    assert notes_of(second) == ["no_reasoning"]
    assert not [each for each in of_kind(second, Fold) if each.title.startswith("Its line")]
    own = next(each for each in of_kind(third, Fold) if each.title == "own")
    assert own.is_open
    assert [texts(each) for each in rows_of([own], "Misses and hits")] == [
        {"Found": "miss", "What": "too short"},
        {"Found": "hit", "What": "an answer"},
    ]


def test_a_line_is_not_made_of_some_of_its_steps(folder: BatchFolder) -> None:
    make(folder)
    with viewed(folder.run()) as view:
        row = next(view.reader.items())
        steps = view.reader.steps(row.number, row.attempt)
        for left in range(len(steps)):
            parts = list(view.item_blocks(row, [*steps[:left], *steps[left + 1 :]]))
            assert notes_of(parts) == ["Its line is too large to be shown here; it is in batch_0.jsonl."]


def test_the_head_has_the_options_and_the_files_are_named(folder: BatchFolder) -> None:
    make(folder, "--min_score=0.1", "--grade=checks.yaml")
    with viewed(folder.run()) as view:
        parts, files = list(view.head()), list(view.files())
    assert [each["File"].text for each in rows_of(files)] == [
        "failures.jsonl",
        "trajectories.jsonl",
        "statistics.json",
        "checkpoint.json",
        "batch_0.jsonl",
        "batch_1.jsonl",
    ]
    assert rows_of(files)[1]["Size"].value == (folder.run() / "trajectories.jsonl").stat().st_size
    assert facts_of(parts)["Minimum score"].text == "0.1"


def test_two_batches_are_compared_by_the_rows_that_both_have(folder: BatchFolder) -> None:
    make(folder, "--grade=checks.yaml")
    folder.write_rows(["three", "one", "four"])
    with ServerThread([chat_response("Ended as it should be.", reasoning="Yes.")]) as server:
        folder.batch(f"--base_url={server.base_url}", "--model=m", "--run_name=q", "--grade=checks.yaml")
    with viewed(folder.run()) as view, closing(JournalReader(folder.run("q"))) as other:
        parts = list(view.compared([other], {}))
        run_id = other.meta("run_id")
        numbers = {row.key: row.number for row in other.items()}
        keys = [row.key for row in view.reader.items()]
    assert facts_of(parts)["Shown"].text == "items 1 to 3, of which both have 2"
    means = {each["Mean of"].text: each for each in rows_of(parts, "Means over these items")}
    assert texts(means["Score"]) == {
        "Mean of": "Score",
        "Items": "2",
        "r": "0.875",
        "q": "1.000",
        "Difference": "+0.125",
    }
    assert means["Turns"]["Difference"].text == "-0.50"
    differing = rows_of(parts, "Items that differ")
    assert [each["Item"].text for each in differing] == ["prompt 2", "prompt 0"]
    assert differing[0]["Item"].link == Link(item=3, versus=numbers[keys[2]], versus_run=run_id)
    assert (differing[0]["Score"].text, differing[0]["Verdict"].text) == ("0.750 → 1.000", "borderline → pass")
    assert (differing[1]["Turns"].text, differing[1]["Turns"].value) == ("2 → 1", -1)


def test_batches_without_a_common_row_are_not_compared(folder: BatchFolder) -> None:
    make(folder)
    folder.write_rows(["other"])
    make(folder, "--run_name=q")
    with viewed(folder.run()) as view, closing(JournalReader(folder.run("q"))) as other, pytest.raises(KeyError):
        view.compared([other], {})
