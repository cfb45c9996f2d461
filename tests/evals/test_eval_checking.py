"""What is wrong with an evaluation is found before anything is made, and ``validate`` says the same as the evaluation itself."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import pytest

from manyhands.processes.templates import missing
from tests.support.batches import Ran, read_lines, run_command

PREFIX = "manyhands: error: "
TEST = "tests: [{id: a, input: i, expected_output: e}]\n"
GRADED = "assert: [{type: contains, value: e}]\n" + TEST
MOCK = "targets: {t: {provider: mock, response: e}}\n"
GRADERS = "def good(given):\n    return 1\n\n\nnumber = 3\n"


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))


def problems(ran: Ran) -> list[str]:
    """What a command names as wrong, without what is before each line."""
    lines = [line for line in ran.err.splitlines() if not line.startswith("note: ")]
    return [line.removeprefix(PREFIX) for line in lines]


def check_refused(folder: Path, *words: str, file: str = "e.yaml") -> list[str]:
    """Both commands refuse the file, for the same reasons, and nothing is made. What they say."""
    ran = run_command(folder, "eval", file, "--run_name=r", "--quiet", *words)
    assert ran.code == 2, ran
    assert not (folder / "data" / "r").exists()
    assert "Traceback" not in ran.err
    checked = run_command(folder, "eval", "validate", file, "--strict", *words)
    assert checked.code == 2
    assert problems(checked) == problems(ran)
    return problems(ran)


REFUSED: dict[str, tuple[str, str]] = {
    # What is wrong: the eval file, and what is said of it.
    "a variable that is not set": (
        "targets: {t: {provider: cli, command: 'echo x', cwd: '${{ NOT_SET_HERE }}/x'}}\n" + GRADED,
        "e.yaml, line 1: targets.t.cwd: the environment variable NOT_SET_HERE is not set",
    ),
    "no key for a model": (
        "targets: {t: {provider: openai, model: m, api_key: '${{ NOT_SET_HERE }}'}}\n" + GRADED,
        "e.yaml, line 1: targets.t.api_key: the environment variable NOT_SET_HERE is not set",
    ),
    "no key for a judge that is needed": (
        """\
        targets:
          t: {provider: mock, judge_target: j}
          j: {provider: openai, model: m, api_key: '${{ NOT_SET_HERE }}'}
        execution: {target: t}
        tests:
          - {id: a, input: i, criteria: c, assert: [{type: llm_judge}]}
        """,
        "e.yaml, line 3: targets.j.api_key: the environment variable NOT_SET_HERE is not set",
    ),
    "no judge for rubrics": (
        MOCK + "tests: [{id: a, input: i, rubrics: [is kind]}]\n",
        "e.yaml, line 2: tests[0]: grader 'rubric' of test 'a' asks a judge, and no judge is configured "
        "(judge_target of its target, or --judge_target)",
    ),
    "no judge for a text among graders": (
        MOCK + "tests: [{id: a, input: i, assert: [is kind]}]\n",
        "e.yaml, line 2: tests[0]: grader 'rubrics' of test 'a' asks a judge, and no judge is configured "
        "(judge_target of its target, or --judge_target)",
    ),
    "no judge deep within composites": (
        """\
        targets: {t: {provider: mock}}
        tests:
          - id: a
            input: i
            assert:
              - name: outer
                type: composite
                assert:
                  - {name: inner, type: composite, assert: [{name: nice, type: llm_judge, prompt: 'Nice? {{answer}}'}]}
        """,
        "e.yaml, line 3: tests[0]: grader 'outer > inner > nice' of test 'a' asks a judge, and no judge is configured "
        "(judge_target of its target, or --judge_target)",
    ),
    "no judge for an aggregator": (
        """\
        targets: {t: {provider: mock}}
        tests:
          - id: a
            input: i
            assert:
              - name: both
                type: composite
                assert: [{type: contains, value: x}]
                aggregator: {type: llm_judge, prompt: 'All: {{EVALUATOR_RESULTS_JSON}}'}
        """,
        "e.yaml, line 3: tests[0]: grader 'both > aggregator' of test 'a' asks a judge, and no judge is configured "
        "(judge_target of its target, or --judge_target)",
    ),
    "no graders and no judge": (
        MOCK + TEST,
        "e.yaml, line 2: tests[0]: test 'a' has no graders, and no judge is configured (judge_target of its target, or "
        "--judge_target); --allow_ungraded runs it without a score",
    ),
    "a judge that answers all at once": (
        """\
        targets:
          t: {provider: mock, judge_target: j}
          j: {provider: cli, command: x, provider_batching: true}
        execution: {target: t}
        tests: [{id: a, input: i, rubrics: [is kind]}]
        """,
        "e.yaml, line 3: targets.j: answers all tests in one invocation and can't judge; a judge answers one prompt after the other",
    ),
    "an unknown judge of a target": (
        "targets:\n  t:\n    provider: mock\n    judge_target: jugde\n  judge: {provider: mock}\n"
        "execution: {target: t}\ntests:\n  - {id: a, input: i, criteria: c, assert: [{type: llm_judge}]}\n",
        "e.yaml, line 4: targets.t.judge_target: there is no target 'jugde'; did you mean judge?; known: t, judge",
    ),
    "an unknown judge of a grader": (
        MOCK + "tests:\n  - id: a\n    input: i\n    assert:\n      - {type: llm_judge, name: n, target: tt}\n",
        "e.yaml, line 5: tests[0].assert: grader 'n': there is no target 'tt'; did you mean t?; known: t",
    ),
    "an unknown target of the file": (
        "execution:\n  targets: [t, s]\n" + MOCK + GRADED,
        "e.yaml, line 2: execution.targets[1]: there is no target 's'; known: t",
    ),
    "an unknown target of a test": (
        MOCK + "assert: [{type: is_json}]\ntests:\n  - id: a\n    input: i\n    execution:\n      target: tt\n"
        "  - {id: b, input: i}\n",
        "e.yaml, line 7: tests[0].execution.target: there is no target 'tt'; did you mean t?; known: t",
    ),
    "unknown targets of tests": (
        MOCK + "assert: [{type: is_json}]\ntests:\n  - id: a\n    input: i\n    execution:\n      targets:\n"
        "        - t\n        - u\n  - {id: b, input: i, execution: {targets: [v]}}\n",
        "e.yaml, line 9: tests[0].execution.targets[1]: there is no target 'u'; known: t\n"
        "e.yaml, line 10: tests[1].execution.targets[0]: there is no target 'v'; known: t",
    ),
    "a wrong target that is not chosen": (
        "targets: {t: {provider: mock}, u: {provider: mock, delay_ms: x}}\nexecution: {target: t}\n" + GRADED,
        "e.yaml, line 1: targets.u.delay_ms: must be a number, not 'x'",
    ),
    "no target": (
        GRADED,
        "e.yaml, line 1: no target is chosen: give --target, or execution.target in the file; no targets file was found, and the "
        "eval file has no targets",
    ),
    "a judge's program that is not there": (
        MOCK + "tests:\n  - {id: a, input: i, assert: [{type: code_judge, script: [no-such-program, x]}]}\n",
        "e.yaml, line 3: tests[0].assert[0].script: there is no program no-such-program on the path",
    ),
    "a judge's line whose program is not there": (
        MOCK + "tests:\n  - {id: a, input: i, assert: [{type: code_judge, script: no-such-program x >y}]}\n",
        "e.yaml, line 3: tests[0].assert[0].script: there is no program no-such-program on the path",
    ),
    "a judge's script that is not there": (
        MOCK + "tests:\n  - {id: a, input: i, assert: [{type: code_judge, script: [python3, missing.py]}]}\n",
        "e.yaml, line 3: tests[0].assert[0].script: there is no file HERE/missing.py",
    ),
    "a judge's folder that is not there": (
        MOCK + "assert:\n  - {type: code_judge, script: [python3, x.py], cwd: none}\n" + TEST,
        "e.yaml, line 3: assert[0].cwd: there is no folder HERE/none",
    ),
    "a program deep within composites": (
        """\
        targets: {t: {provider: mock}}
        assert:
          - type: composite
            assert:
              - type: composite
                assert: [{type: code_judge, name: c, script: ./none.sh}]
                aggregator: {type: code_judge, path: nowhere-to-be-found}
        tests: [{id: a, input: i}]
        """,
        "e.yaml, line 6: assert[0].assert[0].assert[0].script: there is no program HERE/none.sh\n"
        "e.yaml, line 7: assert[0].assert[0].aggregator.path: there is no program nowhere-to-be-found on the path",
    ),
    "a prompt's program that is not there": (
        """\
        targets: {t: {provider: model, model: simulated}}
        tests: [{id: a, input: i, assert: [{type: llm_judge, prompt: {script: [no-such-program]}}]}]
        """,
        "e.yaml, line 2: tests[0].assert[0].prompt.script: there is no program no-such-program on the path",
    ),
    "a grader's function that is not there": (
        MOCK + "tests:\n  - {id: a, input: i, assert: [{type: python, function: 'graders.py:bad'}]}\n",
        "e.yaml, line 3: tests[0].assert[0].function: graders.py has no 'bad'",
    ),
    "a grader's module that can't be imported": (
        MOCK + "tests:\n  - {id: a, input: i, assert: [{type: python, function: 'no_such_module:bad'}]}\n",
        "e.yaml, line 3: tests[0].assert[0].function: no_such_module can't be imported: ",
    ),
    "a target's function that is not there": (
        "targets: {t: {provider: python, function: 'graders.py:bad'}}\n" + GRADED,
        "e.yaml, line 1: targets.t.function: graders.py has no 'bad'",
    ),
    "a target's function that is none": (
        "targets: {t: {provider: python, function: 'graders.py:number'}}\n" + GRADED,
        "e.yaml, line 1: targets.t.function: graders.py:number is not a function",
    ),
    "a target's folder that is not there": (
        "targets: {t: {provider: cli, command: echo, cwd: none}}\n" + GRADED,
        "e.yaml, line 1: targets.t.cwd: there is no folder HERE/none",
    ),
    "a target's program that is not there": (
        "targets: {t: {provider: cli, command: 'no-such-program {PROMPT}'}}\n" + GRADED,
        "e.yaml, line 1: targets.t.command: there is no program no-such-program on the path",
    ),
    "an unknown toolset": (
        "targets: {t: {provider: agent, model: simulated, toolsets: [termnal], sandbox: local}}\n" + GRADED,
        "e.yaml, line 1: targets.t: ",
    ),
    "a file of tools that is not there": (
        "targets: {t: {provider: agent, model: simulated, tools: [none.py]}}\n" + GRADED,
        "e.yaml, line 1: targets.t: --tools HERE/none.py: there is no file HERE/none.py",
    ),
    "a recording that is not there": (
        "targets: {t: {provider: replay, path: none.jsonl}}\n" + GRADED,
        "e.yaml, line 1: targets.t.path: there is no file HERE/none.jsonl",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_both_with_the_same_text(name: str, tmp_path: Path) -> None:
    text, said = REFUSED[name]
    write(tmp_path, {"e.yaml": text, "graders.py": GRADERS})
    found = "\n".join(check_refused(tmp_path)).replace(str(tmp_path), "HERE")
    if said.endswith(" "):
        found = found[: len(said)]
    assert found == said


ACCEPTED: dict[str, str] = {
    "no key for a judge that is not needed": """\
        targets:
          t: {provider: mock, judge_target: j, response: e}
          j: {provider: openai, model: m, api_key: '${{ NOT_SET_HERE }}'}
        execution: {target: t}
        tests: [{id: a, input: i, assert: [{type: contains, value: e}]}]
        """,
    "no judge at all where none is needed": """\
        targets: {t: {provider: mock, judge_target: nobody, response: e}}
        tests: [{id: a, input: i, assert: [{type: contains, value: e, weight: 0}, {type: equals, value: e}]}]
        """,
    "a variable of a target that is not chosen": """\
        targets:
          t: {provider: mock, response: e}
          u: {provider: cli, command: 'echo ${{ NOT_SET_HERE }}'}
        execution: {target: t}
        tests: [{id: a, input: i, assert: [{type: contains, value: e}]}]
        """,
    "targets of tests only": """\
        targets: {t: {provider: mock, response: e}, u: {provider: mock, response: e}}
        assert: [{type: contains, value: e}]
        tests:
          - {id: a, input: i, execution: {target: t}}
          - {id: b, input: i, execution: {targets: [u]}}
        """,
    "words of the shell": """\
        targets: {t: {provider: mock}}
        assert:
          - {type: code_judge, script: "exec echo '{\\"score\\": 1}'"}
          - {type: code_judge, script: "nothing-like-this || echo '{\\"score\\": 1}'"}
          - {type: code_judge, script: "A=b; echo '{\\"score\\": 1}'"}
        tests: [{id: a, input: i}]
        """,
    "a judge for a composite": """\
        targets: {t: {provider: model, model: simulated}}
        tests:
          - {id: a, input: i, criteria: c, assert: [{type: composite, assert: [{type: llm_judge}]}]}
        """,
    "a judge that a grader names": """\
        targets: {t: {provider: mock}, j: {provider: model, model: simulated}}
        execution: {target: t}
        tests: [{id: a, input: i, criteria: c, assert: [{type: llm_judge, target: j}]}]
        """,
    "a function of a module beside the file": """\
        targets: {t: {provider: mock}}
        tests: [{id: a, input: i, assert: [{type: python, function: 'graders:good'}]}]
        """,
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_validate_accepts_runs(name: str, tmp_path: Path) -> None:
    write(tmp_path, {"e.yaml": ACCEPTED[name], "graders.py": GRADERS})
    checked = run_command(tmp_path, "eval", "validate", "e.yaml")
    assert checked.code == 0, checked.err
    ran = run_command(tmp_path, "eval", "e.yaml", "--run_name=r", "--quiet")
    assert ran.code in (0, 1), ran.err
    assert all(each["status"] in ("passed", "failed") for each in read_lines(tmp_path / "data" / "r" / "results.jsonl"))


def test_each_test_goes_to_its_own_targets_and_no_other(tmp_path: Path) -> None:
    text = """\
        targets: {t: {provider: mock}, u: {provider: mock}, v: {provider: mock}}
        execution: {target: t}
        assert: [{type: is_json}]
        tests:
          - {id: a, input: i}
          - {id: b, input: i, execution: {target: u}}
          - {id: c, input: i, execution: {targets: [t, v]}}
        """
    write(tmp_path, {"e.yaml": text})
    assert check_refused(tmp_path, "--target=w") == ["--target: there is no target 'w'; known: t, u, v"]
    assert run_command(tmp_path, "eval", "e.yaml", "--run_name=r", "--quiet").code == 0
    assert asked(tmp_path, "r") == ["a@t", "b@u", "c@t", "c@v"]
    again = run_command(tmp_path, "eval", "e.yaml", "--run_name=again", "--regrade=r", "--quiet")
    assert again.code == 0, again.err
    assert asked(tmp_path, "again") == ["a@t", "b@u", "c@t", "c@v"]
    chosen = run_command(tmp_path, "eval", "e.yaml", "--run_name=s", "--quiet", "--target=v", "--target=t")
    assert "not run, as --target chose none of the targets that they name: b" in chosen.err
    assert asked(tmp_path, "s") == ["a@v", "a@t", "c@v", "c@t"]


def test_no_test_is_left(tmp_path: Path) -> None:
    text = "targets: {t: {provider: mock}, u: {provider: mock}}\nassert: [{type: is_json}]\n"
    write(tmp_path, {"e.yaml": text + "tests: [{id: a, input: i, execution: {target: u}}]\n"})
    assert check_refused(tmp_path, "--target=t")[-1] == "no tests are left: --target=t fits none"


def asked(folder: Path, run: str) -> list[str]:
    return [f"{each['test_id']}@{each['target']}" for each in read_lines(folder / "data" / run / "results.jsonl")]


@pytest.mark.parametrize(
    ("check", "said"),
    [
        ("{command: exit 3}", "the healthcheck failed: "),
        ("true", "the healthcheck failed: "),
        ("'http://127.0.0.1:9/health'", "the healthcheck at http://127.0.0.1:9/health failed: "),
    ],
)
def test_a_healthcheck_that_fails_leaves_nothing_behind(check: str, said: str, tmp_path: Path) -> None:
    tool = "import sys\nsys.exit('not today' if '--healthcheck' in sys.argv else 0)\n"
    command = f"{sys.executable} tool.py"
    text = f"targets:\n  t:\n    provider: cli\n    command: {command}\n    healthcheck: {check}\n"
    write(tmp_path, {"e.yaml": text + GRADED, "tool.py": tool})
    ran = run_command(tmp_path, "eval", "e.yaml", "--run_name=r", "--quiet")
    assert ran.code == 2
    (line,) = problems(ran)
    assert line.startswith(f"e.yaml, line 5: targets.t.healthcheck: target 't' can't be used: {said}")
    assert not (tmp_path / "data" / "r").exists()
    assert run_command(tmp_path, "eval", "validate", "e.yaml").code == 0  # which runs nothing


def test_a_healthcheck_is_made_once_and_again_on_resume(tmp_path: Path) -> None:
    tool = """\
        import sys
        from pathlib import Path
        with open("calls", "a") as log:
            log.write(sys.argv[-1] + "\\n")
        if sys.argv[-1] == "--healthcheck":
            sys.exit(Path("ill").exists())
        if Path("broken").exists():
            sys.exit("broken")
        print("e")
        """
    target = f"targets: {{t: {{provider: cli, command: '{sys.executable} tool.py {{EVAL_ID}}', healthcheck: true}}}}\n"
    write(tmp_path, {"e.yaml": target + GRADED, "tool.py": tool, "broken": ""})
    assert run_command(tmp_path, "eval", "e.yaml", "--run_name=r", "--quiet", "--max_attempts=1").code == 3
    assert (tmp_path / "calls").read_text().split() == ["--healthcheck", "a"]
    (tmp_path / "broken").unlink()
    (tmp_path / "ill").touch()
    again = ("eval", "e.yaml", "--run_name=r", "--quiet", "--resume", "--retry_errors")
    ran = run_command(tmp_path, *again)
    assert (ran.code, "t.healthcheck: target 't' can't be used" in ran.err) == (2, True)
    (tmp_path / "ill").unlink()
    assert run_command(tmp_path, *again).code == 0
    assert (tmp_path / "calls").read_text().split() == ["--healthcheck", "a", "--healthcheck", "--healthcheck", "a"]


def test_variables_are_needed_again_on_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = "targets: {t: {provider: cli, command: 'exit ${{ NOT_SET_HERE }}'}}\n"
    write(tmp_path, {"e.yaml": target + GRADED})
    monkeypatch.setenv("NOT_SET_HERE", "3")
    assert run_command(tmp_path, "eval", "e.yaml", "--run_name=r", "--quiet", "--max_attempts=1").code == 3
    monkeypatch.delenv("NOT_SET_HERE")
    ran = run_command(tmp_path, "eval", "e.yaml", "--run_name=r", "--quiet", "--resume", "--retry_errors")
    assert (ran.code, problems(ran)) == (
        2,
        ["e.yaml, line 1: targets.t.command: the environment variable NOT_SET_HERE is not set"],
    )


def test_hooks_may_make_what_graders_name(tmp_path: Path) -> None:
    text = """\
        targets: {t: {provider: mock}}
        workspace: {before_all: {script: "echo 'print(1)' >made.py"}}
        assert: [{type: code_judge, script: [python3, made.py]}]
        tests: [{id: a, input: i}]
        """
    write(tmp_path, {"e.yaml": text})
    assert run_command(tmp_path, "eval", "validate", "e.yaml").code == 0


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("cat x", None),
        ("no-such x", "there is no program no-such on the path"),
        ("'no such' x", "there is no program no such on the path"),
        (["no-such"], "there is no program no-such on the path"),
        (["if"], "there is no program if on the path"),
        ("if true", None),
        ("no-such || true", None),
        ("no-such; true", None),
        ("no-such | cat", None),
        ("$NO_SUCH x", None),
        ("X=1 no-such", None),
        ("~/no-such", None),
        ("{EVAL_DIR}/no-such", None),
        ("no-such 'unended", None),
        ("", None),
        ("./tool x", None),
        ("./text x", "HERE/text can't be executed"),
        ("./folder", "there is no program HERE/folder"),
        ("python3 made.py >x", "there is no file HERE/made.py"),
        ("python3 tool.py", None),
        ("python3 -u made.py", None),
        ("python3 -m made", None),
        ("python3 {EVAL_DIR}/made.py", None),
        ("python3 *.py", None),
        ("bun run made.ts", "there is no program bun on the path"),
    ],
)
def test_only_what_is_certain_is_missing(command: str | list[str], said: str | None, tmp_path: Path) -> None:
    write(tmp_path, {"tool": "", "tool.py": "", "text": "", "folder/x": ""})
    (tmp_path / "tool").chmod(0o755)
    environ = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    found = missing(command, tmp_path, environ)
    assert (found and found.replace(str(tmp_path), "HERE")) == said


JUDGES = """\
    targets:
      - {name: t, provider: mock, judge_target: j, response: e}
      - {name: u, provider: mock, judge_target: nobody, response: e}
      - {name: j, provider: openai, model: m, api_key: '${{ NOT_SET_HERE }}'}
      - {name: broken, provider: openai, modle: m}
      - {name: v, provider: mock, judge_target: broken, response: e}
      - {name: plain, provider: mock, response: e}
"""
SOME_JUDGED = """\
    execution: {target: t}
    tests:
      - {id: plain, input: i, tags: [p], assert: [{type: contains, value: e}]}
      - {id: judged, input: i, criteria: c, assert: [{type: llm_judge}]}
      - {id: ungraded, input: i, criteria: c}
      - {id: named, input: i, criteria: c, assert: [{type: llm_judge, target: nobody}]}
      - id: deep
        input: i
        criteria: c
        assert: [{type: composite, name: both, assert: [{type: contains, value: e}, {type: llm_judge}]}]
      - {id: program, input: i, assert: [{type: script, script: echo fine, target: true}]}
      - {id: talk, mode: conversation, turns: [{input: i, assert: [be nice]}]}
      - {id: expects, mode: conversation, turns: [{input: i, expected_output: e}]}
"""


@pytest.mark.parametrize(
    "words",
    [
        ("--test_id=plain",),
        ("--test_id=!judged,!ungraded,!named,!deep,!program,!talk,!expects",),
        ("--tag=p",),
        ("--tag=p", "--target=u"),
        ("--tag=p", "--target=v"),
        ("--tag=p", "--target=t,u,v"),
        ("--tag=p", "--judge_target=nobody"),
        ("--tag=p", "--judge_target=broken", "--target=plain"),
        ("--tag=p", "--dry_run", "--fail_on=never"),
        ("--tag=p", "--dry_run", "--judge_target=nobody", "--fail_on=never"),
        ("--tag=p", "--from_output=out.jsonl"),
    ],
)
def test_judges_are_looked_for_only_where_chosen_tests_need_one(tmp_path: Path, words: tuple[str, ...]) -> None:
    write(tmp_path, {"e.yaml": SOME_JUDGED, "targets.yaml": JUDGES, "out.jsonl": '{"id": "plain", "text": "e"}'})
    ran = run_command(tmp_path, "eval", "e.yaml", "--run_name=r", "--quiet", *words)
    assert ran.code == 0, ran.err
    again = run_command(tmp_path, "eval", "e.yaml", "--run_name=s", "--quiet", "--regrade=r", "--tag=p")
    assert again.code in (0, 1), again.err
    (tmp_path / "targets.yaml").unlink()
    assert run_command(tmp_path, "resume", "r", "--quiet").code in (0, 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--test_id=judged",), "the environment variable NOT_SET_HERE is not set"),
        (("--test_id=ungraded",), "the environment variable NOT_SET_HERE is not set"),
        (("--test_id=deep",), "the environment variable NOT_SET_HERE is not set"),
        (("--test_id=program",), "the environment variable NOT_SET_HERE is not set"),
        (("--test_id=talk",), "the environment variable NOT_SET_HERE is not set"),
        (("--test_id=expects",), "the environment variable NOT_SET_HERE is not set"),
        (("--test_id=judged", "--dry_run"), "the environment variable NOT_SET_HERE is not set"),
        (("--test_id=named",), "grader 'llm_judge': there is no target 'nobody'"),
        (("--test_id=judged", "--target=u"), "judge_target: there is no target 'nobody'"),
        (("--test_id=judged", "--target=v"), "targets.yaml, line 5: targets[3]: model is required"),
        (
            ("--test_id=judged", "--target=plain", "--judge_target=nobody"),
            "--judge_target: there is no target 'nobody'",
        ),
        (("--test_id=judged", "--target=plain"), "asks a judge, and no judge is configured"),
    ],
)
def test_a_judge_that_chosen_tests_need_has_to_be_there(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    write(tmp_path, {"e.yaml": SOME_JUDGED, "targets.yaml": JUDGES})
    ran = run_command(tmp_path, "eval", "e.yaml", "--run_name=r", "--quiet", *words)
    assert ran.code == 2
    assert said in ran.err


def test_a_judge_that_is_not_there_and_not_needed_is_spoken_of(tmp_path: Path) -> None:
    write(tmp_path, {"e.yaml": SOME_JUDGED, "targets.yaml": JUDGES})
    ran = run_command(tmp_path, "eval", "e.yaml", "--run_name=r", "--quiet", "--tag=p", "--target=u")
    assert (
        "targets.yaml, line 3: targets[1].judge_target: there is no target 'nobody', and no judge is needed" in ran.err
    )


def test_a_run_that_needed_no_judge_is_graded_again_with_one(tmp_path: Path) -> None:
    targets = "targets: [{name: t, provider: mock, judge_target: j}, {name: j, provider: model, model: simulated}]\n"
    for grader, words in (("{type: is_json}", ()), ("{type: llm_judge}", ("--regrade=r0",))):
        tests = f"execution: {{target: t}}\ntests: [{{id: a, input: i, criteria: c, assert: [{grader}]}}]\n"
        write(tmp_path, {"e.yaml": targets + tests})
        name = f"r{len(words)}"
        ran = run_command(tmp_path, "eval", "e.yaml", f"--run_name={name}", "--quiet", *words)
        assert ran.code in (0, 1), ran.err
        (record,) = read_lines(tmp_path / "data" / name / "results.jsonl")
        assert record["status"] in ("passed", "failed")
