"""``validate``: what is wrong with files, without running anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyhands.core.errors import UserError
from manyhands.workloads.evals.validation import Report, validate

GOOD = "tests: [{id: a, criteria: c, input: i, assert: [{type: is_json}]}]\n"
MOCK = "targets: {mock: {provider: mock}}\n"


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def all(self, *names: str, strict: bool = False, **environ: str) -> list[Report]:
        return validate(names, {"strict": strict}, environ=environ, here=self.folder, root=self.folder)

    def one(self, name: str, text: str, *, strict: bool = False, **environ: str) -> Report:
        self.write(name, text)
        (report,) = self.all(name, strict=strict, **environ)
        return report


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_the_shape_of_the_example_is_valid(site: Site) -> None:
    report = site.one(
        "my.yaml",
        """
execution: {target: batch_cli}
tests:
  - {id: a, input: [{role: user, content: {request: {type: x}}}, {role: tool, content: t}], assert: [{type: is_json}]}
targets:
  batch_cli: {provider: cli, commandTemplate: 'echo --eval {EVAL_FILE} --output {OUTPUT_FILE}', provider_batching: true}
""",
    )

    assert report == Report(site.folder / "my.yaml", "eval", ())
    assert report.valid


def test_what_is_to_be_said_of_many_graders_is_said_once(site: Site) -> None:
    grader = "assert: [{type: llm_judge, prompt: '%d {{output}}', max_steps: 3}]"
    tests = "".join(f"  - {{id: t{number}, input: i, {grader % number}}}\n" for number in range(60))

    report = site.one("b.yaml", f"{MOCK}tests:\n{tests}")

    assert report.notices == (
        "b.yaml, line 3: tests[0].assert[0].max_steps: has no effect, as only a prompt that is a program gets it"
        " (and 59 more like it)",
    )


def test_the_first_problems_of_a_file_are_in_its_report(site: Site) -> None:
    tests = "".join(f"  - {{id: t{number}, criteria: c, input: i, foo: 1}}\n" for number in range(60))

    report = site.one("b.yaml", f"{MOCK}assert: [{{type: contains, value: x}}]\ntests:\n{tests}")

    assert report.valid
    assert report.notices == ("b.yaml: unknown key has no effect: tests[0].foo (line 4, and 59 more)",)

    problems = site.one("b.yaml", f"tests:\n{tests}", strict=True).problems

    assert len(problems) == 51
    assert problems[49:] == ("b.yaml, line 51: tests[49].foo: unknown key", "… and 10 more problems")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "execution: {target: none}",
            "my.yaml, line 2: execution.target: there is no target 'none'; known: t, wrong, judged",
        ),
        ("execution: {target: wrong}", "targets.yaml, line 3: targets[1]: command is required"),
        (
            "execution: {target: judged}\nassert: [{type: llm_judge}]",
            "targets.yaml, line 4: targets[2].judge_target: there is no target 'jduge'",
        ),
        ("execution: {targets: [t, none]}", "there is no target 'none'"),
    ],
)
def test_targets_must_exist_and_be_right(site: Site, text: str, said: str) -> None:
    site.write(
        "targets.yaml",
        """targets:
  - {name: t, provider: mock}
  - {name: wrong, provider: cli, comand: x}
  - {name: judged, provider: mock, judge_target: jduge}
""",
    )

    assert any(said in problem for problem in site.one("my.yaml", GOOD + text, strict=True).problems)


def test_a_tests_own_target_must_exist(site: Site) -> None:
    site.write("targets.yaml", "targets: [{name: t, provider: mock}]\n")

    text = "tests:\n  - {id: a, criteria: c, input: i, execution: {target: none}}\n"

    assert site.one("my.yaml", text, strict=True).problems == (
        "my.yaml, line 2: tests[0].execution.target: there is no target 'none'; known: t",
    )
    assert site.one("my.yaml", text).valid  # another targets file may have it


def test_a_target_must_be_chosen_by_the_file_or_with_an_option(site: Site) -> None:
    site.write("targets.yaml", "targets: [{name: t, provider: mock}, {name: u, provider: mock}]\n")

    assert "no target is chosen" in site.one("my.yaml", GOOD, strict=True).problems[0]
    for options in ({"target": "u"}, {"dry_run": True}):
        (report,) = validate(["my.yaml"], options, environ={}, here=site.folder, root=site.folder)
        assert report.valid


def test_what_only_this_machine_lacks_is_a_notice_and_with_strict_a_problem(site: Site) -> None:
    text = GOOD + "execution: {target: t}\ntargets: {t: {provider: openai, model: m, api_key: '${{ MY_KEY }}'}}\n"

    problem = "my.yaml, line 3: targets.t.api_key: the environment variable MY_KEY is not set"
    assert site.one("my.yaml", text, strict=True).problems == (problem,)
    report = site.one("my.yaml", text)
    assert report.valid
    assert report.notices == (f"{problem} (which it needs to run)",)
    assert site.one("my.yaml", text, strict=True, MY_KEY="x").valid


def test_a_program_that_is_not_on_the_path_is_told_once_for_a_file(site: Site) -> None:
    grader = "{type: code-grader, command: [no-such-program, x.ts]}"
    text = "targets: {t: {provider: mock}}\ntests:\n" + "".join(
        f"  - {{id: t{number}, input: i, assertions: [{grader}, {{type: contains, value: t{number}}}]}}\n"
        for number in range(3)
    )

    report = site.one("my.yaml", text)
    assert report.valid
    assert report.notices == (
        "my.yaml, line 3: tests[0].assertions[0].script: there is no program no-such-program on the path (which it needs to run)",
    )
    assert len(site.one("my.yaml", text, strict=True).problems) == 3


def test_what_targets_name_must_be_there(site: Site) -> None:
    text = GOOD + "execution: {target: t}\ntargets: {t: {provider: replay, path: none.jsonl}}\n"

    assert "targets.t.path: there is no file" in site.one("my.yaml", text).problems[0]


def test_targets_files(site: Site) -> None:
    good = "targets: [{name: a, provider: mock, judge_target: b}, {name: b, provider: cli, command: x}]"
    bad = "targets:\n  - {name: a, provider: mock, judge_target: c}\n  - {name: b, provider: cil, command: x}\n"

    assert site.one("targets.yaml", good) == Report(site.folder / "targets.yaml", "targets", ())
    assert site.one("mine.yaml", "$schema: agentv-targets-v2.2\n" + good).kind == "targets"
    assert site.one("agentv-targets.yaml", bad) == Report(
        site.folder / "agentv-targets.yaml",
        "targets",
        (),
        (
            "agentv-targets.yaml, line 2: targets[0].judge_target: there is no target 'c'",
            "agentv-targets.yaml, line 3: targets[1].provider: 'cil' is no kind of target, so that its command is run; did you mean cli?",
        ),
    )


def test_configuration_files(site: Site) -> None:
    assert site.one(".agentv/config.yaml", "guideline_patterns: ['**/*.md']\n").kind == "config"
    assert site.one(".agentv/config.yaml", "").valid
    problems = site.one(".agentv/config.yaml", "guideline_pattern: []\nguideline_patterns: x\n").problems
    assert problems == (".agentv/config.yaml, line 2: guideline_patterns: must be a list of patterns, not 'x'",)
    report = site.one(".agentv/config.yaml", "guideline_pattern: []\nexecution: {wrokers: 2}\n")
    assert report.valid
    assert report.notices == (
        ".agentv/config.yaml: unknown keys have no effect: guideline_pattern (line 1; did you mean guideline_patterns?), "
        "execution.wrokers (line 2; did you mean workers?)",
    )
    (problem, _) = site.one(
        ".agentv/config.yaml", "guideline_pattern: []\nexecution: {wrokers: 2}\n", strict=True
    ).problems
    assert problem == ".agentv/config.yaml, line 1: guideline_pattern: unknown key; did you mean guideline_patterns?"


def test_files_that_cant_be_read(site: Site) -> None:
    with pytest.raises(UserError, match=r"^none\.yaml: there is no such file$"):
        site.all("none.yaml")
    assert "not valid YAML" in site.one("bad.yaml", "a: [").problems[0]
    assert "list.yaml, line 1: must be a mapping with tests;" in site.one("list.yaml", "- a").problems[0]


def test_folders_are_gone_through(site: Site) -> None:
    site.write("a/one.eval.yaml", MOCK + GOOD)
    site.write("a/b/two.eval.yaml", "tests: [{id: a}]")
    site.write("a/targets.yaml", "targets: []")
    site.write("a/.git/x.eval.yaml", "tests: [")
    site.write("a/notes.yaml", "anything: goes")

    found = [(report.path.name, report.kind, report.valid) for report in site.all("a")]

    assert found == [
        ("one.eval.yaml", "eval", True),
        ("targets.yaml", "targets", True),
        ("two.eval.yaml", "eval", False),
    ]


def test_json_lines_with_their_sidecar(site: Site) -> None:
    site.write("data.eval.yaml", "assert: [{type: contains}]\n")

    report = site.one("data.jsonl", '{"id": "a", "input": "i"}\n{"id": "a", "input": "i"}\n')

    assert report.problems == (
        "data.eval.yaml, line 1: assert[0]: value is required",
        "data.jsonl, line 2: id: 'a' is the id of another test too, in line 1",
    )
