"""Everything that a batch command may do wrong, and what becomes of each test: the recorded situations, and more of our own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manyhands.io.locations import Location
from manyhands.processes.commands import CommandRunner
from manyhands.processes.strays import process_mark, process_table
from manyhands.workloads.evals.batch.command import BatchCommand, BatchJob
from manyhands.workloads.evals.batch.reports import BatchReport, Fault
from manyhands.workloads.evals.targets.answers import Answer
from manyhands.workloads.evals.targets.command import CommandSettings, parse_command

SITUATIONS = Path(__file__).parents[1] / "data/evals/batch_situations"
IDS = ("a", "b", "c")
# What the run has to mention, as patterns; the recorded notices say the same in prose.
MENTIONED = {
    "missing": ["no record for test c"],
    "extra": ["unknown id zzz"],
    "dup": ["id a twice, identical records"],
    "badline": ["^line 3 is not JSON", r"no record for test c \(line 3"],
    "nonobj": ["line 4 is not an object"],
    "noid": ["line 4 has no id"],
    "numid": ["unknown id 3 in line 3", "no record for test c"],
    "empty": ["the output file is empty"],
    "nofile": ["the output file was not written"],
    "exit3": ["^the command ended with exit code 3: boom on stderr$"],
    "sleep": ["^the command timed out after 2 s(: Terminated)?; the output file was not written$"],
    "textnum": ["the record has neither text, output nor error"],
    "error": ["runner failed on b", "err c"],
    "metrics": ["negative cost_usd was left out", "negative duration_ms was left out", "token_usage without both"],
    "metrics2": ["negative cost_usd was left out", "negative duration_ms was left out"],
    "output": ["output has no assistant message with content: text is the answer"],
    "badtool": [r"output\[0\].tool_calls\[0\]: the tool's name was taken from name"],
    "outstr": ["output is not a list of messages"],
    "array": ["^one JSON array was read as lines$"],
}


class Run:
    """One run of a batch command over the three tests."""

    def __init__(self, answers: dict[str, Answer | Fault], report: BatchReport) -> None:
        self.answers = answers
        self.report = report

    def status(self, test_id: str, judged: bool) -> str:
        answer = self.answers[test_id]
        if test_id in self.report.retracted or isinstance(answer, Fault) or answer.error is not None:
            return "error"
        return "passed" if judged else "failed"

    def text(self, test_id: str) -> str:
        answer = self.answers[test_id]
        return "" if isinstance(answer, Fault) else answer.text

    def mentioned(self) -> list[str]:
        """Everything that is said to the person."""
        said = [*self.report.notices, self.report.failure or ""]
        for answer in self.answers.values():
            said += [answer.message] if isinstance(answer, Fault) else [answer.error or "", *answer.notices]
        return said


async def run(command: str, cwd: Path, folder: Path, *, seconds: float | None = 20.0) -> Run:
    settings = CommandSettings(parse_command(command, Location("targets.yaml")), cwd, seconds=seconds)
    environ = {"PATH": os.environ["PATH"]}
    async with CommandRunner.opened(process_mark(secrets.token_hex(8)), environ) as runner:
        job = BatchJob(folder=folder, settings=settings, ids=IDS, runner=runner)
        batch = await BatchCommand.opened(job)
        try:
            assert await batch.start()
            answers = dict(zip(IDS, await asyncio.gather(*map(batch.answer, IDS)), strict=True))
            report = await batch.wait()
            # Opened again it says the same, and runs nothing.
            again = await BatchCommand.opened(replace(job, runner=None))
            assert not await again.start()
            assert again.report() == report
            standing = [test_id for test_id in IDS if test_id not in report.retracted]
            assert [await again.answer(test_id) for test_id in standing] == [answers[test_id] for test_id in standing]
            await again.close()
            return Run(answers, report)
        finally:
            await batch.close()


def exit_code(statuses: dict[str, str], report: BatchReport) -> int:
    if "error" in statuses.values() or report.failure is not None:
        return 3
    return 1 if "failed" in statuses.values() else 0


def judge(text: str) -> bool:
    """The recorded judge's verdict."""
    done = subprocess.run(
        [sys.executable, str(SITUATIONS / "judge.py")],
        input=json.dumps({"answer": text}),
        capture_output=True,
        text=True,
        check=True,
    )
    return bool(json.loads(done.stdout)["score"] == 1)


def intended() -> dict[str, dict[str, Any]]:
    """The recorded situations with what is to become of each."""
    value: dict[str, Any] = json.loads((SITUATIONS / "intended.json").read_text())
    return {name: situation for name, situation in value.items() if name != "_"}


def test_there_are_27_situations() -> None:
    assert len(intended()) == 27
    assert MENTIONED.keys() <= intended().keys()
    noticed = {name for name, situation in intended().items() if "notice" in situation}
    assert noticed - MENTIONED.keys() == {"stdoutbig"}


@pytest.mark.parametrize("name", intended())
async def test_a_recorded_situation_ends_as_intended(name: str, tmp_path: Path) -> None:
    situation = intended()[name]
    location = tmp_path / "suite"
    location.mkdir()
    shutil.copy(SITUATIONS / "runner.py", location)
    seconds = 2.0 if name == "sleep" else 20.0
    done = await run(f"{sys.executable} runner.py {name} {{OUTPUT_FILE}}", location, tmp_path / "run", seconds=seconds)
    statuses = {test_id: done.status(test_id, judge(done.text(test_id))) for test_id in IDS}
    assert statuses == {test_id: situation[test_id] for test_id in IDS}
    assert exit_code(statuses, done.report) == situation["exit"]
    assert (location / "calls.log").read_text().count("\n") == situation["runs"]
    said = done.mentioned()
    for pattern in MENTIONED.get(name, []):
        assert any(re.search(pattern, line) for line in said), (pattern, said)
    if "notice" not in situation:
        assert not [line for line in said if line]
    if name == "sleep":
        assert not [line for line in process_table().values() if _is_in(line.pid, str(location))]
    if name == "stdoutbig":
        assert done.report.stdout is not None
        assert done.report.stdout.stat().st_size == 11 << 20


# --- Fixtures of our own


def record(test_id: Any, text: Any = None, **more: Any) -> str:
    return json.dumps({"id": test_id, "text": json.dumps({"decision": "X"}) if text is None else text, **more})


GOOD = [record(test_id) for test_id in IDS]
PPP, PPE, EEE = "passed passed passed", "passed passed error", "error error error"
CASES: dict[str, tuple[str | None, str, str, int, list[str]]] = {
    # name: (what is written, how it ends, the tests' statuses, the exit code, what is mentioned)
    "all is well": ("\n".join(GOOD) + "\n", "", PPP, 0, []),
    "no end of the last line": ("\n".join(GOOD), "", PPP, 0, []),
    "another order": ("\n".join(reversed(GOOD)), "", PPP, 0, []),
    "Windows line ends": ("\r\n".join(GOOD) + "\r\n\r\n", "", PPP, 0, []),
    "a byte order mark": ("\ufeff" + "\n".join(GOOD), "", PPP, 0, []),
    "blank lines and spaces": ("\n\n  " + "  \n\n".join(GOOD) + "\n\n", "", PPP, 0, []),
    "one array": (f"[{','.join(GOOD)}]", "", PPP, 0, ["one JSON array was read as lines"]),
    "one is missing": ("\n".join(GOOD[:2]), "", PPE, 3, ["no record for test c"]),
    "one too many": ("\n".join([*GOOD, record("zzz")]), "", PPP, 0, ["unknown id zzz in line 4$"]),
    "one twice, the same": ("\n".join([*GOOD, GOOD[0]]), "", PPP, 0, ["id a twice, identical records"]),
    "one twice, different": (
        "\n".join([*GOOD, record("a", "other")]),
        "",
        "error passed passed",
        3,
        [r"^id a twice, different records \(lines 1 and 4\)$"],
    ),
    "a line that is no JSON": ("\n".join([GOOD[0], "{oops", *GOOD[1:]]), "", PPP, 0, ["^line 2 is not JSON"]),
    "a line that is no JSON in place of a record": (
        "\n".join([*GOOD[:2], '{"id": "c", oops}']),
        "",
        PPE,
        3,
        ["no record for test c: line 3, which seems to be it, is not JSON"],
    ),
    "a line that is no object": ("\n".join(["[1,2]", *GOOD]), "", PPP, 0, ["line 1 is not an object"]),
    "a line without id": ("\n".join([*GOOD, '{"text": "x"}']), "", PPP, 0, ["line 4 has no id"]),
    "an id that is a number": ("\n".join([*GOOD[:2], record(3)]), "", PPE, 3, ["unknown id 3", "no record for test c"]),
    "an empty file": ("", "", EEE, 3, ["the output file is empty"]),
    "no file": (None, "", EEE, 3, ["the output file was not written"]),
    "no file and an exit code": (
        None,
        "; echo no luck >&2; exit 7",
        EEE,
        3,
        ["^the command ended with exit code 7: no luck; the output file was not written$"],
    ),
    "an exit code": (
        "\n".join(GOOD),
        "; echo boom >&2; exit 3",
        PPP,
        3,
        ["^the command ended with exit code 3: boom$"],
    ),
    "too slow": (
        "\n".join(GOOD[:2]),
        "; sleep 60",
        PPE,
        3,
        [
            "^the command timed out after 1 s(: Terminated)?$",
            "no record for test c",
        ],  # some shells say that they were ended
    ),
    "texts that are objects": ("\n".join(record(each, {"decision": 1, "aB": 2}) for each in IDS), "", PPP, 0, []),
    "texts that are none": (
        '{"id": "a", "text": 5}\n{"id": "b", "text": null}\n{"id": "c"}',
        "",
        "failed failed error",
        3,
        ["the record has neither text, output nor error"],
    ),
    "errors of its own": (
        "\n".join([GOOD[0], '{"id": "b", "error": "no"}', record("c", error={"message": "never"})]),
        "",
        "passed error error",
        3,
        ["^no$", "^never$"],
    ),
    "figures that can't be used": (
        "\n".join(
            [record("a", cost_usd=-1, duration_ms=-1), record("b", token_usage={"input": 1}), record("c", cost_usd="1")]
        ),
        "",
        PPE,
        3,
        ["negative cost_usd", "negative duration_ms", "token_usage without both", "^cost_usd is not a number$"],
    ),
    "messages": (
        "\n".join(
            [
                record("a", "no", output=[{"role": "assistant", "content": {"decision": 1}}]),
                record("b", output=[{"role": "assistant", "tool_calls": [{"tool": "x"}]}]),
                record("c", output=[]),
            ]
        ),
        "",
        PPP,
        0,
        ["output has no assistant message with content: text is the answer"],
    ),
    "messages that are none": (
        "\n".join([*GOOD[:2], record("c", output="plain")]),
        "",
        PPE,
        3,
        ["output is not a list"],
    ),
    "a tool call with a name": (
        "\n".join([*GOOD[:2], record("c", output=[{"role": "assistant", "tool_calls": [{"name": "x"}]}])]),
        "",
        PPP,
        0,
        ["the tool's name was taken from name"],
    ),
    "no answers in the messages": (
        '{"id": "a", "output": []}\n' + "\n".join(GOOD[1:]),
        "",
        "failed passed passed",
        1,
        [],
    ),
    "large texts": ("\n".join(record(each, "x" * 300_000) for each in IDS), "", "failed failed failed", 1, []),
    "much on standard output": ("\n".join(GOOD), "; head -c 12000000 /dev/zero", PPP, 0, []),
}


@pytest.mark.parametrize("name", CASES)
async def test_a_situation_of_our_own_ends_as_it_should(name: str, tmp_path: Path) -> None:
    written, ending, expected, code, patterns = CASES[name]
    (tmp_path / "suite").mkdir()
    if written is not None:
        (tmp_path / "suite" / "written").write_bytes(written.encode())
    write = "" if written is None else "; cat written >{OUTPUT_FILE}"
    limit = 1.0 if "sleep" in ending else 30.0
    done = await run(f"echo call >>calls{write}{ending}", tmp_path / "suite", tmp_path / "run", seconds=limit)
    statuses = {test_id: done.status(test_id, decided(done.text(test_id))) for test_id in IDS}
    assert " ".join(statuses.values()) == expected
    assert exit_code(statuses, done.report) == code
    assert (tmp_path / "suite" / "calls").read_text() == "call\n"
    said = [line for line in done.mentioned() if line]
    for pattern in patterns:
        assert any(re.search(pattern, line) for line in said), (pattern, said)
    assert patterns or not said


def decided(text: str) -> bool:
    """Whether an answer holds a decision."""
    try:
        return bool(json.loads(text).get("decision"))
    except (ValueError, AttributeError):
        return False


def _is_in(pid: int, folder: str) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/cwd") == folder
    except OSError:
        return False
