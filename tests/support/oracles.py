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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from math import isclose
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

from manyhands.core.jsonio import Json, compact_line
from manyhands.export.conversations import Conversation
from manyhands.export.files import SplitFiles
from manyhands.export.format import Format, Losses, Unfit, load_format
from manyhands.export.settings import ExportSettings
from tests.support.conversations import conversations, pairs

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


@cache
def _all_made() -> tuple[list[Conversation], list[tuple[Conversation, Conversation]]]:
    return examples(conversations()), examples(pairs())


def made_conversations() -> list[Conversation]:
    """A thousand conversations, the same in every test."""
    return deepcopy(_all_made()[0])


def made_pairs() -> list[tuple[Conversation, Conversation]]:
    """A thousand pairs, the better first, the same in every test."""
    return deepcopy(_all_made()[1])


def format_of(name: str, **values: Any) -> Format:
    """An export format with settings."""
    return load_format(name)(ExportSettings(to=name, **values), Losses())


def pair_rows(format: Format, pairs: Iterable[tuple[Conversation, Conversation]]) -> Iterator[Mapping[str, Json]]:
    """The rows of pairs of conversations, all of which must fit."""
    for chosen, rejected in pairs:
        yield format.pair(chosen, rejected)


def rows_of(format: Format, conversations: Iterable[Conversation]) -> Iterator[Mapping[str, Json]]:
    """The rows of conversations, all of which must fit."""
    for conversation in conversations:
        try:
            yield from format.rows(conversation)
        except Unfit as unfit:
            raise AssertionError(f"{format.name} does not hold {conversation.key!r}: {unfit}") from unfit


def write_folder(
    folder: Path,
    format: Format,
    rows: Sequence[Mapping[str, Json]],
    splits: Sequence[str] = ("",),
    shard_rows: int | None = None,
) -> dict[str, list[Mapping[str, Json]]]:
    """A folder as exports write it, the rows in order divided into splits of equal size. Returns them by split."""
    folder.mkdir()
    files = SplitFiles(folder, format.sink, suffix=format.suffix, splits=splits, shard_rows=shard_rows)
    each = -(-len(rows) // len(splits))
    found = {split: list(rows[at * each : (at + 1) * each]) for at, split in enumerate(splits)}
    for split, those in found.items():
        for row in those:
            files.write(split, row)
    written = files.close()
    filled = {split: written[split] for split, those in found.items() if those}
    for name, text in format.extra_files(filled).items():
        (folder / name).write_text(text, encoding="utf-8")
    return {split or "train": those for split, those in found.items()}


def read_lines(path: Path) -> list[Any]:
    """The rows of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def difference(found: Json, wanted: Json, path: str = "") -> str:
    """The first place in which two values differ; empty if they are the same.

    Of numbers with decimals ten decimals count: ``datasets`` keeps no more in columns of JSON, and makes infinity of the largest.
    """
    if isinstance(found, dict) and isinstance(wanted, dict) and found.keys() == wanted.keys():
        parts = [(found[key], wanted[key], f"{path}.{key[:40]}") for key in found]
    elif isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        parts = [(one, other, f"{path}[{at}]") for at, (one, other) in enumerate(zip(found, wanted, strict=True))]
    elif isinstance(found, float) and isinstance(wanted, float):
        alike = isclose(found, wanted, rel_tol=1e-8, abs_tol=1e-9) or min(abs(found), abs(wanted)) > 1e308
        return "" if alike else f"{path}: {found!r} for {wanted!r}"
    else:
        return "" if type(found) is type(wanted) and found == wanted else f"{path}: {found!r:.500} for {wanted!r:.500}"
    return next(filter(None, (difference(*part) for part in parts)), "")


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
