"""``manyhands eval``: tests are put to targets, and graders score the answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from manyhands.cli.console import err, notice, out, resume_command
from manyhands.cli.eval_names import present_names
from manyhands.cli.eval_report import exit_code, print_report, print_unwritten
from manyhands.cli.main import imported
from manyhands.cli.options import CommandLine, UsageError, help_text, make, parse
from manyhands.cli.performing import perform
from manyhands.cli.plain import one_line, shown_path
from manyhands.core.errors import UserError
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.terminal import json_text
from manyhands.core.wording import counted
from manyhands.engine.context import Item
from manyhands.engine.loop import run_on_loop
from manyhands.evals.file_references import Surroundings
from manyhands.evals.finding import find_evals
from manyhands.evals.results import SUMMARY
from manyhands.evals.session import Session, open_eval
from manyhands.evals.spec import EvalSpec
from manyhands.evals.watching import stamps, wait_for_change

PROGRAM = "manyhands eval"
USAGE = f"{PROGRAM} FILE…"
DESCRIPTION = (
    "Puts the tests of eval files to targets and scores the answers. Exit code: 0 all passed, 1 some below the threshold, 2 usage or "
    "files are wrong, 3 some tests ended in errors (--fail_on chooses), 130 interrupted. Also: manyhands eval validate PATH…, "
    "manyhands eval compare BASE CANDIDATE, manyhands eval report RUN, manyhands eval --schema [eval|targets]."
)
COMMANDS = {
    "validate": "manyhands.cli.eval_validate",
    "compare": "manyhands.cli.eval_compare",
    "report": "manyhands.cli.eval_output",
}
"""Subcommands: a file of such a name is given as ``./validate``."""
INTERRUPTED = 130
REPEATED = ("eval_files", "test_id", "tag", "exclude_tag", "target", "output")
"""Options that may be given several times."""
_WORDS = ("tag", "exclude_tag", "target")


def run(argv: list[str]) -> int:
    """Perform the command line; the exit code."""
    if argv and argv[0] in COMMANDS:
        command: Callable[[list[str]], int] = imported(COMMANDS[argv[0]]).run
        return command(argv[1:])
    if argv and argv[0].partition("=")[0] == "--schema":
        return _print_schema(argv)
    line = parse(EvalSpec, present_names(argv, PROGRAM), PROGRAM, positional="eval_files", repeated=REPEATED)
    if line.help:
        print(help_text(EvalSpec, USAGE, DESCRIPTION, positional="eval_files"))
        return 0
    return perform_eval(make(EvalSpec, given_values(line), PROGRAM))


def given_values(line: CommandLine) -> dict[str, Any]:
    """What was typed, with all values of what was given several times."""
    lists = {name: ",".join(values) if name in _WORDS else values for name, values in line.lists.items() if values}
    return {**line.values, **lists}


def perform_eval(options: EvalSpec) -> int:
    """Open the run that the settings name, perform it, and say how it ended."""
    if options.watch:
        return _watch(options)
    return perform_session(_opened(options))


def _opened(options: EvalSpec) -> Session:
    return run_on_loop(open_eval(options, resume=options.resume, notice=notice, environ=os.environ))


def _watch(options: EvalSpec) -> int:
    """Perform a new run at every change of a file, until Ctrl-C; the exit code of the last one."""
    if options.run_name is not None or options.resume:
        raise UserError("--watch makes a new run at every change: it goes neither with --run_name nor with --resume")
    code, files = 0, set(find_evals(options.eval_files, Surroundings.of(Path.cwd())))
    try:
        while True:
            before = stamps(files)
            try:
                session = _opened(options)
                files |= session.workload.files_read()
                before = {**stamps(files), **before}
                code = perform_session(session)
            except UserError as error:  # whoever is at work on a file will mend it
                err().print(f"manyhands: error: {error}", markup=False, soft_wrap=True)
                code = 2
            if code == INTERRUPTED:
                return code
            err().print(f"watching {counted(len(files), 'file')}; Ctrl-C ends it", markup=False)
            for path in wait_for_change(before):
                err().print(f"{shown_path(path)} has changed", markup=False, soft_wrap=True)
    except KeyboardInterrupt:
        return code


def perform_session(session: Session) -> int:
    """Perform an opened run in the foreground; the exit code."""
    options = session.workload.prepared.options
    if not options.quiet:
        _print_head(session)
    session.workload.tell = _tell
    before = stamps([session.folder / SUMMARY])
    result = perform(
        session.folder,
        session.workload,
        quiet=options.quiet,
        spec_changed=session.spec_changed,
        retry_failed=session.retry_errors,
        judge_again=session.judge_again,
        on_outcome=_print_outcome if options.verbose else None,
        failed="errors",
        graded=lambda: session.workload.settling,
    )
    if result.error is not None and stamps(before) == before:
        print_unwritten(result)  # what earlier sessions have written is not told as this one's
        return exit_code(result, {}, options.fail_on)
    figures = print_report(result, options)
    return exit_code(result, figures, options.fail_on, ungraded=options.allow_ungraded)


def _print_schema(argv: list[str]) -> int:
    from manyhands.evals.schema_export import eval_schema, targets_schema

    kinds = {"eval": eval_schema, "targets": targets_schema}
    _, equals, value = argv[0].partition("=")
    words = [value, *argv[1:]] if equals else argv[1:] or ["eval"]
    if len(words) != 1 or words[0] not in kinds:
        raise UsageError(f"--schema takes one of {', '.join(kinds)} (see {PROGRAM} --help)")
    print(json_text(kinds[words[0]](), indent=2))
    return 0


def _print_head(session: Session) -> None:
    prepared = session.workload.prepared
    for file in prepared.files:
        targets = ", ".join(f"{target.name} ({target.kind})" for target in file.targets)
        simulated = " — answers are made up" if all(target.kind == "mock" for target in file.targets) else ""
        out().print(
            f"{shown_path(Path(file.path))}: {counted(file.tests, 'test')} for {targets}{simulated}",
            markup=False,
            soft_wrap=True,
        )
    out().print(
        f"Run {session.folder.name}; if it stops:  {resume_command(session.folder)}", markup=False, soft_wrap=True
    )


def _tell(text: str) -> None:
    err().print(one_line(text), markup=False, soft_wrap=True)


def _print_outcome(item: Item, outcome: Outcome) -> None:
    record: Mapping[str, Any] = outcome.record
    if outcome.state is ItemState.COMPLETED and record.get("score") is not None:
        mark = "✓" if record["status"] == "passed" else "✗"
        text = f"{mark} {item.key}  {record['score']:.3f}"
    else:
        mark = "-" if outcome.state is ItemState.DISCARDED else "!"
        text = f"{mark} {item.key}  {record.get('status', outcome.state)}: {outcome.message or ''}"
    err().print(one_line(text), markup=False)
