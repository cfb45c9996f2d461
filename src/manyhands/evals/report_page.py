"""Results as one HTML page that needs nothing else: no network, no other file. Without JavaScript only the filters are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from html import escape
from importlib.resources import files
from typing import Any, BinaryIO

from manyhands.core.jsonio import without_surrogates
from manyhands.core.wording import are, counted, have
from manyhands.evals.distribution_plot import distribution_plot
from manyhands.evals.eval_summary import statuses
from manyhands.evals.grading import PASSED
from manyhands.evals.report_tests import Room, shown_test
from manyhands.evals.result_records import STATUSES, Record

MOST_TESTS = 5000
"""Tests that a page shows."""
MOST_CHARACTERS = 20_000_000
"""Characters of tests' texts that a page has room for, about; each test gets its share of them."""
_ALWAYS_SHOWN = ("passed", "failed", "errors", "grader_errors")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_RESOURCES = "manyhands.evals"
Records = Callable[[], Iterator[Record]]


def write_page(handle: BinaryIO, records: Records, summary: Mapping[str, Any]) -> None:
    """Write the page, streamed."""
    for text in _page(records, summary):
        handle.write(without_surrogates(text).encode())


def _page(records: Records, summary: Mapping[str, Any]) -> Iterator[str]:
    title = escape(str(summary.get("run_name", "Evaluation")))
    style = _resource("report_page.css")
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
    yield from _tests(records, summary)
    yield f"<script>\n{_resource('report_page.js')}</script>\n</body>\n</html>\n"


def _resource(name: str) -> str:
    return files(_RESOURCES).joinpath(name).read_text(encoding="utf-8")


def _head(title: str, summary: Mapping[str, Any]) -> Iterator[str]:
    simulated = ' <span class="label">simulated answers</span>' if summary["simulated"] else ""
    yield f"<h1>{title}{simulated}</h1>\n"
    about = [f"made {summary.get('created_at')}", f"run {summary.get('run_id')}", f"manyhands {summary.get('version')}"]
    about += [str(file["path"]) for file in summary.get("eval_files", ())]
    yield f'<p class="about">{escape(" · ".join(about))}</p>\n'
    own = sum(summary["tests_with_other_limits"].values())
    tests = counted(own, "test")
    limit = f"A test has passed with a score of {summary['pass_limit']:g} or more"
    yield f"<p>{limit}{f' ({tests} {have(own)} another limit)' if own else ''}.</p>\n"


def _scores(summary: Mapping[str, Any]) -> Iterator[str]:
    level = summary["confidence"]
    interval = "" if level is None else f" ({100 * level:g} % interval)"
    names = [name for name, count in statuses(summary) if count or name in _ALWAYS_SHOWN]
    heads = "".join(f'<th class="n">{name.replace("_", " ")}</th>' for name in names)
    yield "<h2>Scores</h2>\n<table>\n<thead><tr><th>target</th><th class='n'>tests</th>" + heads
    yield f"<th>pass rate{interval}</th><th>mean score{interval}</th><th class='n'>cost</th></tr></thead>\n<tbody>\n"
    rows = [(each["target"], each) for each in summary["targets"]]
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
    yield from _trials(summary)


def _failures(summary: Mapping[str, Any]) -> Iterator[str]:
    """Commands that answer all tests at once, where one failed."""
    for each in summary.get("commands", ()):
        if each["failure"] is not None:
            trial = f", trial {each['trial'] + 1}" if each["trial"] else ""
            about = f"The command of target {each['target']}{trial} failed: {each['failure']}"
            yield f'<p class="failure">{escape(about)}</p>\n'


def _trials(summary: Mapping[str, Any]) -> Iterator[str]:
    for each in summary["targets"]:
        if (trials := each.get("trials")) is None:
            continue
        yield f"<h3>Trials of {escape(each['target'])}</h3>\n<table><thead><tr><th class='n'>k</th><th class='n'>tests</th>"
        yield "<th class='n'>pass@k</th><th class='n'>pass^k</th></tr></thead>\n<tbody>"
        for k, count in trials["tests"].items():
            yield f'<tr><td class="n">{k}</td><td class="n">{count:,}</td><td class="n">{trials["pass_at_k"][k]:.3f}</td>'
            power = trials["pass_power_k"][k]
            yield f'<td class="n">{"–" if power is None else f"{power:.3f}"}</td></tr>\n'
        yield "</tbody></table>\n"


def _estimate(found: Mapping[str, Any], scale: int) -> str:
    def text(value: float) -> str:
        return f"{scale * value:.1f} %" if scale == 100 else f"{value:.3f}"

    if found["value"] is None:
        return "–"
    interval = found.get("interval")
    if interval is None:
        return text(found["value"])
    return f"{text(found['value'])} [{text(interval['low'])} … {text(interval['high'])}]"


def _plots(summary: Mapping[str, Any]) -> Iterator[str]:
    shown = [each for each in summary["targets"] if sum(each["distribution"]["counts"])]
    if not shown:
        return
    yield '<h2>Distribution of scores</h2>\n<div class="plots">\n'
    for each in shown:
        yield distribution_plot(each["distribution"]["counts"], summary["pass_limit"], each["target"])
    yield "</div>\n"


def _filters(summary: Mapping[str, Any]) -> Iterator[str]:
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


def _tests(records: Records, summary: Mapping[str, Any]) -> Iterator[str]:
    counts = summary["tests"]
    ended = counts["in"] - counts["pending"]
    if ended > MOST_TESTS:
        yield (
            f"<p>{ended:,} tests ended; the page shows {MOST_TESTS:,} of them, and those that passed only where there is room. "
            "All are in results.jsonl.</p>\n"
        )
    if counts["pending"]:
        yield f"<p>{counted(counts['pending'], 'test')} {have(counts['pending'])} not ended and {are(counts['pending'])} not shown.</p>\n"
    share = MOST_CHARACTERS // max(1, min(ended, MOST_TESTS))
    left = {PASSED: max(0, MOST_TESTS - (ended - counts["passed"])), "": MOST_TESTS}
    for record in records():
        kind = PASSED if record["status"] == PASSED else ""
        if left[kind] > 0:
            left[kind] -= 1
            yield from shown_test(record, Room(share), several=len(summary["targets"]) > 1)
