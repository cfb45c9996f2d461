"""Runs of evaluations from eval files to results, with every kind of target, and what becomes of every kind of failure."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from manyhands.cli.execution import ProgressView, details
from manyhands.core.errors import UserError
from manyhands.runs.execution import execute_run
from manyhands.runs.progress import Progress
from manyhands.testing.scripted_server import ScriptedServer, chat_response
from manyhands.workloads.evals.batch.reports import command_figures, report_lines
from manyhands.workloads.evals.making import open_eval
from manyhands.workloads.evals.settings import EvalSpec
from tests.support.eval_runs import EvalRun, perform_eval

SITUATIONS = Path(__file__).parents[1] / "data/evals/batch_situations"
BULK = """\
    import json, os, sys
    with open("calls.log", "a") as log:
        log.write(" ".join(sys.argv[1:]) + "\\n")
    ids = open(os.environ["MANYHANDS_TEST_IDS_FILE"]).read().split()
    with open(sys.argv[1], "w") as out:
        for each in ids:
            if each not in sys.argv[2:]:
                out.write(json.dumps({"id": each, "text": f"{each} of {len(ids)}"}) + "\\n")
"""
ONE = """\
    import sys
    from pathlib import Path
    with open("calls.log", "a") as log:
        log.write(sys.argv[1] + "\\n")
    if sys.argv[1] == "bad":
        sys.exit("no luck")
    print("said", sys.argv[1], Path("suffix").read_text() if Path("suffix").exists() else "")
"""


def write(folder: Path, suite: str, **scripts: str) -> None:
    (folder / "suite.yaml").write_text(dedent(suite))
    for name, text in scripts.items():
        (folder / f"{name}.py").write_text(dedent(text))


def calls(folder: Path) -> list[str]:
    log = folder / "calls.log"
    return log.read_text().splitlines() if log.exists() else []


def cli(script: str, rest: str, **more: Any) -> str:
    """A target in flow style."""
    return json.dumps({"provider": "cli", "command": f"{sys.executable} {script}.py {rest}", "name": "tool", **more})


def suite(target: str, *tests: str, graders: str = "[{type: contains, value: said}]", more: str = "") -> str:
    lines = [f"targets: [{target}]", more, f"assert: {graders}", "tests:"]
    lines += [f"  - {{id: {each}, criteria: c, input: hi {each}}}" for each in tests]
    return "\n".join(lines) + "\n"


async def test_a_command_answers_each_test_and_its_failures_have_no_score(tmp_path: Path) -> None:
    write(tmp_path, suite(cli("one", "{EVAL_ID} >{OUTPUT_FILE}"), "good", "bad"), one=ONE)
    run = await perform_eval(tmp_path, max_attempts=1)
    assert run.statuses() == {"good": "passed", "bad": "error"}
    assert sorted(calls(tmp_path)) == ["bad", "good"]
    bad = run.record("bad")
    assert (bad["score"], bad["cause"]) == (None, "worker_error")
    assert "no luck" in bad["error"]
    assert bad.get("scores") is None  # the graders have not seen it
    assert run.record("good")["score"] == 1.0
    assert run.code == 3
    assert run.summary["mean_score"]["value"] == 1.0


async def test_all_kinds_of_targets_and_a_judge_are_put_to_the_same_tests(tmp_path: Path) -> None:
    write(
        tmp_path,
        f"""\
        targets:
          - {{name: sim, provider: model, model: simulated}}
          - {{name: agent, provider: agent, model: simulated, toolsets: [terminal], sandbox: local}}
          - {{name: mock, provider: mock, response: "said nothing"}}
          - {{name: function, provider: python, function: "own.py:answer"}}
          - {cli("one", "{EVAL_ID} >{OUTPUT_FILE}")}
        execution: {{targets: [sim, agent, mock, function, tool]}}
        tests:
          - id: a
            criteria: Says something
            input: "Count the files. [simulate: tools=1]"
            assert:
              - {{type: llm_judge, name: judge}}
              - {{type: regex, value: "\\\\w"}}
        """,
        one=ONE,
        own="def answer(asked):\n    return {'text': 'said ' + asked['id'], 'duration_ms': 5}\n",
    )
    run = await perform_eval(tmp_path, judge_target="sim")
    by_target = {each["target"]: each for each in run.records()}
    assert list(by_target) == ["sim", "agent", "mock", "function", "tool"]
    assert all([score["type"] for score in each["scores"]] == ["llm_judge", "regex"] for each in by_target.values())
    assert all(each["scores"][1]["score"] == 1.0 for each in by_target.values())
    assert [name for name, each in by_target.items() if each.get("simulated")] == ["sim", "agent", "mock"]
    assert by_target["agent"]["trace"]["event_count"] >= 1
    assert by_target["function"]["answer"] == "said a"
    assert by_target["function"]["duration_ms"] == 5
    # What is paid for is a step, in the scope of who pays it.
    assert ("grader-0", "model") in run.steps("suite/a@tool")
    assert ("", "target") in run.steps("suite/a@tool")


async def test_a_duration_that_is_none_is_an_error_of_its_test_and_not_measured_over(tmp_path: Path) -> None:
    record = '{"text": "a", "duration_ms": "slow"}'
    write(
        tmp_path,
        f"""\
        targets:
          - {{name: function, provider: python, function: "own.py:answer"}}
          - {{name: tool, provider: cli, command: "printf '%s' '{record.replace('"', chr(92) + '"')}' > {{OUTPUT_FILE}}"}}
        execution: {{targets: [function, tool]}}
        assert: [{{type: contains, value: a}}]
        tests: [{{id: a, input: x}}]
        """,
        own=f"def answer(asked):\n    return {record}\n",
    )
    run = await perform_eval(tmp_path)
    assert [(each["target"], each["error"]) for each in run.records()] == [
        ("function", "duration_ms is not a number"),
        ("tool", "duration_ms is not a number"),
    ]


@pytest.mark.parametrize(
    ("judge", "status"),
    [
        ("import sys\nsys.exit(1)\n", "grader_error"),
        ("print('no JSON')\n", "grader_error"),
        ("print('{\"score\": 0}')\n", "failed"),
        ("import sys, json\nprint(json.dumps({'score': int('said' in json.load(sys.stdin)['answer'])}))\n", "passed"),
    ],
)
async def test_a_judge_that_breaks_is_no_verdict(tmp_path: Path, judge: str, status: str) -> None:
    graders = "[{type: code_judge, name: own, script: [python3, judge.py]}]"
    write(tmp_path, suite('{name: m, provider: mock, response: "said it"}', "a", graders=graders), judge=judge)
    run = await perform_eval(tmp_path)
    record = run.record("a")
    assert record["status"] == status
    assert (record["score"] is None) == (status == "grader_error")
    assert record["answer"] == "said it"
    assert run.code == {"grader_error": 3, "failed": 1, "passed": 0}[status]


# --- Commands for all tests


BATCH = {"provider_batching": True}
EACH = "[{type: contains, value: of}]"


async def test_one_invocation_answers_all_tests(tmp_path: Path) -> None:
    write(tmp_path, suite(cli("bulk", "{OUTPUT_FILE}", **BATCH), "a", "b", graders=EACH), bulk=BULK)
    run = await perform_eval(tmp_path)
    assert run.statuses() == {"a": "passed", "b": "passed"}
    assert len(calls(tmp_path)) == 1
    assert all(each["duration_ms"] > 0 for each in run.records())
    assert run.record("a")["duration_ms"] == run.record("b")["duration_ms"]
    assert [report["failure"] for report in command_figures(run.folder)] == [None]
    # Continued, nothing is left to do.
    again = await perform_eval(tmp_path, resume=True, retry_errors=True)
    assert again.statuses() == run.statuses()
    assert len(calls(tmp_path)) == 1


async def test_graders_that_look_at_durations_get_the_share(tmp_path: Path) -> None:
    graders = "[{type: latency, threshold: 60000}]"
    write(tmp_path, suite(cli("bulk", "{OUTPUT_FILE}", **BATCH), "a", "b", graders=graders), bulk=BULK)
    run = await perform_eval(tmp_path)
    assert run.statuses() == {"a": "passed", "b": "passed"}


async def test_each_trial_is_an_invocation(tmp_path: Path) -> None:
    write(tmp_path, suite(cli("bulk", "{OUTPUT_FILE}", **BATCH), "a", "b", graders=EACH), bulk=BULK)
    run = await perform_eval(tmp_path, trials=3)
    assert len(calls(tmp_path)) == 3
    assert len({line.split()[0] for line in calls(tmp_path)}) == 3
    assert run.statuses() == {"a": "passed", "b": "passed"}
    assert sorted(report["trial"] for report in command_figures(run.folder)) == [0, 1, 2]


async def test_records_of_tests_that_were_not_chosen_are_no_surprise(tmp_path: Path) -> None:
    everything = BULK.replace("ids = open(", "ids = ['a', 'b', 'zz'] or open(")
    write(tmp_path, suite(cli("bulk", "{OUTPUT_FILE}", **BATCH), "a", "b", graders=EACH), bulk=everything)
    run = await perform_eval(tmp_path, test_id="a")
    assert run.statuses() == {"a": "passed"}
    (report,) = command_figures(run.folder)
    assert [line for line in report_lines(report) if "zz" in line]
    assert not [line for line in report_lines(report) if "id b" in line]


@pytest.mark.parametrize("rerun", [None, "missing"])
async def test_what_is_missing_is_asked_for_again_only_if_that_is_wanted(tmp_path: Path, rerun: str | None) -> None:
    left_out = BULK.replace("if each not in sys.argv[2:]", "if len(ids) == 1 or each != 'b'")
    write(tmp_path, suite(cli("bulk", "{OUTPUT_FILE}", **BATCH), "a", "b", "c", graders=EACH), bulk=left_out)
    run = await perform_eval(tmp_path, rerun=rerun)
    assert run.statuses() == {"a": "passed", "b": "passed" if rerun else "error", "c": "passed"}
    assert len(calls(tmp_path)) == (2 if rerun else 1)
    if rerun:
        assert run.record("b")["answer"] == "b of 1"
        assert run.code == 0
    else:
        assert "no record for test b" in run.record("b")["error"]


async def test_what_is_missing_twice_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, suite(cli("bulk", "{OUTPUT_FILE} b", **BATCH), "a", "b", graders=EACH), bulk=BULK)
    run = await perform_eval(tmp_path, rerun="missing")
    assert run.statuses() == {"a": "passed", "b": "error"}
    assert len(calls(tmp_path)) == 2


async def test_what_has_ended_without_a_record_is_asked_for_again_only_if_it_is_tried_again(tmp_path: Path) -> None:
    write(tmp_path, suite(cli("bulk", "{OUTPUT_FILE} b", **BATCH), "a", "b", graders=EACH), bulk=BULK)
    run = await perform_eval(tmp_path, rerun="missing")
    with closing(
        sqlite3.connect(run.folder / "run.db", isolation_level=None)
    ) as journal:  # as if cut off before the end of a
        journal.execute("UPDATE items SET state = 'running', record = NULL, finished_at = NULL WHERE key LIKE '%/a@%'")
    (run.folder / "run.lock").unlink()  # says that nobody changed the journal
    again = await perform_eval(tmp_path, resume=True)
    assert again.statuses() == {"a": "passed", "b": "error"}
    assert len(calls(tmp_path)) == 2
    await perform_eval(tmp_path, resume=True, retry_errors=True)
    assert len(calls(tmp_path)) == 3


async def test_an_answer_that_is_contradicted_later_is_an_error(tmp_path: Path) -> None:
    late = """\
        import json, sys, time
        with open(sys.argv[1], "w", buffering=1) as out:
            for each in "ab":
                out.write(json.dumps({"id": each, "text": f"{each} of 2"}) + "\\n")
            time.sleep(0.6)
            out.write(json.dumps({"id": "a", "text": "another of 2"}) + "\\n")
    """
    write(tmp_path, suite(cli("late", "{OUTPUT_FILE}", **BATCH), "a", "b", graders=EACH), late=late)
    run = await perform_eval(tmp_path)
    assert run.statuses() == {"a": "error", "b": "passed"}
    assert run.record("a")["score"] is None
    assert "different records" in run.record("a")["error"]


async def test_a_command_is_not_cut_off_when_all_tests_are_errors(tmp_path: Path) -> None:
    late = """\
        import json, sys, time
        with open(sys.argv[1], "w", buffering=1) as out:
            for each in "ab":
                out.write(json.dumps({"id": each, "error": "no such thing"}) + "\\n")
            time.sleep(0.6)
            out.write(json.dumps({"id": "a", "text": "a of 2"}) + "\\n")
    """
    write(tmp_path, suite(cli("late", "{OUTPUT_FILE}", **BATCH), "a", "b", graders=EACH), late=late)
    run = await perform_eval(tmp_path)
    assert run.statuses() == {"a": "error", "b": "error"}
    assert run.record("a")["error"] == "two different records for test a (lines 1 and 3)"
    assert run.record("b")["error"] == "no such thing"
    [report] = run.summary["commands"]
    assert (report["exit_code"], report["records"]) == (0, 3)


async def test_a_command_that_fails_after_its_records_fails_the_run(tmp_path: Path) -> None:
    write(
        tmp_path,
        suite(cli("bulk", "{OUTPUT_FILE}", **BATCH), "a", graders=EACH),
        bulk=BULK + '\n    sys.exit("broken pipe somewhere")\n',
    )
    run = await perform_eval(tmp_path)
    assert run.statuses() == {"a": "passed"}
    assert run.code == 3
    assert "broken pipe somewhere" in run.summary["commands"][0]["failure"]


@pytest.mark.parametrize("batching", [True, False])
async def test_nothing_runs_if_the_healthcheck_fails(tmp_path: Path, batching: bool) -> None:
    check = {"healthcheck": {"command": "echo down; echo out of order >&2; exit 4"}, "provider_batching": batching}
    write(tmp_path, suite(cli("bulk", "{OUTPUT_FILE}", **check), "a", "b"), bulk=BULK)
    with pytest.raises(UserError, match=r"target 'tool' can't be used: .*out of order"):
        await perform_eval(tmp_path)
    assert calls(tmp_path) == []
    assert not (tmp_path / "data").exists()


def situations() -> list[str]:
    return [name for name in json.loads((SITUATIONS / "intended.json").read_text()) if name != "_"]


def test_the_recorded_situations_are_here() -> None:
    assert len(situations()) == 27


@pytest.mark.slow
@pytest.mark.parametrize("name", situations())
async def test_a_recorded_situation_ends_as_intended_in_a_run(name: str, tmp_path: Path) -> None:
    intended = json.loads((SITUATIONS / "intended.json").read_text())[name]
    for file in ("eval.yaml", "judge.py", "runner.py"):
        shutil.copy(SITUATIONS / file, tmp_path)
    targets = (SITUATIONS / "targets.yaml").read_text().replace("MODE", name).replace("python3", sys.executable)
    (tmp_path / "targets.yaml").write_text(targets)
    run = await perform_eval(tmp_path, file="eval.yaml", targets=str(tmp_path / "targets.yaml"))
    assert run.statuses() == {test_id: intended[test_id] for test_id in "abc"}
    assert run.code == intended["exit"]
    assert len(calls(tmp_path)) == intended["runs"]
    assert bool(mentioned(run)) == ("notice" in intended and name != "stdoutbig")


def mentioned(run: EvalRun) -> list[str]:
    """Everything that the console says beyond scores."""
    of_records = [line for each in run.records() for line in (each.get("error"), *(each.get("notices") or ())) if line]
    return [*of_records, *(line for report in command_figures(run.folder) for line in report_lines(report))]


# --- Answers that are used again


async def test_the_cache_asks_again_when_the_script_the_question_or_a_file_changes(tmp_path: Path) -> None:
    target = cli("one", "{EVAL_ID} >{OUTPUT_FILE}")
    write(tmp_path, suite(target, "a", "bad"), one=ONE)
    await perform_eval(tmp_path, "first", cache=True, max_attempts=1)
    assert sorted(calls(tmp_path)) == ["a", "bad"]
    second = await perform_eval(tmp_path, "second", cache=True, max_attempts=1)
    assert sorted(calls(tmp_path)) == ["a", "bad", "bad"]  # errors are not kept
    assert second.statuses() == {"a": "passed", "bad": "error"}
    assert second.record("a")["notices"] == ["answer of an earlier run (--cache)"]
    await perform_eval(tmp_path, "third", max_attempts=1)
    assert calls(tmp_path).count("a") == 2  # only where it is asked for
    await perform_eval(tmp_path, "trials", cache=True, trials=2, max_attempts=1)
    assert calls(tmp_path).count("a") == 4
    write(tmp_path, suite(target, "a"), one=ONE + "\n    print('more')\n")
    changed = await perform_eval(tmp_path, "changed", cache=True, max_attempts=1)
    assert calls(tmp_path).count("a") == 5
    assert "more" in changed.record("a")["answer"]
    write(tmp_path, suite(target, "a").replace("hi a", "hello a"))
    await perform_eval(tmp_path, "question", cache=True, max_attempts=1)
    assert calls(tmp_path).count("a") == 6


async def test_the_cache_asks_again_when_a_variable_or_what_a_function_is_told_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = cli("one", "{EVAL_ID} ${{ WHICH:-none }} >{OUTPUT_FILE}")
    write(tmp_path, suite(shown, "a"), one=ONE)
    for number, which in enumerate((None, None, "new", "new")):
        if which is not None:
            monkeypatch.setenv("WHICH", which)
        await perform_eval(tmp_path, f"run{number}", cache=True)
    assert calls(tmp_path) == ["a", "a"]
    own = "def answer(asked):\n    open('calls.log', 'a').write(asked['criteria'])\n    return 'said'\n"
    function = json.dumps({"name": "f", "provider": "python", "function": f"{tmp_path / 'own.py'}:answer"})
    for number, criteria in enumerate(("c", "c", "d")):
        write(
            tmp_path,
            suite(function, "a").replace("criteria: c", f"criteria: {criteria}"),
            own=own.replace("'calls.log'", repr(str(tmp_path / "told.log"))),
        )
        await perform_eval(tmp_path, f"function{number}", cache=True)
    assert (tmp_path / "told.log").read_text() == "cd"


async def test_the_cache_asks_again_when_the_eval_file_changes_and_the_command_reads_it(tmp_path: Path) -> None:
    target = cli("one", "{EVAL_ID} >{OUTPUT_FILE} <{EVAL_FILE}")
    for number, more in enumerate(("", "", "description: another")):
        write(tmp_path, suite(target, "a", more=more), one=ONE)
        await perform_eval(tmp_path, f"run{number}", cache=True)
    assert calls(tmp_path) == ["a", "a"]


async def test_the_cache_has_no_answers_that_left_something_in_a_workspace(tmp_path: Path) -> None:
    (tmp_path / "template").mkdir()
    for name in ("first", "second"):
        write(
            tmp_path,
            suite(cli("{EVAL_DIR}/one", "{EVAL_ID} >{OUTPUT_FILE}"), "a", more="workspace: {template: template}"),
            one=ONE.replace('"calls.log"', repr(str(tmp_path / "calls.log"))),
        )
        await perform_eval(tmp_path, name, cache=True)
    assert calls(tmp_path) == ["a", "a"]


async def test_the_cache_is_not_for_commands_that_answer_all_tests(tmp_path: Path) -> None:
    write(tmp_path, suite(cli("bulk", "{OUTPUT_FILE}", **BATCH), "a", graders=EACH), bulk=BULK)
    for name in ("first", "second"):
        await perform_eval(tmp_path, name, cache=True, max_attempts=1)
    assert len(calls(tmp_path)) == 2


@pytest.mark.parametrize("batching", [True, False])
async def test_a_finished_run_is_graded_again_without_its_targets(tmp_path: Path, batching: bool) -> None:
    script, rest = ("bulk", "{OUTPUT_FILE} bad") if batching else ("one", "{EVAL_ID} >{OUTPUT_FILE}")
    target = cli(script, rest, provider_batching=batching)
    write(tmp_path, suite(target, "a", "bad", graders="[{type: contains, value: never}]"), one=ONE, bulk=BULK)
    first = await perform_eval(tmp_path, "first")
    asked = calls(tmp_path)
    assert first.statuses() == {"a": "failed", "bad": "error"}
    for script_name in ("one", "bulk"):
        (tmp_path / f"{script_name}.py").unlink()
    write(tmp_path, suite(target, "a", "bad", "new", graders="[{type: contains, value: a}]"))
    again = await perform_eval(tmp_path, "again", regrade="first")
    assert calls(tmp_path) == asked
    assert again.statuses() == {"a": "passed", "bad": "error", "new": "error"}
    assert again.record("bad")["error"] == first.record("bad")["error"]
    assert again.record("a")["answer"] == first.record("a")["answer"]
    assert again.record("a")["duration_ms"] == first.record("a")["duration_ms"]
    assert "run first has no answer to test new" in again.record("new")["error"]


async def test_a_test_that_asks_something_else_than_before_says_so_when_it_is_graded_again(tmp_path: Path) -> None:
    lines = "targets: {{m: {{provider: mock, response: hi}}}}\nassert: [{{type: contains, value: hi}}]\ntests: [{}]\n"
    before, after = "{id: a, input: x}, {id: b, input: x}", "{id: a, input: x}, {id: b, input: y}"
    (tmp_path / "suite.yaml").write_text(lines.format(before))
    await perform_eval(tmp_path, "first")
    (tmp_path / "suite.yaml").write_text(lines.format(after))
    again = await perform_eval(tmp_path, "again", regrade="first")
    assert "notices" not in again.record("a")
    assert again.record("b")["notices"] == ["the input has changed since run first, whose answer this is"]


async def test_a_target_that_no_cache_spares_is_named(tmp_path: Path) -> None:
    target = cli("bulk", "{OUTPUT_FILE}", provider_batching=True)
    write(tmp_path, suite(target, "a"), bulk=BULK)
    said = "target tool answers all tests at once, and is invoked whatever is in the cache"
    assert said not in (await perform_eval(tmp_path, "plain")).said
    assert (await perform_eval(tmp_path, "cached", cache=True)).said.count(said) == 1


@pytest.mark.parametrize(("name", "message"), [("none", "not a run folder"), ("other", "has no dataset 'suite'")])
async def test_what_can_not_be_graded_again_is_said_before_anything_is_made(
    tmp_path: Path, name: str, message: str
) -> None:
    write(tmp_path, suite("{name: m, provider: mock, response: said}", "a"))
    shutil.copy(tmp_path / "suite.yaml", tmp_path / "others.yaml")
    await perform_eval(tmp_path, "other", file="others.yaml")
    with pytest.raises(UserError, match=message):
        await perform_eval(tmp_path, "again", regrade=name)
    assert not (tmp_path / "data" / "again").exists()


FILES_OF_TESTS = """\
    input:
      - role: system
        content: [{type: file, value: "house rules.md"}, {type: text, value: be kind}]
    tests:
      - id: list
        criteria: c
        input:
          - role: user
            content: [{type: file, value: one.txt}, {type: text, value: and}, {type: file, value: "two words.txt"}]
          - {role: assistant, content: {type: file, value: three.txt}}
          - role: user
            content: [{type: file, value: ./one.txt}, {type: file, value: sub/../one.txt}, {type: file, value: own.guide}]
      - {id: named, criteria: c, input: look, input_files: ["two words.txt", one.txt, "two words.txt"]}
"""
PRINT_FILES = """\
    import json, os, sys
    found = json.dumps(sys.argv[1:])
    if "MANYHANDS_BATCH_INPUT_FILE" in os.environ and os.environ["MANYHANDS_EVAL_ID"] == "batch":
        tests = [json.loads(line) for line in open(os.environ["MANYHANDS_BATCH_INPUT_FILE"])]
        with open(os.environ["MANYHANDS_OUTPUT_FILE"], "w") as out:
            for test in tests:
                out.write(json.dumps({"id": test["id"], "text": json.dumps([sys.argv[1:], test["files"]])}) + "\\n")
    else:
        print(found)
"""
LISTED = ["own.guide", "house rules.md", "one.txt", "two words.txt", "three.txt"]
NAMED = ["house rules.md", "two words.txt", "one.txt"]


def with_files(folder: Path, **more: Any) -> None:
    target = cli("files", "{FILES}", **more)
    write(folder, f"    targets: [{target}]\n{FILES_OF_TESTS}    assert: [{{type: is_json}}]\n", files=PRINT_FILES)
    for name in (*LISTED, "late file.txt"):
        (folder / name).write_text(name)
    (folder / "sub").mkdir()
    (folder / ".agentv").mkdir()
    (folder / ".agentv" / "config.yaml").write_text("guideline_patterns: ['**/*.guide']\n")
    (folder / ".git").mkdir()


def paths(folder: Path, *names: str) -> list[str]:
    return [str(folder.resolve() / name) for name in names]


async def test_a_command_gets_every_file_of_its_test_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with_files(tmp_path)
    run = await perform_eval(tmp_path)
    assert json.loads(run.record("list")["answer"]) == paths(tmp_path, *LISTED)
    assert json.loads(run.record("named")["answer"]) == paths(tmp_path, *NAMED)


async def test_a_batch_command_gets_every_file_of_all_tests_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with_files(tmp_path, provider_batching=True)
    run = await perform_eval(tmp_path)
    everything = paths(tmp_path, *LISTED)
    assert json.loads(run.record("list")["answer"]) == [everything, everything]
    assert json.loads(run.record("named")["answer"]) == [everything, paths(tmp_path, *NAMED)]


async def test_a_command_gets_the_files_of_all_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with_files(tmp_path)
    turns = "[{input: [{type: file, value: one.txt}]}, {input: [{type: file, value: late file.txt}], assert: [{type: is_json}]}]"
    suite_file = tmp_path / "suite.yaml"
    suite_file.write_text(
        f"{suite_file.read_text()}  - {{id: talk, mode: conversation, turns: {turns}}}\n".replace(
            "assert: [{type: is_json}]\n", "", 1
        )
    )
    run = await perform_eval(tmp_path, test_id="talk")
    expected = paths(tmp_path, "house rules.md", "one.txt", "late file.txt")
    assert [json.loads(turn["answer"]) for turn in run.record("talk")["turns"]] == [expected, expected]


BUDGETS = """\
    - {type: token_usage, name: all, max_total: 200}
    - {type: token_usage, name: less, max_total: 199}
    - {type: execution_metrics, name: both, max_tokens: 120}
    - {type: execution_metrics, name: fewer, max_tokens: 119}
"""


def budgets(run: EvalRun, test_id: str = "a") -> dict[str, float]:
    return {score["name"]: score["score"] for score in run.record(test_id)["scores"]}


@pytest.mark.parametrize("name", ["run", "regraded"])
async def test_tokens_of_a_record_that_came_from_a_cache_are_added_to_its_total(tmp_path: Path, name: str) -> None:
    record = {"id": "a", "text": "hi", "token_usage": {"input": 100, "output": 20, "cached": 80}}
    (tmp_path / "out.jsonl").write_text(json.dumps(record))
    (tmp_path / "suite.yaml").write_text(f"tests: [{{id: a, input: x}}]\nassert:\n{dedent(BUDGETS)}")
    run = await perform_eval(tmp_path, from_output=str(tmp_path / "out.jsonl"))
    if name == "regraded":
        run = await perform_eval(tmp_path, name, regrade="run")
    assert budgets(run) == {"all": 1, "less": 0, "both": 1, "fewer": 0}
    assert run.record("a")["token_usage"] == {"input": 100, "output": 20, "cached": 80}
    assert run.summary["token_usage"] == {"input": 100, "output": 20, "cached": 80, "tests_with_usage": 1}


async def test_tokens_of_a_model_that_came_from_a_cache_are_part_of_its_input(tmp_path: Path) -> None:
    answer = chat_response("hi")
    answer["usage"] = {
        "prompt_tokens": 180, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 80},
    }  # fmt: skip
    turns = "mode: conversation, turns: [{input: x, assert: [{type: token_usage, name: all, max_total: 200}]}]"
    async with ScriptedServer([answer]) as server:
        target = f"{{name: m, provider: model, model: m, base_url: '{server.base_url}'}}"
        tests = f"[{{id: a, input: x}}, {{id: talk, {turns}}}]"
        (tmp_path / "suite.yaml").write_text(f"targets: [{target}]\ntests: {tests}\nassert:\n{dedent(BUDGETS)}")
        for name, more in (("run", {"cache": True}), ("cached", {"cache": True}), ("regraded", {"regrade": "run"})):
            run = await perform_eval(tmp_path, name, **more)
            assert budgets(run) == {"all": 1, "less": 0, "both": 0, "fewer": 0}
            (turn, whole) = run.record("talk")["scores"]
            assert (turn["score"], [each["score"] for each in whole["scores"]]) == (1, [1, 0, 0, 0])


SLOW_BULK = """\
    import json, os, sys, time
    ids = open(os.environ["MANYHANDS_TEST_IDS_FILE"]).read().split()
    with open(sys.argv[1], "w") as out:
        for number, each in enumerate(ids):
            while number == 2 and not os.path.exists("go-on"):
                time.sleep(0.01)
            out.write(json.dumps({"id": each, "text": "said", **({"error": "no"} if each == "bad" else {})}) + "\\n")
            out.flush()
        while not os.path.exists("end"):
            time.sleep(0.01)
"""


async def test_progress_counts_what_is_graded_while_a_batch_command_runs(tmp_path: Path) -> None:
    write(tmp_path, suite(cli("slow", "{OUTPUT_FILE}", provider_batching=True), "a", "bad", "c", "d"), slow=SLOW_BULK)
    given = {"eval_files": [str(tmp_path / "suite.yaml")], "data_dir": str(tmp_path / "data"), "run_name": "run"}
    session = await open_eval(EvalSpec.make(given), resume=False, notice=lambda text: None, environ=os.environ)
    seen: list[str] = []
    view = ProgressView("run", graded=lambda: session.workload.graded)

    def on_progress(progress: Progress) -> None:
        graded = session.workload.graded
        view.show(progress)
        seen.append(
            f"{progress.finished}/{progress.items}: {details(progress, graded=graded)}".partition(" in flight")[0]
        )
        if graded == 2:
            (tmp_path / "go-on").touch()
        if graded == 4:
            (tmp_path / "end").touch()

    await execute_run(session, notice=lambda text: None, on_progress=on_progress)
    assert "0/4: 2 graded, to end with their command, 2" in seen
    assert "0/4: 4 graded, to end with their command, 0" in seen
    assert session.workload.graded == 0
    assert seen[-1] == "4/4: 0"


async def test_an_agent_with_tools_of_a_file(tmp_path: Path) -> None:
    write(
        tmp_path,
        """\
        targets: [{name: agent, provider: agent, model: simulated, tools: [counting.py]}]
        execution: {target: agent}
        tests:
          - id: a
            criteria: Counts
            input: "Count the files. [simulate: tools=1]"
            assert: [{type: tool_trajectory, mode: any_order, minimums: {count_files: 1}}]
        """,
        counting="def count_files(folder: str) -> int:\n    'How many files there are.'\n    return 7\n",
    )
    run = await perform_eval(tmp_path)
    assert run.record("a")["score"] == 1.0
