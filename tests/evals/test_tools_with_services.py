"""Agents of evaluations with tools that ask other models: chosen when the run is made, and kept for a resume and for exports."""

from __future__ import annotations

import json
from pathlib import Path

from manyhands.runs.making import recorded_run
from manyhands.workloads.evals.workload import EvalsWorkload
from tests.support.commands import run

EVAL = """
tests:
  - id: one
    input: How many primes are below 100?
    assertions: [{type: contains, value: e}]
"""
TARGETS = """
targets:
  - name: agent
    provider: agent
    model: simulated
    toolsets: [moa]
    moa_models: [simulated, simulated/b]
"""


def test_a_target_has_the_tools_that_its_settings_give_it(tmp_path: Path) -> None:
    (tmp_path / "a.eval.yaml").write_text(EVAL)
    (tmp_path / "targets.yaml").write_text(TARGETS)
    words = ("eval", "a.eval.yaml", "--target=agent", "--targets=targets.yaml", "--run_name=r")
    assert run(*words, folder=tmp_path).code == 0
    spec = recorded_run(tmp_path / "data" / "r", EvalsWorkload.name).spec
    [services] = spec["services"].values()
    assert [each["model"] for each in services["mixture"]["models"]] == ["simulated", "simulated/b", "simulated"]
    assert "simulated/b is asked" in run("show", "data/r", "1", folder=tmp_path).out
    assert run("export", "data/r", "--to=openai", "-o", "x.jsonl", folder=tmp_path).code == 0
    row = json.loads((tmp_path / "x.jsonl").read_text().splitlines()[0])
    assert [tool["function"]["name"] for tool in row["tools"]] == ["mixture_of_agents"]


def test_a_target_that_names_a_tool_it_cannot_have_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.eval.yaml").write_text(EVAL)
    (tmp_path / "targets.yaml").write_text(
        TARGETS.replace("toolsets: [moa]", "tools: [moa]").replace("    moa_models: [simulated, simulated/b]\n", "")
    )
    ended = run("eval", "a.eval.yaml", "--target=agent", "--targets=targets.yaml", "--run_name=r", folder=tmp_path)
    assert ended.code == 2
    assert "moa can't be had here; it needs several models" in ended.err
    assert "targets.yaml" in ended.err
