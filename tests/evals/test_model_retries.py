"""Models as targets and as judges: how often calls are made, and what becomes of it when none succeeds."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.testing.scripted_server import RecordedRequest, ScriptedResponse, ScriptedServer
from tests.support.eval_runs import perform_eval

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
        assert len(server.requests) == 1  # a second one, as dear as the first, would pass the budget
        assert run.statuses() == {"a": "passed"}
        assert (run.summary["tests"]["pending"], run.code) == (2, 3)
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


BUSY = [
    ScriptedResponse({"error": {"message": "out of order"}}, status=status, headers=headers)
    for status, headers in ((500, {}), (503, {"Retry-After": "0"}), (429, {"Retry-After": "0"}), (408, {}))
]


@pytest.mark.parametrize("busy", BUSY, ids=lambda busy: str(busy.status))
@pytest.mark.parametrize("none", [{"max_retries": 0}, {"max_attempts": 1}])
@pytest.mark.parametrize("own", [{}, {"max_retries": 3}, {"retry_initial_delay_ms": 1}])
async def test_no_retries_are_none(
    tmp_path: Path, busy: ScriptedResponse, none: dict[str, Any], own: dict[str, Any]
) -> None:
    async with ScriptedServer([busy]) as target, ScriptedServer([busy]) as judge:
        mock = "{name: mock, provider: mock, response: said, judge_target: judge}"
        models = f"{model(target, **own)}, {model(judge, name='judge', **own)}"
        write(
            tmp_path,
            f"targets: [{mock}, {models}]",
            "execution: {targets: [mock, m]}",
            "assert: [{type: llm_judge}]",
            TEST,
        )
        run = await perform_eval(tmp_path, judge_target="judge", **none)
        assert (len(target.requests), len(judge.requests)) == (1, 1)
    assert [run.record("a", name)["status"] for name in ("mock", "m")] == ["grader_error", "error"]
    assert all("attempts" not in record for record in run.records())


@pytest.mark.parametrize("busy", BUSY, ids=lambda busy: str(busy.status))
async def test_a_target_without_retries_has_none(tmp_path: Path, busy: ScriptedResponse) -> None:
    async with ScriptedServer([busy]) as server:
        target = model(server, max_retries=0)
        write(tmp_path, f"targets: [{target}]", "assert: [{type: contains, value: x}]", TEST)
        run = await perform_eval(tmp_path, max_retries=3)
        assert len(server.requests) == 1
    assert run.record("a")["status"] == "error"


@pytest.mark.parametrize("batching", [True, False])
async def test_a_command_that_took_too_long_is_not_invoked_again_without_retries(
    tmp_path: Path, batching: bool
) -> None:
    command = "echo x >> calls.txt; sleep 20"
    target = {"name": "t", "provider": "cli", "command": command, "timeout_seconds": 0.3, "provider_batching": batching}
    write(tmp_path, f"targets: [{json.dumps(target)}]", "assert: [{type: contains, value: x}]", TEST)
    run = await perform_eval(tmp_path, max_retries=0)
    assert (tmp_path / "calls.txt").read_text() == "x\n"
    assert (run.record("a")["status"], "0.3" in run.record("a")["error"]) == ("error", True)


OVERLOADED = ScriptedResponse({"error": {"message": "busy"}}, status=503)
RETRIES = {"retry_initial_delay_ms": 40, "retry_backoff_factor": 2, "retry_max_delay_ms": 50}


def asking(server: ScriptedServer, **more: Any) -> tuple[str, str, str]:
    return f"targets: [{model(server, **more)}]", "assert: [{type: contains, value: x}]", TEST


async def test_a_target_says_when_a_failed_call_is_tried_again(tmp_path: Path) -> None:
    times: list[float] = []
    replies = [OVERLOADED, OVERLOADED, OVERLOADED, answer("x")]

    def reply(_request: RecordedRequest) -> Any:
        times.append(time.monotonic())
        return replies[len(times) - 1]

    async with ScriptedServer(reply) as server:
        write(tmp_path, *asking(server, **RETRIES))
        run = await perform_eval(tmp_path)
    assert run.statuses() == {"a": "passed"}
    assert run.record("a").get("attempts", 1) == 1  # within one call
    pauses = [after - before for before, after in pairwise(times)]
    assert all(pause >= 0.75 * least for pause, least in zip(pauses, (0.04, 0.05, 0.05), strict=True))
    assert sum(pauses) < 3  # as usual it would be 1 s, 2 s and 4 s, less a quarter


@pytest.mark.parametrize(("status", "requests"), [(503, 4), (418, 4), (500, 1), (404, 1)])
async def test_a_target_says_after_which_statuses_a_call_is_tried_again(
    tmp_path: Path, status: int, requests: int
) -> None:
    async with ScriptedServer([ScriptedResponse({"error": {"message": "no"}}, status=status)]) as server:
        write(tmp_path, *asking(server, **RETRIES, retry_status_codes=[503, "418"]))
        run = await perform_eval(tmp_path)
        assert len(server.requests) == requests
    assert run.record("a")["status"] == "error"
    assert run.record("a").get("attempts", 1) == 1  # the test is not performed again beside what its target says


async def test_the_same_holds_for_a_judge(tmp_path: Path) -> None:
    judged = json.dumps({"score": 1, "hits": [], "misses": [], "reasoning": "good"})
    async with ScriptedServer([ScriptedResponse({}, status=418), answer(judged)]) as server:
        mock = "{name: mock, provider: mock, response: said, judge_target: m}"
        judge = model(server, retry_initial_delay_ms=1, retry_status_codes=[418])
        write(tmp_path, f"targets: [{mock}, {judge}]", "execution: {target: mock}", TEST)
        run = await perform_eval(tmp_path)
        assert len(server.requests) == 2
    assert run.statuses() == {"a": "passed"}


async def test_a_judge_that_a_grader_names_says_how_often_it_is_asked(tmp_path: Path) -> None:
    async with ScriptedServer([OVERLOADED]) as server:
        mock = "{name: mock, provider: mock, response: said}"
        judge = model(server, retry_status_codes=[500])
        graders = "assert: [{type: llm_judge, target: m}]"
        write(tmp_path, f"targets: [{mock}, {judge}]", graders, "execution: {target: mock}", TEST)
        run = await perform_eval(tmp_path)
        assert len(server.requests) == 1
    assert (run.record("a")["status"], run.record("a")["cause"]) == ("grader_error", "model_error")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"retry_status_codes": [200]}, "retry_status_codes: must be a list of HTTP statuses, 400 to 599"),
        ({"retry_status_codes": "503,5xx"}, "retry_status_codes: must be a list of HTTP statuses, 400 to 599"),
        ({"retry_backoff_factor": 0.5}, "retry_backoff_factor: must be 1 or more"),
        ({"retryInitialDelayMs": -1}, "retryInitialDelayMs: must be 0 or more"),
    ],
)
async def test_settings_of_retries_that_are_none(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    target = json.dumps({"provider": "model", "model": "m", "base_url": "http://127.0.0.1:1/v1", **settings})
    write(tmp_path, "targets:", f"  m: {target}", "assert: [{type: contains, value: x}]", TEST)
    with pytest.raises(UserError) as caught:
        await perform_eval(tmp_path)
    assert f"suite.yaml, line 2: targets.m.{message}" in str(caught.value)
