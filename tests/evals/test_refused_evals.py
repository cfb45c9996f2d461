"""Targets and judges that refuse everything: the run stops, and goes on when that is mended."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.core.outcomes import ItemState
from manyhands.testing.scripted_server import (
    RecordedRequest,
    Reply,
    ScriptedResponse,
    ScriptedServer,
    chat_response,
)
from manyhands.workloads.evals.prepared import load
from manyhands.workloads.evals.settings import EvalSpec
from manyhands.workloads.evals.targets.checks import check_usable
from tests.support.eval_runs import perform_eval

NOTHING = ScriptedResponse({"error": {"message": "The model `gone` does not exist"}}, 404)
SCORE = {"score": 1.0, "hits": [], "misses": [], "reasoning": "fine"}


def write(folder: Path, server: ScriptedServer, grader: dict[str, Any], tests: int = 40) -> None:
    targets = [
        {"name": name, "provider": "model", "model": name, "base_url": server.base_url, **more}
        for name, more in (("good", {"judge_target": "judge"}), ("gone", {}), ("judge", {}))
    ]
    suite = {
        "targets": targets,
        "assert": [grader],
        "tests": [
            {"id": f"t{number}", "input": f"question {number}", "criteria": "be fine"} for number in range(tests)
        ],
    }
    (folder / "suite.yaml").write_text(json.dumps(suite))


@pytest.mark.parametrize(("target", "missing"), [("gone", "gone"), ("good", "judge")])
async def test_a_target_or_judge_that_does_not_exist(tmp_path: Path, target: str, missing: str) -> None:
    mended = False

    def reply(request: RecordedRequest) -> Reply:
        if request.body["model"] == missing and not mended:
            return NOTHING
        return chat_response(json.dumps(SCORE) if request.body["model"] == "judge" else "fine")

    grader = {"type": "contains", "value": "fine"} if target == "gone" else {"type": "llm_judge"}
    async with ScriptedServer(reply) as server:
        write(tmp_path, server, grader)
        run = await perform_eval(tmp_path, target=[target])
        refused = [note for note in run.said if note.startswith("refused: ")]
        assert len(refused) == 1
        assert "The model `gone` does not exist" in refused[0]
        assert "The model `gone` does not exist" in (run.result.stopped or "")
        assert (run.code, run.result.ledger["pending"], run.result.ledger["failed"]) == (3, 40, 0)
        mended = True
        again = await perform_eval(tmp_path, resume=True)
        assert (again.code, set(again.statuses().values())) == (0, {"passed"})
        if target == "good":  # what the target had answered is not asked again
            assert sum(request.body["model"] == "good" for request in server.requests) == 40
    assert {row.state for row in again.items()} == {ItemState.COMPLETED}


async def test_a_few_tests_that_are_all_refused_are_errors(tmp_path: Path) -> None:
    async with ScriptedServer([NOTHING]) as server:
        write(tmp_path, server, {"type": "contains", "value": "x"}, tests=3)
        run = await perform_eval(tmp_path, target=["gone"])
    assert (run.code, run.result.stopped, set(run.statuses().values())) == (3, None, {"error"})
    assert any("refused: " in note for note in run.said)


async def test_a_long_healthcheck_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        target = {"name": "t", "provider": "cli", "command": "cat {PROMPT_FILE} > {OUTPUT_FILE}"}
        health = {"healthcheck": {"url": url, "timeout_seconds": 1}}
        graders = [{"type": "contains", "value": "x"}]
        suite = {"targets": [{**target, **health}], "assert": graders, "tests": [{"id": "a", "input": "x"}]}
        (tmp_path / "suite.yaml").write_text(json.dumps(suite))
        options = EvalSpec.make({"eval_files": [str(tmp_path / "suite.yaml")]}).resolved()
        loaded = load(options, os.environ, lambda text: None)
        targets = [target for file in loaded.prepared.files for target in file.targets]
        said: list[str] = []
        with pytest.raises(UserError, match="timed out after 1 s"):
            await check_usable(targets, (), tmp_path, os.environ, said.append, patience=0.05)
    (line,) = said
    assert line.startswith("waiting until ")
    assert "the healthcheck of target 't' has not ended" in line
