"""The ledger: where every item of a run stands, and what it all cost."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from manyhands.core.outcomes import ItemState
from manyhands.engine.journal.reader import JournalReader

ORDER = (ItemState.COMPLETED, ItemState.DISCARDED, ItemState.FAILED, ItemState.CANCELLED, ItemState.PENDING)
"""The states of the ledger. An item that runs at the moment counts as pending, because it has not ended."""


def ledger(counts: dict[tuple[str, str], int]) -> dict[str, Any]:
    """``items`` = the sum of the states, and the details of each: ``{"items", "completed", …, "by_cause": {state: {detail: n}}}``."""
    states = dict.fromkeys(ORDER, 0)
    details: dict[str, dict[str, int]] = {}
    for (name, detail), items in sorted(counts.items()):
        state = ItemState.PENDING if name == ItemState.RUNNING else ItemState(name)
        states[state] += items
        if detail and state.final:
            details.setdefault(state.value, {})[detail] = items
    return {"items": sum(states.values()), **{state.value: n for state, n in states.items()}, "by_cause": details}


def summarise(reader: JournalReader) -> dict[str, Any]:
    """A run in figures, as a JSON object. Times are RFC 3339 UTC; cost is in US dollars."""
    usage = reader.usage()
    session = reader.one("last_session")
    return {
        "run_id": reader.meta("run_id"),
        "workload": reader.meta("workload"),
        "created_at": timestamp(reader.meta("created_at")),
        "seed": reader.meta("seed"),
        "version": reader.meta("version"),
        "ledger": ledger(reader.counts()),
        "usage": {**usage.to_json(), "total_tokens": usage.total_tokens, "cost": round(usage.cost, 6)},
        "simulated": usage.simulated_calls > 0,
        "working_seconds": round(reader.working_seconds(), 3),
        "last_session": None if session is None else {"ending": session[6], "ended_at": timestamp(session[5])},
    }


def timestamp(time: float | None) -> str | None:
    """Seconds since 1970 as RFC 3339 UTC, to the second."""
    return None if time is None else datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
