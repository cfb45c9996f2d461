"""The schemas of ``docs/schemas`` are those of the code, and what small runs write fits them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from manyhands.testing.scripted_server import chat_response
from tests.support.batches import REASONED, BatchFolder, ServerThread
from tests.support.eval_runs import perform_eval
from tests.support.job_folders import FUNCTION, JobFolder
from tests.support.memory_benchmarks import opened, performed, write_configuration

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = ROOT / "docs/schemas"
SUITE = """
targets: [{name: c, provider: cli, command: "cat {PROMPT_FILE}"}]
tests:
  - id: good
    input: hello
    assertions:
      - {type: contains, value: hello}
      - {type: composite, assertions: [{type: contains, value: h}], aggregator: {type: weighted_average}}
  - {id: bad, input: [{role: user, content: hi}], assertions: [{type: contains, value: hello}]}
"""


def closed(schema: Any) -> Any:
    """A schema whose objects have no other keys than those that it names. As they are, later versions may add some."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {name: closed(part) for name, part in schema.items()}
    return {"additionalProperties": False, **parts} if isinstance(schema.get("properties"), dict) else parts


def problems(name: str, value: Any) -> list[str]:
    """What of a value does not fit a schema, or is not named there."""
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_bytes())
    Draft202012Validator.check_schema(schema)
    return [f"{error.json_path}: {error.message}" for error in Draft202012Validator(closed(schema)).iter_errors(value)]


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_they_are_those_of_the_code() -> None:
    done = subprocess.run([sys.executable, "tools/schemas.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), f"run tools/schemas.py\n{done.stdout}{done.stderr}"


def test_a_schema_that_names_too_little_is_found() -> None:
    assert problems("jobs/status", {"job_id": 1, "more": 2})


def test_what_a_batch_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = BatchFolder(tmp_path)
    folder.write_rows([{"prompt": "a", "label": 1}, {"prompt": "b", "system": "Be brief."}, {"no": "prompt"}])
    (tmp_path / "grade.yaml").write_text("- {name: done, type: contains, value: Done}\n")
    with ServerThread([chat_response("unreasoned"), REASONED]) as server:
        folder.batch(
            f"--base_url={server.base_url}",
            "--model=m",
            "--grade=grade.yaml",
            "--samples=2",
            "--best_of",
            "--num_workers=1",
        )
    run = tmp_path / "data/r"
    written = lines(run / "trajectories.jsonl")
    failed = lines(run / "failures.jsonl")
    assert written
    assert {line["state"] for line in failed} >= {"discarded", "skipped"}
    assert [problem for line in written for problem in problems("trajectories/trajectory", line)] == []
    assert [problem for line in failed for problem in problems("trajectories/failure", line)] == []
    for name in ("trajectories/statistics", "trajectories/checkpoint", "summary"):
        assert problems(name, json.loads((run / f"{Path(name).name}.json").read_bytes())) == []


def test_what_is_said_of_a_job(tmp_path: Path) -> None:
    with JobFolder(tmp_path, ["one", "fail"]) as folder:
        folder.spawn(FUNCTION, "--max_attempts=1")
        status = folder.status()
    assert status["state"] == "completed_with_failures"
    assert problems("jobs/status", status) == []
    assert problems("summary", json.loads((Path(status["folder"]) / "summary.json").read_bytes())) == []


async def test_what_evaluations_write(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE)
    run = await perform_eval(tmp_path, trials=2)
    records = run.records()
    assert {record["status"] for record in records} >= {"passed", "failed"}
    assert [problem for record in records for problem in problems("evals/result", record)] == []
    assert problems("evals/eval_summary", json.loads((run.folder / "eval_summary.json").read_bytes())) == []
    assert problems("summary", json.loads((run.folder / "summary.json").read_bytes())) == []


async def test_what_the_memory_benchmark_writes(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    run = opened(tmp_path, "simulated")
    await performed(run)
    results = list(run.folder.glob("results/*/*/*_0.json"))
    assert len(results) >= 2
    for path in results:
        assert problems("memory/result", json.loads(path.read_bytes())) == []
    for path in run.folder.glob("results/*/runstats.json"):
        assert problems("memory/runstats", json.loads(path.read_bytes())) == []
    assert problems("summary", json.loads((run.folder / "summary.json").read_bytes())) == []
