"""Eval files that were made to harm whoever reads them, in the words of AgentV 4.42 and 5."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import run

TARGETS = {"targets": [{"name": "t", "provider": "mock"}], "execution": {"targets": ["t"]}}
ASSERT = [{"type": "contains", "value": "a"}]
MANY = [{"vars": {"n": number}} for number in range(400)]
NESTED = {f"v{number}": {"k": [f"{{{{v{number + 1}}}}}"] * 10} for number in range(12)}
LONGER = {f"v{number}": f"{{{{v{number + 1}}}}}" * 10 for number in range(12)}
TOO_MANY = "100,000 tests"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(
            {"prompts": ["{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"]},
            "more than 5 s",
            id="loop",
        ),
        pytest.param({"prompts": ["{% set x = 'a' * 4000000000 %}"]}, "can't be filled: MemoryError", id="memory"),
        pytest.param({"prompts": ["{{ ''.__class__.__mro__ }} {% if 1 %}{% endif %}"]}, "unsafe", id="attributes"),
        pytest.param({"prompts": ["{{ v0 }}"], "vars": {**LONGER, "v12": "x"}}, "100,000,000 characters", id="texts"),
        pytest.param({"prompts": ["{{ v0 }}"], "vars": {**NESTED, "v12": "x"}}, "100,000,000 characters", id="lists"),
        pytest.param({"prompts": ["{{ x }}"], "vars": {"x": "{{ x }}" * 50}}, "100,000,000 characters", id="itself"),
        pytest.param(
            {"prompts": ["{{a}}"], "vars": {name: list("0123456789") for name in "abcdefghij"}}, TOO_MANY, id="values"
        ),
        pytest.param({"prompts": ["{{n}}"], "scenarios": [{"config": MANY, "tests": MANY}]}, TOO_MANY, id="scenarios"),
    ],
)
def test_templates_and_combinations_have_limits(tmp_path: Path, content: dict[str, Any], said: str) -> None:
    tests = {} if "scenarios" in content else {"tests": [{"id": "a"}]}
    file = tmp_path / "suite.yaml"
    file.write_text(json.dumps({**TARGETS, "assert": ASSERT, **content, **tests}))
    done = run("eval", "validate", str(file))
    assert done.code == 2
    assert said in done.err
    assert "internal error" not in done.err


def test_many_values_that_make_one_id_cost_what_others_do(tmp_path: Path) -> None:
    """Ids that are taken are not tried one after the other: twenty thousand of them would be as many as 2·10⁸."""
    values = ["x" * 60 + str(number) for number in range(20_000)]
    file = tmp_path / "suite.yaml"
    file.write_text(json.dumps({**TARGETS, "assert": ASSERT, "prompts": ["{{v}}"], "tests": [{"vars": {"v": values}}]}))
    done = run("eval", "validate", str(file))
    assert done.code == 0, done.err[-500:]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param({"prompts": ["{{ a" * 100_000], "tests": [{"id": "a"}]}, id="openings"),
        pytest.param({"prompts": ["{{ env.A|default('" * 30_000], "tests": [{"id": "a"}]}, id="defaults"),
        pytest.param({"tests": [{"id": "a", "criteria": "c", "input": "${{ A" * 100_000}]}, id="variables"),
    ],
)
def test_openings_that_nothing_closes_cost_what_their_length_does(tmp_path: Path, content: dict[str, Any]) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(json.dumps({**TARGETS, "assert": ASSERT, **content}))
    done = run("eval", "validate", str(file), seconds=30)
    assert "internal error" not in done.err


def test_a_table_of_many_columns(tmp_path: Path) -> None:
    (tmp_path / "tests.csv").write_text(",".join(["input", *(f"c{n}" for n in range(50_000))]) + "\n" + "x," * 50_000)
    file = tmp_path / "suite.yaml"
    file.write_text(json.dumps({**TARGETS, "assert": ASSERT, "tests": "file://tests.csv"}))
    assert "internal error" not in run("eval", "validate", str(file), seconds=30).err
