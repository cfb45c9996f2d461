"""Targets that others stand in for, and kinds that are programs of the person's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from tests.support.eval_runs import perform_eval


def write(folder: Path, targets: dict[str, Any], chosen: str = "it") -> None:
    suite = {
        "targets": targets,
        "execution": {"target": chosen},
        "tests": [{"id": "a", "input": "i"}],
        "assert": [{"type": "contains", "value": "yes"}],
    }
    (folder / "suite.yaml").write_text(json.dumps(suite))


YES = {"provider": "mock", "response": "yes", "judge_target": "nobody"}


async def test_another_target_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT", "next")
    window = {"provider": "vscode", "log_format": "json"}
    write(
        tmp_path,
        {"it": {"use_target": "${{ AGENT }}", "workers": 2}, "next": {"useTarget": "yes"}, "yes": YES, "w": window},
    )
    run = await perform_eval(tmp_path)

    assert [(each["target"], each["status"]) for each in run.records()] == [("it", "passed")]
    monkeypatch.setenv("AGENT", "w")  # a run goes on with what it began with
    assert (await perform_eval(tmp_path, resume=True)).statuses() == {"a": "passed"}


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({"use_target": "${{ NOT_SET }}"}, "targets.it.use_target: the environment variable NOT_SET is not set"),
        ({"use_target": "nowhere"}, "targets.it.use_target: there is no target 'nowhere'; known: it, back, w"),
        ({"use_target": "back"}, "targets.back.use_target: leads in a circle: it → back → it"),
        ({"use_target": "w"}, "targets.w.provider: 'vscode' is a kind of target that can't be used: VS Code shows"),
        ({"use_target": 3}, "targets.it.use_target: must be the name of another target, not 3"),
    ],
)
async def test_what_can_not_stand_in(tmp_path: Path, target: dict[str, Any], said: str) -> None:
    write(tmp_path, {"it": target, "back": {"use_target": "it"}, "w": {"provider": "vscode"}})
    with pytest.raises(UserError) as caught:
        await perform_eval(tmp_path)
    (line,) = str(caught.value).splitlines()
    assert said in line


async def test_a_program_by_convention_and_a_command_are_kinds(tmp_path: Path) -> None:
    folder = tmp_path / ".agentv/providers"
    folder.mkdir(parents=True)
    (folder / "my-llm.py").write_text("import sys\nprint('yes,', sys.argv[1])\n")
    write(tmp_path, {"it": {"provider": "my_llm"}})
    run = await perform_eval(tmp_path)
    assert run.record("a")["answer"] == "yes, i"

    write(tmp_path, {"it": {"provider": "other-llm", "command": f"{sys.executable} -c 'print(\"yes\")'"}})
    assert (await perform_eval(tmp_path, "command")).statuses() == {"a": "passed"}
    write(tmp_path, {"it": {"provider": "other-llm"}})
    with pytest.raises(UserError, match=r"'other-llm' is no kind of target, and \.agentv/providers has no program"):
        await perform_eval(tmp_path, "none")
