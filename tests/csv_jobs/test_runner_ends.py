"""Jobs whose runner is ending, is being stopped, or could not write: nothing that somebody was told is lost."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager, redirect_stdout
from io import TextIOWrapper
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from manyhands.core.clock import SystemClock
from manyhands.core.errors import RunError, StorageError, ToolError, UserError
from manyhands.core.redaction import Redactor
from manyhands.engine.journal.lock import is_owned
from manyhands.engine.journal.store import Store
from manyhands.runs.folders import is_made, open_reader
from manyhands.runs.steering.control import ENDING, ControlServer, Message
from manyhands.workloads.csv_jobs.mcp.declarations import SPAWN
from manyhands.workloads.csv_jobs.mcp.settings import ToolPaths, ToolSettings
from manyhands.workloads.csv_jobs.mcp.tools import Caller, JobTools
from manyhands.workloads.csv_jobs.prepared import dry_run
from manyhands.workloads.csv_jobs.service.control import RunnerStart, launch
from manyhands.workloads.csv_jobs.service.jobs import JobService, Spawned
from manyhands.workloads.csv_jobs.service.runner import say
from manyhands.workloads.csv_jobs.service.status import COMPLETED, JobStatus
from manyhands.workloads.csv_jobs.spec import LIMIT_VARIABLE, JobSpec
from tests.support.commands import environment

NOBODY = 65534
FLAKY = '[ -e fail-$MANYHANDS_ITEM_ID ] && exit 1; while [ -e slow ]; do sleep 0.05; done; echo "{}"'


class Place:
    """A folder with a table of three rows, and a desk. Rows fail while ``fail-ID`` is there, and last while ``slow`` is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.desk = JobService(folder / "data", environ=environment())
        (folder / "rows.csv").write_text("k\n1\n2\n3\n")

    def spec(self, command: str = FLAKY, **settings: Any) -> JobSpec:
        given = {
            "csv_path": str(self.folder / "rows.csv"),
            "instruction": "Do {k}.",
            "worker_command": f"sh -c '{command}'",
            "project": str(self.folder),
            "data_dir": str(self.folder / "data"),
            "max_attempts": 1,
            "job_name": "job",
        }
        return JobSpec.make({**given, **settings})

    async def spawned(self, command: str = FLAKY, *, start: bool = True, **settings: Any) -> Spawned:
        return await self.desk.spawn(self.spec(command, **settings), notice=lambda text: None, start=start)

    async def ended(self) -> JobStatus:
        status, timed_out = await self.desk.wait("job", 30)
        assert not timed_out
        return status

    async def reached(self, **counts: int) -> None:
        """Wait until so many rows are as named."""
        async with asyncio.timeout(20):
            while any(getattr(self.desk.status("job"), name) != count for name, count in counts.items()):
                await asyncio.sleep(0.02)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    made = Place(tmp_path)
    yield made
    (tmp_path / "slow").unlink(missing_ok=True)
    for job in made.desk.list():
        await made.desk.cancel(job.job_id, firm=True)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without the rights of the administrator, who may do everything, where the tests have them."""
    if os.geteuid() != 0:
        yield
        return
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


# --- Runners that are ending


async def test_a_request_after_the_last_look_is_not_answered_as_if_it_were_heeded(tmp_path: Path) -> None:
    heard: list[Message] = []

    async def answer(message: Message) -> Message:
        heard.append(message)
        return {"ok": True}

    server = ControlServer(tmp_path, answer)
    await server.open()
    address = json.loads((tmp_path / "runner.json").read_bytes())["socket"]
    reader, writer = await asyncio.open_unix_connection(address)
    server.withdraw()
    writer.write(b'{"op": "steer", "command": "retry", "numbers": [1]}\n')
    reply = json.loads(await reader.readline())
    writer.close()
    await server.close(ended=True)
    assert "ok" not in reply
    assert reply["error"]
    assert heard == []


async def test_a_retry_that_comes_too_late_for_the_runner_starts_another(place: Place) -> None:
    (place.folder / "fail-row-2").touch()
    folder = (await place.spawned()).folder
    assert (await place.ended()).failed_items == 1
    store = Store(folder, SystemClock(), lambda text: None)  # stands for a runner whose work is done

    async def answer(message: Message) -> Message:
        if message["op"] == "steer":
            server.withdraw()
            store.close()
        return {"error": ENDING, "later": True}

    server = ControlServer(folder, answer)
    await server.open()
    try:
        assert await place.desk.retry("job") == (1, True, False)
    finally:
        await server.close(ended=True)
    assert (await place.ended()).failed_items == 1
    (place.folder / "fail-row-2").unlink()
    silent = Store(folder, SystemClock(), lambda text: None)  # one that does not even answer
    asyncio.get_running_loop().call_later(0.3, silent.close)
    assert await place.desk.retry("job") == (1, True, False)
    assert (await place.ended()).state == COMPLETED


async def test_rows_put_back_and_jobs_run_while_a_cancelled_runner_winds_down(place: Place) -> None:
    (place.folder / "slow").touch()
    (place.folder / "fail-row-1").touch()
    await place.spawned(max_concurrency=2)
    await place.reached(failed_items=1, running_items=2)
    (place.folder / "fail-row-1").unlink()
    await place.desk.cancel("job")
    retrying = asyncio.create_task(place.desk.retry("job", ["row-1"]))
    await asyncio.sleep(0.3)
    assert not retrying.done()  # the rows in work may end
    (place.folder / "slow").unlink()
    assert await retrying == (1, True, False)
    assert (await place.ended()).state == COMPLETED


async def test_run_waits_for_a_runner_that_was_told_to_stop(place: Place) -> None:
    (place.folder / "slow").touch()
    await place.spawned(max_concurrency=1)
    await place.reached(running_items=1)
    await place.desk.cancel("job")
    running = asyncio.create_task(place.desk.run("job"))
    await asyncio.sleep(0.3)
    assert not running.done()
    (place.folder / "slow").unlink()
    assert await running
    assert (await place.ended()).state == COMPLETED


async def test_a_job_cancelled_while_its_runner_starts_stays_cancelled(place: Place) -> None:
    job = await place.spawned(start=False)
    await place.desk.cancel("job")
    with pytest.raises(RunError, match="ended before its runner began"):
        await launch(job.folder, RunnerStart(end=None), environment())
    assert not is_owned(job.folder)
    assert place.desk.status("job").state == "cancelled"
    assert await place.desk.run("job")
    assert (await place.ended()).state == COMPLETED


# --- Results that could not be written


async def test_run_writes_the_results_that_could_not_be_written(place: Place) -> None:
    output = place.folder / "out" / "results.csv"
    await place.spawned('touch out; echo "{}"', output_csv_path=str(output))
    status = await place.ended()
    assert (status.state, status.completed_items) == ("failed", 3)
    assert (status.last_error or "").startswith("auto-export failed: ")
    output.parent.unlink()
    assert await place.desk.run("job")
    assert (await place.ended()).state == COMPLETED
    with output.open(newline="") as handle:
        assert len(list(csv.DictReader(handle))) == 3
    # In another format they go beside them, and not in their place.
    exported = place.desk.export("job", format="jsonl")
    assert exported.path == str(output.with_suffix(".jsonl"))
    assert json.loads(Path(exported.path).read_text().splitlines()[0])["k"] == "1"
    assert output.read_text().startswith("k,job_id,")


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("/dev/null", "is not a regular file"),
        ("rows.csv/results.csv", "is not a folder"),
        (f"{'x' * 300}.csv", "can't be used (File name too long)"),
    ],
)
async def test_an_output_that_can_not_be_written_is_refused_before_the_work(
    place: Place, output: str, problem: str
) -> None:
    with pytest.raises(UserError) as raised:
        await dry_run(place.spec(output_csv_path=str(place.folder / output)), 1)
    assert problem in str(raised.value)


async def test_folders_that_must_not_be_entered_are_an_error_of_one_line() -> None:
    folder = Path(mkdtemp())
    try:
        made = Place(folder)
        (folder / "closed").mkdir(mode=0o700)
        folder.chmod(0o555)
        with as_nobody():
            if os.geteuid() != NOBODY:
                (folder / "closed").chmod(0)
            with pytest.raises(UserError, match="Permission denied"):
                await dry_run(made.spec(output_csv_path=str(folder / "closed" / "out.csv")), 1)
            with pytest.raises(UserError, match="nothing can be made in the folder"):
                await dry_run(made.spec(output_csv_path=str(folder / "out.csv")), 1)
            with pytest.raises(StorageError, match="can't be looked into"):
                is_made(folder / "closed" / "job")
    finally:
        folder.chmod(0o755)
        (folder / "closed").chmod(0o755)
        shutil.rmtree(folder)


def test_a_full_disk_does_not_end_the_runner_by_its_log() -> None:
    with open("/dev/full", "wb", buffering=0) as full, redirect_stdout(TextIOWrapper(full, write_through=True)):
        say("the job goes on")


# --- Limits and arguments


async def test_the_machines_limit_holds_for_jobs_made_before_it_was_set(place: Place) -> None:
    job = await place.spawned(start=False)
    limited = JobService(place.desk.data_dir, environ={**environment(), LIMIT_VARIABLE: "1"})
    assert await limited.run("job")
    await place.ended()
    with closing(open_reader(job.folder)) as reader:
        assert reader.meta("spec")["options"]["max_concurrency_limit"] == 1


async def test_arguments_are_all_read_before_the_instruction_is_looked_at(place: Place) -> None:
    tools = JobTools(place.desk, ToolSettings(ToolPaths.of(place.folder)))
    arguments = {"csv_path": "rows.csv", "instruction": " "}
    for wrong in ({"max_concurrency": 2.5}, {"wait": "yes"}):
        with pytest.raises(ToolError, match=r"^failed to parse function arguments: "):
            await tools.call(SPAWN, {**arguments, **wrong}, Caller())
    with pytest.raises(ToolError, match=r"^instruction must be non-empty$"):
        await tools.call(SPAWN, arguments, Caller())


def test_secret_keys_are_kept_out_of_what_is_recorded() -> None:
    redactor = Redactor.of({"STRIPE_SECRET_KEY": "whsec-12345678", "SIGNING_PRIVATE_KEY": "pk-87654321"})
    assert redactor.text("whsec-12345678 pk-87654321") == "[redacted] [redacted]"
