"""Small memory benchmarks: their configurations, runs held in this process, and what they leave."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from manyhands.engine.contract import ItemRow, RecordedStep
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.execution import Controls, RunResult, execute_run
from manyhands.runs.making import Opened
from manyhands.workloads.memory.datasets.registry import BUILTIN
from manyhands.workloads.memory.opening import open_memory
from manyhands.workloads.memory.settings import MemorySpec
from manyhands.workloads.memory.workload import MemoryWorkload

START = "2024-05-17T09:00:00+00:00"
WITHOUT_MODEL = tuple(
    dataset for dataset, place in BUILTIN.items() if not place.startswith(("written_by_model:", "chapterbreak:"))
)
"""Datasets whose tests need no model and no data of others to be made."""


def write_configuration(
    folder: Path,
    datasets: Sequence[str | Mapping[str, Any]] = ("colours", "name_list"),
    *,
    name: str = "small",
    span: int = 1500,
    examples: int = 1,
    **config: Any,
) -> Path:
    """A configuration, as JSON, which YAML understands. ``datasets``: ids, or entries."""
    entries = [{"name": each} if isinstance(each, str) else dict(each) for each in datasets]
    value = {
        "config": {"run_name": name, **config},
        "datasets": {"args": {"memory_span": span, "dataset_examples": examples, "seed": 1}, "datasets": entries},
    }
    path = folder / f"{name}.yml"
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
    return path


def opened(
    folder: Path, agents: str | Sequence[str], *, environ: Mapping[str, str] | None = None, **options: Any
) -> Opened[MemoryWorkload]:
    """The run of ``small.yml`` in a folder, with its data there, opened without questions. Raises what ``open_memory`` does."""
    values: dict[str, Any] = {
        "configuration": str(folder / "small.yml"),
        "agent_name": [agents] if isinstance(agents, str) else list(agents),
        "data_dir": str(folder / "data"),
        "tokenizer": "estimate",
        "start_time": START,
        "yes": True,
        **options,
    }
    ask = values.pop("ask", lambda question, default: default)
    notices = values.pop("notices", [])
    return open_memory(MemorySpec.make(values), environ=environ or {}, notice=notices.append, ask=ask)


async def performed(run: Opened[MemoryWorkload], *, controls: Controls | None = None) -> RunResult:
    """Hold its sessions."""
    return await execute_run(run, controls=controls)


def rows_of(folder: Path) -> list[ItemRow]:
    """The sessions of a run, in order."""
    reader = JournalReader(folder)
    try:
        return list(reader.items())
    finally:
        reader.close()


def records_of(folder: Path) -> dict[str, Any]:
    """What is recorded of each session that is in its input, by the name of its agent."""
    return {row.payload["name"]: row.record for row in rows_of(folder) if not row.left_input}


def steps_of(folder: Path, item: int = 1) -> Sequence[RecordedStep]:
    """The steps of a session, in order."""
    reader = JournalReader(folder)
    try:
        row = reader.item(str(item))
        assert row is not None
        return list(reader.steps(item, row.attempt))
    finally:
        reader.close()


def log_of(folder: Path, agent: str | None = None) -> list[tuple[int, str, Any]]:
    """A session's log without times and without marks of resumption: type, test, data."""
    places = sorted((folder / "results").glob("*/master_log.jsonl"))
    place = places[0] if agent is None else folder / "results" / agent / "master_log.jsonl"
    events = [json.loads(line) for line in place.read_text(encoding="utf-8").splitlines()]
    return [(event["type"], event["test_id"], event["data"]) for event in events if event["type"] != 7]
