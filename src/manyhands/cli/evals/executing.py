"""Evaluations in the foreground: made or continued, executed, repeated at every change of a file, and what is printed of them."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from manyhands.cli.console import err, notice, out, resume_command, view_line
from manyhands.cli.evals.report import print_report, print_unwritten
from manyhands.cli.evals.run import REPEATED, given_values, present_names
from manyhands.cli.execution import execute, tell_end
from manyhands.cli.options import parse
from manyhands.cli.plain import print_labelled, shown_path
from manyhands.cli.resume import PROGRAM as RESUME
from manyhands.cli.resume import print_help, resumed_settings
from manyhands.core.errors import UserError
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.text import counted, one_line
from manyhands.engine.contract import Item
from manyhands.io.search_paths import SearchPath
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.exit_codes import ExitCode
from manyhands.runs.making import Opened
from manyhands.workloads.evals.evalfile.files import find_evals, known_by
from manyhands.workloads.evals.making import open_eval
from manyhands.workloads.evals.results.summary import SUMMARY, exit_code
from manyhands.workloads.evals.settings import EvalSpec
from manyhands.workloads.evals.workload import EvalsWorkload


def execute_eval(options: EvalSpec) -> int:
    """Open the run that the settings name, execute it, and report how it ended."""
    if options.watch:
        return _watch(options)
    session = _opened(options)
    if options.dry_run:
        _print_estimate(options)
    return execute_session(session, view=options.view)


def _print_estimate(options: EvalSpec) -> None:
    """What the same evaluation takes if its targets are asked; or why that is not known."""
    from manyhands.workloads.evals.estimating import estimate_eval  # no other run has a use for it

    try:
        lines = estimate_eval(options, os.environ)
    except UserError as error:
        notice(f"what a run without --dry_run takes can't be estimated: {str(error).splitlines()[0]}")
        return
    out().print("Without --dry_run, this evaluation takes:")
    print_labelled([(f"  {label}", text) for label, text in lines])
    out().print("")


def resume(folder: Path, words: list[str]) -> int:
    """Continue a run; the exit code."""
    line = parse(EvalSpec, present_names(words), RESUME, repeated=REPEATED)
    if line.help:
        print_help(EvalSpec)
        return 0
    options = resumed_settings(EvalSpec, folder, given_values(line), ("eval_files",))
    session = run_on_loop(open_eval(options, resume=True, notice=notice, environ=os.environ, tell=_tell))
    return execute_session(session, view=options.view)


def _opened(options: EvalSpec) -> Opened[EvalsWorkload]:
    return run_on_loop(open_eval(options, resume=options.resume, notice=notice, environ=os.environ, tell=_tell))


def _watch(options: EvalSpec) -> int:
    """Execute a new run at every change of a file, until Ctrl-C; the exit code of the last one."""
    if options.run_name is not None or options.resume:
        raise UserError("--watch makes a new run at every change: it can't be combined with --run_name or --resume")
    if options.view:
        raise UserError("--watch makes many runs, --view shows one: use manyhands view in another terminal")
    code, files = int(ExitCode.DONE), set(find_evals(options.eval_files, SearchPath.of(Path.cwd())))
    try:
        while True:
            before = stamps(files)
            try:
                session = _opened(options)
                files |= session.workload.files_read()
                before = {**stamps(files), **before}
                code = execute_session(session)
            except UserError as error:  # the file that is being edited will be corrected
                err().print_line(f"manyhands: error: {error}")
                code = ExitCode.USAGE
            if code == ExitCode.INTERRUPTED:
                return code
            err().print(f"watching {counted(len(files), 'file')}; Ctrl-C ends it")
            for path in wait_for_change(before):
                err().print_line(f"{shown_path(path)} has changed")
    except KeyboardInterrupt:
        return code


def execute_session(session: Opened[EvalsWorkload], *, view: bool = False) -> int:
    """Execute an opened run in the foreground; the exit code. ``view``: it can be looked at in a browser meanwhile."""
    options = session.workload.prepared.options
    if not options.quiet:
        _print_head(session)
    before = stamps([session.folder / SUMMARY])
    result = execute(
        session,
        quiet=options.quiet,
        on_outcome=_print_outcome if options.verbose else None,
        failed="errors",
        graded=lambda: session.workload.graded,
        beside=view,
    )
    if result.error is not None and stamps(before) == before:
        print_unwritten(result)  # what earlier sessions have written is not printed as this one's
        return tell_end(options.on_end, result, exit_code(result, None, options.fail_on))
    figures = print_report(result, options)
    code = exit_code(result, figures, options.fail_on, ungraded=options.allow_ungraded)
    return tell_end(options.on_end, result, code)


def _print_head(session: Opened[EvalsWorkload]) -> None:
    prepared = session.workload.prepared
    for file in (file for file in prepared.files if file.tests):
        targets = ", ".join(f"{target.name} ({target.kind})" for target in file.targets)
        simulated = " — answers are made up" if all(target.facts.simulated for target in file.targets) else ""
        out().print_line(
            f"{shown_path(known_by(Path(file.path)))}: {counted(file.tests, 'test')} for {targets}{simulated}",
        )
    out().print_line(f"Run {session.folder.name}")
    out().print_line(f"  to continue it if it stops:  {resume_command(session.folder)}")
    out().print_line(view_line(session.folder))


def _tell(text: str) -> None:
    err().print_line(one_line(text))


def _print_outcome(item: Item, outcome: Outcome) -> None:
    record: Mapping[str, Any] = outcome.record
    if outcome.state is ItemState.COMPLETED and record.get("score") is not None:
        mark = "✓" if record["status"] == "passed" else "✗"
        text = f"{mark} {item.key}  {record['score']:.3f}"
    else:
        mark = "-" if outcome.state is ItemState.DISCARDED else "!"
        text = f"{mark} {item.key}  {record.get('status', outcome.state)}: {outcome.message or ''}"
    err().print(one_line(text))


LOOK_SECONDS = 1.0
Stamps = Mapping[Path, tuple[int, int] | None]


def stamps(paths: Collection[Path]) -> Stamps:
    """Of each file what changes when it is written: time and size; None for one that is not there."""
    return {path: _stamp(path) for path in paths}


def wait_for_change(before: Stamps, *, pause: float = LOOK_SECONDS) -> list[Path]:
    """Wait until files are not as they were; those that changed. A file that is gone counts when it is back: editors that write a new
    file in place of an old one leave none for a moment."""
    while True:
        now = stamps(before.keys())
        changed = [path for path, stamp in now.items() if stamp is not None and stamp != before[path]]
        if changed:
            return changed
        time.sleep(pause)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
