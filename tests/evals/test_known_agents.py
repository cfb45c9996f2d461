"""Agents' programs as targets: their commands, and what is read of the events that they print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.agents.program_messages import read_launch
from manyhands.core.errors import UserError
from tests.support.eval_runs import perform_eval

CLAUDE: list[Any] = [
    {"type": "system", "subtype": "init", "session_id": "s"},
    {
        "type": "assistant",
        "message": {
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "1", "name": "Read", "input": {"file_path": "a.py"}},
            ]
        },
    },
    {
        "type": "user",
        "message": {
            "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "x = 1"}]}]
        },
    },
    {"type": "assistant", "message": {"content": [{"type": "text", "text": "It is 1."}]}},
    {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "num_turns": 2,
        "duration_ms": 1200,
        "result": "It is 1.",
        "total_cost_usd": 0.02,
        "usage": {"input_tokens": 100, "cache_read_input_tokens": 20, "output_tokens": 30},
    },
]
CODEX: list[Any] = [
    {"type": "thread.started", "thread_id": "t"},
    {"type": "item.completed", "item": {"id": "i1", "type": "reasoning", "text": "hm"}},
    {
        "type": "item.completed",
        "item": {"id": "i2", "type": "command_execution", "command": "ls", "aggregated_output": "a.py\n"},
    },
    {
        "type": "item.completed",
        "item": {"id": "i3", "type": "file_change", "changes": [{"path": "a.py", "kind": "update"}]},
    },
    {
        "type": "item.completed",
        "item": {"id": "i4", "type": "mcp_tool_call", "server": "s", "tool": "t", "arguments": {"q": 1}, "result": "r"},
    },
    {"type": "item.completed", "item": {"id": "i5", "type": "agent_message", "text": "Done."}},
    {"type": "turn.completed", "usage": {"input_tokens": 1000, "cached_input_tokens": 200, "output_tokens": 50}},
]
PI: list[Any] = [
    {"type": "tool_execution_start", "toolCallId": "1", "toolName": "read", "args": {"path": "a.py"}},
    {"type": "tool_execution_end", "toolCallId": "1", "result": {"content": [{"type": "text", "text": "x = 1"}]}},
    {
        "type": "agent_end",
        "messages": [
            {"role": "user", "content": "?"},
            {
                "role": "assistant",
                "content": [{"type": "toolCall", "id": "1", "name": "read", "arguments": {"path": "a.py"}}],
                "usage": {"input": 10, "output": 5, "cacheRead": 2, "cost": {"total": 0.01}},
            },
            {"role": "toolResult", "toolCallId": "1", "content": [{"type": "text", "text": "x = 1"}]},
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "It is 1."}],
                "usage": {"input": 20, "output": 5, "cost": {"total": 0.02}},
            },
        ],
    },
]
COPILOT: list[Any] = [
    {"type": "session.start", "timestamp": "2026-01-01T00:00:00.000Z", "data": {"sessionId": "s"}},
    {"type": "user.message", "data": {"content": "?"}},
    {
        "type": "assistant.message",
        "data": {
            "content": "I look.",
            "toolRequests": [{"toolCallId": "1", "name": "readFile", "arguments": {"path": "a.py"}}],
        },
    },
    {
        "type": "tool.execution_start",
        "data": {"toolCallId": "1", "toolName": "readFile", "arguments": {"path": "a.py"}},
    },
    {"type": "tool.execution_complete", "data": {"toolCallId": "1", "result": "x = 1"}},
    {"type": "skill.invoked", "data": {"name": "csv"}},
    {"type": "assistant.message", "data": {"content": "It is 1."}},
    {
        "type": "session.shutdown",
        "timestamp": "2026-01-01T00:00:02.500Z",
        "data": {"modelMetrics": {"m": {"usage": {"inputTokens": 40, "outputTokens": 4}}}},
    },
]


def printed(events: list[dict[str, Any]], before: str = "") -> str:
    return before + "".join(json.dumps(event) + "\n" for event in events)


def read(events: list[dict[str, Any]]) -> dict[str, Any]:
    record = read_launch(printed(events, "starting up\n"))
    assert record is not None
    return record


def calls(record: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    return [
        (call["tool"], call["input"], call.get("output"))
        for message in record["output"]
        for call in message.get("tool_calls", ())
    ]


def test_claude() -> None:
    record = read(CLAUDE)
    assert [message.get("content") for message in record["output"]] == ["I look.", "It is 1."]
    assert calls(record) == [("Read", {"file_path": "a.py"}, "x = 1")]
    assert record["token_usage"] == {"input": 120, "output": 30, "cached": 20}
    assert (record["cost_usd"], record["duration_ms"]) == (0.02, 1200)
    assert "error" not in record


def test_claude_with_its_answer_alone_and_with_an_error() -> None:
    assert read(CLAUDE[-1:])["output"] == [{"role": "assistant", "content": "It is 1."}]
    failed = {
        **CLAUDE[-1],
        "is_error": True,
        "subtype": "error_max_turns",
        "result": None,
        "errors": ["too many turns"],
    }
    assert read([*CLAUDE[:-1], failed])["error"] == "error_max_turns: too many turns"


def test_codex() -> None:
    record = read(CODEX)
    assert record["output"][-1] == {"role": "assistant", "content": "Done."}
    assert calls(record) == [
        ("Bash", {"command": "ls"}, "a.py\n"),
        ("Edit", [{"path": "a.py", "kind": "update"}], None),
        ("Skill", {"q": 1, "skill": "s/t"}, "r"),
    ]
    assert record["token_usage"] == {"input": 1000, "output": 50, "cached": 200}
    assert "cost_usd" not in record
    priced = read_launch(printed(CODEX), lambda usage: usage.input_tokens / 1000)
    assert priced is not None
    assert priced["cost_usd"] == 1.0
    failed = {"type": "turn.failed", "error": {"message": "no quota"}}
    assert read([*CODEX[:-1], failed])["error"] == "no quota"


def test_pi() -> None:
    record = read(PI)
    assert calls(record) == [("Read", {"path": "a.py", "file_path": "a.py"}, "x = 1")]
    assert record["output"][-1] == {"role": "assistant", "content": "It is 1."}
    assert record["token_usage"] == {"input": 30, "output": 10, "cached": 2}
    assert record["cost_usd"] == pytest.approx(0.03)
    silent = [*PI[:2], {"type": "agent_end", "messages": PI[2]["messages"][3:]}]
    assert [tool for tool, _, _ in calls(read(silent))] == ["Read"]  # named only when it was executed


def test_copilot() -> None:
    record = read(COPILOT)
    assert calls(record) == [
        ("Read", {"path": "a.py", "file_path": "a.py"}, "x = 1"),
        ("Skill", {"skill": "csv"}, None),
    ]
    assert [message["role"] for message in record["output"]] == ["user", "assistant", "assistant", "assistant"]
    assert (record["token_usage"], record["duration_ms"]) == ({"input": 40, "output": 4}, 2500)


def test_what_is_no_event_is_not_read() -> None:
    assert read_launch("just an answer\n") is None
    assert read_launch('{"score": 1}') is None
    assert read_launch("") is None


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_EVENTS = st.sampled_from([*CLAUDE, *CODEX, *PI, *COPILOT])


@given(
    st.lists(
        st.tuples(_EVENTS, st.sampled_from(["type", "message", "item", "data", "messages", "usage"]), _JSON), max_size=5
    )
)
def test_anything_may_be_printed(events: list[tuple[dict[str, Any], str, Any]]) -> None:
    record = read_launch(printed([{**event, key: value} if key in event else event for event, key, value in events]))
    if record is not None:
        for message in record["output"]:
            assert message["role"] in ("user", "assistant")
            assert all(isinstance(call["tool"], str) for call in message.get("tool_calls", ()))


# --- As targets


NAMES = ("OPENROUTER_API_KEY", "GH_TOKEN", "COPILOT_PROVIDER_API_KEY", "COPILOT_PROVIDER_BASE_URL", "CLAUDECODE")


def program(folder: Path, name: str, events: list[dict[str, Any]], code: int = 0) -> str:
    """A program that writes down its arguments, its prompt and some of its environment, and prints events."""
    path = folder / name
    (folder / f"{name}.jsonl").write_text(printed(events))
    path.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"names = {NAMES}\n"
        "keys = {name: os.environ[name] for name in names if name in os.environ}\n"
        "seen = {'words': sys.argv[1:], 'prompt': sys.stdin.read(), 'keys': keys}\n"
        f"json.dump(seen, open({str(folder / name)!r} + '.seen', 'w'))\n"
        f"print(open({str(folder / name)!r} + '.jsonl').read(), end='')\n"
        f"print('quite an effort', file=sys.stderr)\nsys.exit({code})\n"
    )
    path.chmod(0o755)
    return str(path)


def seen(folder: Path, name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / f"{name}.seen").read_text())
    return value


async def test_agents_are_graded_by_what_they_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "key-0123456789abcdef")
    targets: dict[str, dict[str, Any]] = {
        "claude": {
            "provider": "claude-cli",
            "system_prompt": "Be brief.",
            "max_turns": 4,
            "max_budget_usd": 1.5,
            "bypass_permissions": True,
            "stream_log": "raw",
        },
        "careful": {"provider": "claude-sdk", "log_dir": "logs"},
        "codex": {"provider": "codex", "model": "gpt-5", "model_reasoning_effort": "low", "log_format": "json"},
        "pi": {
            "provider": "pi-coding-agent",
            "subprovider": "openrouter",
            "api_key": "${{ MY_KEY }}",
            "thinking": "low",
            "model": "m",
        },
        "copilot": {
            "provider": "copilot-sdk",
            "byok": {"type": "openai", "base_url": "http://there", "api_key": "${{ MY_KEY }}"},
        },
    }
    events = {"claude": CLAUDE, "careful": CLAUDE, "codex": CODEX, "pi": PI, "copilot": COPILOT}
    for name, target in targets.items():
        target["executable"] = program(tmp_path, name, events[name])
    suite = {
        "targets": targets,
        "execution": {"targets": list(targets)},
        "tests": [{"id": "a", "input": "Say it."}],
        "assert": [
            {"type": "tool_trajectory", "mode": "any_order", "minimums": {"Read": 1}},
            {"type": "token_usage", "max_total": 5000},
        ],
    }
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    run = await perform_eval(tmp_path)

    statuses = {each["target"]: each["scores"][0]["score"] for each in run.records()}
    assert statuses == {"claude": 1, "careful": 1, "codex": 0, "pi": 1, "copilot": 1}
    assert run.record("a", "claude")["answer"] == "It is 1."
    assert run.record("a", "claude")["cost_usd"] == 0.02
    assert run.record("a", "codex")["cost_usd"] > 0  # of the price table, as its model is named
    claude = seen(tmp_path, "claude")
    assert claude["prompt"].startswith("Be brief.\n\n")
    assert {"--dangerously-skip-permissions", "--max-turns", "4", "--max-budget-usd", "1.5"} <= set(claude["words"])
    assert claude["keys"] == {"CLAUDECODE": ""}
    assert "--dangerously-skip-permissions" not in seen(tmp_path, "careful")["words"]
    assert "model_reasoning_effort=low" in seen(tmp_path, "codex")["words"]
    pi = seen(tmp_path, "pi")
    assert pi["words"][-6:] == ["--provider", "openrouter", "--thinking", "low", "--model", "m"]
    assert pi["keys"] == {"OPENROUTER_API_KEY": "key-0123456789abcdef"}
    assert seen(tmp_path, "copilot")["keys"] == {
        "COPILOT_PROVIDER_BASE_URL": "http://there",
        "COPILOT_PROVIDER_API_KEY": "key-0123456789abcdef",
    }
    (log,) = (tmp_path / "logs").iterdir()
    assert log.name.startswith("a-1-")
    assert '"It is 1."' in log.read_text()
    assert "quite an effort" in log.read_text()
    assert [text for text in run.said if "no effect" in text] == [
        f"{tmp_path}/suite.yaml: have no effect here: targets.claude.stream_log (line 1), targets.codex.log_format (line 1)"
    ]
    for path in (tmp_path / "data").rglob("*"):
        assert not path.is_file() or b"key-0123456789abcdef" not in path.read_bytes()


async def test_an_agent_that_fails_says_why(tmp_path: Path) -> None:
    failed = {
        **CLAUDE[-1],
        "is_error": True,
        "subtype": "error_during_execution",
        "result": "Credit balance is too low",
    }
    targets: dict[str, dict[str, Any]] = {
        "ended": {"provider": "claude", "executable": program(tmp_path, "ended", [failed], code=1)},
        "said": {"provider": "claude", "executable": program(tmp_path, "said", [failed])},
    }
    suite = {"targets": targets, "execution": {"targets": list(targets)}, "tests": [{"id": "a", "input": "i"}]}
    suite["assert"] = [{"type": "contains", "value": "x"}]
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    run = await perform_eval(tmp_path, max_retries=0)

    assert {each["target"]: each["status"] for each in run.records()} == {"ended": "error", "said": "error"}
    for each in run.records():
        assert "error_during_execution: Credit balance is too low" in each["error"]


async def test_a_variant_of_claude_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    suite = {
        "targets": {"mine": {"provider": "cc-mirror", "variant": "${{ NO_SUCH_VARIABLE }}"}},
        "tests": [{"id": "a", "input": "i"}],
        "assert": [{"type": "contains", "value": "It is 1."}],
    }
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    with pytest.raises(UserError, match=r"targets.mine.*variant.json names no program \(binaryPath\)"):
        await perform_eval(tmp_path)
    folder = tmp_path / ".cc-mirror" / "mine"
    folder.mkdir(parents=True)
    (folder / "variant.json").write_text(json.dumps({"binaryPath": program(tmp_path, "variant", CLAUDE)}))
    assert (await perform_eval(tmp_path)).statuses() == {"a": "passed"}
