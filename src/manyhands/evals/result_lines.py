"""The lines of ``results.jsonl`` and the figures that belong to them, from records that may come while tests still end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from manyhands.core.jsonio import Json, compact_line
from manyhands.engine.files import bytes_written_aside
from manyhands.evals.eval_summary import EvalFigures
from manyhands.evals.result_records import PENDING, Record

RESULTS = "results.jsonl"


@dataclass(frozen=True, slots=True)
class Counting:
    """How results are counted. ``limits``: the pass limit of each eval file's tests; ``pass_limit``: the run's; ``level``: of confidence
    (None: no intervals); ``seed``: of resampling."""

    limits: tuple[float, ...]
    pass_limit: float
    level: float | None
    seed: int

    def to_json(self) -> Json:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(tuple(value["limits"]), value["pass_limit"], value["level"], value["seed"])


def write_lines(records: Iterable[Record], folder: Path, counting: Counting) -> dict[str, Any]:
    """Write a run's ``results.jsonl``: a line for each test that ended. Returns the figures of all, as ``eval_summary.json`` has them.

    The file takes its place when it is whole. Raises StorageError if it can't be written; the old one is then still there.
    """
    figures = EvalFigures(counting.level, counting.seed)
    with bytes_written_aside(folder / RESULTS) as handle:
        for record in records:
            figures.add(record)
            if record["status"] != PENDING:
                handle.write(compact_line(record))
    return figures.to_json(counting.pass_limit)
