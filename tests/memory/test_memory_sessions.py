"""Sessions that crash: what goes on is the session that nothing disturbed, and no message is put to an agent twice but one in flight."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.clock import SystemClock
from manyhands.models.protocol import ChatSettings
from manyhands.testing.agent_doubles import ScriptedModel
from manyhands.testing.context import Crash, CrashPoint, MemoryContext, MemoryJournal, When
from manyhands.workloads.memory.agents.external_agent import ExternalAgent
from manyhands.workloads.memory.agents.model_agents import ChatAgent, ContextSize
from manyhands.workloads.memory.agents.model_calls import ModelCaller
from manyhands.workloads.memory.agents.simulated import ForgetfulAgent, ReadingModel
from manyhands.workloads.memory.conversation.driver import Conversation, TimeTravel
from manyhands.workloads.memory.conversation.events import Event, EventType, format_event
from manyhands.workloads.memory.datasets.benchmark import Benchmark
from manyhands.workloads.memory.folders import ResultPaths
from manyhands.workloads.memory.judge import RuleJudge
from manyhands.workloads.memory.results.files import ConversationFiles
from tests.support.memory_benchmarks import opened, write_configuration

START = 1_715_936_400.0
DATASETS = ("colours", "jokes", "prospective_memory", "restaurant", "shopping", "trigger_response")


@pytest.fixture(scope="module")
def benchmark_(tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    folder = tmp_path_factory.mktemp("sessions")
    write_configuration(folder, DATASETS, span=700)
    return opened(folder, "forgetful").workload.benchmark


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    folder = tmp_path_factory.mktemp("short")
    write_configuration(folder, DATASETS[:3], span=300)
    return opened(folder, "forgetful").workload.benchmark


class Ticks(SystemClock):
    """A clock by which every look takes a second, so that no two are alike."""

    def __init__(self, start: float) -> None:
        self._at = start

    def now(self) -> float:
        self._at += 1.0
        return self._at

    def monotonic(self) -> float:
        return self.now()

    async def sleep(self, seconds: float) -> None:
        self._at += seconds


class Held:
    """One session over a journal that outlives it."""

    def __init__(self, benchmark: Benchmark, folder: Path) -> None:
        self.benchmark = benchmark
        self.places = ResultPaths.of(folder, "agent")
        self.journal: MemoryJournal = {}
        self.model = ScriptedModel(default=self._answer)
        self._reading = ReadingModel([(test.definition, test.dataset) for test in benchmark.tests])  # type: ignore[misc]
        self.clock = Ticks(5_000.0)
        self.performed = 0

    def _answer(self, request: Any) -> Any:
        return self._reading._message(request, [str(message.get("content")) for message in request.messages])

    async def hold(self, crash: CrashPoint | None = None, *, isolated: bool = False) -> Conversation:
        caller = ModelCaller(self.model, ChatSettings(model="scripted"))
        agent = ChatAgent("agent", caller, self.benchmark.tokens, size=ContextSize(1200, 100))
        context = MemoryContext(self.journal, crash=crash, clock=self.clock)
        files = ConversationFiles(self.places, {"agent": "agent"}, is_replaying=lambda: context.replaying)
        scheduler = self.benchmark.scheduler(isolated=isolated, max_message_size=300)
        session = Conversation(scheduler, agent, RuleJudge(), START, files)
        try:
            await session.run(context)
        finally:
            files.close(session)
            self.performed = context.performed
        return session

    def questions(self) -> Counter[str]:
        """How often the model was asked with each conversation."""
        return Counter(json.dumps(list(request.messages)) for request in self.model.requests)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.places.master_log.read_text().splitlines()]

    def log(self) -> list[Any]:
        return [(each["type"], each["test_id"], each["data"]) for each in self.events() if each["type"] != 7]


def said(events: list[Event]) -> list[str]:
    return [json.dumps([e.type, e.test_id, dict(e.data)]) for e in events if e.type is not EventType.SUITE_RESET]


async def undisturbed(benchmark: Benchmark, folder: Path) -> Held:
    held = Held(benchmark, folder)
    await held.hold()
    return held


@pytest.mark.parametrize("when", ["before_effect", "before_recording", "after_recording"])
async def test_a_crash_anywhere_changes_nothing_but_times(benchmark_: Benchmark, tmp_path: Path, when: When) -> None:
    whole = await undisturbed(benchmark_, tmp_path / "whole")
    expected, steps = whole.log(), whole.performed
    assert steps > 50
    # Two crashes in each: every position is met by one of them.
    for step in range(1, steps // 2, 3):
        held = Held(benchmark_, tmp_path / f"{when}{step}")
        for at in (step, steps // 2 - step // 3):
            with pytest.raises(Crash):
                await held.hold(CrashPoint(at, when))
        await held.hold()
        assert held.log() == expected, step
        asked, once = held.questions(), whole.questions()
        assert asked.keys() == once.keys()
        again = sum(asked.values()) - sum(once.values())
        assert 0 <= again <= (2 if when == "before_recording" else 0)


async def test_a_journal_may_end_at_any_step(short: Benchmark, tmp_path: Path) -> None:
    """One journal, cut off as a crash leaves it, between steps of one message and of two."""
    whole = await undisturbed(short, tmp_path / "whole")
    recorded = list(whole.journal.items())
    assert len(recorded) > 20
    for count in range(len(recorded)):
        held = Held(short, tmp_path / "cut")
        held.journal = dict(recorded[:count])
        session = await held.hold()
        assert said(session.scheduler.events) == [json.dumps([t, i, d]) for t, i, d in whole.log()], count


async def test_a_resumption_is_marked_once_and_stays_where_it_was(benchmark_: Benchmark, tmp_path: Path) -> None:
    held = Held(benchmark_, tmp_path)
    with pytest.raises(Crash):
        await held.hold(CrashPoint(20))
    with pytest.raises(Crash):
        await held.hold(CrashPoint(15))
    session = await held.hold()
    marks = [place for place, event in enumerate(held.events()) if event["type"] == 7]
    assert len(marks) == 3  # one of them follows the introduction in every session
    again = await held.hold()
    assert held.performed == 0
    assert list(map(format_event, again.scheduler.events)) == list(map(format_event, session.scheduler.events))


async def test_virtual_time_follows_from_the_steps(benchmark_: Benchmark, tmp_path: Path) -> None:
    held = await undisturbed(benchmark_, tmp_path)
    first = held.events()
    held.clock = Ticks(9_000_000.0)
    await held.hold()
    assert held.events() == first
    times = [event["timestamp"] for event in first]
    assert times == sorted(times)
    assert times[0] == START
    jumps = [later - earlier for earlier, later in pairwise(times)]
    assert max(jumps) > 1800  # a joke's wait passed at once


async def test_an_isolated_session_goes_on_too(benchmark_: Benchmark, tmp_path: Path) -> None:
    whole = Held(benchmark_, tmp_path / "whole")
    await whole.hold(isolated=True)
    for step in range(2, whole.performed, 11):
        held = Held(benchmark_, tmp_path / str(step))
        with pytest.raises(Crash):
            await held.hold(CrashPoint(step), isolated=True)
        await held.hold(isolated=True)
        assert held.log() == whole.log()


# --- An agent from outside, which remembers by itself or not at all


class AgentConnection:
    """An agent from outside. ``keeps``: whether what it was told outlives it."""

    def __init__(self, kept: list[tuple[int, str]] | None = None) -> None:
        self.sent: list[dict[str, Any]] = []
        self.known: list[tuple[int, str]] = [] if kept is None else kept
        self._keeps = kept is not None
        self.closed = 0

    async def open(self) -> None:
        if not self._keeps:
            self.known = []

    async def send(self, message: Any) -> Any:
        self.sent.append(dict(message))
        match message["type"]:
            case "message" | "exchange":
                self.known.append((message["number"], message["text"]))
                return {"text": f"reply {message['number']}", "cost_usd": 0.001}
            case "load":
                return {"number": max((number for number, _ in self.known), default=0)}
            case "reset":
                self.known.clear()
        return {}

    async def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("keeps", [True, False])
async def test_an_agent_from_outside_catches_up(benchmark_: Benchmark, keeps: bool) -> None:
    async def hold(journal: MemoryJournal, line: AgentConnection, crash: CrashPoint | None = None) -> Conversation:
        scheduler = benchmark_.scheduler(isolated=False, max_message_size=300)
        agent = ExternalAgent("outside", line, conversation="s")
        session = Conversation(scheduler, agent, RuleJudge(), START, Nobody())
        await session.run(MemoryContext(journal, crash=crash, clock=Ticks(0.0)))
        return session

    whole = AgentConnection()
    expected = said((await hold({}, whole)).scheduler.events)
    kept: list[tuple[int, str]] = []
    for step in (3, 20, 37):
        kept.clear()
        journal: MemoryJournal = {}
        first = AgentConnection(kept if keeps else None)
        with pytest.raises(Crash):
            await hold(journal, first, CrashPoint(step))
        second = AgentConnection(kept if keeps else None)
        session = await hold(journal, second)
        assert said(session.scheduler.events) == expected
        put = [each["number"] for line in (first, second) for each in line.sent if each["type"] == "message"]
        twice = [number for number, count in Counter(put).items() if count > 1]
        assert len(twice) <= 1  # the one that was on its way
        loads = [each["number"] for each in second.sent if each["type"] == "load"]
        assert len(loads) == 1
        told = [each["number"] for each in second.sent if each["type"] == "exchange"]
        assert told == ([] if keeps else list(range(1, loads[0] + 1)))
        if not keeps:
            assert [number for number, _ in second.known] == list(range(1, len(second.known) + 1))


class Nobody:
    def ended(self, session: Conversation, test: Any) -> None:
        pass

    def progress(self, session: Conversation) -> None:
        pass


async def test_a_reset_is_told_with_the_virtual_time(benchmark_: Benchmark) -> None:
    line = AgentConnection()
    scheduler = benchmark_.scheduler(isolated=True, max_message_size=300)
    session = Conversation(scheduler, ExternalAgent("outside", line, conversation="s"), RuleJudge(), START, Nobody())
    await session.run(MemoryContext(clock=Ticks(9e9)))
    times = [each["now"] for each in line.sent]
    assert times == sorted(times)
    assert times[0] >= START
    assert times[-1] < START + 86400
    assert sum(each["type"] == "reset" for each in line.sent) == len(benchmark_.tests)


# --- Real time


async def test_real_waits_are_not_begun_anew(benchmark_: Benchmark) -> None:
    slept: list[float] = []

    class Sleeping(Ticks):
        async def sleep(self, seconds: float) -> None:
            slept.append(seconds)
            await super().sleep(seconds)

    async def hold(journal: MemoryJournal, clock: Ticks, crash: CrashPoint | None) -> None:
        scheduler = benchmark_.scheduler(isolated=False, max_message_size=300)
        travel: TimeTravel = "real"
        session = Conversation(scheduler, ForgetfulAgent(), RuleJudge(), START, Nobody(), travel)
        await session.run(MemoryContext(journal, crash=crash, clock=clock))

    whole: MemoryJournal = {}
    await hold(whole, Sleeping(0.0), None)
    waits = [place for place, step in enumerate(whole.values(), start=1) if step.kind == "waited"]
    assert waits
    assert all(seconds > 60 for seconds in slept)
    slept.clear()
    journal: MemoryJournal = {}
    clock = Sleeping(0.0)
    with pytest.raises(Crash):
        await hold(journal, clock, CrashPoint(waits[0], "after_recording"))  # the wait has begun
    clock._at += 100_000.0
    await hold(journal, clock, None)
    assert slept[0] == 0.0  # all of it has passed meanwhile
