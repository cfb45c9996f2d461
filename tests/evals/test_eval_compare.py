"""Comparing two runs: what is paired with what, and what is said of the differences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.workloads.evals.results.compare import Scored, compare, load_side
from tests.support.batches import Ran, run_command


def scored(
    test_id: str, score: float | None, *, target: str = "t", dataset: str = "d", group: str | None = None
) -> Scored:
    return Scored(test_id, dataset, target, score, group)


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def side(*scores: float | None, **more: Any) -> list[Scored]:
    return [scored(f"t{place}", score, **more) for place, score in enumerate(scores)]


# --- Pairing


def test_pairs_wins_and_what_has_no_partner() -> None:
    found = compare([*side(0.5, 0.5, 0.5, 0.5), scored("old", 1)], [*side(0.6, 0.59, 0.2, None), scored("new", 1)])
    assert [(match.base.test_id, match.outcome) for match in found.matches] == [
        ("t0", "win"),
        ("t1", "tie"),
        ("t2", "loss"),
    ]
    assert (found.unscored, found.only_base, found.only_candidate) == (("t3",), ("old",), ("new",))
    assert found.mean_delta == pytest.approx((0.1 + 0.09 - 0.3) / 3)
    value = found.to_json()
    assert value["matched"][0] == {
        "test_id": "t0", "dataset": "d", "target": "t", "score1": 0.5, "score2": 0.6, "delta": 0.1, "outcome": "win",
    }  # fmt: skip
    assert value["unmatched"] == {"file1": ["old"], "file2": ["new"]}
    summary = value["summary"]
    assert {name: summary[name] for name in ("total", "matched", "wins", "losses", "ties")} == {
        "total": 10, "matched": 3, "wins": 1, "losses": 1, "ties": 1,
    }  # fmt: skip


def test_the_figures_of_the_summary() -> None:
    found = compare(side(0, 0, 0, 1, 1, 1), side(1, 1, 1, 1, 1, 0), threshold=0.0)
    summary = found.to_json()["summary"]
    assert summary["mean_delta"] == pytest.approx(1 / 3)
    assert summary["p_value"] == pytest.approx(0.625)  # of the 16 ways to flip 4 differences, 10 are as far from 0
    assert summary["sign_test_p_value"] == pytest.approx(0.625)
    assert summary["base_mean"] == 0.5
    assert summary["interval"]["low"] < 1 / 3 < summary["interval"]["high"]
    assert 0.3 < summary["smallest_detectable_effect"] < 2
    assert -1 <= summary["interval"]["low"] < summary["interval"]["high"] <= 1
    assert (summary["wins"], summary["losses"], summary["ties"]) == (3, 1, 2)


def test_datasets_tell_tests_apart_only_where_ids_do_not() -> None:
    renamed = compare(side(0.5, dataset="before"), side(0.7, dataset="after"))
    assert len(renamed.matches) == 1
    base = [*side(0.1, dataset="a"), *side(0.2, dataset="b")]
    candidate = [*side(0.9, dataset="b"), *side(0.8, dataset="a")]
    found = compare(base, candidate)
    assert sorted(round(match.delta, 3) for match in found.matches) == [0.7, 0.7]


def test_several_targets() -> None:
    base = [*side(0.1, 0.2, target="x"), *side(0.3, 0.4, target="y")]
    found = compare(base, base)
    assert len(found.matches) == 4
    assert found.statistics.difference.clusters == 2
    assert len(compare(side(0.1, target="x"), side(0.1, target="y")).matches) == 1
    with pytest.raises(UserError, match="choose with --base_target"):
        compare(base, side(0.1, target="x"))


def test_a_test_with_several_results_is_refused() -> None:
    with pytest.raises(UserError, match="t0 has several results"):
        compare([*side(0.1), *side(0.2)], side(0.1))


def test_groups_are_flipped_together() -> None:
    found = compare(side(*[0.0] * 6, group="g"), side(*[1.0] * 6, group="g"))
    assert found.statistics.p_value == 1.0
    assert compare(side(*[0.0] * 6), side(*[1.0] * 6)).statistics.p_value == pytest.approx(2 / 2**6)


# --- Files


def test_records_of_every_version(tmp_path: Path) -> None:
    path = write(
        tmp_path / "old.jsonl",
        {"eval_id": "a", "candidate_answer": "yes", "score": 1, "target": "t"},
        {"eval_id": "b", "score": 0, "error": "exit code 3"},
        {"test_id": "c", "score": None, "status": "error", "error": "x", "answer": "partly"},
        {"test_id": "d", "eval_id": "other", "score": 0.25, "conversation_id": "k", "suite": "s"},
        {"test_id": "e", "score": 0, "execution_status": "execution_error"},
    )
    found = load_side(path)
    assert [(each.test_id, each.score, each.dataset, each.group) for each in found] == [
        ("a", 1.0, "", None), ("b", None, "", None), ("c", None, "", None), ("d", 0.25, "s", "k"), ("e", None, "", None),
    ]  # fmt: skip


def test_tests_that_were_left_out_without_an_id_are_passed_over(tmp_path: Path) -> None:
    path = write(
        tmp_path / "r.jsonl",
        {"test_id": None, "score": None, "status": "invalid", "target": None, "error": "not JSON"},
        {"test_id": "a", "score": 1, "status": "passed", "target": "t"},
    )
    assert [each.test_id for each in load_side(path)] == ["a"]


def test_files_of_other_shapes(tmp_path: Path) -> None:
    records = [{"test_id": "a", "score": 1, "output_text": "yes"}, {"test_id": "b", "score": 0.5}]
    (tmp_path / "r.json").write_text(json.dumps({"stats": {"total": 2}, "results": records}, indent=2))
    assert [each.score for each in load_side(tmp_path / "r.json")] == [1.0, 0.5]
    (tmp_path / "run").mkdir()
    write(tmp_path / "run" / "index.jsonl", *records)
    assert load_side(tmp_path / "run") == load_side(tmp_path / "r.json")
    for text in ("[]", '{"results": 3}', '{"results": [3]}', "{"):
        (tmp_path / "r.json").write_text(text)
        with pytest.raises(UserError, match=r"r\.json: (must be an object with results|not JSON)"):
            load_side(tmp_path / "r.json")


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"score": 1}, "record 1: has no test_id"),
        ({"test_id": "a", "score": "1"}, "record 1: score must be a number, not '1'"),
        ({"test_id": "a", "score": True}, "score must be a number"),
        ({"test_id": "a", "score": 1.5}, "score must be between 0 and 1, not 1.5"),
    ],
)
def test_records_that_are_none(tmp_path: Path, record: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        load_side(write(tmp_path / "r.jsonl", record))


def test_places_without_results(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="can't be read"):
        load_side(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match=r"it has no results\.jsonl"):
        load_side(tmp_path)
    with pytest.raises(UserError, match="holds no results"):
        load_side(write(tmp_path / "empty.jsonl"))
    with pytest.raises(UserError, match="no results of target 'cluade'; did you mean claude"):
        load_side(write(tmp_path / "r.jsonl", {"test_id": "a", "score": 1, "target": "claude"}), "cluade")


# --- The command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, scores in (("base", (0.5, 0.5, 0.9)), ("better", (0.9, 0.7, 0.9)), ("worse", (0.1, 0.5, 0.8))):
        write(tmp_path / f"{name}.jsonl", *({"test_id": f"t{n}", "score": score} for n, score in enumerate(scores)))
    return tmp_path


def ran(folder: Path, *words: str) -> Ran:
    return run_command(folder, "eval", "compare", *words)


def test_the_exit_code_and_the_text(folder: Path) -> None:
    better = ran(folder, "base.jsonl", "better.jsonl")
    assert better.code == 0
    assert "mean score: 0.633 → 0.833" in better.out
    assert "mean difference: +0.200  [" in better.out
    assert "wins 2, losses 0, ties 1" in better.out
    assert "smallest difference that 3 such independent tests show with 80 % power: 0.619" in better.out
    assert "  win: t0 0.500 → 0.900 (+0.400)" in better.out
    assert ran(folder, "base.jsonl", "worse.jsonl").code == 1
    assert ran(folder, "base.jsonl", "worse.jsonl", "--fail_on=significant").code == 0
    assert ran(folder, "base.jsonl", "worse.jsonl", "--fail_on=never").code == 0
    assert ran(folder, "base.jsonl", "base.jsonl").code == 0


def test_few_tests_say_little_and_none_say_nothing(folder: Path) -> None:
    write(folder / "two.jsonl", {"test_id": "t0", "score": 1.0}, {"test_id": "t1", "score": 0.3})
    few = ran(folder, "base.jsonl", "two.jsonl")
    assert "mean difference: +0.150  (no interval: 2 independent tests can't say how sure that is)" in few.out
    assert "2 such independent tests show no difference with 80 % power, however large" in few.out
    write(folder / "broken.jsonl", *({"test_id": f"t{n}", "score": 0, "error": "exit code 3"} for n in range(3)))
    none = ran(folder, "base.jsonl", "broken.jsonl")
    assert none.code == 3
    assert "nothing to compare: no test has a score in both" in none.out
    assert "without a score in CANDIDATE only: t0, t1, t2" in none.out
    assert ran(folder, "base.jsonl", "broken.jsonl", "--fail_on=never").code == 0
    same = ran(folder, "base.jsonl", "base.jsonl")
    assert "mean difference: +0.000  [" in same.out
    assert "too few of them differ" in same.out


def test_the_json_says_why_there_is_no_interval(folder: Path) -> None:
    write(folder / "two.jsonl", {"test_id": "t0", "score": 1.0}, {"test_id": "t1", "score": 0.3})
    summary = json.loads(ran(folder, "base.jsonl", "two.jsonl", "--json").out)["summary"]
    assert (summary["interval"], summary["no_interval"]) == (None, "2 independent tests can't say how sure that is")
    assert (summary["p_value"], summary["least_p_value"]) == (1.0, 0.5)
    summary = json.loads(ran(folder, "base.jsonl", "worse.jsonl", "--json").out)["summary"]
    assert summary["no_interval"] is None
    assert summary["interval"]["low"] < summary["mean_delta"] < summary["interval"]["high"]
    said = ran(folder, "base.jsonl", "worse.jsonl").out
    assert "p = 0.5000 (sign flips, exact; with 3 independent tests it is never below 0.25)" in said


def test_json_and_the_threshold(folder: Path) -> None:
    value = json.loads(ran(folder, "base.jsonl", "better.jsonl", "--json", "--threshold=0.3").out)
    assert (value["summary"]["wins"], value["summary"]["ties"], value["summary"]["threshold"]) == (1, 2, 0.3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("base.jsonl",), "required: CANDIDATE"),
        (("base.jsonl", "none.jsonl"), "none.jsonl: can't be read"),
        (("base.jsonl", "better.jsonl", "--threshold=2"), "must be between 0 and 1"),
        (("base.jsonl", "better.jsonl", "--confidence=x"), "must be a number"),
    ],
)
def test_wrong_usage(folder: Path, words: tuple[str, ...], said: str) -> None:
    found = ran(folder, *words)
    assert found.code == 2
    assert said in found.err
