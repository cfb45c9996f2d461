"""Results scored again: published ones against what they must get, and a small run of our own."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.workloads.memory.conversation.definitions import Definition
from manyhands.workloads.memory.datasets.benchmark import format_definition
from manyhands.workloads.memory.datasets.registry import create, rule_judge
from manyhands.workloads.memory.published.rescoring import (
    DIFFERS,
    EDITED,
    EQUAL,
    NEEDS_MODEL,
    NEW,
    UNSCORED,
    Rescored,
    compared,
    rescore,
)
from tests.support.goodai import expected, needs_all_sessions, published


def key(found: Rescored) -> tuple[str, ...]:
    return found.run, found.agent, found.dataset, found.example


def check(results: dict[tuple[str, ...], Rescored]) -> None:
    wanted = {(row["run"], row["agent"], row["dataset"], row["example"]): row for row in expected("rescore")}
    assert set(wanted) <= set(results)
    for name, row in wanted.items():
        found = results[name]
        if row["class"] == "differs":
            assert found.score is not None
        else:
            assert found.verdict == row["class"], (name, found)
            assert row["offline_score"] == "" or found.score == pytest.approx(float(row["offline_score"]), abs=1e-5)


def test_published_scores_come_out_again() -> None:
    runs = [folder for folder in sorted((published() / "tests").iterdir()) if (folder / "results").is_dir()]
    check({key(found): found for run in runs for found in rescore(run)})


def test_without_the_master_log(tmp_path: Path) -> None:
    results: dict[tuple[str, ...], Rescored] = {}
    for run in sorted((published() / "tests").iterdir()):
        if (run / "results").is_dir():
            shutil.copytree(run, tmp_path / run.name, ignore=shutil.ignore_patterns("*.jsonl"))
            results.update({key(found): found for found in rescore(tmp_path / run.name)})
    check(results)


@needs_all_sessions
def test_the_second_version_of_the_format() -> None:
    found = rescore(published() / "tests" / "Benchmark 2 - 1k Filler")
    verdicts = Counter((each.dataset, each.verdict) for each in found)
    for dataset in ("ChapterBreak", "Colours", "SallyAnne", "Shopping"):
        assert verdicts[dataset, EQUAL] == 3
    assert all(0 <= each.published <= 1 for each in found if each.published is not None)


# --- A small run of our own


def definition(dataset: str, *script: str, expected: Any, **more: Any) -> Definition:
    asked = tuple(number == len(script) - 1 for number in range(len(script)))
    return Definition(dataset, "0", script, asked, expected_responses=expected, **more)


COLOURS = definition("Colours", "Red it is.", "Which?", expected=["Red"])
RECALL = definition("Delayed Recall", "The capital is Holm.", "Which is the capital?", expected=["Holm"])
LATER = definition("Prospective Memory", "'A b' - C", "add it to 2", expected=[["A b", "C", 2]], uses_callback=True)
EVENING = Definition("Restaurant", "0")
OTHER = definition("Somebody's Own", "?", expected=[])


def result(answers: list[str], score: float, **more: Any) -> dict[str, Any]:
    return {"actual_responses": answers, "score": score, "max_score": 1, "full_log": [], **more}


def wrote(folder: Path, one: Definition, found: dict[str, Any]) -> Path:
    target = folder / "definitions" / one.dataset / f"{one.example_id}.def.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(format_definition(one))
    target = folder / "results" / "some agent" / one.dataset / f"{one.example_id}_0.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(found))
    return folder


def only(folder: Path, **more: Any) -> Rescored:
    (found,) = rescore(folder, **more)
    return found


def test_verdicts(tmp_path: Path) -> None:
    folder = wrote(tmp_path, COLOURS, result(["It is red."], 1.0))
    assert only(folder) == Rescored(
        tmp_path.name, "some agent", "Colours", "0", 1.0, None, 1.0, EQUAL, ("the answer names Red",)
    )
    assert only(folder / "results" / "some agent") == only(folder)
    assert only(wrote(tmp_path, COLOURS, result(["Blue."], 1.0))).verdict == DIFFERS
    assert only(wrote(tmp_path, COLOURS, result(["Blue."], 1.0, auto_score=0.0))).verdict == EDITED
    assert only(wrote(tmp_path, COLOURS, result(["Blue."], 0.5, max_score=2))).published == 0.25
    assert only(wrote(tmp_path, COLOURS, result([], 0.0))).verdict == EQUAL
    assert compared(0.5, 0.6, None) == DIFFERS
    assert compared(0.5, None, None) == NEW


def test_datasets_with_arguments_of_their_own(tmp_path: Path) -> None:
    rule = definition("Trigger Response", "…", "it rains", expected=["take the green umbrella"])
    folder = wrote(tmp_path, rule, result(["Take the umbrella!"], 1.0))
    assert only(folder).verdict == EQUAL
    strict = create("trigger_response", {"rouge_score_threshold": 1.0}, "published")
    assert only(folder, datasets={"Trigger Response": strict}).verdict == NEEDS_MODEL


def test_the_configurations_names_and_arguments_are_used(tmp_path: Path) -> None:
    told = definition("Hues", "Blue it is.", "Which?", expected=["Blue"])
    folder = wrote(tmp_path / "run", told, result(["blue"], 1.0))
    assert only(folder).verdict == UNSCORED
    entries = [
        "nothing",
        {"name": "nobody knows it"},
        {"name": "names", "args": {"filler_tokens": 3}},
        {"name": "colours", "args": {"name": "Hues"}},
    ]
    content = {"datasets": {"datasets": entries}}
    (tmp_path / "run" / "definitions" / "config.yml").write_text(json.dumps(content), encoding="utf-8")
    assert (only(folder).verdict, only(folder).score) == (EQUAL, 1.0)


def test_rules_of_either_kind(tmp_path: Path) -> None:
    folder = wrote(tmp_path, COLOURS, result(["You shared it."], 1.0))
    assert only(folder).verdict == EQUAL
    assert only(folder, scoring="mended").score == 0


def test_what_needs_a_model_says_so_or_gets_one(tmp_path: Path) -> None:
    folder = wrote(tmp_path, RECALL, result(["It is Holm, I think."], 1.0))
    without = only(folder)
    assert (without.score, without.verdict) == (None, NEEDS_MODEL)
    given = only(folder, answer=rule_judge)
    assert (given.score, given.verdict) == (1.0, EQUAL)
    assert "(judged by a model)" in given.reasons[0]


def test_a_dataset_that_is_not_known(tmp_path: Path) -> None:
    found = only(wrote(tmp_path, OTHER, result(["x"], 1.0)))
    assert (found.score, found.verdict) == (None, UNSCORED)


def line(who: str, text: str) -> str:
    return f"{who} (2024-05-22 11:52:54.115309): {text}"


@pytest.mark.parametrize(
    ("replies", "score"), [(["ok", "x, a B!"], 1.0), (["ok", "x"], 0.0), (["ok: a b", "x a b"], 0.0)]
)
def test_a_later_quotation_is_looked_for_up_to_the_end_of_the_callback(
    tmp_path: Path, replies: list[str], score: float
) -> None:
    log = [line("Test", "'A b' - C"), line("Agent", "yes"), line("Test", "add it to 2"), line("Agent", replies[0])]
    log += [line("System", "filler\nof two lines"), line("Agent", replies[1])]
    log += [line("SYSTEM", "Test 'Prospective Memory - 0' DEREGISTERS a callback.")]
    log += [
        line("System", "more filler"),
        line("Agent", "a b again"),
        line("SYSTEM", "Test 'Prospective Memory - 0' ENDS"),
    ]
    found = only(wrote(tmp_path, LATER, result(["ok"], score, full_log=log)))
    assert (found.score, found.verdict) == (score, EQUAL)


MENU = "Waiter: The menu:\n\nSoups:\n1. Pea soup\n2. Leek soup\n\nFish:\n3. Trout\n\nDrinks:\n4. Tea\n\nYour drink?"


def ordered(item: str, number: int | None, drink: bool = False, off_menu: bool = False) -> str:
    order = [{"is_drink": drink, "item": item, "menu_nr": number, "menu_ref": item, "off_menu": off_menu}]
    return f"```json\n{json.dumps({'has_ordered_something': True, 'order': order})}\n```"


ROLE, TEA, TROUT, SOUP = '{"follows_role": true}', ordered("tea", 4, True), ordered("trout", 3), ordered("Pea soup", 1)


@pytest.mark.parametrize(
    ("calls", "score"),
    [
        ([ROLE, TEA, TROUT, SOUP, '{"noticed": true}', '{"recalls": true}'], 1.0),
        ([ROLE, TEA, TROUT, SOUP, '{"noticed": true}', '{"recalls": false}'], 0.8),
        ([ROLE, TEA, TROUT, SOUP, "I can't say"], 0.6),
        ([ROLE, TEA, TROUT, TROUT], 0.4),
        ([ROLE, TEA, TEA], 0.2),
        ([ROLE, TEA, ordered("water", 4)], 0.2),
        ([ROLE, TEA, ordered("trout", None)], 0.2),
        ([ROLE, TEA, ordered("shark", 3, off_menu=True)], 0.2),
        ([ROLE, TEA, ordered("Trout", 3, off_menu=True), SOUP], 0.6),
        ([ROLE, ordered("water", None, True, True), TROUT], 0.4),
        ([ROLE, TROUT], 0.0),
        ([ROLE, '{"has_ordered_something": false, "order": []}'], 0.0),
        ([ROLE, "nonsense"], 0.0),
        (['{"follows_role": false}'], 0.0),
    ],
)
def test_an_evening_in_a_restaurant_from_its_log(tmp_path: Path, calls: list[str], score: float) -> None:
    said = [line("SYSTEM", f"Test 'Restaurant - 0' CALLS an LLM. Response:\n{call}") for call in calls]
    own = [text for message in ("Play.", MENU, "Food?") for text in (line("Test", message), line("Agent", "…"))]
    found = only(wrote(tmp_path, EVENING, result(["…"], score, full_log=said, task_log=own)))
    assert found.score == pytest.approx(score)
    assert found.verdict == EQUAL


def test_an_evening_without_a_log_needs_a_model(tmp_path: Path) -> None:
    assert only(wrote(tmp_path, EVENING, result(["…"], 0.0))).verdict == NEEDS_MODEL


def test_what_is_no_run_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"neither a run with definitions and results nor an agent's folder below results$"
    ):
        rescore(tmp_path)
    folder = wrote(tmp_path, COLOURS, {})
    path = folder / "results" / "some agent" / "Colours" / "0_0.json"
    path.write_text("[1]")
    with pytest.raises(UserError, match=r"0_0.json: not a JSON object$"):
        rescore(folder)
    path.write_text("{")
    with pytest.raises(UserError, match=r"0_0.json: not JSON: "):
        rescore(folder)
