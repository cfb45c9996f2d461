"""Graders by convention: programs in ``.agentv/assertions``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.graders.protocol import Candidate, Score
from manyhands.processes.scripts import Scripts
from manyhands.testing.grader_doubles import ScriptedPrograms, graders_of, make_grading

ENVIRON = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
WORDS = """
import json, sys
given = json.load(sys.stdin)
words = len(given["answer"].split())
print(json.dumps({"score": float(words <= given["config"]["maxWords"]), "hits": [f"{words} words"]}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An eval file's, with kinds in a folder above and in its own."""
    inner = tmp_path / "suites" / "one"
    for base in (tmp_path, inner):
        (base / ".agentv" / "assertions").mkdir(parents=True)
    (tmp_path / ".agentv" / "assertions" / "word_count.py").write_text(WORDS)
    (tmp_path / ".agentv" / "assertions" / "far.py").write_text("print('{\"score\": 0.25}')")
    (tmp_path / ".agentv" / "assertions" / "tone.ts").write_text("")
    (tmp_path / ".agentv" / "assertions" / "readme.md").write_text("")
    (tmp_path / ".agentv" / "assertions" / "contains.py").write_text("1 / 0")
    (inner / ".agentv" / "assertions" / "far.py").write_text("print('{\"score\": 0.75}')")
    return inner


async def judged(entry: dict[str, Any], answer: str, folder: Path, scripts: Any) -> Score:
    (grader,) = graders_of(entry, folder=folder)
    return await grader.grade(Candidate("t", answer, folder=folder), make_grading(scripts=scripts))


async def test_a_program_is_a_kind_and_its_settings_reach_it(folder: Path) -> None:
    async with Scripts.opened(f"tests.conventions.{os.getpid()}", ENVIRON) as scripts:
        for kind in ("word_count", "word-count"):
            score = await judged({"type": kind, "maxWords": 2, "weight": 3}, "one two", folder, scripts)
            assert (score.name, score.type, score.value, score.weight) == ("word_count", "word_count", 1.0, 3.0)
            assert score.hits == ("2 words",)
        score = await judged({"type": "word-count", "maxWords": 1, "negate": True}, "one two", folder, scripts)
        assert score.value == 1.0
        assert (await judged({"type": "far"}, "", folder, scripts)).value == 0.75
        assert (await judged({"type": "contains", "value": "x"}, "x", folder, scripts)).error is None
        member = {"type": "composite", "assert": [{"type": "far"}, {"type": "is_json"}]}
        assert (await judged(member, "1", folder, scripts)).value == 0.875


async def test_what_is_run(folder: Path) -> None:
    programs = ScriptedPrograms.printing({"score": 1})
    await judged({"type": "tone", "language": "en"}, "x", folder, programs)
    (call,) = programs.calls
    assert call["command"] == ("bun", "run", str(folder.parents[1] / ".agentv" / "assertions" / "tone.ts"))
    assert (call["folder"], call["payload"]["config"]) == (folder, {"language": "en"})


async def test_the_contract_of_a_program(folder: Path) -> None:
    base = folder.parents[1] / ".agentv"
    (base / "graders").mkdir()
    (base / "judges").mkdir()
    (base / "graders" / "tone.ts").write_text("")  # hidden by the one in assertions
    (base / "graders" / "length.mjs").write_text("")
    (base / "judges" / "style.py").write_text("")
    (base / "assertions" / "words.ts").write_text("import { defineAssertion } from '@agentv/sdk';")
    for kind, later in (("tone", False), ("length", True), ("style", True), ("words", True)):
        programs = ScriptedPrograms.printing({"score": 1})
        await judged({"type": kind}, "x", folder, programs)
        assert ("messages" in programs.calls[0]["payload"]) is later
        assert programs.calls[0]["payload"]["output" if later else "answer"] == "x"


def test_kinds_that_there_are_not(folder: Path) -> None:
    for kind, words in (("readme", "unknown kind"), ("word_counts", "did you mean word_count"), ("../far", "unknown")):
        with pytest.raises(UserError, match=words):
            graders_of({"type": kind}, folder=folder)
    with pytest.raises(UserError, match="unknown kind"):
        graders_of({"type": "word_count"}, folder=folder.parents[2])


async def test_included_graders_know_the_kinds_of_the_eval_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "checks.yaml").write_text("- {type: far}\n")
    async with Scripts.opened(f"tests.conventions.{os.getpid()}", ENVIRON) as scripts:
        assert (await judged({"include": "../../shared/checks.yaml"}, "", folder, scripts)).value == 0.75
