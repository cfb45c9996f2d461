"""An external command as a worker: real processes, which report through a socket as our MCP server does, or print."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shlex
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.engine.limits.budget import Budget
from manyhands.engine.limits.shared import SharedLimits
from manyhands.processes.strays import process_mark, process_table
from manyhands.testing.context import Crash, CrashPoint, MemoryContext, When
from manyhands.workloads.csv_jobs.workers.command import MAX_TAIL_CHARS, CommandWorker
from manyhands.workloads.csv_jobs.workers.reports import (
    SECRET,
    UNREPORTED,
    Accepted,
    Assignment,
    ReportInbox,
    StageOfRow,
)
from tests.support.job_rows import JOB_ID, SCORE_SCHEMA, assignment

API_KEY = "sk-0123456789abcdef"
# What workers find in Python: ``report(result)`` hands a report in and returns the answer.
PRELUDE = """
import json, os, socket, sys, time, signal
secret = os.environ["MANYHANDS_WORKER"]
def report(result, **more):
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(os.environ["REPORTS"])
        message = {"job_id": os.environ["MANYHANDS_JOB_ID"], "item_id": os.environ["MANYHANDS_ITEM_ID"], "result": result,
                   "stop": False, "secret": secret, **more}
        door.sendall(json.dumps(message).encode() + b"\\n")
        return json.loads(door.makefile().readline() or "null")
def say(**value):
    print(json.dumps(value), flush=True)
"""


class Place:
    """A folder for workers, and an inbox with a tool that delivers to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inbox = ReportInbox(JOB_ID)
        self.environ = {"PATH": os.environ["PATH"], "REPORTS": str(folder / "door"), "MY_API_KEY": API_KEY}
        self.launches = folder / "launches"

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One report through the door."""
        given = json.loads(await reader.readline())
        acceptance = await self.inbox.deliver(**given)
        answer = {"accepted": acceptance.accepted, "reason": acceptance.reason, "violations": acceptance.violations}
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()
        writer.close()

    def python(self, script: str, *words: str) -> str:
        """A command line that runs a script."""
        noted = f"open({str(self.launches)!r}, 'a').write('launch\\n')\n"
        file = self.folder / f"worker_{secrets.token_hex(4)}.py"
        file.write_text(PRELUDE + noted + script)
        return shlex.join([sys.executable, str(file), *words])

    @property
    def launched(self) -> int:
        return len(self.launches.read_text().splitlines()) if self.launches.exists() else 0

    def worker(self, command: str, **more: Any) -> CommandWorker:
        settings = {"environ": self.environ, "patience": 0.5, "folder": self.folder, **more}
        return CommandWorker(command, inbox=self.inbox, data_dir=self.folder / "data", **settings)

    def opened(self, command: str, **more: Any) -> AbstractAsyncContextManager[CommandWorker]:
        return self.worker(command, **more).opened(process_mark(f"{JOB_ID}-{secrets.token_hex(4)}"))

    async def perform(
        self, script: str, work: Assignment | None = None, *, context: MemoryContext | None = None, **more: Any
    ) -> Accepted:
        work = work or assignment(SCORE_SCHEMA, printing=True)
        async with self.opened(self.python(script), **more) as worker:
            return await self.with_worker(worker, work, context)

    async def with_worker(
        self, worker: CommandWorker, work: Assignment, context: MemoryContext | None = None
    ) -> Accepted:
        return await worker.run(context or self.context(), work)

    def context(self, **more: Any) -> MemoryContext:
        return MemoryContext(workspace=self.folder / "workspaces" / "1-1", **more)

    async def failure(self, script: str, work: Assignment | None = None, **more: Any) -> ItemError:
        with pytest.raises(ItemError) as caught:
            await self.perform(script, work, **more)
        return caught.value


@asynccontextmanager
async def place_in(folder: Path) -> AsyncIterator[Place]:
    place = Place(folder)
    server = await asyncio.start_unix_server(place.answer, str(folder / "door"))
    try:
        yield place
    finally:
        server.close()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with place_in(tmp_path) as made:
        yield made


def left(place: Place) -> list[int]:
    """Living processes that workers of this place left."""
    found = []
    for pid, line in process_table().items():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"REPORTS={place.environ['REPORTS']}".encode() in environment and line.state not in "ZX":
            found.append(pid)
    return found


# --- What a command is given


async def test_the_prompt_is_on_standard_input_and_the_row_in_the_environment(place: Place) -> None:
    script = """
names = ("JOB_ID", "ITEM_ID", "ROW_INDEX", "ATTEMPT", "DATA_DIR")
given = {name: os.environ["MANYHANDS_" + name] for name in names}
files = {name: open(os.environ["MANYHANDS_" + name + "_FILE"]).read() for name in ("ROW", "PROMPT", "SCHEMA")}
say(given=given, files=files, row=os.environ["MANYHANDS_ROW"], prompt=sys.stdin.read(), secret=len(secret), folder=os.getcwd())
"""
    work = assignment(None, row={"path": "ä", "n": None, "deep": {"a": [1]}}, printing=True)
    found = (await place.perform(script, work)).result
    assert found["given"] == {
        "JOB_ID": JOB_ID,
        "ITEM_ID": "row-1",
        "ROW_INDEX": "0",
        "ATTEMPT": "1",
        "DATA_DIR": str(place.folder / "data"),
    }
    assert json.loads(found["row"]) == json.loads(found["files"]["ROW"]) == work.row
    assert found["prompt"] == found["files"]["PROMPT"] == work.prompt
    assert found["files"]["SCHEMA"] == "{}"
    assert found["secret"] >= 32
    assert found["folder"] == str(place.folder)


async def test_placeholders_stand_for_the_row(place: Place) -> None:
    command = place.python(
        "say(words=sys.argv[1:], files=[open(word).read() for word in sys.argv[3:]], input=sys.stdin.read())",
        "--prompt={prompt}",
        "{job_id}/{item_id}",
        "{prompt_file}",
        "{row_file}",
        "{schema_file}",
    )
    work = assignment(None, item_id="a 'b' {prompt} $(c)", printing=True)
    async with place.opened(command) as worker:
        found = (await place.with_worker(worker, work)).result
    assert found["words"][:2] == [f"--prompt={work.prompt}", f"{JOB_ID}/a 'b' {{prompt}} $(c)"]
    assert found["files"] == [work.prompt, json.dumps(work.row, separators=(",", ":")), "{}"]
    assert found["input"] == ""


async def test_each_stage_of_a_row_is_launched_and_reports_on_its_own(place: Place) -> None:
    script = """
import pathlib
old = pathlib.Path("secret")
late = report({"old": True}, secret=old.read_text())["reason"] if old.exists() else None
old.write_text(secret)
row = json.load(open(os.environ["MANYHANDS_ROW_FILE"]))
report({"stage": os.environ["MANYHANDS_STAGE"], "typed": sys.argv[1], "row": row, "late": late})
"""
    context = MemoryContext(workspace=place.folder / "workspace")
    results: dict[str, Any] = {}
    async with place.opened(place.python(script, "{stage}")) as worker:
        for number, name in enumerate(("one", "two"), 1):
            stage = StageOfRow(name, number, results, {earlier: len(earlier) for earlier in results})
            work = replace(assignment(None, printing=True), stage=stage)
            results[name] = (await worker.run(context.scope(name), work)).result
    row = assignment().row
    assert results["one"] == {"stage": "one", "typed": "one", "row": row, "late": None}
    assert results["two"] == {
        "stage": "two",
        "typed": "two",
        "row": {**row, "one": 3},
        "late": "the secret is not that of the attempt under way at this item",
    }


async def test_a_large_row_is_in_the_file_only_and_a_prompt_too_long_for_an_argument_says_so(place: Place) -> None:
    work = assignment(None, row={"text": "x" * 200_000}, printing=True)
    script = (
        'say(env="MANYHANDS_ROW" in os.environ, size=len(json.load(open(os.environ["MANYHANDS_ROW_FILE"]))["text"]))'
    )
    assert (await place.perform(script, work)).result == {"env": False, "size": 200_000}
    async with place.opened(place.python("say(a=1)", "{prompt}")) as worker:
        with pytest.raises(ItemError, match=r"too long for an argument.*\{prompt_file\}") as caught:
            await place.with_worker(worker, work)
    assert caught.value.cause is Cause.INVALID_INPUT


async def test_a_command_that_is_not_there_is_refused_before_any_row(place: Place) -> None:
    for command in ("no-such-program-anywhere", "./none", "a 'b"):
        with pytest.raises(UserError, match=r"^--worker_command: "):
            async with place.opened(command):
                pass


# --- Printed results


async def test_a_printed_result_is_accepted_and_recorded_once(place: Place) -> None:
    context, work = place.context(), assignment(SCORE_SCHEMA, printing=True)
    command = place.python("print('So:'); say(score=3)")
    async with place.opened(command) as worker:
        accepted = await worker.run(context, work)
    assert (accepted.result, accepted.via, accepted.stop, accepted.corrections) == ({"score": 3}, "stdout", False, 0)
    (step,) = context.steps
    assert (step.kind, step.output["ended"], step.output["exit_code"]) == ("worker", "printed", 0)
    assert step.output["stdout"] == 'So:\n{"score": 3}\n'
    nowhere = {"folder": place.folder / "gone", "environ": {"PATH": ""}}
    replayed = place.worker(command, **nowhere).run(place.context(journal=context.journal), work)
    assert await replayed == accepted
    assert place.launched == 1


async def test_a_printed_misfit_is_told_and_the_command_launched_again(place: Place) -> None:
    script = """
prompt = sys.stdin.read()
say(score=3 if "30 is greater than the maximum" in prompt else 30)
"""
    context = place.context()
    accepted = await place.perform(script, context=context)
    assert (accepted.result, accepted.corrections, place.launched) == ({"score": 3}, 1, 2)
    first, second = context.steps
    assert first.output["ended"] == "unfit"
    assert first.request["launch"] == 1
    assert second.request["violations"] == ["$.score: 30 is greater than the maximum of 10"]


async def test_after_the_last_correction_the_row_fails_with_the_last_report(place: Place) -> None:
    error = await place.failure("say(score=30)", assignment(SCORE_SCHEMA, corrections=2, printing=True))
    assert (error.cause, place.launched) == (Cause.INVALID_OUTPUT, 3)
    assert error.record == {
        "last_report": {"score": 30},
        "violations": ["$.score: 30 is greater than the maximum of 10"],
    }


async def test_nothing_found_is_the_originals_failure(place: Place) -> None:
    error = await place.failure("print('The score is 3.')")
    assert (error.cause, error.message, error.record) == (
        Cause.INVALID_OUTPUT,
        UNREPORTED,
        {"last_answer": "The score is 3."},
    )


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "say(score=3); print('a\\nb\\n\\nc\\nd', file=sys.stderr); sys.exit(3)",
            "worker exited with code 3: b | c | d",
        ),
        ("print('only this'); sys.exit(4)", "worker exited with code 4: only this"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "worker exited with code 137"),
        (
            r"print('fine'); sys.stderr.write('10 %\r20 %\r\x1b[31mgone\x1b[0m\x07 wrong\x08\n\n'); sys.exit(1)",
            "worker exited with code 1: 10 % | 20 % | gone wrong",
        ),
        ("print(os.environ['MY_API_KEY'], file=sys.stderr); sys.exit(1)", "worker exited with code 1: [redacted]"),
        (
            "print('x' * 5000, 'the end', file=sys.stderr); sys.exit(1)",
            "worker exited with code 1: " + "x" * 592 + " the end",
        ),
        (
            "say(type='result', is_error=True, result='Credit balance\\nis too low'); print('noise', file=sys.stderr)",
            "worker reported a failure: Credit balance | is too low",
        ),
        (
            "say(type='result', subtype='error_max_turns', is_error=False, num_turns=3); sys.exit(1)",
            "worker exited with code 1: error_max_turns",
        ),
        (
            "say(type='thread.started'); say(type='turn.failed', error={'message': 'no credit'}); print('noise', file=sys.stderr)",
            "worker reported a failure: no credit",
        ),
    ],
)
async def test_a_command_that_fails_is_named_with_its_code_and_last_words(
    place: Place, script: str, message: str
) -> None:
    context = place.context()
    error = await place.failure(script, context=context)
    assert (error.cause, error.message) == (Cause.WORKER_ERROR, message)
    assert context.steps[0].output["ended"] == "failed"


async def test_the_time_limit_counts_from_the_launch_and_nothing_is_left(place: Place) -> None:
    script = (
        "import subprocess; subprocess.Popen(['sleep', '97'], start_new_session=True); say(score=3); time.sleep(97)"
    )
    context = place.context()
    error = await place.failure(script, assignment(SCORE_SCHEMA, max_seconds=1.5), context=context)
    assert (error.cause, error.message) == (Cause.TIMEOUT, "worker exceeded max runtime of 1.5s")
    assert context.steps[0].output["stdout"] == '{"score": 3}\n'
    assert left(place) == []


async def test_further_launches_have_what_is_left_of_the_time(place: Place) -> None:
    script = "time.sleep(0.9); say(score=30)"
    error = await place.failure(script, assignment(SCORE_SCHEMA, max_seconds=2.4, corrections=50))
    assert error.cause is Cause.TIMEOUT
    assert 2 <= place.launched <= 3


# --- Reports


async def test_a_report_is_accepted_once_and_outranks_what_is_printed(place: Place) -> None:
    script = """
first, second = report({"score": 3}, stop=True), report({"score": 4})
open("answers", "w").write(json.dumps([first, second]))
say(score=5)
sys.exit(1)
"""
    context = place.context()
    accepted = await place.perform(script, context=context, patience=5.0)
    assert (accepted.result, accepted.via, accepted.stop) == ({"score": 3}, "mcp", True)
    first, second = json.loads((place.folder / "answers").read_text())
    assert first == {"accepted": True, "reason": None, "violations": []}
    assert second["reason"] == "a result was reported for this item already"
    assert context.steps[0].output["ended"] == "reported"


async def test_misfits_are_answered_and_corrected_while_the_command_runs(place: Place) -> None:
    script = """
first = report({"score": 30})
assert first["violations"] == ["$.score: 30 is greater than the maximum of 10"], first
assert report({"score": 3}, secret="wrong")["accepted"] is False
assert report({"score": 3})["accepted"]
"""
    accepted = await place.perform(script)
    assert (accepted.result, accepted.corrections, place.launched) == ({"score": 3}, 1, 1)


async def test_too_many_misfits_end_the_command(place: Place) -> None:
    script = """
report({"score": 30})
open("answer", "w").write(json.dumps(report({"score": 30})["reason"]))
time.sleep(97)
"""
    error = await place.failure(script, assignment(SCORE_SCHEMA, corrections=1))
    assert (error.cause, error.record["last_report"], place.launched) == (Cause.INVALID_OUTPUT, {"score": 30}, 1)
    assert left(place) == []
    answer = place.folder / "answer"  # it may have been ended before it could write it
    assert not answer.exists() or not answer.read_text() or "no correction is left" in answer.read_text()


async def test_a_command_that_goes_on_after_its_report_is_ended(place: Place) -> None:
    script = 'report({"score": 3}); open("told", "w").write("yes"); time.sleep(97)'
    began = asyncio.get_running_loop().time()
    assert (await place.perform(script)).result == {"score": 3}
    assert (place.folder / "told").read_text() == "yes"
    assert asyncio.get_running_loop().time() - began < 10
    assert left(place) == []


async def test_the_worker_is_told_only_when_the_report_is_recorded(place: Place) -> None:
    script = 'open("told", "w").write(json.dumps(report({"score": 3}))); time.sleep(97)'
    context = place.context(crash=CrashPoint(1, "before_recording"))
    with pytest.raises(Crash):
        await place.perform(script, context=context)
    told = place.folder / "told"
    assert not told.exists() or not told.read_text() or not json.loads(told.read_text())["accepted"]
    assert left(place) == []
    assert context.journal == {}


async def test_who_comes_too_late_is_told_why(place: Place) -> None:
    async with place.opened(place.python("say(score=3)")) as worker:
        accepted = await place.with_worker(worker, assignment(SCORE_SCHEMA))
    late = await place.inbox.deliver(JOB_ID, "row-1", {"score": 4}, stop=False, secret="any")
    assert (accepted.result, late.accepted) == ({"score": 3}, False)
    assert late.reason == "a result was accepted for this item already"
    await place.failure("time.sleep(97)", assignment(SCORE_SCHEMA, item_id="row-2", max_seconds=0.3))
    late = await place.inbox.deliver(JOB_ID, "row-2", {"score": 4}, stop=False, secret="any")
    assert late.reason == "the item has failed: worker exceeded max runtime of 0.3s"


async def test_a_printed_misfit_after_refused_reports_counts_with_them(place: Place) -> None:
    script = 'report({"score": 30}); report({"score": 31}); say(score=32)'
    error = await place.failure(script, assignment(SCORE_SCHEMA, corrections=2))
    assert (error.record["last_report"], place.launched) == ({"score": 32}, 1)


# --- What it costs


async def test_what_a_launch_says_after_its_report_counts_too(place: Place) -> None:
    script = """
assert report({"score": 3})["accepted"]
say(type="result", result="Done.", total_cost_usd=0.5, usage={"input_tokens": 7, "output_tokens": 1})
"""
    budget = Budget(max_cost=1.0)
    context = place.context(limits=SharedLimits(budget=budget))
    command = place.python(script)
    async with place.opened(command, bounded=True) as worker:
        accepted = await worker.run(context, assignment(SCORE_SCHEMA))
    launch, cost = context.steps
    assert (launch.kind, launch.usage["cost"], cost.kind, cost.usage["cost"]) == ("worker", 0.0, "cost", 0.5)
    assert budget.spent.cost == 0.5
    replayed = place.worker(command).run(place.context(journal=context.journal), assignment(SCORE_SCHEMA))
    assert await replayed == accepted
    assert place.launched == 1


async def test_a_report_without_a_cost_exhausts_the_budget(place: Place) -> None:
    budget = Budget(max_cost=1.0)
    context = place.context(limits=SharedLimits(budget=budget))
    assert (await place.perform('report({"score": 3})', context=context, bounded=True)).via == "mcp"
    assert "did not say what it cost" in (budget.reason or "")


async def test_a_program_that_can_not_be_started_costs_nothing(place: Place) -> None:
    budget = Budget(max_cost=1.0)
    context = place.context(limits=SharedLimits(budget=budget))
    async with place.opened(place.python("say(a=1)", "{prompt}"), bounded=True) as worker:
        with pytest.raises(ItemError, match="too long for an argument"):
            await worker.run(context, assignment(None, row={"text": "x" * 200_000}, printing=True))
    assert (budget.reason, budget.exposed) == (None, (0.0, 0))


# --- The journal


async def test_no_secret_is_recorded(place: Place) -> None:
    script = """
print(secret, os.environ["MY_API_KEY"], "x" * 20_000)
print(secret, os.environ["MY_API_KEY"], file=sys.stderr)
say(key=os.environ["MY_API_KEY"], inner={secret: [secret]})
"""
    context = place.context()
    accepted = await place.perform(script, assignment(None), context=context)
    recorded = repr(context.journal)
    assert API_KEY not in recorded
    assert accepted.result == {"key": "[redacted]", "inner": {"[redacted]": ["[redacted]"]}}
    output = context.steps[0].output
    assert output["stderr"] == "[redacted] [redacted]\n"
    assert len(output["stdout"]) == MAX_TAIL_CHARS
    assert SECRET not in recorded


@pytest.mark.parametrize("when", ["before_effect", "before_recording", "after_recording"])
@pytest.mark.parametrize("step", [1, 2, 3])
async def test_after_any_crash_recorded_launches_are_not_made_again(place: Place, step: int, when: When) -> None:
    script = """
prompt = sys.stdin.read()
if "31 is greater" in prompt:
    report({"score": 3})
elif "30 is greater" in prompt:
    say(score=31)
else:
    say(score=30)
"""
    command = place.python(script)
    work = assignment(SCORE_SCHEMA)
    broken = place.context(crash=CrashPoint(step, when))
    async with place.opened(command) as worker:
        with pytest.raises(Crash):
            await place.with_worker(worker, work, broken)
    assert left(place) == []
    recorded, before = len(broken.steps), place.launched
    context = place.context(journal=broken.journal)
    async with place.opened(command) as worker:
        accepted = await place.with_worker(worker, work, context)
    assert (accepted.result, accepted.corrections, accepted.via) == ({"score": 3}, 2, "mcp")
    assert place.launched - before == 3 - recorded
    assert accepted.reported_at == context.steps[-1].output["reported_at"]


async def test_a_cancelled_row_leaves_nothing_running(place: Place) -> None:
    started: Callable[[], bool] = (place.folder / "on").exists
    script = (
        'import subprocess; subprocess.Popen(["sleep", "97"], start_new_session=True); open("on", "w"); time.sleep(97)'
    )
    work = asyncio.create_task(place.perform(script))
    while not started():
        await asyncio.sleep(0.02)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert left(place) == []


async def test_many_rows_at_once(place: Place) -> None:
    script = 'sys.exit(0 if report({"score": 1 + int(os.environ["MANYHANDS_ITEM_ID"]) % 10})["accepted"] else 1)'
    async with place.opened(place.python(script), patience=5.0) as worker:
        rows = [assignment(SCORE_SCHEMA, item_id=str(number)) for number in range(12)]
        done = await asyncio.gather(*(worker.run(place.context(), row) for row in rows))
    assert [accepted.result["score"] for accepted in done] == [1 + number % 10 for number in range(12)]
    assert left(place) == []
