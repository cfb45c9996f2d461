"""Graders of what an answer took."""

from __future__ import annotations

from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.graders.protocol import Candidate, ToolUse
from manyhands.testing.grader_doubles import grade, graders_of

TOKENS = {"input": 100, "output": 20, "cached": 80}


def candidate(**known: Any) -> Candidate:
    return Candidate("t", "", **known)


@pytest.mark.parametrize(
    ("entry", "known", "value"),
    [
        ({"type": "latency", "threshold": 100}, {"duration_ms": 100}, 1),
        ({"type": "latency", "threshold": 100}, {"duration_ms": 100.5}, 0),
        ({"type": "latency", "threshold": 0}, {"duration_ms": 0}, 1),
        ({"type": "latency", "threshold": 100}, {"trace": {"duration_ms": 99}}, 1),
        ({"type": "cost", "budget": 0.3}, {"cost_usd": 0.1 + 0.2}, 0),
        ({"type": "cost", "budget": 0.3}, {"cost_usd": 0.3}, 1),
        ({"type": "cost", "budgetUsd": 0.3}, {"trace": {"cost_usd": 0.1}}, 1),
        ({"type": "token_usage", "max_total": 200}, {"token_usage": TOKENS}, 1),  # input + output + cached
        ({"type": "token_usage", "max_total": 199}, {"token_usage": TOKENS}, 0),
        ({"type": "token_usage", "max_total": 199}, {"trace": {"token_usage": TOKENS}}, 0),
        ({"type": "token_usage", "max_total": 120}, {"token_usage": {"input": 100, "output": 20}}, 1),
        ({"type": "token_usage", "max_total": 120}, {"token_usage": TOKENS, "cached_in_input": True}, 1),
        ({"type": "token_usage", "max_total": 119}, {"token_usage": TOKENS, "cached_in_input": True}, 0),
        ({"type": "token_usage", "max_input": 100, "max_output": 20}, {"token_usage": TOKENS}, 1),
        ({"type": "token_usage", "max_input": 100, "max_output": 19}, {"token_usage": TOKENS}, 0),
        ({"type": "token_usage", "max_total": 200}, {"trace": {"token_usage": TOKENS}}, 1),
        ({"type": "execution_metrics", "max_tokens": 120}, {"token_usage": TOKENS}, 1),  # the original adds none here
        ({"type": "execution_metrics", "max_tokens": 119}, {"token_usage": TOKENS}, 0),
        (
            {"type": "execution_metrics", "max_llm_calls": 2, "max_duration_ms": 5},
            {"trace": {"llm_call_count": 3, "duration_ms": 5}},
            0.5,
        ),
        ({"type": "execution_metrics", "max_tool_calls": 2}, {"output": [], "tool_uses": [ToolUse("a")] * 3}, 0),
        ({"type": "execution_metrics", "max_tool_calls": 2}, {"trace": {"event_count": 2}}, 1),
        ({"type": "execution_metrics", "max_tool_calls": 0}, {"output": []}, 1),
    ],
)
async def test_limits(entry: dict[str, Any], known: dict[str, Any], value: float) -> None:
    assert (await grade(entry, candidate(**known))).value == value


@pytest.mark.parametrize(
    ("entry", "misses"),
    [
        ({"type": "latency", "threshold": 100}, ("duration: no data",)),
        ({"type": "cost", "budget": 1}, ("cost: no data",)),
        ({"type": "token_usage", "max_total": 1}, ("total tokens: no data",)),
        (
            {"type": "execution_metrics", "max_tool_calls": 1, "max_llm_calls": 1, "target_exploration_ratio": 0.5},
            ("tool calls: no data", "model calls: no data", "share of exploring tool calls: no data"),
        ),
    ],
)
async def test_without_data(entry: dict[str, Any], misses: tuple[str, ...]) -> None:
    score = await grade(entry, candidate())
    assert (score.value, score.verdict, score.misses) == (0, "fail", misses)


@pytest.mark.parametrize(
    ("tools", "tolerance", "value"),
    [
        (["read", "grep", "write", "run"], 0, 1),
        (["Read", "WebFetch", "write", "run"], 0, 1),
        (["read", "write"] * 2 + ["read"], 0.1, 1),
        (["read", "write"] * 2 + ["read"], 0.05, 0),
        (["read"] * 7 + ["write"] * 3, None, 1),
        (["read"] * 8 + ["write"] * 2, None, 0),
        ([], 1, 0),
    ],
)
async def test_exploration(tools: list[str], tolerance: float | None, value: float) -> None:
    entry: dict[str, Any] = {"type": "execution_metrics", "targetExplorationRatio": 0.5}
    if tolerance is not None:
        entry["explorationTolerance"] = tolerance
    assert (await grade(entry, candidate(output=[], tool_uses=[ToolUse(tool) for tool in tools]))).value == value
    traced = {"tool_calls_by_name": {tool: tools.count(tool) for tool in tools}}
    assert (await grade(entry, candidate(trace=traced))).value == value


async def test_exploring_tools_of_ones_own() -> None:
    entry = {"type": "execution_metrics", "target_exploration_ratio": 1, "exploration_tools": ["look"]}
    assert (await grade(entry, candidate(output=[], tool_uses=[ToolUse("look")]))).value == 1


async def test_what_is_said() -> None:
    score = await grade({"type": "latency", "threshold": 100}, candidate(duration_ms=250))
    assert score.misses == ("duration: 250 ms (outside at most 100)",)
    assert score.reasoning == "0 of 1 limits are met"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"type": "latency"}, "[0]: threshold is required"),
        ({"type": "latency", "threshold": -1}, "[0].threshold: must be 0 or more, not -1"),
        ({"type": "cost", "budget": "much"}, "[0].budget: must be a number, not 'much'"),
        ({"type": "token_usage"}, "[0]: at least one limit is required: max_total, max_input, max_output"),
        (
            {"type": "execution_metrics", "exploration_tolerance": 1},
            "[0]: at least one limit is required: max_tool_calls",
        ),
        (
            {"type": "execution_metrics", "target_exploration_ratio": 2},
            "[0].target_exploration_ratio: must be between 0 and 1",
        ),
    ],
)
def test_settings_that_are_wrong(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        graders_of(entry)
    assert str(caught.value).startswith(f"checks.yaml: {message}")
