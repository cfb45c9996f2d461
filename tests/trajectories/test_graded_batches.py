"""Batches whose trajectories are scored: what graders see, what is kept, what a resume does."""

from __future__ import annotations

import itertools
import json
import signal
import sys
import textwrap
from pathlib import Path

import pyarrow.json
import pytest

from manyhands.testing.scripted_server import Handler, RecordedRequest, Reply, ScriptedResponse, chat_response
from tests.support.batches import REASONED, BatchFolder, ServerThread, prompt_of, run_command
from tests.support.commands import Command

ROW = {
    "prompt": "What is in the file?",
    "criteria": "Names the content.",
    "expected_output": "It says hello.",
    "metadata": {"levelOf": "easy"},
    "other": 1,
}


@pytest.fixture
def folder(tmp_path: Path) -> BatchFolder:
    return BatchFolder(tmp_path)


def write(folder: BatchFolder, name: str, text: str) -> None:
    (folder.path / name).write_text(textwrap.dedent(text))


def checks(folder: BatchFolder, text: str) -> None:
    write(folder, "checks.yaml", text)


def program(folder: BatchFolder, text: str, name: str = "judge.py") -> None:
    """A grader's program ``payload`` → whatever it prints; ``checks.yaml`` names it alone."""
    write(folder, name, f"import json, pathlib, sys\npayload = json.load(sys.stdin)\n{textwrap.dedent(text)}")
    checks(folder, f"- {{name: own, type: code_judge, script: [{sys.executable}, {name}]}}\n")


def graded(folder: BatchFolder, server: ServerThread, *words: str, code: int = 0) -> str:
    ran = folder.batch(f"--base_url={server.base_url}", "--grade=checks.yaml", *words)
    assert ran.code == code, ran
    return ran.out + ran.err


def numbered(*texts: str) -> Handler:
    """The k-th request of each prompt is answered with the k-th text; further ones with the last."""
    asks: dict[str, int] = {}

    def reply(request: RecordedRequest) -> Reply:
        number = asks[prompt_of(request)] = asks.get(prompt_of(request), 0) + 1
        return chat_response(texts[min(number, len(texts)) - 1], reasoning="Hm.")

    return reply


def with_tool(request: RecordedRequest) -> Reply:
    if any(message["role"] == "tool" for message in request.body["messages"]):
        return chat_response("It says hello.", reasoning="Read.")
    call = {"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "echo hello"}'}}
    return chat_response("I look.", reasoning="Let me see.", tool_calls=[call])


def test_graders_see_the_conversation_in_the_shape_of_evals(folder: BatchFolder) -> None:
    folder.write_rows([ROW])
    program(folder, "pathlib.Path('seen.json').write_text(json.dumps(payload)); print('{\"score\": 0.5}')")
    with ServerThread(with_tool) as server:
        graded(folder, server)
    seen = json.loads((folder.path / "seen.json").read_text())
    assert (seen["question"], seen["answer"]) == (ROW["prompt"], "It says hello.")
    assert (seen["criteria"], seen["reference_answer"]) == ("Names the content.", "It says hello.")
    assert seen["expected_output"] == [{"role": "assistant", "content": "It says hello."}]
    assert seen["input"] == [{"role": "user", "content": ROW["prompt"]}]
    assert seen["metadata"] == {"levelOf": "easy"}
    first, last = seen["output"]
    assert last == {"role": "assistant", "content": "It says hello."}
    (call,) = first["tool_calls"]
    assert (call["tool"], call["input"]) == ("terminal", {"command": "echo hello"})
    assert "hello" in call["output"]
    assert seen["trace"]["tool_calls_by_name"] == {"terminal": 1}
    assert seen["trace"]["llm_call_count"] == 2
    assert seen["trace"]["duration_ms"] > 0
    metadata = folder.lines()[0]["metadata"]
    assert (metadata["score"], metadata["verdict"]) == (0.5, "fail")
    assert json.loads(metadata["source"])["other"] == 1


def test_several_graders_make_one_score_and_all_lines_have_one_schema(folder: BatchFolder) -> None:
    checks(
        folder,
        """
        threshold: 0.6
        assert:
          - {name: long, type: regex, value: "t.o", weight: 2}
          - {name: calm, type: contains, value: "!", negate: true}
        """,
    )
    with ServerThread(lambda request: chat_response(f"{prompt_of(request)}!", reasoning="So.")) as server:
        out = graded(folder, server, "--executor=processes")
    metadata = [line["metadata"] for line in folder.lines()]
    assert [(each["score"], each["verdict"]) for each in metadata] == [
        (0.0, "fail"),
        (pytest.approx(2 / 3), "pass"),
        (0.0, "fail"),
    ]
    found = [json.loads(each["scores"]) for each in metadata]
    assert list(found[0]) == ["long", "calm"]
    assert found[1]["long"]["verdict"] == "pass"
    assert "!" in found[1]["calm"]["misses"]
    table = pyarrow.json.read_json(folder.run() / "trajectories.jsonl")
    assert table.num_rows == 3
    scores = {"graded": 3, "mean": pytest.approx(2 / 9, abs=1e-6), "verdicts": {"pass": 1, "borderline": 0, "fail": 2}}
    assert folder.json("statistics.json")["scores"] == scores
    assert "Scores: mean 0.222 of 3" in out


def test_a_judge_is_asked_once_for_each_trajectory_however_often_the_run_is_resumed(folder: BatchFolder) -> None:
    checks(folder, "judge: {model: judge/model, temperature: 0.5}\nassert: [The answer is short.]\n")
    verdict = {"checks": {"rubric-1": {"satisfied": True, "reasoning": "It is."}}}

    def reply(request: RecordedRequest) -> Reply:
        return chat_response(json.dumps(verdict)) if request.body["model"] == "judge/model" else REASONED

    with ServerThread(reply) as server:
        graded(folder, server)
        judged = [body for body in server.bodies if body["model"] == "judge/model"]
        assert len(judged) == 3
        assert len(server.bodies) == 6
        assert "The answer is short." in json.dumps(judged[0])
        graded(folder, server, "--resume")
        assert len(server.bodies) == 6
    assert folder.json("statistics.json")["usage"]["calls"] == 6
    assert folder.lines()[0]["metadata"]["usage"]["calls"] == 1
    assert folder.lines()[0]["metadata"]["score"] == 1.0
    checked = run_command(folder.path, "check", "data/r")
    assert checked.code == 0, checked


def test_a_killed_run_goes_on_with_its_grading(folder: BatchFolder) -> None:
    folder.write_rows(["one"])
    program(
        folder,
        """
        runs = pathlib.Path("runs")
        runs.write_text((runs.read_text() if runs.exists() else "") + "x")
        if runs.read_text() == "x":
            import time; time.sleep(60)
        print('{"score": 1}')
        """,
    )
    with ServerThread(with_tool) as server:
        words = ("--dataset_file=d.jsonl", "--batch_size=2", "--run_name=r", "--distribution=terminal_only", "--quiet")
        more = (f"--base_url={server.base_url}", "--sandbox=local", "--grade=checks.yaml", "--num_workers=1")
        with Command("batch", *words, *more, folder=folder.path) as running:
            assert running.wait_until((folder.path / "runs").exists)
            running.interrupt(signal.SIGKILL)
            running.wait()
        assert len(server.bodies) == 2
        graded(folder, server, "--resume", "--num_workers=1")
        assert len(server.bodies) == 2
    (line,) = folder.lines()
    assert (line["metadata"]["score"], line["metadata"]["attempt"]) == (1.0, 1)
    assert (folder.path / "runs").read_text() == "xx"


def test_a_grader_that_broke_is_tried_again_without_paying_for_the_conversation(folder: BatchFolder) -> None:
    program(folder, "sys.exit('no luck') if not pathlib.Path('fixed').exists() else print('{\"score\": 1}')")
    with ServerThread() as server:
        graded(folder, server, code=1)
        failures = folder.lines("failures.jsonl")
        assert {(line["state"], line["cause"], line["performances"]) for line in failures} == {
            ("failed", "grader_error", 2)
        }
        assert "no luck" in failures[0]["message"]
        assert folder.lines() == []
        (folder.path / "fixed").touch()
        graded(folder, server, "--resume")
        assert len(server.bodies) == 3
    assert {line["metadata"]["attempt"] for line in folder.lines()} == {1}
    assert {line["metadata"]["score"] for line in folder.lines()} == {1.0}
    assert run_command(folder.path, "check", "data/r").code == 0


def test_a_lower_limit_takes_discarded_trajectories_in_again_at_no_cost(folder: BatchFolder) -> None:
    program(folder, "open('runs', 'a').write('x'); print('{\"score\": 0.5}')")
    with ServerThread() as server:
        graded(folder, server, "--min_score=0.6", code=1)
        assert folder.lines() == []
        (first, *_) = folder.lines("failures.jsonl")
        assert (first["cause"], first["score"], first["verdict"]) == ("low_score", 0.5, "fail")
        assert first["message"] == "scored 0.5, less than 0.6"
        assert "min_score" in graded(folder, server, "--min_score=0.5", "--resume", code=2)
        graded(folder, server, "--min_score=0.5", "--resume", "--override=min_score")
        assert len(server.bodies) == 3
    assert len(folder.lines()) == 3
    assert (folder.path / "runs").read_text() == "xxx"


def test_what_is_discarded_anyway_is_not_graded(folder: BatchFolder) -> None:
    program(folder, "open('runs', 'a').write('x'); print('{\"score\": 1}')")
    with ServerThread([chat_response("Quick.")]) as server:
        graded(folder, server, code=1)
        assert not (folder.path / "runs").exists()
        graded(folder, server, "--resume", "--keep_unreasoned", "--override=keep_unreasoned")
        assert len(server.bodies) == 3
    assert {line["metadata"]["score"] for line in folder.lines()} == {1.0}


# --- The best of several samples


def marks(folder: BatchFolder) -> None:
    """The score is the number that the answer is."""
    checks(folder, f"- {{name: mark, type: code_judge, script: [{sys.executable}, own.py]}}\n")
    write(folder, "own.py", "import json, sys\nprint(json.dumps({'score': float(json.load(sys.stdin)['answer'])}))\n")


def kept(folder: BatchFolder) -> list[tuple[int, int, float]]:
    return [(line["prompt_index"], line["metadata"]["sample"], line["metadata"]["score"]) for line in folder.lines()]


def test_only_the_best_sample_of_each_row_is_kept(folder: BatchFolder) -> None:
    marks(folder)
    with ServerThread(numbered("0.25", "0.75", "0.75")) as server:
        out = graded(folder, server, "--samples=3", "--best_of", "--num_workers=1")
    assert kept(folder) == [(row, 1, 0.75) for row in range(3)]  # of two that are as good, the first
    ledger = folder.json("summary.json")["ledger"]
    assert (ledger["items"], ledger["completed"], ledger["discarded"]) == (9, 9, 0)
    others = folder.lines("failures.jsonl")
    assert [(line["sample"], line["state"], line["cause"]) for line in others] == [
        (sample, "completed", "not_best") for _, sample in itertools.product(range(3), (0, 2))
    ]
    statistics = folder.json("statistics.json")
    assert (statistics["not_best"], statistics["items"]["completed"], statistics["api_calls"]) == (6, 9, 3)
    assert len(folder.lines("batch_0.jsonl")) == 6
    assert "not the best of their rows: 6" in out


def test_the_choice_is_made_anew_when_more_samples_have_ended(folder: BatchFolder) -> None:
    marks(folder)
    folder.write_rows(["one"])
    asked = itertools.count()

    def reply(_request: RecordedRequest) -> Reply:
        number = next(asked)
        if number == 1:
            return ScriptedResponse({"error": {"message": "not now"}}, status=400)
        return chat_response(("0.5", "", "0.25", "0.75")[number], reasoning="Hm.")

    with ServerThread(reply) as server:
        words = ("--samples=3", "--best_of", "--num_workers=1")
        graded(folder, server, *words, code=1)
        assert kept(folder) == [(0, 0, 0.5)]
        causes = {line["sample"]: line["cause"] for line in folder.lines("failures.jsonl")}
        assert causes == {1: "model_refused", 2: "not_best"}
        graded(folder, server, *words, "--resume")
        assert kept(folder) == [(0, 1, 0.75)]
        graded(folder, server, *words, "--resume", "--no-best_of")
        assert kept(folder) == [(0, 0, 0.5), (0, 1, 0.75), (0, 2, 0.25)]
        graded(folder, server, *words, "--resume", "--min_score=0.1", "--override=min_score")
        assert kept(folder) == [(0, 1, 0.75)]
        assert len(server.bodies) == 4


# --- What is refused


def test_a_run_keeps_its_graders(folder: BatchFolder) -> None:
    checks(folder, "- {name: done, type: contains, value: Done}\n")
    with ServerThread() as server:
        graded(folder, server, "--max_samples=1")
        checks(folder, "- {name: done, type: contains, value: Gone}\n")
        said = graded(folder, server, "--resume", code=2)
        assert "--override=grade" in said
        graded(folder, server, "--resume", "--override=grade")
        assert [line["metadata"]["score"] for line in folder.lines()] == [1.0, 0.0, 0.0]
        checks(folder, "- {name: other, type: contains, value: Gone}\n")
        assert "keeps its graders" in graded(folder, server, "--resume", "--override=grade", code=2)
        (folder.path / "checks.yaml").unlink()
        ran = folder.batch(f"--base_url={server.base_url}", "--resume")
        assert ran.code == 0, ran
        assert folder.batch(f"--base_url={server.base_url}", "--run_name=plain").code == 0
        checks(folder, "- {name: done, type: contains, value: Done}\n")
        assert "keeps its graders" in graded(folder, server, "--resume", "--run_name=plain", "--override=all", code=2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must be a list of graders"),
        ("[]", "at least one grader"),
        ("threshold: 0.5", "assert is required"),
        ("assert: []", "at least one grader"),
        ("threshold: 2\nassert: [x]", "line 1: threshold"),
        ("asert: [x]", "did you mean"),
        ("judge: {api_key: k}\nassert: [x]", "line 1: judge.api_key: a key must not stand in a file"),
        ("judge: {modle: k}\nassert: [x]", "did you mean model"),
        ("judge: {temperature: 9}\nassert: [x]", "judge.temperature: must be between 0 and 2"),
        (
            "assert:\n- {type: llm_judge, target: nobody, prompt: x}",
            "line 2: assert[0]: there is no judge called 'nobody'",
        ),
        ("- {type: agent_judge, rubrics: [x]}", "without their workspace"),
        ("- {type: contains}", "line 1"),
        ("- [", "not valid YAML"),
    ],
)
def test_a_file_that_can_not_be_used_is_refused_before_anything_is_made(
    folder: BatchFolder, text: str, said: str
) -> None:
    checks(folder, text)
    ran = folder.batch("--base_url=http://127.0.0.1:9/v1", "--grade=checks.yaml")
    assert (ran.code, folder.run().exists()) == (2, False), ran
    assert "checks.yaml" in ran.err
    assert said in ran.err


def test_a_judge_elsewhere_is_not_given_the_key_of_the_batch(folder: BatchFolder) -> None:
    folder.write_rows(["one"])
    with ServerThread() as server, ServerThread([chat_response("no JSON at all")]) as other:
        checks(folder, f"judge: {{base_url: '{other.base_url}'}}\nassert: [x]\n")
        graded(folder, server, "--api_key=sk-0123456789", code=1)
        assert {request.headers.get("Authorization") for request in server.requests} == {"Bearer sk-0123456789"}
        assert {request.headers.get("Authorization") for request in other.requests} == {None}
    assert folder.lines("failures.jsonl")[0]["cause"] == "grader_error"


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_programs_of_graders_have_the_variables_of_dotenv_files(
    folder: BatchFolder, monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    monkeypatch.delenv("LICENCE_TOKEN", raising=False)
    (folder.path / "checks").mkdir()
    write(folder, ".env", "LICENCE_TOKEN=far-away-and-long\nOTHER=above\n")
    write(folder, "checks/.env", "LICENCE_TOKEN=near-it-and-long\n")
    write(
        folder,
        "checks/judge.py",
        """
        import json, os
        token = os.environ["LICENCE_TOKEN"]
        good = token == "near-it-and-long" and os.environ["OTHER"] == "above"
        print(json.dumps({"score": int(good), "hits": [token], "reasoning": os.environ["OTHER"]}))
        """,
    )
    graders = f"- {{name: own, type: code_judge, script: [{sys.executable}, judge.py]}}\n"
    write(folder, "checks/checks.yaml", graders)
    with ServerThread() as server:
        words = ("--grade=checks/checks.yaml", f"--executor={executor}", "--max_samples=1")
        ran = folder.batch(f"--base_url={server.base_url}", *words)
        assert ran.code == 0, ran
    (line,) = folder.lines()
    assert line["metadata"]["score"] == 1.0
    own = json.dumps(json.loads(line["metadata"]["scores"])["own"])
    assert "[redacted]" in own
    for path in folder.run().rglob("*"):
        assert not path.is_file() or b"near-it-and-long" not in path.read_bytes(), path


def test_a_dotenv_file_that_is_wrong_is_an_error_before_anything_runs(folder: BatchFolder) -> None:
    program(folder, "print('{\"score\": 1}')")
    write(folder, ".env", "LICENCE\n")
    with ServerThread() as server:
        out = graded(folder, server, code=2)
        assert server.requests == []
    assert ".env, line 1: expected NAME=value" in out
    assert not folder.run().exists()
