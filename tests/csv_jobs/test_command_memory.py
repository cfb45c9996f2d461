"""As many worker commands at once as memory suffices for, unless it is said how many."""

from __future__ import annotations

import pytest

from manyhands.workloads.csv_jobs.command_memory import MIB, commands_at_once, with_memory_limit
from manyhands.workloads.csv_jobs.spec import JobSpec


def job(command: str | None, **more: object) -> JobSpec:
    return JobSpec(csv_path="t.csv", worker_command=command, **more)


@pytest.mark.parametrize(
    ("command", "free", "at_once"),
    [
        ("claude -p", 4096, 11),
        ("env X=1 npx -y @openai/codex@latest exec -", 4096, 27),
        ("/opt/bin/gemini -p {prompt}", 4096, 13),
        ("env X=1 claude -p", 4096, 11),
        ("bash -c 'cd work && claude -p'", 4096, 11),
        ("timeout 60 claude -p", 4096, 11),
        ("sh work.sh", 1000, 10),
        ("python work.py", 1000, 10),
        ("python work.py", 90, 1),
        ("python work.py", 1_000_000, 64),
    ],
)
def test_memory_bounds_how_many_commands_are_launched(command: str, free: int, at_once: int) -> None:
    found = commands_at_once(job(command), free * MIB)
    assert found is not None
    assert found.commands == at_once
    assert f"{at_once} row" in str(found)
    assert "--max_concurrency sets another number" in str(found)


def test_nothing_is_estimated_where_a_number_is_given_or_no_command_is_launched() -> None:
    assert commands_at_once(job("claude -p", max_concurrency=64), MIB) is None
    assert commands_at_once(job("claude -p", max_workers=3), MIB) is None
    assert commands_at_once(job(None), MIB) is None
    assert with_memory_limit(job(None)) == (job(None), None)


def test_the_estimate_is_a_default_and_no_limit() -> None:
    options = job("claude -p").changed({"memory_concurrency": 5})
    assert options.workers == 5
    assert options.changed({"max_concurrency": 20}).workers == 20
    assert options.changed({"max_concurrency_limit": 3}).workers == 3
    assert job("claude -p").workers == 64
