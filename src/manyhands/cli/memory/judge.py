"""``manyhands memory rescore --judge_model``: a model judges the results of a run, durably."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from manyhands.cli.console import err, notice, out, print_usage
from manyhands.cli.execution import execute, print_ending
from manyhands.cli.options import make, options_of
from manyhands.cli.plain import printable, shown_path
from manyhands.cli.resume import refuse_options
from manyhands.core.text import json_text
from manyhands.runs.folders import open_reader
from manyhands.runs.making import Opened
from manyhands.workloads.memory.datasets.base import Rules
from manyhands.workloads.memory.published.rejudging import (
    ScoresWorkload,
    open_scores,
    records_of,
    reopen_scores,
    totals,
)
from manyhands.workloads.memory.published.rescoring import recorded_scoring, run_of
from manyhands.workloads.memory.settings import MemorySpec

OPTIONS = (
    *(
        "judge_model",
        "judge_base_url",
        "base_url",
        "api_key",
        "seed",
        "reasoning_effort",
        "concurrency",
        "call_timeout",
    ),
    *("max_attempts", "max_cost", "max_total_tokens", "max_seconds", "prices", "override", "quiet"),
)
"""Those of ``manyhands memory run`` that say how the judge is asked."""
_PREFIX = "of_the_judge_"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of a judge, as ``manyhands memory run`` has them."""
    known = options_of(MemorySpec)
    group = parser.add_argument_group("a model judges, and what it said is kept")
    for name in OPTIONS:
        option = known[name]
        more: dict[str, Any] = {"action": "store_true"} if option.is_switch else {"metavar": option.value}
        names = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))
        text = option.help.replace("%", "%%")
        group.add_argument(*names, dest=f"{_PREFIX}{name}", default=argparse.SUPPRESS, help=text, **more)
    group.add_argument(
        "--scores", metavar="FOLDER", help="where the new scores go (default: scores/JUDGE in the run's folder)"
    )


def values_of(options: argparse.Namespace) -> dict[str, Any]:
    """What was given of these."""
    given = vars(options)
    return {name: given[f"{_PREFIX}{name}"] for name in OPTIONS if f"{_PREFIX}{name}" in given}


def judge(folder: Path, values: dict[str, Any], options: argparse.Namespace) -> int:
    """Judge the results of a folder; the exit code."""
    own = recorded_scoring(folder)
    scoring: Rules = options.scoring or own
    fixed = {"configuration": str(run_of(folder) / "definitions" / "config.yml"), "agent_name": ["forgetful"]}
    spec = make(MemorySpec, {**fixed, **values}, "manyhands memory rescore")
    opened = open_scores(
        folder,
        spec,
        scoring,
        place=None if options.scores is None else Path(options.scores),
        is_own_scoring=scoring == own,
        environ=os.environ,
        notice=notice,
    )
    return perform_scores(opened, as_json=options.json, every=options.all)


def resume(folder: Path, words: list[str]) -> int:
    """Continue a run of scores as it was; the exit code. With other settings, ``manyhands memory rescore`` continues it."""
    refuse_options(words, f"{folder}: continue it with other settings by manyhands memory rescore")
    return perform_scores(reopen_scores(folder, environ=os.environ))


def perform_scores(opened: Opened[ScoresWorkload], *, as_json: bool = False, every: bool = False) -> int:
    """Perform a run of scores in the foreground, and print what it came to; the exit code."""
    quiet = as_json or opened.workload.options.quiet
    result = execute(opened, quiet=quiet)
    reader = open_reader(opened.folder)
    try:
        found = records_of(reader)
        failed = [(row.key, row.message) for row in reader.items() if row.message and not row.left_input]
    finally:
        reader.close()
    now = [each for each in found if each["agent"] in opened.workload.agents]
    left = opened.workload.left(found)
    if as_json:
        print(json_text(now, indent=2))
    else:
        _print(now, left, every)
    for key, message in failed:
        err().print(printable(f"{key}: {message}"), markup=False, soft_wrap=True)
    if not as_json:
        print_usage(out(), result.summary)
        out().print(f"Scores:  {shown_path(opened.folder.absolute())}", markup=False, soft_wrap=True)
        print_ending(out(), err(), result)
    return result.exit_code


def _print(found: list[dict[str, Any]], left: list[dict[str, Any]], every: bool) -> None:
    """``left``: those that have not been judged yet."""
    console = out()
    for each in found:
        if every or each["score"] is None:
            score = "-" if each["score"] is None else f"{each['score']:.3f}"
            before = "-" if each["published"] is None else f"{each['published']:.3f}"
            why = f": {each['why']}" if each["why"] else ""
            where = f"{each['agent']}: {each['dataset']} - {each['example']}"
            console.print(
                printable(f"{where}  {before} → {score}  {each['verdict']}{why}"), markup=False, soft_wrap=True
            )
    judge = next((each["judge"] for each in found), "")
    table = Table(title=Text(printable(f"Judged by {judge}")), title_justify="left", box=None, pad_edge=False)
    for name in ("agent", "score", "tests", "asked", "cost"):
        table.add_column(name, justify="left" if name == "agent" else "right")
    without: dict[str, str] = {}
    for name, of in totals([*found, *left]).items():
        without.update(of["unscored_datasets"])
        score = f"{of['score']:.2f} of {of['max_score']}"
        row = (score, f"{of['scored']} of {of['tests']}", f"{of['asked']:,}", f"${of['cost']:.4f}")
        table.add_row(Text(printable(name)), *row)
    console.print(table)
    for name, why in sorted(without.items()):
        console.print(printable(f"No score: {name} ({why})"), markup=False, soft_wrap=True)
