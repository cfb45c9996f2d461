"""Toolsets, distributions, and the person's own."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from random import Random

import pytest

from manyhands.core.errors import UserError
from manyhands.tools.distributions import (
    STANDARD_DISTRIBUTIONS,
    Distribution,
    availability_notice,
    draw,
    format_distributions,
    load_distributions_file,
)
from manyhands.tools.registry import Registry
from manyhands.tools.services.registry import lacking
from manyhands.tools.standard import standard_registry
from manyhands.tools.toolsets import STANDARD, Toolset, Toolsets, with_groups

NAMES = [
    "default",
    "image_gen",
    "research",
    "science",
    "development",
    "safe",
    "balanced",
    "minimal",
    "terminal_only",
    "terminal_web",
    "creative",
    "reasoning",
    "browser_use",
    "browser_only",
    "browser_tasks",
    "terminal_tasks",
    "mixed_tasks",
]
REGISTRY = standard_registry(plugins=False)


def test_toolsets_resolve_to_sorted_names() -> None:
    assert STANDARD.tools(["file"]) == ("patch", "read_file", "search_files", "write_file")
    assert STANDARD.tools(["terminal", "file", "terminal"]) == tuple(
        sorted(["terminal", "process", "patch", "read_file", "search_files", "write_file"])
    )
    assert set(STANDARD.tools(["autoformalize"])) == set(STANDARD.tools(["web", "file", "browser"]))
    assert len(STANDARD.tools(["browser"])) == 11
    assert STANDARD.tools(["all"]) == STANDARD.tools(["*"]) == STANDARD.tools(list(STANDARD))
    assert STANDARD.tools([]) == ()


@pytest.mark.parametrize(("old", "new"), [("web_tools", "web"), ("browser_tools", "browser"), ("file_tools", "file")])
def test_older_names_of_toolsets(old: str, new: str) -> None:
    assert STANDARD.tools([old]) == STANDARD.tools([new])


def test_unknown_and_circular_toolsets_are_refused() -> None:
    with pytest.raises(UserError, match=r"no toolset is called 'terminals'; did you mean terminal\?"):
        STANDARD.tools(["terminals"])
    with pytest.raises(UserError, match="'a' includes itself: a → b → a"):
        Toolsets([Toolset("a", "", includes=("b",)), Toolset("b", "", includes=("a",))])
    with pytest.raises(UserError, match=r"'a' includes 'flie', which is no toolset; did you mean file\?"):
        STANDARD.extended([Toolset("a", "", includes=("flie",))])
    with pytest.raises(UserError, match="'file' exists already"):
        STANDARD.extended([Toolset("file", "", ("x",))])


def test_toolsets_of_plugins_and_servers() -> None:
    registry = Registry([REGISTRY.get("todo")], groups={"planning": ["todo"], "web": ["todo"]})
    toolsets = with_groups(STANDARD, registry)
    assert toolsets.tools(["planning"]) == ("todo",)
    assert toolsets.tools(["web"]) == ("todo", "web_extract", "web_search")
    assert "todo" in toolsets.tools(["autoformalize"])


def test_all_seventeen_names_in_both_tables() -> None:
    for name in NAMES:
        for each in (STANDARD_DISTRIBUTIONS.named(name), STANDARD_DISTRIBUTIONS.named(f"fork:{name}")):
            assert each.description
            assert all(0 < percent <= 100 for _, percent in each.toolsets)
            STANDARD.tools(toolset for toolset, _ in each.toolsets)
    assert len(STANDARD_DISTRIBUTIONS) == 2 * len(NAMES) == 34
    assert STANDARD_DISTRIBUTIONS.named("opengauss:science") is STANDARD_DISTRIBUTIONS.named("fork:science")
    assert STANDARD_DISTRIBUTIONS.named("upstream:science") is STANDARD_DISTRIBUTIONS.named("science")
    assert dict(STANDARD_DISTRIBUTIONS["default"].toolsets)["terminal"] == 100


TABLES = {
    "fork:image_gen": "browser 90 web 55 file 30",
    "fork:research": "web 90 browser 70 file 35",
    "fork:science": "web 94 file 94 browser 65",
    "fork:development": "file 80 web 40 browser 25",
    "fork:terminal_tasks": "file 97 web 97 browser 75",
    "fork:mixed_tasks": "browser 92 file 92 web 35",
    "fork:default": "autoformalize 100",
    "reasoning": "web 90 file 60 terminal 20",
    "terminal_only": "terminal 100 file 100",
    "browser_tasks": "browser 97 vision 12 terminal 15",
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_those_of_the_specification(name: str) -> None:
    written = " ".join(f"{toolset} {percent:g}" for toolset, percent in STANDARD_DISTRIBUTIONS[name].toolsets)
    assert written == TABLES[name]


def test_an_unknown_distribution_lists_the_names() -> None:
    with pytest.raises(UserError, match=r"'scince'; did you mean science\?; distributions: balanced, browser_only"):
        STANDARD_DISTRIBUTIONS.named("scince")
    with pytest.raises(UserError):
        STANDARD_DISTRIBUTIONS.named("fork:scince")


def test_draws_are_independent_and_depend_on_the_seed_alone() -> None:
    distribution = STANDARD_DISTRIBUTIONS["science"]
    first = [draw(distribution, partial(Random, seed)) for seed in range(3000)]
    assert first == [draw(distribution, partial(Random, seed)) for seed in range(3000)]
    counts = Counter(name for drawn in first for name in drawn)
    for name, percent in distribution.toolsets:
        assert abs(counts[name] / 30 - percent) < 3
    assert all(drawn == [name for name, _ in distribution.toolsets if name in drawn] for drawn in first)


def test_something_is_always_drawn() -> None:
    rare = Distribution("rare", "", (("web", 1), ("file", 2), ("terminal", 2)))
    drawn = Counter(tuple(draw(rare, partial(Random, seed))) for seed in range(500))
    assert drawn[("file",)] > 450, "the likeliest, the first of equals"
    assert () not in drawn
    certain = Distribution("certain", "", (("web", 100),))
    assert all(draw(certain, partial(Random, seed)) == ["web"] for seed in range(200))


def test_the_list_of_distributions() -> None:
    text = format_distributions(STANDARD_DISTRIBUTIONS)
    lines = text.split("\n")
    assert lines[1] == "=" * 70
    names = [line.strip() for line in lines if line.startswith("  ") and not line.startswith("   ")]
    assert names == sorted(NAMES) + sorted(f"fork:{name}" for name in NAMES)
    at = lines.index("  reasoning")
    assert [line.split()[:2] for line in lines[at + 2 : at + 5]] == [["web", "90"], ["file", "60"], ["terminal", "20"]]


def test_what_cannot_be_used_is_named_in_one_line() -> None:
    assert availability_notice(STANDARD_DISTRIBUTIONS["terminal_only"], REGISTRY) == []
    without = REGISTRY.without(lacking(()))
    tools, toolsets = availability_notice(STANDARD_DISTRIBUTIONS["terminal_tasks"], without)
    for part in (
        "browser_* (10 tools) (needs Chromium",
        "web_search (needs a search service and its key (--web_search))",
        "web_extract (needs pip install 'manyhands[web]', or a service and its key (--web_extract))",
    ):
        assert part in tools
    assert toolsets == "toolsets drawn without any tool: web, browser, vision, image_gen"
    own = STANDARD.extended([Toolset("mine", "", ("mystery",))])
    (notice, _) = availability_notice(Distribution("x", "", (("mine", 50),)), REGISTRY, own)
    assert "mystery (needs a plug-in or MCP server of that name)" in notice


def test_a_persons_own_distributions(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(
        "toolsets:\n  proofs:\n    description: Proving\n    tools: [terminal]\n    includes: [file_tools]\n"
        "lean:\n  description: Lean\n  toolsets:\n    proofs: 100\n    web: 12.5\ndefault:\n  toolsets: {todo: 100}\n"
    )
    distributions, toolsets = load_distributions_file(path, STANDARD)
    assert distributions["lean"] == Distribution("lean", "Lean", (("proofs", 100.0), ("web", 12.5)))
    assert distributions["default"].toolsets == (("todo", 100.0),)
    assert distributions["science"] is STANDARD_DISTRIBUTIONS["science"]
    assert toolsets.tools(["proofs"]) == ("patch", "read_file", "search_files", "terminal", "write_file")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"own\.yaml: a mapping of distributions"),
        ("- a\n", r"own\.yaml: a mapping of distributions"),
        ("a: [\n", r"own\.yaml, line 2: not valid YAML"),
        ("a:\n  toolsets: {web: 1}\na:\n  toolsets: {web: 1}\n", r"own\.yaml, line 3: the key 'a' comes twice"),
        ("a: 5\n", r"own\.yaml, line 1: a: a mapping is expected, not 5"),
        ("a:\n  toolset:\n    web: 5\n", r"own\.yaml, line 2: a\.toolset: unknown field; did you mean toolsets\?"),
        ("a:\n  description: x\n", r"own\.yaml, line 1: a\.toolsets: a mapping is expected, not nothing"),
        ("a:\n  toolsets: {}\n", r"own\.yaml, line 2: a\.toolsets: at least one"),
        (
            "a:\n  toolsets:\n    web: 5\n    wbe: 5\n",
            r"own\.yaml, line 4: a\.toolsets\.wbe: no toolset is called 'wbe'",
        ),
        (
            "a:\n  toolsets:\n    web: 101\n",
            r"own\.yaml, line 3: a\.toolsets\.web: a percentage above 0 and up to 100 .* 101",
        ),
        ("a:\n  toolsets:\n    web: yes please\n", r"own\.yaml, line 3: a\.toolsets\.web: .* not 'yes please'"),
        ("a:\n  toolsets:\n    web: true\n", r"own\.yaml, line 3: a\.toolsets\.web: .* not True"),
        ("a:b:\n  toolsets: {web: 1}\n", r"own\.yaml, line 1: a:b: .*without a colon"),
        (
            "toolsets:\n  x:\n    tools: terminal\n",
            r"own\.yaml, line 3: toolsets\.x\.tools: a list of names is expected",
        ),
        ("toolsets:\n  x: {}\n", r"own\.yaml, line 2: toolsets\.x: tools or includes"),
        ("toolsets:\n  x:\n    includes: [y]\n", r"own\.yaml, line 1: toolsets: toolset 'x' includes 'y'"),
        (
            "toolsets:\n  file:\n    tools: [a]\n",
            r"own\.yaml, line 1: toolsets: a toolset called 'file' exists already",
        ),
    ],
)
def test_a_wrong_file_gives_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        load_distributions_file(path, STANDARD)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.yaml: No such file"):
        load_distributions_file(tmp_path / "none.yaml", STANDARD)
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"a: \xe9\n")
    with pytest.raises(UserError, match="not UTF-8"):
        load_distributions_file(path, STANDARD)
