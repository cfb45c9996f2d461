"""Commands of targets: what stands in braces is filled in, and no value ever becomes syntax of the shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import ItemError, UserError
from manyhands.io.locations import Location
from manyhands.processes.templates import MAX_ARGUMENT, CommandTemplate, quoted
from manyhands.workloads.evals.targets.command import PLACEHOLDERS, Values, check_files_format, parse_command

LOCATION = Location("targets.yaml", ("targets", 0, "command"), {("targets", 0): 3})
SHOW = f"{sys.executable} -c 'import json, sys; print(json.dumps(sys.argv[1:]))'"
HOSTILE = 'it\'s "$(echo no)" `echo no` \\ ; #\n{FILES} $HOME é'


def parse(value: Any) -> CommandTemplate:
    return parse_command(value, LOCATION)


def printed(value: str | list[str], values: Values) -> str:
    words = values.filled(parse(value))
    environment = {"PATH": os.environ["PATH"], **values.environment()}
    return subprocess.run(words, capture_output=True, text=True, check=True, env=environment).stdout


def test_every_placeholder_has_its_value(tmp_path: Path) -> None:
    values = Values(
        prompt="p",
        guidelines="g",
        eval_id="a/b",
        attempt=2,
        files=[tmp_path / "one.txt", tmp_path / "two words.txt"],
        prompt_file=tmp_path / "prompt",
        output_file=tmp_path / "out",
        eval_file=tmp_path / "suite" / "eval.yaml",
        test_ids_file=tmp_path / "ids",
        batch_input_file=tmp_path / "input",
        workspace=tmp_path / "work",
    )
    expected = {
        "PROMPT": "p",
        "PROMPT_FILE": f"{tmp_path}/prompt",
        "GUIDELINES": "g",
        "EVAL_ID": "a/b",
        "ATTEMPT": "2",
        "FILES": f"{tmp_path}/one.txt\n{tmp_path}/two words.txt",
        "OUTPUT_FILE": f"{tmp_path}/out",
        "EVAL_FILE": f"{tmp_path}/suite/eval.yaml",
        "EVAL_DIR": f"{tmp_path}/suite",
        "TEST_IDS_FILE": f"{tmp_path}/ids",
        "BATCH_INPUT_FILE": f"{tmp_path}/input",
        "WORKSPACE": f"{tmp_path}/work",
    }
    assert expected.keys() == PLACEHOLDERS.keys()
    for name, value in expected.items():
        lines = printed("printf '%s\\n' {" + name + "}", values)
        assert lines == value + "\n"
        assert values.environment()[f"MANYHANDS_{name}"] == value
        if name != "FILES":
            assert printed(["printf", "%s", "<{" + name + "}>"], values) == f"<{value}>"
    assert printed(["printf", "<%s>", "{FILES}"], values) == f"<{tmp_path}/one.txt><{tmp_path}/two words.txt>"


def test_relative_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert printed("printf %s {EVAL_DIR}", Values(eval_file=Path("eval.yaml"))) == str(tmp_path)


def test_files_stand_as_their_format_says(tmp_path: Path) -> None:
    values = Values(files=[tmp_path / "a b.txt", Path("/c'd.txt")], files_format="--file {path} --as={basename}")
    expected = ["--file", str(tmp_path / "a b.txt"), "--as=a b.txt", "--file", "/c'd.txt", "--as=c'd.txt"]
    assert printed("printf '%s|' {FILES}", values) == "|".join([*expected, ""])
    assert printed(["printf", "%s|", "{FILES}"], values) == "|".join([*expected, ""])
    assert printed(f"{SHOW} x {{FILES}}", Values()) == '["x"]\n'
    with pytest.raises(UserError, match=r"targets\[0\].files_format: can't be split into words"):
        check_files_format("'{path}", Location("targets.yaml", ("targets", 0, "files_format")))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ('--file="{path}"', ["--file=PATH"]),
        ("--file='{path}' '{basename}'", ["--file=PATH", "NAME"]),
        ("'x y'{path}", ["x yPATH"]),
        ("-f {path} -n {basename} --", ["-f", "PATH", "-n", "NAME", "--"]),
    ],
)
def test_a_file_stays_one_word_wherever_its_format_puts_it(tmp_path: Path, shape: str, words: list[str]) -> None:
    files = [tmp_path / "a b.txt", tmp_path / 'it\'s $HOME "x" `y`.txt']
    values = Values(files=files, files_format=check_files_format(shape, LOCATION))
    expected = [word.replace("PATH", str(file)).replace("NAME", file.name) for file in files for word in words]
    assert printed("printf '%s|' {FILES}", values) == "|".join([*expected, ""])
    assert printed(["printf", "%s|", "{FILES}"], values) == "|".join([*expected, ""])


def test_a_file_is_not_put_where_nothing_holds_it_together() -> None:
    with pytest.raises(UserError, match=r"\{path\} can't be put into `…`"):
        check_files_format("`{path}`", LOCATION)


CONTEXTS = [
    ("printf %s {PROMPT}", ""),
    ('printf %s "{PROMPT}"', ""),
    ("printf %s '{PROMPT}'", ""),
    ("printf %s a{PROMPT}b", "ab"),
    ('printf %s "a{PROMPT}b"', "ab"),
    ("printf %s 'a'\"{PROMPT}\"'b'", "ab"),
    ('x="$(printf "%s." {PROMPT})"; printf %s "${x%.}"', ""),
    ('x="$(printf "%s." "{PROMPT}")"; printf %s "${x%.}"', ""),
    ("(printf %s '{PROMPT}')", ""),
    ('x={PROMPT}; printf %s "$x" # {PROMPT} isn\'t here', ""),
    ("printf %s \\{PROMPT}", None),
    ('printf %s "$MANYHANDS_PROMPT"', ""),
]


@pytest.mark.parametrize(("line", "around"), CONTEXTS)
def test_a_value_stays_one_text_wherever_it_stands(line: str, around: str | None) -> None:
    if around is None:  # an escaped brace is the shell's
        assert Values(prompt="x").filled(parse(line))[2] == line
        return
    middle = printed(line, Values(prompt=HOSTILE))
    assert middle == around[:1] + HOSTILE + around[1:]


@given(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40),
    st.sampled_from([line for line, around in CONTEXTS if around == ""]),
)
def test_no_value_becomes_syntax(value: str, line: str) -> None:
    words = Values(prompt=value).filled(parse(line))
    done = subprocess.run(words, capture_output=True, env={**os.environ, **Values(prompt=value).environment()})
    assert (done.stdout.decode(), done.stderr) == (value, b"")


@given(st.text(st.sampled_from("'\"$`\\{}()#< \nabPROMPT_FILE"), max_size=60))
def test_any_line_can_be_looked_at(line: str) -> None:
    try:
        template = parse(line)
    except UserError:
        return
    Values().filled(template)


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("echo `cat {PROMPT_FILE}`", "`…`"),
        ('echo "${x:-{PROMPT_FILE}}"', "${…}"),
        ("cat <<END\n{PROMPT_FILE}\nEND", "a text that follows <<"),
        ("echo \"`echo '{PROMPT_FILE}'`\"", "`…`"),
    ],
)
def test_where_no_quotation_holds_it_is_refused(line: str, where: str) -> None:
    with pytest.raises(UserError, match="use \\$MANYHANDS_PROMPT_FILE there") as caught:
        parse(line)
    assert where in str(caught.value)


def test_an_unknown_placeholder_is_refused_with_the_nearest_known_one() -> None:
    for value in ("run {OUTPUT_FILES}", ["run", "{OUTPUT_FILES}"]):
        with pytest.raises(UserError) as caught:
            parse(value)
        assert str(caught.value).startswith(
            "targets.yaml, line 3: targets[0].command: unknown placeholder {OUTPUT_FILES}; did you mean OUTPUT_FILE?"
        )


@pytest.mark.parametrize(
    "line", ['run \'{"a": {"b": 1}}\' {prompt} {} {a-B} {{x}}', "run ${HOME} ${OUTPUT_FILE}", "awk '{print $1}'"]
)
def test_other_braces_are_left_alone(line: str) -> None:
    assert Values(prompt="x").filled(parse(line)) == ["/bin/sh", "-c", line]


@pytest.mark.parametrize("value", ["", "  ", [], [""], ["a", 1], 5, None, {"a": 1}, "a\0b", ["a\0"]])
def test_what_is_no_command_is_refused_with_its_place(value: Any) -> None:
    with pytest.raises(UserError, match=r"^targets.yaml, line 3: targets\[0\].command"):
        parse(value)


@pytest.mark.parametrize("value", ["run {PROMPT}", ["run", "{PROMPT}"]])
def test_what_can_be_no_argument_fails_the_test_and_names_the_way_out(value: Any) -> None:
    for prompt in ("x" * (MAX_ARGUMENT + 1), "a\0b"):
        with pytest.raises(ItemError, match="PROMPT_FILE"):
            Values(prompt=prompt).filled(parse(value))
    assert "MANYHANDS_PROMPT" not in Values(prompt="x" * MAX_ARGUMENT).environment()


def test_a_word_can_be_added_and_a_placeholder_looked_for() -> None:
    line, words = parse("run --out {OUTPUT_FILE}"), parse(["run", "x {PROMPT_FILE}"])
    assert line.with_word("--health check").line == "run --out {OUTPUT_FILE} '--health check'"
    assert words.with_word("--health check").words == ("run", "x {PROMPT_FILE}", "--health check")
    assert line.uses("OUTPUT_FILE")
    assert not line.uses("PROMPT", "PROMPT_FILE")
    assert words.uses("PROMPT_FILE")
    assert not words.uses("PROMPT")
    assert parse('run "$MANYHANDS_OUTPUT_FILE"').uses("OUTPUT_FILE")
    assert Values(prompt_file=Path("/p q")).shown(words) == "run 'x /p q'"


def test_quoting_is_always_in_single_quotes() -> None:
    assert quoted("") == "''"
    assert quoted("a'b") == "'a'\"'\"'b'"
    assert Values().filled(parse("echo {ATTEMPT}>x"))[2] == "echo '0'>x"
