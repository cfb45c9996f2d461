"""``manyhands eval``: tests are put to targets, and graders score the answers.

Options of ``manyhands eval`` by other names, and such that an evaluation has not, each with what to do instead.

Noticing that files changed, for runs that are repeated while somebody works on them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from manyhands.agents.options import AgentOptions
from manyhands.cli.console import err, notice, out, resume_command
from manyhands.cli.evals.report import exit_code, print_report, print_unwritten
from manyhands.cli.execution import execute
from manyhands.cli.main import imported
from manyhands.cli.options import CommandLine, UsageError, help_text, make, parse
from manyhands.cli.plain import one_line, shown_path
from manyhands.cli.resume import PROGRAM as RESUME
from manyhands.cli.resume import print_help, resumed_settings
from manyhands.core.errors import UserError
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.text import counted, json_text
from manyhands.engine.contract import Item
from manyhands.io.search_paths import Surroundings
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.making import Opened
from manyhands.workloads.evals.evalfile.finding import find_evals
from manyhands.workloads.evals.making import open_eval
from manyhands.workloads.evals.results.writing import SUMMARY
from manyhands.workloads.evals.settings import EvalSpec
from manyhands.workloads.evals.workload import EvalsWorkload

PROGRAM = "manyhands eval"
USAGE = f"{PROGRAM} FILE…"
DESCRIPTION = (
    "Puts the tests of eval files to targets and scores the answers. Exit code: 0 all passed, 1 some below the threshold, 2 usage or "
    "files are wrong, 3 some tests ended in errors (--fail_on chooses), 130 interrupted. Also: manyhands eval validate PATH…, "
    "manyhands eval compare BASE CANDIDATE, manyhands eval report RUN, manyhands eval --schema [eval|targets]."
)
COMMANDS = {
    "validate": "manyhands.cli.evals.validate",
    "compare": "manyhands.cli.evals.compare",
    "report": "manyhands.cli.evals.output",
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


def resume(folder: Path, words: list[str]) -> int:
    """Continue a run; the exit code."""
    line = parse(EvalSpec, present_names(words, RESUME), RESUME, repeated=REPEATED)
    if line.help:
        print_help(EvalSpec)
        return 0
    options = resumed_settings(EvalSpec, folder, given_values(line), ("eval_files",))
    return perform_session(run_on_loop(open_eval(options, resume=True, notice=notice, environ=os.environ)))


def _opened(options: EvalSpec) -> Opened[EvalsWorkload]:
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


def perform_session(session: Opened[EvalsWorkload]) -> int:
    """Perform an opened run in the foreground; the exit code."""
    options = session.workload.prepared.options
    if not options.quiet:
        _print_head(session)
    session.workload.tell = _tell
    before = stamps([session.folder / SUMMARY])
    result = execute(
        session,
        quiet=options.quiet,
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
    from manyhands.workloads.evals.schema import eval_schema, targets_schema

    kinds = {"eval": eval_schema, "targets": targets_schema}
    _, equals, value = argv[0].partition("=")
    words = [value, *argv[1:]] if equals else argv[1:] or ["eval"]
    if len(words) != 1 or words[0] not in kinds:
        raise UsageError(f"--schema takes one of {', '.join(kinds)} (see {PROGRAM} --help)")
    print(json_text(kinds[words[0]](), indent=2))
    return 0


def _print_head(session: Opened[EvalsWorkload]) -> None:
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


ALIASES = {"-o": "--output", "--eval-id": "--test_id", "--eval_id": "--test_id"}
"""Names of options in AgentV."""
_OTEL = ("otel_file", "export_otel", "otel_backend", "otel_capture_content", "otel_group_turns")
_OF_NOBODY = ("executor", "log_prefix_chars", "reasoning_config", "prefill_messages")


def present_names(argv: Sequence[str], program: str) -> list[str]:
    """The words of a command line with today's names. Raises UsageError for options of agents, which are keys of targets here."""
    asks_for_help = any(word in ("-h", "--help") for word in argv)
    problems = [] if asks_for_help else [problem for word in argv if (problem := _problem(word)) is not None]
    if problems:
        raise UsageError("\n".join([*problems[:-1], f"{problems[-1]} (see {program} --help)"]))
    return [_present(word) for word in argv]


def _present(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"{ALIASES.get(name, name)}{equals}{value}"


def _problem(word: str) -> str | None:
    typed = word.partition("=")[0]
    if not typed.startswith("--"):
        return None
    name = typed[2:].replace("-", "_").removeprefix("no_")
    if name in _OTEL:
        return f"{typed}: nothing is written for OpenTelemetry; --trace_file writes a line of JSON for each test, with its tool calls"
    if name in EvalSpec.model_fields or name not in AgentOptions.model_fields:
        return None
    if name in _OF_NOBODY:
        return f"{typed} has no meaning for evaluations"
    return f"{typed}: the targets of an evaluation say this themselves; write {name} below the target"


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
