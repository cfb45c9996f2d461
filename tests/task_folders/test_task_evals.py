"""Task folders as tests of an evaluation: scores, trials, time limits, errors without a score, resumes."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from manyhands.engine.journal.reader import JournalReader
from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from tests.support.batches import Ran, read_lines, run_command
from tests.support.made_tasks import make_task

pytestmark = pytest.mark.skipif(BubblewrapBackend().unavailable() is not None, reason="bubblewrap can't be used here")

NAMED = ("--run_name=r",)
EXAMPLES = Path(__file__).parents[2] / "examples" / "tasks"
TARGETS = """
targets:
  - {name: default, provider: agent, model: simulated, toolsets: [terminal]}
  - {name: oracle, provider: agent, agent: oracle}
"""


class Evaluation:
    """A folder with task folders, evaluated."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "tasks").mkdir()
        (path / "tasks" / "targets.yaml").write_text(TARGETS)

    def add(self, name: str, **parts: Any) -> Path:
        return make_task(self.path / "tasks" / name, **{"solve": "echo 1 > done\n", **parts})

    def run(self, *options: str) -> Ran:
        return run_command(
            self.path, "eval", "tasks", *NAMED[any("run_name" in each for each in options) :], "--quiet", *options
        )

    def results(self) -> list[dict[str, Any]]:
        return read_lines(self.path / "data" / "r" / "results.jsonl")


@pytest.fixture
def evaluation(tmp_path: Path) -> Evaluation:
    return Evaluation(tmp_path)


def test_the_examples_run_with_the_simulated_model_and_their_solutions_pass(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "tasks")
    ran = run_command(tmp_path, "eval", "tasks", "--run_name=s", "--quiet")
    assert ran.code == 1, ran.err
    assert len(read_lines(tmp_path / "data/s/results.jsonl")) == 3
    solved = run_command(tmp_path, "eval", "tasks", "--run_name=o", "--quiet", "--target=oracle")
    assert solved.code == 0, solved.err
    assert {each["score"] for each in read_lines(tmp_path / "data/o/results.jsonl")} == {1.0}


def test_rewards_are_scores_with_their_raw_values(evaluation: Evaluation) -> None:
    test = (
        '#!/bin/bash\n[ -e done ] && echo \'{"reward": 3, "speed": 0.5}\' > /logs/verifier/reward.json; echo looked\n'
    )
    evaluation.add("a", toml='[metadata]\ndifficulty = "hard"\n', test=test)
    assert evaluation.run("--target=oracle", "--trials=2").code == 0
    results = evaluation.results()
    assert [each["score"] for each in results] == [1.0] * len(results)
    assert results[0]["scores"][0]["hits"] == ["reward 3"]
    assert '"speed":0.5' in (evaluation.path / "data/r/results.jsonl").read_text()


def test_a_reward_is_called_by_its_name(evaluation: Evaluation) -> None:
    evaluation.add("a", test="#!/bin/bash\necho '{\"acc\": 0.7}' > /logs/verifier/reward.json\n")
    evaluation.run("--target=oracle")
    assert evaluation.results()[0]["scores"][0]["misses"] == ["acc 0.7"]


def test_a_time_limit_is_no_error_and_the_multiplier_counts(evaluation: Evaluation) -> None:
    evaluation.add("slow", toml="[agent]\ntimeout_sec = 60\n", solve="echo 1 > done; sleep 60\n")
    ran = evaluation.run("--target=oracle", "--timeout_multiplier=0.02")
    assert ran.code == 0, ran.err + ran.out
    (result,) = evaluation.results()
    assert result["score"] == 1.0
    assert "time_limit" in json.dumps(result)


def test_an_error_of_the_verifier_has_no_score(evaluation: Evaluation) -> None:
    evaluation.add("broken", test="#!/bin/bash\ntrue\n")
    ran = evaluation.run("--target=oracle")
    assert ran.code == 3
    (result,) = evaluation.results()
    assert result["score"] is None
    assert "neither reward.json nor reward.txt" in json.dumps(result)


def test_the_verifier_runs_again_when_errors_are_retried(evaluation: Evaluation) -> None:
    test = "[ -e made ] && [ -e /project/mended ] && echo 1 > /logs/verifier/reward.txt"
    evaluation.add("flaky", test=f"#!/bin/bash\n{test}\n")
    (evaluation.path / "project").mkdir()
    own = "  - {name: own, provider: agent, model: simulated, project: ../project, cwd: /workspace, agent_command: touch made}\n"
    (evaluation.path / "tasks/targets.yaml").write_text(TARGETS + own)
    assert evaluation.run("--target=own").code == 3
    (evaluation.path / "project/mended").touch()
    assert evaluation.run("--resume", "--retry_errors").code == 0
    with closing(JournalReader(evaluation.path / "data/r")) as reader:
        kinds = [step.kind for step in reader.steps(1, 1)]
    assert kinds.count("agent") == 1


def test_tasks_that_are_not_taken_refuse_the_run_or_are_left_out(evaluation: Evaluation) -> None:
    evaluation.add("good")
    evaluation.add("bad", toml="[environment]\ngpus = 1\n")
    evaluation.add("needs", toml='[verifier.env]\nX = "${SURELY_NOT_SET_HERE}"\n')
    ran = evaluation.run("--target=oracle")
    assert ran.code == 2
    assert "task bad: environment.gpus is not taken" in ran.err
    assert "verifier.env.X takes this machine's variable SURELY_NOT_SET_HERE" in ran.err
    skipped = evaluation.run("--target=oracle", "--skip_invalid")
    assert skipped.code == 0, skipped.err
    assert sum(each["score"] == 1.0 for each in evaluation.results()) == 1


def test_a_task_has_the_variables_that_the_person_named_and_no_other(
    evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TASK_CODE", "NOT_NAMED", "SOLUTION_CODE"):
        monkeypatch.setenv(name, "a-word-of-the-person")
    evaluation.add(
        "a",
        toml='[verifier.env]\nA = "${TASK_CODE}"\nB = "${NOT_NAMED:-plain}"\n[solution.env]\nC = "${SOLUTION_CODE}"\n',
        solve='echo "[$A$B]$C" > seen\n',
        test="#!/bin/bash\n[ $A.$B.$(cat seen) = a-word-of-the-person.plain.[]two ] && echo 1 > /logs/verifier/reward.txt\n",
    )
    refused = evaluation.run("--target=oracle", "--task_env=TASK_CODE")
    assert (refused.code, "solution.env.C takes this machine's variable SOLUTION_CODE" in refused.err) == (2, True)
    ran = evaluation.run("--target=oracle", "--task_env=TASK_CODE", "--task_env=SOLUTION_CODE=two")
    assert ran.code == 0, ran.err + ran.out
    monkeypatch.delenv("TASK_CODE")
    again = evaluation.run("--resume", "--rerun_failed")
    assert again.code == 0, again.err
    regraded = evaluation.run("--regrade=r", "--run_name=g")
    assert regraded.code == 0, regraded.err
    assert "--task_env" not in regraded.err


def test_a_program_does_the_tasks_by_an_option_or_by_the_targets_key(evaluation: Evaluation) -> None:
    evaluation.add("a", test="#!/bin/bash\n[ -e made ] && echo 1 > /logs/verifier/reward.txt\n")
    ran = evaluation.run("--agent_command=touch made; echo did {instruction}")
    assert ran.code == 0, ran.err + ran.out
    (result,) = evaluation.results()
    assert (result["score"], result["output"][-1]["content"]) == (1.0, "did Write hello to hello.txt.")
    assert run_command(evaluation.path, "export", "data/r", "--to", "atif", "--output", "a.jsonl").code == 0
    (found,) = read_lines(evaluation.path / "a.jsonl")
    assert found["agent"] == {"name": "default", "version": "unknown"}, "no tools or model that it never had"
    assert [step["source"] for step in found["steps"]] == ["user", "agent"]
    targets = evaluation.path / "tasks/targets.yaml"
    own = "{name: own, provider: agent, model: vendor/model, agent_command: touch made}"  # needs no key: it calls no model
    targets.write_text(f"{TARGETS}  - {own}\n")
    assert evaluation.run("--target=own", "--run_name=own").code == 0
    for name, model in (("none", ""), ("named", "model: a/b, ")):
        targets.write_text(f"targets:\n  - {{name: own, provider: agent, {model}agent_command: touch made}}\n")
        ran = evaluation.run("--target=own", f"--run_name={name}")
        assert ran.code == 0, ran.err
    targets.write_text(
        TARGETS + "  - {name: own, provider: agent, agent: oracle, model: simulated, agent_command: x}\n"
    )
    refused = evaluation.run("--target=own", "--run_name=two")
    assert refused.code == 2
    assert "two agents" in refused.err


def test_grading_again_takes_what_the_verifier_gave(evaluation: Evaluation) -> None:
    folder = evaluation.add(
        "a", test='#!/bin/bash\necho \'{"reward": 1, "second": 0.5}\' > /logs/verifier/reward.json\n'
    )
    evaluation.add("broken", test="#!/bin/bash\ntrue\n")
    assert evaluation.run("--target=oracle").code == 3
    again = evaluation.run("--regrade=r", "--run_name=g")
    assert again.code == 3, again.err
    found = {each["test_id"]: each for each in read_lines(evaluation.path / "data/g/results.jsonl")}
    assert '"second": 0.5' in json.dumps(found["a"])
    assert "neither reward.json nor reward.txt" in json.dumps(found["broken"])
    (folder / "tests/test.sh").write_text("#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n")
    assert evaluation.run("--regrade=r", "--run_name=h", "--test_id=a").code == 0
    (result,) = read_lines(evaluation.path / "data/h/results.jsonl")
    assert "the task's folder has changed" in json.dumps(result)


def test_without_a_targets_file_the_person_is_shown_one(evaluation: Evaluation) -> None:
    evaluation.add("a")
    targets = evaluation.path / "tasks/targets.yaml"
    targets.unlink()
    refused = evaluation.run(), evaluation.run("--target=agent")
    for each in refused:
        assert each.code == 2
        example = each.err.strip().partition("no targets file was found; tasks/targets.yaml could be ")[2]
        assert example
    targets.write_text(example.replace("NAME", "simulated"))
    assert evaluation.run("--target=agent").code == 0


def test_a_target_that_can_do_no_tasks_is_refused(evaluation: Evaluation) -> None:
    evaluation.add("a")
    (evaluation.path / "tasks/targets.yaml").write_text("targets:\n  - {name: m, provider: mock, response: x}\n")
    ran = evaluation.run("--target=m")
    assert ran.code == 2
    assert "can't do task folders" in ran.err


def test_a_target_without_tools_is_named(evaluation: Evaluation) -> None:
    evaluation.add("a")
    assert "has no tools" not in evaluation.run("--run_name=some").err
    (evaluation.path / "tasks/targets.yaml").write_text(
        "targets:\n  - {name: bare, provider: agent, model: simulated}\n  - {name: o, provider: agent, agent: oracle}\n"
    )
    assert "target bare has no tools" in evaluation.run("--run_name=none", "--target=bare").err
    assert "has no tools" not in evaluation.run("--run_name=own", "--target=o").err
