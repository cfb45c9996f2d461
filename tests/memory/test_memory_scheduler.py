"""Which test speaks next: the rules of the schedule one by one, and what holds for any tests."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.workloads.memory.conversation.definitions import Wait
from manyhands.workloads.memory.conversation.events import Event, EventType
from manyhands.workloads.memory.conversation.schedule import (
    Action,
    AskModel,
    Evaluate,
    ResetAgent,
    Save,
    Saved,
    ScheduledTest,
    Send,
    Travel,
)
from manyhands.workloads.memory.conversation.scheduler import Scheduler
from tests.support.memory_schedules import MIDDLE, ToldDataset, drive, says, scheduler_of


def said(scheduler: Scheduler) -> list[str]:
    """The messages of tests, in order."""
    return [event.message for event in scheduler.events if event.type is EventType.SEND_MESSAGE]


def kinds(scheduler: Scheduler, test_id: str = "") -> list[str]:
    return [event.type.name for event in scheduler.events if not test_id or event.test_id == test_id]


def waits(scheduler: Scheduler) -> list[tuple[int, int]]:
    return [(event.data["tokens"], event.data["time"]) for event in scheduler.events if event.type is EventType.WAIT]


# --- Rules


def test_a_session_begins_with_the_introduction_and_a_reset_mark() -> None:
    scheduler = scheduler_of([ToldDataset("a").test(0, ["One."])])
    actions = drive(scheduler)
    assert actions[0] == Send("", "Hello.")
    assert kinds(scheduler)[:4] == ["SEND_FILL", "RESPONSE_FILL", "SUITE_RESET", "BEGIN"]
    assert scheduler.events[3].data == {"tokens": 2}
    assert kinds(scheduler)[-1] == "END"


def test_tests_begin_in_the_order_of_their_names_and_take_turns() -> None:
    pause = [Wait(tokens=1), Wait()]
    tests = [ToldDataset(name).test(0, [f"{name} 1", f"{name} 2"], pause) for name in ("b", "a", "c")]
    scheduler = scheduler_of(tests)
    drive(scheduler)
    assert said(scheduler) == ["a 1", "b 1", "a 2", "b 2", "c 1", "c 2"]


def test_names_are_sorted_as_texts() -> None:
    dataset = ToldDataset("a")
    scheduler = scheduler_of([dataset.test(number, [f"line {number}"]) for number in (2, 10, 1)])
    drive(scheduler)
    assert said(scheduler) == ["line 1", "line 10", "line 2"]


def test_repetitions_of_a_dataset_run_one_after_the_other() -> None:
    dataset = ToldDataset("a")
    tests = [dataset.test(number, ["1", "2"], [Wait(percentage=50), Wait()]) for number in range(2)]
    scheduler = scheduler_of(tests)
    drive(scheduler)
    order = [event.test_id for event in scheduler.events if event.type in (EventType.BEGIN, EventType.END)]
    assert order == ["A - 0", "A - 0", "A - 1", "A - 1"]


def test_a_test_that_others_exclude_waits_until_they_have_ended() -> None:
    pause = [Wait(percentage=50), Wait()]
    tests = [ToldDataset(name).test(0, ["1", "2"], pause) for name in ("a", "b", "c")]
    scheduler = scheduler_of(tests, incompatibilities=[frozenset({"a", "b"})])
    drive(scheduler)
    begun = [event.test_id for event in scheduler.events if event.type is EventType.BEGIN]
    assert begun == ["A - 0", "C - 0", "B - 0"]


def test_a_percentage_counts_from_the_tests_beginning_and_less_the_last_reply() -> None:
    words = iter(["Yes.", "one two three"])
    test = ToldDataset("colours").test(
        0, ["My favourite colour is now a very dark red.", "Which?"], [Wait(percentage=30), Wait()]
    )
    scheduler = scheduler_of([test], memory_span=1000)
    drive(scheduler, lambda send: next(words, "Yes."))
    # 300 tokens from the beginning; the line has 9 and the reply 3, which are gone; the reply counts once more.
    assert waits(scheduler) == [(300 - 12 - 3, 0)]


def test_the_larger_of_tokens_and_percentage_is_waited_for() -> None:
    test = ToldDataset("a").test(0, ["One.", "Two."], [Wait(tokens=70, percentage=50), Wait()])
    scheduler = scheduler_of([test], memory_span=100)
    drive(scheduler)
    assert waits(scheduler) == [(70 - 1, 0)]


def test_a_wait_for_one_token_is_not_shortened() -> None:
    test = ToldDataset("a").test(0, ["One.", "Two."], [Wait(tokens=1), Wait()])
    scheduler = scheduler_of([test])
    drive(scheduler)
    assert waits(scheduler) == [(1, 0)]


def test_time_passes_before_filler_is_sent() -> None:
    late = ToldDataset("a").test(0, ["One.", "Two."], [Wait(seconds=3600, percentage=50), Wait()])
    scheduler = scheduler_of([late])
    actions = drive(scheduler)
    travel = next(at for at, action in enumerate(actions) if isinstance(action, Travel))
    fillers = [at for at, action in enumerate(actions) if isinstance(action, Send) and action.is_filler]
    assert travel < fillers[0]
    wait = next(event for event in scheduler.events if event.type is EventType.WAIT)
    assert actions[travel] == Travel(wait.timestamp + 3601)


def test_no_time_passes_while_another_test_can_begin() -> None:
    late = ToldDataset("a").test(0, ["One.", "Two."], [Wait(seconds=60), Wait()])
    scheduler = scheduler_of([late, ToldDataset("b").test(0, ["Meanwhile."])])
    drive(scheduler)
    assert said(scheduler) == ["One.", "Meanwhile.", "Two."]


def test_filler_brings_the_reply_with_it_and_is_cut_to_the_largest_message() -> None:
    test = ToldDataset("a").test(0, ["One.", "Two."], [Wait(tokens=100), Wait()])
    actions = drive(scheduler_of([test]))
    fillers = [action for action in actions if isinstance(action, Send) and action.is_filler]
    assert len(fillers) >= 2
    assert all(filler.expected_reply and filler.expected_reply.startswith('["answer') for filler in fillers)
    assert all(len(filler.message.split()) < 50 for filler in fillers)


def test_what_a_test_told_is_taken_back_before_it_is_scored() -> None:
    scheduler = scheduler_of([ToldDataset("a").test(0, ["One?"])], resets=True)
    actions = drive(scheduler)
    names = [type(action).__name__ for action in actions[2:]]
    assert names == ["Save", "Send", "Evaluate", "Save", "Save", "Done"]
    assert said(scheduler) == ["One?", "Forget A."]
    ended = scheduler.ended[0]
    assert [message.text for message in ended.exchange.messages] == ["One?", "Forget A."]
    assert ended.exchange.answers == ("Yes.",)
    assert (ended.tokens, ended.characters) == (5, len("One?Yes.Forget A.Yes."))
    assert scheduler.events[ended.ended].type is EventType.END


def test_a_tests_own_memory_span_and_reset_message_come_first() -> None:
    told = ToldDataset("a").test(0, ["One.", "Two?"], [Wait(percentage=50), Wait()])
    own = ScheduledTest(told.definition, told.dataset, memory_span=1000, reset_message="Never mind.")
    scheduler = scheduler_of([own], memory_span=100, resets=True)
    drive(scheduler)
    assert waits(scheduler) == [(500 - 2 - 1, 0)]
    assert said(scheduler)[-1] == "Never mind."


def test_saves_come_where_the_original_saves() -> None:
    test = ToldDataset("a").test(0, ["One.", "Two?"], [Wait(tokens=1), Wait()])
    saves = [action.what for action in drive(scheduler_of([test])) if isinstance(action, Save)]
    assert saves == [Saved.PROGRESS] * 3 + [Saved.RESULT, Saved.AGENT]


# --- Callbacks


def test_a_callback_is_called_until_it_is_done_and_hears_all_since_its_question() -> None:
    dataset = ToldDataset("p", called_for=3)
    reminded = dataset.test(0, ["Told.", "Remind me."], [Wait(tokens=1), Wait()], calls_back=True)
    others = [ToldDataset(name).test(0, [name]) for name in ("x", "y", "z")]
    scheduler = scheduler_of([reminded, *others])
    actions = drive(scheduler)
    assert [message.text for message in dataset.conversations[-1]][:1] == ["Remind me."]
    assert len(dataset.conversations[-1]) >= 3
    assert "EVALUATE" not in kinds(scheduler, "P - 0")
    assert not any(isinstance(action, Evaluate) and action.test_id == "P - 0" for action in actions)
    own = kinds(scheduler, "P - 0")
    assert own.count("REGISTER_CALLBACK") == own.count("DEREGISTER_CALLBACK") == 1
    assert own[-1] == "END"
    assert next(ended for ended in scheduler.ended if ended.test is reminded).evaluation is MIDDLE


def test_filler_has_no_reply_with_it_while_a_callback_is_registered() -> None:
    dataset = ToldDataset("p", called_for=4)
    actions = drive(scheduler_of([dataset.test(0, ["Remind me."], calls_back=True)]))
    fillers = [action for action in actions if isinstance(action, Send) and action.is_filler]
    assert fillers
    assert all(filler.expected_reply is None for filler in fillers)


def test_a_callback_by_the_published_rules_hears_from_the_first_message_with_its_text() -> None:
    lengths = {}
    for scoring in ("mended", "published"):
        dataset = ToldDataset("p", called_for=2, scoring=scoring)
        tests = [dataset.test(number, ["Remind me."], calls_back=True) for number in range(2)]
        drive(scheduler_of(tests))
        lengths[scoring] = dataset.heard
    assert lengths["mended"] == [1, 2, 1, 2]
    assert lengths["published"] == [1, 2, 3]


def test_hearing_a_callback_out_copies_nothing() -> None:
    dataset = ToldDataset("p", called_for=300)
    drive(scheduler_of([dataset.test(0, ["Remind me."], calls_back=True)]), lambda send: "Yes.")
    heard = dataset.conversations[-1]
    assert len(heard) == len(dataset.conversations[0])  # the same view, however early it was given
    assert heard[-1] is heard[len(heard) - 1]
    assert [message.text for message in heard[:1]] == ["Remind me."]
    with pytest.raises(IndexError):
        heard[len(heard)]


# --- Other kinds of tests


def test_a_dynamic_test_asks_the_model_and_is_not_evaluated() -> None:
    dataset = ToldDataset("r", steps=says("Good day.", Wait(percentage=20), "To eat?"))
    test = ScheduledTest(dataset.test(0, []).definition, dataset)
    scheduler = scheduler_of([test])
    actions = drive(scheduler)
    assert sum(isinstance(action, AskModel) for action in actions) == 2
    assert not any(isinstance(action, Evaluate) for action in actions)
    calls = [event for event in scheduler.events if event.type is EventType.LLM_CALL]
    assert [event.data for event in calls] == [{"response": "{}"}] * 2


def test_a_temporal_question_is_made_when_it_is_asked() -> None:
    dataset = ToldDataset("j")
    told = dataset.test(0, ["A joke.", "?"], [Wait(seconds=600), Wait()]).definition
    test = ScheduledTest(replace(told, script=told.script[:1], is_temporal=True), dataset)
    scheduler = scheduler_of([test])
    drive(scheduler)
    assert said(scheduler)[-1] == "What did you hear 602 seconds ago?"


# --- Isolated


def test_isolated_tests_are_held_alone() -> None:
    pause = [Wait(seconds=60, percentage=50), Wait()]
    tests = [ToldDataset(name).test(0, [f"{name} 1", f"{name} 2"], pause) for name in ("a", "b")]
    scheduler = scheduler_of(tests, isolated=True)
    actions = drive(scheduler)
    assert said(scheduler) == ["a 1", "a 2", "b 1", "b 2"]
    assert sum(isinstance(action, ResetAgent) for action in actions) == 2
    assert set(kinds(scheduler)) == {"BEGIN", "SEND_MESSAGE", "RESPONSE_MESSAGE", "END"}
    assert sum(isinstance(action, Travel) for action in actions) == 2


def test_an_isolated_callback_gets_filler_until_it_is_done() -> None:
    dataset = ToldDataset("p", called_for=4)
    scheduler = scheduler_of([dataset.test(0, ["Told.", "Remind me."], calls_back=True)], isolated=True)
    drive(scheduler)
    assert kinds(scheduler)[-2:] == ["DEREGISTER_CALLBACK", "END"]
    assert "SEND_FILL" in kinds(scheduler)


# --- Misuse


def test_an_action_has_to_be_dealt_with() -> None:
    scheduler = scheduler_of([ToldDataset("a").test(0, ["One."])])
    scheduler.next(0.0)
    with pytest.raises(RuntimeError, match="Send is not dealt with"):
        scheduler.next(0.0)
    with pytest.raises(RuntimeError, match="no AskModel is open"):
        scheduler.answered("", 0.0)
    scheduler.replied("Yes.", 0.0, 1.0)
    with pytest.raises(RuntimeError, match="no Send is open"):
        scheduler.replied("Yes.", 0.0, 1.0)


def test_two_tests_of_one_name_are_refused() -> None:
    dataset = ToldDataset("a")
    with pytest.raises(ValueError, match="same name"):
        scheduler_of([dataset.test(0, ["One."]), dataset.test(0, ["Two."])])


# --- Any tests

WAITS = st.builds(
    Wait,
    tokens=st.sampled_from([0, 0, 1, 5, 60]),
    seconds=st.sampled_from([0.0, 0.0, 30.0, 7200.0]),
    percentage=st.sampled_from([0.0, 0.0, 10.0, 50.0, 90.0]),
)


@st.composite
def some_tests(draw: st.DrawFn) -> list[ScheduledTest]:
    tests: list[ScheduledTest] = []
    for name in draw(st.lists(st.sampled_from("abcde"), min_size=1, max_size=4, unique=True)):
        kind = draw(st.sampled_from(["script", "script", "callback", "dynamic"]))
        steps = says("One?", draw(WAITS), "Two?") if kind == "dynamic" else None
        dataset = ToldDataset(name, called_for=draw(st.integers(1, 5)), steps=steps)
        for example in range(draw(st.integers(1, 2))):
            lines = 0 if kind == "dynamic" else draw(st.integers(1, 4))
            script = [f"{name}{example} says {'so ' * line}" for line in range(lines)]
            pauses = [draw(WAITS) for _ in range(lines)]
            tests.append(dataset.test(example, script, pauses, calls_back=kind == "callback"))
    return tests


INCOMPATIBLE = st.sampled_from([[], [frozenset("ab")], [frozenset("ab"), frozenset("bcd")]])
REPLIES = st.lists(st.sampled_from(["", "Yes.", "a b c d e", "word " * 30]), min_size=1, max_size=8)


@given(some_tests(), INCOMPATIBLE, REPLIES, st.booleans(), st.booleans())
def test_whatever_the_tests(
    tests: list[ScheduledTest], excluded: list[frozenset[str]], replies: list[str], isolated: bool, resets: bool
) -> None:
    scheduler = scheduler_of(tests, incompatibilities=excluded, isolated=isolated, resets=resets)
    given_replies = iter(replies * 10_000)

    def watch(action: Action, now: float) -> None:
        if isinstance(action, Send) and action.is_filler and not isolated:
            pending = [test_id for test_id in scheduler.waiting if scheduler.waiting[test_id].time > now]
            assert not pending, "filler was sent while a test only waits for time"

    drive(scheduler, lambda send: next(given_replies), watch=watch)
    assert sorted(ended.test.id for ended in scheduler.ended) == sorted(test.id for test in tests)
    check_each_test(tests, scheduler, resets)
    check_interleaving(tests, scheduler.events, excluded)
    check_waits(scheduler.events)
    total = scheduler.counters.total_tokens
    assert total == sum(len(event.message.split()) for event in scheduler.events)


def check_each_test(tests: list[ScheduledTest], scheduler: Scheduler, resets: bool) -> None:
    for test in tests:
        own = [event for event in scheduler.events if event.test_id == test.id]
        assert [event.type for event in own].count(EventType.BEGIN) == 1
        assert own[0].type is EventType.BEGIN
        assert own[-1].type is EventType.END
        messages = [event.message for event in own if event.type is EventType.SEND_MESSAGE]
        script = list(test.definition.script) or ["One?", "Two?"]
        assert messages == script + ([f"Forget {test.dataset.name}."] if resets else [])


def check_interleaving(tests: list[ScheduledTest], events: list[Event], excluded: list[frozenset[str]]) -> None:
    datasets = {test.id: test.dataset.id for test in tests}
    running: list[str] = []
    for event in events:
        if event.type is EventType.BEGIN:
            mine = datasets[event.test_id]
            for other in running:
                assert mine != other
                assert not any(mine in each and other in each for each in excluded)
            running.append(mine)
        elif event.type is EventType.END:
            running.remove(datasets[event.test_id])


def check_waits(events: list[Event]) -> None:
    tokens = 0
    targets: dict[str, tuple[int, float]] = {}
    for event in events:
        if event.type is EventType.WAIT:
            targets[event.test_id] = (tokens + event.data["tokens"], event.timestamp + event.data["time"])
        elif event.type is EventType.SEND_MESSAGE and event.test_id in targets:
            wanted, when = targets.pop(event.test_id)
            assert tokens >= wanted
            assert event.timestamp >= when
        elif event.type is EventType.DEREGISTER_CALLBACK:
            targets.pop(event.test_id, None)
        tokens += len(event.message.split())


@given(some_tests(), REPLIES, st.booleans(), st.integers(0, 60))
def test_the_same_replies_give_the_same_actions(
    tests: list[ScheduledTest], replies: list[str], isolated: bool, length: int
) -> None:
    def held(actions: int) -> tuple[list[Action], list[Event]]:
        given_replies = iter(replies * 10_000)
        scheduler = scheduler_of(tests, isolated=isolated)
        return drive(scheduler, lambda send: next(given_replies), actions=actions), scheduler.events

    whole, events = held(100_000)
    again, events_again = held(100_000)
    assert (whole, events) == (again, events_again)
    beginning, first_events = held(length)
    assert beginning == whole[:length]
    assert first_events == events[: len(first_events)]
