"""The structure of the code: imports without circles, few modules on one level, telling names, and texts that stand alone."""

from __future__ import annotations

import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[1]
MAX_MODULES = 12
"""Modules directly in one package, its ``__init__`` and its sub-packages apart."""
NOT_TELLING = frozenset(
    [
        "asked",
        "told",
        "paid",
        "places",
        "past",
        "course",
        "endings",
        "moments",
        "offer",
        "parent",
        "desk",
        "surroundings",
        "survey",
        "choosing",
        "names",
    ]
)
LACKED = re.compile(
    r"behaviou?r specification|founding (?:document|example)|seed document|specification, section|\.\./shared/data",
    re.IGNORECASE,
)
"""What texts must not refer to, because no reader has it."""
Edges = Mapping[str, Iterable[str]]


@cache
def imports() -> dict[str, set[str]]:
    """What each module imports of ours, also late, in a function; what is for type checkers alone does not count."""
    graph = grimp.build_graph("manyhands", exclude_type_checking_imports=True, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def packages() -> list[str]:
    return sorted({module.rpartition(".")[0] for module in imports() if "." in module})


def circle(edges: Edges) -> list[str]:
    """One circle, its first node also last; empty if there is none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def within(package: str) -> Edges:
    """What the modules and sub-packages directly in a package import of each other."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    depth = package.count(".") + 2
    for one, others in imports().items():
        for other in others:
            if one.startswith(f"{package}.") and other.startswith(f"{package}."):
                left, right = (".".join(each.split(".")[:depth]) for each in (one, other))
                if left != right:
                    found[left].add(right)
    return found


def test_a_circle_is_found() -> None:
    assert circle({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]})
    assert circle({"a": ["b", "c"], "b": ["c"]}) == []


def test_modules_import_each_other_without_circles() -> None:
    assert circle(imports()) == []


@pytest.mark.parametrize("package", packages())
def test_what_lies_side_by_side_imports_each_other_without_circles(package: str) -> None:
    assert circle(within(package)) == []


def test_a_level_has_few_modules() -> None:
    inner = set(packages())
    levels = Counter(module.rpartition(".")[0] for module in imports() if module not in inner)
    assert {package: count for package, count in levels.items() if count > MAX_MODULES} == {}


def test_modules_are_named_after_what_they_hold() -> None:
    assert [module for module in imports() if module.rpartition(".")[2] in NOT_TELLING] == []


def test_nothing_is_cited_that_a_reader_lacks() -> None:
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    paths = [ROOT / name for name in files.split("\0") if name] or [*ROOT.glob("src/**/*.py"), *ROOT.glob("docs/*.md")]
    found = []
    for path in paths:
        if path.suffix in (".py", ".md", ".sql", ".toml", ".yaml") and path != Path(__file__) and path.is_file():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            found += [f"{path}:{number}: {line}" for number, line in enumerate(lines, 1) if LACKED.search(line)]
    assert found == []
