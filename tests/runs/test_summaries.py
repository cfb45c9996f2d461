"""The summaries that all workloads fill in: of small real runs of each, with the simulated model."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from manyhands.core.outcomes import ItemState
from manyhands.engine.journal.reader import JOURNAL
from manyhands.runs.execution import execute_run
from manyhands.runs.folders import find_runs, find_sub_runs, folders_of_runs, free_name, open_reader
from manyhands.runs.listing import list_runs
from manyhands.runs.making import Opened, make_run
from manyhands.runs.summaries import (
    MAX_TEXT,
    ItemSummary,
    brief,
    item_summaries,
    run_status,
    run_summary,
    summarizer_of,
)
from manyhands.workloads.csv_jobs.prepared import prepare
from manyhands.workloads.csv_jobs.spec import JobSpec
from manyhands.workloads.csv_jobs.workload import CsvJobsWorkload
from tests.support.batches import BatchFolder, run_command
from tests.support.engine_runs import make_steps_run, perform_steps_run
from tests.support.eval_runs import perform_eval
from tests.support.memory_benchmarks import opened, performed, write_configuration

SCHEMAS = Path(__file__).resolve().parents[2] / "docs/schemas"


def check(name: str, value: Any) -> None:
    """Raises where a value is none of a schema in ``docs/schemas``, or has a key that it does not name."""
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_bytes())
    Draft202012Validator(schema).validate(value)
    assert value.keys() <= schema["properties"].keys()


def summaries(folder: Path) -> tuple[dict[str, Any], list[ItemSummary]]:
    """The summary of a run and those of its items; they fit their schemas and add up."""
    with closing(open_reader(folder)) as reader:
        run, items = run_status(reader), [item for _, item in item_summaries(reader)]
        assert run_summary(reader) == {**run, "folder": str(folder.absolute())}
    check("run", run)
    for item in items:
        check("item", item)
        assert "\n" not in item["input"] + item["outcome"]
    assert run["ledger"]["items"] == len(items)
    assert [item["position"] for item in items] == list(range(len(items)))
    for name in ("calls", "input_tokens", "output_tokens", "simulated_calls"):
        assert run["usage"][name] == sum(item["usage"][name] for item in items), name
    return dict(run), items


def test_trajectories(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, [{"prompt": "Say\nhello", "id": "greeting"}, "Count to three"])
    (tmp_path / "grade.yaml").write_text("- {type: regex, value: '.'}\n")
    assert folder.batch("--model=simulated", "--samples=2", "--grade=grade.yaml").code == 0
    run, items = summaries(folder.run())
    assert (run["workload"], run["state"], run["running"], run["simulated"]) == ("trajectories", "finished", 0, True)
    assert [(item["label"], item["sample"], item["input"]) for item in items] == [
        ("greeting", 0, "Say hello"),
        ("greeting", 1, "Say hello"),
        ("prompt 1", 0, "Count to three"),
        ("prompt 1", 1, "Count to three"),
    ]
    assert {(item["state"], item["score"], item["verdict"]) for item in items} == {("completed", 1.0, "pass")}
    assert all(item["outcome"] and item["usage"]["calls"] for item in items)
    assert run["figures"] == [{"name": "mean_score", "label": "mean score", "value": 1.0, "text": "1.000"}]


async def test_evaluations(tmp_path: Path) -> None:
    suite = """\
        targets: {sim: {provider: model, model: simulated}}
        tests:
          - {id: any, input: "Say hello", assert: [{type: regex, value: "."}]}
          - {id: none, input: "Say no", assert: [{type: equals, value: "nothing like it"}]}
    """
    (tmp_path / "suite.yaml").write_text(dedent(suite))
    run, items = summaries((await perform_eval(tmp_path, trials=2)).folder)
    assert [(item["label"], item["sample"], item["input"]) for item in items] == [
        ("any @ sim", 0, "Say hello"),
        ("any @ sim", 1, "Say hello"),
        ("none @ sim", 0, "Say no"),
        ("none @ sim", 1, "Say no"),
    ]
    assert [(item["score"], item["verdict"]) for item in items] == [(1, "passed")] * 2 + [(0, "failed")] * 2
    assert all(item["outcome"] for item in items)
    assert {each["name"]: each["text"] for each in run["figures"]} == {
        "pass_rate": "50.0%",
        "mean_score": "0.500",
        "passed": "1",
        "failed": "1",
    }


async def test_jobs(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("name,text\na,one\nb,two\n")
    given = {
        "csv_path": str(tmp_path / "rows.csv"),
        "instruction": "Report {text}",
        "id_column": "name",
        "model": "simulated",
        "sandbox": "local",
        "toolsets": "none",
        "data_dir": str(tmp_path / "data"),
    }
    options, folder = JobSpec.make(given).resolved(), tmp_path / "data" / "job"
    job = await prepare(options, "0b5e7d34-94c1-4b58-9d0a-7f5f9f6f2c11")
    made = Opened(folder, CsvJobsWorkload(job.to_json(), folder))
    make_run(made, options, print)
    await execute_run(made)
    run, items = summaries(folder)
    assert (run["workload"], run["figures"]) == ("csv_jobs", [])
    assert [(item["label"], item["state"], item["score"]) for item in items] == [
        ("a", "completed", None),
        ("b", "completed", None),
    ]
    assert json.loads(items[0]["input"]) == {"name": "a", "text": "one"}
    assert isinstance(json.loads(items[1]["outcome"]), dict)


async def test_memory(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    made = opened(tmp_path, ["perfect", "simulated"])
    await performed(made)
    run, items = summaries(made.folder)
    assert [(item["label"], item["input"], item["sample"]) for item in items] == [
        ("PerfectAgent", "perfect", 0),
        (items[1]["label"], "simulated", 0),
    ]
    assert items[0]["score"] == 1
    assert items[0]["outcome"] == "2.00 of 2, 2 tests"
    scores = [item["score"] for item in items if item["score"] is not None]
    assert run["figures"][0]["value"] == pytest.approx(sum(scores) / 2)
    assert [row["run"] for row in json.loads(run_command(tmp_path, "runs", "--json").out)] == ["small"]


def test_commands_show_what_the_summaries_have(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, ["fine", "Do it [simulate: no_reasoning]"])
    folder.batch("--model=simulated")
    run, items = summaries(folder.run())
    shown = [json.loads(line) for line in run_command(tmp_path, "show", "r", "--json").out.splitlines()]
    assert [{name: each[name] for name in items[0]} for each in shown] == items
    assert shown[0]["payload"]["prompt"] == "fine"
    assert json.loads(run_command(tmp_path, "status", "r", "--json").out) == run
    (listed,) = json.loads(run_command(tmp_path, "runs", "--json").out)
    assert (listed["state"], listed["items"], listed["cost"]) == (run["state"], 2, run["usage"]["cost"])


def test_a_workload_without_a_summarizer_has_what_all_runs_have(tmp_path: Path) -> None:
    make_steps_run(tmp_path / "r", {"items": 2, "steps": 1})
    run, items = summaries(tmp_path / "r")
    assert (run["state"], run["figures"]) == ("not started", [])
    assert [(item["state"], item["label"], item["outcome"]) for item in items] == [
        (ItemState.PENDING, item["key"], "") for item in items
    ]


def test_items_come_in_pages(tmp_path: Path) -> None:
    make_steps_run(tmp_path / "r", {"items": 5, "steps": 1})
    with closing(open_reader(tmp_path / "r")) as reader:
        everything = list(item_summaries(reader))
        first = list(item_summaries(reader, ItemState.PENDING, limit=3))
        second = list(item_summaries(reader, behind=first[-1][0].position, limit=3))
    assert (len(first), first + second) == (3, everything)


def test_what_items_used_is_read_in_pages(tmp_path: Path) -> None:
    perform_steps_run(tmp_path / "r", {"items": 230, "steps": 2, "failures": {"item-120": ["timeout"]}})
    with closing(open_reader(tmp_path / "r")) as reader:
        found = [(row.number, item["usage"]["calls"]) for row, item in item_summaries(reader)]
        one = summarizer_of(reader).item(next(reader.items(behind=120)))
    assert found == [(number, 0 if number == 121 else 2) for number in range(1, 231)]
    assert (one["item"], one["usage"]["input_tokens"]) == (122, 20)


def test_runs_are_listed_with_those_inside_their_folders(tmp_path: Path) -> None:
    for name in ("r", "tests/whole", "tests/whole/scores/judge", "tests/only_defined/definitions"):
        make_steps_run(tmp_path / name, {"items": 3, "steps": 1})
    for folder in ("tests/whole/definitions", "other/definitions"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / JOURNAL).write_bytes(b"no journal at all")
    broken, *listed = list_runs(tmp_path, sub_runs=True)
    assert (broken.folder, broken.summary) == (tmp_path / "broken", None)
    assert broken.state.startswith("unreadable: ")
    assert broken.to_json() == {"run": "broken", "state": broken.state}
    whole = tmp_path / "tests/whole"
    assert [(each.folder, each.state) for each in listed] == [
        (tmp_path / "r", "not started"),
        (tmp_path / "tests/only_defined/definitions", "not started"),
        (whole, "not started"),
        (whole / "scores/judge", "not started"),
    ]
    assert list(find_runs(tmp_path)) == [tmp_path / "broken", tmp_path / "r", whole]
    assert list(find_sub_runs(whole)) == [whole / "scores/judge"]


def test_texts_are_brief() -> None:
    assert brief(None) == ""
    assert brief(" a \n b ") == "a b"
    assert brief({"a": [1]}) == '{"a": [1]}'
    assert brief("x" * 1000) == "x" * MAX_TEXT + "…"
    assert brief("a" + " " * 5000 + "b") == "a…"
    assert brief("a" + " " * 5000) == "a"


def test_a_free_name(tmp_path: Path) -> None:
    assert free_name(tmp_path, "run") == "run"
    for taken in ("run", "run-2"):
        (tmp_path / taken).mkdir()
    assert free_name(tmp_path, "run") == "run-3"


def test_workloads_say_where_their_runs_are() -> None:
    assert folders_of_runs(Path("data")) == (Path("data"), Path("data/tests"))
