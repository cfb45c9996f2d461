"""The pages about memory runs: of ended ones, while they go on, and of those whose files are incomplete."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.shown.blocks import Facts, Fold, Lanes, Messages, Section, Table, block_json
from manyhands.runs.shown.run_view import view_of
from manyhands.runs.summaries import summarizer_of
from manyhands.workloads.memory.conversation.events import events_so_far, read_master_log
from manyhands.workloads.memory.report import recorded
from manyhands.workloads.memory.report import view as view_module
from manyhands.workloads.memory.report.log_pages import MAX_PAGE_BYTES, PAGE
from manyhands.workloads.memory.report.reported_agents import gather
from manyhands.workloads.memory.report.view import MemoryView
from tests.support.memory_benchmarks import opened, performed, write_configuration
from tests.support.shown_blocks import links_of, parts, text_of_blocks

AGENTS = ("perfect", "forgetful", "simulated")
PAGES = ("results", "schedule", "conversation", "comparison")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended, with three agents."""
    folder = tmp_path_factory.mktemp("view")
    write_configuration(folder, ["colours", "shopping", "trigger_response", "name_list"], span=3000, examples=2)
    asyncio.run(performed(opened(folder, AGENTS, max_prompt_size=600)))
    return folder / "data/tests/small"


@pytest.fixture
def view(run: Path) -> Iterator[MemoryView]:
    with closing(JournalReader(run)) as reader:
        found = view_of(reader)
        assert isinstance(found, MemoryView)
        yield found


def page(view: MemoryView, name: str, **query: str) -> list[Section]:
    return list(view.page(name, query))


def results_of(run: Path, name: str = "PerfectAgent") -> Path:
    return run / "results" / name


# --- A run that has ended


def test_there_are_pages_and_no_others(view: MemoryView) -> None:
    assert tuple(each.name for each in view.pages()) == PAGES
    with pytest.raises(KeyError):
        view.page("other", {})


def test_results_have_every_answer_with_its_score_and_reason(view: MemoryView, run: Path) -> None:
    (agent,) = gather(["small"], run.parent.parent, ["perfect"])
    sections = page(view, "results", item="1")
    said = text_of_blocks(sections)
    folds = {fold.title: fold for fold in parts(sections[-1:], Fold)}
    assert len(folds) == len(agent.figures.tests) == 8
    for test in agent.figures.tests:
        fold = folds[f"{test.dataset} - {test.example}"]
        inside = text_of_blocks(fold)
        for text in (*test.result["actual_responses"], *test.result["reasoning"]):
            assert " ".join(text.split()) in inside
        assert f"{test.tokens:,} tokens" in inside
        assert ("needles" in inside) == bool(test.needles)
        assert fold.cells[-1].value == test.score
        assert parts([fold], Messages) == []
    assert "Cost in all" in said
    assert "Speed" in said
    assert agent.figures.stats is not None
    assert f"{agent.figures.stats.total_tokens:,} tokens" in said


def test_a_test_is_shown_whole(view: MemoryView, run: Path) -> None:
    (section,) = page(view, "results", item="1", test="Colours - 0")
    result = json.loads((results_of(run) / "Colours" / "0_0.json").read_text(encoding="utf-8"))
    (said,) = parts([section], Messages)
    assert [message["content"] for message in said.messages] == [
        line.partition("): ")[2] for line in result["task_log"]
    ]
    assert len(page(view, "results", item="1", test="Nothing - 0")) > 1


def test_the_schedule_has_all_tests_and_leads_to_where_they_begin(view: MemoryView, run: Path) -> None:
    sections = page(view, "schedule", item="1")
    (lanes,), (table,) = parts(sections, Lanes), parts(sections, Table)
    log = read_master_log(results_of(run) / "master_log.jsonl")
    tests = {event.test_id for event in log if event.test_id}
    assert {lane.label for lane in lanes.lanes} == tests | {"filler and time"}
    assert {row[0].text for row in table.rows} == tests
    for row in table.rows:
        link = row[0].link
        assert link is not None
        assert link.page == "conversation"
        (first, *_) = parts(page(view, "conversation", **link.query), Messages)
        assert first.names[0] == row[0].text
        assert first.messages[0]["content"] == "The test begins."


@pytest.mark.parametrize("item", ["1", "2", "3"])
def test_the_conversation_is_all_of_the_log(view: MemoryView, run: Path, item: str) -> None:
    name = {"1": "PerfectAgent", "2": "ForgetfulAgent", "3": "LLMChatSession - simulated - 600"}[item]
    log = read_master_log(results_of(run, name) / "master_log.jsonl")
    said: list[Any] = []
    names: list[str] = []
    after: str | None = "0"
    while after is not None:
        sections = page(view, "conversation", item=item, after=after)
        (messages,) = parts(sections, Messages)
        assert len(messages.messages) == len(messages.names) == len(messages.about) <= PAGE
        said += messages.messages
        names += messages.names
        onward = [link.query["after"] for link in links_of(block_json(sections[0])) if "after" in link.query]
        after = next((each for each in onward if int(each) == len(said)), None) if len(said) < len(log) else None
    assert len(said) == len(log)
    assert [message["content"] for message, event in zip(said, log, strict=True) if event.message] == [
        event.message for event in log if event.message
    ]
    assert [name for name, event in zip(names, log, strict=True) if event.test_id] == [
        event.test_id for event in log if event.test_id
    ]


def test_agents_are_compared(view: MemoryView) -> None:
    sections = page(view, "comparison")
    assert [section.title for section in sections] == ["Scores by dataset", "By the published formulas", "Differences"]
    (heat, *_) = parts(sections, Table)
    assert heat.rows[0][0].text == "PerfectAgent (simulated agent)"
    assert heat.rows[0][0].link is not None
    assert (heat.rows[0][0].link.query["item"], heat.rows[0][0].link.run) == ("1", None)


def test_items_have_cells_and_blocks(view: MemoryView) -> None:
    rows = list(view.reader.items())
    cells = view.cells(rows, summarizer_of(view.reader).items(rows))
    columns = {column.name for column in view.run_columns()}
    assert {"dataset Colours", "dataset NameList", "tests", "agent_cost"} <= columns
    assert all(set(each) <= columns for each in cells)
    assert [each["tests"].value for each in cells] == [8, 8, 8]
    assert cells[0]["dataset Colours"].share == 1.0
    assert cells[1]["dataset Colours"].share == 0.0
    said = text_of_blocks(list(view.item_blocks(rows[0], ())))
    assert "Colours - 0" in said
    assert "By the published formulas" in said


def test_the_head_has_every_agent_and_the_ways_to_its_pages(view: MemoryView) -> None:
    sections = list(view.head())
    (table,) = parts(sections, Table)
    assert [row[0].text for row in table.rows] == [
        "PerfectAgent",
        "ForgetfulAgent",
        "LLMChatSession - simulated - 600",
    ]
    assert "3,000 tokens" in text_of_blocks(sections)


def test_what_is_not_listed_is_counted(view: MemoryView, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [page(view, name) for name in PAGES]
    monkeypatch.setattr(recorded, "MAX_CONVERSATIONS", 2)
    monkeypatch.setattr(view_module, "MAX_DATASETS", 3)
    monkeypatch.setattr(view_module, "MAX_TESTS", 5)
    more = "1 more conversation of small"
    for name, sections in zip(PAGES, whole, strict=True):
        assert more in text_of_blocks(page(view, name)), name
        assert more not in text_of_blocks(sections), name
    assert all("3 more tests of this conversation" in text_of_blocks(page(view, name)) for name in PAGES[1:3])
    head = list(view.head())
    assert more in text_of_blocks(head)
    (datasets,) = [fact for facts in parts(head, Facts) for fact in facts.facts if fact.label == "datasets"]
    assert (datasets.cell.text, datasets.cell.value) == ("4", 4)
    assert datasets.about == "The first 3 of them have a column in the table of items."
    assert len(view.run_columns()) == len(view.columns) + 3


def test_every_link_leads_to_something(view: MemoryView) -> None:
    pages = {name: page(view, name) for name in PAGES}
    targets = {(link.page, json.dumps(link.query, sort_keys=True)) for link in links_of(block_json(pages)) if link.page}
    assert len(targets) > 20
    for name, query in targets:
        assert name is not None
        assert "warn" not in {note.get("tone") for note in _notes(page(view, name, **json.loads(query))[-1:])}


def _notes(sections: Any) -> Iterator[Mapping[str, Any]]:
    found = block_json(sections)
    return (block for section in found for block in section.get("blocks", ()) if block["block"] == "note")


@pytest.mark.parametrize(
    "query",
    [
        {"item": "999"},
        {"item": "x"},
        {"item": "²"},
        {"item": "9" * 30},
        {"after": "-1"},
        {"after": "9" * 30},
        {"after": "99999999"},
        {"message": "99999999"},
        {"test": "../../run.db"},
        {"judge": "../.."},
    ],
)
def test_whatever_is_wrong_in_a_query_is_ignored(view: MemoryView, query: dict[str, str]) -> None:
    for name in PAGES:
        assert text_of_blocks(page(view, name, **query))


def test_scores_that_a_judge_gave_afterwards_can_be_chosen(view: MemoryView, run: Path) -> None:
    folder = run / "scores" / "a judge"
    folder.mkdir(parents=True)
    results = [
        {"agent": "PerfectAgent", "dataset": "Colours", "example": "0", "score": 0.25, "reasons": ["as it were"]}
    ]
    (folder / "scores.json").write_text(json.dumps({"results": results}), encoding="utf-8")
    try:
        assert {link.query.get("judge") for link in links_of(block_json(page(view, "results")))} >= {"a judge", None}
        judged = page(view, "results", judge="a judge")
        fold = next(fold for fold in parts(judged, Fold) if fold.title == "Colours - 0")
        assert "as it were" in text_of_blocks(fold)
        (folder / "scores.json").write_text("{", encoding="utf-8")
        assert "scores.json" in text_of_blocks(page(view, "results", judge="a judge"))
    finally:
        (folder / "scores.json").unlink()


# --- Several runs


async def test_runs_are_compared(tmp_path: Path) -> None:
    folders = []
    for span in (1000, 2500):
        place = tmp_path / f"place {span}"
        place.mkdir()
        write_configuration(place, ["colours", "shopping"], span=span, examples=2)
        made = opened(place, ["perfect", "forgetful"])
        await performed(made)
        folders.append(made.folder)
    with closing(JournalReader(folders[0])) as first, closing(JournalReader(folders[1])) as second:
        sections = list(view_of(first).compared([second], {}))
        (heat, *_) = parts(sections, Table)
        assert len(heat.rows) == 4
        assert {row[0].link.run for row in heat.rows if row[0].link} == {None, second.meta("run_id")}
        assert "Memory span and score" in [section.title for section in sections]


# --- While it goes on


async def test_pages_show_what_is_recorded_so_far(tmp_path: Path) -> None:
    write_configuration(tmp_path, ["colours", "shopping"], span=1500, examples=2)
    made = opened(tmp_path, ["simulated", "perfect"], max_prompt_size=600, simulated_latency=0.02, concurrency=1)
    execution = asyncio.create_task(performed(made))
    events: list[int] = []
    tests: list[float] = []
    looks = 0
    while not execution.done():
        await asyncio.sleep(0.05)
        with closing(JournalReader(made.folder)) as reader:
            view = view_of(reader)
            assert isinstance(view, MemoryView)
            for name in PAGES:
                assert text_of_blocks(page(view, name))
            assert text_of_blocks(list(view.head()))
            rows = list(reader.items())
            cells = view.cells(rows, [])
            tests += [float(cells[0]["tests"].value or 0)] if cells else []
            events += [len(each.messages) for each in parts(page(view, "conversation"), Messages)]
            looks += 1
    assert (await execution).exit_code == 0
    assert looks > 3
    assert events == sorted(events)
    assert len(set(events)) > 2
    assert tests == sorted(tests)


def test_a_run_that_has_not_begun_has_pages(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    made = opened(tmp_path, ["simulated", "perfect"])
    with closing(JournalReader(made.folder)) as reader:
        view = view_of(reader)
        assert isinstance(view, MemoryView)
        for name in PAGES:
            assert text_of_blocks(page(view, name))
        assert list(view.head())


async def test_a_conversation_that_was_begun_anew_is_told_apart(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    await performed(opened(tmp_path, "perfect"))
    made = opened(tmp_path, "perfect", restart=True)
    await performed(made)
    with closing(JournalReader(made.folder)) as reader:
        view = view_of(reader)
        assert isinstance(view, MemoryView)
        numbers = {row.payload["round"]: str(row.number) for row in reader.items()}
        assert "were put aside" in text_of_blocks(page(view, "results", item=numbers[0]))
        assert "were put aside" not in text_of_blocks(page(view, "results", item=numbers[1]))
        (heat, *_) = parts(page(view, "comparison"), Table)
        assert len(heat.rows) == 1


# --- Incomplete files


@pytest.fixture
async def own(tmp_path: Path) -> Path:
    """A run whose files a test may change."""
    write_configuration(tmp_path, ["colours", "shopping"])
    made = opened(tmp_path, "perfect")
    await performed(made)
    return made.folder


def said(folder: Path, name: str, **query: str) -> str:
    with closing(JournalReader(folder)) as reader:
        view = view_of(reader)
        assert isinstance(view, MemoryView)
        assert list(view.head())
        rows = list(reader.items())
        view.cells(rows, [])
        list(view.item_blocks(rows[0], ()))
        return text_of_blocks(page(view, name, **query))


async def test_a_line_that_is_being_written_is_left_out(own: Path) -> None:
    log = results_of(own) / "master_log.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole[:-20])
    events, problem = events_so_far(log)
    assert (len(events), problem) == (whole.count(b"\n") - 1, "")
    assert "can be read up to here only" not in said(own, "conversation")
    log.write_bytes(whole.rstrip(b"\n"))
    assert events_so_far(log) == (read_master_log(log), "")


async def test_a_damaged_line_is_named_and_what_is_before_it_shown(own: Path) -> None:
    log = results_of(own) / "master_log.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:10], b'\xff{"type": 99}\n', *lines[10:]]))
    assert len(events_so_far(log)[0]) == 10
    for name in ("conversation", "schedule"):
        assert "master_log.jsonl, line 11: not a JSON object" in said(own, name)


@pytest.mark.parametrize("lost", ["runstats.json", "session.json", "master_log.jsonl", "Colours/0_0.json"])
async def test_pages_do_without_a_file(own: Path, lost: str) -> None:
    (results_of(own) / lost).unlink()
    for name in PAGES:
        assert said(own, name)


async def test_pages_do_without_a_folder(own: Path) -> None:
    os.rename(own / "results", own / "elsewhere")
    for name in PAGES:
        assert "nothing is recorded" in said(own, name) or name in ("schedule", "conversation")
    os.rename(own / "definitions", own / "elsewhere too")
    assert said(own, "results")


@pytest.mark.parametrize("content", ["{", "[]", '{"score": "x"}', '{"score": 1e999}', ""])
async def test_a_damaged_result_is_named(own: Path, content: str) -> None:
    (results_of(own) / "Colours" / "0_0.json").write_text(content, encoding="utf-8")
    assert "0_0.json" in said(own, "results")
    assert "Colours - 0" in said(own, "schedule")


async def test_results_outside_of_the_run_are_not_read(own: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    os.rename(results_of(own), outside)
    results_of(own).symlink_to(outside)
    assert "nothing is recorded" in said(own, "results")
    assert "Nothing has been said yet" in said(own, "conversation")


async def test_long_messages_are_cut_and_can_be_seen_whole(own: Path) -> None:
    log = results_of(own) / "master_log.jsonl"
    text = "<b>\ud800 word\x00</b> " * 20_000
    event = {"type": 0, "timestamp": -1e10, "test_id": "A\x00 - 0", "data": {"message": text, "is_question": False}}
    wait = {"type": 6, "timestamp": 1e11, "test_id": "A - 0", "data": {"tokens": 0, "time": 1e308}}
    log.write_text("".join(f"{json.dumps(each)}\n" for each in [event] * 150 + [wait]), encoding="utf-8")
    with closing(JournalReader(own)) as reader:
        view = view_of(reader)
        assert isinstance(view, MemoryView)
        sections = page(view, "conversation")
        assert len(json.dumps(block_json(sections))) < 2 * MAX_PAGE_BYTES
        link = next(link for link in links_of(block_json(sections)) if "message" in link.query)
        whole = text_of_blocks(page(view, "conversation", **link.query))
        assert whole.count("word") == 20_000
        assert "\ud800" not in whole
        assert "waits for its turn" in text_of_blocks(page(view, "conversation", after="150"))
        assert text_of_blocks(page(view, "schedule"))
