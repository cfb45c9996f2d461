"""What needs a judge, without one; and results judged afterwards, with SIGKILL in between and a real server that judges."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.check import _first_difference
from manyhands.testing.scripted_server import RecordedRequest, ScriptedServer
from manyhands.workloads.memory.conversation.definitions import Ask, Definition
from manyhands.workloads.memory.datasets.benchmark import format_definition
from manyhands.workloads.memory.datasets.registry import create, rule_judge
from manyhands.workloads.memory.published.rejudging import reopen_scores, totals
from manyhands.workloads.memory.published.rescoring import DIFFERS, EQUAL, Rescored, agents_of, rescore
from manyhands.workloads.memory.results.figures import figures_of
from manyhands.workloads.memory.results.files import judged_scores
from manyhands.workloads.memory.results.records import current_record
from tests.support.commands import Command, SimulatedProcess, run
from tests.support.memory_benchmarks import START, opened, performed, records_of, write_configuration

JUDGED = ("jokes", "trigger_response", "locations", "delayed_recall", "restaurant")
AGENT = "ForgetfulAgent"


def words(folder: Path, *more: str) -> list[str]:
    options = [f"--data_dir={folder / 'data'}", "--yes", "--quiet", f"--start_time={START}", "--tokenizer=estimate"]
    return ["memory", "run", f"-c={folder / 'small.yml'}", "-a=forgetful", *options, *more]


def results_of(folder: Path, dataset: str) -> list[dict[str, Any]]:
    place = folder / f"data/tests/small/results/{AGENT}/{dataset}"
    return [json.loads(path.read_bytes()) for path in sorted(place.glob("*.json"))]


def spoiled(folder: Path, dataset: str, number: int, answer: str) -> None:
    """Change what the agent said, in a result."""
    path = folder / f"data/tests/small/results/{AGENT}/{dataset}/{number}_0.json"
    found = json.loads(path.read_bytes())
    path.write_text(json.dumps({**found, "actual_responses": [answer] * len(found["actual_responses"])}))


# --- Without a judge


@pytest.mark.parametrize("agent", ["perfect", "forgetful"])
async def test_a_dataset_that_needs_a_judge_has_no_score_without_one(tmp_path: Path, agent: str) -> None:
    write_configuration(tmp_path, ("colours", *JUDGED), examples=2)
    run_ = opened(tmp_path, agent)
    assert (await performed(run_)).exit_code == 0
    (record,) = records_of(run_.folder).values()
    assert set(record["datasets"]) == {"Colours"}
    assert record["max_score"] == 1
    assert set(record["unscored_datasets"]) == {
        "Jokes",
        "Trigger Response",
        "Locations",
        "Delayed Recall",
        "Restaurant",
    }
    assert record["unscored"] == 10
    (agent_folder,) = (run_.folder / "results").iterdir()
    for path in agent_folder.glob("*/*.json"):
        found = json.loads(path.read_bytes())
        is_scored = path.parent.name == "Colours"
        assert (found["score"] is not None, found["status"]) == (is_scored, "scored" if is_scored else "unscored")
        assert is_scored or "a model has to judge" in found["reasoning"][0]


def test_the_command_says_so(tmp_path: Path) -> None:
    write_configuration(tmp_path, ("colours", "jokes"), examples=3)
    ended = run(*words(tmp_path))
    assert ended.code == 0
    assert "0.00 of 1  3 of 6" in ended.out
    assert "No score, as a model has to judge: Jokes" in ended.out
    assert "manyhands memory rescore" in ended.out
    reported = run("memory", "report", "small", f"--data_dir={tmp_path / 'data'}", "--no_plots")
    assert "1 dataset without a score, left out of all figures: Jokes" in reported.out
    (page,) = (tmp_path / "data/reports").glob("*.html")
    assert "Jokes (not scored: a model has to judge" in page.read_text()
    found = json.loads(run("memory", "report", "small", f"--data_dir={tmp_path / 'data'}", "--json").out)["agents"][0]
    assert (list(found["datasets"]), list(found["unscored_datasets"])) == (["Colours"], ["Jokes"])
    assert found["tests"] == {"in": 6, "scored": 3, "unscored": 3}


def test_results_of_earlier_versions_are_read_so_too(tmp_path: Path) -> None:
    """These had a score wherever a rule could decide."""
    write_configuration(tmp_path, ("colours", "jokes", "trigger_response"), examples=3)
    assert run(*words(tmp_path)).code == 0
    place = tmp_path / f"data/tests/small/results/{AGENT}"
    for number, dataset in ((0, "Jokes"), (0, "Trigger Response"), (1, "Trigger Response"), (2, "Trigger Response")):
        path = place / dataset / f"{number}_0.json"
        path.write_text(json.dumps({**json.loads(path.read_bytes()), "score": 1.0, "status": "scored"}))
    figures = figures_of(place)
    assert set(figures.datasets) == {"Colours"}
    assert (figures.published.score, figures.published.most, figures.accuracy.value) == (0.0, 1, 0.0)
    assert [test.own for test in figures.tests if test.dataset == "Jokes"] == [1.0, None, None]


def test_a_record_of_an_earlier_version() -> None:
    datasets = {each.name: each for each in (create("jokes"), create("colours"))}
    tests = [("Jokes - 0", 1.0), ("Jokes - 1", None), ("Jokes - 2", None), ("Colours - 0", 0.0)]
    old = {"score": 1.0, "max_score": 2, "tests": [{"test": name, "score": score} for name, score in tests]}
    found = current_record(old, datasets, has_judge=False)
    assert (found["score"], found["max_score"], found["unscored"]) == (0.0, 1, 3)
    assert list(found["unscored_datasets"]) == ["Jokes"]


# --- Judged afterwards


def verdict_of(request: RecordedRequest) -> dict[str, Any]:
    """A judge that goes by whether the answer holds the word "owl", and asks that each answer cost a cent."""
    said = json.loads(request.body["messages"][-1]["content"])
    reply: Any = {"present": False, "sentence": None}
    if isinstance(said, list):
        reply = [
            {
                "question_nr": str(each["question_nr"]),
                "checklist": ["Yes." if "owl" in each["answer_given"] else "no", "no", "no"],
            }
            for each in said
        ]
        assert all(each["question"] for each in said)
    elif "guest" in said:
        reply = {"follows_role": False}
    message = {"role": "assistant", "content": json.dumps(reply)}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "cost": 0.01}
    return {"id": "1", "model": "judge", "choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}


async def test_a_finished_run_is_judged_without_the_agent_and_paid_once(tmp_path: Path) -> None:
    write_configuration(tmp_path, ("colours", "jokes", "trigger_response", "restaurant"), examples=3)
    assert (await asyncio.to_thread(run, *words(tmp_path))).code == 0
    for number, answer in ((0, "The one with the owl."), (1, "Something else"), (2, "an owl?")):
        spoiled(tmp_path, "Jokes", number, answer)
    before = {path: path.read_bytes() for path in (tmp_path / "data/tests/small/results").rglob("*") if path.is_file()}
    async with ScriptedServer(verdict_of) as server:
        command = [
            *("memory", "rescore", "small", f"--data_dir={tmp_path / 'data'}"),
            *("--judge_model=owls", f"--judge_base_url={server.base_url}"),
        ]
        ended = await asyncio.to_thread(run, *command)
        assert ended.code == 0, ended.err
        asked = len(server.requests)
        assert asked == 3 + 9 + 3
        again = await asyncio.to_thread(run, *command)
        assert (again.code, len(server.requests)) == (0, asked)  # paid once
        other = await asyncio.to_thread(run, *[word.replace("=owls", "=owls-2") for word in command])
        assert (other.code, len(server.requests)) == (0, 2 * asked)  # another judge has scores of its own
    assert "0.67 of 4  12 of 12" in ended.out
    assert "$0.1500" in ended.out
    assert before == {path: path.read_bytes() for path in before}  # the old ones are as they were
    scores = json.loads((tmp_path / "data/tests/small/scores/owls/scores.json").read_bytes())
    assert scores["cost"] == pytest.approx(0.15)
    assert scores["agents"][AGENT]["datasets"] == {
        "Colours": 0.0,
        "Jokes": pytest.approx(2 / 3),
        "Restaurant": 0.0,
        "Trigger Response": 0.0,
    }
    summary = json.loads((tmp_path / "data/tests/small/scores/owls/summary.json").read_bytes())
    assert (summary["ledger"]["items"], summary["ledger"]["completed"], summary["usage"]["calls"]) == (12, 12, 15)
    assert summary["usage"]["cost"] == pytest.approx(0.15)
    place = tmp_path / f"data/tests/small/results/{AGENT}"
    assert figures_of(place, judge="owls").datasets["Jokes"].value == pytest.approx(2 / 3)
    assert "Jokes" not in figures_of(place).datasets
    reported = await asyncio.to_thread(
        run, "memory", "report", "small", "--judge=owls", f"--data_dir={tmp_path / 'data'}"
    )
    assert (reported.code, "0.67 of 4" in reported.out) == (0, True)
    with pytest.raises(UserError, match=r"no scores by the judge 'nobody' \(there are some by owls, owls-2; "):
        judged_scores(tmp_path / "data/tests/small", "nobody")


def test_a_dataset_that_is_half_judged_has_no_score_yet(tmp_path: Path) -> None:
    write_configuration(tmp_path, ("colours", "jokes"), examples=2)
    assert run(*words(tmp_path)).code == 0
    run_folder = tmp_path / "data/tests/small"
    assert run("memory", "rescore", str(run_folder), "--judge_model=simulated").code == 0
    scores = json.loads((run_folder / "scores/simulated/scores.json").read_bytes())
    assert scores["agents"][AGENT]["max_score"] == 2
    place = run_folder / "results" / AGENT / "Jokes"
    (place / "7_0.json").write_bytes((place / "0_0.json").read_bytes())
    (left,) = reopen_scores(run_folder / "scores/simulated", environ={}).workload.left(scores["results"])
    of = totals([*scores["results"], left])[AGENT]
    assert (of["max_score"], of["tests"], of["scored"]) == (1, 5, 2)
    assert of["unscored_datasets"] == {"Jokes": "not all of its tests have been judged yet"}


def test_a_check_says_where_a_score_is_by_other_rules() -> None:
    now = Outcome(ItemState.COMPLETED, {"rules": 2, "score": 1.0})
    for recorded, of in (({"rules": 1}, "version 1"), ({}, "an earlier version")):
        assert _first_difference({**recorded, "score": 1.0}, now) is None
        problem = _first_difference({**recorded, "score": 0.5}, now)
        assert problem is not None
        assert f"'score' differs: it was scored by the rules of {of}, and is now by those of version 2" in problem
    assert _first_difference({"rules": 2, "score": 0.5}, now) == "all steps agree, but the outcome's 'score' differs"


def test_judging_is_killed_and_goes_on(tmp_path: Path) -> None:
    write_configuration(tmp_path, ("colours", "jokes", "trigger_response", "delayed_recall"), examples=4)
    assert run(*words(tmp_path)).code == 0
    for number in range(4):
        for dataset in ("Jokes", "Trigger Response", "Delayed Recall"):
            spoiled(tmp_path, dataset, number, f"{dataset} {number}, I believe")
    with SimulatedProcess(tmp_path, latency=0.02) as server:
        command = [
            "memory",
            "rescore",
            str(tmp_path / "data/tests/small"),
            "--judge_model=simulated",
            "--concurrency=1",
        ]
        command += [f"--judge_base_url={server.base_url}", "--quiet"]
        assert run(*command, f"--scores={tmp_path / 'calm'}").code == 0
        once = Counter(each.digest for each in server.asked())
        first, kills = server.count(), 0
        struck = [*command, f"--scores={tmp_path / 'struck'}"]
        for wanted in (3, 5):
            before = server.count()
            with Command(*struck) as killed:
                assert killed.wait_until(lambda before=before, wanted=wanted: server.count() >= before + wanted)  # type: ignore[misc]
                assert killed.kill().code != 0
            kills += 1
        ended = run(*struck)
        assert ended.code == 0, ended.err
        again = Counter(each.digest for each in server.asked(first))
        assert run("resume", str(tmp_path / "struck")).code == 0
        assert server.count() == first + again.total()
    assert again.keys() == once.keys()
    assert 0 <= again.total() - once.total() <= kills  # at each kill the one in flight at most
    calm, found = (json.loads((tmp_path / name / "scores.json").read_bytes()) for name in ("calm", "struck"))
    assert found["results"] == calm["results"]
    assert len(found["results"]) == 16


async def test_an_evening_is_judged_from_its_log(tmp_path: Path) -> None:
    """Every reply that it needs is there if the same things follow; where other things would, only a session can tell."""
    write_configuration(tmp_path, ("restaurant",), examples=2)
    run_ = opened(tmp_path, "perfect", judge_model="simulated")
    assert (await performed(run_)).exit_code == 0
    for answer, score, verdict in ((rule_judge, 1.0, EQUAL), (lambda ask: "{}", 0.0, DIFFERS)):
        for agent in agents_of(run_.folder, "mended", judged=True):
            for name, path in agent.results():
                found = driven(agent.scored(name, path), answer)
                assert (found.score, found.verdict) == (score, verdict)


def driven(scoring: Generator[Ask, str, Rescored], answer: Callable[[Ask], str]) -> Rescored:
    try:
        ask = next(scoring)
        while True:
            ask = scoring.send(answer(ask))
    except StopIteration as end:
        found: Rescored = end.value
    return found


def test_what_can_not_go_together_is_refused(tmp_path: Path) -> None:
    write_configuration(tmp_path, ("colours",))
    assert run(*words(tmp_path)).code == 0
    place = str(tmp_path / "data/tests/small")
    for more, line in (
        (["--judge_model=simulated", "--rules"], "--judge_model can't be given with --rules"),
        (["--max_cost=1"], "--max_cost: only with --judge_model"),
        (["--judge_model=some-model"], "no key for openrouter.ai"),
        (["--judge_model=simulated", "--max_cost=none at all"], "max_cost"),
    ):
        ended = run("memory", "rescore", place, *more)
        assert (ended.code, len(ended.errors)) == (2, 1), ended.err
        assert line in ended.err


# --- Why there is no score


def write(folder: Path, dataset: str, result: dict[str, Any], config: dict[str, Any] | None = None) -> Path:
    test = Definition(dataset, "0", ("Red it is.", "Which?"), (False, True), expected_responses=["Red"])
    for path, text in (
        (folder / f"definitions/{dataset}/0.def.json", format_definition(test)),
        (folder / f"results/some agent/{dataset}/0_0.json", json.dumps(result)),
        *(((folder / "definitions/config.yml", json.dumps(config)),) if config else ()),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_rule_that_fails_says_why(tmp_path: Path) -> None:
    result = {"actual_responses": ["red"], "score": 1, "max_score": 1, "full_log": []}
    bad = {"datasets": {"datasets": [{"name": "colours", "args": {"max_message_size": "lots"}}]}}
    (found,) = rescore(write(tmp_path / "a", "Colours", result, bad))
    assert found.verdict == "rule failed"
    assert found.why.startswith("dataset 'colours': max_message_size must be")
    (found,) = rescore(write(tmp_path / "b", "Trigger Response", {**result, "actual_responses": 7}))
    assert (found.verdict, found.why) == ("rule failed", "TypeError: 'int' object is not iterable")
    (found,) = rescore(write(tmp_path / "c", "Nobody's", result))
    assert (found.verdict, found.why) == ("no rule", 'unknown name of a dataset "Nobody\'s"')
    ended = run("memory", "rescore", str(tmp_path / "a"), "--strict")
    assert ended.code == 1
    assert "rule failed: dataset 'colours': max_message_size must be" in ended.out
