"""Models as targets and as judges: how often calls are made, and what becomes of it when none succeeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from manyhands.testing.eval_runs import perform_eval
from manyhands.testing.scripted_server import RecordedRequest, ScriptedResponse, ScriptedServer

DOWN = ScriptedResponse({"error": {"message": "out of order"}}, status=500)


def answer(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "cost": 0.4}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage, "model": "m"}


def write(folder: Path, *lines: str) -> None:
    (folder / "suite.yaml").write_text("\n".join(lines) + "\n")


def model(server: ScriptedServer, **more: Any) -> str:
    return json.dumps({"name": "m", "provider": "model", "model": "m", "base_url": server.base_url, **more})


TEST = "tests: [{id: a, input: x, criteria: c}]"


@pytest.mark.parametrize(("retries", "requests"), [(0, 1), (1, 2)])
async def test_a_target_says_how_often_a_failed_call_is_tried_again(
    tmp_path: Path, retries: int, requests: int
) -> None:
    async with ScriptedServer([DOWN]) as server:
        write(
            tmp_path, f"targets: [{model(server, max_retries=retries)}]", "assert: [{type: contains, value: x}]", TEST
        )
        run = await perform_eval(tmp_path)
        assert len(server.requests) == requests
    assert (run.record("a")["status"], run.record("a")["cause"]) == ("error", "model_error")


async def test_a_judge_that_can_not_be_asked_is_a_grader_error(tmp_path: Path) -> None:
    async with ScriptedServer([DOWN]) as server:
        mock = "{name: mock, provider: mock, response: said, judge_target: m}"
        graders = "assert: [{type: llm_judge}, {type: llm_judge, name: second}]"
        write(
            tmp_path, f"targets: [{mock}, {model(server, max_retries=0)}]", graders, "execution: {target: mock}", TEST
        )
        run = await perform_eval(tmp_path)
        assert len(server.requests) <= 2
    record = run.record("a")
    assert (record["status"], record["cause"], record["score"], record["answer"]) == (
        "grader_error",
        "model_error",
        None,
        "said",
    )
    assert "out of order" in record["error"]
    assert run.code == 3


async def test_a_budget_ends_before_the_next_call_and_a_judges_call_counts(tmp_path: Path) -> None:
    judged = json.dumps({"score": 1, "hits": [], "misses": [], "reasoning": "good"})
    async with ScriptedServer([answer(judged)]) as server:
        mock = "{name: mock, provider: mock, response: said, judge_target: m}"
        tests = (
            "tests: [{id: a, input: x, criteria: c}, {id: b, input: x, criteria: c}, {id: d, input: x, criteria: c}]"
        )
        limits = "execution: {target: mock, max_cost_usd: 0.7, workers: 1}"
        write(tmp_path, f"targets: [{mock}, {model(server)}]", limits, tests)
        run = await perform_eval(tmp_path)
        assert len(server.requests) == 2
        assert run.statuses() == {"a": "passed", "b": "passed"}
        assert (run.summary["tests"]["pending"], run.code) == (1, 3)
        more = await perform_eval(tmp_path, resume=True, max_cost=2)
        assert len(server.requests) == 3
        assert more.code == 0


async def test_each_seed_of_a_target_is_another_one_for_each_test(tmp_path: Path) -> None:
    seen: list[int] = []

    def reply(request: RecordedRequest) -> dict[str, Any]:
        seen.append(request.body["seed"])
        return answer("x")

    async with ScriptedServer(reply) as server:
        both = f"targets: [{model(server, seed=1)}, {model(server, seed=2, name='n')}]"
        tests = "tests: [{id: a, input: x, criteria: c}, {id: b, input: x, criteria: c}]"
        write(tmp_path, both, "execution: {targets: [m, n]}", "assert: [{type: contains, value: x}]", tests)
        await perform_eval(tmp_path)
    assert len(set(seen)) == 4


async def test_prices_that_are_given_hold_for_the_targets(tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text("m: {input: 1000000, output: 0}\n")
    unpriced = answer("x")
    del unpriced["usage"]["cost"]
    async with ScriptedServer([unpriced]) as server:
        write(tmp_path, f"targets: [{model(server)}]", "assert: [{type: contains, value: x}]", TEST)
        run = await perform_eval(tmp_path, prices=str(tmp_path / "prices.yaml"))
        own = await perform_eval(tmp_path, "without")
    assert run.record("a")["cost_usd"] == 1
    assert "cost_usd" not in own.record("a")
