"""Answers of another time: replay fixtures, transcripts, sessions of Copilot."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from tests.support.eval_runs import EvalRun, perform_eval


def write(folder: Path, target: dict[str, Any], ids: tuple[str, ...] = ("a", "b"), **more: Any) -> None:
    suite = {
        "name": "my-suite",
        "targets": {"it": target},
        "tests": [{"id": name, "input": "i"} for name in ids],
        "assert": [{"type": "contains", "value": "yes"}],
        **more,
    }
    (folder / "suite.yaml").write_text(json.dumps(suite))


def fixture(test_id: str, text: str = "yes", **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "tool_calls": [{"tool": "Read", "input": {}, "duration_ms": 3}]}
    record = {"schema_version": "agentv.replay_fixture.v1", "suite": "my-suite", "test_id": test_id}
    figures = {"token_usage": {"input": 4, "output": 2}, "cost_usd": 0.5, "duration_ms": 9}
    return {**record, "source_target": "live", "output": [message], **figures, **more}


def lines(path: Path, records: list[Any]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


FIXTURES = {"provider": "replay", "fixtures": "fixtures.jsonl", "source_target": "live"}


async def replayed(folder: Path, records: list[Any], name: str = "run", **target: Any) -> EvalRun:
    lines(folder / "fixtures.jsonl", records)
    write(folder, {**FIXTURES, **target})
    return await perform_eval(folder, name)


async def test_fixtures_answer_the_tests_that_they_are_of(tmp_path: Path) -> None:
    others = [
        fixture("a", "no", source_target="other"),
        fixture("a", "no", attempt=1),
        fixture("a", "no", variant="fast"),
        fixture("a", "no", suite="other"),
        fixture("a", "no", eval_path="evals/other.yaml"),
    ]
    run = await replayed(tmp_path, [*others, fixture("a", eval_path="suite.yaml"), fixture("b", variant=None)])

    assert run.statuses() == {"a": "passed", "b": "passed"}
    record = run.record("a")
    assert (record["cost_usd"], record["duration_ms"], record["token_usage"]) == (0.5, 9, {"input": 4, "output": 2})
    assert record["trace"]["tool_names"] == ["Read"]
    assert not record.get("simulated")
    fast = await replayed(tmp_path, [*others, fixture("b", variant="fast")], "fast", variant="fast")
    assert fast.statuses() == {"a": "failed", "b": "passed"}
    other = await replayed(tmp_path, [*others, fixture("b", suite="other")], "other", suite="other")
    assert other.statuses() == {"a": "failed", "b": "passed"}


async def test_exactly_one_fixture_must_fit(tmp_path: Path) -> None:
    run = await replayed(tmp_path, [fixture("a"), fixture("a")])

    assert run.statuses() == {"a": "error", "b": "error"}
    assert "fixtures.jsonl has 2 records for test a, source_target live, suite my-suite" in run.record("a")["error"]
    assert "fixtures.jsonl has no records for test b" in run.record("b")["error"]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ("{", "fixtures.jsonl, line 1: is no JSON"),
        ("[]", "line 1: must be an object"),
        (json.dumps({**fixture("a"), "schema_version": "agentv.replay_fixture.v2"}), "line 1: schema_version: must be"),
        (json.dumps({**fixture("a"), "test_id": 3}), "line 1: test_id: must be text, not 3"),
        (json.dumps({**fixture("a"), "output": "yes"}), "line 1: output: must be a list of messages"),
    ],
)
async def test_a_file_that_is_no_fixtures_is_refused_before_anything_runs(
    tmp_path: Path, record: str, said: str
) -> None:
    (tmp_path / "fixtures.jsonl").write_text(record)
    write(tmp_path, FIXTURES)
    with pytest.raises(UserError) as caught:
        await perform_eval(tmp_path)
    assert said in str(caught.value)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({}, "needs either path, an output file, or fixtures with source_target"),
        ({"fixtures": "suite.yaml"}, "source_target is required with fixtures"),
        ({"fixtures": "none.jsonl", "source_target": "live"}, "targets.it.fixtures: there is no file"),
        (
            {"execution_traces": "x", "source_target": "live"},
            "execution_traces: is not supported; record replay fixtures",
        ),
    ],
)
async def test_what_a_replay_needs(tmp_path: Path, target: dict[str, Any], said: str) -> None:
    write(tmp_path, {"provider": "replay", **target})
    with pytest.raises(UserError) as caught:
        await perform_eval(tmp_path)
    assert said in str(caught.value)


def message(test_id: str, number: int, content: str, **more: Any) -> dict[str, Any]:
    figures = {"transcript_duration_ms": 7, "transcript_token_usage": {"input": 3, "output": 1}}
    return {"test_id": test_id, "message_index": number, "role": "assistant", "content": content, **figures, **more}


async def test_a_transcript_answers_by_id_or_in_order(tmp_path: Path) -> None:
    path = tmp_path / "sessions.jsonl"
    write(tmp_path, {"provider": "transcript", "path": "sessions.jsonl"})
    lines(path, [message("b", 1, "yes"), message("b", 0, "first"), message("a", 0, "no")])
    run = await perform_eval(tmp_path)
    assert run.statuses() == {"a": "failed", "b": "passed"}
    assert (run.record("b")["duration_ms"], run.record("b")["token_usage"]) == (7, {"input": 3, "output": 1})
    lines(path, [message("session 1", 0, "no"), message("session 2", 0, "yes")])
    assert (await perform_eval(tmp_path, "ordered")).statuses() == {"a": "failed", "b": "passed"}
    assert (await perform_eval(tmp_path, "given", from_output=str(path))).statuses() == {"a": "failed", "b": "passed"}
    lines(path, [message("session 1", 0, "no")])
    few = await perform_eval(tmp_path, "few")
    assert few.statuses() == {"a": "error", "b": "error"}
    assert "has 1 sessions for 2 tests, none of which has a test's id" in few.record("a")["error"]
    lines(path, [{"test_id": "a", "role": "user"}])
    with pytest.raises(UserError, match=r"sessions\.jsonl, line 1: message_index: must be a whole number"):
        await perform_eval(tmp_path, "wrong")


async def test_the_newest_session_of_copilot(tmp_path: Path) -> None:
    for number, (name, text, cwd) in enumerate((("old", "no", "/a"), ("new", "yes", "/a"), ("other", "no", "/b"))):
        folder = tmp_path / "sessions" / name
        folder.mkdir(parents=True)
        (folder / "workspace.yaml").write_text(f"cwd: {cwd}\n")
        lines(folder / "events.jsonl", [{"type": "assistant.message", "data": {"content": text}}])
        os.utime(folder / "events.jsonl", (number, number))
    target = {"provider": "copilot-log", "session_state_dir": "sessions"}
    write(tmp_path, {**target, "discover": "latest", "cwd": "/a"})
    assert (await perform_eval(tmp_path)).statuses() == {"a": "passed", "b": "passed"}
    write(tmp_path, {**target, "session_id": "old"})
    assert (await perform_eval(tmp_path, "old")).statuses() == {"a": "failed", "b": "failed"}
    write(tmp_path, {**target, "session_id": "none"})
    none = await perform_eval(tmp_path, "none")
    assert none.statuses() == {"a": "error", "b": "error"}
    assert "events.jsonl can't be read: No such file or directory" in none.record("a")["error"]
    write(tmp_path, {**target, "session_id": "../old"})
    with pytest.raises(UserError, match="session_id: must be the name of a folder"):
        await perform_eval(tmp_path, "outside")
