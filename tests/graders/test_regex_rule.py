"""``regex``: its dialect and its bounds."""

from __future__ import annotations

import asyncio
import re
import time
import warnings

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.graders.text.patterns import compiled, written_out
from manyhands.testing.grader_doubles import grade, graders_of


@pytest.mark.parametrize(
    ("pattern", "answer", "expected"),
    [
        (r"\d{4}-\d{2}", "on 2025-01-15", 1),
        (r"^b", "a\nb", 0),
        (r"(?m)^b", "a\nb", 1),
        (r"(?i)clear", "CLEAR", 1),
        ("clear", "CLEAR", 0),
        ("/clear/i", "CLEAR", 1),
        ("/^b/m", "a\nb", 1),
        ("/a.b/s", "a\nb", 1),
        ("/a.b/gu", "a b", 1),
        ("/clear/q", "CLEAR", 0),
        ("/usr/bin/", "in /usr/bin/ there", 1),
        ("a/i", "a/i", 1),
        (r"(?<digit>\d)\k<digit>", "a55b", 1),
        (r"(?<digit>\d)\k<digit>", "a56b", 0),
        (r"(?P<digit>\d)(?P=digit)", "a55b", 1),
        (r"\\k<x>", r"\k<x>", 1),
        (r"(?<!a)b", "ab", 0),
        (r"(?<=a)b", "ab", 1),
        (r"\p{Lu}", "é É", 1),
        ("a\nb", "a\nb", 1),
        ("x_{i}", "x_i", 0),
        ("x_{i}", "is x_{i} here", 1),
        ("(foo){e}", "bar", 0),
        ("(?:foo){e<=2}", "fao", 0),
        ('"a": {d}', '"a": {d}', 1),
        (r"a{2}b{1,}c{,2}[{i}]\{", "aabi{", 1),
        (r"[]{e}]{2}", "{]", 1),
        ("a{1", "a{1", 1),
        ("^$", "", 1),
        (5, "x5", 1),
    ],
)
async def test_the_dialect(pattern: str, answer: str, expected: float) -> None:
    assert (await grade({"type": "regex", "value": pattern}, answer)).value == expected


@given(
    st.lists(st.sampled_from([*"a{}e1i,(|)[]+?", "<=", "{2}", "\\"]), min_size=1, max_size=8).map("".join),
    st.text("a{e1i", max_size=6),
)
async def test_what_the_standard_library_understands_means_the_same(pattern: str, answer: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            wanted = re.compile(pattern)
        except re.error:
            assume(False)
    if re.search(r"\{,\}|[+*?}]\+", pattern):  # no bounds at all; possessive repetitions, of which 3.11 has other ideas
        assume(False)
    assert (await grade({"type": "regex", "value": pattern}, answer)).value == bool(wanted.search(answer))


async def test_flags_of_their_own() -> None:
    assert (await grade({"type": "regex", "value": "^b.c", "flags": "ims"}, "a\nB\nc")).value == 1


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"value": "("}, "[0].value: not a regular expression: "),
        ({"value": r"\k<nobody>"}, "[0].value: not a regular expression: unknown group"),
        ({"value": "a", "flags": "iq"}, "[0].flags: must be letters out of adgimsuvx, not 'iq'"),
        (
            {"value": "(?:(?:(?:a{1000}){1000}){1000})"},
            "[0].value: a pattern whose repetitions come to more than 100,000",
        ),
        ({"value": "x" * 10_001}, "[0].value: a pattern has at most 10000 characters, not 10001"),
        ({"value": "(" * 4000 + "a" + ")" * 4000}, "[0].value: not a regular expression: it is too large"),
    ],
)
def test_patterns_that_can_not_be_used(entry: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        graders_of({"type": "regex", **entry})
    assert str(caught.value).startswith(f"checks.yaml: {message}")


def test_the_flag_that_would_say_where_to_look() -> None:
    with pytest.raises(UserError, match="begin"):
        graders_of({"type": "regex", "value": "/b/y"})


async def test_a_catastrophic_pattern_is_a_grader_error_and_holds_nobody_up() -> None:
    longest, last = 0.0, time.monotonic()

    async def watch() -> None:
        nonlocal longest, last
        while True:
            await asyncio.sleep(0.01)
            now = time.monotonic()
            longest, last = max(longest, now - last), now

    watcher = asyncio.create_task(watch())
    score = await grade({"type": "regex", "value": "(x+x+)+y"}, "x" * 5000)
    watcher.cancel()
    assert (score.value, score.verdict) == (None, "error")
    assert "took more than 2 s" in (score.error or "")
    assert longest < 1


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("abc", 3),
        ("a{10}", 10),
        ("a{2,5}", 5),
        ("a{3,}", 3),
        ("(ab){10}", 30),
        ("((a{10}){10})", 111),
        (r"[a-z{10}]", 1),
        (r"\{10}", 4),
        (r"[\]{9}]x", 2),
        ("a{x}", 4),
    ],
)
def test_the_size_of_patterns(pattern: str, size: int) -> None:
    assert written_out(pattern) == size


def test_ordinary_repetitions_are_no_problem() -> None:
    assert compiled(r"^[\w.+-]{1,64}@(?:[\w-]{1,63}\.){1,8}\w{2,63}$").search("ada@example.org")
