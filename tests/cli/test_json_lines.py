"""Files of JSON Lines have one line a value for every reader, also one that splits text where Unicode ends lines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from manyhands.io.tables.json import write_jsonl
from manyhands.workloads.evals.batch.output import convert
from manyhands.workloads.memory.conversation.events import Event, EventType, format_event, parse_event
from manyhands.workloads.trajectories.results.kept_samples import kept_lines
from tests.support.batches import BatchFolder, run_command
from tests.support.job_folders import FUNCTION, JobFolder

BREAKS = "a\u2028b\u2029c\x85d\x1ce\x1df\x1eg\x0bh\x0ci\rj\nk"
"""Every character at which ``str.splitlines`` ends a line."""
IN_CSV = "a\u2028b\u2029c\x85d"


def assert_lines(paths: Iterable[Path], least: int) -> None:
    """Each file has as many lines for ``str.splitlines`` as it has, and all are JSON."""
    found = list(paths)
    assert len(found) >= least, found
    for path in found:
        text = path.read_bytes().decode()
        assert len(text.splitlines()) == text.count("\n"), path
        for line in text.splitlines():
            json.loads(line)


def held(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def test_all_files_of_a_batch(tmp_path: Path) -> None:
    folder = BatchFolder(
        tmp_path,
        [
            {"prompt": f"say {BREAKS}", "note": BREAKS, f"x{BREAKS}": 1},
            {"prompt": f"{BREAKS} [simulate: no_reasoning]", "note": BREAKS},
        ],
    )
    with (tmp_path / "d.jsonl").open("a", encoding="utf-8") as rows:
        rows.write(json.dumps({"prompt": BREAKS[1:], "id": 1}) + "\n" + json.dumps({"prompt": "x", "id": 1}) + "\n")
    assert folder.batch("--model=simulated").code == 0
    assert_lines(folder.run().glob("*.jsonl"), 3)
    lines = folder.lines()
    assert lines[0]["conversations"][1]["value"] == f"say {BREAKS}"
    assert json.loads(lines[0]["metadata"]["source"])[f"x{BREAKS}"] == 1
    assert folder.lines("failures.jsonl")[0]["prompt"] == f"{BREAKS} [simulate: no_reasoning]"


def test_lines_of_an_older_version_are_mended_where_they_are_combined(tmp_path: Path) -> None:
    entry = {"prompt_index": 0, "conversations": [{"from": "human", "value": BREAKS}], "metadata": {"item": "k"}}
    (tmp_path / "batch_0.jsonl").write_text(held(entry) + "\n", encoding="utf-8")
    (tmp_path / "t.jsonl").write_bytes(b"".join(kept_lines(tmp_path, 1)))
    assert_lines([tmp_path / "t.jsonl"], 1)
    assert json.loads((tmp_path / "t.jsonl").read_text(encoding="utf-8")) == entry


def test_all_files_of_an_evaluation(tmp_path: Path) -> None:
    tests = [
        {"id": f"t{n}", "input": BREAKS, "criteria": BREAKS, "assert": [{"type": "regex", "value": "a"}]}
        for n in (1, 2)
    ]
    (tmp_path / "e.jsonl").write_text("".join(json.dumps(test) + "\n" for test in tests), encoding="utf-8")
    answers = json.dumps([{"id": test["id"], "text": BREAKS} for test in tests], ensure_ascii=False)
    (tmp_path / "answers.json").write_text(answers, encoding="utf-8")
    batch = "{provider: cli, provider_batching: true, command: 'cp answers.json {OUTPUT_FILE}'}"
    (tmp_path / "targets.yaml").write_text(f"targets: {{t: {batch}}}\n")
    ran = run_command(
        tmp_path,
        "eval",
        "e.jsonl",
        "--run_name=r",
        "--quiet",
        "--target=t",
        "--output=o.jsonl",
        "--trace_file=trace.jsonl",
    )
    assert ran.code == 0, ran.err
    own = [*(tmp_path / "data").rglob("*.jsonl"), tmp_path / "o.jsonl", tmp_path / "trace.jsonl"]
    assert_lines([path for path in own if path.name != "output.jsonl"], 4)  # that one is the command's
    names = {path.name for path in own}
    assert {"results.jsonl", "tests.jsonl"} <= names
    results = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text(encoding="utf-8").splitlines()]
    assert json.dumps(BREAKS)[1:-1] in json.dumps(results[0])


def test_records_of_an_array(tmp_path: Path) -> None:
    (tmp_path / "output.json").write_text(held([{"id": "a", "text": BREAKS}, {"id": "b"}]), encoding="utf-8")
    with (tmp_path / "output.json").open("rb") as output:
        assert convert(output, tmp_path / "records.jsonl").written
    assert_lines([tmp_path / "records.jsonl"], 1)
    assert json.loads((tmp_path / "records.jsonl").read_text().splitlines()[0]) == {"id": "a", "text": BREAKS}


@pytest.mark.parametrize("text", [BREAKS, "half a \ud83d, \u2028", "\x85"])
def test_an_export_of_a_job(tmp_path: Path, text: str) -> None:
    path = tmp_path / "out.jsonl"
    with path.open("wb") as handle:
        assert write_jsonl(handle, ["name", text], [["a", {"result": [text]}], [text, 10**30]]) == 2
    assert_lines([path], 1)
    assert json.loads(path.read_text().splitlines()[1]) == {"name": text, text: 10**30}


def test_a_job_that_writes_lines(tmp_path: Path) -> None:
    with JobFolder(tmp_path, [IN_CSV]) as folder:
        ended = folder.spawn(FUNCTION, "--executor=local", "--output_csv_path=out.jsonl")
        assert ended.code == 0, ended
        assert_lines([tmp_path / "out.jsonl"], 1)
        assert json.loads((tmp_path / "out.jsonl").read_text(encoding="utf-8"))["text"] == IN_CSV


def test_the_log_of_a_memory_benchmark() -> None:
    event = Event(EventType(0), 1.5, BREAKS, {"message": BREAKS})
    text = format_event(event)
    assert len(text.splitlines()) == 1
    assert parse_event(text, "here") == event
