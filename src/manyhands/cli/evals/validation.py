"""``manyhands eval validate``: what is wrong with files, without running anything."""

from __future__ import annotations

import os

from manyhands.cli.console import err, notice, out
from manyhands.cli.plain import parser, shown_path
from manyhands.core.text import counted, printable
from manyhands.runs.exit_codes import ExitCode
from manyhands.workloads.evals.evalfile.formats import FORMATS
from manyhands.workloads.evals.validation import Report as Validity
from manyhands.workloads.evals.validation import validate

_VALIDATE = (
    "Check files without running anything; a folder stands for the files below it. An eval file is valid if manyhands eval, with the same "
    "options, would run it, healthchecks aside."
)


def validate_files(argv: list[str]) -> int:
    """Name everything that is wrong; 2 if anything is."""
    options = parser("eval validate", _VALIDATE)
    options.add_argument("paths", nargs="+", metavar="PATH", help="eval files, targets files, config files, folders")
    options.add_argument("--targets", metavar="FILE", help="as for manyhands eval")
    options.add_argument("--judge_target", "--judge-target", metavar="NAME", help="as for manyhands eval")
    options.add_argument("--target", metavar="NAME", action="append", help="as for manyhands eval")
    options.add_argument("--format", choices=FORMATS, help="as for manyhands eval")
    for name in ("allow_ungraded", "skip_invalid"):
        options.add_argument(
            f"--{name}", f"--{name.replace('_', '-')}", action="store_true", help="as for manyhands eval"
        )
    options.add_argument(
        "--strict", action="store_true", help="refuse keys that mean nothing, which are noted otherwise"
    )
    given = vars(options.parse_args(argv))
    paths = given.pop("paths")
    reports = validate(paths, {name: value for name, value in given.items() if value}, environ=os.environ)
    for report in reports:
        _print_validity(report)
    wrong = sum(not report.valid for report in reports)
    out().print(f"{counted(len(reports), 'file')}: {len(reports) - wrong} valid, {wrong} not")
    return ExitCode.USAGE if wrong or not reports else ExitCode.DONE


def _print_validity(report: Validity) -> None:
    for text in report.notices:
        notice(text)
    for problem in report.problems:
        err().print_line(printable(problem))
    mark = "✓" if report.valid else "✗"
    out().print_line(f"{mark} {shown_path(report.path)} ({report.kind or 'unknown'})")
