"""Task folders as the dataset of a batch: trajectories with scores and rewards, refusals, resumes."""

from __future__ import annotations

import json
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from manyhands.engine.journal.reader import JournalReader
from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from manyhands.testing.scripted_server import chat_response
from tests.support.batches import Ran, ServerThread, read_lines, run_command
from tests.support.image_doubles import NAME as BOXES
from tests.support.image_doubles import boxes
from tests.support.made_tasks import make_task

pytestmark = pytest.mark.skipif(BubblewrapBackend().unavailable() is not None, reason="bubblewrap can't be used here")

CHECK = """#!/bin/bash
[ "$(cat hello.txt 2>/dev/null)" = hello ] && reward=1 || reward=0
echo "{\\"reward\\": $reward, \\"tries\\": 3}" > /logs/verifier/reward.json
"""
SOLVE = "echo hello > hello.txt\n"
PROGRAM = "--agent_command=echo hello > hello.txt; echo done"


class Tasks:
    """A folder with task folders, and batches of them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, name: str, **parts: Any) -> Path:
        return make_task(self.path / "tasks" / name, **{"test": CHECK, "solve": SOLVE, **parts})

    def batch(self, *options: str) -> Ran:
        usual = ("--dataset_file=tasks", "--batch_size=10", "--run_name=r", "--distribution=terminal_only")
        return run_command(self.path, "batch", *usual, "--executor=local", "--quiet", "--concurrency=4", *options)

    def lines(self, file: str = "trajectories.jsonl") -> list[dict[str, Any]]:
        return read_lines(self.path / "data" / "r" / file)


@pytest.fixture
def tasks(tmp_path: Path) -> Tasks:
    return Tasks(tmp_path)


def test_an_agent_gets_the_score_of_the_verifier(tasks: Tasks) -> None:
    tasks.add("good", toml='[task]\nname = "org/good"\nkeywords = ["k"]\n[metadata]\ndifficulty = "easy"\n')
    tasks.add("lazy")
    call = {"id": "c", "type": "function"}
    writes = {"name": "terminal", "arguments": json.dumps({"command": "echo hello > hello.txt"})}

    def reply(request: Any) -> Any:
        messages = request.body["messages"]
        asked = next(each["content"] for each in messages if each["role"] == "user")
        if messages[-1]["role"] == "user" and "world" in asked:
            return chat_response(None, tool_calls=[{**call, "function": writes}], reasoning="I write it.")
        return chat_response("Done.", reasoning="I think so.")

    (tasks.path / "tasks/good/instruction.md").write_text("Greet the world.\n")
    with ServerThread(reply) as server:
        ran = tasks.batch("--model=m", f"--base_url={server.base_url}", "--api_key=k")
    assert ran.code == 0, ran.err
    good, lazy = tasks.lines()
    assert (good["metadata"]["item"], good["metadata"]["score"], lazy["metadata"]["score"]) == (
        "id:org/good#0",
        1.0,
        0.0,
    )
    assert json.loads(good["metadata"]["rewards"]) == {"reward": 1, "tries": 3}
    assert json.loads(good["metadata"]["source"]) == {"task": "org/good", "difficulty": "easy", "keywords": ["k"]}
    assert [turn["from"] for turn in good["conversations"]] == ["system", "human", "gpt", "tool", "gpt"]
    statistics = json.loads((tasks.path / "data/r/statistics.json").read_text())
    assert statistics["scores"] == {"graded": 2, "mean": 0.5, "verdicts": {"pass": 1, "borderline": 0, "fail": 1}}


def test_the_solution_is_the_oracle_and_no_key_is_needed(tasks: Tasks) -> None:
    tasks.add("a")
    ran = tasks.batch("--agent=oracle")
    assert ran.code == 0, ran.err
    (line,) = tasks.lines()
    assert (line["metadata"]["score"], line["metadata"]["model"], line["completed"]) == (1.0, "oracle", True)


def test_a_program_has_no_system_turn_that_no_model_got(tasks: Tasks) -> None:
    tasks.add("a")
    assert tasks.batch(PROGRAM).code == 0
    (line,) = tasks.lines()
    assert [turn["from"] for turn in line["conversations"]] == ["human", "gpt"]
    assert (line["metadata"]["system_prompt"], line["metadata"]["toolsets_offered"]) == ("", "")
    checked = run_command(tasks.path, "check", "data/r")
    assert checked.code == 0, checked.out + checked.err


def test_commands_that_fail_are_counted_on_screen_and_in_the_statistics(tasks: Tasks) -> None:
    tasks.add("a", test="#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n")
    tasks.add("b", test="#!/bin/bash\ntrue\n")
    ran = tasks.batch("--agent_command=nosuchprogram {instruction}")
    assert ran.code == 1
    assert "2 agent commands ended with exit code 127 (a program that is not there)" in ran.out
    assert json.loads((tasks.path / "data/r/statistics.json").read_text())["exit_codes"] == {"127": 2}
    failed = tasks.batch("--agent_command=exit 7", "--run_name=r7")
    assert "2 agent commands ended with exit code 7\n" in failed.out


def test_scores_choose_the_best_sample_and_the_minimum(tasks: Tasks) -> None:
    tasks.add("a", test="#!/bin/bash\n[ -e hello.txt ] && echo 0.4 > /logs/verifier/reward.txt\n")
    tasks.batch(PROGRAM, "--min_score=0.5")
    (failure,) = tasks.lines("failures.jsonl")
    assert "low_score" in failure.values()
    again = tasks.batch(PROGRAM, "--resume", "--min_score=0.3", "--override=min_score")
    assert again.code == 0, again.err
    assert [line["metadata"]["score"] for line in tasks.lines()] == [0.4]
    tasks.batch(PROGRAM, "--run_name=best", "--samples=2", "--best_of")
    assert len(read_lines(tasks.path / "data/best/trajectories.jsonl")) == 1


def test_an_error_of_the_verifier_is_a_failure_without_a_score(tasks: Tasks) -> None:
    tasks.add("broken", test="#!/bin/bash\ntrue\n")
    tasks.add("several", test='#!/bin/bash\necho \'{"a": 1, "b": 0}\' > /logs/verifier/reward.json\n')
    tasks.add("wild", test="#!/bin/bash\necho 7.5 > /logs/verifier/reward.txt\n")
    ran = tasks.batch(PROGRAM)
    assert ran.code == 1
    assert [line["cause"] for line in tasks.lines("failures.jsonl")] == ["grader_error", "grader_error"]
    messages = [line["message"] for line in tasks.lines("failures.jsonl")]
    assert "neither reward.json nor reward.txt" in messages[0]
    assert "say which one is the score (--reward)" in messages[1]
    assert ran.out.count("Rewards below 0 or above 1: 1") == 1
    (wild,) = tasks.lines()
    assert (wild["metadata"]["score"], wild["metadata"]["rewards"]) == (1.0, '{"reward": 7.5}')
    assert run_command(tasks.path, "retry", "data/r").code == 0
    again = tasks.batch(PROGRAM, "--resume", "--reward=a")
    assert again.code == 1, again.err
    assert sorted(line["metadata"]["item"] for line in tasks.lines()) == ["id:several#0", "id:wild#0"]


# Its first two runs give no reward: those of the first session, which tries it twice. What it says of the agent's work must not change
# from run to run, so it remembers those runs outside of the world. MODE: whether the verifier has an environment of its own.
FLAKY = """#!/bin/bash
cat done.txt
[ -e done.txt ] && [ ! -e tried ] || { echo 0 > /logs/verifier/reward.txt; exit; }
touch tried
(sleep 30 >/dev/null 2>&1 &)
[ -e /project/mended ] && echo 1 > /logs/verifier/reward.txt
exit 0
"""


@pytest.mark.parametrize("separate", [False, True])
def test_a_verifier_that_gave_no_reward_runs_again_on_a_resume_and_the_model_is_not_asked_again(
    tasks: Tasks, separate: bool
) -> None:
    apart = 'artifacts = ["done.txt"]\n[verifier]\nenvironment_mode = "separate"\n' if separate else ""
    tasks.add("flaky", test=FLAKY, toml=apart)
    tasks.add("sound", test="#!/bin/bash\necho run >> runs; wc -l < runs > /logs/verifier/reward.txt\n")
    mended = tasks.path / "project/mended"
    mended.parent.mkdir()

    def reply(request: Any) -> Any:
        if request.body["messages"][-1]["role"] == "tool":
            return chat_response("Done.", reasoning="I think so.")
        call = {"name": "terminal", "arguments": json.dumps({"command": "cd ~; echo work >> $PWD/done.txt"})}
        return chat_response(None, tool_calls=[{"id": "c", "type": "function", "function": call}], reasoning="I work.")

    with ServerThread(reply) as server:
        ran = tasks.batch("--model=m", f"--base_url={server.base_url}", "--api_key=k", "--project=project", "--cwd=.")
        assert (ran.code, len(server.requests)) == (1, 4), ran.err
        (failure,) = tasks.lines("failures.jsonl")
        assert failure["cause"] == "grader_error"
        assert "neither reward.json nor reward.txt" in failure["message"]
        mended.touch()
        again = run_command(tasks.path, "resume", "data/r", "--api_key=k")
        assert (again.code, len(server.requests)) == (0, 4), again.out + again.err
    assert {line["metadata"]["item"]: line["metadata"]["score"] for line in tasks.lines()} == {
        "id:flaky#0": 1.0,
        "id:sound#0": 1.0,
    }
    assert [line["metadata"]["attempt"] for line in tasks.lines()] == [1, 1]
    with closing(JournalReader(tasks.path / "data/r")) as reader:
        steps = [step for number in (1, 2) for step in reader.steps(number, 1)]
    assert [step.output["rewards"] for step in steps if step.scope == "task-verify"] == [{"reward": 1.0}] * 2


def test_tasks_that_are_not_taken_refuse_the_run_or_are_skipped_by_choice(tasks: Tasks) -> None:
    tasks.add("a")
    tasks.add("b", toml="[environment]\ngpus = 2\n")
    tasks.add("c", toml="[agent]\ntimeout_sec = 0\n")
    ran = tasks.batch(PROGRAM)
    assert ran.code == 2
    assert "task b: environment.gpus is not taken" in ran.err
    assert "agent.timeout_sec" in ran.err
    assert "--skip_invalid leaves such tasks out" in ran.err
    assert not (tasks.path / "data").exists()
    skipped = tasks.batch(PROGRAM, "--skip_invalid")
    assert skipped.code == 0, skipped.err
    assert len(tasks.lines()) == 1
    assert len(tasks.lines("failures.jsonl")) == 2


def test_a_refused_run_leaves_no_folder_for_logs_of_builds(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    (tasks.path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tasks.path / "tmp"))
    tasks.add("a")
    assert tasks.batch(PROGRAM, "--tool_choice=terminal", "--toolsets=web").code == 2
    tasks.add("b", toml="[environment]\ngpus = 2\n")
    assert tasks.batch(PROGRAM).code == 2
    assert not any((tasks.path / "tmp").iterdir())


def test_a_task_whose_image_does_not_exist_is_named(tasks: Tasks) -> None:
    tasks.add("good", toml='[environment]\ndocker_image = "base:1"\n')
    tasks.add("lacking", toml='[task]\nname = "org/lacking"\n[environment]\ndocker_image = "nothere:3"\n')
    with boxes(tasks.path) as registry:
        registry.publish("base:1")
        ran = tasks.batch(PROGRAM, f"--sandbox={BOXES}")
    assert ran.code == 2
    assert "nothere:3 (task org/lacking)" in ran.err


def test_a_changed_task_is_other_work_on_a_resume(tasks: Tasks) -> None:
    tasks.add("a")
    tasks.add("b")
    assert tasks.batch(PROGRAM).code == 0
    (tasks.path / "tasks/a/tests/more.txt").write_text("x")
    again = tasks.batch(PROGRAM, "--resume")
    assert again.code == 0, again.err
    assert "1 item no longer in the input" in again.err
    keys = [line["metadata"]["item"] for line in tasks.lines()]
    assert len(keys) == 2
    assert any(key.startswith("id:a@") for key in keys)


def test_variables_of_this_machine_reach_the_task_and_no_file_of_the_run(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml = '[environment.env]\nTOKEN = "${TASK_CODE}"\nOTHER = "${NOT_NAMED:-plain}"\n'
    monkeypatch.setenv("NOT_NAMED", "a-key-of-the-person")
    test = '#!/bin/bash\n[ "$TOKEN$OTHER" = ${EXPECTED}plain ] && echo 1 > /logs/verifier/reward.txt; echo "$TOKEN $OTHER"\n'
    tasks.add("a", toml=f'{toml}[verifier.env]\nEXPECTED = "${{TASK_CODE}}"\n', test=test)
    ran = tasks.batch("--agent_command=echo got $TOKEN", "--task_env=TASK_CODE")
    assert (ran.code, "--task_env TASK_CODE: the environment variable TASK_CODE is not set" in ran.err) == (2, True)
    monkeypatch.setenv("TASK_CODE", "quite-a-long-code-7719")
    ran = tasks.batch("--agent_command=echo got $TOKEN [$EXPECTED]", "--task_env=TASK_CODE", "--task_env=MISSPELT=1")
    assert ran.code == 0
    assert "--task_env: no task takes MISSPELT" in ran.err
    assert "quite-a-long" not in ran.err
    (line,) = tasks.lines()
    assert line["metadata"]["score"] == 1.0
    said = line["conversations"][-1]["value"]
    assert "quite-a-long" not in said
    assert said.endswith("got [redacted] []"), "what is the verifier's alone is not the agent's"
    for path in (tasks.path / "data").rglob("*"):
        assert not path.is_file() or b"quite-a-long-code" not in path.read_bytes(), path


def test_what_a_program_says_of_itself_is_kept_and_nothing_that_it_never_had(tasks: Tasks) -> None:
    """The program is ``cat``: it prints its instruction, which holds the events of another one."""
    part = {"model": "claude-x", "id": "m1"}
    shell = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "ls"}}
    came = {"type": "tool_result", "tool_use_id": "t", "content": "a.py"}
    events = [
        {"type": "system", "subtype": "init", "model": "claude-x", "claude_code_version": "2.1.0"},
        {"type": "assistant", "message": {**part, "content": [{"type": "text", "text": "I look."}]}},
        {"type": "assistant", "message": {**part, "content": [shell]}},
        {"type": "user", "message": {"content": [came]}},
        {
            "type": "assistant",
            "message": {"model": "claude-x", "id": "m2", "content": [{"type": "text", "text": "Done."}]},
        },
        {"type": "result", "subtype": "success", "result": "Done.", "total_cost_usd": 0.25, "num_turns": 2},
    ]
    tasks.add(
        "a", instruction="\n".join(map(json.dumps, events)), test="#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n"
    )
    ran = tasks.batch("--agent_command=cat", "--max_cost=0.1")
    assert ran.code == 0
    assert "those at work may pass --max_cost" in ran.err
    assert "so that the budget holds" not in ran.err, "nobody bounds what a program's model answers"
    (line,) = tasks.lines()
    metadata = line["metadata"]
    assert (metadata["model"], metadata["cost"], metadata["toolsets_offered"]) == ("claude-x", 0.25, "")
    assert (line["api_calls"], metadata["usage"]["calls"], line["toolsets_used"]) == (2, 2, ["none"])
    assert [turn["from"] for turn in line["conversations"]] == ["human", "gpt", "tool", "gpt"]
    for name in ("messages", "openai", "axolotl", "llamafactory"):
        ran = run_command(tasks.path, "export", "data/r", "--to", name, "--output", f"{name}.out")
        assert (ran.code, "1 row" in ran.out) == (0, True), ran.out + ran.err
    (sent,) = read_lines(tasks.path / "messages.out")
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert run_command(tasks.path, "export", "data/r", "--to", "atif", "--output", "a.jsonl").code == 0
    (found,) = read_lines(tasks.path / "a.jsonl")
    assert found["agent"] == {"name": "cat", "version": "2.1.0", "model_name": "claude-x"}


def test_a_program_that_says_nothing_of_itself_has_no_model(tasks: Tasks) -> None:
    tasks.add("a")
    assert tasks.batch(PROGRAM).code == 0
    assert tasks.lines()[0]["metadata"]["model"] == ""
    ran = run_command(tasks.path, "export", "data/r", "--to", "messages", "--output", "m.jsonl")
    assert "without an answer to train on" in ran.out + ran.err
    assert run_command(tasks.path, "export", "data/r", "--to", "atif", "--output", "a.jsonl").code == 0
    assert read_lines(tasks.path / "a.jsonl")[0]["agent"] == {"name": "echo", "version": "unknown"}


def test_a_variable_that_nobody_allowed_refuses_the_task_before_its_image_is_built(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TASK_CODE", "SOLUTION_CODE"):
        monkeypatch.setenv(name, "a-key-of-the-person")
    code = '[verifier.env]\nEXPECTED = "${TASK_CODE}"\n[solution.env]\nKEY = "${SOLUTION_CODE}"\n'
    tasks.add("a", toml=code, files={"environment/Dockerfile": "FROM nothing:at-all\n"})
    tasks.add("b")
    ran = tasks.batch(PROGRAM)
    wanted = (
        "tasks/a/task.toml: task a: verifier.env.EXPECTED takes this machine's variable TASK_CODE; --task_env TASK_CODE"
    )
    assert (ran.code, wanted in ran.err, "build" in ran.err) == (2, True, False), ran.err
    oracle = tasks.batch("--agent=oracle", "--task_env=TASK_CODE")
    assert (oracle.code, "solution.env.KEY takes this machine's variable SOLUTION_CODE" in oracle.err) == (2, True)
    assert not (tasks.path / "data").exists()
    skipped = tasks.batch(PROGRAM, "--skip_invalid")
    assert skipped.code == 0, skipped.err
    assert [line["metadata"]["item"] for line in tasks.lines()] == ["id:b#0"]


def test_a_value_for_tasks_is_kept_for_a_resume_and_one_that_looks_secret_is_not_taken(tasks: Tasks) -> None:
    tasks.add(
        "a",
        toml='[environment.env]\nA = "${WORD}"\n[solution.env]\nB = "${OTHER}"\n',
        solve='echo "$A$B" > out\n',
        test="#!/bin/bash\n[ $(cat out) = onetwo ] && echo 1 > /logs/verifier/reward.txt\n",
    )
    ran = tasks.batch("--agent=oracle", "--task_env=WORD=one", "--task_env=OTHER=two")
    assert ran.code == 0, ran.err
    again = tasks.batch("--resume")
    assert again.code == 0, again.err
    secret = tasks.batch("--agent=oracle", "--run_name=s", "--task_env=API_TOKEN=f00dcafe-tricky-41")
    assert (secret.code, "API_TOKEN looks like a secret" in secret.err) == (2, True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--sandbox=local", PROGRAM), "--sandbox local: task folders need"),
        (("--grade=checks.yaml", PROGRAM), "--grade"),
        ((PROGRAM, "--agent=oracle"), "two agents"),
        (('--agent_command=sh -c "echo {instruction} $X"',), "agent_command"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tasks: Tasks, options: tuple[str, ...], words: str) -> None:
    tasks.add("a")
    (tasks.path / "checks.yaml").write_text("- type: contains\n  value: x\n")
    ran = tasks.batch(*options)
    assert (ran.code, words in ran.err) == (2, True), ran.err


def test_settings_of_tasks_are_refused_for_other_datasets(tasks: Tasks) -> None:
    (tasks.path / "tasks").mkdir()
    (tasks.path / "d.jsonl").write_text('{"prompt": "x"}\n')
    ran = tasks.batch("--dataset_file=d.jsonl", "--agent=oracle")
    assert ran.code == 2
    assert "is for task folders" in ran.err


def test_a_single_task_folder_and_the_short_form(tasks: Tasks) -> None:
    tasks.add("a")
    ran = run_command(tasks.path, "batch", "tasks/a", "--agent=oracle", "--quiet")
    assert ran.code == 0, ran.err
    assert read_lines(tasks.path / "data/a/trajectories.jsonl")[0]["metadata"]["score"] == 1.0
