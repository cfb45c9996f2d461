"""Counting tools and turns."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from manyhands.agents.task import AgentResult, ToolUse
from manyhands.core.outcomes import ItemState, StopReason
from manyhands.core.usage import Usage
from manyhands.workloads.trajectories.records import ReasoningCounts, ToolColumns, record_of_entry, result_record
from manyhands.workloads.trajectories.results.statistics import RunStatistics, Statistics

USES = [ToolUse("read", False), ToolUse("read", True), ToolUse("fly", True)]
RESULT = AgentResult([], StopReason.ANSWERED, 2, Usage(calls=2, input_tokens=30, cost=0.25), USES, ["fly"])


def described(statistics: RunStatistics, **other: object) -> Statistics:
    return statistics.to_json(
        run_name="r",
        distribution="default",
        total_prompts=5,
        batch_size=2,
        model="m",
        completed_at=0.0,
        duration_seconds=12.3456,
        **{"usage": Usage(calls=6, cost=0.75), **other},  # type: ignore[arg-type]
    )


def test_stats_are_filled_with_zeros_in_a_stable_order() -> None:
    known = ToolColumns(["write", "read", "read"])
    assert list(known.stats(USES).items()) == [
        ("read", {"count": 2, "success": 1, "failure": 1}),
        ("write", {"count": 0, "success": 0, "failure": 0}),
    ]
    assert "write" in known
    assert "fly" not in known


def test_a_run_adds_up() -> None:
    statistics = RunStatistics()
    record = json.loads(json.dumps(result_record(RESULT, ReasoningCounts(2, 1))))
    statistics.add(ItemState.COMPLETED, record)
    statistics.add("completed", record)
    statistics.add(ItemState.DISCARDED, record, reason="no_reasoning")
    statistics.add(ItemState.FAILED, cause="rate_limit")
    statistics.add_pending(1)
    whole = described(statistics)
    assert list(whole)[:10] == [
        "run_name",
        "distribution",
        "total_prompts",
        "total_batches",
        "batch_size",
        "model",
        "completed_at",
        "duration_seconds",
        "tool_statistics",
        "reasoning_statistics",
    ]
    assert whole["total_batches"] == 3
    assert whole["duration_seconds"] == 12.35
    assert whole["tool_statistics"] == {
        "fly": {"count": 2, "success": 0, "failure": 2, "success_rate": 0.0, "failure_rate": 100.0},
        "read": {"count": 4, "success": 2, "failure": 2, "success_rate": 50.0, "failure_rate": 50.0},
    }
    assert whole["reasoning_statistics"] == {
        "total_assistant_turns": 4,
        "turns_with_reasoning": 2,
        "turns_without_reasoning": 2,
    }
    assert whole["items"] == {"pending": 1, "completed": 2, "discarded": 1, "failed": 1, "cancelled": 0}
    assert whole["discarded"] == {"no_reasoning": 1}
    assert whole["discarded_no_reasoning"] == 1
    assert whole["failures"] == {"rate_limit": 1}
    assert whole["stop_reasons"] == {"answered": 2}
    assert whole["api_calls"] == 4
    assert whole["cost"] == 0.75
    assert whole["simulated"] is False
    assert described(statistics, usage=Usage(calls=9, cost=1.5), simulated=True)["cost"] == 1.5


def test_adopted_entries_count() -> None:
    entry = {
        "api_calls": 2,
        "tool_stats": {
            "read": {"count": 2, "success": 1, "failure": 1},
            "write": {"count": 0, "success": 0, "failure": 0},
        },
        "conversations": [
            {"from": "human", "value": "<think>x</think>"},
            {"from": "gpt", "value": "<think>\nx\n</think>\na"},
            {"from": "gpt", "value": "<think>\n</think>\nb"},
        ],
    }
    assert record_of_entry(entry) == {"api_calls": 2, "tools": {"read": [2, 1]}, "reasoning": [2, 1]}
    assert record_of_entry({}) == {"api_calls": 0, "tools": {}, "reasoning": [0, 0]}


@given(st.lists(st.tuples(st.sampled_from(["read", "write", "fly"]), st.booleans())))
def test_counts_add_up(uses: list[tuple[str, bool]]) -> None:
    stats = ToolColumns(["read", "write"]).stats(uses)
    assert sum(counts["count"] for counts in stats.values()) == sum(name != "fly" for name, _ in uses)
    assert all(counts["count"] == counts["success"] + counts["failure"] for counts in stats.values())
