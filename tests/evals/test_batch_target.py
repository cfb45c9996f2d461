"""A batch command from its start to its end, and after: early answers, limits, crashes, further invocations, large outputs."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import secrets
import sys
import textwrap
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import StorageError, UserError
from manyhands.core.failures import Cause
from manyhands.core.redaction import REDACTED, Redactor
from manyhands.io.locations import Location
from manyhands.processes.commands import CommandRunner
from manyhands.processes.output import KeptStream
from manyhands.processes.strays import process_mark, process_table
from manyhands.workloads.evals.batch.command import BatchCommand, BatchJob
from manyhands.workloads.evals.batch.reports import BatchReport, Fault, FaultKind
from manyhands.workloads.evals.targets.answers import Answer
from manyhands.workloads.evals.targets.command import CommandSettings, parse_command

# What runners find in Python: ``say(id, …)`` writes a record, at once.
PRELUDE = """
import json, os, signal, subprocess, sys, time
out = open(os.environ["MANYHANDS_OUTPUT_FILE"], "ab", buffering=0)
asked = open(os.environ["MANYHANDS_TEST_IDS_FILE"]).read().split()
open("calls.log", "a").write(" ".join(asked) + "\\n")
def say(id, text="t", **more):
    out.write(json.dumps({"id": id, "text": text, **more}).encode() + b"\\n")
def until(name):
    while not os.path.exists(name):
        time.sleep(0.01)
"""
KEY = "sk-0123456789abcdef"


class Suite:
    """A folder with a runner in it, and a folder for what is kept of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kept = folder / "run" / "batch"
        self.environ = {"PATH": os.environ["PATH"], "MY_API_KEY": KEY}

    def settings(self, script: str, *, seconds: float | None = 20.0, **more: Any) -> CommandSettings:
        (self.folder / "runner.py").write_text(PRELUDE + textwrap.dedent(script))
        template = parse_command([sys.executable, "runner.py"], Location("targets.yaml"))
        return CommandSettings(template, self.folder, seconds=seconds, **more)

    @asynccontextmanager
    async def opened(
        self, script: str | CommandSettings, ids: Sequence[str] = ("a", "b", "c"), *, start: bool = True, **more: Any
    ) -> AsyncIterator[BatchCommand]:
        settings = script if isinstance(script, CommandSettings) else self.settings(script)
        async with CommandRunner.opened(process_mark(secrets.token_hex(8)), self.environ) as runner:
            given = {"runner": runner, "environ": self.environ, **more}
            batch = await BatchCommand.opened(BatchJob(folder=self.kept, settings=settings, ids=ids, **given))
            try:
                if start:
                    await batch.start()
                yield batch
            finally:
                await batch.close()

    async def report(self, script: str | CommandSettings, **more: Any) -> BatchReport:
        async with self.opened(script, **more) as batch:
            return await batch.wait()

    @property
    def calls(self) -> list[str]:
        """What each invocation was asked."""
        file = self.folder / "calls.log"
        return file.read_text().splitlines() if file.exists() else []

    def living(self) -> list[int]:
        """Processes that run in its folder."""
        return [pid for pid, line in process_table().items() if line.state not in "ZX" and self._is_here(pid)]

    def _is_here(self, pid: int) -> bool:
        try:
            return os.readlink(f"/proc/{pid}/cwd") == str(self.folder)
        except OSError:
            return False


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


def texts(found: Sequence[Answer | Fault]) -> list[str]:
    return [each.text if isinstance(each, Answer) else f"{each.kind}: {each.message}" for each in found]


async def answers(batch: BatchCommand, ids: str) -> list[str]:
    async with asyncio.timeout(30):
        return texts(await asyncio.gather(*map(batch.answer, ids)))


async def soon(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


# --- While it runs


async def test_an_answer_is_there_as_soon_as_its_record_is(suite: Suite) -> None:
    script = "say('b', 'second'); until('go-a'); say('a', 'first'); until('go-on'); say('c', 'third')"
    async with suite.opened(script) as batch:
        late = asyncio.create_task(batch.answer("c"))
        assert await answers(batch, "b") == ["second"]
        assert batch.running
        (suite.folder / "go-a").touch()
        assert await answers(batch, "ab") == ["first", "second"]
        assert batch.missing == ["c"]
        assert not late.done()
        (suite.folder / "go-on").touch()
        report = await batch.wait()
        assert texts([await late]) == ["third"]
    assert (report.exit_code, report.failure, report.notices, report.records, report.missing) == (0, None, (), 3, ())
    assert suite.calls == ["a b c"]


async def test_many_may_wait_for_one_answer_and_go_away(suite: Suite) -> None:
    async with suite.opened("until('go'); say('a', 'x')") as batch:
        waiting = [asyncio.create_task(batch.answer("a")) for _ in range(5)]
        await asyncio.sleep(0.05)
        waiting[0].cancel()
        (suite.folder / "go").touch()
        assert texts(await asyncio.gather(*waiting[1:])) == ["x"] * 4


async def test_a_record_that_is_contradicted_later_is_taken_back(suite: Suite) -> None:
    async with suite.opened("say('a', 'x'); say('b'); until('go'); say('a', 'y'); say('b'); say('c')") as batch:
        assert await answers(batch, "ab") == ["x", "t"]
        (suite.folder / "go").touch()
        report = await batch.wait()
        assert report.retracted == {"a": "there are two different records for it"}
        assert batch.missing == ["a"]
        assert await answers(batch, "abc") == [
            "contradiction: two different records for test a (lines 1 and 3)",
            "t",
            "t",
        ]
        assert "id b twice, identical records (again in line 4)" in report.notices
    async with suite.opened("", start=False) as again:
        assert again.report() == report


async def test_what_was_taken_from_an_output_that_is_then_written_anew_is_taken_back(suite: Suite) -> None:
    script = "say('a'); say('b'); until('go'); out.truncate(0); os.lseek(out.fileno(), 0, 0); say('b'); say('c', 'z')"
    async with suite.opened(script) as batch:
        assert await answers(batch, "ab") == ["t", "t"]
        (suite.folder / "go").touch()
        report = await batch.wait()
        assert report.retracted == {"a": "the output was written anew, without its record"}
        assert await answers(batch, "bc") == ["t", "z"]
    async with suite.opened("", start=False) as again:
        assert again.report() == report


async def test_what_the_command_is_told(suite: Suite, tmp_path: Path) -> None:
    script = """
        told = {name: value for name, value in os.environ.items() if name.startswith("MANYHANDS_")}
        tests = [json.loads(line) for line in open(told["MANYHANDS_BATCH_INPUT_FILE"])]
        say("a", {"told": told, "tests": tests, "stdin": sys.stdin.read(), "argv": sys.argv[1:]})
    """
    settings = suite.settings(script, eval_file=tmp_path / "my suite" / "eval.yaml", files_format="-f {path}")
    template = parse_command(
        f"{sys.executable} runner.py --eval {{EVAL_FILE}} --out {{OUTPUT_FILE}} {{FILES}} {{EVAL_ID}} {{ATTEMPT}} {{PROMPT}}",
        Location("t"),
    )
    settings = CommandSettings(template, settings.folder, settings.eval_file, 20.0, settings.files_format)
    files = [tmp_path / "x 1", tmp_path / "x 1", tmp_path / "x2"]
    tests = {"a": {"id": "a", "input": [1]}, "b c": {"id": "b c", "camelKey": {"X": 1}}}

    def lines(ids: Collection[str]) -> Iterable[bytes]:
        return (json.dumps(tests[each]).encode() for each in ids)

    async with suite.opened(settings, list(tests), tests=lines, files=files) as batch:
        found = await batch.answer("a")
        assert isinstance(found, Answer)
        said = json.loads(found.text)
        report = await batch.wait()
    folder = suite.kept / "invocation_1"
    assert said["tests"] == list(tests.values())
    assert said["stdin"] == ""
    assert said["argv"] == [
        "--eval",
        str(tmp_path / "my suite" / "eval.yaml"),
        "--out",
        str(folder / "output.jsonl"),
        *("-f", str(tmp_path / "x 1"), "-f", str(tmp_path / "x2"), "batch", "0", ""),
    ]
    assert said["told"]["MANYHANDS_EVAL_DIR"] == str(tmp_path / "my suite")
    assert (folder / "test_ids.txt").read_text() == "a\nb c\n"
    assert f"--out '{folder / 'output.jsonl'}'" in report.command


# --- Its end


@pytest.mark.parametrize("way", ["exit", "signal", "timeout"])
async def test_good_records_count_however_it_ends(suite: Suite, way: str) -> None:
    ends = {
        "exit": "print('first'); print('boom', file=sys.stderr); sys.exit(3)",
        "signal": "os.kill(os.getpid(), signal.SIGKILL)",
        "timeout": "print('too slow', file=sys.stderr, flush=True); time.sleep(60)",
    }
    failures = {
        "exit": "the command ended with exit code 3: boom",
        "signal": "the command ended with exit code 137 (SIGKILL)",
        "timeout": "the command timed out after 2 s: too slow",
    }
    settings = suite.settings(f'say(\'a\'); out.write(b\'{{"id": "b", "te\'); {ends[way]}', seconds=2)
    async with suite.opened(settings) as batch:
        found = await answers(batch, "abc")
        report = await batch.wait()
    kind = "timeout" if way == "timeout" else "command_failed"
    assert found[0] == "t"
    assert found[1].startswith("unreadable: no record for test b: line 2, which seems to be it, is not JSON")
    assert found[2] == f"{kind}: no record for test c: {failures[way]}"
    assert (report.failure, report.timed_out) == (failures[way], way == "timeout")
    assert report.missing == ("b", "c")
    assert json.loads(json.dumps(report.to_json()))["failure"] == failures[way]


async def test_causes_for_the_engine(suite: Suite) -> None:
    assert Fault("a", FaultKind.TIMEOUT, "").cause is Cause.TIMEOUT
    assert Fault("a", FaultKind.COMMAND_FAILED, "").cause is Cause.WORKER_ERROR
    assert Fault("a", FaultKind.MISSING, "").cause is Cause.INVALID_OUTPUT


@pytest.mark.parametrize(
    "start",
    [
        "subprocess.Popen(['sleep', '87'])",
        "subprocess.Popen(['sleep', '87'], start_new_session=True)",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "subprocess.Popen(['sh', '-c', 'trap \"\" TERM; sleep 87; sleep 87'], start_new_session=True)",
    ],
)
async def test_at_the_time_limit_nothing_of_it_is_left(suite: Suite, start: str) -> None:
    began = time.monotonic()
    settings = suite.settings(f"{start}; say('a'); time.sleep(87)", seconds=0.5)
    async with suite.opened(settings) as batch:
        report = await batch.wait()
        assert report.timed_out
        assert suite.living() == []
    assert time.monotonic() - began < 10


async def test_what_goes_on_in_the_background_ends_with_it(suite: Suite) -> None:
    await suite.report("subprocess.Popen(['sleep', '87'], start_new_session=True); say('a')")
    assert suite.living() == []


async def test_closing_kills_it_and_opening_again_goes_on_with_what_is_missing(suite: Suite) -> None:
    script = (
        "say('a', 'one') if 'a' in asked else None\nif 'a' in asked: time.sleep(60)\n[say(x, 'two') for x in 'abc']"
    )
    async with suite.opened(script) as batch:
        assert await answers(batch, "a") == ["one"]
        waiting = asyncio.create_task(batch.answer("b"))
        await asyncio.sleep(0.05)
    assert suite.living() == []
    with pytest.raises(ValueError, match="not started"):
        await waiting
    async with suite.opened(script, start=False) as again:
        assert await answers(again, "a") == ["one"]
        with pytest.raises(ValueError, match="was not started"):
            await again.answer("b")
        assert await again.start()
        assert await answers(again, "abc") == ["one", "two", "two"]
        report = await again.wait()
    assert suite.calls == ["a b c", "b c"]
    assert report.notices[0] == "invocation 1: it was cut off after 1 records"
    assert (report.failure, report.missing, report.invocations) == (None, (), 2)


async def test_a_folder_or_program_that_is_missing_is_named(suite: Suite) -> None:
    template = parse_command(["./no-such-program"], Location("t"))
    settings = CommandSettings(template, suite.folder)
    async with suite.opened(settings) as batch:
        assert (await answers(batch, "a"))[0].startswith(
            "command_failed: no record for test a: the command can't be started: ./no-such-program can't be started: No such file"
        )
    suite.kept = suite.folder / "other"
    report = await suite.report(CommandSettings(template, suite.folder / "none"))
    assert (report.failure or "").startswith(f"there is no folder {suite.folder / 'none'} to start the command in")


async def test_a_command_line_of_the_shell_that_is_wrong_is_quoted(suite: Suite) -> None:
    template = parse_command("no-such-program-anywhere {OUTPUT_FILE}", Location("t"))
    report = await suite.report(CommandSettings(template, suite.folder))
    assert "exit code 127" in (report.failure or "")
    assert "no-such-program-anywhere" in (report.failure or "")


# --- What it prints


async def test_what_it_prints_is_kept_as_it_comes_without_secrets(suite: Suite) -> None:
    script = (
        "print(os.environ['MY_API_KEY'], flush=True); sys.stderr.write('to ' + os.environ['MY_API_KEY']); until('go')"
    )
    async with suite.opened(script) as batch:
        file = suite.kept / "invocation_1" / "stdout.txt"
        await soon(lambda: file.exists() and file.read_text() == f"{REDACTED}\n")
        (suite.folder / "go").touch()
        report = await batch.wait()
    assert report.stdout == file
    assert report.stderr is not None
    assert report.stderr.read_text() == f"to {REDACTED}"
    everything = b"".join(path.read_bytes() for path in suite.kept.rglob("*") if path.is_file())
    assert KEY.encode() not in everything


async def test_much_that_it_prints_neither_stops_it_nor_fills_the_disk(suite: Suite, tmp_path: Path) -> None:
    script = "sys.stdout.write('y' * (80 << 20)); sys.stdout.flush(); sys.stderr.write('z' * (1 << 20)); say('a')"
    report = await suite.report(script)
    assert (report.failure, report.missing) == (None, ("b", "c"))
    assert report.stdout is not None
    size = report.stdout.stat().st_size
    assert 64 << 20 < size < (64 << 20) + 100
    with report.stdout.open("rb") as file:
        file.seek(64 << 20)
        assert file.read() == b"\n[more than 67108864 bytes: the rest was left out]\n"


def test_a_stream_without_line_breaks_keeps_secrets_that_arrive_in_pieces(tmp_path: Path) -> None:
    stream = KeptStream(tmp_path / "out", Redactor([KEY]))
    text = ("x" * 5000 + KEY) * 40
    for location in range(0, len(text), 777):
        stream.feed(text[location : location + 777].encode())
    stream.feed("é".encode()[:1])
    stream.close()
    stream.close()
    assert (tmp_path / "out").read_bytes() == text.replace(KEY, REDACTED).encode() + b"\xc3"
    assert len(stream.tail.encode("utf-8", "replace")) <= 2010


# --- Once more


async def test_a_finished_invocation_is_never_repeated_by_itself(suite: Suite) -> None:
    script = "say('a'); say('B', 'near')"
    async with suite.opened(script) as batch:
        first = await answers(batch, "abc")
        assert not await batch.start()
        report = await batch.wait()
        assert not await batch.start()
    assert first == [
        "t",
        "missing: no record for test b",
        "missing: no record for test c",
    ]
    async with suite.opened(script) as again:
        assert await answers(again, "abc") == first
        assert again.report() == report
        assert not again.running
    assert suite.calls == ["a b c"]


async def test_missing_records_can_be_asked_for_again_and_only_they(suite: Suite) -> None:
    script = "[say(x, f'{len(asked)}') for x in ('abc' if len(asked) < 3 else 'a')]"
    async with suite.opened(script) as batch:
        assert (await answers(batch, "abc"))[0] == "3"
        await batch.rerun(batch.missing)
        assert await answers(batch, "abc") == ["3", "2", "2"]
        report = await batch.wait()
        assert report.missing == ()
        await batch.rerun([])
        with pytest.raises(ValueError, match="none of this command's tests"):
            await batch.rerun(["z"])
    assert suite.calls == ["a b c", "b c"]
    async with suite.opened(script) as again:
        assert await answers(again, "abc") == ["3", "2", "2"]
        assert again.report() == report
    assert json.loads((suite.kept / "invocation_2" / "state.json").read_text())["ended"]
    assert (suite.kept / "invocation_2" / "test_ids.txt").read_text() == "b\nc\n"


async def test_asking_again_settles_a_contradiction(suite: Suite) -> None:
    script = "[say('a', x) for x in ('xy' if len(asked) > 1 else 'z')]; say('b')"
    async with suite.opened(script, ["a", "b", "b"]) as batch:
        assert (await batch.wait()).retracted == {"a": "there are two different records for it"}
        assert batch.missing == ["a"]
        await batch.rerun(["a", "a"])
        assert await answers(batch, "ab") == ["z", "t"]
        report = await batch.wait()
        assert (report.retracted, report.missing) == ({}, ())
    async with suite.opened(script, ["a", "b"], start=False) as again:
        assert again.report() == report
    assert suite.calls == ["a b", "a"]


async def test_tests_that_are_new_are_asked_for_and_only_they(suite: Suite) -> None:
    script = "[say(x) for x in asked]"
    await suite.report(script, ids=["a", "b"])
    async with suite.opened(script, ["b", "n"]) as batch:
        assert await answers(batch, "bn") == ["t", "t"]
    assert suite.calls == ["a b", "n"]


async def test_an_id_like_that_of_a_missing_test_is_suggested(suite: Suite) -> None:
    async with suite.opened("say('case_001'); say('case-002'); say('extra')", ["case-001", "case-002"]) as batch:
        found = await batch.answer("case-001")
        assert isinstance(found, Fault)
        assert found.message == "no record for test case-001 (there is one with the unknown id case_001)"
        report = await batch.wait()
    assert report.notices[0] == "unknown id case_001 in line 1 (did you mean case-001?)"
    assert report.notices[1] == "unknown id extra in line 3"


async def test_records_of_tests_that_were_not_selected_are_no_surprise(suite: Suite) -> None:
    report = await suite.report("[say(x) for x in 'abc']", ids=["b"], known=["a", "b", "c"])
    assert (report.notices, report.missing) == ((), ())


async def test_misuse_is_refused(suite: Suite) -> None:
    async with suite.opened("until('go')", start=False) as batch:
        with pytest.raises(ValueError, match="not started"):
            await batch.answer("a")
        with pytest.raises(ValueError, match="z is none of"):
            await batch.answer("z")
        assert await batch.start()
        assert not await batch.start()
        with pytest.raises(ValueError, match="runs"):
            await batch.rerun(["a"])
    async with suite.opened("", ["a\nb"], start=False) as batch:
        with pytest.raises(UserError, match="line break"):
            await batch.start()


async def test_a_folder_that_can_not_be_written_stops_the_run(suite: Suite) -> None:
    (suite.folder / "run").write_text("no folder")
    async with suite.opened("", start=False) as batch:
        with pytest.raises(StorageError, match="can't be made"):
            await batch.start()


async def test_a_state_that_can_not_be_written_reaches_who_waits(suite: Suite) -> None:
    async with suite.opened("say('a'); until('go')") as batch:
        assert await answers(batch, "a") == ["t"]
        waiting = asyncio.create_task(batch.answer("b"))
        state = suite.kept / "invocation_1" / "state.json"
        state.unlink()
        state.mkdir()
        (suite.folder / "go").touch()
        for work in (waiting, batch.wait(), batch.answer("c")):
            with pytest.raises(StorageError, match="can't be written"):
                await work


async def test_the_share_of_a_test(suite: Suite) -> None:
    async with suite.opened("time.sleep(0.3); say('a')") as batch:
        report = await batch.wait()
        share = report.share_ms(3)
        assert share == round(1000 * report.seconds / 3)
        assert 100 <= share < 3000


# --- Crashes

OWNER = """
import asyncio, sys, json
from pathlib import Path
from manyhands.processes.commands import CommandRunner
from manyhands.io.locations import Location
from manyhands.processes.strays import process_mark
from manyhands.workloads.evals.batch.command import BatchCommand, BatchJob
from manyhands.workloads.evals.targets.command import CommandSettings, parse_command
async def main():
    folder = Path(sys.argv[1])
    settings = CommandSettings(parse_command(sys.executable + " runner.py", Location("t")), folder)
    async with CommandRunner.opened(process_mark("crash"), {"PATH": sys.argv[2]}) as runner:
        job = BatchJob(folder=folder / "run" / "batch", settings=settings, ids=["a", "b", "c"], runner=runner)
        batch = await BatchCommand.opened(job)
        await batch.start()
        for name in sys.argv[3]:
            await batch.answer(name)
            print(name, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("written", ["a", "ab", "abc"])
async def test_after_kill_9_whole_records_count_and_only_the_others_are_asked_for(suite: Suite, written: str) -> None:
    slow = f'[say(x, \'one\') for x in {written!r}]; out.write(b\'{{"id": "c", "text\'); time.sleep(60)'
    script = f"if len(asked) == 3:\n    {slow}\n[say(x, 'two') for x in asked]"
    suite.settings(script)
    words = [sys.executable, "-c", OWNER, str(suite.folder), os.environ["PATH"], written]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    owner = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE, env=environment)
    assert owner.stdout is not None
    assert [(await owner.stdout.readline()).decode().strip() for _ in written] == list(written)
    owner.kill()
    await owner.wait()
    await soon(lambda: suite.living() == [])
    async with suite.opened(script) as batch:
        expected = [("one" if name in written else "two") for name in "abc"]
        assert await answers(batch, "abc") == expected
        report = await batch.wait()
    rest = " ".join(name for name in "abc" if name not in written)
    assert suite.calls == (["a b c", rest] if rest else ["a b c"])
    assert f"it was cut off after {len(written)} records" in report.notices[0]
    assert report.failure is None
    assert not [notice for notice in report.notices if "JSON" in notice]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"began": "x"}', None])
async def test_a_damaged_state_is_one_that_was_cut_off(suite: Suite, damage: str | None) -> None:
    await suite.report("say('a')")
    state = suite.kept / "invocation_1" / "state.json"
    state.unlink()
    if damage is not None:
        state.write_text(damage)
    async with suite.opened("[say(x, 'two') for x in asked]") as batch:
        assert await answers(batch, "abc") == ["t", "two", "two"]
    assert suite.calls == ["a b c", "b c"]


# --- Large outputs


async def test_many_records_are_streamed_in_flat_memory(suite: Suite) -> None:
    count = 20_000
    script = f"""
        lines = bytearray()
        for number in range({count}):
            lines += b'{{"id": "test-%d", "text": "%s"}}\\n' % (number, b"x" * 2000)
            if len(lines) > 1 << 20:
                out.write(lines)
                lines.clear()
        out.write(lines)
    """
    ids = [f"test-{number}" for number in range(count)]
    settings = suite.settings(script, seconds=60)
    async with suite.opened(settings, ids, start=False) as batch:
        tracemalloc.start()
        await batch.start()
        for test_id in ids[:: count // 1000]:
            found = await batch.answer(test_id)
            assert isinstance(found, Answer)
            assert len(found.text) == 2000
        report = await batch.wait()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (report.records, report.missing, report.failure) == (count, (), None)
        assert report.output is not None
        assert report.output.stat().st_size > 40_000_000
        assert peak < 12_000_000


# --- Replay


async def replayed(file: Path, folder: Path, ids: str = "abc") -> tuple[list[str], BatchReport]:
    batch = await BatchCommand.replayed(file, BatchJob(folder=folder, ids=list(ids)))
    try:
        assert not await batch.start()
        return await answers(batch, ids), await batch.wait()
    finally:
        await batch.close()


@pytest.mark.parametrize("kind", ["lines", "array", "gzip"])
async def test_an_output_that_exists_is_read_and_nothing_is_started(tmp_path: Path, kind: str) -> None:
    records = [{"id": "a", "text": "x"}, {"id": "b", "error": "no luck"}]
    data = json.dumps(records) if kind == "array" else "\n".join(map(json.dumps, records))
    file = tmp_path / "results.jsonl"
    file.write_bytes(gzip.compress(data.encode()) if kind == "gzip" else data.encode())
    found, report = await replayed(file, tmp_path / "aside")
    assert found == ["x", "", "missing: no record for test c"]
    assert (report.failure, report.stdout, report.output, report.missing) == (None, None, file, ("c",))


async def test_what_can_not_be_replayed_is_refused_or_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such output file"):
        await BatchCommand.replayed(tmp_path / "none", BatchJob(folder=tmp_path / "aside", ids=["a"]))
    (tmp_path / "empty").touch()
    found, report = await replayed(tmp_path / "empty", tmp_path / "aside", "a")
    assert found == ["no_output: no record for test a: the output file is empty"]
    assert report.failure == "the output file is empty"
