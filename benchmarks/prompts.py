"""Datasets for benchmarks: as many different prompts as asked for, which the simulated model answers in one turn."""

from __future__ import annotations

from pathlib import Path

TEXT = "Item {number}: name the harbour that a ship bound for the northern lights leaves last, and say why. [simulate: tools=0]"


def prompt(number: int) -> str:
    return TEXT.format(number=number)


def write_prompts(path: Path, count: int) -> None:
    """A dataset of that many rows, streamed."""
    with path.open("w", encoding="utf-8") as handle:
        handle.writelines(f'{{"prompt": "{prompt(number)}"}}\n' for number in range(count))
