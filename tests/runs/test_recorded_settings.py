"""Settings that earlier versions recorded: runs of theirs go on, and what is no setting is refused with what to do instead."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from manyhands.cli.options import UsageError, parse
from manyhands.core.clock import SystemClock
from manyhands.core.errors import RunError, UserError
from manyhands.core.settings import Settings
from manyhands.engine.journal.store import Store
from manyhands.runs.folders import load_recorded, open_reader
from manyhands.runs.options import BudgetSettings, FileSettings, PriceSettings, RunOptions
from manyhands.workloads.csv_jobs.spec import JobSpec
from manyhands.workloads.evals.settings import EvalSpec
from manyhands.workloads.evals.targets.kinds.model_keys import AgentTargetOptions
from manyhands.workloads.memory.opening import reopen_memory
from manyhands.workloads.memory.settings import GenerationSpec, MemorySpec, ScoresSpec
from manyhands.workloads.trajectories.spec import BatchSpec
from tests.support.eval_runs import perform_eval
from tests.support.memory_benchmarks import opened, performed, records_of, write_configuration

OF_AGENTS: dict[str, Any] = {
    "model": "simulated",
    "agent": None,
    "max_turns": 1,
    "ephemeral_system_prompt": None,
    "prefill_messages": None,
    "log_prefix_chars": 100,
    "sandbox": "auto",
    "network": False,
    "sandbox_disk": 8.0,
    "min_free": None,
    "keep_workspaces": False,
    "mcp_config": None,
    "sequential_tools": False,
    "tool_timeout": 180.0,
}
"""What earlier versions recorded with runs of the memory benchmark."""
STAGES = [{"name": "a", "instruction": "b", "output_schema": {"type": "object"}}]


def as_recorded_earlier(folder: Path, **options: Any) -> None:
    """Write settings into the spec of a run that this version does not record."""
    with closing(Store(folder, SystemClock(), print)) as store:
        spec = store.reader.meta("spec")
        store.set_meta(spec={**spec, "options": {**spec["options"], **options}})


async def test_a_memory_run_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    made = opened(tmp_path, "simulated")
    as_recorded_earlier(made.folder, **OF_AGENTS)
    with closing(open_reader(made.folder)) as reader:
        assert load_recorded(reader).execution.concurrency == 20
    again = reopen_memory(made.folder, environ={})
    result = await performed(again)
    assert (result.exit_code, list(records_of(made.folder))) == (0, [again.workload.spec["sessions"][0]["name"]])
    assert opened(tmp_path, "simulated", resume=True).spec_changed
    assert not set(OF_AGENTS) & set(opened(tmp_path, "simulated", resume=True).workload.spec["options"])


async def test_an_evaluation_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    suite = "targets: {t: {provider: mock}}\ntests: [{id: a, input: x, assert: [{type: regex, value: .}]}]\n"
    (tmp_path / "suite.yaml").write_text(suite)
    first = await perform_eval(tmp_path)
    as_recorded_earlier(first.folder, model="simulated", executor="local", seed=None, prefill_messages=None)
    assert (await perform_eval(tmp_path, resume=True)).statuses() == first.statuses()


@pytest.mark.parametrize("kind", [GenerationSpec, ScoresSpec])
def test_runs_that_ask_the_judge_alone_take_all_that_the_benchmark_recorded(kind: type[Settings]) -> None:
    given = {"configuration": "c.yml", "agent_name": ["forgetful"], "judge_model": "judge", "concurrency": 7}
    recorded = {**MemorySpec.make(given).recorded(), **OF_AGENTS}
    found = kind.from_record(recorded, data_dir="elsewhere")
    assert (getattr(found, "judge_model", None), getattr(found, "concurrency", None)) == ("judge", 7)
    assert kind.from_record(found.recorded()).recorded() == found.recorded()


OF_A_FILE = [
    (BatchSpec, {"dataset_file": "d", "run_name": "r", "batch_size": 1}, "extra_body", {"a": 1}, "PATH"),
    (MemorySpec, {"configuration": "c.yml", "agent_name": ["forgetful"]}, "extra_body", {"a": 1}, "PATH"),
    (JobSpec, {"csv_path": "t.csv"}, "output_schema", {"type": "object"}, "PATH"),
    (JobSpec, {"csv_path": "t.csv"}, "stages", STAGES, "PATH"),
    (JobSpec, {"csv_path": "t.csv"}, "stages", STAGES, [{"name": "a", "instruction": "b", "output_schema": "PATH"}]),
    (JobSpec, {"csv_path": "t.csv"}, "stages", STAGES, [{"name": "a", "instruction_file": "PATH"}]),
    (JobSpec, {"csv_path": "t.csv"}, "stages", STAGES, [{"name": "a", "instruction-file": "PATH"}]),
]


@pytest.mark.parametrize(("kind", "given", "name", "sound", "naming"), OF_A_FILE)
def test_no_file_is_read_for_what_is_recorded(
    tmp_path: Path, kind: type[Settings], given: dict[str, Any], name: str, sound: Any, naming: Any
) -> None:
    file = tmp_path / "private.json"
    file.write_text(json.dumps(sound))
    kind.make({**given, name: sound})
    recorded = {**given, name: json.loads(json.dumps(naming).replace("PATH", str(file)))}
    with pytest.raises(ValueError, match=f"^{name} must (be|hold) [^/]*, not "):
        kind.from_record(recorded)
    assert kind.from_record({**given, name: sound}).recorded()[name] == sound


async def test_what_no_version_recorded_is_refused(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    made = opened(tmp_path, "simulated")
    as_recorded_earlier(made.folder, of_tomorrow=1)
    with closing(open_reader(made.folder)) as reader, pytest.raises(RunError, match="settings recorded there can't be"):
        load_recorded(reader)


@pytest.mark.parametrize(
    ("kind", "typed", "said"),
    [
        (EvalSpec, "--temperature=1", "--temperature: the targets of an evaluation say this themselves"),
        (EvalSpec, "--no-network", "--no-network: the targets of an evaluation say this themselves"),
        (EvalSpec, "--log_prefix_chars=5", "--log_prefix_chars: it has no meaning for evaluations"),
        (EvalSpec, "--otel_file=x", "--otel_file: nothing is written for OpenTelemetry"),
        (MemorySpec, "--model=x", "--model: --agent_name names the model to test"),
        (MemorySpec, "--sandbox=local", "--sandbox: agents have no tools here"),
        (MemorySpec, "--max-turns=5", "--max-turns: agents are asked message by message"),
        (GenerationSpec, "--agent_name=x", "--agent_name: no agent is tested here, see manyhands memory run"),
        (BatchSpec, "--modle=x", "unknown option --modle; did you mean --model?"),
    ],
)
def test_options_of_others_are_refused_with_what_to_do_instead(kind: type[Settings], typed: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"^{said}"):
        parse(kind, [typed], "manyhands")
    name, _, value = typed.removeprefix("--").replace("-", "_").partition("=")
    if value:
        with pytest.raises(UserError, match=name):
            kind.make({name: value})


@pytest.mark.parametrize(
    "kind", [BatchSpec, JobSpec, EvalSpec, MemorySpec, GenerationSpec, ScoresSpec, AgentTargetOptions]
)
def test_no_settings_are_inherited_only_to_be_refused(kind: type[Settings]) -> None:
    hidden = [name for name in kind.fields if not kind.about(name).typed]
    contents = {content for content, _ in kind.contents.values()} if issubclass(kind, FileSettings) else set()
    worked_out = {"recorded_headers", "workspace_digest", "task_rules"}
    assert set(hidden) <= {*contents, *worked_out, "reasoning_config", "bootstrap_seed", "memory_concurrency"}
    assert not set(kind.fields) & set(kind.instead)


def test_files_are_named_beside_the_settings_that_name_them() -> None:
    assert FileSettings.files == ()
    assert PriceSettings.files == BudgetSettings.files == RunOptions.files == ("prices",)
    assert set(BatchSpec.files) == {"prices", "mcp_config", "distributions_file"}
    assert set(BatchSpec.contents) == {"prefill_messages_file", "system_template", "grade"}
    assert set(JobSpec.paths) == {"data_dir", "csv_path", "web_cache"}
    assert set(MemorySpec.files) == {"prices", "filler", "wording"}
