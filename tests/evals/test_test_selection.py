"""Which tests are run, and telling tests of several files apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.io.locations import Location
from manyhands.workloads.evals.evalfile.contents import EvalFile, Test
from manyhands.workloads.evals.evalfile.loading import distinctly_named
from manyhands.workloads.evals.evalfile.patterns import id_filter, split_patterns
from manyhands.workloads.evals.settings import EvalSpec


@pytest.mark.parametrize(
    ("patterns", "fit", "other"),
    [
        ((), ["a", "", "x/y"], []),
        (("a",), ["a"], ["ab", "A", ""]),
        (("a*",), ["a", "ab", "a\nb"], ["b", "a/b"]),
        (("*",), ["a", "a.b", ""], ["a/b", ".a"]),
        (("**",), ["a", "a/b", "a/b/c"], [".a", "a/.b"]),
        (("a/**", "**/z"), ["a/b", "a/b/c", "z", "x/y/z"], ["a", "b/a/c", ".x/z"]),
        (("a*b**", "?x"), ["ab", "aXbYZ", "ax"], ["a/b", ".x"]),
        ((".*", "[.a]b"), [".a", "ab"], ["b", "a/.b"]),
        (("!(a|b*)",), ["c", "ab", ""], ["a", "b", "bc", "x/y", ".x"]),
        (("case-!(1|2)x", "@(y|z)"), ["case-3x", "case-12x", "y"], ["case-1x", "case-2x", "yz"]),
        (("+(ab|c)d", "x?(y)z", "*(q)"), ["abd", "ccabd", "xz", "xyz", "", "qq"], ["d", "xyyz"]),
        (("!(!(a))",), ["a"], ["b"]),
        (("!!(a)",), ["a"], ["b"]),
        (("a\\*b", "c(d"), ["a*b", "c(d"], ["axb"]),
        (("case-00?",), ["case-001"], ["case-0010", "case-00"]),
        (("case-{1,2}x",), ["case-1x", "case-2x"], ["case-3x", "case-{1,2}x"]),
        (("[a-c]1", "z"), ["a1", "z"], ["d1", "a"]),
        (("[!a]1",), ["b1"], ["a1"]),
        (("!slow-*",), ["fast", "slow"], ["slow-1"]),
        (("a*", "!ab"), ["a", "ac"], ["ab", "b"]),
        (("a.b",), ["a.b"], ["axb"]),
    ],
)
def test_ids_that_fit(patterns: tuple[str, ...], fit: list[str], other: list[str]) -> None:
    fits = id_filter(patterns)
    assert [test_id for test_id in fit + other if fits(test_id)] == fit


def chosen(test_id: Any) -> tuple[str, ...] | None:
    return EvalSpec.make({"eval_files": ["e"], "test_id": test_id}).test_id


def test_commas_between_patterns_and_in_braces() -> None:
    assert split_patterns("a,{b,c},d*") == ["a", "{b,c}", "d*"]
    assert chosen("a, {b,c}") == ("a", "{b,c}")
    assert chosen(["a,b", "c"]) == ("a", "b", "c")
    assert split_patterns("@(a|b,c),!(d,e),[,;]x,y\\,z,(") == ["@(a|b,c)", "!(d,e)", "[,;]x", "y\\,z", "("]
    fits = id_filter(split_patterns("@(a|b,c),y\\,z"))
    assert [test_id for test_id in ("a", "b,c", "b", "y,z", "y") if fits(test_id)] == ["a", "b,c", "y,z"]
    assert chosen("") is None
    with pytest.raises(UserError, match="stands for more than"):
        chosen("{a,b}" * 12)


def file(path: str, dataset: str, *ids: str) -> EvalFile:
    tests = tuple(Test(id=test_id, input=(), location=Location(path)) for test_id in ids)
    return EvalFile(Path(path), dataset, tests, Location(path))


def test_datasets_of_the_same_name() -> None:
    def datasets(*files: EvalFile) -> list[str]:
        return [each.dataset for each in distinctly_named(files)]

    assert datasets(file("/a/e.yaml", "e", "1"), file("/b/e.yaml", "e", "2")) == ["e", "e"]
    assert datasets(file("/a/e.yaml", "e", "1"), file("/b/e.yaml", "e", "1"), file("/c.yaml", "c", "1")) == [
        "a/e",
        "b/e",
        "c",
    ]
    assert datasets(file("/a/x/e.yaml", "e", "1"), file("/b/x/e.yaml", "e", "1")) == ["x/e", "x/e-2"]
