"""The figures of an evaluation on pages: scores of each target, how they are distributed, trials, commands that failed.

All is made of a summary, as ``eval_summary.json`` has it; no test is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from manyhands.core.text import counted, have
from manyhands.runs.shown.blocks import Block, Cell, Chart, Column, Fact, Facts, Mark, Note, Section, Series, Table
from manyhands.workloads.evals.batch.reports import CommandFigures
from manyhands.workloads.evals.items import ERROR, FAILED, GRADER_ERROR, PASSED
from manyhands.workloads.evals.results.figures import Distribution, MeanFigure, ResultFigures, TargetFigures, count_name
from manyhands.workloads.evals.results.result_lines import STATUSES
from manyhands.workloads.evals.results.shown.result_cells import (
    estimate_cell,
    name_cell,
    name_text,
    score_cell,
    tone_of,
)
from manyhands.workloads.evals.results.summary import EvalSummary, notes, reroll_line, statuses

MAX_TARGETS = 30
"""Targets that have charts, and columns of tables, of their own."""
_ALWAYS_SHOWN = tuple(count_name(each) for each in (PASSED, FAILED, ERROR, GRADER_ERROR))
_TONES = {count_name(status): tone_of(status) for status in STATUSES}
_NEEDED = ("targets", "pass_limit", "tests_with_other_limits", "confidence", "denominators")
_OF_RESULTS = (
    "tests",
    "pass_rate",
    "mean_score",
    "distribution",
    "cost_usd",
    "duration_ms",
    "token_usage",
    "simulated",
)


def is_summary(value: Mapping[str, Any]) -> bool:
    """Whether a file of a run folder has what a page of figures needs; a former version may have written less."""
    if any(name not in value for name in (*_NEEDED, *_OF_RESULTS)):
        return False
    if not isinstance(value["targets"], list):
        return False
    counts = [count_name(status) for status in STATUSES]
    return all(
        isinstance(part, Mapping)
        and all(name in part for name in _OF_RESULTS)
        and isinstance(part["tests"], Mapping)
        and all(name in part["tests"] for name in ("in", *counts))
        for part in (value, *value["targets"])
    )


def about_facts(summary: EvalSummary) -> Facts:
    """What the run is, for a document that has nothing else of it."""
    found = [
        ("Run", str(summary.get("run_name", ""))),
        ("Run id", str(summary.get("run_id", ""))),
        ("Made", str(summary.get("created_at", ""))),
        ("manyhands", str(summary.get("version", ""))),
        ("Eval files", ", ".join(str(file["path"]) for file in summary.get("eval_files", ()))),
        ("Answers", "simulated" if summary["simulated"] else ""),
    ]
    return Facts([Fact(label, Cell(text)) for label, text in found if text])


def scores_section(summary: EvalSummary) -> Section:
    """The scores of each target, and of all, with intervals."""
    return Section(
        "Scores", [*_notes(summary), scores_table(summary), Note(_denominators(summary), "muted")], name="scores"
    )


def _notes(summary: EvalSummary) -> Iterator[Note]:
    own = sum(summary["tests_with_other_limits"].values())
    limit = f"A test has passed with a score of {summary['pass_limit']:g} or more"
    others = f" ({counted(own, 'test')} {have(own)} another limit)" if own else ""
    yield Note(f"{limit}{others}.")
    if summary["simulated"]:
        yield Note("simulated answers", "warn")
    rerolled = reroll_line(summary)
    if rerolled is not None:
        yield Note(rerolled, "warn")


def _denominators(summary: EvalSummary) -> str:
    return f"Pass rate and mean score: of {summary['denominators']['pass_rate']}."


def scores_table(summary: EvalSummary) -> Table:
    """A row for each target, and one for all."""
    level = summary["confidence"]
    interval = "" if level is None else f" ({100 * level:g} % interval)"
    names = [name for name, count in statuses(summary) if count or name in _ALWAYS_SHOWN]
    columns = [Column("target", "target"), Column("tests", "tests", is_number=True)]
    columns += [Column(name, name.replace("_", " "), is_number=True) for name in names]
    columns += [Column("pass_rate", f"pass rate{interval}", about=summary["denominators"]["pass_rate"])]
    columns += [Column("mean_score", f"mean score{interval}", about=summary["denominators"]["mean_score"])]
    columns += [Column("cost", "cost", is_number=True, about="US dollars, of the tests whose cost is known")]
    rows: list[tuple[str, ResultFigures]] = [(each["target"], each) for each in summary["targets"]]
    if len(rows) != 1:
        rows.append(("all", summary))
    return Table(columns, [_row(target, figures, names) for target, figures in rows])


def _row(target: str, figures: ResultFigures, names: Sequence[str]) -> list[Cell]:
    counts = figures["tests"]
    return [
        name_cell(target),
        _count(counts["in"]),
        *(Cell(f"{counts[name]:,}", counts[name], _TONES[name] if counts[name] else "muted") for name in names),
        estimate_cell(figures["pass_rate"], is_share=True),
        estimate_cell(figures["mean_score"], is_share=False),
        _dollars(figures["cost_usd"]),
    ]


def _count(number: float) -> Cell:
    return Cell(f"{number:,g}" if isinstance(number, float) else f"{number:,}", number)


def _dollars(cost: Mapping[str, float]) -> Cell:
    return Cell(f"${cost['sum']:.4f}", cost["sum"]) if cost["tests_with_cost"] else Cell("–")


def further_notes(summary: EvalSummary) -> list[Note]:
    """What a person should know besides the figures: edited eval files, graders that had nothing to compare, notices of commands."""
    commands = summary.get("commands", ())
    known = {reroll_line(summary), *(f"target {_command(each)}: {each['failure']}" for each in commands)}
    return [Note(text, "warn") for text in notes(summary) if text not in known]


def command_failures(summary: EvalSummary) -> list[Note]:
    """Commands that answer all tests at once, where one failed."""
    return [
        Note(f"The command of target {_command(each)} failed: {each['failure']}", "bad")
        for each in summary.get("commands", ())
        if each["failure"] is not None
    ]


def _command(command: CommandFigures) -> str:
    trial = f", trial {command['trial'] + 1}" if command["trial"] else ""
    return f"{command['target']}{trial}"


def distribution_sections(summary: EvalSummary) -> Iterator[Section]:
    """How scores are distributed, how sure the figures are, what trials come to, how commands went, what answers took."""
    charts = distribution_charts(summary)
    if charts:
        yield Section("Distribution of scores", charts, name="distribution")
    estimates = list(_estimate_charts(summary))
    if estimates:
        yield Section("How sure the figures are", estimates, _denominators(summary), name="intervals")
    trials = trial_tables(summary)
    if trials:
        yield Section("Trials", trials, summary["denominators"]["trials"], name="trials")
    if summary.get("commands"):
        blocks: list[Block] = [*command_failures(summary), _commands_table(summary)]
        yield Section("Commands that answer all tests at once", blocks, name="commands")
    yield Section("What answers took", [answers_table(summary)], name="answers")


def _with_own(summary: EvalSummary) -> Sequence[TargetFigures]:
    return summary["targets"][:MAX_TARGETS]


def distribution_charts(summary: EvalSummary) -> list[Block]:
    """For each target that has scores a bar for each of equally wide bins from 0 to 1, with the threshold as a line."""
    shown = [each for each in _with_own(summary) if sum(each["distribution"]["counts"])]
    found: list[Block] = [_histogram(each["distribution"], summary["pass_limit"], each["target"]) for each in shown]
    if len(summary["targets"]) > MAX_TARGETS:
        found.append(Note(f"of the first {MAX_TARGETS} of {len(summary['targets']):,} targets", "muted"))
    return found


def _histogram(of: Distribution, limit: float, target: str) -> Chart:
    counts, edges = of["counts"], of["edges"]
    bins = list(zip(edges, edges[1:], counts, strict=False))
    points: list[tuple[float | str, float | None]] = [(round((low + high) / 2, 6), count) for low, high, count in bins]
    labels = [f"{low:g} to {high:g}: {count:,}" for low, high, count in bins]
    return Chart(
        "bars",
        f"{name_text(target)}: {counted(sum(counts), 'score')}",
        [Series("tests", points, labels=labels)],
        "score",
        "tests",
        marks=[Mark(limit, f"limit {limit:g}")],
    )


def _estimate_charts(summary: EvalSummary) -> Iterator[Block]:
    if not any(each["pass_rate"]["tests"] for each in summary["targets"]):
        return
    yield _estimates("Pass rate", summary, [each["pass_rate"] for each in _with_own(summary)], is_share=True)
    yield _estimates("Mean score", summary, [each["mean_score"] for each in _with_own(summary)], is_share=False)


def _estimates(title: str, summary: EvalSummary, found: Sequence[MeanFigure], *, is_share: bool) -> Chart:
    level = summary["confidence"]
    names = [name_text(each["target"]) for each in _with_own(summary)]
    ends = [each.get("interval") for each in found]
    return Chart(
        "dots",
        title if level is None else f"{title}, with intervals of {100 * level:g} %",
        [
            Series(
                title.lower(),
                [(name, each["value"]) for name, each in zip(names, found, strict=True)],
                [None if each is None else each["low"] for each in ends],
                [None if each is None else each["high"] for each in ends],
                [
                    f"{name}: {estimate_cell(each, is_share=is_share).text}"
                    for name, each in zip(names, found, strict=True)
                ],
            )
        ],
        "target",
        title.lower(),
        x_kind="name",
        y_kind="share" if is_share else "number",
        horizontal=True,
    )


def trial_tables(summary: EvalSummary) -> list[Block]:
    """For each target with trials: pass@k and pass^k."""
    columns = [
        Column("k", "k", is_number=True, about="how many trials"),
        Column("tests", "tests", is_number=True, about=summary["denominators"]["trials"]),
        Column("pass_at_k", "pass@k", is_number=True, about="the chance that one of k trials passes"),
        Column("pass_power_k", "pass^k", is_number=True, about="the chance that all of k trials pass"),
    ]
    found: list[Block] = []
    for each in summary["targets"]:
        if (trials := each.get("trials")) is not None:
            rows = [
                [
                    Cell(k, float(k)),
                    _count(count),
                    score_cell(trials["pass_at_k"][k]),
                    score_cell(trials["pass_power_k"][k]),
                ]
                for k, count in trials["tests"].items()
            ]
            found.append(Table(columns, rows, f"Trials of {name_text(each['target'])}"))
    return found


def _commands_table(summary: EvalSummary) -> Table:
    columns = [Column("target", "target"), Column("dataset", "dataset")]
    columns += [Column(name, name, is_number=True) for name in ("invocations", "records", "missing", "seconds")]
    columns += [Column("exit_code", "exit code", is_number=True), Column("failure", "failure")]
    rows = [
        [
            Cell(_command(each)),
            name_cell(each["dataset"]),
            _count(each["invocations"]),
            _count(each["records"]),
            Cell(f"{each['missing']:,}", each["missing"], "warn" if each["missing"] else ""),
            Cell(f"{each['seconds']:.1f}", each["seconds"]),
            Cell("timed out", tone="bad") if each["timed_out"] else Cell(str(each["exit_code"]), each["exit_code"]),
            Cell(each["failure"] or "", tone="bad"),
        ]
        for each in summary["commands"]
    ]
    return Table(columns, rows)


def answers_table(summary: EvalSummary) -> Table:
    """Scores from the lowest to the highest, time, tokens and cost: a row for each target, and one for all."""
    columns = [Column("target", "target")]
    columns += [Column(name, f"{name} score", is_number=True) for name in ("min", "median", "max")]
    columns += [
        Column("median_time", "median time", is_number=True),
        Column("p90", "90 % within", is_number=True),
        Column("longest", "longest", is_number=True),
        Column("input", "tokens in", is_number=True),
        Column("output", "tokens out", is_number=True),
        Column("cost", "cost", is_number=True),
        Column("simulated", "simulated", is_number=True, about="answers that are made up"),
    ]
    rows: list[tuple[str, ResultFigures]] = [(each["target"], each) for each in summary["targets"]]
    if len(rows) != 1:
        rows.append(("all", summary))
    return Table(columns, [_answers(target, each) for target, each in rows])


def _answers(target: str, figures: ResultFigures) -> list[Cell]:
    quantiles, times, tokens = figures["score_quantiles"], figures["duration_ms"], figures["token_usage"]
    return [
        name_cell(target),
        *(score_cell(quantiles.get(name)) for name in ("min", "median", "max")),
        *(_milliseconds(times.get(name)) for name in ("median", "p90", "max")),
        *(_count(tokens[name]) if name in tokens else Cell("–") for name in ("input", "output")),
        _dollars(figures["cost_usd"]),
        _count(figures["simulated"]),
    ]


def _milliseconds(value: float | None) -> Cell:
    return Cell("–" if value is None else f"{value:,.0f} ms", value)
