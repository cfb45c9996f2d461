"""What every item would be refused stops the run before all of them have failed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.text import shape
from manyhands.core.usage import Reserve
from manyhands.engine.contract import CallReport, Context
from manyhands.engine.discards import nothing_kept
from manyhands.engine.limits.shared import MAX_REFUSALS, Refusals
from manyhands.runs.execution import RunResult, execute_run
from manyhands.runs.making import Opened, create_run
from tests.support.engine_runs import ProgramWorkload

Answer = Callable[[Context], str | None]


def asking(answers: Answer, cause: Cause = Cause.MODEL_REFUSED) -> Callable[..., object]:
    """A program that makes one call; ``answers`` gives the refusal, or None."""

    async def program(context: Context) -> Outcome:
        permit = await context.limits.acquire("key", Reserve(model="m"))
        said = answers(context)
        report = CallReport()
        if said is not None:
            report = CallReport(failed=True, said=said, refused=True, by_content="HTTP 400" in said)
        context.limits.release(permit, report)
        if said is None:
            return Outcome(ItemState.COMPLETED)
        raise ItemError(cause, f"judge: {said} (4 tries)")

    return program


async def executed(folder: Path, program: Callable[..., object], items: int, **execution: object) -> RunResult:
    workload = ProgramWorkload(program, map(str, range(items)), **execution)  # type: ignore[arg-type]
    if not folder.exists():
        create_run(folder, "program", workload, version="test", notice=lambda text: None)
    return await execute_run(Opened(folder, workload, retry_failed=False))


@pytest.mark.parametrize("cause", [Cause.MODEL_REFUSED, Cause.GRADER_ERROR, Cause.TARGET_ERROR])
async def test_twenty_refusals_stop_the_run_and_use_up_nothing(tmp_path: Path, cause: Cause) -> None:
    asked: list[str] = []

    def refuse(context: Context) -> str:
        asked.append(context.item.key)
        return f"HTTP 404: no such model (request req_{len(asked):04}abcdef)"

    result = await executed(tmp_path / "r", asking(refuse, cause), 100, concurrency=3)
    assert MAX_REFUSALS <= len(asked) <= MAX_REFUSALS + 3
    assert (result.exit_code, result.ledger["pending"], result.ledger["failed"]) == (1, 100, 0)
    assert "HTTP 404: no such model" in (result.stopped or "")
    assert [note for note in result.notes if "refused" in note] == [
        "refused: HTTP 404: no such model (request req_0001abcdef)"
    ]
    again = await executed(tmp_path / "r", asking(lambda context: None), 100)
    assert (again.exit_code, again.ledger["completed"]) == (0, 100)


async def test_a_few_items_that_are_all_refused_fail(tmp_path: Path) -> None:
    result = await executed(tmp_path / "r", asking(lambda context: "no such model"), MAX_REFUSALS - 1)
    assert (result.exit_code, result.stopped, result.ledger["failed"]) == (1, None, MAX_REFUSALS - 1)


async def test_where_failures_are_counted_each_counts_at_once(tmp_path: Path) -> None:
    failed: list[str] = []

    def stops(item: object, outcome: Outcome) -> str | None:
        failed.append(str(outcome.message))
        return "two have failed" if len(failed) == 2 else None

    program = asking(lambda context: "no such model")
    result = await executed(tmp_path / "r", program, 50, concurrency=1, stop_reason=stops, counts_failures=True)
    assert (result.stopped, result.ledger["failed"], result.ledger["pending"]) == ("two have failed", 2, 48)


async def test_a_refusal_among_answers_fails_its_item(tmp_path: Path) -> None:
    def some(context: Context) -> str | None:
        return "unreadable image" if int(context.item.key) % 2 else None

    result = await executed(tmp_path / "r", asking(some), 100)
    assert (result.stopped, result.ledger["failed"], result.ledger["completed"]) == (None, 50, 50)


async def test_a_model_that_is_taken_away_in_the_middle(tmp_path: Path) -> None:
    result = await executed(
        tmp_path / "r", asking(lambda context: "gone" if int(context.item.key) >= 30 else None), 100, concurrency=1
    )
    assert (result.ledger["completed"], result.ledger["pending"], result.ledger["failed"]) == (30, 70, 0)
    assert "gone" in (result.stopped or "")


async def test_many_items_of_their_own_fault_keep_no_others_from_being_answered(tmp_path: Path) -> None:
    asked: list[int] = []

    def some(context: Context) -> str | None:
        asked.append(int(context.item.key))
        return "HTTP 400: inappropriate content" if asked[-1] < 50 else None

    for session in (1, 2):
        result = await executed(tmp_path / "r", asking(some), 100, concurrency=1)
        assert (result.ledger["pending"], len(asked)) == (100, session * MAX_REFUSALS)
    result = await executed(tmp_path / "r", asking(some), 100, concurrency=1)
    assert (result.stopped, result.ledger["failed"], result.ledger["completed"]) == (None, 50, 50)
    assert asked == [*range(100), *range(2 * MAX_REFUSALS)]


async def test_refused_items_end_before_those_that_wait_for_them(tmp_path: Path) -> None:
    """Others are held until the first has ended: its end must not wait for them."""
    ended: list[str] = []
    freed: list[int] = []

    def stops(item: object, outcome: Outcome) -> None:
        ended.append(getattr(item, "key", ""))
        if len(ended) == 1:
            freed.extend((2, 3))

    def taken() -> list[int]:
        given, freed[:] = list(freed), []
        return given

    result = await executed(
        tmp_path / "r",
        asking(lambda context: "no such model"),
        3,
        concurrency=3,
        must_wait=lambda item: item.key != "0" and not ended,
        freed=taken,
        stop_reason=stops,
    )
    assert (result.ledger["failed"], result.stopped) == (3, None)


async def test_different_refusals_are_counted_apart(tmp_path: Path) -> None:
    def by_item(context: Context) -> str:
        return f"refused: {'abcdefghij'[int(context.item.key) % 10] * 3}"

    result = await executed(tmp_path / "r", asking(by_item), 100)
    assert result.stopped is None
    assert result.ledger["failed"] == 100


def test_an_answer_of_another_model_ends_no_streak() -> None:
    refusals = Refusals()
    for number in range(MAX_REFUSALS):
        assert refusals.reason is None
        refusals.refused("m", f"HTTP 400: unknown parameter 'x' at 0x{number:08x}")
    assert refusals.reason is not None
    refusals.answered("other")
    assert refusals.explains("failed: HTTP 400: unknown parameter 'x' at 0x1")
    refusals.answered("m")
    assert not refusals.explains("failed: HTTP 400: unknown parameter 'x' at 0x1")


async def test_a_notice_that_breaks_stops_the_run(tmp_path: Path) -> None:
    workload = ProgramWorkload(asking(lambda context: "no"), "ab")  # type: ignore[arg-type]
    create_run(tmp_path / "r", "program", workload, version="test", notice=lambda text: None)

    def broken(text: str) -> None:
        raise RuntimeError("broken notice")

    with pytest.raises(RuntimeError, match="broken notice"):
        await execute_run(Opened(tmp_path / "r", workload), notice=broken)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("no model `m` (req_011CSHoEeqs5C35K2UUqR7Fy)", "no model `m` (req_99xxSHoEeqs5C35K2UUq0000)", True),
        ("try in 20 s", "try in 3 s", True),
        ("id 6ba7b810-9dad-11d1-80b4-00c04fd430c8", "id 00000000-9dad-11d1-80b4-00c04fd430c8", True),
        ("Unknown parameter: 'top_k'", "Unknown parameter: 'min_p'", False),
        ("The model `alpha` does not exist", "The model `beta` does not exist", False),
    ],
)
def test_the_shape_of_a_message(one: str, other: str, same: bool) -> None:
    assert (shape(one) == shape(other)) is same


# --- Everything discarded


def discarding(reasons: Callable[[int], str | None]) -> Callable[..., object]:
    async def program(context: Context) -> Outcome:
        reason = reasons(int(context.item.key))
        return Outcome(ItemState.COMPLETED) if reason is None else Outcome(ItemState.DISCARDED, reason=reason)

    return program


async def test_a_warning_for_each_kind_of_discard(tmp_path: Path) -> None:
    result = await executed(tmp_path / "r", discarding(lambda n: "dull" if n % 3 else "short"), 90)
    warnings = [note for note in result.notes if "discarded" in note]
    assert sorted(warnings) == [
        f"20 items were discarded ({kind}), and none is completed so far" for kind in ("dull", "short")
    ]
    assert result.nothing_kept == "nothing was completed: 90 items discarded (dull 60, short 30)"
    assert result.exit_code == 1
    again = await executed(tmp_path / "r", discarding(lambda n: None), 90)
    assert (again.exit_code, again.nothing_kept) == (1, result.nothing_kept)


async def test_one_completion_is_enough(tmp_path: Path) -> None:
    result = await executed(tmp_path / "r", discarding(lambda n: "dull" if n else None), 90, concurrency=1)
    assert (result.exit_code, result.nothing_kept, result.notes) == (0, None, ())


def test_nothing_kept_counts_what_failed_too() -> None:
    ledger = {
        "completed": 0,
        "discarded": 3,
        "failed": 2,
        "cancelled": 0,
        "pending": 0,
        "by_cause": {"discarded": {"a": 1, "b": 2}, "failed": {"timeout": 2}},
    }
    assert nothing_kept(ledger, {"b": "--keep_b keeps them"}) == (
        "nothing was completed: 3 items discarded (b 2, a 1), 2 failed (timeout 2); --keep_b keeps them"
    )
    assert nothing_kept({**ledger, "pending": 1}, {}) is None
    assert nothing_kept({**ledger, "discarded": 0}, {}) is None
