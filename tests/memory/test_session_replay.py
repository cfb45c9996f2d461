"""Replaying sessions: what was held and interrupted in any way is found to be exact; what was changed afterwards is found to differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.workloads.memory.conversation.definitions import Dataset, Wait
from manyhands.workloads.memory.conversation.events import EventType
from manyhands.workloads.memory.conversation.filler import Fact, Wording
from manyhands.workloads.memory.conversation.schedule import Counters, ScheduledTest
from manyhands.workloads.memory.conversation.tokens import TokenCounter
from tests.memory.replay.result import ReplayResult
from tests.memory.replay.resuming import ResumableScheduler, resume
from tests.memory.replay.session import replay
from tests.support.memory_schedules import FACTS, WORDING, ToldDataset, count_words, says, scheduler_of
from tests.support.memory_sessions import HeldSession, hold, write_session

SPAN = 120
WORDS = TokenCounter("words", count_words, exact=False)


def some_tests() -> list[ScheduledTest]:
    colours, late = ToldDataset("colours"), ToldDataset("late")
    remind = ToldDataset("remind", called_for=4)
    guest = ToldDataset(
        "guest", steps=says("Come in.", Wait(percentage=20), "To drink?", Wait(percentage=40), "To eat?")
    )
    spread = [Wait(percentage=30), Wait(percentage=60), Wait()]
    return [
        *(colours.test(number, [f"Red {number}.", "Blue.", "Which?"], spread) for number in range(2)),
        late.test(0, ["A joke.", "Which joke?"], [Wait(seconds=5400, percentage=90), Wait()]),
        *(
            remind.test(
                number, [f"Told {number}.", f"Remind me {number}."], [Wait(percentage=50), Wait()], calls_back=True
            )
            for number in range(2)
        ),
        ScheduledTest(guest.test(0, []).definition, guest),
    ]


def maker(*, isolated: bool = False) -> Callable[[], ResumableScheduler]:
    return lambda: scheduler_of(some_tests(), SPAN, isolated=isolated, resets=True)


def wording(tests: Sequence[ScheduledTest]) -> Wording:
    resets = {test.dataset.name: f"Forget {test.dataset.name}." for test in tests}
    return Wording(WORDING.intro_message, WORDING.filler_preamble, WORDING.filler_line_format, resets)


def replayed(
    session: HeldSession, folder: Path, *, change: Callable[[Path], None] = lambda results: None, **more: Any
) -> ReplayResult:
    tests = some_tests()
    datasets: dict[str, Dataset] = {test.dataset.name: test.dataset for test in tests}
    results = write_session(folder, session, tests, SPAN, seeded=more.pop("seeded", True))
    change(results)
    arguments = {"filler": FACTS, "token_lengths": WORDS, "dataset_of": datasets.get, "max_message_size": 40, **more}
    return replay(results, wording=wording(tests), **arguments)


def test_a_session_without_interruptions_is_exact(tmp_path: Path) -> None:
    result = replayed(hold(maker()), tmp_path / "run")
    assert (result.verdict, result.difference, result.is_complete) == ("exact", None, True)
    assert result.agreeing == result.events
    assert result.fillers > 3
    assert result.runstats is not None
    assert result.counters.total_tokens == result.runstats.total_tokens


@pytest.mark.parametrize("isolated", [False, True])
def test_a_session_whose_filler_had_no_seed_is_accepted(tmp_path: Path, isolated: bool) -> None:
    name = "run (isolated)" if isolated else "run"
    others = [Fact("Another?", "one")]
    result = replayed(hold(maker(isolated=isolated)), tmp_path / name, filler=others, seeded=False)
    assert result.verdict == "exact"
    assert result.other_fillers > 0
    assert any("had no seed" in note for note in result.notes)


@pytest.mark.parametrize("isolated", [False, True])
@given(st.lists(st.integers(1, 60), min_size=1, max_size=4))
def test_an_interrupted_session_is_exact(isolated: bool, interruptions: list[int]) -> None:
    session = hold(maker(isolated=isolated), interruptions)
    with TemporaryDirectory() as folder:
        result = replayed(session, Path(folder) / ("run (isolated)" if isolated else "run"))
    assert (result.verdict, result.difference) == ("exact", None)
    assert result.tokens_lost == session.lost


def test_a_resumed_session_registers_callbacks_again_and_forgets_filler(tmp_path: Path) -> None:
    lossy = next(held for at in range(20, 90) if (held := hold(maker(), [at])).lost and registered_again(held))
    kinds = [event.type for event in lossy.scheduler.events]
    assert kinds.count(EventType.SUITE_RESET) == 2
    result = replayed(lossy, tmp_path / "run")
    assert (result.verdict, result.resumes, result.tokens_lost) == ("exact", 1, lossy.lost)


def registered_again(session: HeldSession) -> bool:
    kinds = [event.type for event in session.scheduler.events]
    reset = len(kinds) - 1 - kinds[::-1].index(EventType.SUITE_RESET)
    return kinds[reset - 1] is EventType.REGISTER_CALLBACK


def test_a_session_of_ours_that_lost_nothing_is_exact(tmp_path: Path) -> None:
    for at in (30, 61, 62, 63):
        session = HeldSession(maker()(), maker()().counters)
        session.hold_marked(at)
        result = replayed(session, tmp_path / f"run {at}")
        assert (result.verdict, result.resumes, result.tokens_lost) == ("exact", 1, 0)


def test_a_session_that_was_given_up_is_compared_as_far_as_it_goes(tmp_path: Path) -> None:
    session = HeldSession(maker()(), Counters(filler_state=maker()().counters.filler_state))
    session.hold(40)
    result = replayed(session, tmp_path / "run")
    assert (result.verdict, result.is_complete) == ("exact", False)
    assert "the session was not finished" in result.notes


def test_other_rules_are_tried_where_the_first_do_not_agree(tmp_path: Path) -> None:
    session = hold(maker())
    strict = {test.dataset.name: ToldDataset(test.dataset.id, called_for=9) for test in some_tests()}
    own: dict[str, Dataset] = {test.dataset.name: test.dataset for test in some_tests()}
    assert replayed(session, tmp_path / "one", dataset_of=strict.get).verdict == "differs"
    assert replayed(session, tmp_path / "two", dataset_of=strict.get, or_else=own.get).verdict == "exact"


def test_a_session_without_datasets_does_as_its_log_shows(tmp_path: Path) -> None:
    scripts = [test for test in some_tests() if test.definition.is_question]
    session = hold(lambda: scheduler_of(scripts, SPAN, resets=True), [25])
    results = write_session(tmp_path / "run", session, scripts, SPAN)
    result = replay(results, filler=FACTS, wording=wording(scripts), token_lengths=WORDS)
    assert (result.verdict, result.difference) == ("exact", None)


def test_a_datasets_own_memory_span_and_reset_message_are_read(tmp_path: Path) -> None:
    told = some_tests()[0]
    test = ScheduledTest(told.definition, told.dataset, memory_span=300, reset_message="Never mind.")
    session = hold(lambda: scheduler_of([test], SPAN))
    results = write_session(tmp_path / "run", session, [test], SPAN)
    own = {"name": "colours", "args": {"memory_span": 300, "reset_message": "Never mind."}}
    content = {"config": {}, "datasets": {"args": {"memory_span": SPAN}, "datasets": [own]}}
    (tmp_path / "run/definitions/config.yml").write_text(json.dumps(content), encoding="utf-8")
    result = replay(results, filler=FACTS, wording=wording([test]), token_lengths=WORDS)
    assert (result.verdict, result.difference) == ("exact", None)


# --- Differences


def edited(at: int, field: str, value: Any) -> Callable[[Path], None]:
    def change(results: Path) -> None:
        path = results / "master_log.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines()
        event = json.loads(lines[at])
        event["data"][field] = value
        lines[at] = json.dumps(event)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    return change


def without(at: int) -> Callable[[Path], None]:
    def change(results: Path) -> None:
        path = results / "master_log.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines()
        path.write_text("\n".join(lines[:at] + lines[at + 1 :]) + "\n", encoding="utf-8")

    return change


def test_a_changed_message_is_found(tmp_path: Path) -> None:
    session = hold(maker())
    at = [event.message for event in session.scheduler.events].index("Blue.")
    result = replayed(session, tmp_path / "run", change=edited(at, "message", "Green."))
    assert result.verdict == "differs"
    assert (
        str(result.difference) == f"event {at} (Colours - 0): SEND_MESSAGE message: logged 'Green.', replayed 'Blue.'"
    )
    assert result.agreeing == at


def test_a_changed_wait_is_found(tmp_path: Path) -> None:
    session = hold(maker())
    at = [event.type for event in session.scheduler.events].index(EventType.WAIT)
    tokens = session.scheduler.events[at].data["tokens"]
    result = replayed(session, tmp_path / "run", change=edited(at, "tokens", tokens + 1))
    assert result.difference is not None
    assert (result.difference.index, result.difference.logged, result.difference.replayed) == (at, tokens + 1, tokens)


@pytest.mark.parametrize(
    "kind", [EventType.BEGIN, EventType.END, EventType.RESPONSE_MESSAGE, EventType.REGISTER_CALLBACK]
)
def test_a_missing_event_is_found(tmp_path: Path, kind: EventType) -> None:
    session = hold(maker())
    at = [event.type for event in session.scheduler.events].index(kind)
    result = replayed(session, tmp_path / "run", change=without(at))
    assert result.difference is not None
    assert result.difference.index == at
    assert kind.name in str(result.difference)


def test_a_count_that_one_test_begins_without_is_a_difference(tmp_path: Path) -> None:
    session = hold(maker())
    at = [event.type for event in session.scheduler.events].index(EventType.BEGIN)

    def change(results: Path) -> None:
        path = results / "master_log.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines()
        lines[at] = json.dumps({**json.loads(lines[at]), "data": {}})
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    result = replayed(session, tmp_path / "run", change=change)
    assert result.difference is not None
    assert (result.difference.index, result.difference.field) == (at, "BEGIN tokens")
    assert result.is_complete


def test_a_clock_that_goes_back_is_a_difference(tmp_path: Path) -> None:
    """The test waits for tokens and for a time; filler brings the tokens, and its times are those of before."""
    tests = [ToldDataset("late").test(0, ["A joke.", "Which?"], [Wait(tokens=50, seconds=60), Wait()])]
    session = hold(lambda: scheduler_of(tests, SPAN, resets=True))
    results = write_session(tmp_path / "run", session, tests, SPAN)
    path = results / "master_log.jsonl"
    log = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    next(event for event in log if event["type"] == EventType.WAIT)["timestamp"] += 1e6
    path.write_text("".join(f"{json.dumps(event)}\n" for event in log), encoding="utf-8")
    result = replay(
        results,
        filler=FACTS,
        wording=wording(tests),
        token_lengths=WORDS,
        dataset_of={"Late": tests[0].dataset}.get,
        max_message_size=40,
    )
    assert "no test can go on" in str(result.difference)


@pytest.mark.parametrize("name", ["total_tokens", "agent_tokens", "rnd_state"])
def test_changed_counters_are_found(tmp_path: Path, name: str) -> None:
    def change(results: Path) -> None:
        stats = json.loads((results / "runstats.json").read_text(encoding="utf-8"))
        if name == "rnd_state":
            stats[name][1][-1] -= 1
        else:
            stats[name] += 1
        (results / "runstats.json").write_text(json.dumps(stats), encoding="utf-8")

    result = replayed(hold(maker()), tmp_path / "run", change=change)
    assert result.difference is not None
    assert (result.difference.index, result.difference.field) == (None, f"runstats.json {name}")
    assert result.difference.logged != result.difference.replayed


def test_other_filler_of_a_seeded_session_shows(tmp_path: Path) -> None:
    result = replayed(hold(maker()), tmp_path / "run", filler=[Fact("Another?", "one")])
    assert result.verdict == "differs"
    assert result.other_fillers > 0


def test_one_changed_filler_message_of_a_seeded_session_is_found(tmp_path: Path) -> None:
    """As long as before and with as many facts, so that no counter and no state differs."""
    session = hold(maker())
    fillers = [at for at, event in enumerate(session.scheduler.events) if event.type is EventType.SEND_FILL]
    text = session.scheduler.events[fillers[2]].message
    other = text[:-2] + ("x" if text[-2] != "x" else "y") + text[-1]
    result = replayed(session, tmp_path / "run", change=edited(fillers[2], "message", other))
    assert (result.verdict, result.other_fillers) == ("differs", 1)
    assert result.difference is not None
    assert (result.difference.index, result.difference.logged) == (fillers[2], other)
    assert result.difference.replayed == text


def test_without_runstats_the_events_are_compared(tmp_path: Path) -> None:
    result = replayed(hold(maker()), tmp_path / "run", change=lambda results: (results / "runstats.json").unlink())
    assert result.verdict == "exact"
    assert any("runstats.json" in note for note in result.notes)


@pytest.mark.parametrize("name", ["master_log.jsonl", "../../definitions/config.yml"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=name.rsplit("/", 1)[-1]):
        replayed(hold(maker()), tmp_path / "run", change=lambda results: (results / name).unlink())


def test_a_log_that_the_definitions_do_not_give_cant_be_resumed() -> None:
    session = hold(maker())
    with pytest.raises(UserError, match="line 4: can't be resumed: there is no test"):
        resume(scheduler_of([ToldDataset("x").test(0, ["One?"])]), session.scheduler.events, session.saved, 0.0)
