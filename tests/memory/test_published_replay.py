"""Published sessions of the GoodAI LTM Benchmark: the scheduler must do what their logs show, as ``replay.csv`` says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from manyhands.core.errors import UserError
from manyhands.workloads.memory.conversation.definitions import Dataset
from manyhands.workloads.memory.conversation.events import EventType, format_event, read_master_log
from manyhands.workloads.memory.conversation.filler import FactFiller, builtin_facts, read_facts, read_wording
from manyhands.workloads.memory.conversation.tokens import estimate
from manyhands.workloads.memory.datasets.benchmark import definition_path, format_definition, read_definitions
from manyhands.workloads.memory.datasets.registry import class_named, made_of
from tests.memory.replay.result import ReplayResult
from tests.memory.replay.session import read_token_lengths, replay
from tests.support.goodai import expected, needs_all_sessions, published

DATA = published()
VERIFICATION = DATA / "verification"
OLDER = DATA / "tests/Benchmark 2 - 1k Filler"
TRIVIA = DATA / "trivia.json"


def by_published_rules(name: str) -> Dataset:
    return made_of(class_named(name), scoring="published")


def replayed(run: str, agent: str) -> ReplayResult:
    return replay(
        DATA / "tests" / run / "results" / agent,
        filler=read_facts(TRIVIA) if TRIVIA.is_file() else builtin_facts(),
        wording=read_wording(VERIFICATION / "literals.json"),
        token_lengths=read_token_lengths(VERIFICATION / "token_len_cl100k.json").get(f"{run}/{agent}"),
        dataset_of=by_published_rules,
    )


@pytest.mark.parametrize("row", expected("replay"), ids=lambda row: f"{row['run']}-{row['agent']}")
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


@needs_all_sessions
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


@needs_all_sessions
def test_a_session_of_the_second_version_is_refused() -> None:
    with pytest.raises(UserError, match=r"logs of the format's second version can't be replayed$"):
        replayed(OLDER.name, "GPTChatSession - gpt-3.5-turbo - 16384")


def command(session: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """``python -m tests.memory.replay``, from the checkout."""
    line = [sys.executable, "-m", "tests.memory.replay", str(session), *words]
    return subprocess.run(line, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60, check=False)


def test_the_command_says_whether_a_session_is_exact(tmp_path: Path) -> None:
    """Exit code 0 if it is, 1 after a change of one event, 2 if something can't be read."""
    row = next(row for row in expected("replay") if row["result"] == "exact" and row["fillers"] == "0")
    run, agent = tmp_path / row["run"], f"results/{row['agent']}"
    for part in ("definitions", agent):
        shutil.copytree(DATA / "tests" / row["run"] / part, run / part)
    given = f"--token-lengths={VERIFICATION / 'token_len_cl100k.json'}", f"--wording={VERIFICATION / 'literals.json'}"
    found = command(run / agent, *given)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.startswith(f"exact: {row['events']} of {row['events']} events agree\n")
    log = run / agent / "master_log.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines()
    at = next(at for at, line in enumerate(lines) if json.loads(line)["type"] == EventType.WAIT)
    del lines[at]
    log.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    found = command(run / agent, *given, "--json")
    assert (found.returncode, json.loads(found.stdout)["verdict"]) == (1, "differs")
    log.unlink()
    found = command(run / agent)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith(f"{log}: ")
    assert found.stderr.count("\n") == 1


def test_published_logs_are_written_as_they_were_read() -> None:
    for path in DATA.glob("tests/*/results/*/master_log.jsonl"):
        text = "".join(f"{format_event(event)}\n" for event in read_master_log(path))
        assert text == path.read_text(encoding="utf-8")


def test_published_definitions_are_written_as_they_were_read() -> None:
    for folder in DATA.glob("tests/Benchmark 3*/definitions"):
        for definition in read_definitions(folder):
            path = definition_path(folder, definition)
            assert format_definition(definition) == path.read_text(encoding="utf-8").rstrip("\n")


@needs_all_sessions
def test_published_definitions_of_the_second_version_keep_their_waits() -> None:
    tests = {each.unique_id: each for each in read_definitions(OLDER / "definitions")}
    assert [wait.tokens for wait in tests["Colours - 0"].waits] == [1000, 1000, 1000, 0]
    assert [wait.percentage for wait in tests["Spy Meeting - 0"].waits][:2] == [10.0, 20.0]
