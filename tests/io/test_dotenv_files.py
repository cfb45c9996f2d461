"""``.env`` files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.io.search_paths import SearchPath, environment, parse_dotenv, read_dotenv
from tests.support.eval_runs import perform_eval


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("A=1", {"A": "1"}),
        ("A=1\nB = two words \r\n", {"A": "1", "B": "two words"}),
        ("# comment\n\n  export A=x # behind\nB=#\n", {"A": "x", "B": ""}),
        ("A=a#b\nB=a #b", {"A": "a#b", "B": "a"}),
        ("A='it is # $X'\n", {"A": "it is # $X"}),
        ('A="a\\nb\\"c\\\\d\\q" # c', {"A": 'a\nb"c\\d\\q'}),
        ("A='two\nlines'\nB=`x\"'y`", {"A": "two\nlines", "B": "x\"'y"}),
        ("A=it's\n", {"A": "it's"}),
        ("A=\nB=\n", {"A": "", "B": ""}),
        ("A=1\nA=2", {"A": "2"}),
        ("a.b-c=1", {"a.b-c": "1"}),
        ("A=x=y", {"A": "x=y"}),
        ("", {}),
    ],
)
def test_lines(text: str, values: dict[str, str]) -> None:
    assert parse_dotenv(text, ".env") == values


@pytest.mark.parametrize(("text", "line"), [("A=1\nnonsense\n", 2), ("A='x", 1), ("\n\n=1", 3), ("A='secret' x", 1)])
def test_what_is_no_line_is_refused_without_showing_it(text: str, line: int) -> None:
    with pytest.raises(UserError) as caught:
        parse_dotenv(text, ".env")

    assert str(caught.value) == f".env, line {line}: expected NAME=value"


@given(st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), st.text(st.characters(exclude_characters="'"))))
def test_single_quotes_hold_anything(values: dict[str, str]) -> None:
    text = "".join(f"{name}='{value}'\n" for name, value in values.items())

    assert parse_dotenv(text, ".env") == values


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = parse_dotenv(text, ".env")
    except UserError:
        return
    assert all(isinstance(value, str) for value in found.values())


def test_the_nearest_file_wins_and_the_real_environment_over_all(tmp_path: Path) -> None:
    near, here = tmp_path / "root/a/b", tmp_path / "here"
    near.mkdir(parents=True)
    here.mkdir()
    for folder, text in (
        (near, "NEAR=b\n"),
        (near.parent, "NEAR=a\nMIDDLE=a\n"),
        (tmp_path / "root", "NEAR=r\nMIDDLE=r\nTOP=r\nREAL=r\n"),
        (here, "NEAR=h\nTOP=h\nHERE=h\n"),
        (tmp_path, "ABOVE=x\n"),
    ):
        (folder / ".env").write_text(text)

    found = environment(near, SearchPath.of(here, tmp_path / "root"), {"REAL": "real"})

    assert found == {"NEAR": "b", "MIDDLE": "a", "TOP": "r", "HERE": "h", "REAL": "real"}


def test_a_file_that_cant_be_read(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"A=\xff")

    with pytest.raises(UserError, match="not UTF-8"):
        read_dotenv(tmp_path / ".env")


async def test_what_graders_print_holds_no_secrets_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LICENCE_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("LICENCE_TOKEN=abcdefgh12345\nPLAIN=plain-text\n")
    says = """echo "{\\"score\\": 1, \\"reasoning\\": \\"$LICENCE_TOKEN $PLAIN\\"}" """
    graders = [{"name": "says", "type": "code_judge", "script": says}]
    breaks = [{"name": "breaks", "type": "code_judge", "script": 'echo "no $LICENCE_TOKEN" >&2; exit 3'}]
    tests = [{"id": "a", "input": "x", "assert": graders}, {"id": "b", "input": "x", "assert": breaks}]
    (tmp_path / "suite.yaml").write_text(json.dumps({"targets": {"m": {"provider": "mock"}}, "tests": tests}))
    run = await perform_eval(tmp_path)
    assert "[redacted] plain-text" in run.record("a")["reasoning"]
    assert "no [redacted]" in run.record("b")["error"]
    assert "abcdefgh12345" not in json.dumps(run.records())


@pytest.mark.parametrize("batching", [False, True])
async def test_programs_have_the_variables_in_their_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batching: bool
) -> None:
    monkeypatch.delenv("LICENCE", raising=False)
    monkeypatch.setenv("REAL", "real")
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("LICENCE='top # of all'\n")
    folder = tmp_path / "suites"
    folder.mkdir()
    (folder / ".env").write_text("LICENCE='near # it'\nREAL=file\n")
    (folder / "judge.py").write_text(
        "import json, os\nprint(json.dumps({'score': 1, 'reasoning': os.environ['LICENCE']}))\n"
    )
    record = json.dumps({"id": "a", "text": "$LICENCE, $REAL"}).replace('"', '\\"')
    target = {
        "name": "tool",
        "provider": "cli",
        "command": f'echo "{record}" > {{OUTPUT_FILE}}',
        "provider_batching": batching,
        "healthcheck": {"command": 'test "$LICENCE, $REAL" = "near # it, real"'},
    }
    graders = [
        {"type": "equals", "value": "near # it, real"},
        {"name": "warm", "type": "code_judge", "script": "python3 judge.py"},
        {
            "name": "shell",
            "type": "code_judge",
            "script": """echo "{\\"score\\": 1, \\"reasoning\\": \\"$LICENCE\\"}" """,
        },
    ]
    suite: dict[str, Any] = {"targets": [target], "assert": graders, "tests": [{"id": "a", "input": "x"}]}
    if not batching:
        suite["workspace"] = {"before_each": {"script": 'echo "hook: $LICENCE"'}}
    (folder / "suite.yaml").write_text(json.dumps(suite))

    run = await perform_eval(folder)

    found = run.record("a")
    assert (found["status"], found["answer"]) == ("passed", "near # it, real")
    assert [score.get("reasoning") for score in found["scores"]] == [None, "near # it", "near # it"]
    assert found.get("before_each_output", "hook: near # it") == "hook: near # it"
