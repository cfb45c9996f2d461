"""Which hosts a task's agent reaches: what its folder lists, and what the run allows."""

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
