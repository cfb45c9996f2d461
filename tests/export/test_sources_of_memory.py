"""What exports get of memory benchmarks: all that was said to an agent as one conversation, under the virtual clock."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.export.conversations import Conversation
from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedServer, chat_response
from tests.support.batches import run_command
from tests.support.exported import brief, conversations, exported, exported_with_report, own_keys, summed, used
from tests.support.memory_benchmarks import log_of, opened, performed, write_configuration

BEGINS = 1715936400.0
"""``memory_benchmarks.START`` in seconds since 1970."""
AGENT = """
import json, sys, time
from pathlib import Path

here = Path(__file__).parent
for line in sys.stdin:
    asked = json.loads(line)
    (here / "begun").touch()
    while asked.get("number", 0) > 5 and not (here / "go").exists():
        time.sleep(0.02)
    said = asked.get("expected_reply") or f"I heard {len(asked.get('text', ''))} marks."
    print(json.dumps({"text": said, "cost_usd": 0.5, "input_tokens": 7, "output_tokens": 3}), flush=True)
"""
SENT, FILLED, REPLIED, FILL_REPLIED = 0, 3, 4, 5
"""The numbers of events in the log."""


async def held(folder: Path, agents: str | Sequence[str] = "simulated", **options: Any) -> Path:
    """The folder of a run whose conversations have been held."""
    if not (folder / "small.yml").exists():
        write_configuration(folder)
    run = opened(folder, agents, **{"max_prompt_size": 600, **options})
    result = await performed(run)
    assert result.exit_code == 0
    return run.folder


def said_in(folder: Path, agent: str | None = None) -> list[tuple[str, str]]:
    """What the log has of messages, in order."""
    roles = {SENT: "user", FILLED: "user", REPLIED: "assistant", FILL_REPLIED: "assistant"}
    return [(roles[kind], data["message"]) for kind, _, data in log_of(folder, agent) if kind in roles]


def one(folder: Path) -> Conversation:
    (found,) = conversations(folder)
    return found


def one_of(folder: Path, label: str) -> Conversation:
    return next(each for each in conversations(folder) if each.label == label)


async def test_all_that_was_said_is_one_conversation(tmp_path: Path) -> None:
    folder = await held(tmp_path)
    found = one(folder)
    assert brief(found.turns) == said_in(folder)
    assert len(found.turns) > 20
    assert (found.label, found.agent) == ("LLMChatSession - simulated - 600",) * 2
    assert (found.model, found.stop_reason, found.simulated, found.others) == ("simulated", "answered", True, [])
    assert found.source["agent"] == "simulated"
    assert found.source["limit"] == 600
    scores = {score["name"]: score["score"] for score in found.scores}
    assert list(scores) == [test for kind, test, _ in log_of(folder) if kind == 2]  # as they ended
    assert found.score == sum(scores.values()) / len(scores)  # a test a dataset
    assert summed([found]) == used(folder)
    (row,) = exported(folder)
    assert own_keys(row) == []
    assert [message["role"] for message in row["messages"]] == ["user", "assistant"] * (len(found.turns) // 2)


async def test_messages_have_virtual_times_and_calls_real_ones(tmp_path: Path) -> None:
    folder = await held(tmp_path)
    found = one(folder)
    times = [turn.at or 0.0 for turn in found.turns]
    assert times[0] == BEGINS
    assert times == sorted(times)
    calls = [turn.call for turn in found.turns if turn.call is not None]
    assert found.started_at is not None
    assert found.finished_at is not None
    assert all(found.started_at <= call.started_at <= call.finished_at <= found.finished_at for call in calls)
    assert sum(call.usage.calls for call in calls) == found.usage.calls


async def test_nothing_is_trained_on_that_the_benchmark_gave(tmp_path: Path) -> None:
    folder = await held(tmp_path)
    found = one(folder)
    kinds = [kind for kind, _, _ in log_of(folder) if kind in (REPLIED, FILL_REPLIED)]
    replies = [turn for turn in found.turns if turn.role == "assistant"]
    assert all(turn.train == (turn.call is not None) == ("_given" not in turn.message) for turn in replies)
    assert all(turn.train for turn, kind in zip(replies, kinds, strict=True) if kind == REPLIED)
    given = [turn for turn in replies if not turn.train]
    assert given
    (row,) = exported(folder)
    assert [message["weight"] for message in row["messages"] if "weight" in message].count(0) == len(given)


async def test_an_agent_that_keeps_notes_has_its_calls_with_its_reply(tmp_path: Path) -> None:
    folder = await held(tmp_path, ["scratchpad(simulated)", "perfect"])
    notes, perfect = conversations(folder)
    assert brief(notes.turns) == said_in(folder, "ScratchpadAgent - simulated - 600")
    assert brief(perfect.turns) == said_in(folder, "PerfectAgent")
    assert {turn.role for turn in notes.turns} == {"user", "assistant"}
    calls = [turn.call.usage.calls for turn in notes.turns if turn.call is not None]
    assert max(calls) == 2  # a note, and the reply
    assert (perfect.score, perfect.simulated, perfect.model) == (1.0, True, None)
    assert notes.prompt_key == perfect.prompt_key
    assert summed([notes, perfect]) == used(folder)


async def test_what_the_judge_was_asked_are_conversations_beside(tmp_path: Path) -> None:
    write_configuration(tmp_path, ["jokes", "colours"], examples=2)
    judgements = 0

    def judge(request: RecordedRequest) -> Reply:
        nonlocal judgements
        judgements += 1
        return chat_response('{"correct": true}')

    async with ScriptedServer(judge) as server:
        folder = await held(tmp_path, "simulated", judge_model="m", judge_base_url=server.base_url)
    found = one(folder)
    assert judgements == len(found.others) > 1
    assert [other.name for other in found.others] == [f"judge {number}" for number in range(1, judgements + 1)]
    assert all([turn.role for turn in other.turns][-2:] == ["user", "assistant"] for other in found.others)
    assert {other.model for other in found.others} == {"m"}
    assert brief(found.turns) == said_in(folder)
    assert summed([found]) == used(folder)
    assert len(exported(folder, judges=True)) == 1 + judgements


async def test_agents_outside_have_no_model_but_what_they_took(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "go").touch()
    folder = await held(tmp_path, f"command:{sys.executable} {tmp_path / 'agent.py'}")
    found = one(folder)
    assert brief(found.turns) == said_in(folder)
    assert (found.model, found.simulated) == (None, False)
    replies = [turn for turn in found.turns if turn.role == "assistant"]
    assert all(turn.call is not None and turn.call.usage.cost == 0.5 for turn in replies)
    assert not any("_given" in turn.message for turn in replies)
    kinds = [kind for kind, _, _ in log_of(folder) if kind in (REPLIED, FILL_REPLIED)]
    assert [turn.train for turn in replies] == [kind == REPLIED for kind in kinds]
    assert found.usage.cost == 0.5 * len(replies)
    assert summed([found]) == used(folder)


async def test_a_log_that_does_not_fit_stops_the_export(tmp_path: Path) -> None:
    folder = await held(tmp_path)
    log = next((folder / "results").glob("*/master_log.jsonl"))
    lines = log.read_text().splitlines(keepends=True)
    changed = [line.replace("favourite colour", "worst colour") for line in lines]
    assert changed != lines
    for content, problem in (
        (changed, r"message \d+ of its conversation is not in the log"),
        (["{}\n"], "line 1: type"),
    ):
        log.write_text("".join(content))
        with pytest.raises(UserError, match=problem):
            exported(folder)
    log.unlink()
    ended = run_command(tmp_path, "export", str(folder), "--to=openai", "-o=out.jsonl")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.count("\n") == 1
    assert f"{log}: there is no such file" in ended.err
    assert not (tmp_path / "out.jsonl").exists()


async def test_a_copied_run_is_all_that_is_needed(tmp_path: Path) -> None:
    folder = await held(tmp_path)
    before = [turn.to_json() for turn in one(folder).turns]
    shutil.copytree(folder, tmp_path / "copy")
    shutil.rmtree(tmp_path / "data")
    assert [turn.to_json() for turn in one(tmp_path / "copy").turns] == before


async def test_agents_of_earlier_times_are_there_but_not_what_was_begun_anew(tmp_path: Path) -> None:
    for agent in ("perfect", "simulated", "forgetful"):
        folder = await held(tmp_path, agent)
    first = one_of(folder, "LLMChatSession - simulated - 600")
    await held(tmp_path, "simulated", restart=True)
    rows, report = exported_with_report(folder, "jsonl")
    labels = ["ForgetfulAgent", "LLMChatSession - simulated - 600", "PerfectAgent"]
    assert sorted(row["label"] for row in rows) == labels
    assert report.left_out_items == {"not in the input any more": 1}
    assert next(row["item"] for row in rows if row["label"] == first.label) > first.item


async def test_a_conversation_under_way_is_left_out(tmp_path: Path) -> None:
    folder = await held(tmp_path, "perfect")
    (tmp_path / "agent.py").write_text(AGENT)
    run = opened(tmp_path, f"command:{sys.executable} {tmp_path / 'agent.py'}", max_prompt_size=600)
    going_on = asyncio.create_task(performed(run))
    while not (tmp_path / "begun").exists():
        await asyncio.sleep(0.02)
    rows, report = exported_with_report(folder, "jsonl")
    assert [row["label"] for row in rows] == ["PerfectAgent"]
    assert report.left_out_items == {"not ended": 1}
    (tmp_path / "go").touch()
    await going_on
    assert len(exported(folder)) == 2


def test_scores_given_afterwards_are_no_conversations(tmp_path: Path) -> None:
    folder = asyncio.run(held(tmp_path))
    assert run_command(tmp_path, "memory", "rescore", str(folder), "--judge_model=simulated").code == 0
    ended = run_command(tmp_path, "export", str(folder / "scores/simulated"), "--to=openai", "-o=out.jsonl")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.endswith("runs of the workload 'memory_scores' have no conversations to export\n")
    assert ended.err.count("\n") == 1
