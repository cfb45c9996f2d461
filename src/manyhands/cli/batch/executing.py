"""A batch in the foreground: made or continued, executed, and what is printed of it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from manyhands.agents.registry import load_agent
from manyhands.agents.trajectory import item_lines
from manyhands.cli.console import err, notice, out, print_ledger, print_usage, resume_command, standard_input, view_line
from manyhands.cli.execution import execute, print_ending, tell_end
from manyhands.cli.options import parse
from manyhands.cli.plain import print_labelled, shown_path
from manyhands.cli.resume import PROGRAM as RESUME
from manyhands.cli.resume import print_help, resumed_settings
from manyhands.core.errors import UserError
from manyhands.core.jsonio import loads
from manyhands.core.outcomes import Outcome
from manyhands.core.text import counted, one_line
from manyhands.engine.contract import Item
from manyhands.engine.journal.reader import JournalReader
from manyhands.export.sharegpt_reading import ESCAPED_TAGS
from manyhands.io.tables.standard_input import STANDARD_STREAM
from manyhands.models.factory import late_imports
from manyhands.processes.event_loop import run_on_loop
from manyhands.processes.fork_server import ForkServer
from manyhands.runs.execution import RunResult, early_forks
from manyhands.runs.making import Opened
from manyhands.sandboxes.selection import check_backend
from manyhands.task_folders.session import is_external
from manyhands.tools.standard import standard_registry
from manyhands.workloads.trajectories.opening import open_batch
from manyhands.workloads.trajectories.prepared import NAMED_TOOLS, Prepared
from manyhands.workloads.trajectories.records import TAGS_IN_VALUES
from manyhands.workloads.trajectories.results.exports import FAILURES, STATISTICS, TRAJECTORIES
from manyhands.workloads.trajectories.results.kept_samples import NOT_BEST
from manyhands.workloads.trajectories.results.statistics import ORIGINAL
from manyhands.workloads.trajectories.spec import BatchSpec
from manyhands.workloads.trajectories.workload import TrajectoryWorkload

_READ_FIRST = ("resume", "grade", "mcp_config", "prices")
"""Settings that name what workers need, too: modules that are imported as the run is opened, before its workers are forked."""


def execute_batch(options: BatchSpec, when_made: Callable[[], None] = lambda: None) -> int:
    """Open the run that the settings name, execute it, and report how it ended. ``when_made``: called when there is a run."""
    if options.dry_run:
        from manyhands.workloads.trajectories.estimating import estimate_batch  # no other run has a use for it

        print_labelled(run_on_loop(estimate_batch(options, notice)))
        return 0
    with _early_forks(options) as forks:
        stream = standard_input() if options.dataset_file == STANDARD_STREAM else None
        opening = open_batch(options, resume=options.resume, notice=notice, environ=os.environ, standard_input=stream)
        session = run_on_loop(opening)
        when_made()
        return execute_session(session, forks, view=options.view)


@contextmanager
def _early_forks(options: BatchSpec) -> Iterator[ForkServer | None]:
    """What makes the worker processes, if it is known what they need. What each would have to find out is found out before, once for
    all."""
    if options.executor != "processes" or any(getattr(options, name) for name in _READ_FIRST):
        yield None
        return
    standard_registry()
    with suppress(UserError):  # reported when the run is opened
        load_agent(options.agent)
        check_backend(options)
    with early_forks(late_imports(options.model, options.base_url)) as forks:
        yield forks


def resume(folder: Path, words: list[str]) -> int:
    """Continue a run; the exit code."""
    line = parse(BatchSpec, words, RESUME)
    if line.help:
        print_help(BatchSpec)
        return 0
    options = resumed_settings(BatchSpec, folder, line.values, ("dataset_file", "batch_size"))
    session = run_on_loop(open_batch(options, resume=True, notice=notice, environ=os.environ))
    return execute_session(session, view=options.view)


def execute_session(session: Opened[TrajectoryWorkload], forks: ForkServer | None = None, *, view: bool = False) -> int:
    """Execute an opened run in the foreground; the exit code. ``forks``: what makes its worker processes, if there is something already;
    ``view``: it can be looked at in a browser meanwhile."""
    options = session.workload.prepared.options
    if not options.quiet:
        _print_head(session)
    log = ItemLog(session.folder, options.log_prefix_chars) if options.verbose else None
    result = execute(session, quiet=options.quiet, on_outcome=log.show if log else None, forks=forks, beside=view)
    _print_results(result)
    return tell_end(options.on_end, result, result.exit_code)


def _print_head(session: Opened[TrajectoryWorkload]) -> None:
    options = session.workload.prepared.options
    execution = session.workload.execution
    lines = [
        f"Run {session.folder.name}: {shown_path(Path(options.dataset_file))}, in batches of {options.batch_size}",
        f"  {_agent_text(session.workload.prepared)}, sandbox {options.sandbox}",
        f"  {counted(execution.workers * execution.concurrency, 'prompt')} at once in this process"
        if execution.executor == "local"
        else f"  {execution.workers} worker process{'es' * (execution.workers != 1)} with {counted(execution.concurrency, 'prompt')} each"
        f"{', on a Ray cluster' * (execution.executor == 'ray')}",
    ]
    at_once = execution.max_in_flight
    if at_once is not None and at_once != execution.workers * execution.concurrency:
        lines.append(f"  {counted(at_once, 'prompt')} at once in all (max_concurrency)")
    if options.ephemeral_system_prompt:
        lines.append(f"  ephemeral system prompt: {options.ephemeral_system_prompt[:60]!r}")
    lines.append(f"  to continue it if it stops:  {resume_command(session.folder)}")
    lines.append(view_line(session.folder))
    for line in lines:
        out().print_line(line)


def _agent_text(prepared: Prepared) -> str:
    """What does the items: a model with its tools, or something that needs neither."""
    options = prepared.options
    if options.agent_command is not None:
        return f"agent command {options.agent_command}"
    if is_external(options, options.agent):
        return "agent oracle: the tasks' own solutions"
    simulated = " (simulated: its answers are made up)" if options.model.startswith("simulated") else ""
    distribution = prepared.distribution.name
    tools = f"tools {', '.join(options.tools or ())}" if distribution == NAMED_TOOLS else f"distribution {distribution}"
    return f"{f'agent {options.agent}, ' if options.agent else ''}model {options.model}{simulated}, {tools}"


def _print_results(result: RunResult) -> None:
    console = out()
    statistics = result.folder / STATISTICS
    print_ledger(console, result.summary)
    if statistics.is_file():
        _print_statistics(statistics)
    print_usage(console, result.summary)
    console.print(f"Trajectories:  {shown_path(result.folder / TRAJECTORIES)}")
    failures = result.folder / FAILURES
    if failures.is_file() and failures.stat().st_size:
        console.print(f"Without one:   {shown_path(failures)}")
    console.print(f"Statistics:    {shown_path(statistics)}")
    print_ending(result)


def _makers(makers: list[dict[str, Any]]) -> str:
    """Which programs made the adopted trajectories, and how many of each."""
    models: Counter[str] = Counter()
    for maker in makers:
        if maker["program"] == ORIGINAL:
            models[maker["model"] or "a model that is not named"] += maker["trajectories"]
    own = sum(maker["trajectories"] for maker in makers if maker["program"] != ORIGINAL)
    named = ", ".join(f"{one_line(model, 100)} {count}" for model, count in models.most_common(5))
    return f"of the original program ({named}{', …' if len(models) > 5 else ''}); {own} made by this run"


def _print_statistics(path: Path) -> None:
    statistics = loads(path.read_bytes())
    console = out()
    tools = statistics["tool_statistics"]
    if tools:
        headings = ("tool", "calls", "success", "failure", "success rate")
        rows = [
            (name, *(str(counts[key]) for key in ("count", "success", "failure")), f"{counts['success_rate']:.1f} %")
            for name, counts in sorted(tools.items(), key=lambda entry: (-entry[1]["count"], entry[0]))
        ]
        console.print_table("Tools", headings, rows, right=headings[1:])
    reasoning = statistics["reasoning_statistics"]
    total = reasoning["total_assistant_turns"]
    if total:
        share = 100 * reasoning["turns_with_reasoning"] / total
        console.print(
            f"Reasoning: in {reasoning['turns_with_reasoning']} of {total} assistant turns ({share:.1f} %)",
        )
    if kept := statistics.get("kept_without_reasoning"):
        console.print_line(
            f"Kept without any reasoning: {kept} of the trajectories (--keep_unreasoned=false discards such)"
        )
    if adopted := statistics.get("adopted"):
        console.print_line(f"Adopted: {adopted} trajectories {_makers(statistics['made_by'])}")
    for code, count in statistics.get("exit_codes", {}).items():
        known = _EXIT_CODES.get(code)
        console.print(f"{counted(count, 'agent command')} ended with exit code {code}{f' ({known})' if known else ''}")
    if scores := statistics.get("scores"):
        verdicts = ", ".join(f"{verdict} {count}" for verdict, count in scores["verdicts"].items())
        mean = "none" if scores["mean"] is None else f"{scores['mean']:.3f}"
        console.print(f"Scores: mean {mean} of {scores['graded']} graded trajectories ({verdicts})")
        if clipped := scores.get("clipped"):
            console.print(
                f"Rewards below 0 or above 1: {clipped} (their scores are 0 or 1; metadata.rewards has them as they were)"
            )
    if others := statistics.get(NOT_BEST):
        console.print(f"Left out as not the best of their rows: {others} (they are in the batch files)")
    tagged = statistics[ESCAPED_TAGS]
    if tagged["tags"]:
        console.print(
            f"Tags in texts, escaped: {tagged['tags']} (trajectories with such: {tagged['trajectories']}; "
            "manyhands.export.sharegpt_reading.messages_of undoes it)",
        )
    if tagged_out := statistics["discarded"].get(TAGS_IN_VALUES):
        how = "to keep them, at no further cost: --resume --tags_in_values=escape --override=tags_in_values"
        console.print(f"Samples discarded (tags in texts): {tagged_out} ({how})")
    if discarded := statistics["discarded_no_reasoning"]:
        how = "to keep them, at no further cost: --resume --keep_unreasoned --override=keep_unreasoned"
        console.print(f"Samples discarded (zero reasoning): {discarded} ({how})")


_EXIT_CODES = {"126": "a program that can't be executed", "127": "a program that is not there"}
"""What shells say by their exit code."""


class ItemLog:
    """A line on standard error for each prompt that ends, and one for each of its tool calls."""

    def __init__(self, folder: Path, preview: int) -> None:
        """``preview``: characters that are shown of arguments and results."""
        self._folder = folder
        self._preview = preview

    def show(self, item: Item, outcome: Outcome) -> None:
        """An item has ended."""
        record = outcome.record
        toolsets = ", ".join(record.get("toolsets", ())) or "none"
        why = outcome.reason or outcome.cause or record.get("stop_reason", "")
        label = f"P{item.payload['prompt_index']}"
        # A reader that stays open would keep the journal from being closed as a whole.
        with closing(JournalReader(self._folder)) as reader:
            first, *calls = item_lines(label, item, outcome, why, reader, self._preview)
        for line in (f"{first}, toolsets {toolsets}", *calls):
            err().print_line(line)
