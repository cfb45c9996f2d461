"""Results as one HTML page that needs nothing else: no network, no other file. Without JavaScript only the filters are missing.

It has the figures of the run and of each target with a histogram of scores (SVG), and the tests, each of which opens at a click to show
the question, the answer, and what the graders found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from html import escape
from importlib.resources import files
from typing import Any, BinaryIO

from manyhands.core.jsonio import without_surrogates
from manyhands.core.text import are, counted, have
from manyhands.graders.protocol import ScoreRecord
from manyhands.workloads.evals.items import FAILED, PASSED
from manyhands.workloads.evals.results.figures import MeanFigure, ResultFigures
from manyhands.workloads.evals.results.result_lines import NO_ID, STATUSES, TestResult
from manyhands.workloads.evals.results.summary import EvalSummary, reroll_line, statuses
from manyhands.workloads.evals.targets.answer_figures import FIGURES

MAX_TESTS = 5000
"""Tests that a page shows."""
MAX_CHARACTERS = 20_000_000
"""Characters of tests' texts that a page holds, about; each test gets its share of them."""
_ALWAYS_SHOWN = ("passed", "failed", "errors", "grader_errors")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_RESOURCES = "manyhands.workloads.evals.results"
Results = Callable[[], Iterator[TestResult]]
"""Gives the results, from the first one on, each time it is called."""


def write_page(handle: BinaryIO, results: Results, summary: EvalSummary) -> None:
    """Write the page, streamed."""
    for text in _page(results, summary):
        handle.write(without_surrogates(text).encode())


def _page(results: Results, summary: EvalSummary) -> Iterator[str]:
    title = escape(str(summary.get("run_name", "Evaluation")))
    style = _resource("page.css")
    yield (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>\n{style}</style>\n</head>\n<body>\n"
    )
    yield from _head(title, summary)
    yield from _scores(summary)
    yield from _failures(summary)
    yield from _plots(summary)
    yield from _filters(summary)
    yield from _tests(results, summary)
    yield f"<script>\n{_resource('page.js')}</script>\n</body>\n</html>\n"


def _resource(name: str) -> str:
    return files(_RESOURCES).joinpath(name).read_text(encoding="utf-8")


def _head(title: str, summary: EvalSummary) -> Iterator[str]:
    simulated = ' <span class="label">simulated answers</span>' if summary["simulated"] else ""
    yield f"<h1>{title}{simulated}</h1>\n"
    about = [f"made {summary.get('created_at')}", f"run {summary.get('run_id')}", f"manyhands {summary.get('version')}"]
    about += [str(file["path"]) for file in summary.get("eval_files", ())]
    yield f'<p class="about">{escape(" · ".join(about))}</p>\n'
    own = sum(summary["tests_with_other_limits"].values())
    tests = counted(own, "test")
    limit = f"A test has passed with a score of {summary['pass_limit']:g} or more"
    yield f"<p>{limit}{f' ({tests} {have(own)} another limit)' if own else ''}.</p>\n"
    if (rerolled := reroll_line(summary)) is not None:
        yield f'<p class="failure">{escape(rerolled)}</p>\n'


def _scores(summary: EvalSummary) -> Iterator[str]:
    level = summary["confidence"]
    interval = "" if level is None else f" ({100 * level:g} % interval)"
    names = [name for name, count in statuses(summary) if count or name in _ALWAYS_SHOWN]
    heads = "".join(f'<th class="n">{name.replace("_", " ")}</th>' for name in names)
    yield "<h2>Scores</h2>\n<table>\n<thead><tr><th>target</th><th class='n'>tests</th>" + heads
    yield f"<th>pass rate{interval}</th><th>mean score{interval}</th><th class='n'>cost</th></tr></thead>\n<tbody>\n"
    rows: list[tuple[str, ResultFigures]] = [(each["target"], each) for each in summary["targets"]]
    for target, each in [*rows, *([("all", summary)] if len(rows) != 1 else [])]:
        counts = "".join(f'<td class="n">{count:,}</td>' for name, count in statuses(each) if name in names)
        cost = f"${each['cost_usd']['sum']:.4f}" if each["cost_usd"]["tests_with_cost"] else "–"
        yield f'<tr><td>{escape(target)}</td><td class="n">{each["tests"]["in"]:,}</td>{counts}'
        yield f'<td class="e">{_estimate(each["pass_rate"], 100)}</td>'
        yield f'<td class="e">{_estimate(each["mean_score"], 1)}</td>'
        yield f'<td class="n">{cost}</td></tr>\n'
    yield "</tbody>\n</table>\n"
    shares = summary["denominators"]
    yield f'<p class="about">Pass rate and mean score: of {escape(shares["pass_rate"])}.</p>\n'
    yield from _samples(summary)


def _failures(summary: EvalSummary) -> Iterator[str]:
    """Commands that answer all tests at once, where one failed."""
    for each in summary.get("commands", ()):
        if each["failure"] is not None:
            sample = f", trial {each['trial'] + 1}" if each["trial"] else ""
            about = f"The command of target {each['target']}{sample} failed: {each['failure']}"
            yield f'<p class="failure">{escape(about)}</p>\n'


def _samples(summary: EvalSummary) -> Iterator[str]:
    for each in summary["targets"]:
        if (samples := each.get("trials")) is None:
            continue
        yield f"<h3>Trials of {escape(each['target'])}</h3>\n<table><thead><tr><th class='n'>k</th><th class='n'>tests</th>"
        yield "<th class='n'>pass@k</th><th class='n'>pass^k</th></tr></thead>\n<tbody>"
        for k, count in samples["tests"].items():
            yield f'<tr><td class="n">{k}</td><td class="n">{count:,}</td><td class="n">{samples["pass_at_k"][k]:.3f}</td>'
            power = samples["pass_power_k"][k]
            yield f'<td class="n">{"–" if power is None else f"{power:.3f}"}</td></tr>\n'
        yield "</tbody></table>\n"


def _estimate(found: MeanFigure, scale: int) -> str:
    def text(value: float) -> str:
        return f"{scale * value:.1f} %" if scale == 100 else f"{value:.3f}"

    if found["value"] is None:
        return "–"
    interval = found.get("interval")
    if interval is None:
        return text(found["value"])
    return f"{text(found['value'])} [{text(interval['low'])} … {text(interval['high'])}]"


def _plots(summary: EvalSummary) -> Iterator[str]:
    shown = [each for each in summary["targets"] if sum(each["distribution"]["counts"])]
    if not shown:
        return
    yield '<h2>Distribution of scores</h2>\n<div class="plots">\n'
    for each in shown:
        yield distribution_plot(each["distribution"]["counts"], summary["pass_limit"], each["target"])
    yield "</div>\n"


def _filters(summary: EvalSummary) -> Iterator[str]:
    yield '<h2>Tests</h2>\n<div class="filters" hidden>\n'
    for status, (_, count) in zip(STATUSES, statuses(summary), strict=True):
        if count and status != "pending":
            yield (
                f'<label><input type="checkbox" data-status="{status}" checked> {status.replace("_", " ")} '
                f"({count:,})</label>\n"
            )
    if len(summary["targets"]) > 1:
        options = "".join(f"<option>{escape(each['target'])}</option>" for each in summary["targets"])
        yield f'<label>target <select id="target"><option value="">all</option>{options}</select></label>\n'
    yield '<input id="search" type="search" placeholder="words in tests and answers" aria-label="search">\n'
    yield '<span id="shown" role="status"></span>\n</div>\n'


# --- Tests


def _tests(results: Results, summary: EvalSummary) -> Iterator[str]:
    counts = summary["tests"]
    ended = counts["in"] - counts["pending"]
    if ended > MAX_TESTS:
        yield (
            f"<p>{ended:,} tests ended; the page shows {MAX_TESTS:,} of them, and those that passed only where there is room. "
            "All are in results.jsonl.</p>\n"
        )
    if counts["pending"]:
        yield f"<p>{counted(counts['pending'], 'test')} {have(counts['pending'])} not ended and {are(counts['pending'])} not shown.</p>\n"
    share = MAX_CHARACTERS // max(1, min(ended, MAX_TESTS))
    left = {PASSED: max(0, MAX_TESTS - (ended - counts["passed"])), "": MAX_TESTS}
    for result in results():
        kind = PASSED if result.status == PASSED else ""
        if left[kind] > 0:
            left[kind] -= 1
            yield from shown_test(result, TextBudget(share), several=len(summary["targets"]) > 1)


MAX_TEXT = 20_000
"""Characters of a text that are shown."""
MIN_TEXT = 200
"""Characters of a text that are shown even where the budget is spent."""


class TextBudget:
    """How many characters a test's texts may take, about."""

    def __init__(self, characters: int) -> None:
        self._left = characters

    @property
    def spent(self) -> bool:
        return self._left <= 0

    def text(self, value: Any) -> str:
        """A value's text as HTML, cut where it is too long."""
        text = str(value).replace("\0", "\ufffd")
        shown = text[: min(MAX_TEXT, max(MIN_TEXT, self._left))]
        self._left -= len(shown)
        more = f"… ({len(text) - len(shown):,} more characters)" if len(shown) < len(text) else ""
        return escape(shown + more)

    def block(self, value: Any) -> str:
        """Any JSON value's text as a block of HTML, cut where it is too long."""
        text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
        return f"<pre>{self.text(text)}</pre>\n"


def shown_test(result: TestResult, budget: TextBudget, *, several: bool) -> Iterator[str]:
    """A test that opens at a click. ``several``: there are several targets, so that its own is named."""
    status, score = result.status, result.score
    target = escape(result.target or "", quote=True)
    name = escape(result.test_id or NO_ID) + (f" @ {target}" if several else "")
    labels = [text for text in (result.simulated_label, result.reroll_label) if text is not None]
    label = "".join(f' <span class="label">{escape(text)}</span>' for text in labels)
    mark = {PASSED: "✓", FAILED: "✗"}.get(status, "!" if "error" in status else "–")
    yield f'<details class="test {status}" data-status="{status}" data-target="{target}"><summary>'
    yield f'<span class="status">{mark} {status.replace("_", " ")}</span><span class="id">{name}{label}</span>'
    yield f'<span class="score">{"–" if score is None else f"{score:.3f}"}</span></summary>\n<div>\n'
    yield from _about(result, budget)
    findings = [*_findings(result, budget)]  # they come last, and matter most
    yield from _messages("Input", result.input, budget)
    yield from _messages("Expected", result.expected_output, budget)
    if result.output:
        yield from _messages("Output", result.output, budget)
    elif result.answer:
        yield f"<h3>Answer</h3>\n{budget.block(result.answer)}"
    if result.file_changes:
        yield f"<h3>File changes</h3>\n{budget.block(result.file_changes)}"
    yield from findings
    yield "</div></details>\n"


def _about(result: TestResult, budget: TextBudget) -> Iterator[str]:
    if result.error:
        yield f"<h3>Error</h3>\n{budget.block(result.error)}"
    if result.criteria:
        yield f"<p><b>Criteria:</b> {budget.text(result.criteria)}</p>\n"
    yield f'<p class="about">{budget.text(" · ".join(_figures(result)))}</p>\n'
    for notice in result.notices or ():
        yield f'<p class="about">{budget.text(notice)}</p>\n'


def _figures(result: TestResult) -> Iterator[str]:
    yield f"dataset {result.dataset}"
    if result.threshold is not None:
        yield f"limit {result.threshold:g}"
    for figure in reversed(FIGURES):
        value = getattr(result, figure.name)
        if value is not None and value != {}:
            yield figure.shown(value)
    if (of := result.aggregation) is not None:
        yield f"{of['passed_attempts']} of {of['total_attempts']} trials passed ({of['strategy'].replace('_', ' ')})"


def _messages(title: str, messages: Any, budget: TextBudget) -> Iterator[str]:
    if not messages:
        return
    yield f"<h3>{title}</h3>\n"
    listed = messages if isinstance(messages, list) else [messages]
    for number, each in enumerate(listed):
        if budget.spent and number:
            yield f'<p class="about">… and {len(listed) - number:,} more</p>\n'
            return
        message = each if isinstance(each, dict) else {"content": each}
        yield f'<div class="role">{escape(str(message.get("role", "")))}</div>\n'
        if message.get("content") not in (None, ""):
            yield budget.block(message["content"])
        for call in message.get("tool_calls") or []:
            yield f'<div class="role">tool call</div>\n{budget.block(call)}'


def _findings(result: TestResult, budget: TextBudget) -> Iterator[str]:
    if result.scores:
        yield '<h3>Scores</h3>\n<table><thead><tr><th>grader</th><th>type</th><th class="n">score</th>'
        yield '<th class="n">weight</th><th>found</th></tr></thead>\n<tbody>'
        yield from _score_rows(result.scores, 0, budget)
        yield "</tbody></table>\n"
    if result.trials:
        yield '<h3>Trials</h3>\n<table><thead><tr><th class="n">trial</th><th>status</th><th class="n">score</th>'
        yield "<th>answer or error</th></tr></thead>\n<tbody>"
        for sample in result.trials:
            text = budget.text(sample.get("error") or sample.get("answer") or "")
            yield f'<tr><td class="n">{sample["attempt"] + 1}</td><td>{sample["status"].replace("_", " ")}</td>'
            yield f'<td class="n">{_score(sample.get("score"))}</td><td>{text}</td></tr>\n'
        yield "</tbody></table>\n"


def _score_rows(scores: Sequence[ScoreRecord], depth: int, budget: TextBudget) -> Iterator[str]:
    for score in scores:
        found = [f"✓ {hit}" for hit in score["hits"]] + [f"✗ {miss}" for miss in score["misses"]]
        found += [text for text in (score.get("reasoning"), score.get("error"), score.get("left_out")) if text]
        yield f"<tr><td>{'› ' * depth}{budget.text(score['name'])}</td><td>{budget.text(score['type'])}</td>"
        yield f'<td class="n">{_score(score["score"])}</td><td class="n">{score["weight"]:g}</td>'
        yield f"<td>{'<br>'.join(map(budget.text, found))}</td></tr>\n"
        yield from _score_rows(score.get("scores", []), depth + 1, budget)


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


WIDTH, HEIGHT = 340, 170
_LEFT, _BOTTOM, _TOP = 34, 22, 22
_AXIS = WIDTH - _LEFT - 8


def distribution_plot(counts: Sequence[int], threshold: float, title: str) -> str:
    """A bar for each of equally wide bins from 0 to 1, with the threshold as a line."""
    highest, total = max(*counts, 1), sum(counts)
    name = escape(f"{title}: {total:,} scores")
    floor, space = HEIGHT - _BOTTOM, HEIGHT - _BOTTOM - _TOP
    parts = [f'<svg role="img" aria-label="{name}" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">']
    parts += [f'<text x="{_LEFT}" y="14">{name}</text>']
    step = _AXIS / len(counts)
    for number, count in enumerate(counts):
        height = space * count / highest
        low, high = number / len(counts), (number + 1) / len(counts)
        parts += [
            f'<rect class="bar" x="{_LEFT + number * step + 1:.1f}" y="{floor - height:.1f}" width="{step - 2:.1f}" '
            f'height="{height:.1f}"><title>{low:g} to {high:g}: {count:,}</title></rect>'
        ]
    parts += [f'<line x1="{_LEFT}" y1="{floor}" x2="{_LEFT + _AXIS}" y2="{floor}"/>']
    x = _LEFT + threshold * _AXIS
    parts += [
        f'<line class="limit" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{floor}"><title>limit {threshold:g}</title></line>'
    ]
    for mark in (0, 0.2, 0.4, 0.6, 0.8, 1):
        parts += [f'<text x="{_LEFT + mark * _AXIS:.1f}" y="{HEIGHT - 6}" text-anchor="middle">{mark:g}</text>']
    parts += [f'<text x="{_LEFT - 4}" y="{_TOP + 8}" text-anchor="end">{highest:,}</text>']
    parts += [f'<text x="{_LEFT - 4}" y="{floor}" text-anchor="end">0</text>', "</svg>\n"]
    return "\n".join(parts)
