"""A command for each test: what it is given, what counts as its answer, how it may fail, what it leaves."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.redaction import REDACTED
from manyhands.io.locations import Location
from manyhands.processes.commands import MAX_OUTPUT, CommandRunner
from manyhands.processes.strays import process_mark, process_table
from manyhands.processes.templates import MAX_ARGUMENT
from manyhands.workloads.evals.targets.answers import answer_from_json
from manyhands.workloads.evals.targets.command import (
    MAX_ANSWER,
    CommandAnswer,
    CommandInvoker,
    CommandSettings,
    Question,
    parse_command,
    read_answer,
)

KEY = "sk-0123456789abcdef"


class Target:
    """A command target in a folder."""

    def __init__(self, folder: Path, runner: CommandRunner) -> None:
        self.folder = folder
        self.files = folder / "run" / "1-1"
        self.runner = runner

    async def ask(self, command: str | list[str], question: Question | None = None, **more: Any) -> CommandAnswer:
        template = parse_command(command, Location("targets.yaml"))
        settings = CommandSettings(template, **{"folder": self.folder, "seconds": 20.0, **more})
        return await CommandInvoker(settings, self.runner, environ={"MY_API_KEY": KEY}).ask(
            question or Question("t", "a prompt"), self.files
        )

    async def failure(self, command: str | list[str], question: Question | None = None, **more: Any) -> ItemError:
        with pytest.raises(ItemError) as caught:
            await self.ask(command, question, **more)
        return caught.value


@pytest.fixture
async def target(tmp_path: Path) -> AsyncIterator[Target]:
    async with CommandRunner.opened(process_mark(secrets.token_hex(8)), {"PATH": os.environ["PATH"]}) as runner:
        yield Target(tmp_path, runner)


def writing(text: str) -> str:
    return f"printf %s {shlex.quote(text)} >{{OUTPUT_FILE}}"


# --- What it is given


async def test_what_it_is_given(target: Target, tmp_path: Path) -> None:
    script = "import os, sys, json; print(json.dumps({'argv': sys.argv[1:], 'in': sys.stdin.read(), 'env': dict(os.environ)}))"
    names = ["PROMPT", "GUIDELINES", "EVAL_ID", "ATTEMPT", "EVAL_FILE", "FILES"]
    command = [sys.executable, "-c", script, *(f"{{{name}}}" for name in names)]
    question = Question("a/../b c'd", "it's $(a) prompt\n", "be kind", [tmp_path / "f 1", tmp_path / "f 1"], attempt=2)
    said = json.loads((await target.ask(command, question, eval_file=tmp_path / "e.yaml")).answer.text)
    assert said["argv"] == ["it's $(a) prompt\n", "be kind", "a/../b c'd", "2", f"{tmp_path}/e.yaml", f"{tmp_path}/f 1"]
    assert said["in"] == ""
    assert said["env"]["MANYHANDS_EVAL_ID"] == "a/../b c'd"
    assert said["env"]["MANYHANDS_OUTPUT_FILE"] == str(target.files / "output.json")
    shell = "printf '%s|' {PROMPT} {EVAL_ID} \"$(cat {PROMPT_FILE})\" >{OUTPUT_FILE}"
    assert (await target.ask(shell, question)).answer.text == "it's $(a) prompt\n|a/../b c'd|it's $(a) prompt|"


async def test_a_long_prompt_fits_its_file_and_not_an_argument(target: Target) -> None:
    question = Question("t", "x" * (MAX_ARGUMENT + 1))
    assert len((await target.ask("cat {PROMPT_FILE}", question)).answer.text) == MAX_ARGUMENT + 1
    for command in ("echo {PROMPT}", ["echo", "{PROMPT}"]):
        error = await target.failure(command, question)
        assert error.cause is Cause.INVALID_INPUT
        assert "{PROMPT_FILE}" in error.message


# --- What counts as its answer


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("plain text\n", "plain text\n"),
        ("", ""),
        ('{"text": "x"}', "x"),
        ('\ufeff \n{"text": {"aB": 1}}\n', '{"aB":1}'),
        ('{"text": "t", "output": [{"role": "assistant", "content": "m"}]}', "m"),
        ('{"output_messages": [{"role": "assistant", "content": {"aB": 1}}]}', '{"aB":1}'),
        ('{"decision": "X"}', '{"decision": "X"}'),
        ('[{"text": "x"}]', '[{"text": "x"}]'),
        ('{"text": "x"}\n{"text": "y"}', '{"text": "x"}\n{"text": "y"}'),
        ('{"text": oops}', '{"text": oops}'),
        ('{"text": ' * 300 + "1" + "}" * 300, '{"text": ' * 300 + "1" + "}" * 300),
    ],
)
async def test_a_record_or_plain_text_is_the_answer(target: Target, written: str, text: str) -> None:
    found = await target.ask(writing(written))
    assert (found.answer.text, found.answer.error, found.exit_code) == (text, None, 0)


async def test_a_record_brings_its_figures_and_errors(target: Target) -> None:
    record = {"id": "other", "text": "x", "cost_usd": 0.5, "duration_ms": 3, "token_usage": {"input": 1, "output": 2}}
    found = await target.ask(writing(json.dumps(record)))
    answer = found.answer
    assert (answer.cost_usd, answer.duration_ms, answer.token_usage) == (0.5, 3, {"input": 1, "output": 2})
    assert (await target.ask(writing('{"id": "t", "error": "no luck"}'))).answer.error == "no luck"
    assert (await target.ask(writing('{"output": "plain"}'))).answer.error == "output is not a list of messages"


async def test_the_command_s_time_is_the_duration_where_none_is_given(target: Target) -> None:
    for command in (
        f"sleep 0.2; {writing('x')}",
        f"sleep 0.2; {writing(json.dumps({'text': 'x', 'duration_ms': -1}))}",
    ):
        answer = (await target.ask(command)).answer
        assert answer.duration_ms is not None
        assert 200 <= answer.duration_ms < 5000
        assert answer.trace["duration_ms"] == answer.duration_ms
        assert answer_from_json(answer.to_json()) == answer


async def test_without_an_output_file_what_is_printed_is_the_answer(target: Target) -> None:
    found = await target.ask("echo hello; echo noise >&2")
    assert (found.answer.text, found.stdout, found.stderr) == ("hello", "hello\n", "noise\n")
    assert (await target.ask("echo '{\"text\": 5}'")).answer.text == "5"
    assert (await target.ask('echo printed; echo written >"$MANYHANDS_OUTPUT_FILE"')).answer.text == "written\n"
    error = await target.failure(f"head -c {MAX_OUTPUT + 1} /dev/zero")
    assert error.message == "it printed more than 4 MiB; use {OUTPUT_FILE}"


@given(st.binary(max_size=50) | st.text(st.sampled_from('{}":[],text outpu1'), max_size=40).map(str.encode))
def test_nothing_that_is_written_is_too_strange(data: bytes) -> None:
    answer = read_answer(data)
    assert answer.text is not None


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-8-sig"])
def test_answers_of_windows_programs_are_read(encoding: str) -> None:
    assert read_answer("naïve\r\n".encode(encoding)).text == "naïve\r\n"
    assert read_answer('{"text": "naïve"}\r\n'.encode(encoding)).text == "naïve"


# --- How it fails


async def test_failures_are_named_with_their_causes(target: Target, tmp_path: Path) -> None:
    error = await target.failure("echo part >{OUTPUT_FILE}; echo why >&2; exit 4")
    assert (error.cause, error.message) == (Cause.WORKER_ERROR, "the command ended with exit code 4: why")
    assert error.record == {"stdout": "", "stderr": "why\n"}
    assert (await target.failure("echo why; exit 5")).message == "the command ended with exit code 5: why"
    error = await target.failure("true {OUTPUT_FILE}")
    assert (error.cause, error.message) == (Cause.INVALID_OUTPUT, "the output file was not written")
    assert (await target.failure("mkdir {OUTPUT_FILE}")).message == "the output file is a folder"
    (target.files / "output.json").rmdir()
    error = await target.failure(["./none"])
    assert (error.cause, error.message) == (Cause.WORKER_ERROR, "./none can't be started: No such file or directory")
    assert "there is no folder" in (await target.failure("true", folder=tmp_path / "none")).message
    error = await target.failure(f"truncate -s {MAX_ANSWER + 1} {{OUTPUT_FILE}}")
    assert error.message == f"the output file is larger than 64 MiB ({MAX_ANSWER + 1} bytes)"


async def test_secrets_stay_out_of_what_is_said_about_it(target: Target) -> None:
    error = await target.failure(f"echo {KEY} >&2; exit 1")
    assert error.message == f"the command ended with exit code 1: {REDACTED}"
    assert KEY not in str(error.record)
    assert (await target.ask(f"echo x >{{OUTPUT_FILE}}; echo {KEY}")).stdout == f"{REDACTED}\n"


async def test_at_the_time_limit_nothing_of_it_is_left(target: Target, tmp_path: Path) -> None:
    error = await target.failure("echo slow >&2; sleep 86 & setsid sleep 86 & sleep 86", seconds=0.4)
    assert (error.cause, error.message) == (Cause.TIMEOUT, "the command timed out after 0.4 s: slow")
    living = [pid for pid, line in process_table().items() if line.state not in "ZX" and _is_in(pid, tmp_path)]
    assert living == []


async def test_files_that_can_not_be_written_are_named(target: Target) -> None:
    target.files = target.folder / "file"
    target.files.write_text("")
    error = await target.failure("true")
    assert error.cause is Cause.SANDBOX_LOST


# --- What it leaves


async def test_its_files_are_removed_unless_they_are_wanted(target: Target) -> None:
    await target.ask(writing("x"))
    await target.failure("echo x >{OUTPUT_FILE}; exit 1")
    assert list(target.files.iterdir()) == []
    await target.ask(writing("x"), keep_files=True)
    assert sorted(path.name for path in target.files.iterdir()) == ["output.json", "prompt.txt"]
    # What an earlier one left is not taken for an answer.
    assert (await target.failure("true {OUTPUT_FILE}")).message == "the output file was not written"


async def test_many_at_once(target: Target) -> None:
    async def one(number: int) -> str:
        other = Target(target.folder, target.runner)
        other.files = target.folder / "run" / str(number)
        question = Question(f"id/{number}", f"prompt {number}")
        return (await other.ask("printf %s {PROMPT}{EVAL_ID} >{OUTPUT_FILE}", question)).answer.text

    found = await asyncio.gather(*map(one, range(20)))
    assert found == [f"prompt {number}id/{number}" for number in range(20)]


def _is_in(pid: int, folder: Path) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/cwd") == str(folder)
    except OSError:
        return False
