"""``manyhands eval``: what it does, says and ends with."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.support.batches import Ran, read_lines, run_command
from tests.support.commands import Command

TESTS = """\
tags: [suite]
tests:
  - {id: good, input: say yes, criteria: says yes, assert: [{type: contains, value: "yes"}]}
  - {id: bad/1, input: say no, criteria: says no, tags: [hard], assert: [{type: contains, value: "no"}]}
"""
ECHO = """\
targets:
  echo: {provider: cli, command: "echo yes >> asked.txt; echo yes"}
  broken: {provider: cli, command: "echo oops >&2; exit 4"}
  made_up: {provider: mock, response: "yes and no"}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "e.yaml").write_text(TESTS)
    (tmp_path / "targets.yaml").write_text(ECHO)
    return tmp_path


def evaluate(folder: Path, *words: str, file: str = "e.yaml", name: str = "r") -> Ran:
    return run_command(folder, "eval", file, f"--run_name={name}", "--quiet", *words)


def results(folder: Path, name: str = "r") -> list[dict[str, Any]]:
    return read_lines(folder / "data" / name / "results.jsonl")


def summary(folder: Path, name: str = "r") -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / "data" / name / "eval_summary.json").read_text())
    return value


# --- Exit codes


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--target=made_up",), 0),
        (("--target=echo",), 1),
        (("--target=echo", "--test_id=good"), 0),
        (("--target=echo", "--threshold=0"), 0),
        (("--target=broken",), 3),
        (("--target=broken", "--target=echo"), 3),
        (("--target=echo", "--fail_on=error"), 0),
        (("--target=echo", "--fail_on=failed"), 1),
        (("--target=broken", "--fail_on=failed"), 0),
        (("--target=broken", "--fail_on=error"), 3),
        (("--target=broken,echo", "--fail_on=never"), 0),
        (("--target=nobody",), 2),
        (("--target=echo", "--test_id=zzz"), 2),
        (("--oops",), 2),
        (("--target=echo", "--run_name=../r"), 2),
        (("--target=echo", "--output=x.pdf"), 2),
        (("--target=echo", "--dry_run", "--from_output=x.jsonl"), 2),
    ],
)
def test_exit_codes(folder: Path, words: tuple[str, ...], code: int) -> None:
    ran = evaluate(folder, *words)
    assert ran.code == code, ran.out + ran.err
    if code == 2:
        assert not (folder / "data" / "r").exists()
        assert ran.err.startswith("manyhands: error: ")


def test_a_broken_grader_is_an_error_with_no_score(folder: Path) -> None:
    (folder / "e.yaml").write_text(
        TESTS.replace('{type: contains, value: "no"}', "{type: code_judge, name: g, script: exit 3}")
    )
    ran = evaluate(folder, "--target=echo")
    assert ran.code == 3
    assert [(each["status"], each["score"], each["answer"]) for each in results(folder)] == [
        ("passed", 1, "yes"), ("grader_error", None, "yes"),
    ]  # fmt: skip
    assert "! bad/1 grader error: g: the program ended with exit code 3" in " ".join(ran.out.split())


# --- What is said


def test_the_tables(folder: Path) -> None:
    out = " ".join(evaluate(folder, "--target=echo", "--target", "broken").out.split())
    assert "✓ good @ echo 1.000" in out
    assert "✗ bad/1 @ echo 0.000 the answer does not contain 'no'" in out
    assert "! good @ broken error: the command ended with exit code 4: oops" in out
    assert "Scores, with intervals of 95 % target tests scored passed pass rate mean score echo" in out
    assert "echo 2 2 1 50.0 % [9.5 … 90.5] 0.500 [0.000 … 1.000]" in out
    assert "broken 2 0 0 - -" in out
    assert "passed 1 at or above the threshold of 0.8" in out
    assert "failed 1 below the threshold of 0.8" in out
    assert "errors 2 the target gave no answer" in out
    assert "in all 4 = the sum of these" in out
    assert "2 tests ended in errors. To retry them:" in out


def test_made_up_answers_are_said_to_be(folder: Path) -> None:
    ran = evaluate(folder, "--dry_run", name="dry")
    assert "what a run without --dry_run takes can't be estimated: e.yaml, line 1: no target is chosen" in ran.err
    assert "(simulated)" in ran.out
    assert all(each["simulated"] for each in results(folder, "dry"))
    assert summary(folder, "dry")["simulated"] == 2


def test_many_tests_are_listed_in_part(folder: Path) -> None:
    tests = [
        {"id": f"t{n}", "input": "x", "criteria": "c", "assert": [{"type": "contains", "value": "no"}]}
        for n in range(30)
    ]
    (folder / "e.yaml").write_text(json.dumps({"tests": tests}))
    ran = evaluate(folder, "--target=echo", "--workers=8")
    assert ran.err.count("✗") == 20
    assert "… and 10 more (failed)" in ran.err
    assert [each["test_id"] for each in results(folder)] == [f"t{n}" for n in range(30)]


def test_a_run_without_a_name_gets_one(folder: Path) -> None:
    ran = run_command(folder, "eval", "e.yaml", "--target=made_up")
    assert ran.code == 0
    (made,) = (folder / "data").iterdir()
    assert made.name.startswith("eval-e-20")
    assert "e.yaml: 2 tests for made_up (mock) — answers are made up" in ran.out


# --- Choosing


def test_options_that_are_given_several_times(folder: Path) -> None:
    evaluate(folder, "--target=echo", "--test_id=go*", "--test_id=b*/*")
    assert [each["test_id"] for each in results(folder)] == ["good", "bad/1"]
    evaluate(folder, "--target=echo,made_up", "--target=broken", "--tag=hard", name="s")
    assert [each["target"] for each in results(folder, "s")] == ["echo", "made_up", "broken"]
    evaluate(folder, "--target=echo", "--exclude_tag=hard", "--eval-id=*", name="u")
    assert [each["test_id"] for each in results(folder, "u")] == ["good"]


def test_several_files(folder: Path) -> None:
    (folder / "f.yaml").write_text(TESTS)
    ran = run_command(folder, "eval", "e.yaml", "f.yaml", "--target=made_up", "--run_name=r", "--quiet")
    assert ran.code == 0, ran.err
    assert [(each["dataset"], each["test_id"]) for each in results(folder)] == [
        ("e", "good"), ("e", "bad/1"), ("f", "good"), ("f", "bad/1"),
    ]  # fmt: skip


def test_invalid_tests(folder: Path) -> None:
    (folder / "e.yaml").write_text(TESTS + "  - {id: x, input: x, critera: y}\n")
    refused = evaluate(folder, "--target=made_up")
    assert refused.code == 2
    assert "e.yaml, line 5: tests[2]: criteria, expected_output or graders are required" in refused.err
    assert "tests[2].critera (line 5; did you mean criteria?)" in refused.err
    ran = evaluate(folder, "--target=made_up", "--skip_invalid")
    assert ran.code == 0
    assert summary(folder)["tests"]["invalid"] == 1
    assert results(folder)[2]["status"] == "invalid"
    assert "left out: e.yaml, line 5" in ran.err


# --- Files


def test_every_kind_of_file(folder: Path) -> None:
    endings = ("jsonl", "json", "xml", "yaml", "html")
    words = [f"--output=out/r.{ending}" for ending in endings]
    assert evaluate(folder, "--target=echo", *words, "-o", "again.yml", "--out=plain.txt").code == 1
    assert read_lines(folder / "out" / "r.jsonl") == read_lines(folder / "plain.txt") == results(folder)
    tree = ElementTree.parse(folder / "out" / "r.xml").getroot()
    assert (tree.get("tests"), tree.get("failures"), tree.get("errors")) == ("2", "1", "0")
    assert json.loads((folder / "out" / "r.json").read_text())["stats"]["pass_rate"] == 0.5
    assert (folder / "out" / "r.html").read_text().startswith("<!DOCTYPE html>")
    assert (folder / "again.yml").read_text() == (folder / "out" / "r.yaml").read_text()


def test_a_file_of_results_is_what_its_ending_says(folder: Path) -> None:
    for name in ("out.json", "out.XML", "out.yml", "out.html", "out.ndjson", "out", "out.v2"):
        assert evaluate(folder, "--target=echo", f"--out=files/{name}", name=name).code == 1
    texts = {path.name: path.read_text() for path in (folder / "files").iterdir()}
    assert json.loads(texts["out.json"])["stats"]["total"] == 2
    assert ElementTree.fromstring(texts["out.XML"]).get("tests") == "2"
    assert [document["test_id"] for document in YAML(typ="safe").load_all(texts["out.yml"])] == ["good", "bad/1"]
    assert texts["out.html"].startswith("<!DOCTYPE html>")
    for name in ("out.ndjson", "out", "out.v2"):
        assert [json.loads(line)["test_id"] for line in texts[name].splitlines()] == ["good", "bad/1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out=r.csv"], "--out r.csv: results are not written as .csv; let it end in one of .jsonl, .json, .xml"),
        (["--out=r.jsonl.gz"], "results are not written as .gz"),
        (["--out=r.json", "--output_format=yaml"], "r.json: .json is not what --output_format=yaml writes"),
        (["--out=r.yaml", "--output_format=jsonl"], "r.yaml: .yaml is not what --output_format=jsonl writes"),
        (["--output=r.csv"], "--output must end in one of .jsonl, .json, .xml, .html, .yaml, .yml"),
        (["--output=r.v2"], "--output must end in one of"),
        (["--trace_file=t.json"], "--trace_file t.json: is written as JSON Lines, not as .json; let it end in .jsonl"),
        (["--trace_file=t.csv"], "not as .csv"),
    ],
)
def test_a_file_of_results_that_would_not_be_what_its_ending_says(folder: Path, words: list[str], said: str) -> None:
    ran = evaluate(folder, "--target=echo", *words)
    assert ran.code == 2
    (line,) = ran.err.strip().splitlines()
    assert said in line
    assert not (folder / "data").exists()


def test_a_report_that_can_not_be_written_whole_is_not_begun(folder: Path) -> None:
    evaluate(folder, "--target=echo")
    ran = run_command(folder, "eval", "report", "r", "-o", "a.json", "-o", "b.csv")
    assert ran.code == 2
    assert "--output b.csv: must end in one of" in ran.err
    assert not (folder / "a.json").exists()


def test_show_begins_with_what_a_test_was_given_and_how_it_was_scored(folder: Path) -> None:
    evaluate(folder, "--target=echo")
    head = run_command(folder, "show", "r", "2").out.splitlines()[1:4]
    assert head == ["  input: say no", "  outcome: yes", "  score: 0.000 (failed)"]
    evaluate(folder, "--target=broken", name="errors")
    assert "score:" not in run_command(folder, "show", "errors", "2").out  # an error is no score


def test_results_that_can_not_be_written_are_said_to_be_and_no_older_ones_shown(folder: Path) -> None:
    in_the_way = "test -e free || mkdir -p data/r/results.jsonl; echo yes >>"
    (folder / "targets.yaml").write_text(ECHO.replace("echo yes >>", in_the_way))
    first = evaluate(folder, "--target=echo")
    assert (first.code, first.out) == (1, "")
    said, *further = first.err.splitlines()
    assert said == f"manyhands: error: {folder}/data/r/results.jsonl: can't be written (Is a directory)"
    assert [line.split(":  ")[0] for line in further] == ["To write the results, and to continue"]
    (folder / "data" / "r" / "results.jsonl").rmdir()
    (folder / "free").touch()
    assert run_command(folder, "resume", "data/r").code == 1
    assert [result["status"] for result in results(folder)] == ["passed", "failed"]
    (folder / "data" / "r" / "results.jsonl").unlink()
    (folder / "data" / "r" / "results.jsonl").mkdir()
    again = run_command(folder, "resume", "data/r", "--threshold=0", "--quiet")
    assert (again.code, again.out) == (1, "")


def test_results_take_no_place_of_the_runs_own_files(folder: Path) -> None:
    evaluate(folder, "--target=echo")
    ran = run_command(folder, "eval", "report", "r", "--output=data/r/results.jsonl")
    assert ran.code == 2
    assert "a file of the run itself" in ran.err
    assert run_command(folder, "eval", "report", "r", "--output=x.txt").code == 2
    (folder / "taken.json").mkdir()
    early = evaluate(folder, "--target=echo", "--output=taken.json", name="s")
    assert early.code == 2
    assert "not a regular file" in early.err
    for words, said in (
        (["--output=e.yaml"], "e.yaml: results would take the place of another file of this run"),
        (["--out=targets.yaml"], "targets.yaml: results would take the place of another file of this run"),
        (["--output=x.json", "--out=x.json"], "x.json: results would take the place of another file of this run"),
        (["--output=e.yaml/x.json"], "e.yaml is no folder"),
    ):
        refused = evaluate(folder, "--target=echo", *words, name="s")
        assert refused.code == 2
        assert said in refused.err
    assert not (folder / "data" / "s").exists()
    again = run_command(folder, "eval", "report", "r")
    assert again.code == 0
    assert (folder / "data" / "r" / "report.html").is_file()


# --- Going on


def test_a_run_is_graded_again_by_its_name_or_its_folder(folder: Path) -> None:
    assert evaluate(folder, "--target=echo").code == 1
    (folder / "sub").mkdir()
    for place, named in (
        (folder, "r"),
        (folder, "data/r"),
        (folder, str(folder / "data" / "r")),
        (folder / "sub", "../data/r"),
    ):
        words = ("--target=echo", f"--regrade={named}", f"--run_name=again-{named.replace('/', '-')}", "--quiet")
        ran = run_command(place, "eval", str(folder / "e.yaml"), *words)
        assert ran.code == 1, ran.err
    assert (folder / "asked.txt").read_text() == "yes\n" * 2
    ran = evaluate(folder, "--target=echo", "--regrade=data/none", name="none")
    assert (ran.code, "not a run folder" in ran.err) == (2, True)


def test_a_name_that_is_taken(folder: Path) -> None:
    evaluate(folder, "--target=echo")
    ran = evaluate(folder, "--target=echo")
    assert ran.code == 2
    assert "a run of this name exists already; continue it with --resume" in ran.err
    assert run_command(folder, "eval", "e.yaml", "--resume").code == 2
    assert evaluate(folder, "--retry_errors", name="other").code == 2


def test_a_finished_run_asks_nobody_again_and_takes_the_limit_of_today(folder: Path) -> None:
    assert evaluate(folder, "--target=echo").code == 1
    first = results(folder)
    assert run_command(folder, "resume", "r").code == 1
    assert evaluate(folder, "--target=echo", "--resume", "--threshold=0").code == 0
    assert (folder / "asked.txt").read_text() == "yes\nyes\n"
    assert summary(folder)["pass_limit"] == 0
    assert [each["timestamp"] for each in results(folder)] == [each["timestamp"] for each in first]
    other = evaluate(folder, "--target=broken", "--resume")
    assert other.code == 2
    assert "--override=target" in other.err


def test_errors_are_tried_again_only_if_that_is_asked_for(folder: Path) -> None:
    (folder / "targets.yaml").write_text('targets: {t: {provider: cli, command: "cat answer.txt"}}\n')
    assert evaluate(folder).code == 3
    (folder / "answer.txt").write_text("yes and no")
    assert evaluate(folder, "--resume").code == 3
    assert evaluate(folder, "--resume", "--retry_errors").code == 0
    assert [each["status"] for each in results(folder)] == ["passed", "passed"]


def test_how_to_have_a_batch_command_answer_what_it_did_not_is_said(folder: Path) -> None:
    batch = "{provider: cli, provider_batching: true, command: 'cp answers.jsonl {OUTPUT_FILE}'}"
    (folder / "targets.yaml").write_text(f"targets: {{t: {batch}}}\n")
    first, second = ('{"id": "good", "text": "yes and no"}\n', '{"id": "bad/1", "text": "yes and no"}\n')
    (folder / "answers.jsonl").write_text(first)
    assert evaluate(folder).out.splitlines()[-1].endswith(" --retry_errors --rerun=missing")
    (folder / "answers.jsonl").write_text(first + second)
    assert run_command(folder, "resume", "r", "--retry_errors", "--rerun=missing").code == 0


def test_resuming_by_the_folder_alone(folder: Path) -> None:
    (folder / "targets.yaml").write_text('targets: {t: {provider: cli, command: "cat answer.txt"}}\n')
    assert evaluate(folder).code == 3
    (folder / "answer.txt").write_text("yes and no")
    (folder / "e.yaml").unlink()
    (folder / "targets.yaml").unlink()
    assert run_command(folder, "resume", "r").code == 3
    assert run_command(folder, "resume", "r", "--retry_errors").code == 0


def test_ctrl_c_and_going_on(folder: Path) -> None:
    (folder / "targets.yaml").write_text(
        'targets: {t: {provider: cli, command: "echo {EVAL_ID} >> asked.txt; test -e fast || sleep 3; echo yes and no"}}\n'
    )
    with Command("eval", "e.yaml", "--run_name=r", "--workers=1", folder=folder) as command:
        command.wait_until(lambda: (folder / "asked.txt").exists())
        command.interrupt()
        ended = command.wait()
    assert ended.code == 130, ended.err
    assert [each["test_id"] for each in results(folder)] == ["good"]
    assert "1 test is left. To continue:" in ended.out
    (folder / "fast").touch()
    assert run_command(folder, "resume", "r").code == 0
    assert (folder / "asked.txt").read_text().split() == ["good", "bad/1"]


# --- The other commands


def test_validate(folder: Path) -> None:
    good = run_command(folder, "eval", "validate", "e.yaml", "targets.yaml", "--target=echo")
    assert good.code == 0, good.err
    assert "2 files: 2 valid, 0 not" in good.out
    (folder / "e.yaml").write_text(TESTS.replace("criteria", "critera"))
    bad = run_command(folder, "eval", "validate", ".", "--strict")
    assert bad.code == 2
    assert "did you mean criteria" in bad.err
    assert "✗ e.yaml (eval)" in bad.out


def test_schemas(folder: Path) -> None:
    assert json.loads(run_command(folder, "eval", "--schema").out)["title"] == "Eval file"
    assert json.loads(run_command(folder, "eval", "--schema=targets").out)["title"] == "Targets file"
    assert run_command(folder, "eval", "--schema", "x").code == 2


def test_help(folder: Path) -> None:
    ran = run_command(folder, "eval", "--help")
    assert ran.code == 0
    assert ran.out.startswith("manyhands eval FILE… [OPTIONS]")
    assert "--threshold X" in ran.out
    assert run_command(folder, "resume", "--help").code == 0


def test_comparing_runs_by_name(folder: Path) -> None:
    evaluate(folder, "--target=echo", name="base")
    evaluate(folder, "--target=made_up", name="candidate")
    ran = run_command(folder, "eval", "compare", "base", "candidate", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["summary"]["mean_delta"] == 0.5
    assert run_command(folder, "eval", "compare", "candidate", "base").code == 1
