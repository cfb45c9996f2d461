"""What a task's agent may use and reach: what its folder says, and what the run allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyhands.sandboxes.protocol import SandboxLimits
from manyhands.task_folders.reading import BadTask, read_task
from manyhands.task_folders.rules import TaskRules
from tests.support.made_tasks import make_task

LISTED = '["files.example", "*.pages.example", "10.0.0.0/8", "127.0.0.1", "8.8.8.8"]'


def task_toml(hosts: str) -> str:
    return (
        f'[environment]\ndocker_image = "registry.example/a:1"\nnetwork_mode = "allowlist"\nallowed_hosts = {hosts}\n'
    )


@pytest.mark.parametrize(
    ("rules", "reached"),
    [
        (TaskRules(), ("files.example", "*.pages.example", "8.8.8.8")),
        (TaskRules(network=True), ("files.example", "*.pages.example", "8.8.8.8")),
        (TaskRules(network_allow=("a.pages.example", "10.1.2.3", "other.example")), ("a.pages.example", "10.1.2.3")),
        (TaskRules(network=False), ()),
        (TaskRules(override=True, network_allow=("other.example",)), ("other.example",)),
        (TaskRules(override=True, network=False), ()),
        (TaskRules(override=True), ("files.example", "*.pages.example", "8.8.8.8")),
    ],
)
def test_a_task_and_its_run_both_allow_a_host(tmp_path: Path, rules: TaskRules, reached: tuple[str, ...]) -> None:
    task = read_task(make_task(tmp_path / "task", toml=task_toml(LISTED)))
    limits = rules.limits(task, SandboxLimits())
    assert (limits.network, set(limits.network_allow)) == (False, set(reached))


@pytest.mark.parametrize("host", ["127.1", "0x7f.1", "0.0.0.0/0", "*", "a.example:80"])
def test_hosts_that_no_sandbox_could_read_are_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(BadTask, match="allowed_hosts"):
        read_task(make_task(tmp_path / "task", toml=task_toml(f'["{host}"]')))


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (TaskRules(), (2 << 30, 1 << 30, 2, 100)),
        (TaskRules(memory=1 << 30, disk=8 << 30, cpus=4, time_limit=500), (1 << 30, 1 << 30, 2, 100)),
        (TaskRules(cpus=0.5, time_limit=10, multiplier=2), (2 << 30, 1 << 30, 0.5, 10)),
        (TaskRules(multiplier=2, time_limit=150), (2 << 30, 1 << 30, 2, 150)),
        (TaskRules(override=True, memory=8 << 30, disk=8 << 30, time_limit=500), (8 << 30, 8 << 30, 2, 500)),
        (TaskRules(override=True, memory=1 << 30, cpus=8), (1 << 30, 1 << 30, 8, 100)),
        (TaskRules(override=True, multiplier=2), (2 << 30, 1 << 30, 2, 200)),
    ],
)
def test_a_run_only_tightens_the_limits_of_a_task_unless_it_overrides_them(
    tmp_path: Path, rules: TaskRules, expected: tuple[float, ...]
) -> None:
    toml = "[environment]\nmemory_mb = 2048\nstorage_mb = 1024\ncpus = 2\n[agent]\ntimeout_sec = 100\n"
    task = read_task(make_task(tmp_path / "task", toml=toml))
    limits = rules.limits(task, SandboxLimits())
    assert (limits.memory, limits.disk, limits.cpus, rules.agent_seconds(task)) == expected
