"""Intervals of scores: no wider than what is known, and named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import unescape
from pathlib import Path

import pytest

from manyhands.core.errors import UserError
from manyhands.core.statistics import wilson
from manyhands.workloads.memory.report.formatting import METHODS, method, methods
from manyhands.workloads.memory.results.figures import figures_of, pooled
from tests.support.commands import run
from tests.support.memory_benchmarks import opened, write_configuration


@pytest.mark.parametrize("count", range(1, 60))
@pytest.mark.parametrize("level", [0.8, 0.95, 0.999])
def test_all_zeros_begin_at_0_and_all_ones_end_at_1(count: int, level: float) -> None:
    none, all_of_them = wilson(0.0, count, level), wilson(1.0, count, level)
    assert none is not None
    assert all_of_them is not None
    assert none.low == 0.0 < none.high < 1.0 == all_of_them.high
    assert none.high == pytest.approx(1 - all_of_them.low)


def width(scores: Sequence[float], datasets: Sequence[str]) -> float:
    found = pooled(scores, datasets).interval
    assert found is not None
    assert 0 <= found.low <= found.high <= 1
    return found.high - found.low


@pytest.mark.parametrize(("datasets", "examples"), [(1, 2), (1, 6), (3, 2), (7, 2), (9, 3)])
def test_no_point_at_all_says_about_as_much_as_one(datasets: int, examples: int) -> None:
    names = [str(number) for number in range(datasets) for _ in range(examples)]
    zeros = [0.0] * len(names)
    one = [1.0, *zeros[1:]]
    assert width(zeros, names) <= 1.05 * width(one, names)
    assert width([1.0] * len(names), names) == pytest.approx(width(zeros, names))
    interval = pooled(zeros, names).interval
    assert interval is not None
    assert (interval.low, interval.method) == (0.0, "wilson")
    assert interval.high == pytest.approx(3.8415 / (3.8415 + len(names)), abs=1e-4)


def test_two_that_differ_say_more_than_nothing() -> None:
    found = pooled([0.0, 1.0], ["a", "a"]).interval
    assert found is not None
    assert (found.method, round(found.low, 3), round(found.high, 3)) == ("wilson", 0.095, 0.905)


def test_the_formulas_are_named_where_they_are_shown(tmp_path: Path) -> None:
    write_configuration(tmp_path, ("colours", "name_list"), examples=2)
    words = ["-c", str(tmp_path / "small.yml"), "-a=forgetful", "-a=perfect", f"--data_dir={tmp_path}", "-y", "--quiet"]
    assert run("memory", "run", *words).code == 0
    reported = run("memory", "report", "small", f"--data_dir={tmp_path}", "--no_plots")
    assert "0.0 % [0.0 … 49.0]" in reported.out
    assert "100.0 % [51.0 … 100.0]" in reported.out
    assert "Intervals of 95 %: Wilson's score interval." in reported.out
    page = unescape(next((tmp_path / "reports").glob("*.html")).read_text(encoding="utf-8"))
    assert "Intervals of 95 %: Wilson's score interval." in page
    found = json.loads(run("memory", "report", "small", f"--data_dir={tmp_path}", "--json").out)["agents"]
    for agent in found:
        for each in (agent["mean_score"], *agent["datasets"].values()):
            assert each["interval"]["method"] in METHODS
    place = tmp_path / "tests/small/results/ForgetfulAgent"
    assert method(figures_of(place).accuracy.interval) == "Wilson's score interval"
    assert methods([]) == ""


def test_a_missing_file_of_chapterbreak_names_what_works(tmp_path: Path) -> None:
    write_configuration(tmp_path, ("chapterbreak",))
    place = tmp_path / "data/tests/small/definitions"
    with pytest.raises(UserError) as error:
        opened(tmp_path, "forgetful")
    line = str(error.value)
    assert "\n" not in line
    assert "args: {data_location: FILE}" in line
    assert f"copy the folder data/tests/RUN/definitions of that repository, with its config.yml, to {place}," in line
    # And so it does.
    test = place / "ChapterBreak/1_0.def.json"
    test.parent.mkdir(parents=True)
    told = ["Beginning 1: It rained.", "Beginning 2: It snowed.", "Which?"]
    test.write_text(
        json.dumps(
            {
                "script": told,
                "is_question": [False, False, True],
                "waits": [{}, {}, {}],
                "expected_responses": ["2"],
                "can_be_interleaved": True,
                "is_temporal": False,
                "uses_callback": False,
            }
        )
    )
    (place / "config.yml").write_text((tmp_path / "small.yml").read_text())
    assert [each.example_id for each in opened(tmp_path, "perfect").workload.benchmark.definitions] == ["1_0"]
