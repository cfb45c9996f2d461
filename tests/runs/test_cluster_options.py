"""The options of runs on a Ray cluster: which workloads take them, and that they are no part of what a run is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manyhands.cli.main import main
from manyhands.core.errors import UserError
from manyhands.runs.making import recorded_run
from manyhands.runs.options import check_cluster, resume_spec
from manyhands.workloads.csv_jobs.spec import JobChanges, JobSpec
from manyhands.workloads.imported.spec import ImportSpec
from manyhands.workloads.memory.settings import GenerationSpec, MemorySpec
from manyhands.workloads.trajectories.spec import BatchSpec
from tests.support.memory_benchmarks import opened, write_configuration

SPECS: list[tuple[Any, dict[str, Any]]] = [
    (BatchSpec, {"dataset_file": "prompts.jsonl", "batch_size": 1, "run_name": "r"}),
    (JobChanges, {"csv_path": "rows.csv"}),
    (MemorySpec, {"configuration": "small.yml", "agent_name": "simulated"}),
    (ImportSpec, {"input_files": "rows.jsonl", "from_": "sharegpt"}),
]
CLUSTER = {"ray_address": "head:6379", "ray_resources": '{"num_cpus": 2}', "ray_listen": "10.0.0.7:9000"}


@pytest.mark.parametrize(("spec", "values"), SPECS, ids=[spec.__name__ for spec, _ in SPECS])
def test_a_run_is_the_same_on_a_cluster(spec: Any, values: dict[str, Any]) -> None:
    recorded = spec.from_record(spec.make(values).recorded())
    there = resume_spec(recorded, spec.make({**values, **CLUSTER, "executor": "ray"}))
    execution = there.execution(executor=there.executor)
    assert (execution.executor, execution.ray_address, execution.ray_listen) == ("ray", "head:6379", "10.0.0.7:9000")
    assert execution.ray_resources == {"num_cpus": 2}
    again = resume_spec(spec.from_record(there.recorded()), spec.make({**values, "ray_address": "other:6379"}))
    assert (again.executor, again.ray_address, again.ray_listen) == ("ray", "other:6379", "10.0.0.7:9000")
    back = resume_spec(spec.from_record(again.recorded()), spec.make({**values, "executor": "local"}))
    assert back.executor == "local"


@pytest.mark.parametrize(("spec", "values"), SPECS, ids=[spec.__name__ for spec, _ in SPECS])
def test_without_the_cluster_its_options_mean_nothing(spec: Any, values: dict[str, Any]) -> None:
    made = spec.make({**values, "ray_address": "head:6379", "ray_listen": "10.0.0.7"})
    refusal = f"--ray_address, --ray_listen: only with --executor=ray, and this run has --executor={made.executor}"
    with pytest.raises(UserError) as refused:
        check_cluster(made, made.given)
    assert str(refused.value) == refusal
    with pytest.raises(UserError) as refused:
        resume_spec(spec.from_record(spec.make(values).recorded()), made)
    assert str(refused.value) == refusal


@pytest.mark.parametrize(
    "words",
    [
        "batch prompts.jsonl",
        "jobs spawn prompts.jsonl --instruction=x",
        "mcp",
        "import prompts.jsonl --from sharegpt",
        "memory run -c small.yml -a simulated",
    ],
)
def test_the_command_line_refuses_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Hello", "conversations": [{"from": "human", "value": "x"}]}\n')
    write_configuration(tmp_path)
    assert main([*words.split(), "--ray_address=head:6379"]) == 2
    captured = capsys.readouterr()
    assert "--ray_address: only with --executor=ray, and this run has --executor=" in captured.err
    assert captured.err.count("\n") <= 2
    assert not list((tmp_path / "data").glob("**/run.db"))


def test_making_tests_of_memory_needs_no_cluster() -> None:
    assert "ray_address" not in GenerationSpec.fields


def test_a_job_on_a_cluster_has_workers_of_its_own_number() -> None:
    def processes(**more: Any) -> tuple[int, int]:
        return JobSpec.make({"csv_path": "rows.csv", "executor": "ray", **more}).processes

    assert processes() == (4, 16)
    assert processes(num_workers=2, max_concurrency=10) == (2, 5)
    assert processes(max_concurrency=3) == (3, 1)


def test_conversations_of_memory_are_spread_over_workers(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    agents = ["simulated", "retrieval(simulated)", "scratchpad(simulated)"]
    run = opened(tmp_path, agents, executor="ray", num_workers=2, concurrency=4)
    execution = run.workload.execution
    assert (execution.executor, execution.workers, execution.concurrency) == ("ray", 2, 2)
    assert execution.max_in_flight == 4
    assert recorded_run(run.folder, "memory").spec["options"]["executor"] == "ray"
