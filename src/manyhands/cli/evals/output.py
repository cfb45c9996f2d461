"""``manyhands eval report``: the results of a run written again, in any format."""

from __future__ import annotations

from pathlib import Path

from manyhands.cli.arguments import add_run, parser
from manyhands.cli.console import out
from manyhands.cli.plain import shown_path
from manyhands.core.errors import UserError
from manyhands.core.jsonio import loads
from manyhands.runs.folders import find_run
from manyhands.workloads.evals.results.writing import RESULTS, SUMMARY, check_output, write_output
from manyhands.workloads.evals.settings import ENDINGS


def run(argv: list[str]) -> int:
    """Write the files and name them."""
    result = parser("eval report", "Write the results of a run to files, each in the format that its ending names.")
    add_run(result)
    result.add_argument("-o", "--output", action="append", metavar="FILE", help=f"({', '.join(ENDINGS)}); repeatable")
    options = result.parse_args(argv)
    folder = find_run(options.run, options.data_dir)
    if not (folder / RESULTS).is_file() or not (folder / SUMMARY).is_file():
        raise UserError(f"{folder}: no run of evaluations with results; manyhands resume writes them")
    summary = loads((folder / SUMMARY).read_bytes())
    named = [Path(each) for each in options.output or [str(folder / "report.html")]]
    for path in named:
        if path.suffix.lower() not in ENDINGS:
            raise UserError(f"--output {path}: must end in one of {', '.join(ENDINGS)}")
        check_output(path, folder)
    for path in named:
        write_output(folder, summary, path)
        out().print(shown_path(path), markup=False, soft_wrap=True)
    return 0
