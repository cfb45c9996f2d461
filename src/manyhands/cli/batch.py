"""``manyhands batch``: a dataset of prompts becomes trajectories."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from rich.table import Table

from manyhands.cli.console import err, notice, out, print_ledger, print_usage, resume_command
from manyhands.cli.execution import execute, print_ending
from manyhands.cli.options import help_text, make, parse
from manyhands.cli.plain import one_line, shown_path
from manyhands.cli.progress import ItemLog
from manyhands.cli.resume import PROGRAM as RESUME
from manyhands.cli.resume import print_help, resumed_settings
from manyhands.core.jsonio import loads
from manyhands.core.text import counted
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.execution import RunResult
from manyhands.runs.making import Opened
from manyhands.tools.distributions import format_distributions
from manyhands.tools.mcp.config import load_mcp_config
from manyhands.tools.standard import standard_registry
from manyhands.tools.toolsets import STANDARD, with_groups
from manyhands.workloads.trajectories.exports import FAILURES, NOT_BEST, STATISTICS, TRAJECTORIES
from manyhands.workloads.trajectories.lines.turns import ESCAPED_TAGS
from manyhands.workloads.trajectories.opening import open_batch
from manyhands.workloads.trajectories.prepared import tables
from manyhands.workloads.trajectories.quality import TAGS_IN_VALUES
from manyhands.workloads.trajectories.spec import BatchSpec
from manyhands.workloads.trajectories.statistics import ORIGINAL
from manyhands.workloads.trajectories.workload import TrajectoryWorkload

PROGRAM = "manyhands batch"
DESCRIPTION = (
    "Turns each prompt of a dataset into a trajectory made by a tool-using agent, and can be resumed after any crash."
)


def run(argv: list[str]) -> int:
    """Perform the command line; the exit code."""
    line = parse(BatchSpec, argv, PROGRAM)
    if line.help:
        print(help_text(BatchSpec, PROGRAM, DESCRIPTION))
        return 0
    if line.values.get("list_distributions"):
        return _list_distributions(line.values.get("distributions_file"), line.values.get("mcp_config"))
    # As with the original, a resume without --max_samples is for the whole dataset: first a few prompts, then all.
    return perform_batch(make(BatchSpec, {"max_samples": None, **line.values}, PROGRAM))


def perform_batch(options: BatchSpec) -> int:
    """Open the run that the settings name, perform it, and say how it ended."""
    session = run_on_loop(open_batch(options, resume=options.resume, notice=notice, environ=os.environ))
    return perform_session(session)


def resume(folder: Path, words: list[str]) -> int:
    """Continue a run; the exit code."""
    line = parse(BatchSpec, words, RESUME)
    if line.help:
        print_help(BatchSpec)
        return 0
    options = resumed_settings(BatchSpec, folder, line.values, ("dataset_file", "batch_size"))
    return perform_session(run_on_loop(open_batch(options, resume=True, notice=notice, environ=os.environ)))


def perform_session(session: Opened[TrajectoryWorkload]) -> int:
    """Perform an opened run in the foreground; the exit code."""
    options = session.workload.prepared.options
    if not options.quiet:
        _print_head(session)
    log = ItemLog(session.folder, options.log_prefix_chars) if options.verbose else None
    result = execute(session, quiet=options.quiet, on_outcome=log.show if log else None)
    _print_results(result)
    return result.exit_code


def _list_distributions(distributions_file: str | bool | None, mcp_config: str | bool | None) -> int:
    options = BatchSpec.model_construct(distributions_file=distributions_file or None)
    toolsets = None
    if mcp_config:  # no server is started: a distributions file only has to know their names
        toolsets = with_groups(STANDARD, standard_registry()).extended(
            load_mcp_config(Path(str(mcp_config))).toolsets()
        )
    print(format_distributions(tables(options, toolsets)[0]))
    return 0


def _print_head(session: Opened[TrajectoryWorkload]) -> None:
    options = session.workload.prepared.options
    execution = session.workload.execution
    simulated = " (simulated: its answers are made up)" if options.model.startswith("simulated") else ""
    lines = [
        f"Run {session.folder.name}: {shown_path(Path(options.dataset_file))}, in batches of {options.batch_size}",
        f"  model {options.model}{simulated}, distribution {options.distribution}, sandbox {options.sandbox}",
        f"  {execution.workers} worker process{'es' * (execution.workers != 1)} with {counted(execution.concurrency, 'prompt')} each"
        if execution.executor == "processes"
        else f"  {counted(execution.workers * execution.concurrency, 'prompt')} at once in this process",
    ]
    if options.ephemeral_system_prompt:
        lines.append(f"  ephemeral system prompt: {options.ephemeral_system_prompt[:60]!r}")
    lines.append(f"  if it stops, whatever the reason:  {resume_command(session.folder)}")
    for line in lines:
        out().print(line, markup=False, soft_wrap=True)


def _print_results(result: RunResult) -> None:
    console = out()
    statistics = result.folder / STATISTICS
    print_ledger(console, result.summary)
    if statistics.is_file():
        _print_statistics(statistics)
    print_usage(console, result.summary)
    console.print(f"Trajectories:  {shown_path(result.folder / TRAJECTORIES)}", markup=False)
    failures = result.folder / FAILURES
    if failures.is_file() and failures.stat().st_size:
        console.print(f"Without one:   {shown_path(failures)}", markup=False)
    console.print(f"Statistics:    {shown_path(statistics)}", markup=False)
    print_ending(console, err(), result)


def _makers(makers: list[dict[str, Any]]) -> str:
    """Whose the adopted trajectories are, and how many others there are."""
    models: Counter[str] = Counter()
    for maker in makers:
        if maker["program"] == ORIGINAL:
            models[maker["model"] or "a model that is not named"] += maker["trajectories"]
    own = sum(maker["trajectories"] for maker in makers if maker["program"] != ORIGINAL)
    told = ", ".join(f"{one_line(model, 100)} {count}" for model, count in models.most_common(5))
    return f"of the original program ({told}{', …' if len(models) > 5 else ''}); {own} made by this run"


def _print_statistics(path: Path) -> None:
    statistics = loads(path.read_bytes())
    console = out()
    tools = statistics["tool_statistics"]
    if tools:
        table = Table(title="Tools", title_justify="left", box=None, pad_edge=False)
        for column in ("tool", "calls", "success", "failure", "success rate"):
            table.add_column(column, justify="left" if column == "tool" else "right")
        for name, counts in sorted(tools.items(), key=lambda entry: (-entry[1]["count"], entry[0])):
            figures = (str(counts[key]) for key in ("count", "success", "failure"))
            table.add_row(name, *figures, f"{counts['success_rate']:.1f} %")
        console.print(table)
    reasoning = statistics["reasoning_statistics"]
    total = reasoning["total_assistant_turns"]
    if total:
        share = 100 * reasoning["turns_with_reasoning"] / total
        console.print(
            f"Reasoning: in {reasoning['turns_with_reasoning']} of {total} assistant turns ({share:.1f} %)",
            markup=False,
        )
    if adopted := statistics.get("adopted"):
        console.print(f"Adopted: {adopted} trajectories {_makers(statistics['made_by'])}", markup=False, soft_wrap=True)
    if scores := statistics.get("scores"):
        verdicts = ", ".join(f"{verdict} {count}" for verdict, count in scores["verdicts"].items())
        mean = "none" if scores["mean"] is None else f"{scores['mean']:.3f}"
        console.print(f"Scores: mean {mean} of {scores['graded']} graded trajectories ({verdicts})", markup=False)
    if others := statistics.get(NOT_BEST):
        console.print(f"Left out as not the best of their rows: {others} (they are in the batch files)", markup=False)
    tagged = statistics[ESCAPED_TAGS]
    if tagged["tags"]:
        console.print(
            f"Tags in texts, escaped: {tagged['tags']} (trajectories with such: {tagged['trajectories']}; "
            "manyhands.workloads.trajectories.lines.turns.messages_of undoes it)",
            markup=False,
        )
    if tagged_out := statistics["discarded"].get(TAGS_IN_VALUES):
        how = "to keep them, at no further cost: --resume --tags_in_values=escape --override=tags_in_values"
        console.print(f"Samples discarded (tags in texts): {tagged_out} ({how})", markup=False)
    if discarded := statistics["discarded_no_reasoning"]:
        how = "to keep them, at no further cost: --resume --keep_unreasoned --override=keep_unreasoned"
        console.print(f"Samples discarded (zero reasoning): {discarded} ({how})", markup=False)
