"""What a session leaves: the original's files, key for key, and the same of published logs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from manyhands.workloads.memory.conversation.definitions import Evaluation, Exchange, Message
from manyhands.workloads.memory.conversation.events import RESPONSES, SENDS, Event, EventType
from manyhands.workloads.memory.conversation.filler import random_state, read_wording
from manyhands.workloads.memory.conversation.schedule import EndedTest, ScheduledTest
from manyhands.workloads.memory.datasets.registry import class_named, made_of
from manyhands.workloads.memory.results.files import result_of
from tests.memory.replay.session import PublishedSession, read_session
from tests.support.goodai import published
from tests.support.memory_benchmarks import opened, performed, write_configuration

PUBLISHED = published() / "tests"
KEYS = [
    "task_log",
    "actual_responses",
    "score",
    "max_score",
    "reasoning",
    "tokens",
    "characters",
    "full_log",
    "expected_responses",
    "needles",
]
EXACT = ("task_log", "actual_responses", "characters", "full_log", "expected_responses", "needles")
"""What follows from log and definitions alone."""


def conversation(events: list[Event]) -> list[Message]:
    found, sent = [], None
    for event in events:
        if event.type in SENDS:
            sent = event
        elif event.type in RESPONSES and sent is not None:
            texts = (sent.test_id, sent.message, event.message, sent.is_question)
            found.append(Message(*texts, sent.timestamp, event.timestamp))
    return found


def ended_tests(session: PublishedSession) -> Iterator[EndedTest]:
    """The tests of a published log that ended, with all that can be known of them."""
    log = list(session.log)
    for definition in session.definitions:
        ends = [
            at for at, event in enumerate(log) if event.type is EventType.END and event.test_id == definition.unique_id
        ]
        if not ends:
            continue
        messages = conversation(log[: ends[0]])
        own = [at for at, message in enumerate(messages) if message.test_id == definition.unique_id]
        part = messages[own[0] :]
        characters = sum(len(message.text) + len(message.reply) for message in part)
        yield EndedTest(
            ScheduledTest(definition, made_of(class_named(definition.dataset), None, "published")),
            Evaluation(0.0, 1.0),
            Exchange(definition, tuple(messages[at] for at in own)),
            own[0],
            len(messages),
            ends[0],
            0,
            characters,
        )


def folders() -> list[Path]:
    return sorted(PUBLISHED.glob("Benchmark 3*/results/*"))


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: f"{folder.parent.parent.name}-{folder.name}")
def test_published_result_files_are_made_of_their_log(folder: Path) -> None:
    """All of their texts carry the local time of whoever made them, one or two hours beside UTC."""
    session = read_session(folder)
    resets = read_wording(PUBLISHED.parent / "verification/literals.json").reset_messages
    differing: Counter[str] = Counter()
    checked = 0
    for ended in ended_tests(session):
        definition = ended.test.definition
        result = json.loads((folder / definition.dataset / f"{definition.example_id}_0.json").read_text())
        zones = [timezone(timedelta(hours=hours)) for hours in (1, 2)]
        reset = resets.get(definition.dataset, "")
        made = [dict[str, Any](result_of(ended, session.log[: ended.ended], reset=reset, zone=zone)) for zone in zones]
        assert [key for key in result if key in KEYS] == KEYS
        checked += 1
        for key in EXACT:
            if not any(each[key] == result[key] for each in made):
                differing[f"{definition.dataset} {key}"] += 1
    assert checked >= 25
    # Not in the definitions: what a dynamic test expects, and keywords that were added after the session.
    del differing["Restaurant expected_responses"], differing["Spy Meeting expected_responses"]
    assert not differing


async def test_our_files_have_the_originals_shape(tmp_path: Path) -> None:
    write_configuration(tmp_path, ("colours", "prospective_memory", "restaurant", "jokes"), examples=2)
    run = opened(tmp_path, "perfect", judge_model="simulated")
    assert (await performed(run)).exit_code == 0
    folder = run.folder / "results/PerfectAgent"
    events = [json.loads(line) for line in (folder / "master_log.jsonl").read_text().splitlines()]
    assert {tuple(event) for event in events} == {("type", "timestamp", "test_id", "data")}
    stats = json.loads((folder / "runstats.json").read_text())
    assert list(stats) == [
        "total_tokens",
        "agent_tokens",
        "agent_costs_usd",
        "managing_costs_usd",
        "duration",
        "rnd_state",
    ]
    assert len(random_state(stats["rnd_state"])[1]) == 625
    assert stats["total_tokens"] > stats["agent_tokens"] > 0
    results = {path.relative_to(folder).as_posix(): json.loads(path.read_text()) for path in folder.glob("*/*_0.json")}
    assert len(results) == 8
    for name, result in results.items():
        assert list(result)[: len(KEYS)] == KEYS, name
        assert (result["score"], result["max_score"]) == (1.0, 1), (name, result["reasoning"])
        check(name, result, events)
    about = json.loads((folder / "session.json").read_text())
    assert about["simulated"] is True
    assert about["judge"] == "rules (simulated)"
    assert about["tokens_are_exact"] is False
    assert {path.name for path in run.folder.iterdir()} >= {"definitions", "results", "run.db", "summary.json"}


def check(name: str, result: dict[str, Any], events: list[dict[str, Any]]) -> None:
    test_id = name.replace("/", " - ").removesuffix("_0.json")
    own = [event["data"]["message"] for event in events if event["test_id"] == test_id and event["type"] in (0, 4)]
    said = [line.partition("): ")[2] for line in result["task_log"]]
    if name.startswith("Prospective"):
        assert set(own) < set(said)  # what others said meanwhile counts, too
    else:
        assert said == own
    assert len(result["full_log"]) >= len(result["task_log"])
    questions = [e for e in events if e["test_id"] == test_id and e["type"] == 4 and e["data"]["is_question"]]
    assert result["actual_responses"] == [event["data"]["message"] for event in questions]


async def test_half_characters_become_whole_ones(tmp_path: Path) -> None:
    """Halves of surrogate pairs, which no file could hold."""
    write_configuration(tmp_path, ["colours"])
    run = opened(tmp_path, f"python:{__name__}:Half")
    assert (await performed(run)).exit_code == 0
    result = json.loads((run.folder / "results/Half/Colours/0_0.json").read_text())
    assert result["actual_responses"] == ["half a \N{REPLACEMENT CHARACTER}"]


class Half:
    def reply(self, text: str) -> str:
        return "half a \ud83d"


async def test_control_characters_and_markup_are_only_text(tmp_path: Path) -> None:
    """What an agent says can't break a line of the log, nor any file."""
    write_configuration(tmp_path, ["colours"])
    run = opened(tmp_path, f"python:{__name__}:Nasty")
    assert (await performed(run)).exit_code == 0
    folder = run.folder / "results/Nasty"
    events = [json.loads(line) for line in (folder / "master_log.jsonl").read_text().splitlines()]
    assert {event["data"]["message"] for event in events if event["type"] == 4} == {Nasty.text}
    assert Nasty.text in json.loads((folder / "Colours/0_0.json").read_text())["actual_responses"]


class Nasty:
    text = "<script>alert(1)</script>\r\n\x1b[31m\u2028\u2029\x00[/bold] {}\N{PILE OF POO}\n\n"

    def reply(self, text: str) -> str:
        return self.text
