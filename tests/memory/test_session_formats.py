"""The files of a session: master log, definitions, run statistics, wording, token lengths."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.workloads.memory.conversation.definitions import Definition, Wait, default_waits
from manyhands.workloads.memory.conversation.events import (
    MESSAGES,
    Event,
    EventType,
    format_event,
    parse_event,
    read_master_log,
    readable,
)
from manyhands.workloads.memory.conversation.filler import default_wording, read_wording
from manyhands.workloads.memory.conversation.schedule import Counters
from manyhands.workloads.memory.conversation.tokens import counter_named, estimate
from manyhands.workloads.memory.datasets.benchmark import (
    definition_path,
    read_definition,
    read_definitions,
    write_definitions,
)
from manyhands.workloads.memory.datasets.registry import reset_messages
from manyhands.workloads.memory.results.files import read_runstats, runstats_of
from tests.memory.replay.session import counted_before, read_token_lengths

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
TIMES = st.floats(min_value=0, max_value=4e9)


# --- Master log


@st.composite
def events(draw: st.DrawFn) -> Event:
    kind = draw(st.sampled_from(list(EventType)))
    data: dict[str, Any] = {}
    if kind in MESSAGES:
        data = {"message": draw(TEXTS), "is_question": draw(st.booleans())}
    elif kind is EventType.WAIT:
        data = {"tokens": draw(st.integers(0, 10**6)), "time": draw(st.integers(0, 10**6))}
    elif kind is EventType.LLM_CALL:
        data = {"response": draw(TEXTS)}
    return Event(kind, draw(TIMES), draw(TEXTS), data)


@given(events())
def test_an_event_is_read_as_it_was_written(event: Event) -> None:
    line = format_event(event)
    assert "\n" not in line
    assert line.isascii()
    assert parse_event(line, "here") == event


def test_a_log_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "master_log.jsonl"
    lines = [format_event(Event(EventType.BEGIN, 1.5, "A - 0", {"tokens": 7})), "", '{"type": 2}']
    path.write_text("\n".join(lines[:2]), encoding="utf-8")
    assert [event.data for event in read_master_log(path)] == [{"tokens": 7}]
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(UserError, match=r"master_log\.jsonl, line 3: timestamp: not a number"):
        read_master_log(path)
    with pytest.raises(UserError, match="no such file"):
        read_master_log(tmp_path / "other.jsonl")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"type": 11}, "type: not the number of an event"),
        ({"type": True}, "type: not the number of an event"),
        ({"type": "0"}, "type: not the number of an event"),
        ({"timestamp": None}, "timestamp: not a number"),
        ({"timestamp": 1e30}, "timestamp: not a time"),
        ({"test_id": 3}, "test_id: not a text"),
        ({"data": []}, "data: not an object"),
        ({"data": {}}, "data.message: not a text"),
        ({"type": 6, "data": {"tokens": "1", "time": 0}}, "data.tokens: not a whole number"),
        ({"type": 6, "data": {"tokens": 1}}, "data.time: not a number"),
        ({"type": 8, "data": {}}, "data.response: not a text"),
        ({"type": 1, "data": {"tokens": None}}, "data.tokens: not a whole number"),
    ],
)
def test_a_wrong_event_names_its_field(change: dict[str, Any], problem: str) -> None:
    event = {"type": 0, "timestamp": 1.0, "test_id": "A - 0", "data": {"message": "", "is_question": False}}
    with pytest.raises(UserError) as caught:
        parse_event(json.dumps({**event, **change}), "log, line 1")
    assert str(caught.value).startswith(f"log, line 1: {problem}")


@pytest.mark.parametrize("line", ["", "[]", "{", "null"])
def test_what_is_no_object_is_no_event(line: str) -> None:
    with pytest.raises(UserError, match="not a JSON object"):
        parse_event(line, "here")


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        (EventType.SEND_MESSAGE, {"message": "Hi"}, "Test ({}): Hi"),
        (EventType.SEND_FILL, {"message": "Hi"}, "System ({}): Hi"),
        (EventType.RESPONSE_MESSAGE, {"message": "Hi"}, "Agent ({}): Hi"),
        (EventType.BEGIN, {"tokens": 3}, "SYSTEM ({}): Test 'A - 0' BEGINS"),
        (EventType.END, {}, "SYSTEM ({}): Test 'A - 0' ENDS"),
        (
            EventType.WAIT,
            {"tokens": 201, "time": 10500},
            "SYSTEM ({}): Test 'A - 0' WAITING for 201 TOKENS, 2:55:00 TIME.",
        ),
        (EventType.WAIT, {"tokens": 0, "time": 60}, "SYSTEM ({}): Test 'A - 0' WAITING for 0:01:00 TIME."),
        (EventType.WAIT, {"tokens": 0, "time": 0}, "SYSTEM ({}): Test 'A - 0' WAITING for ."),
        (EventType.LLM_CALL, {"response": "yes"}, "SYSTEM ({}): Test 'A - 0' CALLS an LLM. Response:\nyes"),
        (EventType.REGISTER_CALLBACK, {}, "SYSTEM ({}): Test 'A - 0' REGISTERS a callback."),
        (EventType.SUITE_RESET, {}, "SYSTEM ({}):  Suite was RESET"),
    ],
)
def test_events_for_people(kind: EventType, data: dict[str, Any], text: str) -> None:
    moment = datetime(2024, 5, 22, 11, 15, 53, 869467, UTC)
    event = Event(kind, moment.timestamp(), "A - 0", data)
    assert readable(event, UTC) == text.format("2024-05-22 11:15:53.869467")


# --- Definitions

WAITS = st.builds(
    Wait, st.integers(0, 99), st.integers(0, 9999).map(float), st.integers(0, 9).map(lambda ten: ten * 10.0)
)


@st.composite
def definitions(draw: st.DrawFn) -> Definition:
    lines = draw(st.integers(0, 4))
    temporal = lines > 1 and draw(st.booleans())
    return Definition(
        dataset="Some Tests",
        example_id=f"book_{draw(st.integers(0, 9))}",
        script=tuple(draw(TEXTS) for _ in range(lines - temporal)),
        is_question=tuple(draw(st.booleans()) for _ in range(lines)),
        waits=tuple(draw(WAITS) for _ in range(lines)),
        expected_responses=draw(st.lists(TEXTS, max_size=2)),
        can_be_interleaved=draw(st.booleans()),
        is_temporal=temporal,
        uses_callback=draw(st.booleans()),
    )


@given(definitions())
def test_a_definition_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, definition: Definition
) -> None:
    folder = tmp_path_factory.mktemp("definitions")
    write_definitions(folder, [definition])
    assert read_definitions(folder) == [definition]


def test_the_second_versions_waits_are_read(tmp_path: Path) -> None:
    waits = [
        {"tokens": 1000, "time": 11700, "percentage_finished": 0.0},
        {"tokens": 0, "time": 0, "percentage_finished": 90},
    ]
    found = read_definition(write(tmp_path, {"waits": waits}))
    assert found.waits == (Wait(1000, 11700.0), Wait(percentage=90.0))
    assert (found.dataset, found.example_id, found.can_be_interleaved) == ("Colours", "0", True)


def test_a_script_without_waits_is_spread(tmp_path: Path) -> None:
    assert read_definition(write(tmp_path, {"waits": []})).waits == (Wait(percentage=90.0), Wait())
    assert [wait.percentage for wait in default_waits(4)] == [30.0, 60.0, 90.0, 0.0]
    assert default_waits(1) == [Wait()]
    assert default_waits(0) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"script": "Red."}, "script: not a list"),
        ({"script": ["Red.", 3]}, r"script\[1\]: not a text"),
        ({"is_question": [False]}, "is_question: has 1 entries for 2 lines"),
        ({"waits": [{}]}, "waits: has 1 entries, not one for each of 2 lines"),
        ({"waits": [{}, {"time": -1}]}, r"waits\[1\].time: not a number of at least 0"),
        ({"waits": None, "time_jumps": [0.0]}, "waits: not a list"),
        ({"is_temporal": 1}, "is_temporal: not true or false"),
    ],
)
def test_a_wrong_definition_names_its_field(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=rf"0\.def\.json: {problem}"):
        read_definition(write(tmp_path, change))


def test_the_first_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "Names" / "0.def.json"
    path.parent.mkdir()
    path.write_text('{"script": [], "time_jumps": [0.0], "token_spacings": [0]}', encoding="utf-8")
    with pytest.raises(UserError, match="first version can't be used"):
        read_definition(path)


def write(folder: Path, change: dict[str, Any]) -> Path:
    path = definition_path(folder, Definition("Colours", "0"))
    path.parent.mkdir()
    content = {
        "script": ["Red.", "Which?"],
        "is_question": [False, True],
        "waits": [{}, {}],
        "expected_responses": ["Red"],
    }
    path.write_text(json.dumps({**content, **change}), encoding="utf-8")
    return path


# --- Run statistics


def test_run_statistics_restore_the_generator(tmp_path: Path) -> None:
    version, numbers, gauss = Random(3).getstate()
    stats = runstats_of(Counters(100, 20, 1.5, [version, list(numbers), gauss]), 0.25, 0.5)
    path = tmp_path / "runstats.json"
    path.write_text(json.dumps(asdict(stats)), encoding="utf-8")
    found = read_runstats(path)
    assert (found.total_tokens, found.agent_tokens, found.duration) == (100, 20, 1.5)
    assert (found.agent_costs_usd, found.managing_costs_usd) == (0.25, 0.5)
    assert found.counters.filler_state == [version, numbers, gauss]


def test_older_run_statistics_hold_less(tmp_path: Path) -> None:
    path = tmp_path / "runstats.json"
    older = {
        "total_tokens": 9,
        "agent_costs_usd": 0,
        "managing_costs_usd": 0.1,
        "tokens_per_second": 1,
        "duration": 2.0,
    }
    path.write_text(json.dumps(older), encoding="utf-8")
    found = read_runstats(path)
    assert (found.agent_tokens, found.rnd_state) == (None, None)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[]", "not a JSON object"),
        ("{", "not JSON"),
        ('{"total_tokens": "9"}', "total_tokens: not a number"),
        (
            '{"total_tokens": 9, "agent_costs_usd": 0, "managing_costs_usd": 0, "duration": 0, "rnd_state": [1]}',
            "rnd_state: not the state",
        ),
    ],
)
def test_wrong_run_statistics_name_their_field(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "runstats.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=rf"runstats\.json: {problem}"):
        read_runstats(path)


# --- Wording


def test_our_wording_is_whole() -> None:
    wording = default_wording(reset_messages())
    assert wording.filler_line("Why?", "Because.").endswith("Because.\n")
    assert "Why?" in wording.filler_line("Why?", "Because.")
    assert wording.filler_preamble.endswith("\n")
    assert all(wording.reset_messages.values())


def test_a_facts_own_text_is_left_alone() -> None:
    assert "<AnswerValue>" in default_wording(reset_messages()).filler_line("What is <AnswerValue>?", "a mark")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"intro_message": ""}, "intro_message: not a text"),
        ({"filler_line_format": "Q: <Question>"}, "filler_line_format: must hold"),
        ({"filler_line_format": "<AnswerValue> <Question>"}, "filler_line_format: must hold"),
        ({"reset_messages": []}, "reset_messages: not an object"),
        ({"reset_messages": {"Names": 1}}, "reset_messages.Names: not a text"),
    ],
)
def test_a_wrong_wording_names_its_field(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    content = {
        "intro_message": "Hello.",
        "filler_preamble": "Answers:\n",
        "filler_line_format": "Q: <Question>, A: <AnswerValue>\\n",
        "reset_messages": {},
        "source": "of no concern",
    }
    path = tmp_path / "wording.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    assert read_wording(path).filler_line("a", "b") == "Q: a, A: b\n"
    path.write_text(json.dumps({**content, **change}), encoding="utf-8")
    with pytest.raises(UserError, match=rf"wording\.json: {problem}"):
        read_wording(path)


# --- Tokens


@given(st.text())
def test_an_estimate_is_positive_and_at_most_the_bytes(text: str) -> None:
    count = estimate()
    assert (count(text) == 0) is (text == "")
    assert count(text) <= len(text.encode("utf-8", "surrogatepass"))


def test_an_estimate_says_that_it_is_one() -> None:
    assert (estimate().name, estimate().exact) == ("estimate", False)


def test_lengths_that_were_counted_before_are_looked_up(tmp_path: Path) -> None:
    path = tmp_path / "lengths.json"
    path.write_text('{"run/agent": {"0": 3, "4": 7}}', encoding="utf-8")
    lengths = read_token_lengths(path)["run/agent"]
    count = counted_before([(0, "a"), (4, "b"), (5, "one two")], lengths, "a file")
    assert (count("a"), count("b"), count("one two"), count(""), count.name) == (3, 7, 2, 0, "a file")


@pytest.mark.parametrize(
    "content", ["[]", '{"run": []}', '{"run": {"x": 1}}', '{"run": {"1": -1}}', '{"run": {"1": 1.5}}']
)
def test_wrong_lengths_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "lengths.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"lengths\.json"):
        read_token_lengths(path)


def test_an_unknown_tokenizer_is_refused() -> None:
    assert counter_named("estimate").name == "estimate"
    with pytest.raises(UserError, match="'cl200k': give auto, cl100k, estimate"):
        counter_named("cl200k")
