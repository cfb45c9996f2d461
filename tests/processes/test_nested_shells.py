"""Values in the line of a further shell stay values, whatever is in them."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.io.locations import Location
from manyhands.processes.templates import CommandTemplate

KNOWN = ("PROMPT", "OUTPUT_FILE")
LOCATION = Location("targets.yaml", ("command",))
COMMANDS: list[Json] = [
    ["sh", "-c", "printf %s {PROMPT}"],
    ["bash", "-lc", 'printf %s "{PROMPT}"'],
    ["/bin/sh", "-e", "-c", "printf %s '{PROMPT}'"],
    ["env", "A=b", "bash", "-o", "pipefail", "-c", "printf %s {PROMPT} | cat"],
    "sh -c 'printf %s {PROMPT}'",
    "true && /bin/sh -ec 'printf %s \"{PROMPT}\"' # {PROMPT}",
    'sh -c "printf %s {PROMPT}" | cat',
    "bash -c '\n  printf %s \\\n  {PROMPT}\n  '",
    "printf %s {PROMPT}",
    "echo \"$(sh -c 'printf %s {PROMPT}')\"",
]


def output(command: Json, prompt: str) -> str:
    words = CommandTemplate.parse(command, LOCATION, KNOWN).filled({"PROMPT": prompt, "OUTPUT_FILE": "/dev/null"})
    done = subprocess.run(words, capture_output=True, timeout=10, check=True, env={"PATH": "/usr/bin:/bin"})
    return done.stdout.decode()


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_no_value_is_taken_for_syntax(command: Json) -> None:
    for prompt in (
        "x; echo HURT #",
        "' ; echo HURT; '",
        '" ; echo HURT; "',
        "$(echo HURT)",
        "`echo HURT`",
        "{OUTPUT_FILE}",
        "\\'",
    ):
        assert output(command, prompt).rstrip("\n") == prompt


@given(prompt=st.text(st.sampled_from("'\"\\$`;|&(){}# \nab"), max_size=20), command=st.sampled_from(COMMANDS[:7]))
def test_every_value_arrives_as_it_is(prompt: str, command: Json) -> None:
    assert output(command, prompt) == prompt


@pytest.mark.parametrize("command", [["sh", "-c", "{PROMPT}"], "sh -c {PROMPT}", "sh -c '{PROMPT}'"], ids=str)
def test_a_value_that_is_the_line_itself_is_run(command: Json) -> None:
    assert output(command, "echo one; echo two") == "one\ntwo\n"


@pytest.mark.parametrize(
    "command",
    [
        'sh -c "echo $HOME {PROMPT}"',
        "sh -c 'echo '{PROMPT}",
        "sh -c 'echo '\"'\"'{PROMPT}'",
        "sh -c echo\\ {PROMPT}",
        ["sh", "-c", "echo `echo {PROMPT}`"],
        ["sh", "-c", 'sh -c "echo $HOME {PROMPT}"'],
    ],
    ids=str,
)
def test_what_no_quotation_would_hold_together_is_refused(command: Json) -> None:
    with pytest.raises(UserError, match=r"targets.yaml: command.*\{PROMPT\} can't be put into .*MANYHANDS_PROMPT"):
        CommandTemplate.parse(command, LOCATION, KNOWN)


def test_other_words_are_as_before() -> None:
    for command in (["grep", "sh", "-c", "{PROMPT}"], ["python3", "-c", "{PROMPT}"], ["sh", "run.sh", "{PROMPT}"]):
        filled = CommandTemplate.parse(command, LOCATION, KNOWN).filled({"PROMPT": "a b; c"})
        assert filled[-1] == "a b; c"
