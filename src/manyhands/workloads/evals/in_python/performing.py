"""Executes an evaluation in a program: on its event loop, on one of our own, or beside one that is running."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from manyhands.core.jsonio import loads
from manyhands.core.outcomes import Outcome
from manyhands.engine.contract import Item, ItemRow
from manyhands.engine.journal.reader import JournalReader
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.execution import Controls, RunResult, execute_run
from manyhands.runs.exit_codes import ExitCode
from manyhands.runs.making import Opened
from manyhands.runs.parameters import PythonWords
from manyhands.runs.progress import Notes, Notice
from manyhands.workloads.evals.evalfile.sources.given import NOTHING, Given
from manyhands.workloads.evals.in_python.evaluation import EvalCounts, Evaluation
from manyhands.workloads.evals.making import open_eval
from manyhands.workloads.evals.results.result_lines import TestResult, results
from manyhands.workloads.evals.results.summary import SUMMARY, EvalSummary, exit_code, notes
from manyhands.workloads.evals.results.writing import results_of
from manyhands.workloads.evals.settings import EvalSpec
from manyhands.workloads.evals.workload import EvalsWorkload

WORDS = PythonWords(EvalSpec)
OnResult = Callable[[TestResult], object]
_LOOK_SECONDS = 0.2
"""Between looks for Ctrl-C, where another thread does the work."""


@dataclass(frozen=True, slots=True)
class EvalCall:
    """What an evaluation is asked to do."""

    options: EvalSpec
    notice: Notice
    """Gets lines that a person should see."""
    given: Given = NOTHING
    on_result: OnResult | None = None
    """Gets each result as soon as it is known; what it raises stops the run."""


async def perform(call: EvalCall, controls: Controls) -> Evaluation:
    """Make or continue the run, and execute it. Raises UserError (RunError), StorageError, in the words of Python callers."""
    told = Notes(lambda text: call.notice(text))

    def tell(text: str) -> None:
        told(WORDS.text(text))

    with WORDS.errors():
        options = call.options
        session = await open_eval(
            options, resume=options.resume, notice=tell, environ=os.environ, tell=tell, given=call.given
        )
        news = _News(session.workload, call.on_result)
        result = await execute_run(
            session,
            notice=tell,
            controls=controls,
            on_outcome=None if call.on_result is None else news.ended,
            on_wait=tell,
        )
        if result.error is not None:
            raise result.error
    evaluation = _evaluation(session, result, told)
    news.tell_rest(evaluation)
    return evaluation


class _News:
    """Tells of the result of each test once all its samples have ended."""

    def __init__(self, workload: EvalsWorkload, on_result: OnResult | None) -> None:
        self._thresholds = workload.prepared.thresholds
        self._on_result = on_result
        self._samples: dict[tuple[Any, ...], list[ItemRow]] = {}
        """Of tests some samples of which have ended in this session."""

    def ended(self, item: Item, outcome: Outcome) -> None:
        payload = item.payload
        key = _key(payload["dataset"], payload["test"]["id"] if "test" in payload else item.key, payload.get("target"))
        rows = self._samples.setdefault(key, [])
        rows.append(_row(item, outcome))
        if len(rows) == payload.get("trials", 1):
            rows.sort(key=lambda row: row.payload.get("trial", 0))
            found = next(results(rows, self._thresholds))
            self._tell(key, found)

    def tell_rest(self, evaluation: Evaluation) -> None:
        """Tell of tests whose other samples had ended before."""
        for result in evaluation.results if self._samples else ():
            key = _key(result.dataset, result.test_id, result.target)
            if key in self._samples:
                self._tell(key, result)

    def _tell(self, key: tuple[Any, ...], result: TestResult) -> None:
        del self._samples[key]
        if self._on_result is not None:
            self._on_result(result)


def _key(dataset: str, test_id: str | None, target: str | None) -> tuple[str, str | None, str | None]:
    return dataset, test_id, target


def _row(item: Item, outcome: Outcome) -> ItemRow:
    """An item that has just ended, as the journal holds it."""
    return ItemRow(
        number=item.number,
        key=item.key,
        payload=item.payload,
        state=outcome.state,
        attempt=1,
        performances=1,
        failures=0,
        reason=outcome.reason,
        cause=outcome.cause,
        message=outcome.message,
        record=outcome.record,
        started_at=None,
        finished_at=None,
        position=0,
    )


def _evaluation(session: Opened[EvalsWorkload], result: RunResult, told: Notes) -> Evaluation:
    prepared, folder = session.workload.prepared, session.folder.absolute()
    with closing(JournalReader(folder)) as reader:
        found = tuple(results_of(reader, prepared, folder))
    figures: EvalSummary = loads((folder / SUMMARY).read_bytes())
    for line in notes(figures):
        told.keep(WORDS.text(line))
    if result.nothing_kept is not None:
        told.keep(WORDS.text(result.nothing_kept))
    code = exit_code(result, figures, "any", ungraded=prepared.options.allow_ungraded)
    counts = EvalCounts.of(figures)
    stopped = None if result.stopped is None or result.done else WORDS.text(result.stopped)
    passed = code == ExitCode.DONE and counts.total > 0
    return Evaluation(found, counts, figures, folder, passed, stopped, told.lines)


# --- Where it is executed


def perform_here(call: EvalCall) -> Evaluation:
    """Execute it on a loop of its own, in this thread, or in another one if a loop is running in this one already.

    The first Ctrl-C finishes the calls in flight and ends the run in good order, the second stops at once; KeyboardInterrupt follows.
    Signal handlers are installed in the main thread alone, and where Ctrl-C means what it does by default.
    """
    controls = Controls()
    evaluation = _in_own_thread(call, controls) if _is_in_loop() else _on_own_loop(call, controls)
    if controls.stopping and evaluation.stopped is not None:
        raise KeyboardInterrupt(f"the run {evaluation.run_name} can be continued with run_name and resume=True")
    return evaluation


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _on_own_loop(call: EvalCall, controls: Controls) -> Evaluation:
    ours = threading.current_thread() is threading.main_thread()
    ours = ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler

    async def work() -> Evaluation:
        if not ours:
            return await perform(call, controls)
        with _ended_by_interrupt(call, controls):
            return await perform(call, controls)

    return run_on_loop(work())


@contextmanager
def _ended_by_interrupt(call: EvalCall, controls: Controls) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, _stop, call, controls)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _stop(call: EvalCall, controls: Controls) -> None:
    again = "stopping at once" if controls.stopping else "stopping: the calls in flight are finished first"
    call.notice(again if controls.stopping else f"{again} (press Ctrl-C again to stop at once)")
    controls.stop()


def _in_own_thread(call: EvalCall, controls: Controls) -> Evaluation:
    work = BackgroundEvaluation(call, controls)
    while True:
        try:
            if work.wait(_LOOK_SECONDS):
                return work.evaluation()
        except KeyboardInterrupt:
            work.stop()


class BackgroundEvaluation:
    """An evaluation in a thread of its own."""

    def __init__(self, call: EvalCall, controls: Controls | None = None) -> None:
        self._call = call
        self._controls = controls or Controls()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._found: Evaluation | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="manyhands evaluation", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait so long at most; whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """As the first Ctrl-C, and the second."""
        loop = self._loop
        if loop is None or loop.is_closed():
            self._controls.stop()
        else:
            loop.call_soon_threadsafe(_stop, self._call, self._controls)

    def evaluation(self) -> Evaluation:
        """What came of it, once it has ended. Raises what it raised."""
        if self._error is not None:
            raise self._error
        assert self._found is not None
        return self._found

    def _work(self) -> None:
        async def work() -> Evaluation:
            self._loop = asyncio.get_running_loop()
            return await perform(self._call, self._controls)

        try:
            self._found = run_on_loop(work())
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            self._error = error
