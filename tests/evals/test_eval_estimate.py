"""What an evaluation would take if its targets were asked, by its tests, targets and judges."""

from __future__ import annotations

import json
from pathlib import Path

from manyhands.workloads.evals.estimating import estimate_eval
from manyhands.workloads.evals.settings import EvalSpec

KEY = "${{ OPENAI_API_KEY }}"


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
