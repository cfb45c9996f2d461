"""``statistics.json``: the items of a run, added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Literal, NotRequired, TypedDict, cast

from manyhands.core.messages import text_of
from manyhands.core.outcomes import ItemState
from manyhands.core.usage import TokenFigures, Usage
from manyhands.workloads.trajectories.lines.entry import local_time, system_digest
from manyhands.workloads.trajectories.records import (
    ADOPTED,
    EXIT_CODE,
    NO_REASONING,
    ReasoningCounts,
    ReasoningFigures,
)

Program = Literal["manyhands", "original"]
PromptOwner = Literal["run", "rows", "not recorded", "not listed"]
_Maker = tuple[Program, str, PromptOwner, str | None]
"""Program, model, whose the system prompt was, and that of the run. A row's own is not kept: there may be a million."""


class ToolFigures(TypedDict):
    """Calls of one tool, with rates in percent."""

    count: int
    success: int
    failure: int
    success_rate: float
    failure_rate: float


class ItemCounts(TypedDict):
    """Items by how they ended."""

    completed: int
    discarded: int
    failed: int
    cancelled: int
    pending: int


class MakerFigures(TypedDict):
    """Trajectories that the same program, model and system prompt made."""

    program: Program
    model: str
    trajectories: int
    system_prompt_of: PromptOwner
    system_prompt: str | None
    """As it was sent, if it was the run's."""
    system_prompt_digest: str


class ScoreFigures(TypedDict):
    """What graders found."""

    graded: int
    mean: float | None
    """From 0 to 1; null if nothing was graded."""
    verdicts: dict[str, int]
    clipped: NotRequired[int]
    """Of tasks: rewards below 0 or above 1, whose scores are 0 or 1; if there are any."""


class TagFigures(TypedDict):
    """Tags inside of texts that were escaped."""

    trajectories: int
    """Trajectories that have any."""
    tags: int


class Statistics(TypedDict):
    """What ``statistics.json`` holds: the figures of a run of trajectories."""

    run_name: str
    distribution: str
    total_prompts: int
    """Usable rows of the dataset."""
    total_batches: int
    batch_size: int
    model: str
    completed_at: str
    """Local time, ISO 8601."""
    duration_seconds: float
    tool_statistics: dict[str, ToolFigures]
    """By tool, of completed items."""
    reasoning_statistics: ReasoningFigures
    discarded_no_reasoning: int
    items: ItemCounts
    discarded: dict[str, int]
    """By reason."""
    failures: dict[str, int]
    """By cause."""
    stop_reasons: dict[str, int]
    api_calls: int
    adopted: int
    """Trajectories that the original program made."""
    made_by: list[MakerFigures]
    usage: TokenFigures
    """Of the whole run, abandoned attempts included."""
    cost: float
    """US dollars, of the same."""
    simulated: bool
    """Whether a simulated model answered."""
    samples: NotRequired[int]
    """Trajectories per row."""
    skipped_rows: NotRequired[int]
    """Rows of the dataset that can't be used."""
    removed_items: NotRequired[int]
    """Items of rows that the dataset lost."""
    escaped_tags: NotRequired[TagFigures]
    exit_codes: NotRequired[dict[str, int]]
    """Of a run with ``--agent_command`` or ``--agent oracle``: programs that ended with another exit code than 0, by that."""
    scores: NotRequired[ScoreFigures]
    """Of a run with graders."""
    not_best: NotRequired[int]
    """Of a run with ``--best_of``: trajectories that are not the best of their row."""
    kept_without_reasoning: NotRequired[int]
    """Of a run with ``--keep_unreasoned``: trajectories without any reasoning."""


class RunStatistics:
    """Adds up the items of a run, one at a time; what it holds does not grow with their number."""

    def __init__(self) -> None:
        self._states: Counter[str] = Counter()
        self._discarded: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._stop_reasons: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._failed_calls: Counter[str] = Counter()
        self._turns = 0
        self._reasoned = 0
        self.unreasoned = 0
        """Trajectories without any reasoning."""
        self._api_calls = 0
        self._makers = ModelCounts()
        self._exit_codes: Counter[int] = Counter()

    def add(
        self,
        state: ItemState | str,
        record: Mapping[str, Any] | None = None,
        *,
        reason: str | None = None,
        cause: str | None = None,
    ) -> None:
        """Take an item into account.

        ``record``: what ``result_record`` or ``record_of_entry`` gave. Tools, turns and stop reasons are counted for
        completed items only, as those are what the trajectories hold. ``reason``: why it was discarded;
        ``cause``: why it failed.
        """
        state = ItemState(state)
        self._states[state.value] += 1
        if state is ItemState.DISCARDED:
            self._discarded[reason or "unknown"] += 1
        elif state in (ItemState.FAILED, ItemState.CANCELLED):
            self._failures[cause or "unknown"] += 1
        if not record:
            return
        if code := record.get(EXIT_CODE):
            self._exit_codes[code] += 1
        if state is ItemState.COMPLETED:
            self._add_trajectory(record)

    def add_pending(self, items: int) -> None:
        """Take items into account that have not ended."""
        if items:
            self._states[ItemState.PENDING.value] += items

    def to_json(
        self,
        *,
        run_name: str,
        distribution: str,
        total_prompts: int,
        batch_size: int,
        model: str,
        completed_at: float,
        duration_seconds: float,
        usage: Usage,
        simulated: bool = False,
    ) -> Statistics:
        """The content of ``statistics.json``: the original's keys first, in its order.

        ``total_prompts``: all items of the run; ``completed_at``: seconds since 1970 UTC; ``usage``: of the whole run,
        abandoned attempts included.
        """
        spent = usage.to_json()
        cost = float(spent.pop("cost"))
        return {
            "run_name": run_name,
            "distribution": distribution,
            "total_prompts": total_prompts,
            "total_batches": -(-total_prompts // batch_size),
            "batch_size": batch_size,
            "model": model,
            "completed_at": local_time(completed_at),
            "duration_seconds": round(float(duration_seconds), 2),
            "tool_statistics": self._tool_statistics(),
            "reasoning_statistics": ReasoningCounts(self._turns, self._reasoned).to_json(),
            "discarded_no_reasoning": self._discarded[NO_REASONING],
            "items": cast(ItemCounts, {state: self._states[state] for state in _STATES}),
            "discarded": _sorted(self._discarded),
            "failures": _sorted(self._failures),
            "stop_reasons": _sorted(self._stop_reasons),
            "api_calls": self._api_calls,
            "adopted": self._makers.adopted,
            "made_by": self._makers.to_json(),
            "usage": cast(TokenFigures, spent),
            "cost": round(cost, 8),
            "simulated": simulated,
            **self._exit_code_figures(),  # type: ignore[typeddict-item]
        }

    def _exit_code_figures(self) -> dict[str, dict[str, int]]:
        codes = {str(code): self._exit_codes[code] for code in sorted(self._exit_codes)}
        return {"exit_codes": codes} if codes else {}

    def _add_trajectory(self, record: Mapping[str, Any]) -> None:
        if stop_reason := record.get("stop_reason"):
            self._stop_reasons[stop_reason] += 1
        self._api_calls += record.get("api_calls", 0)
        self._makers.add(record)
        for name, (calls, failures) in (record.get("tools") or {}).items():
            self._calls[name] += calls
            self._failed_calls[name] += failures
        turns, reasoned = record.get("reasoning") or (0, 0)
        self._turns += turns
        self._reasoned += reasoned
        self.unreasoned += not reasoned

    def _tool_statistics(self) -> dict[str, ToolFigures]:
        return {name: tool_rates(self._calls[name], self._failed_calls[name]) for name in sorted(self._calls)}


class ModelCounts:
    """Counts trajectories by what made them: program, model and system prompt."""

    def __init__(self) -> None:
        self._counts: Counter[_Maker] = Counter()
        self.adopted = 0
        """Those that the original program made."""

    def add(self, record: Mapping[str, Any]) -> None:
        """``record``: of a completed item."""
        maker = _maker(record)
        self.adopted += maker[0] == ORIGINAL
        if maker in self._counts or len(self._counts) < MAX_MAKERS:
            self._counts[maker] += 1
        else:
            self._counts[(maker[0], "", NOT_LISTED, None)] += 1

    def to_json(self) -> list[MakerFigures]:
        """The largest count first."""
        return [
            {
                "program": program,
                "model": model,
                "trajectories": count,
                "system_prompt_of": whose,
                "system_prompt": prompt,
                "system_prompt_digest": system_digest(prompt),
            }
            for (program, model, whose, prompt), count in self._counts.most_common()
        ]


OWN_PROGRAM: Final = "manyhands"
ORIGINAL: Final = "original"
RUN: Final = "run"
ROWS: Final = "rows"
NOT_RECORDED: Final = "not recorded"
NOT_LISTED: Final = "not listed"
MAX_MAKERS = 100
"""Makers that are listed one by one."""


def _maker(record: Mapping[str, Any]) -> _Maker:
    if line := record.get(ADOPTED):
        metadata = line.get("metadata")
        model = metadata.get("model") if isinstance(metadata, Mapping) else None
        return ORIGINAL, text_of(model), NOT_RECORDED, None
    model = record.get("model", "")
    if record.get("own_system"):
        return OWN_PROGRAM, model, ROWS, None
    prompt = record.get("system_prompt")
    return OWN_PROGRAM, model, NOT_RECORDED if prompt is None else RUN, prompt


class ScoreStatistics:
    """Adds up what graders found."""

    def __init__(self) -> None:
        self._verdicts: Counter[str] = Counter()
        self._sum = 0.0
        self._clipped = 0

    def add(self, grade: Mapping[str, Any] | None) -> None:
        """``grade``: of an item's record; None if it was not graded."""
        if grade is not None and grade["score"] is not None:
            self._verdicts[grade["verdict"]] += 1
            self._sum += grade["score"]
            self._clipped += "clipped" in grade

    def to_json(self) -> ScoreFigures:
        """The object of ``statistics.json``."""
        graded = self._verdicts.total()
        return {
            "graded": graded,
            "mean": round(self._sum / graded, 6) if graded else None,
            "verdicts": {verdict: self._verdicts[verdict] for verdict in ("pass", "borderline", "fail")},
            **({"clipped": self._clipped} if self._clipped else {}),  # type: ignore[typeddict-item]
        }


def tool_rates(calls: int, failures: int) -> ToolFigures:
    """Counts of one tool with rates in percent, two decimals."""
    successes = calls - failures
    return {
        "count": calls,
        "success": successes,
        "failure": failures,
        "success_rate": round(100 * successes / calls, 2) if calls else 0.0,
        "failure_rate": round(100 * failures / calls, 2) if calls else 0.0,
    }


_STATES = tuple(state.value for state in ItemState if state.final or state is ItemState.PENDING)


def _sorted(counter: Counter[str]) -> dict[str, int]:
    return {name: counter[name] for name in sorted(counter) if counter[name]}
