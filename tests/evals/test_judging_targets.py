"""Judges that are no models: commands, agents' programs, functions, the mock."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from tests.support.eval_runs import perform_eval

JUDGE = """\
import json, os, sys
prompt = open(sys.argv[1]).read()
with open("asked.txt", "a") as file:
    print(os.environ["MANYHANDS_EVAL_ID"], os.environ["MANYHANDS_WORKSPACE"], file=file)
if os.environ["MANYHANDS_EVAL_ID"] in sys.argv[2:]:
    sys.exit("out of order")
score = 0.9 if "hello" in prompt else 0.2
reply = json.dumps({"score": score, "hits": ["said hello"], "misses": [], "reasoning": "read it"})
print(json.dumps({"text": reply, "cost_usd": 0.25, "token_usage": {"input": 7, "output": 2}}))
"""
AGENT = f"""\
#!{sys.executable}
import json, os, sys
sys.stdin.read()
found = os.path.exists("made.txt")
text = json.dumps({{"score": 1.0 if found else 0.0, "hits": [], "misses": [], "reasoning": "looked"}})
message = {{"role": "assistant", "content": [{{"type": "text", "text": text}}]}}
print(json.dumps({{"type": "assistant", "message": message}}))
print(json.dumps({{"type": "result", "is_error": False, "result": text, "total_cost_usd": 0.5, "usage": {{}}}}))
"""
FUNCTION = 'def judge(asked):\n    return \'{"score": 0.5, "hits": [], "misses": [], "reasoning": "\' + asked[\'id\'] + \'"}\'\n'


def write(folder: Path, graders: list[dict[str, Any]], **targets: Any) -> None:
    (folder / "judge.py").write_text(JUDGE)
    (folder / "own.py").write_text(FUNCTION)
    (folder / "agent").write_text(AGENT)
    (folder / "agent").chmod(0o755)
    reply = {"score": 1, "hits": [], "misses": [], "reasoning": "mocked"}
    known = {
        "it": {"provider": "cli", "command": "echo hello from {EVAL_ID}", "judge_target": "command"},
        "command": {"provider": "cli", "command": f"{sys.executable} judge.py {{PROMPT_FILE}}"},
        "function": {"provider": "python", "function": "own.py:judge"},
        "agent": {"provider": "claude-cli", "executable": str(folder / "agent")},
        "mocked": {"provider": "mock", "response": json.dumps(reply)},
        "all": {"provider": "cli", "command": "x", "provider_batching": True},
    }
    suite = {
        "targets": {**known, **targets},
        "execution": {"target": "it"},
        "tests": [{"id": name, "input": "greet", "criteria": "greets", "assert": graders} for name in ("a", "b")],
    }
    (folder / "suite.yaml").write_text(json.dumps(suite))


def asked(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "asked.txt").read_text().splitlines()]


async def test_every_target_that_answers_a_prompt_can_judge(tmp_path: Path) -> None:
    named = [{"type": "llm_judge", "name": name, "target": name} for name in ("function", "agent", "mocked")]
    write(tmp_path, [{"type": "llm_judge", "name": "own"}, *named])
    run = await perform_eval(tmp_path)

    scores = {each["name"]: each for each in run.record("a")["scores"]}
    assert {name: each["score"] for name, each in scores.items()} == {
        "own": 0.9,
        "function": 0.5,
        "agent": 0.0,
        "mocked": 1.0,
    }
    assert scores["own"]["hits"] == ["said hello"]
    assert scores["function"]["reasoning"] == "a"
    assert [name for name, each in scores.items() if each.get("simulated")] == ["mocked"]
    assert sorted(asked(tmp_path)) == [["a", str(tmp_path)], ["b", str(tmp_path)]]
    usage = run.result.summary["usage"]
    assert (usage["cost"], usage["input_tokens"]) == (2 * (0.25 + 0.5), 14)


async def test_an_agent_judges_in_the_workspace_and_a_command_is_told_where_that_is(tmp_path: Path) -> None:
    graders: list[dict[str, Any]] = [
        {"type": "llm_judge", "name": "own"},
        {"type": "llm_judge", "name": "agent", "target": "agent"},
        {"type": "agent_judge", "name": "looking", "target": "agent", "max_steps": 3},
    ]
    write(tmp_path, graders)
    suite = json.loads((tmp_path / "suite.yaml").read_text())
    suite["workspace"] = {"template": "template"}
    suite["targets"]["it"]["command"] = "touch made.txt; echo hello"
    (tmp_path / "template").mkdir()
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    run = await perform_eval(tmp_path)

    assert {each["name"]: each["score"] for each in run.record("a")["scores"]} == {
        "own": 0.9,
        "agent": 1.0,
        "looking": 1.0,
    }
    places = {where for _, where in asked(tmp_path)}
    assert len(places) == 2
    assert str(tmp_path) not in places


async def test_a_judge_that_fails_is_a_grader_error_and_others_are_not_asked_again(tmp_path: Path) -> None:
    broken = {"provider": "cli", "command": f"{sys.executable} judge.py {{PROMPT_FILE}} b"}
    write(tmp_path, [{"type": "llm_judge", "name": "own"}, {"type": "llm_judge", "target": "broken"}], broken=broken)
    run = await perform_eval(tmp_path)

    assert run.statuses() == {"a": "passed", "b": "grader_error"}
    assert (
        "the judge broken can't be asked: the command ended with exit code 1: out of order" in run.record("b")["error"]
    )
    before = len(asked(tmp_path))
    again = await perform_eval(tmp_path, resume=True, retry_errors=True)
    assert again.statuses() == run.statuses()
    assert [name for name, _ in asked(tmp_path)[before:]] == ["b"]  # the one that broke; neither target nor other judge


async def test_the_one_judge_of_all(tmp_path: Path) -> None:
    graders = [{"type": "llm_judge", "name": "own"}, {"type": "llm_judge", "name": "named", "target": "mocked"}]
    write(tmp_path, graders)
    run = await perform_eval(tmp_path, grader_target="function")

    assert {each["name"]: each["score"] for each in run.record("a")["scores"]} == {"own": 0.5, "named": 1.0}
    with pytest.raises(UserError, match="--grader_target: there is no target 'nobody'"):
        await perform_eval(tmp_path, "other", grader_target="nobody")
    with pytest.raises(UserError, match="give --judge_target or --grader_target, not both"):
        await perform_eval(tmp_path, "other", grader_target="function", judge_target="function")


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        ("all", "targets.all: answers all tests in one invocation and can't judge"),
        ("gone", "targets.gone.command: there is no program"),
        ("filed", "targets.filed: is of kind replay and can't judge"),
    ],
)
async def test_what_can_not_judge(tmp_path: Path, judge: str, said: str) -> None:
    (tmp_path / "answers.jsonl").write_text("")
    gone = {"provider": "cli", "command": ["no-such-program-here", "{PROMPT_FILE}"]}
    filed = {"provider": "replay", "path": "answers.jsonl"}
    write(tmp_path, [{"type": "llm_judge", "target": judge}], gone=gone, filed=filed)

    with pytest.raises(UserError) as caught:
        await perform_eval(tmp_path)
    assert said in str(caught.value)
