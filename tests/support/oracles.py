"""The code of other projects as judge of our exports: in environments of their own, on what hypothesis makes.

Each check is a program of ``tests/oracles/checks`` that runs in the environment of a project (``environments.toml`` there), imports
nothing of ours, and prints what it found as one line of JSON, the last of its output. ``make oracle-test`` makes the environments and
runs the tests; by hand, ``ORACLE_ENVIRONMENTS`` says where they are: what stands before their names, as ``/tmp/oracle-``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

from manyhands.core.jsonio import Json, compact_line
from manyhands.export.conversations import Conversation
from manyhands.export.format import Format, Losses, Unfit, load_format
from manyhands.export.settings import ExportSettings

EXAMPLES = 1000
"""How many conversations each check is given."""
CHECKS = Path(__file__).parents[1] / "oracles/checks"
_PREFIX = os.environ.get("ORACLE_ENVIRONMENTS") or f"{sys.prefix}-oracle-"
Made = TypeVar("Made")


def examples(strategy: SearchStrategy[Made], number: int = EXAMPLES) -> list[Made]:
    """So many examples of a strategy, the same in every run."""
    found: list[Made] = []

    @settings(
        max_examples=number,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(example: Made) -> None:
        found.append(example)

    collect()
    assert len(found) >= number
    return found[:number]


def format_of(name: str, **values: Any) -> Format:
    """An export format with settings."""
    return load_format(name)(ExportSettings(to=name, **values), Losses())


def rows_of(format: Format, conversations: Iterable[Conversation]) -> Iterator[Mapping[str, Json]]:
    """The rows of conversations, all of which must fit."""
    for conversation in conversations:
        try:
            yield from format.rows(conversation)
        except Unfit as unfit:
            raise AssertionError(f"{format.name} does not hold {conversation.key!r}: {unfit}") from unfit


def write_lines(path: Path, rows: Iterable[Mapping[str, Json]]) -> Path:
    """A file of rows, as exports write them."""
    path.write_bytes(b"".join(compact_line(row) for row in rows))
    return path


def check(environment: str, script: str, *words: str | Path, home: Path, timeout: float = 300) -> Any:
    """What a check prints. ``home``: a folder for whatever it keeps. Skips the test if there is no such environment."""
    python = Path(f"{_PREFIX}{environment}/bin/python")
    if not python.exists():
        pytest.skip(f"there is no {python}; make oracle-test makes it")
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "HF_HOME": str(home / "hf"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [str(python), str(CHECKS / f"{script}.py"), *map(str, words)]
    ended = subprocess.run(
        command, env=variables, cwd=home, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert ended.returncode == 0, f"{script}: {ended.stderr[-4000:]}"
    return json.loads(ended.stdout.splitlines()[-1])
