"""The ledger: where every item of a run stands, and what it all cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NotRequired, TypedDict, cast

from manyhands.core.outcomes import ItemState
from manyhands.core.text import counted
from manyhands.core.usage import Usage, UsageFigures
from manyhands.engine.journal.reader import JournalReader

LIMIT = "limit"
"""The fact how many items, from the beginning of the input, are executed; the run has none where all are."""
REMOVED = "removed"
"""The reason of items that were cancelled because the input does not have them any more."""
BEYOND_LIMIT = "beyond_limit"
"""In the place of a cause: items that are pending because they are behind the limit."""
ORDER = (ItemState.COMPLETED, ItemState.DISCARDED, ItemState.FAILED, ItemState.CANCELLED, ItemState.PENDING)
"""The states of the ledger. An item that runs at the moment counts as pending, because it has not ended."""


REPLICAS = "replicas"
"""The fact in the journal that says where the replicas stand."""


class Ledger(TypedDict):
    """Where the items of a run stand. Each is in exactly one of the five states."""

    items: int
    """The sum of the states."""
    completed: int
    discarded: int
    failed: int
    cancelled: int
    pending: int
    """Those that are being executed included."""
    skipped: NotRequired[int]
    """What of the input became no items because it can't be used: rows, each as often as it was to be sampled. Absent if there are none.
    Of the input there were so many besides ``items``."""
    by_cause: dict[str, dict[str, int]]
    """By state, and then by the cause of a failure or the reason of a discard; of pending items, those beyond the run's limit."""


class RunUsage(UsageFigures):
    """What the calls of a run used and cost, those of abandoned attempts included."""

    total_tokens: int
    """Input and output."""


class ToolUsage(UsageFigures):
    """What the paid requests of a tool used and cost: those to models and services, made within its calls."""

    tool: str


class LastSession(TypedDict):
    """How the run was last executed."""

    ending: str | None
    """How that ended; null while it goes on, or after a crash."""
    ended_at: str | None
    paused_at: str | None
    """Since when it is paused, or was when it was killed; null if it was not."""


class Interruptions(TypedDict):
    """Executions of items that ended because their workers were lost: the process died, or the machine that it was on."""

    went_on: int
    """Those that go on from their last recorded steps."""
    afresh: int
    """Those that a fresh attempt followed, as what the item had elsewhere was lost, too."""


class Summary(TypedDict):
    """What ``summary.json`` holds: a run of any workload in figures. Times are RFC 3339, UTC."""

    run_id: str
    workload: str
    created_at: str | None
    seed: int
    version: str
    """Of the program that made the run."""
    ledger: Ledger
    usage: RunUsage
    tools: list[ToolUsage]
    """What of that tools used and cost, by their names; empty if none paid for anything."""
    interruptions: NotRequired[Interruptions]
    """Absent if there were none."""
    simulated: bool
    """Whether a simulated model answered."""
    working_seconds: float
    """Seconds in which the run was executed, all sessions together."""
    last_session: LastSession | None


def ledger(counts: dict[tuple[str, str], int], beyond: int = 0) -> Ledger:
    """The ledger of what ``JournalReader.counts`` gives. ``beyond``: how many items are beyond the limit."""
    states = dict.fromkeys(ORDER, 0)
    details: dict[str, dict[str, int]] = {}
    for (name, detail), items in sorted(counts.items()):
        state = ItemState.PENDING if name == ItemState.RUNNING else ItemState(name)
        states[state] += items
        if detail and state.final:
            details.setdefault(state.value, {})[detail] = items
    if beyond:
        details[ItemState.PENDING.value] = {BEYOND_LIMIT: beyond}
    values = {"items": sum(states.values()), **{state.value: n for state, n in states.items()}, "by_cause": details}
    return cast(Ledger, values)


def ledger_of(reader: JournalReader, spec: Any = None) -> Ledger:
    """The ledger of a run. ``spec``: as it is recorded, where it may say what of the input was skipped."""
    counts, limit = reader.counts(), reader.meta(LIMIT)
    found = ledger(counts) if limit is None else ledger(counts, ledger(counts)["pending"] - reader.left(limit))
    skipped = _skipped(spec)
    return {**found, "skipped": skipped} if skipped else found


def _skipped(spec: Any) -> int:
    """How much of the input of a run can't be used, where its spec counts that."""
    if not isinstance(spec, dict) or not isinstance(spec.get("bad_count"), int):
        return 0
    samples = (spec.get("options") or {}).get("samples")
    return int(spec["bad_count"]) * (samples if isinstance(samples, int) else 1)


def left_to_do(found: Ledger) -> int:
    """How many items are to be executed yet: those beyond the limit are not."""
    return found["pending"] - found["by_cause"].get(ItemState.PENDING.value, {}).get(BEYOND_LIMIT, 0)


def summarise(reader: JournalReader, spec: Any = None) -> Summary:
    """A run in figures. ``spec``: as for ``ledger_of``."""
    usage = reader.usage()
    session = reader.last_session()
    facts = reader.facts("run_id", "workload", "created_at", "seed", "version")
    return {
        "run_id": facts["run_id"],
        "workload": facts["workload"],
        "created_at": timestamp(facts["created_at"]),
        "seed": facts["seed"],
        "version": facts["version"],
        "ledger": ledger_of(reader, spec),
        "usage": cast(RunUsage, {**usage.to_json(), "total_tokens": usage.total_tokens, "cost": round(usage.cost, 6)}),
        "tools": tool_usages(reader.accounts()),
        **_interruptions(reader),
        "simulated": usage.simulated_calls > 0,
        "working_seconds": round(reader.working_seconds(), 3),
        "last_session": None
        if session is None
        else {
            "ending": session.ending,
            "ended_at": timestamp(session.ended_at),
            "paused_at": timestamp(session.paused_at),
        },
    }


class _Interrupted(TypedDict, total=False):
    interruptions: Interruptions


def _interruptions(reader: JournalReader) -> _Interrupted:
    count, afresh = reader.interruptions()
    return {"interruptions": {"went_on": count - afresh, "afresh": afresh}} if count else {}


def interruptions_text(summary: Summary) -> str | None:
    """How often items were cut off, in a sentence; None if none was."""
    found = summary.get("interruptions")
    if found is None:
        return None
    count = found["went_on"] + found["afresh"]
    return (
        f"workers were lost in the middle of {counted(count, 'execution')}: {found['went_on']:,} went on from the last recorded step, "
        f"{found['afresh']:,} started afresh"
    )


def tool_usages(accounts: Mapping[str, Usage]) -> list[ToolUsage]:
    """What tools used, the dearest first. ``accounts``: as the journal has them, by the tools' names."""
    dearest = sorted(accounts.items(), key=lambda each: (-each[1].cost, each[0]))
    return [cast(ToolUsage, {"tool": name, **usage.to_json(), "cost": round(usage.cost, 6)}) for name, usage in dearest]


OTHER_CALLS = "all other calls"


def shares(usage: UsageFigures, tools: Sequence[ToolUsage]) -> Iterator[tuple[str, Usage]]:
    """What each tool used, and all other calls: together that is ``usage``."""
    used = [(each["tool"], Usage.from_json(dict(each))) for each in tools]
    yield from used
    yield OTHER_CALLS, Usage.from_json(dict(usage)).without(sum((each for _, each in used), Usage()))


def timestamp(time: float | None) -> str | None:
    """Seconds since 1970 as RFC 3339 UTC, to the second."""
    return None if time is None else datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
