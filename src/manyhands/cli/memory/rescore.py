"""``manyhands memory rescore``: scores results again, by rules or with a judge model, and compares the scores."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from manyhands.cli.console import err, notice, out, print_usage
from manyhands.cli.execution import execute, print_ending, tell_end
from manyhands.cli.options import make, options_of
from manyhands.cli.plain import add_data_dir, parser, shown_path
from manyhands.cli.resume import refuse_options
from manyhands.core.errors import UserError
from manyhands.core.text import json_text, printable
from manyhands.runs.folders import open_reader
from manyhands.runs.making import Opened
from manyhands.workloads.memory.datasets.base import Rules
from manyhands.workloads.memory.datasets.registry import rule_judge
from manyhands.workloads.memory.folders import TESTS
from manyhands.workloads.memory.published.rejudging import (
    ScoresWorkload,
    open_scores,
    records_of,
    reopen_scores,
    totals,
)
from manyhands.workloads.memory.published.rescoring import (
    DIFFERS,
    FAILED,
    UNSCORED,
    Rescored,
    recorded_scoring,
    rescore,
    write_table,
)
from manyhands.workloads.memory.settings import ScoresSpec

_RESCORE = (
    "Scores results again from the files in their folder: definitions, results, and the log if there is one. RUN is a run's folder or "
    "name, or an agent's folder below its results. The folder is not changed. Tests that need a judge model are counted and left as they "
    "are, unless --judge_model names one: then it judges each answer once, without the agent, also across interruptions; the new scores "
    "are kept beside the old ones. Exit code: 0; with --strict 1 if a score that needs no model differs, or a rule fails."
)


def run(argv: list[str]) -> int:
    """Print the comparison; the exit code."""
    options = _parser().parse_args(argv)
    paths = (Path(options.folder), Path(options.data_dir) / TESTS / options.folder)
    folder = next((each for each in paths if each.is_dir()), paths[0])
    values = values_of(options)
    if "judge_model" in values:
        if options.rules or options.strict or options.output is not None:
            raise UserError("--judge_model can't be given with --rules, --strict or --output")
        return judge(folder, values, options)
    if values or options.scores is not None:
        names = [f"--{name}" for name in (*values, *(("scores",) if options.scores is not None else ()))]
        raise UserError(f"{', '.join(names)}: only with --judge_model")
    found = rescore(folder, options.scoring or recorded_scoring(folder), rule_judge if options.rules else None)
    if options.output is not None:
        write_table(Path(options.output), found)
    if options.json:
        print(json_text([asdict(each) for each in found], indent=2))
    else:
        _print(found, options.all)
        if options.output is not None:
            out().print_line(f"Written: {shown_path(Path(options.output))}")
    return int(options.strict and any(each.verdict in (DIFFERS, FAILED) for each in found))


def _print(found: list[Rescored], every: bool) -> None:
    console = out()
    for each in found:
        if every or each.verdict in (DIFFERS, FAILED, UNSCORED):
            _print_test(asdict(each))
    table = Table(title="Scored again", title_justify="left", box=None, pad_edge=False)
    table.add_column("agent")
    table.add_column("verdict")
    table.add_column("tests", justify="right")
    counts = Counter((each.agent, each.verdict) for each in found)
    for (agent, verdict), count in sorted(counts.items()):
        table.add_row(agent, verdict, str(count))
    table.add_row("in all", "= the sum of these", str(len(found)))
    console.print(table)


def _print_test(found: Mapping[str, Any]) -> None:
    scores = f"{_score(found['published'])} → {_score(found['score'])}  {found['verdict']}"
    why = f": {found['why']}" if found["why"] else ""
    line = f"{found['agent']}: {found['dataset']} - {found['example']}  {scores}{why}"
    out().print_line(line)


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _parser() -> argparse.ArgumentParser:
    result = parser("memory rescore", _RESCORE)
    result.add_argument("folder", metavar="RUN", help="a run's name or folder, or data/tests/RUN/results/AGENT")
    result.add_argument(
        "--scoring",
        choices=("published", "mended"),
        help="published: rules of the GoodAI LTM Benchmark; mended: without their defects (default: as the results were scored)",
    )
    result.add_argument(
        "--rules", action="store_true", help="judge by rules instead of a model; such scores are approximate"
    )
    result.add_argument("--all", action="store_true", help="list every test, not only those that differ")
    result.add_argument("--strict", action="store_true", help="exit with 1 if a score differs")
    result.add_argument("-o", "--output", metavar="FILE", help="also write a CSV file")
    result.add_argument("--json", action="store_true", help="print JSON")
    add_data_dir(result)
    add_options(result)
    return result


OPTIONS = (
    *("judge_model", "judge_base_url", "base_url", "api_key", "header", "seed", "reasoning_effort", "concurrency"),
    *("call_timeout", "max_attempts", "max_cost", "max_total_tokens", "max_seconds", "prices", "override", "quiet"),
)
"""Options of ``manyhands memory run`` for the judge."""
_PREFIX = "of_the_judge_"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of a judge, as ``manyhands memory run`` has them."""
    known = options_of(ScoresSpec)
    group = parser.add_argument_group("judging with a model")
    for name in OPTIONS:
        option = known[name]
        more: dict[str, Any] = {"action": "store_true"} if option.is_switch else {"metavar": option.value}
        if option.repeated:
            more["action"] = "append"
        names = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))
        text = option.help.replace("%", "%%")
        group.add_argument(*names, dest=f"{_PREFIX}{name}", default=argparse.SUPPRESS, help=text, **more)
    group.add_argument(
        "--scores", metavar="FOLDER", help="folder of the new scores (default: scores/JUDGE in the run's folder)"
    )


def values_of(options: argparse.Namespace) -> dict[str, Any]:
    """The options of the judge that were given."""
    given = vars(options)
    return {name: given[f"{_PREFIX}{name}"] for name in OPTIONS if f"{_PREFIX}{name}" in given}


def judge(folder: Path, values: dict[str, Any], options: argparse.Namespace) -> int:
    """Judge the results of a folder; the exit code."""
    own = recorded_scoring(folder)
    scoring: Rules = options.scoring or own
    spec = make(ScoresSpec, values, "manyhands memory rescore")
    opened = open_scores(
        folder,
        spec,
        scoring,
        folder=None if options.scores is None else Path(options.scores),
        is_own_scoring=scoring == own,
        environ=os.environ,
        notice=notice,
    )
    return execute_scores(opened, as_json=options.json, every=options.all)


def resume(folder: Path, words: list[str]) -> int:
    """Continue a run of scores as it was; the exit code. With other settings, ``manyhands memory rescore`` continues it."""
    refuse_options(words, f"{folder}: to continue it with other settings use manyhands memory rescore")
    return execute_scores(reopen_scores(folder, environ=os.environ))


def execute_scores(opened: Opened[ScoresWorkload], *, as_json: bool = False, every: bool = False) -> int:
    """Execute a run of scores in the foreground, and print the scores; the exit code."""
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
        _print_scores(now, left, every)
    for key, message in failed:
        err().print_line(f"{key}: {message}")
    if not as_json:
        print_usage(out(), result.summary)
        out().print_line(f"Scores:  {shown_path(opened.folder.absolute())}")
        print_ending(result)
    return tell_end(opened.workload.options.on_end, result, result.exit_code)


def _print_scores(found: list[dict[str, Any]], left: list[dict[str, Any]], every: bool) -> None:
    """``left``: those that have not been judged yet."""
    console = out()
    for each in found:
        if every or each["score"] is None:
            _print_test(each)
    judge = next((each["judge"] for each in found), "")
    table = Table(title=Text(printable(f"Judged by {judge}")), title_justify="left", box=None, pad_edge=False)
    for name in ("agent", "score", "tests", "asked", "cost"):
        table.add_column(name, justify="left" if name == "agent" else "right")
    without: dict[str, str] = {}
    for name, of in totals([*found, *left]).items():
        without.update(of["unscored_datasets"])
        score = f"{of['score']:.2f} of {of['max_score']}"
        row = (score, f"{of['scored']} of {of['tests']}", f"{of['asked']:,}", f"${of['cost']:.4f}")
        table.add_row(name, *row)
    console.print(table)
    for name, why in sorted(without.items()):
        console.print_line(f"No score: {name} ({why})")
