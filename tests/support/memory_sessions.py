"""Conversations of memory tests run, interrupted and written down as the GoodAI LTM Benchmark does it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from manyhands.workloads.memory.conversation.events import format_event
from manyhands.workloads.memory.conversation.schedule import (
    Action,
    AskModel,
    Counters,
    Done,
    Evaluate,
    Save,
    Saved,
    ScheduledTest,
    Send,
    Travel,
)
from manyhands.workloads.memory.datasets.benchmark import definition_path, format_definition
from manyhands.workloads.memory.results.files import runstats_of
from tests.memory.replay.resuming import ResumableScheduler, resume
from tests.support.memory_schedules import MIDDLE

REPLIES = ("Yes.", "All right, noted.", "", "That is quite a long story about nothing at all.")


@dataclass
class HeldSession:
    """``lost``: tokens that interruptions made it forget."""

    scheduler: ResumableScheduler
    saved: Counters
    now: float = 1_700_000_000.0
    sent: int = 0
    lost: int = 0

    def hold(self, actions: int) -> bool:
        """Do so many actions, without what comes of the last one; whether all tests have ended."""
        for _ in range(actions):
            action = self.scheduler.next(self.now)
            if isinstance(action, Done):
                return True
            self._do(action)
        self._interrupt(self.scheduler.next(self.now))
        return False

    def _interrupt(self, action: Action) -> None:
        """An agent that fails leaves nothing behind; what was saved before it is."""
        if isinstance(action, Save) and action.what is not Saved.AGENT:
            self.saved = self.scheduler.counters

    def hold_marked(self, actions: int) -> None:
        """Hold a session of ours, which is interrupted after so many actions and goes on without losing anything."""
        done = 0
        while not isinstance(action := self.scheduler.next(self.now), Done):
            done += 1
            if done >= actions and isinstance(action, Send | AskModel | Evaluate):
                actions = 1_000_000
                self.now += 60
                self.scheduler.mark_reset(self.now)
            self._do(action)

    def _do(self, action: Action) -> None:
        self.now += 0.25
        match action:
            case Send():
                reply = action.expected_reply or REPLIES[self.sent % len(REPLIES)]
                self.sent += 1
                self.scheduler.replied(reply, self.now, self.now + 1.5)
                self.now += 1.5
            case AskModel():
                self.scheduler.answered(f"answer {self.sent}", self.now)
            case Evaluate():
                self.scheduler.evaluated(MIDDLE)
            case Travel(to):
                self.now = to
            case Save(what) if what is not Saved.AGENT:
                self.saved = self.scheduler.counters
            case _:
                pass

    def go_on(self, make: Callable[[], ResumableScheduler]) -> None:
        """Resume from the log and the saved counters."""
        self.now += 600
        events = self.scheduler.events
        self.lost += self.scheduler.counters.total_tokens - self.saved.total_tokens
        self.scheduler = make()
        resume(self.scheduler, events, self.saved, self.now)


def hold(make: Callable[[], ResumableScheduler], interruptions: Sequence[int] = ()) -> HeldSession:
    """A session. ``interruptions``: after how many actions each it was interrupted."""
    scheduler = make()
    session = HeldSession(scheduler, scheduler.counters)
    for actions in interruptions:
        if session.hold(actions):
            return session
        session.go_on(make)
    session.hold(1_000_000)
    return session


def write_session(
    folder: Path, session: HeldSession, tests: Sequence[ScheduledTest], memory_span: int, *, seeded: bool = True
) -> Path:
    """The session's folder of results as that benchmark leaves it, with the definitions beside it. ``seeded``: whether the state of the
    filler's generator is there."""
    definitions, results = folder / "definitions", folder / "results" / "An agent"
    for test in tests:
        path = definition_path(definitions, test.definition)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(format_definition(test.definition), encoding="utf-8")
    results.mkdir(parents=True)
    content = {"config": {"run_name": folder.name}, "datasets": {"args": {"memory_span": memory_span}}}
    (definitions / "config.yml").write_text(json.dumps(content), encoding="utf-8")
    lines = "".join(f"{format_event(event)}\n" for event in session.scheduler.events)
    (results / "master_log.jsonl").write_text(lines, encoding="utf-8")
    stats = asdict(runstats_of(session.saved, 0.0, 0.0))
    if not seeded:
        del stats["rnd_state"]
    (results / "runstats.json").write_text(json.dumps(stats), encoding="utf-8")
    return results
