"""Workspaces of tests and the hooks around them: what is in them when, what becomes of them, what outlives a kill."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from manyhands.cli.evals.run import run as eval_command
from manyhands.core.errors import UserError
from manyhands.processes.strays import process_table
from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedServer, chat_response
from tests.support.eval_runs import EvalRun, perform_eval

PASSES = [{"type": "contains", "value": "ok"}]
LOG = 'echo "$0 $MANYHANDS_WORKSPACE" >> hooks.log; '
KILL = "read -r _ _ _ owner _ < /proc/$PPID/stat; grep -qz '^manyhands$' /proc/$owner/cmdline && kill -9 $owner"
"""Kills the program that had the shell launched, if it is ours and not that of the tests."""
KEY = "sk-0123456789abcdef"


def hook(name: str, line: str = "", **more: Any) -> dict[str, Any]:
    """A hook that logs its name."""
    return {"script": ["sh", "-c", LOG + line, name], **more}


def hooks(**lines: str) -> dict[str, Any]:
    return {name: hook(name, line) for name, line in lines.items()}


def command(line: str, **more: Any) -> dict[str, Any]:
    return {"name": "tool", "provider": "cli", "command": line, **more}


def write(folder: Path, target: dict[str, Any], workspace: dict[str, Any] | None, *tests: Any, **more: Any) -> None:
    """A suite whose tests are ids, or whole tests."""
    template = folder / "template"
    template.mkdir(exist_ok=True)
    (template / "notes.txt").write_text("first\n")
    written = [
        {"id": each, "input": f"do {each}", "assert": PASSES} if isinstance(each, str) else each for each in tests
    ]
    suite = {"targets": [target], "tests": written, **({"workspace": workspace} if workspace else {}), **more}
    (folder / "suite.yaml").write_text(json.dumps(suite))


def logged(folder: Path) -> list[str]:
    """The names of the hooks that ran, in order."""
    log = folder / "hooks.log"
    return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []


def command_line(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def kept(run: EvalRun) -> list[str]:
    """The tests whose workspaces are there."""
    return [each["test_id"] for each in run.records() if "workspace_path" in each]


async def test_each_test_has_a_fresh_copy_and_what_changes_in_it_is_known(tmp_path: Path) -> None:
    (tmp_path / "template" / ".git").mkdir(parents=True)
    (tmp_path / "template" / ".git" / "config").write_text("mine")
    line = "pwd > {OUTPUT_FILE}; cat notes.txt >> {OUTPUT_FILE}; ls -A >> {OUTPUT_FILE}; echo second >> notes.txt"
    ends = [{"type": "contains", "value": "/workspace\nfirst\nnotes.txt\n"}]
    tests = [{"id": each, "input": "x", "assert": ends} for each in ("a", "b")]
    write(tmp_path, command(line + "; test $MANYHANDS_WORKSPACE = {WORKSPACE}"), {"template": "template"}, *tests)
    run = await perform_eval(tmp_path)
    assert run.statuses() == {"a": "passed", "b": "passed"}
    expected = ["diff --git a/notes.txt b/notes.txt", "--- a/notes.txt", "+++ b/notes.txt", " first", "+second"]
    for record in run.records():
        lines = record["file_changes"].splitlines()
        assert [each for each in lines if each in expected] == expected
    answers = {record["answer"].splitlines()[0] for record in run.records()}
    assert len(answers) == 2
    assert all(answer.startswith(str(run.folder)) for answer in answers)
    assert kept(run) == []
    assert not (run.folder / "workspaces").exists()
    assert (tmp_path / "template" / "notes.txt").read_text() == "first\n"


async def test_hooks_run_in_their_places_and_are_told_of_the_test(tmp_path: Path) -> None:
    workspace = {
        "template": "template",
        **hooks(before_all="echo all; touch $MANYHANDS_WORKSPACE/prepared", after_all="echo bye"),
        "before_each": {"script": "cat > $AGENTV_WORKSPACE_PATH/told.json; echo ready; echo aside >&2"},
        "after_each": {"script": "echo done"},
    }
    test = {"id": "a", "input": "do it", "metadata": {"caseKey": 1}, "assert": PASSES}
    write(tmp_path, command("test -f prepared && echo ok && cat told.json"), workspace, test)
    run = await perform_eval(tmp_path)
    record = run.record("a")
    told = json.loads(record["answer"].partition("\n")[2])
    assert told["workspace_path"].endswith("/workspaces/1-1/workspace")
    assert told | {"workspace_path": None, "eval_run_id": None} == {
        "workspace_path": None,
        "eval_run_id": None,
        "test_id": "a",
        "case_input": "do it",
        "case_metadata": {"caseKey": 1},
    }
    assert record["before_each_output"] == "ready\naside"
    assert record["after_each_output"] == "done"
    assert record["before_all_output"] == "all"
    assert record["after_all_output"] == "bye"
    assert record["file_changes"] == ""  # what hooks did is none of the target's


async def test_a_test_overrides_the_suite_key_by_key_and_a_target_the_template(tmp_path: Path) -> None:
    for name in ("other", "targets_own"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    line = "echo ok; ls"
    suite = {"template": "template", **hooks(before_each="echo suite > $MANYHANDS_WORKSPACE/by")}
    own = {"id": "own", "input": "x", "assert": PASSES, "workspace": {"template": "other"}}
    none = {"id": "hook", "input": "x", "assert": PASSES, "workspace": hooks(before_each="true")}
    write(tmp_path, command(line), suite, "plain", own, none)
    run = await perform_eval(tmp_path)
    assert {each["test_id"]: each["answer"].split()[1:] for each in run.records()} == {
        "plain": ["by", "notes.txt"],
        "own": ["by", "other"],
        "hook": ["notes.txt"],
    }
    write(tmp_path, command(line, workspace_template="targets_own"), suite, "plain", own)
    run = await perform_eval(tmp_path, "two")
    assert {tuple(each["answer"].split()[1:]) for each in run.records()} == {("by", "targets_own")}
    write(tmp_path, command(line, workspace_template="targets_own"), None, "plain")
    run = await perform_eval(tmp_path, "three")
    assert run.record("plain")["answer"].split()[1:] == ["targets_own"]


async def test_hooks_alone_make_an_empty_folder_and_a_cwd_counts(tmp_path: Path) -> None:
    write(tmp_path, command("echo ok; pwd; ls {WORKSPACE}", cwd="."), hooks(before_each="true"), "a")
    run = await perform_eval(tmp_path)
    assert run.record("a")["answer"].split() == ["ok", str(tmp_path)]


async def test_without_a_workspace_the_placeholder_is_where_the_command_starts(tmp_path: Path) -> None:
    write(tmp_path, command("echo ok {WORKSPACE}"), None, "a")
    run = await perform_eval(tmp_path)
    assert run.record("a")["answer"].split() == ["ok", str(tmp_path)]
    assert "file_changes" not in run.record("a")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["low", "broken", "judged"]),
        ({"keep_workspaces": True}, ["good", "low", "broken", "judged"]),
        ({"cleanup_workspaces": True}, []),
    ],
)
async def test_workspaces_of_tests_that_did_not_pass_are_kept(
    tmp_path: Path, settings: dict[str, Any], expected: list[str]
) -> None:
    line = "test {EVAL_ID} != broken && echo {EVAL_ID} > made && echo ok"
    low = {"id": "low", "input": "x", "assert": [{"type": "contains", "value": "nothing of it"}]}
    judged = {"id": "judged", "input": "x", "assert": [{"type": "code_judge", "name": "j", "script": "exit 1"}]}
    write(tmp_path, command(line), {"template": "template"}, "good", low, "broken", judged)
    run = await perform_eval(tmp_path, **settings)
    assert run.statuses() == {"good": "passed", "low": "failed", "broken": "error", "judged": "grader_error"}
    assert kept(run) == expected
    for name in expected:
        files = {path.name for path in Path(run.record(name)["workspace_path"]).iterdir()}
        assert files == {"notes.txt"} | ({"made"} if name != "broken" else set())


async def test_to_keep_all_and_none_is_refused(tmp_path: Path) -> None:
    write(tmp_path, command("echo ok"), None, "a")
    with pytest.raises(UserError, match="--keep_workspaces or --cleanup_workspaces"):
        await perform_eval(tmp_path, keep_workspaces=True, cleanup_workspaces=True)


async def test_what_fails_before_a_test_is_its_error_and_the_target_is_not_asked(tmp_path: Path) -> None:
    failing = """echo trying; echo why >&2; grep -q '"test_id":"bad"' && exit 7; true"""
    write(tmp_path, command("touch ../asked; echo ok"), hooks(before_each=failing, after_each=""), "good", "bad")
    run = await perform_eval(tmp_path)
    bad = run.record("bad")
    assert (bad["status"], bad["score"], bad["cause"]) == ("error", None, "target_error")
    assert bad["error"] == "before_each: the command ended with exit code 7: why"
    assert bad["before_each_output"] == "trying\nwhy"
    assert run.statuses()["good"] == "passed"
    assert not (Path(bad["workspace_path"]).parent / "asked").exists()
    assert logged(tmp_path).count("after_each") == 1  # what was not begun is not ended


async def test_what_fails_afterwards_is_a_notice(tmp_path: Path) -> None:
    late = hooks(after_each="exit 4", after_all="echo no >&2; exit 5")
    write(tmp_path, command("echo ok"), late, "a")
    run = await perform_eval(tmp_path)
    record = run.record("a")
    assert record["status"] == "passed"
    assert record["notices"] == ["after_each: the command ended with exit code 4"]
    assert record["after_all_output"] == "no"


async def test_after_each_follows_a_target_that_failed_as_often_as_it_was_asked(tmp_path: Path) -> None:
    write(tmp_path, command("sleep 30", timeout_seconds=0.2), hooks(before_each="", after_each=""), "slow")
    run = await perform_eval(tmp_path, max_retries=1)
    assert run.record("slow")["cause"] == "timeout"
    assert logged(tmp_path) == ["before_each", "after_each"] * 2


async def test_a_workspace_that_can_not_be_looked_through_is_a_notice(tmp_path: Path) -> None:
    deep = "import os\nfor _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\nprint('ok')\n"
    (tmp_path / "deep.py").write_text(deep)
    write(tmp_path, command(f"{sys.executable} {{EVAL_DIR}}/deep.py"), {"template": "template"}, "a")
    run = await perform_eval(tmp_path)
    record = run.record("a")
    assert record["status"] == "passed"
    assert record["notices"][0].startswith("what changed in the workspace is not known")
    assert "file_changes" not in record
    assert not (run.folder / "workspaces").exists()


@pytest.mark.parametrize("line", ["rm -r {WORKSPACE}", "rm -r {WORKSPACE}; ln -s / {WORKSPACE}", "rm notes.txt"])
async def test_a_target_that_removes_its_workspace_is_asked_once(tmp_path: Path, line: str) -> None:
    write(tmp_path, command(f"{line}; echo asked >> {{EVAL_DIR}}/hooks.log; echo ok"), {"template": "template"}, "a")
    run = await perform_eval(tmp_path, keep_workspaces=True)
    assert run.statuses() == {"a": "passed"}
    assert logged(tmp_path) == ["asked"]
    assert "deleted file mode 100644" in run.record("a")["file_changes"]
    assert list(Path(run.record("a")["workspace_path"]).iterdir()) == []


async def test_what_is_odd_about_a_template(tmp_path: Path) -> None:
    write(tmp_path, command("test -d other && echo ok"), {"template": "template"}, "a")
    (tmp_path / "template").rename(tmp_path / "was")
    (tmp_path / "template").symlink_to(tmp_path / "was")
    (tmp_path / "was" / "unreadable").symlink_to("nowhere")  # a link to nothing is copied as such
    run = await perform_eval(tmp_path, cleanup_workspaces=True)
    assert run.statuses() == {"a": "error"}
    write(tmp_path, command("echo ok"), hooks(before_all="rm -r $MANYHANDS_WORKSPACE"), "a")
    run = await perform_eval(tmp_path, "gone")
    assert "before_all: its workspace is gone" in str(run.result.error)


async def test_nothing_is_asked_if_what_runs_before_all_fails(tmp_path: Path) -> None:
    write(tmp_path, command("touch {EVAL_DIR}/asked; echo ok"), hooks(before_all="echo why >&2; exit 3"), "a", "b")
    run = await perform_eval(tmp_path)
    assert str(run.result.error) == f"{tmp_path}/suite.yaml: before_all: the command ended with exit code 3: why"
    assert run.code == 2
    assert run.statuses() == {}
    assert not (tmp_path / "asked").exists()
    assert logged(tmp_path) == ["before_all"]
    # Once it is mended, the run goes on.
    (tmp_path / "hooks.log").unlink()
    write(tmp_path, command("echo ok"), hooks(before_all=""), "a", "b")
    again = await perform_eval(tmp_path, "again")
    assert again.code == 0
    assert logged(tmp_path) == ["before_all"]


async def test_a_hook_is_ended_at_its_time_limit_with_all_that_it_started(tmp_path: Path) -> None:
    line = f"(sleep 3; touch {tmp_path}/late) & sleep 30"
    write(tmp_path, command("echo ok"), {"before_each": hook("slow", line, timeout_ms=200)}, "a")
    run = await perform_eval(tmp_path)
    assert run.record("a")["error"] == "before_each: the command timed out after 0.2 s"
    assert not any(str(tmp_path / "late").encode() in data for data in map(command_line, process_table()))


async def test_long_output_is_cut_and_secrets_stay_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN_API_KEY", KEY)
    noisy = "echo $OWN_API_KEY; head -c 100000 /dev/zero | tr '\\0' x; echo; echo $OWN_API_KEY; cat > /dev/null"
    write(tmp_path, command("echo ok; echo $OWN_API_KEY > leak"), hooks(before_each=noisy), "a")
    run = await perform_eval(tmp_path)
    record = run.record("a")
    assert record["status"] == "passed"
    assert len(record["before_each_output"]) == 8000
    assert record["before_each_output"].endswith("[redacted]")
    assert "+[redacted]" in record["file_changes"]
    assert KEY not in json.dumps(record)


async def test_graders_see_the_workspace_as_the_target_left_it(tmp_path: Path) -> None:
    judge = """\
import json, os, sys
told = json.load(sys.stdin)
path = told["workspace_path"]
assert os.environ["AGENTV_WORKSPACE_PATH"] == path
left = open(os.path.join(path, "made")).read()
print(json.dumps({"score": float(left == "by target\\n" and "+by target" in told["file_changes"])}))
"""
    (tmp_path / "judge.py").write_text(judge)
    graders = [
        {"type": "code_judge", "name": "warm", "script": "python3 judge.py"},
        {"type": "code_grader", "name": "later", "script": ["sh", "-c", "exec python3 judge.py"]},
        {"type": "agent_judge", "name": "looks", "target": "sim"},
    ]
    test = {"id": "a", "input": "x [simulate: tools=1]", "criteria": "it is made", "assert": graders}
    write(tmp_path, command("echo by target > made; echo ok"), hooks(after_each="rm $MANYHANDS_WORKSPACE/made"), test)
    suite = json.loads((tmp_path / "suite.yaml").read_text())
    suite["targets"].append({"name": "sim", "provider": "model", "model": "simulated"})
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    run = await perform_eval(tmp_path, target="tool", judge_target="sim")
    scores = {each["name"]: each["score"] for each in run.record("a")["scores"]}
    assert scores["warm"] == scores["later"] == 1
    assert scores["looks"] is not None
    assert any(scope.startswith("grader-2/look/") and kind == "tool" for scope, kind in run.steps("suite/a@tool"))


CALL = {"name": "terminal", "arguments": json.dumps({"command": "cat notes.txt; echo second >> notes.txt"})}
CALLING = chat_response("", tool_calls=[{"id": "c1", "type": "function", "function": CALL}])


def agent(server: ScriptedServer, sandbox: str) -> dict[str, Any]:
    about = {"name": "agent", "provider": "agent", "model": "scripted", "toolsets": ["terminal"]}
    return {**about, "base_url": server.base_url, "sandbox": sandbox}


@pytest.mark.parametrize("sandbox", ["local", "bubblewrap"])
async def test_an_agent_works_in_a_copy_of_the_template(tmp_path: Path, sandbox: str) -> None:
    async with ScriptedServer([CALLING, chat_response("ok")]) as server:
        workspace = {"template": "template", **hooks(before_each="", after_each="")}
        write(tmp_path, agent(server, sandbox), workspace, "a")
        run = await perform_eval(tmp_path)
    record = run.record("a")
    assert record["status"] == "passed"
    assert "first" in json.dumps(record["output"])
    assert "+second" in record["file_changes"]
    assert logged(tmp_path) == ["before_each", "after_each"]


async def test_a_function_and_a_mock_have_workspaces_too(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from pathlib import Path\ndef answer(asked):\n    Path(asked['workspace'], 'made').touch()\n    return 'ok'\n"
    )
    target = {"name": "tool", "provider": "python", "function": "own.py:answer"}
    write(tmp_path, target, {"template": "template"}, "a")
    run = await perform_eval(tmp_path)
    assert "b/made" in run.record("a")["file_changes"]
    run = await perform_eval(tmp_path, "dry", dry_run=True)
    assert run.record("a")["file_changes"] == ""


async def test_answers_of_earlier_runs_are_not_used_where_the_workspace_counts(tmp_path: Path) -> None:
    write(tmp_path, command("echo asked >> {EVAL_DIR}/hooks.log; echo ok"), {"template": "template"}, "a")
    for name in ("one", "two"):
        await perform_eval(tmp_path, name, cache=True)
    assert logged(tmp_path) == ["asked", "asked"]


async def test_the_run_folder_in_the_template_is_not_copied(tmp_path: Path) -> None:
    write(tmp_path, command("echo ok; ls"), {"template": "."}, "a")
    run = await perform_eval(tmp_path)
    assert run.record("a")["answer"].split() == ["ok", "suite.yaml", "template"]


async def test_answers_are_graded_again_with_what_was_kept_of_their_workspaces(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(
        "import json, os, sys\ntold = json.load(sys.stdin)\n"
        "there = os.path.isdir(told['workspace_path'] or '-')\n"
        "print(json.dumps({'score': (there + ('b/made' in told['file_changes'])) / 2}))\n"
    )
    test = {"id": "a", "input": "x", "assert": [{"type": "code_judge", "name": "j", "script": "python3 judge.py"}]}
    write(tmp_path, command("touch made; echo ok"), {"template": "template"}, test)
    for keep, score in ((True, 1), (False, 0.5)):
        await perform_eval(tmp_path, f"run-{keep}", keep_workspaces=keep)
        run = await perform_eval(tmp_path, f"again-{keep}", regrade=f"run-{keep}")
        assert run.record("a")["score"] == score


# --- Commands that answer all tests at once

BULK = """\
import json, os, sys
names = open(os.environ["MANYHANDS_TEST_IDS_FILE"]).read().split()
with open(sys.argv[1], "w") as out:
    for each in names:
        with open(each, "w") as file:
            file.write("made\\n")
        out.write(json.dumps({"id": each, "text": "ok " + os.getcwd()}) + "\\n")
"""


def bulk(**more: Any) -> dict[str, Any]:
    return command(f"{sys.executable} {{EVAL_DIR}}/bulk.py {{OUTPUT_FILE}}", provider_batching=True, **more)


async def test_one_invocation_has_one_workspace(tmp_path: Path) -> None:
    (tmp_path / "bulk.py").write_text(BULK)
    (tmp_path / "judge.py").write_text(
        "import json, os, sys\ntold = json.load(sys.stdin)\n"
        "there = sorted(os.listdir(told['workspace_path'])) == ['a', 'b', 'notes.txt']\n"
        "print(json.dumps({'score': float(there and '+++ b/a' in told['file_changes'])}))\n"
    )
    judge = [{"type": "code_judge", "name": "j", "script": "python3 judge.py"}]
    tests = [{"id": each, "input": "x", "assert": judge} for each in ("a", "b")]
    write(tmp_path, bulk(), {"template": "template", **hooks(before_all="", after_all="")}, *tests)
    run = await perform_eval(tmp_path)
    assert run.statuses() == {"a": "passed", "b": "passed"}
    assert len({each["answer"] for each in run.records()}) == 1
    assert logged(tmp_path) == ["before_all", "after_all"]
    (changes,) = run.folder.glob("targets/*/invocation_1/file_changes.diff")
    assert "+++ b/b" in changes.read_text()
    assert not list(run.folder.glob("targets/*/*/workspace"))
    assert kept(run) == []
    run = await perform_eval(tmp_path, "kept", keep_workspaces=True)
    assert [each["workspace_path"] for each in run.records()] == [
        str(path) for path in run.folder.glob("targets/*/*/workspace") for _ in "ab"
    ]


async def test_what_one_invocation_can_not_do_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bulk.py").write_text(BULK)
    write(tmp_path, bulk(), hooks(before_each=""), "a", "b")
    with pytest.raises(UserError, match=r"before_each.* can't run for each test .* target tool"):
        await perform_eval(tmp_path)
    own = {"id": "own", "input": "x", "assert": PASSES, "workspace": {"template": "template"}}
    write(tmp_path, bulk(), hooks(before_all=""), "a", own)
    with pytest.raises(UserError, match="not the same for all tests that target tool answers"):
        await perform_eval(tmp_path)


# --- What is checked before anything runs


@pytest.mark.parametrize(
    ("workspace", "problem"),
    [
        ({"template": "missing"}, r"workspace\.template: there is no folder .*missing"),
        ({"before_all": {"script": "true", "cwd": "missing"}}, r"workspace\.before_all\.cwd: there is no folder"),
    ],
)
async def test_folders_that_are_not_there_are_found_first(tmp_path: Path, workspace: Any, problem: str) -> None:
    write(tmp_path, command("echo ok"), workspace, "a")
    with pytest.raises(UserError, match=problem):
        await perform_eval(tmp_path)
    write(tmp_path, command("echo ok"), None, {"id": "a", "input": "x", "assert": PASSES, "workspace": workspace})
    with pytest.raises(UserError, match=problem):
        await perform_eval(tmp_path)


async def test_a_target_has_a_folder_or_a_template(tmp_path: Path) -> None:
    write(tmp_path, command("echo ok", cwd=".", workspace_template="template"), None, "a")
    with pytest.raises(UserError, match="cwd: can't be given together with workspace_template"):
        await perform_eval(tmp_path)


# --- What is shown


def test_commands_are_shown_where_that_is_wanted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWN_API_KEY", KEY)
    monkeypatch.chdir(tmp_path)
    write(tmp_path, command(f"echo ok {KEY}", verbose=True), hooks(before_each=""), "a")
    assert eval_command(["suite.yaml", "--run_name=one"]) == 0
    shown = capfd.readouterr().err
    assert "tool: echo ok [redacted]\n" in shown
    assert "before_each:" not in shown
    assert eval_command(["suite.yaml", "--run_name=two", "--verbose"]) == 0
    assert "before_each: sh -c" in capfd.readouterr().err
    write(tmp_path, command(f"echo ok {KEY}"), None, "a")
    assert eval_command(["suite.yaml", "--run_name=three"]) == 0
    assert "tool: echo" not in capfd.readouterr().err


async def test_files_of_commands_are_kept_where_that_is_wanted(tmp_path: Path) -> None:
    for keep in (True, False):
        write(tmp_path, command("echo ok > {OUTPUT_FILE}", keep_temp_files=keep), None, "a")
        run = await perform_eval(tmp_path, f"run-{keep}")
        found = sorted(path.name for path in run.folder.glob("workspaces/1-1/target/*"))
        assert found == (["output.json", "prompt.txt"] if keep else [])


# --- After a kill


async def started(folder: Path, *words: str) -> asyncio.subprocess.Process:
    """A process that performs the suite, one test after another."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "manyhands", *words, "--workers=1"),
        cwd=folder,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )


async def killed(folder: Path, *words: str) -> None:
    """Perform the suite in a process that is killed on the way."""
    process = await started(folder, *words)
    assert await asyncio.wait_for(process.wait(), 60) == -9


async def test_a_killed_run_goes_on_in_fresh_workspaces_and_repeats_nothing_that_ended(tmp_path: Path) -> None:
    line = "echo {EVAL_ID} >> notes.txt; cat notes.txt; echo ok; mkdir {EVAL_DIR}/{EVAL_ID} || exit 0; "
    line += f"test {{EVAL_ID}} != second || {{ {KILL}; }}"
    every = hooks(before_all="echo all", before_each="", after_each="", after_all="")
    judge = f"cat $AGENTV_WORKSPACE_PATH/notes.txt; mkdir judging || exit 0; {KILL}"
    third = {"id": "third", "input": "x", "assert": [{"type": "code_grader", "name": "j", "script": judge}]}
    write(tmp_path, command(line), {"template": "template", **every}, "first", "second", third)
    await killed(tmp_path, "eval", "suite.yaml", "--run_name=run")  # by the command
    assert logged(tmp_path) == ["before_all", "before_each", "after_each", "before_each"]
    await killed(tmp_path, "resume", "data/run")  # by the judge
    run = await perform_eval(tmp_path, resume=True)
    assert run.statuses() == {"first": "passed", "second": "passed", "third": "passed"}
    # A target that had not answered starts from the template; one that had is not asked again, and graders see what it left.
    assert run.record("second")["answer"] == "first\nsecond\nok"
    assert logged(tmp_path) == [
        *["before_all", "before_each", "after_each", "before_each"],
        *["before_each", "after_each", "before_each"],
        *["after_each", "after_all"],
    ]
    assert run.record("first")["before_all_output"] == "all"
    third_record = run.record("third")
    assert third_record["scores"][0]["hits"] == ["first third"]
    assert "+third" in third_record["file_changes"]


async def test_an_agent_goes_on_in_its_workspace(tmp_path: Path) -> None:
    process: asyncio.subprocess.Process | None = None

    def reply(request: RecordedRequest) -> Reply:
        if len(request.body["messages"]) < 3:
            return CALLING
        if process is not None and process.returncode is None:
            process.kill()
        return chat_response("ok")

    async with ScriptedServer(reply) as server:
        workspace = {"template": "template", **hooks(before_each="", after_each="")}
        write(tmp_path, agent(server, "local"), workspace, "a")
        process = await started(tmp_path, "eval", "suite.yaml", "--run_name=run")
        assert await asyncio.wait_for(process.wait(), 60) == -9
        run = await perform_eval(tmp_path, resume=True)
    assert run.statuses() == {"a": "passed"}
    assert run.record("a")["file_changes"].count("+second") == 1
    assert logged(tmp_path) == ["before_each", "after_each"]


async def test_tests_that_are_tried_again_have_everything_made_anew(tmp_path: Path) -> None:
    line = "test -f {EVAL_DIR}/mended && echo ok"
    write(tmp_path, command(line), hooks(before_all="", before_each="", after_each="", after_all=""), "a")
    run = await perform_eval(tmp_path)
    assert kept(run) == ["a"]
    (tmp_path / "mended").touch()
    run = await perform_eval(tmp_path, resume=True, retry_errors=True)
    assert run.statuses() == {"a": "passed"}
    assert kept(run) == []
    assert logged(tmp_path) == ["before_all", "before_each", "after_each", "after_all"] * 2
