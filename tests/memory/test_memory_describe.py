"""What a configuration is said to come to is what a session with such an agent does come to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from manyhands.cli.memory.configuration import describe as describe_command
from manyhands.cli.memory.running import run as run_command
from manyhands.core.errors import UserError
from manyhands.models.pricing import Price
from manyhands.workloads.memory.agents.choice import choose_agent
from manyhands.workloads.memory.description import ScheduleSettings, describe_configuration, price_of, simulate
from manyhands.workloads.memory.results.figures import figures_of
from manyhands.workloads.memory.results.timeline import MAX_ROWS, Course, Timeline, schedule_text
from tests.support.memory_schedules import ToldDataset, scheduler_of

CONFIGURATION = """
config: {run_name: Described}
datasets:
  args: {memory_span: 1500, dataset_examples: 2}
  datasets: [{name: colours}, {name: jokes}, {name: prospective_memory}, {name: restaurant}, {name: locations_directions}]
"""
WRITTEN = """
config: {run_name: Written}
datasets:
  args: {memory_span: 3000, dataset_examples: 2}
  datasets:
    - {name: colours}
    - {name: delayed_recall, args: {generation_model: some-model}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Configurations, and in ``data`` what two agents made of the first."""
    found = tmp_path_factory.mktemp("describe")
    (found / "described.yml").write_text(CONFIGURATION, encoding="utf-8")
    (found / "written.yml").write_text(WRITTEN, encoding="utf-8")
    words = ["-c", str(found / "described.yml"), "-a", "forgetful", "-a", "cost(0.01,0.03)", "--judge_model=simulated"]
    assert run_command([*words, "--data_dir", str(found / "data"), "-y", "--quiet"]) == 0
    return found


def described(capsys: pytest.CaptureFixture[str], words: Sequence[str]) -> dict[str, Any]:
    assert describe_command([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_schedule_is_that_of_a_session(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = described(capsys, ["-c", str(folder / "described.yml")])
    figures = figures_of(folder / "data" / "tests" / "Described" / "results" / "ForgetfulAgent")
    assert figures.stats is not None
    assert found["schedule"]["tokens"] == figures.stats.total_tokens
    assert found["tests"] == len(figures.tests) == 10
    assert len(found["schedule"]["courses"]) == 10
    assert found["schedule"]["virtual_seconds"] > 3600  # jokes are told over some time


def test_the_cost_is_that_of_an_estimate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = described(capsys, ["-c", str(folder / "described.yml"), "-a", "cost(0.01,0.03)"])
    (results,) = (folder / "data" / "tests" / "Described" / "results").glob("Cost*")
    figures = figures_of(results)
    assert figures.stats is not None
    assert found["expected_cost"]["cost"] == pytest.approx(figures.stats.agent_costs_usd)


def test_a_run_is_described_as_its_configuration(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of_run = described(capsys, ["Described", "--data_dir", str(folder / "data")])
    assert of_run == described(capsys, ["-c", str(folder / "described.yml")])


def test_what_the_tests_are(folder: Path) -> None:
    outlook = describe_configuration(folder / "described.yml", ScheduleSettings(tokenizer="estimate"))
    by_id = {each.id: each for each in outlook.datasets}
    colours, jokes, restaurant = by_id["colours"], by_id["jokes"], by_id["restaurant"]
    assert (colours.tests, colours.messages, colours.questions, colours.needles, colours.judged) == (2, 8, 2, 6, 0)
    assert jokes.is_temporal
    assert jokes.seconds > 3600
    assert (restaurant.messages, restaurant.judged) == (None, 2)
    assert by_id["prospective_memory"].uses_callback
    assert by_id["locations_directions"].judged == 2
    assert outlook.benchmark.tokens.name == "estimate"


def test_it_is_said_in_words(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert describe_command(["-c", str(folder / "described.yml"), "-a", "no-such-model"]) == 0
    out = capsys.readouterr().out
    assert "Described: 10 tests of 5 datasets, memory span 1,500 tokens" in out
    assert "script, question about time" in out
    assert "Expected cost of no-such-model: not known" in out
    rows = [line for line in out.splitlines() if line.startswith("Colours - ")]
    assert len(rows) == 2
    assert all(row.count("•") == 3 and row.rstrip().endswith("?") for row in rows)


def test_isolated_tests_come_one_after_the_other(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = described(capsys, ["-c", str(folder / "described.yml"), "--isolated"])
    courses = found["schedule"]["courses"]
    assert all(one["end"] <= other["begin"] for one, other in pairwise(courses))
    assert found["isolated"]


def test_what_a_model_has_to_write_is_left_out_and_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert describe_command(["-c", str(folder / "written.yml")]) == 0
    out = capsys.readouterr().out
    assert "Written: 4 tests of 2 datasets" in out
    assert "A model has to write 2 tests (delayed_recall)" in out
    assert "Delayed Recall - 0" not in out
    assert "a model writes them" in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "give a run or --configuration"),
        (["Describe"], "no run 'Describe' with tests; did you mean Described"),
        (["-c", "missing.yml"], "missing.yml"),
        (["-c", "{folder}/described.yml", "--tokenizer", "no-such"], "no-such"),
    ],
)
def test_what_is_wrong_is_said_first(folder: Path, words: list[str], expected: str) -> None:
    words = [word.format(folder=folder) for word in words]
    with pytest.raises(UserError, match=expected):
        describe_command([*words, "--data_dir", str(folder / "data")])


def test_prices_of_agents(tmp_path: Path) -> None:
    own = tmp_path / "prices.yml"
    own.write_text("mine: {input: 1, output: 2}", encoding="utf-8")
    assert price_of(choose_agent("mine"), own) == Price(1, 2)
    assert price_of(choose_agent("mine"), None) is None
    assert price_of(choose_agent("cost(0.5,1)"), None) == Price(500, 1000)
    assert price_of(choose_agent("forgetful"), None) is None


def test_a_session_without_an_end_is_found_out() -> None:
    endless = ToldDataset("endless", called_for=10**9)
    scheduler = scheduler_of([endless.test(0, ["Told.", "Asked?"], calls_back=True)])
    with pytest.raises(UserError, match="has no end"):
        simulate(scheduler, max_actions=2000)


def test_a_long_schedule_is_cut_and_says_so() -> None:
    courses = tuple(
        Course(f"A very long name of a test, in fact - {number}", number, number + 1) for number in range(120)
    )
    lines = schedule_text(Timeline(courses, ((0, 50),), (), 121, 0.0, 0, 1), 40)
    assert len(lines) == MAX_ROWS + 3
    assert lines[-2] == "… and 20 more tests"
    assert all(len(line) <= 34 + 40 for line in lines)
