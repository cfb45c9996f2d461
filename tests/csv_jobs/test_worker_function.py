"""A Python function as a worker: found, called as it wants to be, and kept from doing harm."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.testing.context import Crash, CrashPoint, MemoryContext
from manyhands.workloads.csv_jobs.workers.function import FunctionWorker
from manyhands.workloads.csv_jobs.workers.reports import Accepted, Assignment
from tests.support.job_rows import SCORE_SCHEMA, assignment


async def call(function: Callable[..., Any], work: Assignment | None = None, **more: Any) -> Accepted:
    return await FunctionWorker("here:function", function).run(MemoryContext(**more), work or assignment())


async def failure(function: Callable[..., Any], work: Assignment | None = None) -> ItemError:
    with pytest.raises(ItemError) as caught:
        await call(function, work)
    return caught.value


# --- Finding it


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    before = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = before[0]
    for name in set(sys.modules) - before[1]:
        del sys.modules[name]


def loaded(name: str, folder: Path) -> FunctionWorker:
    return FunctionWorker.load(name, folder)


async def test_functions_of_modules_and_files_are_found(folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "beside_it.py").write_text("def f(row):\n    return {'from': 'beside'}\n")
    (folder / "inner" / "helper.py").write_text("NAME = 'inner'\n")
    source = "from helper import NAME\nclass A:\n    @staticmethod\n    def f(row):\n        import beside_it\n"
    (folder / "inner" / "work.py").write_text(source + "        return {'from': NAME, **row}\n")
    assert (await loaded("beside_it:f", folder).run(MemoryContext(), assignment())).result == {"from": "beside"}
    worker = loaded("inner/work.py:A.f", folder)
    accepted = await worker.run(MemoryContext(), assignment(row={"x": "1"}))
    assert accepted.result == {"from": "inner", "x": "1"}
    assert loaded(f"{folder}/inner/work.py:A.f", Path("/")) is not None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("work", "must be module:function or path/file.py:function, not 'work'"),
        (":f", "must be module:function"),
        ("no_such_module_anywhere:f", "no_such_module_anywhere can't be imported: ModuleNotFoundError"),
        ("none.py:f", "there is no file"),
        ("work.py:g", "work.py has no 'g'"),
        ("work.py:N", "work.py:N is not a function"),
        ("work.py:none", r"work.py:none must take the row, or the row and the assignment, not \(\)"),
        ("work.py:three", "must take the row"),
        ("work.py:named", "must take the row"),
        (
            "broken.py:f",
            r"broken.py can't be imported: ZeroDivisionError: division by zero \(in <module>, broken.py:2\)",
        ),
        ("wrong.py:f", "wrong.py can't be imported: SyntaxError"),
        ("leaves.py:f", "leaves.py can't be imported: SystemExit: 3"),
    ],
)
def test_what_can_not_be_called_is_refused_in_one_line(folder: Path, name: str, message: str) -> None:
    lines = "N = 3\ndef none(): pass\ndef three(a, b, c): pass\ndef named(*, row): pass\ndef f(row): pass\n"
    (folder / "work.py").write_text(lines)
    (folder / "broken.py").write_text("a = 1\nb = a / 0\n")
    (folder / "wrong.py").write_text("def f(:\n")
    (folder / "leaves.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(UserError, match=f"^--worker_function: .*{message}") as caught:
        loaded(name, folder)
    assert "\n" not in str(caught.value)


async def test_a_replay_needs_no_function(folder: Path) -> None:
    context = MemoryContext()
    accepted = await FunctionWorker("gone:f", lambda row: {"a": 1}).run(context, assignment())
    replayed = FunctionWorker.load("gone:f", folder, replay=True)
    assert await replayed.run(MemoryContext(context.journal), assignment()) == accepted


# --- Calling it


async def test_it_gets_the_row_and_the_assignment_if_it_wants() -> None:
    async def both(row: dict[str, Any], work: Assignment) -> Any:
        return {"row": row, "item": work.item_id}

    class Called:
        async def __call__(self, row: dict[str, Any]) -> Any:
            return row

    for function in (
        lambda row: {"row": row},
        lambda row, other=3: {"row": row, "other": other},
        lambda row, *, other=3: {"row": row, "other": other},
        lambda *rows: {"row": rows[0], "other": len(rows) + 2},
    ):
        assert (await call(function)).result.items() >= {"row": dict(assignment().row)}.items()
    assert (await call(lambda row, other=3: {"other": other})).result == {"other": 3}
    assert (await call(lambda row, assignment=None: {"item": assignment.item_id})).result == {"item": "row-1"}
    assert (await call(both)).result == {"row": dict(assignment().row), "item": "row-1"}
    assert (await call(Called())).result == dict(assignment().row)
    assert (await call(lambda row: Called()(row))).result == dict(assignment().row)


async def test_what_it_does_to_its_row_changes_nothing_else() -> None:
    work = assignment()
    assert (await call(lambda row: {"was": row.pop("path")}, work)).result == {"was": "a.rs"}
    assert dict(work.row) == {"path": "a.rs", "area": "core"}


@dataclasses.dataclass
class Score:
    score: int
    at: datetime


class Model(BaseModel):
    score: int
    at: datetime


AT = datetime(2024, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ({"a": (1, 2), 3: None}, {"a": [1, 2], "3": None}),
        (Score(3, AT), {"score": 3, "at": "2024-03-01T00:00:00+00:00"}),
        (Model(score=3, at=AT), {"score": 3, "at": "2024-03-01T00:00:00Z"}),
        ({"inner": Model(score=3, at=AT)}, {"inner": {"score": 3, "at": "2024-03-01T00:00:00Z"}}),
        ({"big": 10**30}, {"big": 10**30}),
        ({"set": {1}}, {"set": [1]}),
    ],
)
async def test_objects_become_json(value: Any, result: Any) -> None:
    accepted = await call(lambda row: value)
    assert (accepted.result, accepted.via, accepted.corrections) == (result, "function", 0)


@pytest.mark.parametrize("value", [{"a": object()}, {"a": lambda: 1}, {"a": b"\xff"}])
async def test_what_json_can_not_hold_is_named(value: Any) -> None:
    error = await failure(lambda row: value)
    assert error.cause is Cause.WORKER_ERROR
    assert error.message.startswith("here:function returned what JSON can't hold: ")


async def test_a_value_nested_without_end_is_no_crash() -> None:
    value: dict[str, Any] = {}
    value["self"] = value
    assert (await failure(lambda row: value)).cause is Cause.WORKER_ERROR


@pytest.mark.parametrize("value", [None, [1], "text", 3])
async def test_it_must_return_an_object(value: Any) -> None:
    error = await failure(lambda row: value)
    assert (error.cause, error.message) == (
        Cause.INVALID_OUTPUT,
        "the result does not fit: result must be a JSON object",
    )
    assert error.record == {"last_report": value, "violations": ["result must be a JSON object"]}


async def test_a_result_that_does_not_fit_is_kept_with_the_failure() -> None:
    context = MemoryContext()
    worker = FunctionWorker("here:f", lambda row: {"score": 30})
    with pytest.raises(ItemError) as caught:
        await worker.run(context, assignment(SCORE_SCHEMA))
    assert caught.value.record["last_report"] == {"score": 30}
    assert [step.output["result"] for step in context.steps] == [{"score": 30}]


async def test_a_result_is_recorded_before_it_counts_and_never_made_again() -> None:
    calls: list[int] = []

    def work(row: dict[str, Any]) -> dict[str, Any]:
        calls.append(1)
        return {"n": len(calls)}

    worker, context = FunctionWorker("here:f", work), MemoryContext(crash=CrashPoint(1, "after_recording"))
    with pytest.raises(Crash):
        await worker.run(context, assignment())
    accepted = await worker.run(MemoryContext(context.journal), assignment())
    assert (accepted.result, calls) == ({"n": 1}, [1])
    assert accepted.reported_at == context.steps[0].output["reported_at"]


# --- When it goes wrong


def raising(error: BaseException) -> list[Callable[..., Any]]:
    def sync(row: Any) -> Any:
        raise error.with_traceback(None)

    async def later(row: Any) -> Any:
        raise error.with_traceback(None)

    return [sync, later]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("no\nscore"), "here:function raised ValueError: no score (in {}, test_worker_function.py:"),
        (SystemExit(3), "here:function raised RuntimeError: SystemExit: 3 (in "),
        (KeyboardInterrupt(), "here:function raised RuntimeError: KeyboardInterrupt: (in "),
        (StopIteration(), "here:function raised RuntimeError: "),
        (GeneratorExit("odd"), "here:function raised RuntimeError: GeneratorExit: odd (in "),
        (TimeoutError("theirs"), "here:function raised TimeoutError: theirs"),
        (asyncio.CancelledError(), "here:function "),
        (UserError("stop everything"), "here:function raised UserError: stop everything"),
    ],
)
async def test_whatever_it_raises_fails_the_row_only(error: BaseException, message: str, number: int) -> None:
    found = await failure(raising(error)[number])
    assert found.cause is Cause.WORKER_ERROR
    assert found.message.startswith(message.format(("sync", "later")[number]))
    assert "\n" not in found.message


async def test_it_may_say_itself_how_the_row_failed() -> None:
    for function in raising(ItemError(Cause.INVALID_INPUT, "no such path", record={"a": 1})):
        error = await failure(function)
        assert (error.cause, error.message, error.record) == (Cause.INVALID_INPUT, "no such path", {"a": 1})


async def test_a_call_that_hangs_holds_nobody_up() -> None:
    release = threading.Event()

    def hang(row: Any) -> Any:
        release.wait(30)
        return {}

    async def stubborn(row: Any) -> Any:
        for _ in range(3):
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                await asyncio.sleep(0.3)
        return {}

    try:
        for function in (hang, stubborn):
            worker = FunctionWorker("here:f", function)
            began = time.monotonic()
            rows = [worker.run(MemoryContext(), assignment(max_seconds=0.2)) for _ in range(50)]
            errors = await asyncio.gather(*rows, return_exceptions=True)
            assert time.monotonic() - began < 15
            assert {str(error) for error in errors} == {"worker exceeded max runtime of 0.2s"}
            assert {getattr(error, "cause", None) for error in errors} == {Cause.TIMEOUT}
    finally:
        release.set()


HANGING = """
import asyncio, sys, time
from pathlib import Path
from manyhands.workloads.csv_jobs.workers.function import FunctionWorker
from tests.support.job_rows import assignment
from manyhands.testing.context import MemoryContext

async def main():
    worker = FunctionWorker("f", lambda row: time.sleep(60))
    try:
        await worker.run(MemoryContext(), assignment(max_seconds=0.1))
    except Exception as error:
        print(error)

asyncio.run(main())
"""


async def test_a_call_that_hangs_does_not_hold_up_the_end_of_the_program() -> None:
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", HANGING, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(child.communicate(), 20)
    assert (child.returncode, out) == (0, b"worker exceeded max runtime of 0.1s\n")


async def test_calls_run_at_the_same_time_each_in_a_thread_of_its_own() -> None:
    meeting = threading.Barrier(100)

    def meet(row: Any) -> Any:
        meeting.wait(10)
        return {"thread": threading.get_ident()}

    worker = FunctionWorker("here:f", meet)
    done = await asyncio.gather(*(worker.run(MemoryContext(), assignment()) for _ in range(100)))
    assert len({accepted.result["thread"] for accepted in done}) == 100
    again = FunctionWorker("here:f", lambda row: {"thread": threading.get_ident()})
    threads = [(await again.run(MemoryContext(), assignment())).result["thread"] for _ in range(5)]
    assert len(set(threads)) < len(threads)  # one that has given its result may not be free at once


async def test_a_cancelled_row_cancels_its_call() -> None:
    ended = threading.Event()

    async def wait(row: Any) -> Any:
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    row = asyncio.create_task(call(wait))
    await asyncio.sleep(0.05)
    row.cancel()
    with pytest.raises(asyncio.CancelledError):
        await row
    assert await asyncio.to_thread(ended.wait, 10)


async def test_a_call_costs_little() -> None:
    worker, count = FunctionWorker("here:f", lambda row: {"score": 3}), 2000
    gate = asyncio.Semaphore(64)

    async def one() -> None:
        async with gate:
            await worker.run(MemoryContext(), assignment(SCORE_SCHEMA))

    began = time.process_time()
    await asyncio.gather(*(one() for _ in range(count)))
    assert (time.process_time() - began) / count < 0.001
