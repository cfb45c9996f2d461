"""What a person may give to ``manyhands eval``: files, patterns and folders of all sorts, as they come from editors and other tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyhands.workloads.evals.evalfile.patterns import compiled_ids
from tests.support.batches import Ran, read_lines, run_command

MOCK = "targets: {m: {provider: mock, response: hello}}\n"
GRADED = MOCK + "assert: [{type: contains, value: hello}]\n"


def suite(*ids: str) -> str:
    return GRADED + "tests:\n" + "".join(f"  - {{id: {each}, input: x}}\n" for each in ids)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")


def evaluate(folder: Path, *words: str) -> Ran:
    return run_command(folder, "eval", *words, "--run_name=r", "--quiet")


def ids(folder: Path) -> list[str]:
    return [each["test_id"] for each in read_lines(folder / "data" / "r" / "results.jsonl")]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["s"], ["a", "j", "b"]),
        (["s/"], ["a", "j", "b"]),
        (["s/sub", "t.yaml", "s"], ["b", "t", "a", "j"]),
        (["s/*.eval.yaml", "t.yaml", "./t.yaml", "s/../t.yaml"], ["a", "t"]),
        (["**/[ab].*yaml"], ["a", "b"]),
        (["{t,s/sub/b}.yaml"], ["b", "t"]),
    ],
)
def test_files_patterns_and_folders(words: list[str], expected: list[str], tmp_path: Path) -> None:
    files = {
        "s/a.eval.yaml": suite("a"),
        "s/sub/b.yaml": suite("b"),
        "s/lines.jsonl": '{"id": "j", "input": "x"}\n',
        "s/lines.yaml": GRADED,
        "s/.hidden/h.yaml": suite("h"),
        "s/targets.yaml": MOCK,
        "s/notes.yaml": "just: notes\n",
        "t.yaml": suite("t"),
    }
    write(tmp_path, files)
    ran = evaluate(tmp_path, *words)
    assert ran.code == 0, ran.err
    assert ids(tmp_path) == expected


def test_a_folder_is_continued_from_wherever(tmp_path: Path) -> None:
    write(tmp_path, {"s/a.yaml": suite("a"), "x/nothing": ""})
    assert evaluate(tmp_path, "s").code == 0
    again = run_command(tmp_path / "x", "eval", "../s", "--run_name=r", "--quiet", "--resume", "--data_dir=../data")
    assert again.code == 0, again.err


@pytest.mark.parametrize(
    ("files", "word", "said"),
    [
        ({"d/targets.yaml": MOCK}, "d", "d: there are no eval files in this folder"),
        ({}, "none.yaml", "none.yaml: there is no such file"),
        ({}, "s/*.yaml", "s/*.yaml: no file fits"),
        ({"e.yaml": ""}, "e.yaml", "e.yaml, line 1: the file is empty"),
        (
            {"e.yaml": "- {id: a}\n"},
            "e.yaml",
            "e.yaml, line 1: must be a mapping with tests; a list of them is a file that tests of an eval file names",
        ),
        (
            {"e.yaml": GRADED, "e.jsonl": '{"id": "a", "input": "x"}\n'},
            "e.yaml",
            "e.yaml, line 1: tests is required; this seems to be the sidecar of e.jsonl, which is the eval file",
        ),
        (
            {"e.yaml": GRADED, "e.jsonl": '{"id": "a", "input": "x"}\n{"id": "b", "input": "x"},\n'},
            "e.jsonl",
            "e.jsonl, line 2: not JSON: a comma stands behind it at column 26",
        ),
        (
            {"e.yaml": GRADED + "tests:\n\t- {id: a}\n"},
            "e.yaml",
            "e.yaml, line 4: not valid YAML: while scanning for the next token, found character '\\t' that cannot start any token",
        ),
        (
            {"e.yaml": GRADED + "tests: t.txt\n", "t.txt": "[]"},
            "e.yaml",
            "e.yaml, line 3: tests: t.txt: a file of tests is .yaml, .yml, .json, .jsonl or .csv",
        ),
        ({"e.txt": suite("a")}, "e.txt", "e.txt: an eval file is .yaml, .yml or .jsonl, or a program: .eval.ts"),
    ],
)
def test_what_is_given_by_mistake(files: dict[str, str], word: str, said: str, tmp_path: Path) -> None:
    write(tmp_path, files)
    ran = evaluate(tmp_path, word)
    assert (ran.code, ran.err) == (2, f"manyhands: error: {said}\n")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "text",
    [
        suite("a").replace("\n", "\r\n"),
        "\ufeff" + suite("a"),
        "x-shared: &shared\n  input: x\n" + GRADED + "tests:\n  - <<: *shared\n    id: a\n",
        GRADED.replace("targets", "providers") + "cases: [{id: a, input: x}]\n",
    ],
)
def test_files_as_editors_write_them(text: str, tmp_path: Path) -> None:
    write(tmp_path, {"e.yaml": text})
    assert evaluate(tmp_path, "e.yaml").code == 0
    assert ids(tmp_path) == ["a"]


def test_ids_are_taken_as_they_are_written(tmp_path: Path) -> None:
    names = ["7", "7.0", "0x1F", "2025-01-01", "yes", "ü/ж 漢 🎉", "../../etc", "a/b"]
    write(tmp_path, {"e.yaml": suite(*names)})
    ran = evaluate(tmp_path, "e.yaml")
    assert ran.code == 0, ran.err
    assert ids(tmp_path) == names


def test_paths_of_graders_start_from_the_eval_file_wherever_a_test_stands(tmp_path: Path) -> None:
    graders = "[{type: code_judge, script: [python3, j.py]}, {type: python, function: 'g.py:f'}]"
    files = {
        "s/e.yaml": MOCK + "tests: ['file://cases/*.yaml']\n",
        "s/cases/1.yaml": f"- {{id: a, input: x, assert: {graders}}}\n",
        "s/j.py": "print('{\"score\": 1}')\n",
        "s/g.py": "def f(given):\n    return 1\n",
    }
    write(tmp_path, files)
    ran = evaluate(tmp_path, "s/e.yaml")
    assert ran.code == 0, ran.out + ran.err


def test_judges_of_targets_count_where_these_are_not_run(tmp_path: Path) -> None:
    targets = "targets: {t: {provider: mock, judge_target: j}, j: {provider: model, model: simulated}}\n"
    text = targets + "execution: {target: t}\ntests: [{id: a, input: x, criteria: c}]\n"
    write(tmp_path, {"e.yaml": text, "o.jsonl": '{"id": "a", "text": "x"}\n'})
    for option in ("--dry_run", "--from_output=o.jsonl"):
        name = f"--run_name={option[2:5]}"
        ran = run_command(tmp_path, "eval", "e.yaml", "--quiet", option, name)
        assert ran.code in (0, 1), ran.err
    ran = evaluate(tmp_path, "e.yaml", "--from_output=none.jsonl")
    assert ran.err == f"manyhands: error: --from_output: there is no file {tmp_path}/none.jsonl\n"


def test_tests_are_chosen_as_the_original_does(tmp_path: Path) -> None:
    write(tmp_path, {"e.yaml": suite("case-1", "case-2", "b/c", "b")})
    assert evaluate(tmp_path, "e.yaml", "--test_id=!(case-1)", "--test_id=b/*").code == 0
    assert ids(tmp_path) == ["case-2", "b/c", "b"]


def test_files_of_which_no_test_is_chosen_are_not_announced(tmp_path: Path) -> None:
    write(tmp_path, {"e.yaml": suite("a"), "f.yaml": suite("b")})
    ran = run_command(tmp_path, "eval", "e.yaml", "f.yaml", "--test_id=b", "--run_name=r")
    assert "f.yaml: 1 test for m" in ran.out
    assert "e.yaml" not in ran.out


@pytest.mark.parametrize("pattern", ["[z-a]", "{a,b}" * 12])
def test_patterns_that_cant_be_read(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        compiled_ids([pattern])
