"""The formats of files of results: JSON Lines, JSON, YAML, JUnit XML, and the HTML page."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, BinaryIO
from xml.sax.saxutils import escape, quoteattr

from manyhands.core.jsonio import finite, line, without_surrogates
from manyhands.core.text import are, counted, have
from manyhands.runs.shown.documents import write_document
from manyhands.workloads.evals.items import FAILED, INVALID, PASSED, SKIPPED, UNGRADED
from manyhands.workloads.evals.results.result_lines import NO_ID, WITHOUT_SCORE, TestResult
from manyhands.workloads.evals.results.shown.report import Results, report_sections
from manyhands.workloads.evals.results.summary import EvalSummary, reroll_line

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORDS = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n"))
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufdcf\ufdf0-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 can't hold, and what it discourages (section 2.2)."""
_MAX_CHARACTERS = 10_000
_TOTALS = ("tests", "failures", "errors")
_NEWLINE = "\n"


def write_as(ending: str, handle: BinaryIO, results: Results, summary: EvalSummary) -> None:
    """Write results in the format of a file's ending."""
    _WRITERS[ending](handle, results, summary)


def write_lines(handle: BinaryIO, results: Results, summary: EvalSummary) -> None:
    """JSON Lines: one result each."""
    for result in results():
        handle.write(line(result.to_json()).encode() + b"\n")


def write_json(handle: BinaryIO, results: Results, summary: EvalSummary) -> None:
    """``{"stats": {total, passed, failed, pass_rate, …}, "results": […]}``, where ``failed`` counts only tests that have a score."""
    tests = summary["tests"]
    stats: dict[str, float | None] = {
        "total": tests["in"],
        **{name: count for name, count in tests.items() if name != "in"},
    }
    stats |= {"pass_rate": summary["pass_rate"]["value"], "mean_score": summary["mean_score"]["value"]}
    stats |= {"pass_limit": summary["pass_limit"]}
    handle.write(f'{{"stats": {line(stats)},\n"summary": {line(dict(summary))},\n"results": ['.encode())
    separator = "\n"
    for result in results():
        handle.write(f"{separator}{line(result.to_json())}".encode())
        separator = ",\n"
    handle.write(b"\n]}\n")


def write_yaml(handle: BinaryIO, results: Results, summary: EvalSummary) -> None:
    """YAML documents, each a result. Texts are double-quoted, so that no reader takes them for anything else."""
    for result in results():
        handle.write(b"---\n")
        handle.write("".join(_yaml(result.to_json(), 0)).encode())


def _yaml(value: Any, depth: int) -> Iterator[str]:
    """A mapping or list that is not empty, as block lines."""
    indent = "  " * depth
    entries = value.items() if isinstance(value, dict) else ((None, entry) for entry in value)
    for key, entry in entries:
        head = f"{indent}-" if key is None else f"{indent}{_key(key)}:"
        if isinstance(entry, (dict, list)) and entry:
            yield f"{head}\n"
            yield from _yaml(entry, depth + 1)
        else:
            yield f"{head} {_scalar(entry)}\n"


def _key(key: str) -> str:
    return key if _PLAIN_KEY.fullmatch(key) and key.lower() not in _WORDS else _scalar(key)


def _scalar(value: Any) -> str:
    """JSON, which is YAML too, but for characters that YAML wants escaped."""
    text = line(value) if isinstance(value, str) else json.dumps(finite(value))
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


# --- JUnit


def write_junit(handle: BinaryIO, results: Results, summary: EvalSummary) -> None:
    """JUnit XML, which systems for continuous integration read, in two passes over the results, as suites name their counts first.

    One suite for each dataset, one case for each test and target. A failure is a score below the threshold, an error a test without a
    score; none is counted as both. Tests that were left out, have no graders, or depend on one that failed are skipped. What is wrong with
    a run besides (a command for all tests that failed, tests that have not ended) is in its suite's ``system-err``.

    There is no standard for these files; the elements and attributes here are those that the strictest reader knows (the schema
    ``junit-10.xsd`` of Jenkins' xUnit plugin).
    """
    counts = [_counted(suite, cases) for suite, cases in groupby(results(), key=_suite)]
    several = len(summary["targets"]) > 1
    total: Counter[str] = Counter()
    for _, each in counts:
        total.update(each)

    def write(text: str) -> None:
        handle.write(text.encode() + b"\n")

    write('<?xml version="1.0" encoding="UTF-8"?>')
    write(f"<testsuites{_attributes({'name': summary.get('run_name', 'evals')})}{_figures(total, _TOTALS)}>")
    for (suite, figures), (_, cases) in zip(counts, groupby(results(), key=_suite), strict=True):
        write(f"  <testsuite{_attributes({'name': suite})}{_figures(figures, (*_TOTALS, 'skipped'))}>")
        write("    <properties>")
        write(f"      <property{_attributes({'name': 'pass_limit', 'value': format(summary['pass_limit'], 'g')})}/>")
        if (rerolled := reroll_line(summary)) is not None:
            write(f"      <property{_attributes({'name': 'rerolled', 'value': rerolled})}/>")
        write("    </properties>")
        for result in cases:
            for text in _case(result, several=several):
                write(text)
        if besides := [*_failures(summary, suite)]:
            write(f"    <system-err>{_text(_NEWLINE.join(besides))}</system-err>")
        write("  </testsuite>")
    write("</testsuites>")


def _failures(summary: EvalSummary, suite: str) -> Iterator[str]:
    """What keeps a run from having gone well, though no test of it says so."""
    for command in summary.get("commands", ()):
        if command["dataset"] == suite and command["failure"] is not None:
            yield f"target {command['target']}: {command['failure']}"
    if pending := summary["tests"]["pending"]:
        yield f"{counted(pending, 'test')} of the run {have(pending)} not ended and {are(pending)} not in this file"


def _suite(result: TestResult) -> str:
    return result.dataset


def _counted(suite: str, cases: Iterator[TestResult]) -> tuple[str, Counter[str]]:
    counts: Counter[str] = Counter(tests=0, failures=0, errors=0, skipped=0, milliseconds=0)
    for result in cases:
        status = result.status
        counts["tests"] += 1
        counts["failures"] += status == FAILED
        counts["errors"] += status in WITHOUT_SCORE
        counts["skipped"] += status in (INVALID, SKIPPED, UNGRADED)
        counts["milliseconds"] += round(result.duration_ms or 0)
    return suite, counts


def _figures(counts: Counter[str], names: Sequence[str]) -> str:
    named = {name: str(counts[name]) for name in names}
    return _attributes({**named, "time": f"{counts['milliseconds'] / 1000:.3f}"})


def _case(result: TestResult, *, several: bool) -> Iterator[str]:
    """``several``: there are several targets, so that one is named in each class."""
    seconds = (result.duration_ms or 0) / 1000
    of = f"{result.dataset} @ {result.target}" if several and result.target else result.dataset
    name = {"name": result.test_id or NO_ID, "classname": of, "time": f"{seconds:.3f}"}
    inner = list(_inner(result))
    if not inner:
        yield f"    <testcase{_attributes(name)}/>"
        return
    yield f"    <testcase{_attributes(name)}>"
    yield from inner
    yield "    </testcase>"


def _inner(result: TestResult) -> Iterator[str]:
    status = result.status
    if status == FAILED:
        message = f"score={result.score:.3f}, below the limit of {result.threshold:g}"
        details = "\n".join([*result.misses, *([result.reasoning] if result.reasoning else [])])
        yield f"      <failure{_attributes({'message': message, 'type': 'score'})}>{_text(details)}</failure>"
    elif status in WITHOUT_SCORE:
        error = result.error or status
        kind = {"message": error.split("\n")[0][:300], "type": result.cause or status}
        yield f"      <error{_attributes(kind)}>{_text(error)}</error>"
    elif status != PASSED:
        why = result.error or (_without_graders(result) if status == UNGRADED else status)
        yield f"      <skipped{_attributes({'message': f'{status}: {why}'})}/>"
    printed = [result.answer] if status in (FAILED, *WITHOUT_SCORE) and result.answer else []
    if result.reroll_label is not None:
        printed.insert(0, result.reroll_label)
    if printed:
        yield f"      <system-out>{_text(_NEWLINE.join(printed))}</system-out>"


def _without_graders(result: TestResult) -> str:
    if not result.scores:
        return "it has no graders"
    return "; ".join(["no grader had anything to compare", *(result.notices or ())])


def _attributes(values: Mapping[str, str]) -> str:
    named = (f"{name}={quoteattr(_valid(value), {_NEWLINE: '&#10;'})}" for name, value in values.items())
    return "".join(f" {each}" for each in named)


def _text(text: str) -> str:
    cut = (
        text
        if len(text) <= _MAX_CHARACTERS
        else f"{text[:_MAX_CHARACTERS]}… ({len(text) - _MAX_CHARACTERS:,} more characters)"
    )
    return escape(_valid(cut))


def _valid(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", without_surrogates(text))


def write_html(handle: BinaryIO, results: Results, summary: EvalSummary) -> None:
    """One page that needs nothing else: the figures, and the tests, each of which opens at a click."""
    write_document(handle, str(summary.get("run_name", "Evaluation")), report_sections(results, summary))


_WRITERS: dict[str, Callable[[BinaryIO, Results, EvalSummary], None]] = {
    ".jsonl": write_lines,
    ".json": write_json,
    ".xml": write_junit,
    ".html": write_html,
    ".yaml": write_yaml,
    ".yml": write_yaml,
}
