"""What agent programs say of a launch. The recorded lines are those of Claude Code 2.1.197 and Codex 0.169.0."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.agents.programs import Account, AgentProgram, read_account
from manyhands.core.usage import Usage
from manyhands.models.pricing import PriceTable

CLAUDE: dict[str, Any] = {
    "type": "result",
    "subtype": "success",
    "is_error": False,
    "api_error_status": None,
    "duration_ms": 407,
    "num_turns": 1,
    "result": 'Here:\n```json\n{"score": 3}\n```',
    "session_id": "e16c831b",
    "total_cost_usd": 0.0010935,
    "usage": {
        "input_tokens": 100,
        "cache_creation_input_tokens": 10,
        "cache_read_input_tokens": 20,
        "output_tokens": 50,
        "cache_creation": {"ephemeral_1h_input_tokens": 0},
    },
    "modelUsage": {
        "claude-sonnet-4-5": {
            "inputTokens": 100,
            "outputTokens": 50,
            "cacheReadInputTokens": 20,
            "cacheCreationInputTokens": 10,
            "costUSD": 0.0010935,
        }
    },
}
CLAUDE_USAGE = Usage(1, input_tokens=130, output_tokens=50, cached_tokens=20, cache_write_tokens=10, cost=0.0010935)
CODEX = [
    {"type": "thread.started", "thread_id": "01a2"},
    {"type": "item.completed", "item": {"id": "item_0", "type": "error", "message": "Model metadata not found."}},
    {"type": "turn.started"},
    {"type": "item.completed", "item": {"id": "item_1", "type": "agent_message", "text": '{"score": 3}'}},
    {
        "type": "turn.completed",
        "usage": {
            "input_tokens": 120,
            "cached_input_tokens": 20,
            "cache_write_input_tokens": 0,
            "output_tokens": 40,
            "reasoning_output_tokens": 5,
        },
    },
]
CODEX_USAGE = Usage(1, input_tokens=120, output_tokens=40, cached_tokens=20, reasoning_tokens=5, unpriced_calls=1)
ON_HOLIDAY = '{"type": "error", "error": {"type": "invalid_request_error", "message": "the model is on holiday"}}'


def read(*events: Any, price: float | None = None) -> Account:
    return read_account("\n".join(map(json.dumps, events)), lambda usage: price)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(CLAUDE),
        json.dumps(CLAUDE, indent=2),
        f"starting\n{json.dumps(CLAUDE)}\ndone\n",
        json.dumps([{"type": "system", "subtype": "init"}, CLAUDE]),
        "\n".join(map(json.dumps, [{"type": "system", "subtype": "init", "session_id": "e16c831b"}, CLAUDE])) + "\n",
        json.dumps({**CLAUDE, "usage": None}),
        json.dumps({**CLAUDE, "modelUsage": {}}),
    ],
)
def test_claude_says_what_it_cost(text: str) -> None:
    assert read_account(text, lambda usage: None) == Account(CLAUDE_USAGE, None)


def test_sessions_are_added_and_one_session_is_counted_once() -> None:
    assert read(CLAUDE, CLAUDE).usage == CLAUDE_USAGE
    twice = read(CLAUDE, {**CLAUDE, "session_id": "other"}).usage
    assert twice == CLAUDE_USAGE + CLAUDE_USAGE


@pytest.mark.parametrize("cost", [None, "0.1", -1, True, 1e300])
def test_a_cost_that_is_none_is_not_known(cost: Any) -> None:
    usage = read({**CLAUDE, "total_cost_usd": cost}).usage
    assert usage is not None
    assert (usage.cost, usage.unpriced_calls) == (0.0, 1)
    priced = read({**CLAUDE, "total_cost_usd": cost}, price=0.5).usage
    assert priced is not None
    assert (priced.cost, priced.unpriced_calls) == (0.5, 0)


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        (
            {"is_error": True, "result": "API Error: 400 the model is on holiday"},
            "API Error: 400 the model is on holiday",
        ),
        ({"is_error": True, "result": None}, "an error"),
        ({"subtype": "error_max_turns", "result": None}, "error_max_turns"),
        (
            {"subtype": "error_during_execution", "errors": ["it broke"], "result": None},
            "error_during_execution: it broke",
        ),
        ({"is_error": False, "result": "Error: none"}, None),
    ],
)
def test_claude_says_that_it_failed(parts: dict[str, Any], error: str | None) -> None:
    account = read({**CLAUDE, **parts})
    assert (account.error, account.usage) == (error, CLAUDE_USAGE)


def test_codex_says_its_tokens() -> None:
    assert read(*CODEX) == Account(CODEX_USAGE, None)
    more = {"type": "turn.completed", "usage": {"input_tokens": 300, "output_tokens": 60}}
    usage = read(*CODEX, more, {"type": "thread.started"}, CODEX[-1], price=0.25).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.cost, usage.calls) == (420, 100, 0.5, 2)


def test_codex_says_that_it_failed() -> None:
    failed = read(
        CODEX[0], {"type": "error", "message": ON_HOLIDAY}, {"type": "turn.failed", "error": {"message": ON_HOLIDAY}}
    )
    assert failed == Account(None, "the model is on holiday")
    assert read(CODEX[0], {"type": "error", "message": "Reconnecting... 1/5"}, *CODEX[1:]).error is None
    assert read(CODEX[0], {"type": "error", "message": "gone"}).error == "gone"


def test_codex_as_it_was_says_its_tokens() -> None:
    info = {"total_token_usage": {"input_tokens": 5, "output_tokens": 2}}
    usage = read(
        {"id": "0", "msg": {"type": "token_count", "info": info}}, {"id": "0", "msg": {"type": "task_complete"}}
    ).usage
    assert usage is not None
    assert usage.total_tokens == 7


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Done.",
        '{"score": 3}',
        '{"type": "result", "result": 3}',
        '{"type": "error", "message": "mine"}',
        "{",
        "[1]",
        '"result"',
    ],
)
def test_other_output_says_nothing(text: str) -> None:
    assert read_account(text, lambda usage: 1.0) == Account(None, None)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*CLAUDE, "msg", "error", "item"]), inner, max_size=4)
    ),
    max_leaves=8,
)
_KINDS = st.sampled_from(["result", "error", "thread.started", "turn.completed", "turn.failed", "item.completed"])


@given(st.lists(st.dictionaries(st.sampled_from([*CLAUDE, "msg", "error", "message"]), _JSON) | _JSON), _KINDS)
def test_anything_may_be_printed(events: list[Any], kind: str) -> None:
    lines = [json.dumps({**event, "type": kind} if isinstance(event, dict) else event) for event in events]
    account = read_account("\n".join(lines), lambda usage: None)
    assert account.usage is None or 0 <= account.usage.cost <= 1e7


@pytest.mark.parametrize(
    ("line", "name", "model"),
    [
        ("claude -p --model opus", "claude", "opus"),
        ("/usr/bin/claude -p", "claude", None),
        ("env A=b claude --model=x", "claude", "x"),
        ("npx -y @anthropic-ai/claude-code@2.1.197 -p", "claude", None),
        ("codex exec -m gpt-5 -", "codex", "gpt-5"),
        ('npx @openai/codex exec -c model="gpt-5" -', "codex", "gpt-5"),
        ("codex exec -c model_provider=x -", "codex", None),
        ("python claude.py claude", None, None),
        ("", None, None),
    ],
)
def test_known_programs(line: str, name: str | None, model: str | None) -> None:
    program = AgentProgram.of(line.split())
    assert (program.name, program.model) == (name, model)


def test_what_is_known_of_costs_beforehand() -> None:
    def why(line: str) -> str | None:
        return AgentProgram.of(line.split()).why_cost_unknown(PriceTable())

    assert why("claude -p --output-format json") is why("claude -p --output-format=stream-json --verbose") is None
    assert why("python work.py") is why("codex exec --json --model gpt-5 -") is None
    assert "--output-format=json" in (why("claude -p") or "")
    assert "--json" in (why("codex exec -") or "")
    assert "--model" in (why("codex exec --json -") or "")
    assert "no price is known for nobodys" in (why("codex exec --json -m nobodys -") or "")
    assert AgentProgram.of(["claude", "-p", "--max-budget-usd", "0.5"]).max_cost == 0.5


def test_errors_without_a_word_are_told_as_such() -> None:
    said = '{"type": "result", "is_error": true, "errors": [[], {"message": ""}, 5, "no credit"]}'
    assert read_account(said, lambda usage: None).error == "no credit"
