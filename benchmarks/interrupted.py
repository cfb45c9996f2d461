"""A child: a batch that is stopped in good order when some items have finished; those in flight finish too.

Arguments: ``settings`` of ``BatchSpec``, ``stop_at``: how many. Reports the ledger.
"""

from __future__ import annotations

from benchmarks.batch import opened
from benchmarks.children import arguments, report
from manyhands.core.outcomes import Outcome
from manyhands.engine.contract import Item
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.execution import Controls, execute_run


def main() -> None:
    given = arguments()
    session = run_on_loop(opened(given["settings"]))
    controls, finished = Controls(), 0

    def count(item: Item, outcome: Outcome) -> None:
        nonlocal finished
        finished += 1
        if finished == given["stop_at"]:
            controls.stop()

    result = run_on_loop(execute_run(session, controls=controls, on_outcome=count))
    report(ledger=result.ledger)


if __name__ == "__main__":
    main()
