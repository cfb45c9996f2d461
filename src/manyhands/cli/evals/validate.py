"""``manyhands eval validate``: checks eval files, targets files and config files without running anything."""

from __future__ import annotations

import os

from manyhands.cli.arguments import parser
from manyhands.cli.console import err, out
from manyhands.cli.plain import printable, shown_path
from manyhands.core.text import counted
from manyhands.workloads.evals.validation import Report, validate

DESCRIPTION = (
    "Check files without running anything; a folder stands for the files below it. An eval file is valid if manyhands eval, with the same "
    "options, would run it, but for healthchecks."
)


def run(argv: list[str]) -> int:
    """Name everything that is wrong; 2 if anything is."""
    options = parser("eval validate", DESCRIPTION)
    options.add_argument("paths", nargs="+", metavar="PATH", help="eval files, targets files, config files, folders")
    for name in ("targets", "judge_target"):
        options.add_argument(f"--{name}", f"--{name.replace('_', '-')}", help="as of manyhands eval")
    options.add_argument("--target", action="append", help="as of manyhands eval")
    for name in ("allow_ungraded", "skip_invalid"):
        options.add_argument(
            f"--{name}", f"--{name.replace('_', '-')}", action="store_true", help="as of manyhands eval"
        )
    given = vars(options.parse_args(argv))
    paths = given.pop("paths")
    reports = validate(paths, {name: value for name, value in given.items() if value}, environ=os.environ)
    for report in reports:
        _print(report)
    wrong = sum(not report.valid for report in reports)
    out().print(f"{counted(len(reports), 'file')}: {len(reports) - wrong} valid, {wrong} not", markup=False)
    return 2 if wrong or not reports else 0


def _print(report: Report) -> None:
    for notice in report.notices:
        err().print(f"note: {printable(notice)}", markup=False, soft_wrap=True)
    for problem in report.problems:
        err().print(printable(problem), markup=False, soft_wrap=True)
    mark = "✓" if report.valid else "✗"
    out().print(f"{mark} {shown_path(report.path)} ({report.kind or 'unknown'})", markup=False, soft_wrap=True)
