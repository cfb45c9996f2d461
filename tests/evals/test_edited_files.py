"""Runs that go on after their eval files were edited: every difference is said, and nothing is mixed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.batches import Ran, read_lines, run_command

HEAD = """\
targets:
  - {name: t, provider: cli, command: "test -e stop && exit 1; cat {PROMPT_FILE}"}
  - {name: u, provider: cli, command: "cat {PROMPT_FILE}"}
execution: {target: t}
assert: [{type: contains, value: said}]
"""
TESTS = [f"- {{id: {name}, input: said {name}, criteria: c, tags: [{name[1]}]}}" for name in ("ax", "bx", "cy", "dy")]


def write(folder: Path, *tests: str, head: str = HEAD) -> None:
    (folder / "e.yaml").write_text(f"{head}tests:\n" + "\n".join(tests or TESTS) + "\n")


def begin(folder: Path, *words: str, head: str = HEAD) -> None:
    """A run of which two tests have ended well, and two are left."""
    write(folder, head=head.replace("{target: t}", "{target: t, fail_on_error: true, workers: 1}"))
    config = folder / "e.yaml"
    text = config.read_text()
    config.write_text(
        text.replace("cat {PROMPT_FILE}", "grep -q 'said c' {PROMPT_FILE} && exit 1; cat {PROMPT_FILE}", 1)
    )
    ran = run_command(folder, "eval", "e.yaml", "--run_name=r", "--quiet", *words)
    assert ran.code == 3, ran
    config.write_text(config.read_text())


def edit(folder: Path, *changes: tuple[str, str]) -> None:
    path = folder / "e.yaml"
    text = path.read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    path.write_text(text)


def resumed(folder: Path, *words: str) -> Ran:
    return run_command(folder, "resume", "r", "--quiet", *words)


def notes(ran: Ran) -> list[str]:
    return [line.removeprefix("note: ").strip() for line in ran.err.splitlines() if line.startswith("note: ")]


def summary(folder: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / "data/r/eval_summary.json").read_text())
    return value


def answers(folder: Path) -> dict[str, str]:
    return {each["test_id"]: each["answer"] for each in read_lines(folder / "data/r/results.jsonl")}


def test_nothing_is_said_of_a_file_that_is_as_it_was(tmp_path: Path) -> None:
    begin(tmp_path)
    text = (tmp_path / "e.yaml").read_text()
    (tmp_path / "e.yaml").write_text(
        "# a remark\n\n" + text.replace("{id: ax, input: said ax,", "{input: said ax, id: ax,")
    )
    ran = resumed(tmp_path)
    assert "as it was" not in ran.err
    assert "edited" not in summary(tmp_path)


@pytest.mark.parametrize("command", ["resume", "eval"])
def test_every_difference_is_said_by_test_and_the_run_keeps_its_own(tmp_path: Path, command: str) -> None:
    begin(tmp_path)
    edit(
        tmp_path,
        ("input: said ax", "input: other"),
        ("- {id: bx, input: said bx, criteria: c, tags: [x]}\n", ""),
        ("id: dy, input: said dy, criteria: c", "id: dy, input: changed, criteria: d, assert: [{type: is_json}]"),
        ("tests:\n", "tests:\n- {id: new, input: said new}\n"),
    )
    words = (
        ("resume", "r", "--quiet") if command == "resume" else ("eval", "e.yaml", "--run_name=r", "--resume", "--quiet")
    )
    ran = run_command(tmp_path, *words)
    assert notes(ran)[:6] == [
        "e.yaml is not as it was when this run was made, which goes on with its tests as they were:",
        "test ax has changed (input): its result is that of the test as it was",
        "test dy has changed (input, criteria, graders): it is executed as it was",
        "test bx is gone: its result is that of the test as it was",
        "test new is new: not part of this run",
        "to have the tests as they are now, make another run:  manyhands eval e.yaml --run_name=r-2",
    ]
    assert answers(tmp_path)["ax"] == "said ax"
    assert answers(tmp_path)["dy"] == "said dy"
    assert "new" not in answers(tmp_path)
    assert summary(tmp_path)["edited"] == [
        {
            "path": "e.yaml",
            "problem": None,
            "head": [],
            "tests": {"changed": 2, "new": 1, "gone": 1},
            "changed": {"ax": ["input"], "dy": ["input", "criteria", "graders"]},
            "new": ["new"],
            "gone": ["bx"],
        }
    ]
    assert notes(ran)[-1].startswith(
        "e.yaml has been edited since the run was made (tests: 2 changed, 1 new, 1 gone); these are results of the tests"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("value: said", "value: SAID"), "test ax has changed (graders)"),
        (("tests:\n", "threshold: 0.3\ntests:\n"), "threshold changed: as before in this run"),
        (
            ("fail_on_error: true, workers: 1", "fail_on_error: false, workers: 3"),
            "workers, fail_on_error changed: as before",
        ),
        (("tests:\n", "dataset: other\ntests:\n"), "dataset changed: as before in this run"),
        (("exit 1; cat", "exit 1; tac"), "target t (command) changed: as before in this run"),
        (("{target: t,", "{target: u,"), "target changed: as before in this run"),
        (("name: t,", "name: z,"), "target t (gone)"),
        (
            ("id: ax, input: said ax, criteria: c", "id: ax, input: said ax, expected_output: e"),
            "(criteria, expected output)",
        ),
        (("tags: [x]", "tags: [z], metadata: {k: 1}, threshold: 0.2"), "has changed (tags, metadata, threshold)"),
        (
            ("id: ax, input: said ax", "id: ax, imput: x"),
            "test ax has changed (can't be run: e.yaml, line 7: tests[0]: input is required",
        ),
        (("- {id: ax", "- {execution: {target: u}, id: ax"), "test ax has changed (targets)"),
    ],
)
def test_what_has_changed_is_named(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    begin(tmp_path)
    edit(tmp_path, change)
    ran = resumed(tmp_path)
    assert ran.code == 3  # as without the edit
    assert any(said in note for note in notes(ran)), ran.err


def test_a_file_that_is_gone_or_broken_is_said(tmp_path: Path) -> None:
    begin(tmp_path)
    text = (tmp_path / "e.yaml").read_text()
    (tmp_path / "e.yaml").write_text("tests: [")
    assert any("e.yaml can't be compared with the tests of this run" in note for note in notes(resumed(tmp_path)))
    (tmp_path / "e.yaml").unlink()
    ran = resumed(tmp_path)
    assert any("as they were: e.yaml: there is no such file" in note for note in notes(ran))
    assert summary(tmp_path)["edited"][0]["problem"] is not None
    assert "could not be compared with the run's tests (e.yaml: there is no such file)" in notes(ran)[-1]
    assert not any(
        "make another run" in note or "edited since" in note for note in notes(ran)
    )  # there is nothing to make it of
    (tmp_path / "e.yaml").write_text(text)
    assert "edited" not in summary_after(tmp_path)


def summary_after(folder: Path) -> dict[str, Any]:
    resumed(folder)
    return summary(folder)


def test_only_chosen_tests_are_new_and_what_was_chosen_is_compared(tmp_path: Path) -> None:
    begin(tmp_path, "--tag=x,y", "--target=t", "--test_id=?x,c*,d*")
    edit(tmp_path, ("tests:\n", "tests:\n- {id: nx, input: x, tags: [x]}\n- {id: ny, input: x, tags: [y]}\n"))
    said = notes(resumed(tmp_path))
    assert "test nx is new: not part of this run" in said
    assert not any("test ny" in note or "has changed" in note or "gone" in note for note in said)


def test_what_is_said_is_bounded(tmp_path: Path) -> None:
    begin(tmp_path)
    many = "".join(f"- {{id: n{number}, input: x}}\n" for number in range(50))
    edit(tmp_path, ("tests:\n", f"tests:\n{many}"))
    said = notes(resumed(tmp_path))
    assert sum("is new" in note for note in said) == 20
    assert "… and 30 more tests" in said
    assert summary(tmp_path)["edited"][0]["tests"]["new"] == 50


def test_answers_can_be_graded_by_the_new_graders(tmp_path: Path) -> None:
    begin(tmp_path)
    edit(tmp_path, ("value: said", "value: SAID"))
    said = notes(resumed(tmp_path))
    assert "to grade the answers of this run as the file says now, add  --regrade=r" in said
    ran = run_command(tmp_path, "eval", "e.yaml", "--run_name=r-2", "--regrade=r", "--quiet")
    assert [each["status"] for each in read_lines(tmp_path / "data/r-2/results.jsonl")][:2] == ["failed", "failed"], ran


def test_a_command_that_reads_the_file_itself_is_named(tmp_path: Path) -> None:
    begin(tmp_path, head=HEAD.replace('{PROMPT_FILE}"}', '{PROMPT_FILE} # $MANYHANDS_EVAL_FILE"}', 1))
    edit(tmp_path, ("tests:\n", "tests:\n- {id: new, input: said new}\n"))
    assert "target t reads the file itself: what it answers from now on is of the file as it is now" in notes(
        resumed(tmp_path)
    )
