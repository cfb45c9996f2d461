"""What an evaluation would take if its targets were asked, by its tests, targets and judges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from manyhands.workloads.evals.estimating import estimate_eval
from manyhands.workloads.evals.settings import EvalSpec

KEY = "${{ OPENAI_API_KEY }}"


@pytest.mark.parametrize(
    ("settings", "calls", "dollars"),
    [
        ({}, "about 1", "about $0"),
        ({"tools": ["own.py"]}, "about 4", "about $0"),
        ({"mcp_config": "mcp.json"}, "about 4", "about $0"),
        ({"base_url": "http://h/v1"}, "about 1", "not known: no price (--prices)"),
    ],
)
def test_an_agents_tools_and_endpoint_count(
    tmp_path: Path, settings: dict[str, object], calls: str, dollars: str
) -> None:
    (tmp_path / "own.py").write_text("def price(thing: str) -> int:\n    'A price.'\n    return 42\n")
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    content = {
        "targets": [{"name": "a", "provider": "agent", "model": "simulated", **settings}],
        "execution": {"target": "a"},
        "tests": [{"id": "t", "input": "Say yes.", "criteria": "yes", "assert": [{"type": "contains", "value": "y"}]}],
    }
    (tmp_path / "e.yaml").write_text(json.dumps(content), encoding="utf-8")
    found = dict(estimate_eval(EvalSpec(eval_files=[str(tmp_path / "e.yaml")], dry_run=True), {}))
    assert (found["model calls"], found["dollars"].partition(".")[0]) == (calls, dollars.partition(".")[0])


def test_answers_and_verdicts_are_estimated(tmp_path: Path) -> None:
    content = {
        "targets": [
            {"name": "m", "provider": "openai", "model": "gpt-5-mini", "api_key": KEY, "judge_target": "m"},
            {"name": "c", "provider": "cli", "command": "cat", "judge_target": "m"},
        ],
        "execution": {"targets": ["m", "c"], "trials": {"count": 3}},
        "tests": [
            {"id": name, "input": "Say yes.", "criteria": "yes", "assert": [{"type": "llm_judge", "prompt": "Right?"}]}
            for name in ("a", "b")
        ],
    }
    (tmp_path / "e.yaml").write_text(json.dumps(content), encoding="utf-8")
    options = EvalSpec(eval_files=[str(tmp_path / "e.yaml")], dry_run=True)
    found = estimate_eval(options, {"OPENAI_API_KEY": "k"})
    assert ("target m", "openai, 6 answers") in found
    assert ("target c", "cli, 6 answers") in found
    assert ("not included", "what commands and functions take, which is not known before") in found
    assert ("model calls", "about 18") in found  # the answers of one target, and the verdicts on those of both
    assert dict(found)["dollars"].startswith("about $0.0")
    assert list(tmp_path.iterdir()) == [tmp_path / "e.yaml"]
