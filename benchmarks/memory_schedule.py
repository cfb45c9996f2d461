"""What the memory benchmark's scheduling and bookkeeping cost, without an agent and without the engine."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.rows import Row
from manyhands.workloads.memory.conversation.definitions import Evaluation
from manyhands.workloads.memory.conversation.events import format_event
from manyhands.workloads.memory.conversation.filler import FactFiller, builtin_facts, default_wording
from manyhands.workloads.memory.conversation.schedule import (
    AskModel,
    Done,
    Evaluate,
    ScheduledTest,
    SchedulerSettings,
    Send,
    Travel,
)
from manyhands.workloads.memory.conversation.scheduler import Scheduler
from manyhands.workloads.memory.conversation.tokens import estimate
from manyhands.workloads.memory.datasets.registry import create, reset_messages

DATASETS = (
    "colours",
    "shopping",
    "locations_directions",
    "name_list",
    "jokes",
    "sallyanne",
    "prospective_memory",
    "trigger_response",
    "spy_meeting",
    "restaurant",
)
REPETITIONS = 3
REPLY = "Understood."


def memory_schedule(quick: bool) -> Iterator[Row]:
    """CPU time of one long session: tests, filler, token counts and the lines of the log."""
    span = 50_000 if quick else 500_000
    tests = list(_tests(span))
    begun = time.process_time()
    scheduler = _scheduler(tests, span)
    messages = drive(scheduler)
    size = sum(len(format_event(event)) for event in scheduler.events)
    cpu = time.process_time() - begun
    if len(scheduler.ended) != len(tests):
        raise RuntimeError(f"{len(scheduler.ended)} of {len(tests)} tests ended")
    total = scheduler.counters.total_tokens
    note = f"{len(tests)} tests over {span:,} tokens each: {messages:,} messages, {total:,} tokens, a log of {size / 1e6:.1f} MB"
    yield Row("memory: schedule", cpu, "s CPU", at_most=5.0, note=note)


def _tests(span: int) -> Iterator[ScheduledTest]:
    for dataset_id in DATASETS:
        dataset = create(dataset_id)
        making = dataset.generate(REPETITIONS, 0, span)
        try:
            next(making)
        except StopIteration as end:
            yield from (ScheduledTest(definition, dataset) for definition in end.value)


def _scheduler(tests: list[ScheduledTest], span: int) -> Scheduler:
    wording, count = default_wording(reset_messages()), estimate()
    settings = SchedulerSettings(span, wording.intro_message, wording.reset_messages)
    return Scheduler(tests, settings, FactFiller(builtin_facts(), wording, count), count)


def drive(scheduler: Scheduler) -> int:
    """Hold the session with an agent that confirms everything; the number of messages."""
    now, messages = 0.0, 0
    while True:
        action = scheduler.next(now)
        match action:
            case Send():
                scheduler.replied(action.expected_reply or REPLY, now, now + 1)
                now += 1
                messages += 1
            case AskModel():
                scheduler.answered("{}", now)
            case Evaluate():
                scheduler.evaluated(Evaluation(0.0, 1.0))
            case Travel(to):
                now = to
            case Done():
                return messages
            case _:
                pass
