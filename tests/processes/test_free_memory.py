"""Free memory: by the kernel, and by the control groups of both versions, as their files say."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyhands.processes.system.memory import free_memory

GIB = 1 << 30


def write(root: Path, files: dict[str, object]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n", encoding="utf-8")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, {"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {8 * GIB // 1024} kB"})
    return tmp_path


def test_without_groups_the_kernel_says_it(root: Path, tmp_path: Path) -> None:
    assert free_memory(root) == 8 * GIB
    assert free_memory(tmp_path / "nowhere") is None


def test_the_tightest_group_counts(root: Path) -> None:
    write(root, {
        "proc/self/cgroup": "0::/a/b",
        "sys/fs/cgroup/a/memory.max": 4 * GIB,
        "sys/fs/cgroup/a/memory.current": 3 * GIB,
        "sys/fs/cgroup/a/memory.stat": f"anon 1\ninactive_file {GIB}",
        "sys/fs/cgroup/a/b/memory.max": "max",
        "sys/fs/cgroup/a/b/memory.current": GIB,
    })  # fmt: skip
    assert free_memory(root) == 2 * GIB


def test_version_1_and_a_container_that_sees_its_own_group_as_the_root(root: Path) -> None:
    write(root, {
        "proc/self/cgroup": "5:cpu,cpuacct:/\n4:memory:/docker/123\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": GIB,
        "sys/fs/cgroup/memory/memory.usage_in_bytes": 2 * GIB,
    })  # fmt: skip
    assert free_memory(root) == 0
    write(root, {"sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712})
    assert free_memory(root) == 8 * GIB
