"""Results as JUnit XML, which systems for continuous integration read.

One suite for each dataset, one case for each test and target. A failure is a score below the limit, an error a test without a score; none
is counted as both. Tests that were left out, have no graders, or depend on one that failed are skipped. What is wrong with a run besides (a
command for all tests that failed, tests that have not ended) is in its suite's ``system-err``.

There is no standard for these files; the elements and attributes here are those that the strictest reader knows (the schema
``junit-10.xsd`` of Jenkins' xUnit plugin).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, BinaryIO
from xml.sax.saxutils import escape, quoteattr

from manyhands.core.jsonio import without_surrogates
from manyhands.core.text import are, counted, have
from manyhands.workloads.evals.items import FAILED, INVALID, PASSED, SKIPPED, UNGRADED
from manyhands.workloads.evals.results.records import NO_ID, WITHOUT_SCORE, TestResult

_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufdcf\ufdf0-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 can't hold, and what it discourages (section 2.2)."""
_MAX_CHARACTERS = 10_000
_TOTALS = ("tests", "failures", "errors")
_NEWLINE = "\n"


def write_junit(handle: BinaryIO, results: Callable[[], Iterator[TestResult]], summary: Mapping[str, Any]) -> None:
    """Write the file in two passes over the results, as suites name their counts first."""
    counts = [_counted(suite, cases) for suite, cases in groupby(results(), key=_suite)]
    several = len(summary["targets"]) > 1
    total: Counter[str] = Counter()
    for _, each in counts:
        total.update(each)
    write = _Writer(handle).line
    write('<?xml version="1.0" encoding="UTF-8"?>')
    write(f"<testsuites{_attributes({'name': summary.get('run_name', 'evals')})}{_figures(total, _TOTALS)}>")
    for (suite, figures), (_, cases) in zip(counts, groupby(results(), key=_suite), strict=True):
        write(f"  <testsuite{_attributes({'name': suite})}{_figures(figures, (*_TOTALS, 'skipped'))}>")
        write("    <properties>")
        write(f"      <property{_attributes({'name': 'pass_limit', 'value': format(summary['pass_limit'], 'g')})}/>")
        write("    </properties>")
        for result in cases:
            for text in _case(result, several=several):
                write(text)
        if besides := [*_failures(summary, suite)]:
            write(f"    <system-err>{_text(_NEWLINE.join(besides))}</system-err>")
        write("  </testsuite>")
    write("</testsuites>")


class _Writer:
    def __init__(self, handle: BinaryIO) -> None:
        self._handle = handle

    def line(self, text: str) -> None:
        self._handle.write(text.encode() + b"\n")


def _failures(summary: Mapping[str, Any], suite: str) -> Iterator[str]:
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
    if status in (FAILED, *WITHOUT_SCORE) and result.answer:
        yield f"      <system-out>{_text(result.answer)}</system-out>"


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
