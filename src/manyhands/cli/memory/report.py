"""``manyhands memory report``: a page about one agent, or about several side by side."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from manyhands.cli.console import out
from manyhands.cli.plain import add_data_dir, parser, shown_path, table
from manyhands.core.errors import UserError
from manyhands.core.text import json_text, printable
from manyhands.io.files import bytes_written_aside
from manyhands.view.static.document import write_document
from manyhands.workloads.memory.report.formatting import methods, percent
from manyhands.workloads.memory.report.reported_agents import Reported, gather, report_json
from manyhands.workloads.memory.report.sections import ABOUT, report_file_name, report_sections, report_title
from manyhands.workloads.memory.report.views import unscored

_DESCRIPTION = (
    "Writes a self-contained HTML page: scores with intervals (published and own formulas), the schedule of the tests, scores by memory "
    "span, and every test's conversation. Several agents are compared. RUN is a run's name under DATA/tests, its folder, or results/AGENT "
    "in it, made by this program or the GoodAI LTM Benchmark."
)


def run(argv: list[str]) -> int:
    """Write the page; the exit code."""
    options = _parser().parse_intermixed_args(argv)
    data_dir = Path(options.data_dir)
    agents = gather(options.run, data_dir, options.agent or (), options.label or (), options.judge)
    if options.json:
        print(json_text(report_json(agents), indent=2))
    if not options.json or options.output is not None:
        path = _output_path(options.output, data_dir, agents)
        with bytes_written_aside(path) as handle:
            sections = report_sections(agents, with_plots=not options.no_plots)
            write_document(handle, report_title(agents), sections, about=(ABOUT,))
        if not options.json:
            _print(agents, path)
    return 0


def _output_path(output: str | None, data_dir: Path, agents: Sequence[Reported]) -> Path:
    """Where the page goes. A folder gets it under the name that it would have anyway."""
    name = report_file_name(agents, datetime.now().strftime("%Y-%m-%d %H_%M_%S"))
    if output is None:
        return data_dir / "reports" / name
    return Path(output) / name if Path(output).is_dir() else Path(output)


def _print(agents: Sequence[Reported], path: Path) -> None:
    console = out()
    headings = ("agent", "score", "mean score, 95 % interval", "tests", "scored")
    rows = [
        (
            printable(each.label) + (" (simulated)" if each.figures.about.get("simulated") else ""),
            f"{each.figures.published.score:.2f} of {each.figures.published.most}",
            percent(each.figures.accuracy),
            str(len(each.figures.tests)),
            str(each.figures.accuracy.count),
        )
        for each in agents
    ]
    console.print_line(table(headings, rows, right=("tests", "scored")))
    if line := methods(each.figures.accuracy.interval for each in agents):
        console.print_line(line)
    for each in agents:
        for line in unscored(each.figures):
            console.print_line(f"{each.label}: {line}")
    console.print_line(f"Report:  {shown_path(path.absolute())}")


def _text(value: str) -> str:
    if not value.strip():
        raise UserError("--agent, --label and --judge must not be empty")
    return value


def _parser() -> argparse.ArgumentParser:
    result = parser("memory report", _DESCRIPTION)
    result.add_argument(
        "run", metavar="RUN", nargs="+", help="a run's name, its folder, or an agent's folder below its results"
    )
    result.add_argument(
        "-o", "--output", metavar="FILE", help="output file (default: in DATA/reports, named after time, run and agent)"
    )
    result.add_argument(
        "-a",
        "--agent",
        metavar="NAME",
        action="append",
        type=_text,
        help="only agents whose name is or contains this (repeatable)",
    )
    result.add_argument(
        "-l",
        "--label",
        metavar="TEXT",
        action="append",
        type=_text,
        help="label of an agent, in order (repeatable)",
    )
    result.add_argument(
        "--judge",
        metavar="MODEL",
        type=_text,
        help="report the scores that manyhands memory rescore --judge_model=MODEL gave",
    )
    result.add_argument("--no_plots", "--no-plots", action="store_true", help="omit the plots")
    result.add_argument("--json", action="store_true", help="print the figures as JSON; a page is written only with -o")
    add_data_dir(result)
    return result
