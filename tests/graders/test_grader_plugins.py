"""Graders of other packages, found by their entry points in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PLUGIN = """
from dataclasses import dataclass
from typing import Any

from manyhands.io.keys import Entry, key, read
from manyhands.graders.protocol import found


class LengthEntry(Entry):
    max_words: int = key(..., "Words.")


ENTRY = LengthEntry


def parse(entry, place, setup):
    return Length(entry["name"], entry["type"], read(LengthEntry, entry, place).max_words)


@dataclass
class Length:
    name: str
    type: str
    most: int

    async def grade(self, candidate, grading):
        if not candidate.answer:
            raise ValueError("nothing to count")
        return found(self, float(len(candidate.answer.split()) <= self.most))
"""
SCRIPT = """
import asyncio
from manyhands.core.errors import UserError
from manyhands.testing.grader_doubles import grade, graders_of

async def main():
    entry = {"type": "word-limit", "maxWords": 2, "negate": True, "weight": 3}
    for answer in ("one two", "one two three", ""):
        score = await grade(entry, answer)
        print(score.name, score.value, score.weight, score.error)
    for entry in ({"type": "word-limit", "maxWord": 1}, {"type": "word_limits"}, {"type": "broken"}):
        try:
            graders_of(entry)
        except UserError as error:
            print(error)

asyncio.run(main())
"""


def test_a_grader_of_another_package(tmp_path: Path) -> None:
    (tmp_path / "word_limit.py").write_text(PLUGIN)
    info = tmp_path / "word_limit-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: word-limit\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[manyhands.graders]\nword-limit = word_limit\nbroken = nowhere_at_all\n")
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2] / 'src'}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stdout.splitlines() == [
        "word-limit 0.0 3.0 None",
        "word-limit 1.0 3.0 None",
        "word-limit None 3.0 ValueError: nothing to count",
        "checks.yaml: [0].maxWord: unknown key; did you mean max_words?",
        "checks.yaml: [0].type: unknown kind of grader 'word_limits'; did you mean word-limit?",
        "checks.yaml: [0]: the grader plug-in 'broken' (nowhere_at_all) can't be used: "
        "ModuleNotFoundError: No module named 'nowhere_at_all'",
    ], ended.stderr
