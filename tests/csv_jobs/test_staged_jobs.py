"""Jobs with stages as a person makes them: killed between stages, with all kinds of workers, exported, shown, retried."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.batches import Ran, ServerThread, run_command
from tests.support.job_folders import JobFolder, report, text_of

STAGES = """\
- name: summary
  instruction: Sum up {text}.
- name: score
  instruction: "Score {summary} for {name}."
  output_schema:
    type: object
    properties: {score: {type: integer, maximum: 10}, why: {type: string}}
    required: [score]
    additionalProperties: false
  when: name != "b"
- name: reply
  instruction: "Reply to {summary}, scored {score.score}."
  when: score >= 5
"""
WORK = """
import json, os, sys, time
from pathlib import Path


def work(row, assignment):
    return done(row, assignment.stage.name, assignment.instruction)


def done(row, stage, instruction):
    with open("calls", "a") as calls:
        calls.write(f"{stage} {row['name']}\\n")
    while Path(f"hold-{stage}-{row['name']}").exists():
        time.sleep(0.02)
    if Path(f"break-{stage}-{row['name']}").exists():
        raise ValueError("broken")
    if stage == "score":
        return {"score": 3 if row["name"] == "c" else 8, "why": row["summary"]}
    return {stage: instruction}


if __name__ == "__main__":
    row = json.loads(Path(sys.argv[1]).read_text())
    prompt = sys.stdin.read()
    assert os.environ["MANYHANDS_STAGE"] == sys.argv[2]
    result = done(row, sys.argv[2], prompt.partition("item:\\n")[2].partition("\\n")[0])
    if sys.argv[2] == "score" and "was refused" not in prompt:
        result["score"] = 11
    print(json.dumps(result))
"""
FUNCTION = ("--worker_function=steps.py:work", "--executor=local")
SUMMARY = "Sum up one."


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[JobFolder]:
    (tmp_path / "stages.yaml").write_text(STAGES)
    (tmp_path / "steps.py").write_text(WORK)
    with JobFolder(tmp_path, ["one", "two", "three"]) as made:
        yield made


def words(*options: str) -> list[str]:
    usual = ("--stages=stages.yaml", "--job_name=j", "--output_csv_path=out.csv", "--quiet")
    return ["spawn", "rows.csv", *usual, *options]


def jobs(folder: JobFolder, *options: str) -> Ran:
    return run_command(folder.path, "jobs", *options)


def calls(folder: JobFolder) -> Counter[str]:
    return Counter((folder.path / "calls").read_text().splitlines())


def shown(folder: JobFolder, item: str) -> dict[str, Any]:
    return dict(json.loads(jobs(folder, "show", "j", item, "--json").out))


def check_results(folder: JobFolder) -> None:
    rows = folder.rows()
    assert [row["status"] for row in rows] == ["completed"] * 3
    assert [row["summary"] for row in rows] == [f"Sum up {text}." for text in ("one", "two", "three")]
    assert [row["score"] for row in rows] == ["8", "", "3"]
    assert [row["reply"] for row in rows] == [f"Reply to {SUMMARY}, scored 8.", "", ""]
    assert [{name: stage["state"] for name, stage in each.items()} for each in folder.results()] == [
        {"summary": "completed", "score": "completed", "reply": "completed"},
        {"summary": "completed", "score": "skipped", "reply": "skipped"},
        {"summary": "completed", "score": "completed", "reply": "skipped"},
    ]


def test_a_kill_between_two_stages_repeats_only_what_was_under_way(folder: JobFolder) -> None:
    hold = folder.path / "hold-score-a"
    hold.touch()
    with folder.begin(*words(*FUNCTION)) as following:
        assert following.wait_until(lambda: folder.path.joinpath("calls").exists() and "score a" in calls(folder))
        os.kill(folder.runner(), signal.SIGKILL)
        following.wait()
    assert [(stage["name"], stage["state"]) for stage in shown(folder, "row-1")["stages"]] == [
        ("summary", "completed"),
        ("score", "pending"),
        ("reply", "pending"),
    ]
    hold.unlink()
    ended = jobs(folder, "run", "j", "--quiet")
    assert ended.code == 0, ended
    check_results(folder)
    made = calls(folder)
    assert made.pop("score a") == 2
    assert set(made.values()) == {1}
    assert made["summary a"] == made["reply a"] == 1


def test_a_failed_stage_keeps_earlier_results_and_is_retried_alone(folder: JobFolder) -> None:
    broken = folder.path / "break-score-a"
    broken.touch()
    ended = jobs(folder, *words(*FUNCTION))
    assert ended.code == 1
    row = folder.rows()[0]
    assert (row["status"], row["summary"], row["score"]) == ("failed", SUMMARY, "")
    assert row["last_error"].startswith("stage score: steps.py:work raised ValueError: broken")
    states = json.loads(row["result_json"])
    assert states["summary"] == {"state": "completed", "result": {"summary": SUMMARY}}
    assert (states["score"]["state"], states["reply"]) == ("failed", {"state": "pending"})
    assert states["score"]["error"].startswith("steps.py:work raised ValueError: broken")
    status = json.loads(jobs(folder, "status", "j", "--json").out)
    assert status["stages"] == [
        {"name": "summary", "completed": 3, "skipped": 0, "failed": 0, "pending": 0},
        {"name": "score", "completed": 1, "skipped": 1, "failed": 1, "pending": 0},
        {"name": "reply", "completed": 0, "skipped": 2, "failed": 0, "pending": 1},
    ]
    assert (
        "stage    completed  skipped  failed  pending\nsummary          3        0       0        0\n"
        in jobs(folder, "status", "j").out
    )
    assert "stage score: failed" in jobs(folder, "show", "j", "row-1").out
    assert calls(folder)["summary a"] == 1
    broken.unlink()
    assert jobs(folder, "retry", "j", "--failed", "--quiet").code == 0
    check_results(folder)
    made = calls(folder)
    assert (made["summary a"], made["score a"], made["reply a"]) == (1, 3, 1)


def test_a_command_learns_the_stage_and_earlier_results_and_corrects_its_own(folder: JobFolder) -> None:
    command = f"--worker_command={sys.executable} steps.py {{row_file}} {{stage}}"
    ended = jobs(folder, *words(command, "--flatten", "--verbose"))
    assert ended.code == 0, ended
    check_results(folder)
    assert [row["score.why"] for row in folder.rows()] == [SUMMARY, "", "Sum up three."]
    made = calls(folder)
    assert made == {
        **{f"summary {name}": 1 for name in "abc"}, "score a": 2, "score c": 2, "reply a": 1
    }  # fmt: skip
    assert shown(folder, "row-1")["record"]["corrections"] == 1


def test_functions_run_in_worker_processes_and_results_are_typed_in_json_lines(folder: JobFolder) -> None:
    ended = jobs(folder, *words("--worker_function=steps.py:work", "--num_workers=1", "--output_csv_path=out.jsonl"))
    assert ended.code == 0, ended
    rows = [json.loads(line) for line in (folder.path / "out.jsonl").read_text().splitlines()]
    assert [(row["score"], row["reply"]) for row in rows] == [
        (8, f"Reply to {SUMMARY}, scored 8."),
        (None, None),
        (3, None),
    ]


def test_agents_get_one_conversation_a_stage_and_columns_need_no_file(folder: JobFolder) -> None:
    def reply(request: Any) -> Any:
        prompt = next(text_of(message) for message in request.body["messages"] if message["role"] == "user")
        name = "mood" if "mood" in prompt else "gist"
        return report(request, {name: f"the {name}"})

    with ServerThread(reply) as server:
        ended = jobs(
            folder,
            "spawn", "rows.csv", "--column=gist=Gist of {text}?", "--column", "mood=The mood of {gist}, {{really}}?",
            "--job_name=j", "--output_csv_path=out.csv", "--quiet", "--toolsets=none", f"--base_url={server.base_url}",
        )  # fmt: skip
        assert ended.code == 0, ended
        assert len(server.bodies) == 6
    assert [(row["gist"], row["mood"]) for row in folder.rows()] == [("the gist", "the mood")] * 3
    prompts = [stage["prompt"] for stage in shown(folder, "row-1")["stages"]]
    assert "Gist of one?\n" in prompts[0]
    assert "The mood of the gist, {really}?\n" in prompts[1]
    changed = jobs(folder, "run", "j", "--retry_failed", "--column=gist=Another {text}?")
    assert changed.code == 0, "nothing is left to do"


def test_a_job_goes_on_with_the_stages_it_was_made_with(folder: JobFolder) -> None:
    (folder.path / "break-score-a").touch()
    assert jobs(folder, *words(*FUNCTION)).code == 1
    (folder.path / "stages.yaml").write_text(STAGES.replace("Sum up", "Summarise"))
    refused = jobs(folder, "run", "j", "--retry_failed", "--stages=stages.yaml")
    assert refused.code == 2
    assert "the run was made with other settings: stages was" in refused.err
    assert "--override=stages" in refused.err
    (folder.path / "stages.yaml").unlink()
    (folder.path / "break-score-a").unlink()
    assert jobs(folder, "run", "j", "--retry_failed", "--quiet").code == 0
    check_results(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stages=stages.yaml", "--instruction=x"], "--instruction: not with stages, each of which has its own"),
        (["--stages=stages.yaml", "--output_schema={}"], "--output_schema: not with stages"),
        (["--stages=stages.yaml", "--column=a=b"], "give --stages or --column, not both"),
        (["--stages=none.yaml"], "can't read none.yaml: No such file or directory"),
        (["--column=name=b"], "--column: 'name' is a column of the table already"),
        (["--column=x={texts}"], "--column: {texts} names no column and no earlier stage; did you mean text?"),
        ([], "instruction must be non-empty"),
    ],
)
def test_what_can_not_be_is_refused_before_anything_is_made(
    folder: JobFolder, options: list[str], message: str
) -> None:
    ended = jobs(folder, "spawn", "rows.csv", "--job_name=j", FUNCTION[0], *options)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert not folder.folder().exists()


def test_a_dry_run_shows_the_prompts_of_all_stages(folder: JobFolder) -> None:
    ended = jobs(folder, *words("--toolsets=none", "--model=simulated", "--dry_run=1"))
    assert ended.code == 0
    assert "\nSum up one.\n" in ended.out
    assert "\nReply to {summary}, scored {score.score}.\n" in ended.out
    assert ended.out.count("── prompt") == 3
    assert "reply, when score >= 5" in ended.out
