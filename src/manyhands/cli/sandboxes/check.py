"""``manyhands sandbox check``: whether a kind of sandboxes works here, on the user's own account, and how long each thing takes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from manyhands.cli.options import help_text, make, parse
from manyhands.core.errors import UserError
from manyhands.core.settings import Flag, Text, setting
from manyhands.runs.exit_codes import ExitCode
from manyhands.runs.options import OUTPUT
from manyhands.sandboxes.settings import SandboxSettings

if TYPE_CHECKING:
    from manyhands.sandboxes.lifecycle.checking import CheckResult, SandboxReport

PROGRAM = "manyhands sandbox check"
_KIND = "sandbox"
_USAGE = f"{PROGRAM} KIND"
_DESCRIPTION = (
    "Makes some twenty sandboxes of a kind, one after the other, and tries out what runs rely on: commands, files, time limits, "
    "checkpoints. Prints what failed, and medians of how long each thing takes. Everything that it made is removed. With a service, this "
    "is paid by your account. Exit code 1: something failed; 2: the kind can't be used here."
)
_NOT_HERE = ("keep_workspaces", "ignore_images", "image_cache", "durable_worlds")
"""Settings of runs that make no difference here."""


class SandboxCheckSettings(SandboxSettings):
    """The options of ``manyhands sandbox check``."""

    sandbox: Text = setting(..., "Kind of sandboxes to check.", value="KIND")
    json: Flag = setting(False, "Print JSON.", group=OUTPUT)


def run(argv: list[str]) -> int:
    """Check a kind of sandboxes; fails if it does not do what it has to."""
    line = parse(SandboxCheckSettings, argv, PROGRAM, positional=_KIND, without=_NOT_HERE)
    if line.help:
        print(help_text(SandboxCheckSettings, _USAGE, _DESCRIPTION, positional=_KIND, without=_NOT_HERE))
        return ExitCode.DONE
    options = make(SandboxCheckSettings, line.values, PROGRAM)
    from manyhands.sandboxes.lifecycle.planning import ENGINES

    if options.sandbox in ENGINES and options.image is None:
        raise UserError(f"{PROGRAM} {options.sandbox} needs --image IMAGE, of which the sandboxes are made")
    from manyhands.processes.event_loop import run_on_loop
    from manyhands.sandboxes.lifecycle.checking import check_sandboxes

    report = run_on_loop(check_sandboxes(options, _notice, _silent if options.json else _print_check))
    (_print_json if options.json else _print)(report)
    return ExitCode.DONE if report.usable else ExitCode.FAILED


def _notice(line: str) -> None:
    print(line, file=sys.stderr)


def _silent(result: CheckResult) -> None:
    pass


def _print_check(result: CheckResult) -> None:
    print(f"{result.result:<8}{result.seconds:7.2f} s  {result.name}{f': {result.detail}' if result.detail else ''}")


def _print(report: SandboxReport) -> None:
    from manyhands.cli.console import out

    rows = [(name, f"{1000 * seconds:,.1f} ms") for name, seconds in report.latencies.items()]
    out().print_table(f"Sandboxes of {report.kind}", ("what", "median"), rows)
    image = f" of {report.image}" if report.image else ""
    passed = len(report.checks) - report.failed
    print(f"{report.kind}{image}: {passed} of {len(report.checks)} checks passed")
    if report.left:
        print(f"{report.left} worlds or snapshots could not be removed: remove them by hand")


def _print_json(report: SandboxReport) -> None:
    from manyhands.core.redaction import KNOWN
    from manyhands.core.text import json_text

    content: dict[str, Any] = {
        "kind": report.kind,
        "image": report.image,
        "usable": report.usable,
        "passed": len(report.checks) - report.failed,
        "failed": report.failed,
        "left": report.left,
        "checks": {
            each.name: {"result": each.result, "seconds": round(each.seconds, 3), "detail": each.detail}
            for each in report.checks
        },
        "seconds": {name: round(seconds, 6) for name, seconds in report.latencies.items()},
    }
    print(json_text(KNOWN.json(content), indent=2))
