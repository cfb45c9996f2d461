"""A child: an evaluation, made and executed in this process.

Argument: ``suite`` (an eval file beside its ``targets.yaml``). Reports what making and executing it took, the most memory
that was resident, and the scores.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

from benchmarks.children import Meter, arguments, peak_memory, report
from manyhands.core.jsonio import loads
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.execution import execute_run
from manyhands.workloads.evals.making import open_eval
from manyhands.workloads.evals.settings import EvalSpec


def main() -> None:
    suite = Path(arguments()["suite"])
    folder = suite.parent
    given = {"targets": str(folder / "targets.yaml"), "data_dir": str(folder), "run_name": "run"}
    making = Meter()
    options = EvalSpec.make({"eval_files": [str(suite)], **given})
    session = run_on_loop(open_eval(options, resume=False, notice=lambda text: None, environ=os.environ))
    made, executing = making.read(), Meter()
    result = run_on_loop(execute_run(session))
    executed = executing.read()
    summary = loads((session.folder / "eval_summary.json").read_bytes())
    scores = {"passed": summary["tests"]["passed"], "mean": summary["mean_score"]["value"]}
    report(
        make=asdict(made),
        execute=asdict(executed),
        memory=peak_memory(),
        completed=result.ledger["completed"],
        **scores,
    )


if __name__ == "__main__":
    main()
