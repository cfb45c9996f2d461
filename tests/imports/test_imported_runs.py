"""Imported conversations that are graded: what graders see, that nothing is paid for twice, and what exports say of it."""

from __future__ import annotations

import json
import signal
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedResponse, chat_response
from tests.support.batches import BatchFolder, Ran, ServerThread, read_lines, run_command
from tests.support.commands import Command

CALL = {"id": "c1", "type": "function", "function": {"name": "count", "arguments": '{"what": "eggs"}'}}
ROW: dict[str, Any] = {
    "id": "eggs",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How many?"},
        {"role": "assistant", "content": "I count.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "assistant", "content": "Three.", "reasoning_content": "Hm."},
    ],
    "criteria": "Names the number.",
    "expected_output": "3",
    "metadata": {"level": 1},
}
VERDICT = {"checks": {"rubric-1": {"satisfied": True, "reasoning": "It is."}}}


def write(folder: Path, *rows: Any, name: str = "m.jsonl") -> None:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def numbered(count: int) -> list[dict[str, Any]]:
    answer = {"role": "assistant", "content": "Three."}
    return [{"id": f"r{n}", "messages": [{"role": "user", "content": f"Task {n}?"}, answer]} for n in range(count)]


def checks(folder: Path, text: str) -> None:
    (folder / "checks.yaml").write_text(textwrap.dedent(text))


def program(folder: Path, text: str) -> None:
    """A grader's program ``payload`` → whatever it prints; ``checks.yaml`` names it alone."""
    (folder / "judge.py").write_text(
        f"import json, os, pathlib, sys\npayload = json.load(sys.stdin)\n{textwrap.dedent(text)}"
    )
    checks(folder, f"- {{name: own, type: code_judge, script: [{sys.executable}, judge.py]}}\n")


def graded(folder: Path, *words: str, code: int = 0) -> Ran:
    usual = ("--from=messages", "m.jsonl", "--grade=checks.yaml", "--quiet", "--executor=local")
    ran = run_command(folder, "import", *usual, *words)
    assert ran.code == code, ran
    return ran


def results(folder: Path, run: str = "m") -> list[dict[str, Any]]:
    return read_lines(folder / "data" / run / "results.jsonl")


def test_graders_see_the_conversation_in_the_shape_of_evals(tmp_path: Path) -> None:
    write(tmp_path, ROW)
    program(tmp_path, "pathlib.Path('seen.json').write_text(json.dumps(payload)); print('{\"score\": 0.5}')")
    graded(tmp_path)
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert (seen["question"], seen["answer"], seen["criteria"]) == ("How many?", "Three.", "Names the number.")
    assert (seen["reference_answer"], seen["metadata"]) == ("3", {"level": 1})
    assert seen["input"] == ROW["messages"][:2]
    first, last = seen["output"]
    assert last == {"role": "assistant", "content": "Three."}
    assert first["tool_calls"] == [{"tool": "count", "id": "c1", "input": {"what": "eggs"}, "output": "3"}]
    assert seen["trace"]["tool_calls_by_name"] == {"count": 1}
    assert seen["trace"]["llm_call_count"] == 2
    assert "duration_ms" not in seen["trace"]
    assert "cost_usd" not in seen["trace"]
    (line,) = results(tmp_path)
    assert (line["test_id"], line["score"], line["verdict"], line["scores"][0]["name"]) == ("eggs", 0.5, "fail", "own")


def test_what_conversations_used_is_known_to_graders(tmp_path: Path) -> None:
    checks(
        tmp_path,
        "- {name: cheap, type: execution_metrics, max_cost_usd: 0.3}\n- {name: quick, type: execution_metrics, max_duration_ms: 1}\n",
    )
    step = {
        "source": "agent",
        "message": "Three.",
        "metrics": {"prompt_tokens": 9, "completion_tokens": 1, "cost_usd": 0.25},
    }
    times = ("2026-11-27T07:00:00Z", "2026-11-27T07:00:02Z")
    steps = [{"source": "user", "message": "?", "timestamp": times[0]}, {**step, "timestamp": times[1]}]
    write(tmp_path, {"schema_version": "ATIF-v1.7", "agent": {"name": "x", "version": "1"}, "steps": steps})
    usual = ("--grade=checks.yaml", "--quiet", "--executor=local")
    assert run_command(tmp_path, "import", "--from=atif", "m.jsonl", *usual).code == 0
    (line,) = results(tmp_path)
    assert {each["name"]: each["score"] for each in line["scores"]} == {"cheap": 1.0, "quick": 0.0}


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_the_same_file_of_graders_scores_a_batch_and_its_import_alike(executor: str, tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, ["one", "two", "three"])
    checks(tmp_path, "judge: {model: simulated}\nassert: [{type: regex, value: t}, The answer fits.]\n")
    assert folder.batch("--model=simulated", "--keep_unreasoned", "--grade=checks.yaml").code == 0
    assert run_command(tmp_path, "export", "r", "--to=jsonl", "--output=m.jsonl").code == 0
    words = ("--from=jsonl", "m.jsonl", "--grade=checks.yaml", "--quiet", f"--executor={executor}", "--num_workers=2")
    assert run_command(tmp_path, "import", *words).code == 0
    before = {line["metadata"]["item"]: line["metadata"] for line in folder.lines()}
    after = {line["test_id"]: line for line in results(tmp_path)}
    assert before.keys() == after.keys()
    for key, line in after.items():
        assert list(json.loads(before[key]["scores"])) == [each["name"] for each in line["scores"]]
        assert line["scores"][0]["score"] == next(iter(json.loads(before[key]["scores"]).values()))["score"]


def test_a_judge_is_asked_once_for_each_conversation_however_often_the_run_is_resumed(tmp_path: Path) -> None:
    write(tmp_path, *numbered(5))
    checks(tmp_path, "judge: {model: judge/model}\nassert: [The answer is short.]\n")
    with ServerThread(lambda request: chat_response(json.dumps(VERDICT))) as server:
        out = graded(tmp_path, f"--base_url={server.base_url}").out
        assert len(server.bodies) == 5
        assert run_command(tmp_path, "resume", "m", "--quiet").code == 0
        assert len(server.bodies) == 5
    assert "Scores: mean 1.000 of 5 (pass 5, borderline 0, fail 0)" in out
    assert "Used by the whole run: 5 calls" in out
    assert {line["score"] for line in results(tmp_path)} == {1.0}
    assert "5 agree with the journal, 0 do not" in run_command(tmp_path, "check", "m").out
    assert "rubric-1" in run_command(tmp_path, "show", "m", "r1").out
    exported = run_command(tmp_path, "export", "m", "--to=jsonl", "--output=-", "--min_score=1").out.splitlines()
    row = json.loads(exported[0])
    assert (row["score"], row["verdict"], row["usage"]["calls"], len(row["others"])) == (1.0, "pass", 1, 1)


def test_a_killed_run_goes_on_with_its_grading_and_repeats_only_what_was_in_flight(tmp_path: Path) -> None:
    write(tmp_path, *numbered(24))
    checks(tmp_path, "judge: {model: judge/model}\nassert: [The answer is short.]\n")
    at_once, slow = 4, [True]

    def reply(request: RecordedRequest) -> Reply:
        return ScriptedResponse(body=chat_response(json.dumps(VERDICT)), delay=0.15 if slow[0] else 0.0)

    with ServerThread(reply) as server:
        words = ("--from=messages", "m.jsonl", "--grade=checks.yaml", f"--base_url={server.base_url}", "--quiet")
        more = ("--num_workers=2", f"--concurrency={at_once // 2}")
        with Command("import", *words, *more, folder=tmp_path) as running:
            assert running.wait_until(lambda: len(server.bodies) >= 10)
            running.interrupt(signal.SIGKILL)
            running.wait()
        asked = len(server.bodies)
        assert asked < 24
        slow[0] = False
        time.sleep(0.3)
        ran = run_command(tmp_path, "resume", "m", "--quiet", "--executor=local")
        assert ran.code == 0, ran
        questions = Counter(json.dumps(body["messages"]) for body in server.bodies)
    assert len(questions) == 24
    assert sum(count - 1 for count in questions.values()) <= at_once
    assert len(results(tmp_path)) == 24
    assert {line["score"] for line in results(tmp_path)} == {1.0}


def test_programs_that_graded_are_not_run_again_after_a_kill(tmp_path: Path) -> None:
    write(tmp_path, *numbered(12))
    program(
        tmp_path,
        """
        import time
        with open("runs", "a") as runs:
            runs.write(payload["question"] + "\\n")
        if payload["question"] == "Task 7?" and not pathlib.Path("go").exists():
            time.sleep(60)
        print('{"score": 1}')
        """,
    )
    words = ("--from=messages", "m.jsonl", "--grade=checks.yaml", "--num_workers=1", "--concurrency=1", "--quiet")
    with Command("import", *words, folder=tmp_path) as running:
        assert running.wait_until(
            lambda: "Task 7?" in (tmp_path / "runs").read_text() if (tmp_path / "runs").exists() else False
        )
        running.interrupt(signal.SIGKILL)
        running.wait()
    (tmp_path / "go").touch()
    assert run_command(tmp_path, "resume", "m", "--quiet").code == 0
    runs = Counter((tmp_path / "runs").read_text().splitlines())
    assert {task for task, count in runs.items() if count > 1} == {"Task 7?"}
    assert len(runs) == 12
    assert len(results(tmp_path)) == 12


def test_a_kill_while_files_are_read_leaves_what_is_made_again(tmp_path: Path) -> None:
    write(tmp_path, *numbered(8_000))
    with Command("import", "--from=messages", "m.jsonl", "--quiet", "--run_name=r", folder=tmp_path) as running:
        assert running.wait_until((tmp_path / "data/r/run.db-wal").exists)
        running.interrupt(signal.SIGKILL)
        running.wait()
    ran = run_command(tmp_path, "resume", "r", "--quiet")
    if ran.code != 0:  # killed before it was written down what it is
        assert "make it again" in ran.err
        assert run_command(tmp_path, "import", "--from=messages", "m.jsonl", "--quiet", "--run_name=r").code == 0
    assert len(results(tmp_path, "r")) == 8_000


def test_a_grader_that_broke_is_tried_again(tmp_path: Path) -> None:
    write(tmp_path, *numbered(2))
    program(tmp_path, "sys.exit('no luck') if not pathlib.Path('fixed').exists() else print('{\"score\": 1}')")
    ran = graded(tmp_path, code=1)
    assert "2 items failed and can be retried" in ran.out
    assert {line["score"] for line in results(tmp_path)} == {None}
    assert "no luck" in results(tmp_path)[0]["error"]
    (tmp_path / "fixed").touch()
    assert run_command(tmp_path, "resume", "m", "--quiet").code == 0
    assert {line["score"] for line in results(tmp_path)} == {1.0}


def test_a_run_keeps_its_graders(tmp_path: Path) -> None:
    write(tmp_path, ROW)
    checks(tmp_path, "- {type: contains, value: Three}\n")
    assert run_command(tmp_path, "import", "--from=messages", "m.jsonl").code == 0
    ran = run_command(tmp_path, "resume", "m", "--grade=checks.yaml", "--override=grade")
    assert (ran.code, "import the files again with --grade" in ran.err) == (2, True)
    graded(tmp_path, "--run_name=g")
    checks(tmp_path, "- {type: contains, value: Four}\n")
    ran = run_command(tmp_path, "resume", "g", "--grade=checks.yaml")
    assert (ran.code, "grade was" in ran.err) == (2, True)


def test_a_missing_key_is_said_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    write(tmp_path, ROW)
    checks(tmp_path, "- The answer is short.\n")
    ran = graded(tmp_path, code=2)
    assert "OPENROUTER_API_KEY" in ran.err
    assert not (tmp_path / "data").exists()
    checks(tmp_path, "- {type: contains, value: Three}\n")
    graded(tmp_path)


def test_a_budget_stops_the_judge_and_the_run_can_go_on(tmp_path: Path) -> None:
    write(tmp_path, *numbered(6))
    checks(tmp_path, "judge: {model: judge/model, max_tokens: 100}\nassert: [The answer is short.]\n")
    usage = {"prompt_tokens": 500, "completion_tokens": 100, "total_tokens": 600}
    with ServerThread(lambda request: {**chat_response(json.dumps(VERDICT)), "usage": usage}) as server:
        words = (f"--base_url={server.base_url}", "--max_total_tokens=2000", "--concurrency=1", "--num_workers=1")
        graded(tmp_path, *words, code=1)
        assert 0 < len(server.bodies) < 6
        assert run_command(tmp_path, "resume", "m", "--quiet", "--max_total_tokens=100000").code == 0
        assert len(server.bodies) == 6


def test_graded_imports_are_compared_by_their_items(tmp_path: Path) -> None:
    checks(tmp_path, "- {type: contains, value: Three}\n")
    for name, changed in (("one", ()), ("two", (1, 3))):
        rows = numbered(5)
        for number in changed:
            rows[number]["messages"][1] = {"role": "assistant", "content": "Four."}
        write(tmp_path, *rows)
        graded(tmp_path, f"--run_name={name}")
    found = json.loads(run_command(tmp_path, "eval", "compare", "one", "two", "--json").out)
    assert [(each["test_id"], each["delta"]) for each in found["matched"] if each["delta"]] == [
        ("r1", -1.0),
        ("r3", -1.0),
    ]
    assert found["summary"]["mean_delta"] == pytest.approx(-0.4)


@pytest.mark.parametrize("name", ["sharegpt", "verifiers", "hf-traces", "atif", "csv", "parquet", "jsonl"])
def test_what_others_leave_out_breaks_no_export(tmp_path: Path, name: str) -> None:
    parts = [{"type": "image_url"}, {"type": "image_url", "image_url": {"url": 5}}, {"type": "text", "text": "x"}]
    answer = {"role": "assistant", "content": "y"}
    row = {"messages": [{"role": "user", "content": parts}, answer], "tools": [{"name": "nameless"}]}
    write(tmp_path, row)
    assert run_command(tmp_path, "import", "--from=messages", "m.jsonl", "--quiet", "--run_name=r").code == 0
    more = {"verifiers": ["--verifiers_version=v0"], "hf-traces": ["--hf_layout=pi"]}
    for words in ([], more.get(name, [])):
        ran = run_command(tmp_path, "export", "r", f"--to={name}", "--output=o", "--overwrite", *words)
        assert ran.code == 0, ran


def test_no_time_is_before_the_world(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    about = {"item": "k", "timestamp": "2026-01-01T00:00:00", "duration_seconds": 1e308}
    write(tmp_path, {"conversations": turns, "metadata": about})
    assert run_command(tmp_path, "import", "--from=sharegpt", "m.jsonl", "--quiet", "--run_name=r").code == 0
    assert run_command(tmp_path, "export", "r", "--to=jsonl", "--output=o.jsonl").code == 0
    assert read_lines(tmp_path / "o.jsonl")[0]["started_at"] == 0
