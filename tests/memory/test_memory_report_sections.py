"""Reports as sections: they have all that the results hold, as text and figures, and they have bounds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.statistics import mean
from manyhands.runs.shown.blocks import Chart, Columns, Fold, Lanes, Messages, Section, Table, block_json
from manyhands.workloads.memory.report.reported_agents import Reported, gather
from manyhands.workloads.memory.report.schedule import MAX_SPANS, joined, schedule_lanes
from manyhands.workloads.memory.report.sections import report_file_name, report_sections, report_title
from manyhands.workloads.memory.report.views import MAX_BYTES, agent_views
from manyhands.workloads.memory.results.timeline import Course, Timeline
from tests.support.goodai import expected, needs_all_sessions, published
from tests.support.memory_benchmarks import opened, performed, write_configuration
from tests.support.shown_blocks import links_of, parts, strings, text_of_blocks

DATASETS = ("colours", "shopping", "trigger_response", "restaurant")
AGENTS = ("perfect", "forgetful", "simulated")


@pytest.fixture
async def small(tmp_path: Path) -> list[Reported]:
    """The agents of a run of this program's own; no judge scores half of its tests."""
    write_configuration(tmp_path, DATASETS, examples=2)
    await performed(opened(tmp_path, AGENTS, max_prompt_size=600))
    return gather(["small"], tmp_path / "data")


def published_agents() -> Iterator[list[Reported]]:
    """The agents of each published run, and all together."""
    runs = sorted({row["run"] for row in expected("published_scores") if (published() / "tests" / row["run"]).is_dir()})
    for run in runs:
        yield gather([run], published())
    yield gather(runs, published())


# --- All is there


_UNSEEN = ("reported", "key", "state", "sender")


def texts_in(value: Any) -> Iterator[str]:
    """The texts of a view of an agent."""
    if is_dataclass(value) and not isinstance(value, type):
        shown = [getattr(value, each.name) for each in fields(value) if each.name not in _UNSEEN]
        yield from (text for each in shown for text in texts_in(each))
    elif isinstance(value, (list, tuple)):
        yield from (text for each in value for text in texts_in(each))
    elif isinstance(value, str):
        yield " ".join(value.split())


def all_is_in_sections(agents: list[Reported]) -> None:
    said = text_of_blocks(list(report_sections(agents)))
    for view in agent_views(agents):
        texts = list(texts_in(replace(view, groups=(), datasets=())))
        assert len(texts) > 100
        # Intervals say by which method they were found where all of a kind are listed.
        assert [text for text in texts if text not in said] == []
        for dataset in view.datasets:
            assert dataset.name in said
            assert dataset.description in said


async def test_all_that_is_known_of_agents_is_in_the_sections(small: list[Reported]) -> None:
    all_is_in_sections(small)
    all_is_in_sections(small[:1])


def test_all_that_is_known_of_published_agents_is_in_the_sections() -> None:
    for agents in published_agents():
        all_is_in_sections(agents)


def figures_in(value: Any) -> set[float]:
    """All numbers in JSON."""
    if isinstance(value, dict):
        return {figure for each in value.values() for figure in figures_in(each)}
    if isinstance(value, list):
        return {figure for each in value for figure in figures_in(each)}
    return {float(value)} if isinstance(value, (int, float)) else set()


def test_all_figures_of_published_results_are_in_the_sections() -> None:
    for agents in published_agents():
        figures = figures_in(block_json(list(report_sections(agents))))
        for agent in agents:
            found = agent.figures
            own = [test.score for test in found.tests if test.score is not None]
            # Of one agent, the figures of all its tests are texts.
            means = [*found.datasets.values(), *([found.accuracy] if len(agents) > 1 else [])]
            ends = [end for each in means if each.interval for end in (each.interval.low, each.interval.high)]
            assert {*own, *ends, *(each.value for each in means)} <= figures
            if len(agents) > 1:
                metrics = ("score", "accuracy", "ltm_score", "speed", "verbosity", "cost")
                assert {float(getattr(found.published, name)) for name in metrics} <= figures
            assert {float(max(1, agent.distance(test))) for test in found.tests if test.score is not None} <= figures
            assert agent.timeline is not None
            for course in agent.timeline.courses:
                assert {float(course.begin), float(len(course.told)), float(len(course.asked))} <= figures


@needs_all_sessions
def test_memory_spans_are_compared() -> None:
    agents = gather(["Benchmark 3 - 1k", "Benchmark 3 - 32k"], published())
    (chart,) = [each for each in parts(report_sections(agents), Chart) if each.title == "Mean score over memory span"]
    (several,) = [series for series in chart.series if len(series.points) > 1]
    assert [span for span, _ in several.points] == ["1,000", "32,000"]


# --- What is where


async def test_agents_are_in_order_of_their_scores_with_a_heat_map(small: list[Reported]) -> None:
    sections = list(report_sections(small))
    assert [section.title for section in sections] == [
        "Scores by dataset",
        "By the published formulas",
        "Differences",
        "Details",
        "Tests",
    ]
    (heat,) = parts(sections[:1], Table)
    assert heat.rows[0][0].text == "PerfectAgent (simulated agent)"
    assert [cell.share for cell in heat.rows[0]] == [None, 1.0, 1.0, None, 1.0, None]
    assert [cell.text for cell in heat.rows[1][1:3]] == ["0.000", "0.000"]
    assert heat.rows[0][1].about.endswith("n=4, 4 unscored")
    folds = [fold for fold in sections[-1].blocks if isinstance(fold, Fold)]
    assert len(folds) == len(sections[-1].blocks) == 8 * len(AGENTS)
    assert {fold.filters["agent"] for fold in folds} == {agent.label for agent in small}
    assert {fold.filters["result"] for fold in folds} == {"full marks", "no points", "no score"}
    names = [fold.name for fold in parts(sections, Fold) if fold.name]
    assert len(set(names)) == len(names)
    assert {link.anchor for link in links_of(block_json(sections))} <= set(names)


async def test_one_agent_has_its_schedule_and_its_tests(small: list[Reported]) -> None:
    sections = list(report_sections([small[-1]]))
    assert small[-1].label == "PerfectAgent"
    assert [section.title for section in sections][:3] == ["Results", "Scores by dataset", "Interleaving"]
    (lanes,) = parts(sections, Lanes)
    assert lanes.lanes[0].label == "filler and time"
    assert {span.kind for lane in lanes.lanes[1:] for span in lane.spans} == {"waits", "statement", "question"}
    for lane in lanes.lanes[1:]:
        ends = [place for span in lane.spans for place in (span.start, span.end)]
        assert ends == sorted(ends)
    folds = [fold for fold in sections[-1].blocks if isinstance(fold, Fold)]
    assert "agent" not in folds[0].filters
    (said,) = parts(folds[:1], Messages)
    assert {message["role"] for message in said.messages} == {"user", "assistant"}
    assert len(said.messages) == len(said.names) == len(said.about)


async def test_plots_can_be_left_out(small: list[Reported]) -> None:
    for agents in (small, small[:1]):
        with_plots, without = list(report_sections(agents)), list(report_sections(agents, with_plots=False))
        assert parts(with_plots, Chart)
        assert parts(without, Chart) == []
        assert parts(without, Lanes) == []
        assert all(part for columns in parts(without, Columns) for part in columns.blocks)
        assert len(parts(without, Table)) == len(parts(with_plots, Table))


async def test_titles_and_file_names(small: list[Reported]) -> None:
    assert report_title(small) == "small – 3 agents"
    assert report_title(small[-1:]) == "small – PerfectAgent"
    assert report_file_name(small, "2024-05-17 09_00_00") == "2024-05-17 09_00_00 - Comparative Report - small.html"
    alone = report_file_name(small[-1:], "2024-05-17 09_00_00")
    assert alone == "2024-05-17 09_00_00 - Detailed Report - small - PerfectAgent.html"


async def test_the_same_results_give_the_same_sections(small: list[Reported]) -> None:
    one, other = (json.dumps(block_json(list(report_sections(small)))) for _ in range(2))
    assert one == other


async def test_many_agents_keep_their_full_names(small: list[Reported]) -> None:
    agents = [replace(small[number % 3], label=f"{'a long name ' * 6}{number}") for number in range(25)]
    sections = list(report_sections(agents, 0))
    (heat,) = parts(sections[:1], Table)
    assert len(heat.rows) == 25
    assert all(f"{'a long name ' * 6}" in row[0].text for row in heat.rows)
    means = [row[1].value for row in heat.rows]
    assert means == sorted(means, reverse=True, key=lambda value: float(value or 0))
    assert [chart.title for chart in parts(sections[:1], Chart)] == ["Mean score of all tests by agent"]


# --- Bounds


async def test_texts_of_a_report_have_a_bound(small: list[Reported]) -> None:
    agent = small[-1]
    said = "word & " * 200_000
    tests = tuple(
        replace(test, result={**test.result, "task_log": [f"Test (2024-05-17 09:00:00): {said}"] * 5})
        for test in agent.figures.tests
    )
    large = replace(agent, figures=replace(agent.figures, tests=tests))
    texts = list(strings(block_json(list(report_sections([large], 50_000)))))
    assert sum(map(len, texts)) < 120_000
    assert any("more characters" in text for text in texts)
    assert any("more messages, for which this page has no room" in text for text in texts)
    assert MAX_BYTES == 20_000_000


@pytest.mark.parametrize("number", [1, 50, 20_000])
def test_a_schedule_has_a_bound(number: int) -> None:
    size = 2_000_000 // number
    courses = []
    for test in range(4):
        places = [test * 100_000 + place * size for place in range(number // 4 + 1)]
        spoken = [(place, place + size // 2 + 1) for place in places]
        end = None if test == 3 else spoken[-1][1]
        courses.append(Course(f"A - {test}", places[0], end, places[:-1], places[-1:], spoken, ["What?"]))
    timeline = Timeline(tuple(courses), tuple((at, at + 1) for at in range(0, 200_000, 3)), (), 2_200_000, 9.0, 0, 0)
    lanes = schedule_lanes(timeline, {"A - 0": 1.0}, "title", lambda name: None)
    assert sum(len(lane.spans) for lane in lanes.lanes) <= MAX_SPANS
    assert [lane.label for lane in lanes.lanes] == ["filler and time", "A - 0", "A - 1", "A - 2", "A - 3"]
    for lane, course in zip(lanes.lanes[1:], courses, strict=True):
        assert lane.spans[0].start == course.begin
        assert lane.spans[-1].end == (2_200_000 if course.end is None else course.end)
        assert "question" in {span.kind for span in lane.spans}


def test_stretches_near_each_other_become_one() -> None:
    assert list(joined([(0, 2), (3, 5), (9, 10)], 1)) == [(0, 5), (9, 10)]
    assert list(joined([(0, 2), (2, 5)], 0)) == [(0, 2), (2, 5)]
    assert list(joined([], 5)) == []


@pytest.mark.parametrize("agents", [1, 2])
def test_a_conversation_that_has_just_begun_has_sections(tmp_path: Path, agents: int) -> None:
    for number in range(agents):
        folder = tmp_path / "run" / "results" / f"agent {number}"
        folder.mkdir(parents=True)
        (folder / "master_log.jsonl").touch()
    sections = list(report_sections(gather([str(tmp_path / "run")], tmp_path)))
    assert "0 = 0 scored + 0 unscored" in text_of_blocks(sections)
    assert "There is no runstats.json" in text_of_blocks(sections)
    assert mean([]).value is None
    assert isinstance(sections[-1], Section)
    assert sections[-1].blocks == []
