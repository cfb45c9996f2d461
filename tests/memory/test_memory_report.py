"""Pages that reports are: their figures are those of the results, nothing that was said becomes HTML, and they need nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manyhands.cli.memory.report import run as report_command
from manyhands.cli.memory.running import run as run_command
from manyhands.core.errors import UserError
from manyhands.workloads.memory.conversation.events import Event, EventType
from manyhands.workloads.memory.report.formatting import (
    TextBudget,
    answered,
    html_size,
    task_log,
)
from manyhands.workloads.memory.report.reported_agents import gather, pairings
from manyhands.workloads.memory.report.sections import report_sections
from manyhands.workloads.memory.report.views import agent_views, published_facts
from manyhands.workloads.memory.results.figures import MIN_TESTS, figures_of, span_groups
from manyhands.workloads.memory.results.timeline import timeline_of
from tests.support.goodai import expected, needs_all_sessions, published
from tests.support.memory_schedules import count_words
from tests.support.shown_blocks import text_of_blocks

CONFIGURATION = """
config: {run_name: Small}
datasets:
  args: {memory_span: 1500, dataset_examples: 2}
  datasets: [{name: colours}, {name: shopping}, {name: trigger_response}, {name: restaurant}]
"""


class Page(HTMLParser):
    """A page taken apart: its tags, its texts, its ids, and where it leads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.leads: list[str] = []
        self.policies: list[str] = []
        self.handlers: list[str] = []
        self.texts: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = {name: value or "" for name, value in attrs}
        self.ids += [found["id"]] if "id" in found else []
        self.leads += [found[name] for name in ("src", "href", "xlink:href", "data", "action") if name in found]
        self.handlers += [name for name in found if name.startswith("on")]
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policies.append(found["content"])

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a run of two agents."""
    folder = tmp_path_factory.mktemp("report")
    configuration = folder / "small.yml"
    configuration.write_text(CONFIGURATION, encoding="utf-8")
    words = ["-c", str(configuration), "-a", "perfect", "-a", "forgetful", "--data_dir", str(folder / "data")]
    assert run_command([*words, "-y", "-l", "--quiet", "--start_time", "2024-05-17T09:00:00"]) == 0
    return folder / "data"


def page_of(folder: Path, path: Path, *options: str, agents: tuple[str, ...] = ()) -> Page:
    """The page that the command writes about a run or an agent, by its folder."""
    chosen = [word for agent in agents for word in ("-a", agent)]
    assert report_command([str(folder), "-o", str(path), *chosen, *options]) == 0
    return Page(path)


# --- What a page says


def test_a_page_about_one_agent_has_the_figures_of_its_results(data_dir: Path, tmp_path: Path) -> None:
    page = page_of(data_dir / "tests" / "Small", tmp_path / "page.html", agents=("perfect",))
    figures = figures_of(data_dir / "tests" / "Small" / "results" / "PerfectAgent")
    assert figures.unscored == 4
    assert set(figures.unscored_datasets) == {"Restaurant", "Trigger Response"}
    assert f"{figures.published.score:.3f} ± {figures.published.score_deviation:.3f} of 2" in page.text
    assert figures.accuracy.value is not None
    assert f"{100 * figures.accuracy.value:.1f} %" in page.text
    assert "8 = 4 scored + 4 unscored" in page.text
    assert "left out of all figures: Restaurant, Trigger Response (not scored: a model has to judge" in page.text
    assert "simulated agent" in page.text
    for test in figures.tests:
        assert f"{test.dataset} - {test.example}" in page.text
        assert f"{test.tokens:,} tokens, {test.characters:,} characters" in page.text


def test_a_page_about_several_compares_them(data_dir: Path, tmp_path: Path) -> None:
    page = page_of(data_dir / "tests" / "Small", tmp_path / "page.html")
    difference = pairings(gather(["Small"], data_dir))[0]
    assert (difference.pairs, difference.unscored) == (4, 4)
    assert difference.result is not None
    assert difference.result.difference.value == pytest.approx(-1)
    assert "-1.000 (too few datasets for an interval)" in page.text
    assert "only first ran" not in page.text
    assert "ForgetfulAgent" in page.text
    assert "PerfectAgent" in page.text


@pytest.mark.parametrize("options", [(), ("--no_plots",)])
def test_a_page_needs_nothing_else(data_dir: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    page = page_of(data_dir / "tests" / "Small", tmp_path / "page.html", *options)
    assert all(lead.startswith(("#", "data:")) for lead in page.leads)
    (policy,) = page.policies
    assert "unsafe" not in policy
    assert len(set(page.ids)) == len(page.ids)
    assert {lead[1:] for lead in page.leads if lead.startswith("#")} <= set(page.ids)


def test_the_same_results_give_the_same_page(data_dir: Path, tmp_path: Path) -> None:
    for name in ("one.html", "two.html"):
        page_of(data_dir / "tests" / "Small", tmp_path / name, agents=("perfect",))
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


# --- Published results


def published_rows() -> Iterator[tuple[Path, dict[str, str]]]:
    for row in expected("published_scores"):
        folder = published() / "tests" / row["run"] / "results" / row["agent"]
        if folder.is_dir():
            yield folder, row


def test_published_figures_come_out_again() -> None:
    rows = list(published_rows())
    assert rows
    for folder, row in rows:
        facts = {fact.name: fact.value for fact in published_facts(figures_of(folder))}
        assert facts["Score"] == f"{float(row['score']):.3f} ± {float(row['score_std']):.3f} of {row['max_score']}"
        assert facts["Accuracy"] == f"{float(row['accuracy_pct']):.2f} %"
        assert float(facts["LTM score"].replace(",", "")) == pytest.approx(float(row["ltm_score"]), abs=1)


@needs_all_sessions
def test_runs_of_all_formats_get_a_page(tmp_path: Path) -> None:
    names = ["Benchmark 3 - 1k", "Benchmark 3 - 32k (isolated)", "Benchmark 2 - 1k Filler"]
    agents = gather(names, published(), ["gpt"])
    assert {agent.figures.run for agent in agents} == set(names)
    words = [*names, "--data_dir", str(published()), "-a", "gpt", "-o", str(tmp_path / "page.html")]
    assert report_command(words) == 0
    page = Page(tmp_path / "page.html")
    assert "the configuration has none" in page.text  # of the second version
    assert "one after the other, without filler (isolated)" in page.text
    assert "Delayed Recall" in page.text
    older = next(agent for agent in agents if agent.figures.memory_span is None)
    assert older.overruns is None
    assert (tmp_path / "page.html").stat().st_size < 25_000_000
    assert all(0 <= test.score <= 1 for test in older.figures.tests if test.score is not None)


@needs_all_sessions
def test_a_published_timeline_ends_where_its_session_did() -> None:
    (agent,) = gather(["Benchmark 3 - 32k"], published())
    assert agent.timeline is not None
    assert agent.figures.stats is not None
    assert agent.timeline.tokens == pytest.approx(agent.figures.stats.total_tokens, rel=0.1)
    assert len(agent.timeline.courses) == len(agent.figures.tests)
    assert agent.timeline.resumes == 1


# --- What was said stays text


def write_results(folder: Path, dataset: str, said: str, **more: Any) -> Path:
    """Results of an agent with one test; what was said may be anything."""
    result = {
        "task_log": [f"Test (2024-05-17 09:00:00): {said}", f"Agent (2024-05-17 09:00:01): {said}", said],
        "actual_responses": [said],
        "score": 0.5,
        "max_score": 1,
        "reasoning": [said],
        "tokens": 10,
        "characters": 20,
        "expected_responses": [said],
        "needles": 1,
        "judge": said,
        **more,
    }
    path = folder / dataset / "0_0.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result), encoding="utf-8")
    events: list[dict[str, Any]] = [
        {"type": 1, "timestamp": 1.0, "test_id": f"{dataset} - 0", "data": {}},
        {"type": 0, "timestamp": 1.0, "test_id": f"{dataset} - 0", "data": {"message": said, "is_question": True}},
        {"type": 4, "timestamp": 2.0, "test_id": f"{dataset} - 0", "data": {"message": said, "is_question": True}},
        {"type": 2, "timestamp": 2.0, "test_id": f"{dataset} - 0", "data": {}},
    ]
    (folder / "master_log.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in events), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def harmless(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The kinds of tags of a page in which nothing else was said than words."""
    place = tmp_path_factory.mktemp("harmless")
    folder = write_results(place / "run" / "results" / "agent", "Colours", "something")
    return set(page_of(folder, place / "page.html").tags)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=settings().max_examples)
@given(
    said=st.text(min_size=1, max_size=60)
    | st.sampled_from(["</pre><script>x()</script>", "<img src=x onerror=x()>", "{{ 7*7 }}", "\ud800"])
)
def test_whatever_was_said_is_text(tmp_path: Path, harmless: set[str], said: str) -> None:
    folder = write_results(tmp_path / "run" / "results" / "agent", "Colours", said)
    page = page_of(folder, tmp_path / "page.html")
    assert set(page.tags) & {"img", "iframe", "object", "embed", "form"} <= harmless
    assert page.tags.count("script") == 3
    assert page.handlers == []
    shown = "".join(mark for mark in said if mark.isalnum() and mark.isascii())
    assert shown in "".join(mark for mark in page.text if mark.isalnum() and mark.isascii())


@pytest.mark.parametrize("name", ["<script>alert(1)<script>", '"><img src=x onerror=x()>', "$x_1$ & #010203 &amp;"])
def test_names_are_text_in_plots_too(tmp_path: Path, name: str) -> None:
    for agent in (name, f"{name} 2"):
        write_results(tmp_path / "run" / "results" / agent, name, "something")
    page = page_of(tmp_path / "run", tmp_path / "page.html")
    assert "img" not in page.tags
    assert page.handlers == []
    assert name in page.text


# --- Bounds


@given(st.lists(st.text(max_size=50), max_size=8), st.integers(0, 300))
def test_messages_are_shown_or_counted(messages: list[str], size: int) -> None:
    log = [f"Agent (2024-05-17 09:00:01): {each}" for each in messages]
    shown, left_out = task_log({"task_log": log}, TextBudget(size))
    assert len(shown) + left_out == len(log)
    assert sum(html_size(line.text) for line in shown) <= size
    for line, message in zip(shown, messages, strict=False):
        assert len(line.text) + line.more == len(message)


def test_answers_are_paired_only_where_there_are_as_many_of_each() -> None:
    three = {"expected_responses": ["a", ["b"]], "actual_responses": ["1", "2"], "reasoning": ["x", "y"]}
    assert [each.expected for each in answered(three, ["q", "r"], TextBudget(1000))] == ["a", '["b"]']
    assert [each.question for each in answered(three, ["q"], TextBudget(1000))] == ["", ""]
    (joined,) = answered({**three, "reasoning": ["x"]}, ["q", "r"], TextBudget(1000))
    assert (joined.question, joined.actual, joined.reasoning) == ("q\nr", "1\n2", "x")
    assert answered({}, ["q"], TextBudget(1000)) == []


# --- Parts


def event(kind: EventType, at: float, test_id: str = "", **data: Any) -> Event:
    return Event(kind, at, test_id, data)


def test_a_timeline_says_where_everything_was() -> None:
    events = [
        event(EventType.SEND_FILL, 0, message="one two", is_question=False),
        event(EventType.RESPONSE_FILL, 1, message="three"),
        event(EventType.SUITE_RESET, 1),
        event(EventType.BEGIN, 1, "A - 0", tokens=3),
        event(EventType.SEND_MESSAGE, 1, "A - 0", message="four five", is_question=False),
        event(EventType.RESPONSE_MESSAGE, 2, "A - 0", message="six"),
        event(EventType.WAIT, 2, "A - 0", tokens=2, time=900),
        event(EventType.SEND_FILL, 3, message="seven"),
        event(EventType.RESPONSE_FILL, 3, message="eight"),
        event(EventType.SEND_FILL, 3, message="nine"),
        event(EventType.RESPONSE_FILL, 3, message="ten"),
        event(EventType.SEND_MESSAGE, 903, "A - 0", message="eleven", is_question=True),
        event(EventType.RESPONSE_MESSAGE, 904, "A - 0", message="twelve"),
        event(EventType.END, 904, "A - 0"),
        event(EventType.BEGIN, 904, "B - 0", tokens=12),
    ]
    found = timeline_of(events, count_words)
    course, begun = found.courses
    assert (course.begin, course.end, course.told, course.asked) == (3, 12, [3], [10])
    assert course.spoken == [(3, 6), (10, 12)]
    assert course.questions == ["eleven"]
    assert course.distance == 7
    assert (begun.end, begun.distance) == (None, None)
    assert found.filler == ((0, 3), (6, 10))
    assert found.jumps == ((10, 900.0),)
    assert (found.tokens, found.seconds, found.resumes, found.fillers) == (12, 904, 0, 2)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 1), st.sampled_from("ab")), max_size=40))
def test_every_test_is_in_one_span_group(tests: list[tuple[int, float, str]]) -> None:
    groups = span_groups(tests)
    assert sum(group.score.count for group in groups) == len(tests)
    assert all(group.score.count >= min(MIN_TESTS, len(tests)) for group in groups)
    assert all(one.max_distance <= other.min_distance for one, other in pairwise(groups))


def test_tests_that_only_one_agent_ran_are_counted(data_dir: Path, tmp_path: Path) -> None:
    for agent, scores in (("one", (1, 0.5, None)), ("two", (0, 0.5, 1))):
        for number, score in enumerate(scores):
            write_results(tmp_path / "run" / "results" / agent, f"Dataset {number}", "same", score=score)
    write_results(tmp_path / "run" / "results" / "one", "Only", "same")
    write_results(tmp_path / "run" / "results" / "two", "Other", "same")
    write_results(tmp_path / "run" / "results" / "two", "Dataset 1", "another test")
    agents = gather([str(tmp_path / "run")], tmp_path)
    (found,) = pairings(agents)
    assert (found.pairs, found.first_only, found.second_only, found.unscored) == (1, 2, 2, 1)
    assert found.result is not None
    assert found.result.difference.value == 1
    assert "only first ran" in page_of(tmp_path / "run", tmp_path / "page.html").text


def test_runs_with_other_memory_spans_are_drawn_over_them(tmp_path: Path) -> None:
    for span in (1000, 32000):
        run = tmp_path / f"run {span}"
        for agent in ("one", "two"):
            write_results(run / "results" / agent, "Colours", "something")
        (run / "definitions").mkdir()
        (run / "definitions" / "config.yml").write_text(
            f"datasets: {{args: {{memory_span: {span}}}}}", encoding="utf-8"
        )
    agents = gather([str(tmp_path / "run 1000"), str(tmp_path / "run 32000")], tmp_path)
    assert [agent.label for agent in agents][:2] == ["one · run 1000", "two · run 1000"]
    sections = list(report_sections(agents))
    assert "Memory span and score" in [section.title for section in sections]
    assert "32,000" in text_of_blocks(sections)


def test_each_test_is_shown_once(data_dir: Path) -> None:
    for view in agent_views(gather(["Small"], data_dir)):
        assert len({test.name for test in view.tests}) == len(view.tests) == 8


# --- The command


def test_the_command_says_where_the_page_is(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report_command(["Small", "-a", "perfect", "--data_dir", str(data_dir)]) == 0
    (page,) = (data_dir / "reports").glob("*Detailed Report - Small - PerfectAgent.html")
    out = capsys.readouterr().out
    assert page.name in out
    assert "PerfectAgent (simulated)" in out


def test_labels_and_json(data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["Small", "--data_dir", str(data_dir), "-l", "first", "--label", "second"]
    assert report_command([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [agent["label"] for agent in found["agents"]] == ["first", "second"]
    assert found["agents"][1]["tests"] == {"in": 8, "scored": 4, "unscored": 4}
    assert found["differences"][0]["pairs"] == 4
    assert report_command([*words, "--no-plots", "-o", str(tmp_path)]) == 0
    (page,) = tmp_path.glob("*Comparative Report - Small.html")
    assert "second" in Page(page).text


def test_an_agents_folder_is_enough(data_dir: Path, tmp_path: Path) -> None:
    folder = data_dir / "tests" / "Small" / "results" / "PerfectAgent"
    assert report_command([str(folder), "-o", str(tmp_path / "new" / "page.html"), "--no_plots"]) == 0
    assert (tmp_path / "new" / "page.html").is_file()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["Smal"], "no run 'Smal'; did you mean Small?"),
        (["Small", "-a", "nobody"], "no agent of Small is named so"),
        (["Small", "-l", "one"], "give one for each of 2 agents"),
        (["Small", "-l", "same", "-l", "same"], "two agents would be called the same"),
        (["Small", "-a", " "], "must not be empty"),
    ],
)
def test_what_is_wrong_is_said(data_dir: Path, words: list[str], expected: str) -> None:
    with pytest.raises(UserError, match=expected.replace("?", r"\?")):
        report_command([*words, "--data_dir", str(data_dir)])


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e300", f"1{'0' * 400}"])
def test_a_number_that_is_none_is_named(tmp_path: Path, number: str) -> None:
    folder = write_results(tmp_path / "run" / "results" / "agent", "Colours", "something")
    path = folder / "Colours" / "0_0.json"
    content = {**json.loads(path.read_text(encoding="utf-8")), "tokens": "HERE"}
    path.write_text(json.dumps(content).replace('"HERE"', number), encoding="utf-8")
    with pytest.raises(UserError, match=r"0_0\.json: tokens: must be a number"):
        report_command([str(folder), "-o", str(tmp_path / "page.html")])


def test_a_damaged_result_leaves_no_page(tmp_path: Path) -> None:
    folder = write_results(tmp_path / "run" / "results" / "agent", "Colours", "something")
    (folder / "Colours" / "0_0.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"0_0\.json: not JSON"):
        report_command([str(folder), "-o", str(tmp_path / "page.html")])
    assert not (tmp_path / "page.html").exists()
