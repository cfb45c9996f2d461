"""Sessions of the original's become runs that go on: whole ones, and ones that were cut off at any event."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.runs.execution import RunResult
from manyhands.testing.memory_benchmarks import opened, performed, records_of, write_configuration
from manyhands.workloads.memory.conversation.events import Event, EventType, ended_tests, format_event, read_master_log
from manyhands.workloads.memory.conversation.tokens import read_token_lengths
from manyhands.workloads.memory.importing import import_run
from manyhands.workloads.memory.opening import reopen_memory

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "memory"
VERIFICATION = DATA / "verification"
FOLDERS = sorted(path.parent for path in DATA.glob("tests/Benchmark 3*/results/*/master_log.jsonl"))

published = pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is not here")


def settings(folder: Path, **options: Any) -> dict[str, Any]:
    return {
        "agent_name": ["forgetful"],
        "data_dir": str(folder / "data"),
        "wording": str(VERIFICATION / "literals.json"),
        "filler": str(DATA / "trivia.json"),
        "tokenizer": "estimate",
        **options,
    }


def lengths_of(results: Path) -> dict[int, int]:
    every = read_token_lengths(VERIFICATION / "token_len_cl100k.json")
    return every.get(f"{results.parent.parent.name}/{results.name}", {})


def cut_off(results: Path, target: Path, count: int) -> Path:
    """A copy of a session that ends after so many events, as a crash leaves it."""
    run = results.parent.parent
    copy = target / run.name / "results" / results.name
    shutil.copytree(run / "definitions", target / run.name / "definitions")
    copy.mkdir(parents=True)
    log = read_master_log(results / "master_log.jsonl")[:count]
    (copy / "master_log.jsonl").write_text("".join(f"{format_event(event)}\n" for event in log))
    for test in ended_tests(log):
        dataset, _, example = test.rpartition(" - ")
        (copy / dataset).mkdir(exist_ok=True)
        shutil.copy(results / dataset / f"{example}_0.json", copy / dataset)
    stats = json.loads((results / "runstats.json").read_text())
    spent = sum(length for at, length in lengths_of(results).items() if at < count)
    (copy / "runstats.json").write_text(json.dumps({**stats, "total_tokens": spent or stats["total_tokens"]}))
    return copy


async def goes_on(folder: Path) -> RunResult:
    return await performed(reopen_memory(folder, environ={}))


@published
@pytest.mark.parametrize("results", FOLDERS, ids=lambda path: f"{path.parent.parent.name}-{path.name}")
async def test_a_published_session_is_imported_with_its_scores(results: Path, tmp_path: Path) -> None:
    notices: list[str] = []
    made = import_run(results, settings(tmp_path), lengths=lengths_of(results), notice=notices.append)
    assert made.ended == made.tests
    assert (await goes_on(made.folder)).exit_code == 0
    (record,) = records_of(made.folder).values()
    stats = json.loads((results / "runstats.json").read_text())
    scores = [json.loads(path.read_text())["score"] for path in results.glob("*/*_0.json")]
    assert sorted(each["score"] for each in record["tests"]) == sorted(scores)
    assert record["agent_cost"] == pytest.approx(stats["agent_costs_usd"])
    assert record["judge_cost"] == pytest.approx(stats["managing_costs_usd"])
    assert record["total_tokens"] >= stats["total_tokens"]


@published
@pytest.mark.parametrize("part", [0.03, 0.2, 0.47, 0.71, 0.95])
async def test_a_session_that_was_cut_off_goes_on_to_its_end(part: float, tmp_path: Path) -> None:
    name = "Benchmark 3 - 1k/results/LLMChatSession - gpt-4o - 128000"
    results = DATA / "tests" / name
    log = read_master_log(results / "master_log.jsonl")
    count = max(3, int(len(log) * part) + Random(part).randint(0, 3))
    lengths = lengths_of(results)
    cut = cut_off(results, tmp_path / "cut", count)
    made = import_run(cut, settings(tmp_path), lengths=lengths, notice=lambda text: None)
    assert (made.ended, made.tests) == (len(ended_tests(log[:count])), 30)
    assert (await goes_on(made.folder)).exit_code == 0
    (record,) = records_of(made.folder).values()
    assert len(record["tests"]) == 30
    ours = read_master_log(made.folder / "results/ForgetfulAgent/master_log.jsonl")
    assert [format_event(event) for event in ours[:count]] == [format_event(event) for event in log[:count]]
    assert len(ended_tests(ours)) == 30
    assert one_question_each(ours) == one_question_each(log)
    files = sorted((made.folder / "results/ForgetfulAgent").glob("*/*_0.json"))
    assert len(files) == 30
    stats = json.loads((cut / "runstats.json").read_text())
    assert record["agent_cost"] == pytest.approx(stats["agent_costs_usd"])
    assert (cut / "master_log.jsonl").is_file()  # the original's own files are kept
    assert (await goes_on(made.folder)).exit_code == 0
    assert records_of(made.folder) == {"ForgetfulAgent": record}


def one_question_each(log: list[Event]) -> dict[str, int]:
    """How many questions were put for each test that has a script."""
    found: dict[str, int] = {}
    for event in log:
        if event.type is EventType.SEND_MESSAGE and event.is_question and not event.test_id.startswith("Restaurant"):
            found[event.test_id] = found.get(event.test_id, 0) + 1
    return found


async def test_an_own_session_is_imported_too(tmp_path: Path) -> None:
    """Of our own wording, so that no data of others is needed."""
    write_configuration(tmp_path, ("colours", "name_list"), scoring="published")
    whole = opened(tmp_path, "forgetful")
    await performed(whole)
    results = whole.folder / "results/ForgetfulAgent"
    elsewhere = {"agent_name": ["forgetful"], "data_dir": str(tmp_path / "other"), "tokenizer": "estimate"}
    made = import_run(results, elsewhere, lengths=None, notice=lambda text: None)
    assert (made.ended, made.tests) == (2, 2)
    with pytest.raises(UserError, match="a run here already"):
        import_run(results, elsewhere, lengths=None, notice=lambda text: None)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda results: (results / "runstats.json").unlink(), "nobody knows what was spent"),
        (lambda results: (results / "master_log.jsonl").unlink(), "master_log.jsonl"),
        (lambda results: shutil.rmtree(results / "Colours"), "there is no result of it"),
        (lambda results: spoil(results), "line 5: can't be resumed"),
    ],
)
async def test_what_can_not_be_followed_is_refused(tmp_path: Path, change: Any, says: str) -> None:
    write_configuration(tmp_path, ("colours", "name_list"))
    whole = opened(tmp_path, "forgetful")
    await performed(whole)
    results = whole.folder / "results/ForgetfulAgent"
    change(results)
    elsewhere = {"agent_name": ["forgetful"], "data_dir": str(tmp_path / "other"), "tokenizer": "estimate"}
    with pytest.raises(UserError, match=says) as caught:
        import_run(results, elsewhere, lengths=None, notice=lambda text: None)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "other/tests/small/run.db").exists()


def spoil(results: Path) -> None:
    """Another text in the first test's first message, which has not ended then."""
    lines = (results / "master_log.jsonl").read_text().splitlines()
    event = json.loads(lines[4])
    event["data"]["message"] = "something else"
    (results / "master_log.jsonl").write_text("\n".join([*lines[:4], json.dumps(event)]) + "\n")
