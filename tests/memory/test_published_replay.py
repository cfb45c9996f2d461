"""Published sessions of the GoodAI LTM Benchmark: the scheduler must do what their logs show, as ``replay.csv`` says."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from manyhands.workloads.memory.conversation.definitions import Dataset
from manyhands.workloads.memory.conversation.events import format_event, read_master_log
from manyhands.workloads.memory.conversation.filler import FactFiller, read_facts
from manyhands.workloads.memory.conversation.tokens import estimate, read_token_lengths
from manyhands.workloads.memory.conversation.wording import read_wording
from manyhands.workloads.memory.datasets.definition_files import definition_path, format_definition, read_definitions
from manyhands.workloads.memory.datasets.registry import class_named, made_of
from manyhands.workloads.memory.replay_model import ReplayResult
from manyhands.workloads.memory.replaying import replay

DATA = Path(__file__).parents[3] / "shared/data/memory"
VERIFICATION = DATA / "verification"
OLDER = DATA / "tests/Benchmark 2 - 1k Filler"

pytestmark = pytest.mark.skipif(not DATA.exists(), reason=f"{DATA} is not here")


def expected() -> list[dict[str, str]]:
    if not DATA.exists():
        return []
    with (VERIFICATION / "replay.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def published(name: str) -> Dataset:
    return made_of(class_named(name), scoring="published")


def replayed(run: str, agent: str) -> ReplayResult:
    return replay(
        DATA / "tests" / run / "results" / agent,
        filler=read_facts(DATA / "trivia.json"),
        wording=read_wording(VERIFICATION / "literals.json"),
        token_lengths=read_token_lengths(VERIFICATION / "token_len_cl100k.json").get(f"{run}/{agent}"),
        dataset_of=published,
    )


@pytest.mark.parametrize("row", expected(), ids=lambda row: f"{row['run']}-{row['agent']}")
def test_a_published_session_is_replayed(row: dict[str, str]) -> None:
    result = replayed(row["run"], row["agent"])
    assert result.events == int(row["events"])
    if row["result"] != "exact":
        # Its tokens were counted by a remote service, so that nothing after the first count can agree.
        assert result.difference is not None
        assert (result.verdict, result.difference.index, result.difference.test_id) == ("differs", 3, "Colours - 0")
        assert (result.difference.field, result.difference.logged) == ("BEGIN tokens", 73)
        return
    assert (result.verdict, result.difference, result.agreeing) == ("exact", None, result.events)
    assert result.is_complete
    assert result.resumes == int(row["mid_run_resumes"])
    assert result.tokens_lost == int(row["tokens_lost_on_resume"])
    assert result.fillers == int(row["fillers"])
    assert result.other_fillers == int(row["fillers_with_other_content"])
    assert result.counters.total_tokens == int(row["replay_total_tokens"])
    assert result.counters.agent_tokens == int(row["replay_agent_tokens"])
    assert result.runstats is not None
    assert result.counters.duration == pytest.approx(result.runstats.duration, abs=1e-3)


def test_the_facts_of_published_filler_are_drawn() -> None:
    traces = json.loads((VERIFICATION / "filler_trace.json").read_text(encoding="utf-8"))
    facts, wording = read_facts(DATA / "trivia.json"), read_wording(VERIFICATION / "literals.json")
    for session in (
        "Benchmark 3 - 32k/LLMChatSession - gpt-4o - 128000",
        "Benchmark 3 - 1k/LLMChatSession - gpt-3.5-turbo - 16384",
    ):
        filler = FactFiller(facts, wording, estimate())
        for trace in traces[session]:
            assert [filler.draw()[0] for _ in trace["trivia_indices"]] == trace["trivia_indices"]


def test_a_session_of_the_second_version_is_checked_as_far_as_that_goes() -> None:
    result = replayed(OLDER.name, "GPTChatSession - gpt-3.5-turbo - 16384")
    assert (result.verdict, result.difference, result.is_complete) == ("consistent", None, True)
    assert (result.events, result.fillers, result.other_fillers) == (951, 77, 0)
    assert any("is not replayed" in note for note in result.notes)


def test_published_logs_are_written_as_they_were_read() -> None:
    for path in DATA.glob("tests/*/results/*/master_log.jsonl"):
        text = "".join(f"{format_event(event)}\n" for event in read_master_log(path))
        assert text == path.read_text(encoding="utf-8")


def test_published_definitions_are_written_as_they_were_read() -> None:
    for folder in DATA.glob("tests/Benchmark 3*/definitions"):
        for definition in read_definitions(folder):
            path = definition_path(folder, definition)
            assert format_definition(definition) == path.read_text(encoding="utf-8").rstrip("\n")


def test_published_definitions_of_the_second_version_keep_their_waits() -> None:
    tests = {each.unique_id: each for each in read_definitions(OLDER / "definitions")}
    assert [wait.tokens for wait in tests["Colours - 0"].waits] == [1000, 1000, 1000, 0]
    assert [wait.percentage for wait in tests["Spy Meeting - 0"].waits][:2] == [10.0, 20.0]
