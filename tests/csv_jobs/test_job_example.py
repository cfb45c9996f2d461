"""What a user of the original did with it, done with real processes: by an MCP client, and from the shell.

The example is ``examples/csv_jobs/mcp_client.py``; here it is run as a program of its own.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from manyhands.runs.folders import open_reader
from manyhands.workloads.csv_jobs.rows.prompts import REPORT_TOOL
from tests.support.commands import environment
from tests.support.job_folders import FUNCTION, JobFolder
from tests.support.mcp_clients import content, over_streams, words

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/csv_jobs"
SCHEMA = json.loads((EXAMPLE / "schema.json").read_text(encoding="utf-8"))
ADDED = (
    "job_id",
    "item_id",
    "row_index",
    "source_id",
    "status",
    "attempt_count",
    "last_error",
    "result_json",
    "reported_at",
    "completed_at",
)
"""The ten columns of the original program, in its order."""
LATER_KEYS = {
    "job_id",
    "status",
    "output_csv_path",
    "total_items",
    "completed_items",
    "failed_items",
    "job_error",
    "failed_item_errors",
}
"""What the original's later shape answered."""
AGENTS = ("--model=simulated", "--toolsets=terminal,file", "--sandbox=bubblewrap")
PATHS = (
    "codex-rs/core/src/tools/handlers/agent_jobs.rs",
    "codex-rs/core/src/tools/handlers/shell.rs",
    "codex-rs/core/src/agent/control.rs",
    "codex-rs/core/src/exec_policy.rs",
    "codex-rs/core/src/tools/handlers/mcp.rs",
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[JobFolder]:
    with JobFolder(tmp_path) as made:
        yield made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The repository that the five paths are relative to."""
    root = tmp_path / "repo"
    for name in PATHS:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("fn main() {}\n" * 300, encoding="utf-8")
    return root


def assert_results(folder: JobFolder, output: Path, job: str) -> None:
    """Five rows in the original program's columns, all completed by agents that used tools."""
    with output.open(encoding="utf-8", newline="") as handle:
        header, *rows = csv.reader(handle)
    assert header == ["path", "area", *ADDED]
    assert [row[:2] for row in rows] == [[name, "core"] for name in PATHS]
    cells = [dict(zip(header, row, strict=True)) for row in rows]
    assert {row["job_id"] for row in cells} == {job}
    assert [row["item_id"] for row in cells] == [f"row-{number}" for number in range(1, 6)]
    assert [(row["status"], row["attempt_count"], row["last_error"]) for row in cells] == [("completed", "1", "")] * 5
    for row in cells:
        Draft202012Validator(SCHEMA).validate(json.loads(row["result_json"]))
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", row["reported_at"])
        assert row["completed_at"] >= row["reported_at"]
    used = tools_used(folder, job)
    assert used[REPORT_TOOL] == 5
    assert used.total() > 5


def tools_used(folder: JobFolder, job: str) -> Counter[str]:
    """How often each tool was called in a job, by its journal."""
    with closing(open_reader(folder.folder(job))) as reader:
        steps = [step for number in range(1, 6) for step in reader.steps(number, 1)]
    messages = [step.output["message"] for step in steps if step.kind == "model"]
    return Counter(call["function"]["name"] for message in messages for call in message.get("tool_calls") or ())


def example(folder: JobFolder, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the example client, a process of its own, which starts its server."""
    return subprocess.run(
        [sys.executable, str(EXAMPLE / "mcp_client.py"), f"--folder={folder.path}", *options],
        cwd=folder.path,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_an_mcp_client_does_the_example(folder: JobFolder, project: Path) -> None:
    ended = example(folder, *AGENTS, f"--project={project}")
    assert ended.returncode == 0, ended.stderr
    output = folder.path / "security_rank_output_demo.csv"
    counts, path, *head = ended.stdout.splitlines()
    assert counts == "completed: 5 of 5 rows"
    assert path == str(output)
    assert head == output.read_text(encoding="utf-8").splitlines()
    assert len(head) == 6
    (job,) = os.listdir(folder.path / "data")
    assert_results(folder, output, job)
    assert folder.status(job)["state"] == "completed"
    assert "export_agent_job_csv" not in (EXAMPLE / "mcp_client.py").read_text(encoding="utf-8")


def test_the_same_from_the_shell(folder: JobFolder, project: Path) -> None:
    (folder.path / "demo.csv").write_text("path,area\n" + "".join(f"{name},core\n" for name in PATHS))
    script = (
        f"{sys.executable} -m manyhands jobs spawn demo.csv --detach --output_csv_path=out.csv "
        f"--instruction='read the file {{path}}, score it' --output_schema={EXAMPLE / 'schema.json'} --job_name=rank "
        f"--project={project} {' '.join(AGENTS)} > said.txt && "
        f"{sys.executable} -m manyhands jobs wait rank --timeout_ms=60000 --json > status.json && head -n 6 out.csv"
    )
    ended = subprocess.run(
        ["bash", "-c", script],
        cwd=folder.path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    output = folder.path / "out.csv"
    assert ended.stdout == output.read_text(encoding="utf-8")
    status = json.loads((folder.path / "status.json").read_text())
    assert (status["status"], status["completed_items"], status["timed_out"]) == ("completed", 5, False)
    job = status["job_id"]
    (folder.path / "data" / job).symlink_to(folder.folder("rank"))
    assert_results(folder, output, job)


async def test_the_later_shape_answers_when_the_job_has_ended(folder: JobFolder) -> None:
    async with over_streams(FUNCTION, folder=folder.path) as client:
        given = {"csv_path": "rows.csv", "instruction": "Say {text}.", "wait": True}
        answer = content(
            await client.call_tool("spawn_agents_on_csv", {**given, "max_workers": 2, "max_runtime_seconds": 60})
        )
        assert answer.keys() >= LATER_KEYS
        assert (answer["status"], answer["total_items"], answer["completed_items"]) == ("completed", 3, 3)
        assert (answer["failed_items"], answer["job_error"], answer["failed_item_errors"]) == (0, None, None)
        assert (answer["timed_out"], answer["next_step"]) == (False, None)
        output = Path(answer["output_csv_path"])
        assert output == folder.path / f"rows.agent-job-{answer['job_id'][:8]}.csv"
        assert [result["text"] for result in folder.results(output.name)] == ["one", "two", "three"]
        refused = await client.call_tool("spawn_agents_on_csv", {**given, "max_runtime_seconds": 0})
        assert (refused.is_error, words(refused)) == (True, "max_runtime_seconds must be >= 1")


async def test_the_later_shape_names_the_first_failures(folder: JobFolder) -> None:
    folder.write_rows(["fine", *(f"fail {number}" for number in range(7)), "sleep 30"])
    async with over_streams(FUNCTION, "--max_attempts=1", folder=folder.path) as client:
        given = {
            "csv_path": "rows.csv",
            "instruction": "Say {text}.",
            "id_column": "name",
            "output_csv_path": "out.csv",
        }
        answer = content(
            await client.call_tool("spawn_agents_on_csv", {**given, "wait": True, "max_runtime_seconds": 2})
        )
    assert (answer["status"], answer["state"]) == ("failed", "completed_with_failures")
    assert (answer["completed_items"], answer["failed_items"]) == (1, 8)
    assert answer["job_error"] == "job completed with 8 failed items"
    assert [error["item_id"] for error in answer["failed_item_errors"]] == list("bcdef")
    assert all("can't do 'fail" in error["last_error"] for error in answer["failed_item_errors"])
    last = folder.rows()[-1]
    assert (last["status"], last["last_error"]) == ("failed", "worker exceeded max runtime of 2s")


async def test_a_worker_may_end_the_job(folder: JobFolder) -> None:
    """One row at a time, and the first asks to stop: the others stay pending, and are in the results."""
    (folder.path / "stop.py").write_text(
        "import json, os\n"
        "print(json.dumps({'job_id': os.environ['MANYHANDS_JOB_ID'], 'item_id': os.environ['MANYHANDS_ITEM_ID'],\n"
        "    'result': {'enough': True}, 'stop': True}))\n"
    )
    async with over_streams(f"--worker_command={sys.executable} stop.py", folder=folder.path) as client:
        given = {"csv_path": "rows.csv", "instruction": "Say {text}.", "output_csv_path": "out.csv", "max_workers": 1}
        answer = content(await client.call_tool("spawn_agents_on_csv", {**given, "wait": True}))
    assert (answer["status"], answer["job_error"]) == ("cancelled", "cancelled by worker request")
    assert (answer["completed_items"], answer["pending_items"]) == (1, 2)
    assert [row["status"] for row in folder.rows()] == ["completed", "pending", "pending"]


def test_what_was_stopped_is_pending_in_the_results(folder: JobFolder) -> None:
    folder.write_rows(["until never", "one"])
    assert folder.jobs(*folder.spawn_words(FUNCTION, "--detach")).code == 0
    deadline = time.monotonic() + 30
    while folder.status()["completed_items"] < 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert folder.jobs("cancel", "j", "--firm").code == 0
    assert folder.jobs("wait", "j").code == 1
    assert [row["status"] for row in folder.rows()] == ["pending", "completed"]


_ADDS = """
def add(row, assignment):
    return {"number": int(assignment.instruction.split()[-1]) + 1, "path": row["path"]}
"""


def test_five_stages_follow_each_other(folder: JobFolder) -> None:
    """What one job writes is the next one's table, and its results are columns that an instruction may name."""
    (folder.path / "adds.py").write_text(_ADDS)
    (folder.path / "stage0.csv").write_text('path,number\n"a,\nb",10\n=c,20\n')
    schema = {"properties": {"number": {"type": "integer"}, "path": {"type": "string"}}, "required": ["number"]}
    earlier = "number"
    for stage in range(1, 6):
        ended = folder.jobs(
            "spawn",
            f"stage{stage - 1}.csv",
            f"--instruction=Add one to {{{earlier}}}",
            f"--output_csv_path=stage{stage}.csv",
            f"--output_schema={json.dumps(schema)}",
            "--worker_function=adds.py:add",
            "--executor=local",
            "--flatten",
        )
        assert ended.code == 0, ended.err
        earlier = "result.number" if stage == 1 else f"stage{stage}_result.number"
    rows = folder.rows("stage5.csv")
    ours = [*ADDED, "result.number", "result.path"]
    stages: list[Any] = ["", *(f"stage{number}_" for number in range(2, 6))]
    assert list(rows[0]) == ["path", "number", *(prefix + name for prefix in stages for name in ours)]
    assert [row["path"] for row in rows] == ["a,\nb", "=c"]
    for row, start in zip(rows, (10, 20), strict=True):
        assert [row[f"{prefix}result.number"] for prefix in stages] == [str(start + step) for step in range(1, 6)]
        assert {row[f"{prefix}status"] for prefix in stages} == {"completed"}
