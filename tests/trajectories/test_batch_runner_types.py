"""``BatchRunner`` as editors and type checkers see it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from manyhands import BatchRunner
from manyhands.core.settings import bare_type
from manyhands.workloads.trajectories.batch_runner import BatchKeywords
from manyhands.workloads.trajectories.spec import BatchSpec

ROOT = Path(__file__).parents[2]
NOT_FOR_PYTHON = {
    "resume",
    "list_distributions",
    "dry_run",
    "view",
    "system_template_text",
    "grade_checks",
    "recorded_headers",
    "task_rules",
    "workspace_digest",
}
"""What ``run`` is told, what only a command line can do, and what is taken from other settings."""
_VARIABLES: dict[Any, Any] = {Mapping[str, str | None]: {"A": "b", "PATH": None}}
ALSO_TAKEN = {"container_env": _VARIABLES, "task_env": _VARIABLES}
"""What settings are read from besides values of their own type, with an example."""
SNIPPET = """
from manyhands import BatchRunner

made = BatchRunner("d.jsonl", 2, "r", temperature=0.5, model="m", tags_in_values="keep", data_dir="runs")
reveal_type(made.run())
BatchRunner("d.jsonl", 2, "r", temperature="hot")
BatchRunner("d.jsonl", 2, "r", temprature=0.5)
BatchRunner("d.jsonl", 2, "r", tags_in_values="drop")
BatchRunner("d.jsonl", "2", "r")
"""


def explicit() -> set[str]:
    """The settings that are parameters of their own."""
    parameters = inspect.signature(BatchRunner.__init__).parameters
    renamed = {"max_iterations": "max_turns"}
    return {renamed.get(name, name) for name in parameters} - {"self", "callbacks", "settings"}


def kinds(annotation: Any) -> set[Any]:
    """The types of a union, without None; literals by their values, and sequences as such."""
    if get_origin(annotation) in (UnionType, Union):
        return {kind for part in get_args(annotation) for kind in kinds(part)}
    if get_origin(annotation) is Literal:
        return set(get_args(annotation))
    if get_origin(annotation) in (tuple, Sequence):
        return {Sequence}
    return set() if annotation in (NoneType, PathLike[str]) else {annotation}


def test_the_keywords_are_the_settings() -> None:
    keywords = get_type_hints(BatchKeywords)
    assert explicit() | set(keywords) == set(BatchSpec.fields) - NOT_FOR_PYTHON
    for name, hint in keywords.items():
        other = ALSO_TAKEN.get(name, {})
        assert kinds(hint) == kinds(bare_type(BatchSpec.fields[name].annotation)) | set(other), name
        for example in other.values():
            assert BatchSpec.make({"dataset_file": "d", "batch_size": 1, "run_name": "r", name: example})


@pytest.mark.timeout(300)  # the first run of a checkout has nothing in mypy's cache
def test_a_type_checker_knows_them(tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text(SNIPPET)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-pretty", str(tmp_path / "snippet.py")],
        cwd=ROOT,  # with the project's settings, and its cache, if there is one
        capture_output=True,
        text=True,
        timeout=300,
    )
    said = [line.partition("snippet.py:")[2] for line in done.stdout.splitlines() if "snippet.py:" in line]
    assert [line for line in said if ": note: Revealed type is" in line and "RunResult" in line], done
    problems = {line.partition(":")[0]: line for line in said if ": error: " in line}
    assert "temperature" in problems["6"] or "float | None" in problems["6"]
    assert 'Unexpected keyword argument "temprature"' in problems["7"]
    assert "Literal['escape', 'discard', 'keep']" in problems["8"]
    assert 'expected "int"' in problems["9"]
    assert len(problems) == 4, done.stdout
