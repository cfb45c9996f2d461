"""Comparisons on pages: the figures are those of ``manyhands eval compare``, and every test leads to its answers."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.shown.blocks import Link, Note, Section, Table
from tests.support.batches import run_command
from tests.support.eval_runs import EvalRun, perform_eval
from tests.support.shown_blocks import facts, named, parts, rows, text_in, viewed

TARGETS = ("x", "y", "z")
OWN = """\
import random

def said(target, asked):
    number = random.Random(f"{{SEED}} {{target}} {{asked['id']}} {{asked['trial']}}").random()
    if number < 0.08:
        raise ValueError("no luck")
    return {{"text": f"{{round(number, 2)}}"}}

def x(asked): return said("x", asked)
def y(asked): return said("y", asked)
def z(asked): return said("z", asked)

def value(test):
    return {{"score": float(test["answer"])}}

SEED = {seed}
"""
FACTS = {
    "with a score in both": "matched",
    "in both, without a score in one of them": "unscored",
    "mean score of base": "base_mean",
    "mean score of candidate": "candidate_mean",
    "mean difference": "mean_delta",
    "p": "p_value",
    "p by signs": "sign_test_p_value",
    "smallest difference that could be seen": "smallest_detectable_effect",
    "wins": "wins",
    "losses": "losses",
    "ties": "ties",
    "independent tests": "clusters",
    "standard error": "standard_error",
    "confidence": "confidence",
    "power": "power",
}
"""Facts of the page, and what their values are called in the command's JSON."""


async def performed(folder: Path, seed: int) -> EvalRun:
    """A run of some of the tests with some of the targets: seeded scores, errors, groups and trials."""
    chance = random.Random(seed)
    targets = sorted(chance.sample(TARGETS, chance.choice((1, 2, 3))))
    tests = [
        {
            "id": f"t{number:02}",
            "input": "hi",
            "criteria": "another" if chance.random() < 0.1 else "a number",
            "metadata": {"group": f"g{number % 5}"} if seed % 2 else {},
        }
        for number in range(18)
        if chance.random() < 0.85
    ]
    folder.mkdir()
    (folder / "own.py").write_text(OWN.format(seed=seed))
    known = [{"name": name, "provider": "python", "function": f"own.py:{name}"} for name in targets]
    execution: dict[str, Any] = {"targets": targets}
    if seed % 3 == 0:
        execution["trials"] = {"count": 2, "strategy": "mean"}
    graders = [{"type": "python", "name": "value", "function": "own.py:value"}]
    suite = {"targets": known, "execution": execution, "assert": graders, "tests": tests}
    (folder / "suite.yaml").write_text(json.dumps(suite))
    return await perform_eval(folder, max_attempts=1)


@pytest.fixture(scope="module")
def some_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    return [asyncio.run(performed(folder / str(seed), seed)).folder for seed in range(8)]


def targets_in(folder: Path) -> list[str]:
    return sorted({json.loads(line)["target"] for line in (folder / "results.jsonl").read_text().splitlines()})


def on_page(base: Path, candidate: Path, query: dict[str, str]) -> list[Section]:
    with viewed(base) as view, closing(JournalReader(candidate)) as other:
        return list(view.compared([other], query))


def by_command(base: Path, candidate: Path, query: dict[str, str]) -> tuple[dict[str, Any] | None, str]:
    names = {"baseline": "--base_target", "target": "--candidate_target"}
    options = [f"{names[which]}={target}" for which, target in query.items()]
    ran = run_command(base.parent, "eval", "compare", str(base), str(candidate), "--json", "--fail_on=never", *options)
    return (json.loads(ran.out), "") if ran.out else (None, ran.err)


def test_the_figures_of_random_pairs_are_those_of_the_command(some_runs: list[Path]) -> None:
    chance, compared, refused = random.Random(7), 0, 0
    for _ in range(50):
        base, candidate = chance.choice(some_runs), chance.choice(some_runs)
        query = {}
        if chance.random() < 0.8:
            query["baseline"] = chance.choice(targets_in(base))
        if chance.random() < 0.8:
            query["target"] = chance.choice(targets_in(candidate))
        sections = on_page(base, candidate, query)
        expected, error = by_command(base, candidate, query)
        if expected is None:
            refused += 1
            assert any(note.text in " ".join(error.split()) for note in parts(sections, Note)), error
        else:
            compared += 1
            check(sections, expected)
    assert compared > 30
    assert refused > 0


def check(sections: list[Section], expected: dict[str, Any]) -> None:
    """That a page says what the command says."""
    summary, found = expected["summary"], facts(sections)
    for label, name in FACTS.items():
        shown = found[label].value if label in found else None
        assert shown == summary[name], (label, name)
    ends = summary["interval"] or {"low": None, "high": None}
    assert [found[f"{end} end"].value if f"{end} end" in found else None for end in ("low", "high")] == [
        ends["low"],
        ends["high"],
    ]
    if summary["no_interval"]:
        assert summary["no_interval"] in found["interval"].text
    for outcome in ("loss", "win"):
        matched = [each for each in expected["matched"] if each["outcome"] == outcome]
        listed = rows(table_of(sections, outcome)) if matched else []
        assert sorted((row["base"].value, row["candidate"].value) for row in listed) == sorted(
            (each["score1"], each["score2"]) for each in matched
        )
        sizes = [-abs(float(row["difference"].value or 0)) for row in listed]
        assert sizes == sorted(sizes), "the largest difference comes first"
    assert names_in(sections, "only-base") == expected["unmatched"]["file1"]
    assert names_in(sections, "only-candidate") == expected["unmatched"]["file2"]
    unscored = [*names_in(sections, "unscored-candidate"), *names_in(sections, "unscored-base")]
    assert sorted(unscored) == sorted(expected["unscored"])
    assert len(names_in(sections, "unscored-candidate")) == summary["unscored_in_candidate_only"]


def table_of(sections: Iterable[Section], name: str) -> Table:
    (table,) = parts(named(list(sections), name).blocks, Table)
    return table


def names_in(sections: list[Section], name: str) -> list[str]:
    if name not in [each.name for each in sections]:
        return []
    return [row["test"].text for row in rows(table_of(sections, name))]


def test_each_test_leads_to_both_answers(some_runs: list[Path]) -> None:
    base, candidate = some_runs[1], some_runs[2]
    target = targets_in(base)[0], targets_in(candidate)[0]
    sections = on_page(base, candidate, {"baseline": target[0], "target": target[1]})
    with closing(JournalReader(base)) as one, closing(JournalReader(candidate)) as other:
        for name in ("loss", "win"):
            for row in rows(table_of(sections, name)):
                link = row["test"].link
                assert link is not None
                assert (link.run, link.versus_run) == (None, other.meta("run_id"))
                items = one.item(str(link.item)), other.item(str(link.versus))
                assert [item and item.payload["test"]["id"] for item in items] == [row["test"].text] * 2
                assert [item and item.payload["target"] for item in items] == [*target]
                assert [item and item.record["score"] for item in items] == [row["base"].value, row["candidate"].value]
        alone = rows(table_of(sections, "only-candidate"))[0]["test"]
        assert alone.link is not None
        assert alone.link.run == other.meta("run_id")
        item = other.item(str(alone.link.item))
        assert item is not None
        assert item.payload["test"]["id"] == alone.text


def test_tests_that_are_defined_otherwise_stand_apart(some_runs: list[Path]) -> None:
    base, candidate = some_runs[1], some_runs[4]
    query = {"baseline": targets_in(base)[0], "target": targets_in(candidate)[0]}
    sections = on_page(base, candidate, query)
    found = {row["test"].text: row["what"].text for row in rows(table_of(sections, "redefined"))}
    with closing(JournalReader(base)) as one, closing(JournalReader(candidate)) as other:
        criteria = [
            {row.payload["test"]["id"]: row.payload["test"]["criteria"] for row in reader.items()}
            for reader in (one, other)
        ]
    both = criteria[0].keys() & criteria[1].keys()
    assert {name for name, what in found.items() if "criteria" in what} == {
        name for name in both if criteria[0][name] != criteria[1][name]
    }
    same = on_page(base, base, {"baseline": query["baseline"], "target": query["baseline"]})
    assert "redefined" not in [each.name for each in same]


def test_two_targets_of_a_run(some_runs: list[Path]) -> None:
    folder = next(each for each in some_runs if len(targets_in(each)) > 1)
    one, other, *_ = targets_in(folder)
    with viewed(folder) as view:
        assert "targets" in [page.name for page in view.pages()]
        sections = list(view.page("targets", {"baseline": other, "target": one}))
        assert [section.title for section in view.compared([], {"baseline": other, "target": one})] == [
            section.title for section in sections
        ]
        ignoring = list(view.page("targets", {"baseline": "nobody", "target": "\0"}))
    expected, _ = by_command(folder, folder, {"baseline": other, "target": one})
    assert expected is not None
    check(sections, expected)
    assert all(row["test"].link and row["test"].link.versus_run is None for row in rows(table_of(sections, "win")))
    check(ignoring, by_command(folder, folder, {"baseline": one, "target": other})[0] or {})
    (choice,) = parts(named(sections, "choice"), Table)
    for row in rows(choice):
        for cell in (row["baseline"], row["target"]):
            if cell.link is not None:  # nobody is compared with itself
                assert cell.link.query["baseline"] != cell.link.query["target"]


def test_a_run_with_one_target_is_compared_with_nothing_of_its_own(some_runs: list[Path]) -> None:
    folder = next(each for each in some_runs if len(targets_in(each)) == 1)
    with viewed(folder) as view:
        assert "targets" not in [page.name for page in view.pages()]
        with pytest.raises(KeyError):
            view.page("targets", {})
        with pytest.raises(KeyError):
            view.compared([], {})


def test_runs_that_can_not_be_compared_say_why(some_runs: list[Path]) -> None:
    several = next(each for each in some_runs if len(targets_in(each)) == 3)
    single = next(each for each in some_runs if len(targets_in(each)) == 1)
    sections = on_page(several, single, {})
    assert "the two have different targets" in text_in(sections)
    assert "--" not in text_in(sections)
    assert [each.name for each in sections] == ["", "comparison"]


def test_targets_of_runs_are_chosen_on_the_page(some_runs: list[Path]) -> None:
    several = next(each for each in some_runs if len(targets_in(each)) == 3)
    single = next(each for each in some_runs if len(targets_in(each)) == 1)
    first, *_ = targets_in(several)
    with viewed(several) as view, closing(JournalReader(single)) as other:
        (table,) = parts(next(iter(view.compared([other], {"runs": "a,b.1"}))), Table)
        found = {row["name"].text: row for row in rows(table)}
        assert list(found) == ["all", *dict.fromkeys((*targets_in(several), *targets_in(single)))]
        assert (found["all"]["baseline"].text, found["all"]["baseline"].link) == ("● chosen", None)
        link = found[first]["baseline"].link
        assert link == Link(page="compare", query={"runs": "a,b.1", "baseline": first})
        choice, comparison, *_ = view.compared([other], link.query)
    found = {row["name"].text: row for row in rows(*parts(choice, Table))}
    assert found[first]["baseline"].text == "● chosen"
    assert found["all"]["baseline"].link == Link(page="compare", query={"runs": "a,b.1"})
    assert "mean difference" in facts(comparison)
    assert next(each.title for each in on_page(single, single, {})) == "Comparison"


def test_links_have_the_names_that_runs_have_in_addresses(some_runs: list[Path]) -> None:
    base, candidate = some_runs[1], some_runs[2]
    query = {"baseline": targets_in(base)[0], "target": targets_in(candidate)[0]}
    sections = on_page(base, candidate, {**query, "runs": "x.1,x.2"})
    links = [row["test"].link for name in ("loss", "win") for row in rows(table_of(sections, name))]
    assert links
    assert {link and (link.run, link.versus_run) for link in links} == {(None, "x.2")}
    assert facts(sections)["candidate"].link == Link(run="x.2")
