"""Scores that a simulated model gave say so wherever they are shown; judges that can't be asked are no zeros."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from manyhands.cli.evals.run import run as eval_command
from manyhands.testing.scripted_server import ScriptedServer, chat_response
from tests.support.eval_runs import perform_eval

ASK = """
import json, os, sys, urllib.request
request = urllib.request.Request(os.environ["AGENTV_TARGET_PROXY_URL"] + "/invoke", b'{"question": "Good?"}',
    {"Authorization": "Bearer " + os.environ["AGENTV_TARGET_PROXY_TOKEN"]})
try:
    score = json.loads(json.load(urllib.request.urlopen(request))["rawText"])["score"]
except OSError:
    score = 0
except ValueError:
    score = 0.5
print(json.dumps({"score": score}))
"""


def write(folder: Path, judge: dict[str, Any]) -> None:
    (folder / "ask.py").write_text(ASK)
    program = {"type": "code_judge", "name": "program", "script": "python3 ask.py", "target": True}
    inner = {"type": "composite", "assert": [{"type": "llm_judge"}, {"type": "contains", "value": "hi"}]}
    two = {"type": "composite", "assert": [{"type": "llm_judge"}, {"type": "llm_judge"}]}
    suite = {
        "targets": {"it": {"provider": "cli", "command": "echo hi", "judge_target": "judge"}, "judge": judge},
        "execution": {"target": "it"},
        "tests": [
            {"id": "judged", "input": "x", "criteria": "greets"},
            {"id": "asked", "input": "x", "assert": [program]},
            {"id": "within", "input": "x", "criteria": "greets", "assert": [inner]},
            {"id": "both", "input": "x", "criteria": "greets", "assert": [two]},
            {"id": "rule", "input": "x", "assert": [{"type": "contains", "value": "hi"}]},
        ],
    }
    (folder / "suite.yaml").write_text(json.dumps(suite))


def test_a_simulated_judge_is_named_wherever_its_scores_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"provider": "model", "model": "simulated"})
    eval_command(["suite.yaml", "--run_name=r", "--output=page.html", "--fail_on=never"])
    lines = capsys.readouterr().out.splitlines()
    for name, marked in (("judged", True), ("asked", True), ("within", True), ("both", True), ("rule", False)):
        (line,) = (line for line in lines if line[2:].startswith(f"{name} "))
        assert ("(simulated judge)" in line) == marked
    folder = tmp_path / "data" / "r"
    records = {each["test_id"]: each for each in map(json.loads, (folder / "results.jsonl").read_text().splitlines())}
    assert {name: each["scores"][0].get("simulated") for name, each in records.items()} == {
        **dict.fromkeys(("judged", "asked", "within", "both"), True),
        "rule": None,
    }
    assert all("simulated" not in each for each in records.values())  # it was the judge that was, and not the target
    assert [each.get("simulated") for each in records["within"]["scores"][0]["scores"]] == [True, None]
    summary = json.loads((folder / "eval_summary.json").read_text())
    assert (summary["simulated"], summary["simulated_scores"]) == (0, 4)
    assert (tmp_path / "page.html").read_text().count('<span class="cell warn">simulated judge</span>') == 4


async def test_a_judge_that_is_down_is_a_grader_error_also_for_a_program_that_makes_a_zero_of_it(
    tmp_path: Path,
) -> None:
    async with ScriptedServer([]) as server:
        base_url = server.base_url
    write(tmp_path, {"provider": "model", "model": "m", "base_url": base_url, "max_retries": 0})
    run = await perform_eval(tmp_path, max_retries=0)
    errors = dict.fromkeys(("judged", "asked", "within", "both"), "grader_error")
    assert run.statuses() == {**errors, "rule": "passed"}
    assert {run.record(name)["score"] for name in errors} == {None}
    assert {run.record(name)["answer"] for name in errors} == {"hi"}


async def test_a_judge_that_broke_is_asked_again_when_errors_are_tried_again(tmp_path: Path) -> None:
    bad, good = chat_response("no idea"), chat_response('{"score": 0.9, "hits": [], "misses": [], "reasoning": ""}')
    async with ScriptedServer([bad, bad, bad, good]) as server:
        write(tmp_path, {"provider": "model", "model": "m", "base_url": server.base_url})
        run = await perform_eval(tmp_path, test_id=["judged"])
        assert run.statuses() == {"judged": "grader_error"}
        assert "asked 3 times" in run.record("judged")["error"]
        run = await perform_eval(tmp_path, resume=True, retry_errors=True)
        assert (run.statuses(), run.record("judged")["score"]) == ({"judged": "passed"}, 0.9)
        assert len(server.requests) == 4
