"""``manyhands memory rescore``: results are scored again by the rules, and compared with what their files say."""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from rich.table import Table
from rich.text import Text

from manyhands.cli.arguments import add_data_dir, parser
from manyhands.cli.console import out
from manyhands.cli.memory.judge import add_options, judge, values_of
from manyhands.cli.plain import printable, shown_path
from manyhands.core.errors import UserError
from manyhands.core.text import json_text
from manyhands.io.files import written_aside
from manyhands.workloads.memory.datasets.rule_judge import rule_judge
from manyhands.workloads.memory.folders import TESTS
from manyhands.workloads.memory.published.rescoring import (
    DIFFERS,
    FAILED,
    UNSCORED,
    Rescored,
    recorded_scoring,
    rescore,
)

_DESCRIPTION = (
    "Scores results again from what is in their folder: definitions, results, and the log where there is one. RUN is a run's folder or "
    "name, or an agent's folder below its results. Nothing of it is changed. Tests that a model has to judge are counted and left as they "
    "are, unless --judge_model names one: then it judges them, without the agent, each answer once, however often this is interrupted; the "
    "new scores are kept beside the old ones. Exit code: 0; with --strict 1 if a score that needs no model differs, or a rule fails."
)


def run(argv: list[str]) -> int:
    """Print what was found; the exit code."""
    options = _parser().parse_args(argv)
    folder = _place(options.folder, Path(options.data_dir))
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
        _write(Path(options.output), found)
    if options.json:
        print(json_text([asdict(each) for each in found], indent=2))
    else:
        _print(found, options.all)
        if options.output is not None:
            out().print(f"Written: {shown_path(Path(options.output))}", markup=False, soft_wrap=True)
    return int(options.strict and any(each.verdict in (DIFFERS, FAILED) for each in found))


def _place(named: str, data_dir: Path) -> Path:
    """The folder that is meant by a path or a run's name."""
    return next((each for each in (Path(named), data_dir / TESTS / named) if each.is_dir()), Path(named))


def _print(found: list[Rescored], every: bool) -> None:
    console = out()
    for each in found:
        if every or each.verdict in (DIFFERS, FAILED, UNSCORED):
            scores = f"{_score(each.published)} → {_score(each.score)}"
            where = printable(f"{each.agent}: {each.dataset} - {each.example}")
            why = printable(f": {each.why}") if each.why else ""
            console.print(f"{where}  {scores}  {each.verdict}{why}", markup=False, soft_wrap=True)
    table = Table(title="Scored again", title_justify="left", box=None, pad_edge=False)
    table.add_column("agent")
    table.add_column("verdict")
    table.add_column("tests", justify="right")
    counts = Counter((each.agent, each.verdict) for each in found)
    for (agent, verdict), count in sorted(counts.items()):
        table.add_row(Text(printable(agent)), verdict, str(count))
    table.add_row("in all", "= the sum of these", str(len(found)))
    console.print(table)


def _write(path: Path, found: list[Rescored]) -> None:
    names = ("run", "agent", "dataset", "example", "published", "auto", "score", "verdict", "why")
    with written_aside(path) as handle:
        writer = csv.writer(handle)
        writer.writerow(names)
        writer.writerows([getattr(each, name) for name in names] for each in found)


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _parser() -> argparse.ArgumentParser:
    result = parser("memory rescore", _DESCRIPTION)
    result.add_argument("folder", metavar="RUN", help="a run's name or folder, or data/tests/RUN/results/AGENT")
    result.add_argument(
        "--scoring",
        choices=("published", "mended"),
        help="by the rules of published results, or without their defects (default: as the session was scored; the original's: published)",
    )
    result.add_argument(
        "--rules", action="store_true", help="have rules judge in place of a model; such scores are rough"
    )
    result.add_argument("--all", action="store_true", help="list every test, not only those that differ")
    result.add_argument("--strict", action="store_true", help="exit with 1 if a score differs")
    result.add_argument("-o", "--output", metavar="FILE", help="also write a CSV file")
    result.add_argument("--json", action="store_true", help="print JSON")
    add_data_dir(result)
    add_options(result)
    return result
