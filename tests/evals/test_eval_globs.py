"""Patterns of names and paths."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.io.search_paths import SearchPath
from manyhands.workloads.evals.evalfile.files import files_below, find_evals
from manyhands.workloads.evals.evalfile.patterns import alternatives, compiled_glob, matching_files

TEST = "tests: [{id: a, criteria: c, input: i}]\n"


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("*.md", "a.md", True),
        ("*.md", "d/a.md", False),
        ("**/*.md", "a.md", True),
        ("**/*.md", "d/e/a.md", True),
        ("d/**", "d/e/a.md", True),
        ("d/**", "d", True),
        ("d/**/a", "d/a", True),
        ("d/**/a", "d/x/y/a", True),
        ("d?e", "dxe", True),
        ("d?e", "d/e", False),
        ("[ab].x", "b.x", True),
        ("[!ab].x", "b.x", False),
        ("[!ab].x", "c.x", True),
        ("[!a]x", "/x", False),
        ("[a-c]", "b", True),
        ("[", "[", True),
        ("{a,b/c}.x", "b/c.x", True),
        ("{a,{b,c}}", "c", True),
        ("{a}", "{a}", True),
        ("a.b", "axb", False),
        ("a+(b)", "a+(b)", True),
        ("x**y", "xa/by", True),
    ],
)
def test_patterns(pattern: str, path: str, fits: bool) -> None:
    assert (compiled_glob(pattern).fullmatch(path) is not None) == fits


def test_alternatives() -> None:
    assert sorted(alternatives("a{b,c{d,e}}f{,g}")) == sorted(["abf", "abfg", "acdf", "acdfg", "acef", "acefg"])
    with pytest.raises(ValueError, match="more than"):
        alternatives("{a,b}" * 30)


@given(st.text(max_size=30))
def test_any_pattern_is_read_or_refused(text: str) -> None:
    try:
        compiled_glob(text)
    except ValueError:
        return


@given(st.text(st.characters(exclude_characters="*?[{}"), max_size=30))
def test_text_without_marks_fits_itself_only(text: str) -> None:
    assert compiled_glob(text).fullmatch(text)
    assert not compiled_glob(text).fullmatch(text + "x")


def write(folder: Path, *names: str, text: str = TEST) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_matching_files_are_sorted(tmp_path: Path) -> None:
    write(tmp_path, "b.yaml", "a.yaml", ".h.yaml", "d/c.yaml")

    found = matching_files("**/*.{yaml,yml}", tmp_path)

    assert found == [tmp_path / name for name in ("a.yaml", "b.yaml", "d/c.yaml")]


def test_any_levels_are_no_links_that_lead_round(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x.yaml").touch()
    (tmp_path / "a" / "b" / "round").symlink_to(tmp_path / "a")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "file.yaml").symlink_to(tmp_path / "a" / "b" / "x.yaml")
    assert matching_files("a/**/*.yaml", tmp_path) == [tmp_path / "a/b/x.yaml", tmp_path / "a/file.yaml"]
    assert matching_files("**/x.yaml", tmp_path) == [tmp_path / "a/b/x.yaml"]
    # What is named is followed.
    assert matching_files("link/**/x.yaml", tmp_path) == [tmp_path / "link/b/x.yaml"]
    assert matching_files("*/b/x.yaml", tmp_path) == [tmp_path / "a/b/x.yaml", tmp_path / "link/b/x.yaml"]


def test_a_folder_stands_for_the_files_in_it_whose_kind_is_known(tmp_path: Path) -> None:
    write(
        tmp_path,
        "b.eval.yaml",
        "a/x.yml",
        ".hidden/x.yaml",
        "node_modules/x.yaml",
        ".agentv/results/old.yaml",
        "broken.eval.yaml",
    )
    write(tmp_path, "targets.yaml", ".agentv/targets.yaml", text="targets: []")
    write(tmp_path, ".agentv/config.yaml", text="guideline_patterns: []")
    write(tmp_path, "compose.yaml", text="services: {}")
    write(tmp_path, "cases.yaml", text="- {id: a}")
    write(tmp_path, "broken.eval.yaml", text="tests: [")
    write(tmp_path, "lines.jsonl", "other.jsonl", "own.eval.jsonl", text='{"id": "a"}\n')
    write(tmp_path, "lines.yaml", text="dataset: x")
    write(tmp_path, "side.jsonl", text='{"id": "a"}\n')
    write(tmp_path, "side.eval.yaml", text="tests: side.jsonl")

    found = [
        (str(path.relative_to(tmp_path)), kind)
        for path, kind in files_below(tmp_path, SearchPath.of(tmp_path, tmp_path))
    ]

    assert found == [
        ("b.eval.yaml", "eval"),
        ("broken.eval.yaml", "eval"),
        ("lines.jsonl", "eval"),
        ("own.eval.jsonl", "eval"),
        ("side.jsonl", "eval"),
        ("targets.yaml", "targets"),
        (".agentv/config.yaml", "config"),
        (".agentv/targets.yaml", "targets"),
        ("a/x.yml", "eval"),
    ]


def test_eval_files_that_a_person_means(tmp_path: Path) -> None:
    write(tmp_path, "b.yaml", "a.yaml", "d/c.yaml")
    write(tmp_path, "e/targets.yaml", text="targets: []")

    around = SearchPath.of(tmp_path, tmp_path)
    found = find_evals(["b.yaml", "*.yaml", "d", str(tmp_path / "[ad].yaml")], around)

    assert found == [tmp_path / name for name in ("b.yaml", "a.yaml", "d/c.yaml")]
    for argument, said in (
        ("none.yaml", "there is no such file"),
        ("x*.yaml", "no file fits"),
        ("e", "there are no eval files"),
    ):
        with pytest.raises(UserError, match=said):
            find_evals([argument], around)


def test_the_configuration_may_say_which_files_are_eval_files(tmp_path: Path) -> None:
    write(tmp_path, "evals/a.yaml", "evals/b.eval.yaml", "other/c.eval.yaml", "targets.yaml")
    write(tmp_path, "evals/targets.yaml", text="targets: []")
    write(tmp_path, ".agentv/config.yaml", text="eval_patterns: ['evals/**/*.yaml', '!x']\n")
    around = SearchPath.of(tmp_path, tmp_path)

    assert find_evals(["."], around) == [tmp_path / "evals" / name for name in ("a.yaml", "b.eval.yaml")]
    with pytest.raises(UserError, match="there are no eval files in this folder"):
        find_evals(["other"], around)
    assert find_evals(["other/c.eval.yaml"], around) == [tmp_path / "other" / "c.eval.yaml"]  # a file is meant as it is
