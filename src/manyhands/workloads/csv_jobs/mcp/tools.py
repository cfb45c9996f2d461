"""The tools by which agents start jobs, follow them and report to them, whatever brings the calls.

``JobTools`` knows no transport: the MCP server (``server``) and the built-in agent's own toolset (``collab``) both call it. A call
names its job by id, so that nothing is kept between two calls, and another client, or another server over the same data folder,
can continue where one stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from manyhands.core.errors import RunError, StorageError, ToolError, UserError
from manyhands.models.addresses import read_addresses
from manyhands.runs.folders import open_reader
from manyhands.workloads.csv_jobs.folders import find_job
from manyhands.workloads.csv_jobs.mcp import declarations as declared
from manyhands.workloads.csv_jobs.mcp.calls import (
    FIRST_ERRORS,
    Arguments,
    Reply,
    ended_object,
    next_step,
    spawned_object,
    spawned_text,
    status_object,
    status_text,
)
from manyhands.workloads.csv_jobs.mcp.declarations import DECLARATIONS, Declaration
from manyhands.workloads.csv_jobs.mcp.settings import (
    ToolSettings,
)
from manyhands.workloads.csv_jobs.service.status import JobStatus
from manyhands.workloads.csv_jobs.spec import MAX_WORKERS, JobSpec
from manyhands.workloads.csv_jobs.workers.reports import Acceptance

if TYPE_CHECKING:
    from manyhands.workloads.csv_jobs.service.jobs import JobService

_Result = TypeVar("_Result")
OnProgress = Callable[[JobStatus], Awaitable[None]]

UNKNOWN_DEPTH = 1_000_000
"""The depth of a worker that does not say in which job it works. It may start none, however deep jobs may be nested."""
_MAX_INSTRUCTION_BYTES = 1_000_000
_NOT_A_WORKER = "only the agent that works on a row may report its result, and this caller has not shown that it is one"
TOO_DEEP = "agent depth limit reached; this session cannot spawn more subagents"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls."""

    secret: str | None = None
    """The secret of the attempt on which a worker works; None for everybody else."""
    depth: int = 0
    """In how many jobs, one within the other, the caller works."""
    on_progress: OnProgress | None = None
    """Gets a job's status while a call waits."""
    job_id: str | None = None
    """The id of the job that the call makes, so that a repeated call finds it; None: a new one."""


class JobTools:
    """Executes the calls, for the jobs in the service's data folder and no others. All methods are for one event loop."""

    def __init__(self, service: JobService, settings: ToolSettings) -> None:
        self._service = service
        self._settings = settings
        self._unfinished: set[asyncio.Task[Any]] = set()
        self._leaving = asyncio.Event()
        self._handlers: dict[str, Callable[[Arguments, Caller], Awaitable[Reply]]] = {
            declared.SPAWN: self._spawn,
            declared.RUN: self._run,
            declared.STATUS: self._status,
            declared.WAIT: self._wait,
            declared.EXPORT: self._export,
            declared.REPORT: self._report,
            declared.CANCEL: self._cancel,
            declared.LIST: self._list,
            declared.RETRY: self._retry,
        }

    def available(self, caller: Caller) -> list[Declaration]:
        """The tools that a caller may use."""
        return [tool for tool in DECLARATIONS.values() if self._may_call(tool, caller)]

    async def call(self, name: str, arguments: Any, caller: Caller) -> Reply:
        """Execute one call. If it is cancelled, what it changes is changed all the same, and no job stops.

        Raises ToolError, for the model: what is wrong, in one sentence.
        """
        declaration = DECLARATIONS.get(name)
        if declaration is None:
            raise ToolError(f"unknown tool {name}")
        if not self._may_call(declaration, caller):
            raise ToolError(TOO_DEEP)
        try:
            return await self._handlers[name](Arguments(arguments), caller)
        except (UserError, RunError, StorageError) as error:
            raise ToolError(_one_line(error)) from error
        except OSError as error:  # a path too long for the file system, a folder that must not be looked into, …
            raise ToolError(f"{error.filename or name}: {error.strerror or error}") from error

    async def go_on(self, job: JobStatus) -> bool:
        """Start a job's runner, on no client's behalf; whether it was started. Raises UserError, RunError or StorageError."""
        changes = await self._runner_changes(job.folder.name)
        return await self._whole(self._service.run(job.folder.name, changes=changes))

    def stop_waiting(self) -> None:
        """Answer all calls that wait, now and from now on, as if their time had run out."""
        self._leaving.set()

    def depth_in(self, job_id: str) -> int:
        """In how many jobs the workers of a job work, one within the other; ``UNKNOWN_DEPTH`` if there is no such job."""
        try:
            return int(self._recorded(job_id)["depth"]) + 1
        except (RunError, StorageError, OSError):
            return UNKNOWN_DEPTH

    async def settled(self) -> None:
        """Wait until the work of calls that are gone is done."""
        while self._unfinished:
            await asyncio.wait(self._unfinished)

    def _may_call(self, tool: Declaration, caller: Caller) -> bool:
        harmless = tool.for_workers or (tool.name == declared.EXPORT and self._settings.paths.own_exports)
        return harmless or caller.depth < self._settings.max_depth

    async def _whole(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Do something to its end, even if the call is cancelled."""
        task = asyncio.ensure_future(work)
        self._unfinished.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._unfinished.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as seen: the caller may be gone

    # --- Codex's tools

    async def _spawn(self, arguments: Arguments, caller: Caller) -> Reply:
        wait, spec = arguments.flag("wait") or False, self._spec_of(arguments)
        latest = asyncio.get_running_loop().time() + self._settings.wait_limit
        notices = _ignored(arguments)
        spawned = await self._whole(
            self._service.spawn(spec, notice=notices.append, depth=caller.depth, job_id=caller.job_id)
        )
        job = spawned.folder.name
        if not wait:
            status = await self._status_of(job)
            return Reply(spawned_object(spawned, status, notices), spawned_text(spawned, status))
        status, timed_out = await self._waited(job, _until(latest), caller)
        errors = await self._errors(job, status)
        content = {**spawned_object(spawned, status, notices), **ended_object(status, errors, timed_out)}
        return Reply(content, _with_next_step(status_text(status), next_step(status, timed_out)))

    def _spec_of(self, arguments: Arguments) -> JobSpec:
        """The settings of a new job: what the person decided, and what a call may say."""
        paths = self._settings.paths
        given: dict[str, Any] = {
            "csv_path": arguments.required_text("csv_path"),
            "id_column": arguments.text("id_column"),
            "job_name": arguments.text("job_name"),
            "output_csv_path": arguments.text("output_csv_path"),
            "output_schema": arguments.mapping("output_schema"),
            "max_concurrency": self._concurrency(arguments),
            "max_runtime_seconds": _runtime(arguments),
            "auto_export": arguments.flag("auto_export"),
            "on_bad_row": arguments.choice("on_bad_row", declared.BAD_ROWS),
            "encoding": arguments.text("encoding"),
            "delimiter": arguments.text("delimiter"),
            # Last, because Codex checks it once all arguments could be read.
            "instruction": self._instruction(arguments),
        }
        for name in ("csv_path", "output_csv_path"):
            if given[name] is not None:
                given[name] = str(paths.path(name, given[name]))
        values = {**self._settings.worker, **{name: value for name, value in given.items() if value is not None}}
        return JobSpec.make({**values, "max_concurrency_limit": self._settings.max_concurrency})

    def _instruction(self, arguments: Arguments) -> str:
        instruction, file = arguments.text("instruction"), arguments.text("instruction_file")
        if file is None:
            instruction = arguments.required_text("instruction")
        elif instruction is None or not instruction.strip():
            instruction = _read_instruction(self._settings.paths.path("instruction_file", file))
        else:
            raise ToolError("give instruction or instruction_file, not both")
        if not instruction.strip():
            raise ToolError("instruction must be non-empty")
        return instruction

    def _concurrency(self, arguments: Arguments) -> int | None:
        requested, workers = arguments.count("max_concurrency"), arguments.count("max_workers")
        number = workers if requested is None else requested
        return None if number is None else min(number, MAX_WORKERS)

    async def _run(self, arguments: Arguments, caller: Caller) -> Reply:
        named, auto_export = arguments.required_text("job_id"), arguments.flag("auto_export")
        concurrency = self._concurrency(arguments)
        job = await self._found(named)
        changes = await self._runner_changes(job)
        if concurrency is not None:
            changes["max_concurrency"] = min(concurrency, self._settings.max_concurrency)
        if auto_export is not None:
            changes["auto_export"] = auto_export
        started = await self._whole(self._service.run(job, changes=changes))
        status = await self._status_of(job)
        text = ("Started. " if started else "Not started. ") + status_text(status)
        return Reply({"started": started, "status": status_object(status)}, text)

    async def _status(self, arguments: Arguments, caller: Caller) -> Reply:
        status = await self._status_of(await self._found(arguments.required_text("job_id")))
        return Reply(status_object(status), status_text(status))

    async def _wait(self, arguments: Arguments, caller: Caller) -> Reply:
        named, timeout = arguments.required_text("job_id"), arguments.whole("timeout_ms")
        if timeout is None:
            timeout = declared.DEFAULT_WAIT_MS
        if timeout <= 0:
            raise ToolError("timeout_ms must be greater than zero")
        timeout = min(max(timeout, declared.MIN_WAIT_MS), declared.MAX_WAIT_MS)
        seconds = min(timeout / 1000, self._settings.wait_limit)
        status, timed_out = await self._waited(await self._found(named), seconds, caller)
        step = next_step(status, timed_out)
        content = {"status": status_object(status), "timed_out": timed_out, "next_step": step}
        return Reply(content, _with_next_step(status_text(status), step))

    async def _export(self, arguments: Arguments, caller: Caller) -> Reply:
        named, typed = arguments.required_text("job_id"), arguments.text("output_csv_path", "path")
        job = await self._found(named)
        status = await self._status_of(job)
        target = self._settings.paths.export_target(typed, status.folder, Path(status.output_csv_path))
        exported = await self._whole(asyncio.to_thread(self._service.export, job, target))
        path, rows = str(exported.path), exported.rows
        content = {"job_id": exported.job_id, "output_csv_path": path, "row_count": rows}
        return Reply(content, f"Wrote {rows} row{'' if rows == 1 else 's'} to {path}.")

    async def _report(self, arguments: Arguments, caller: Caller) -> Reply:
        named, item_id = arguments.required_text("job_id"), arguments.required_text("item_id")
        result, stop = arguments.required("result"), arguments.flag("stop") or False
        if not isinstance(result, dict):
            raise ToolError("result must be a JSON object")
        if caller.secret is None:
            return _report_reply(Acceptance(False, _NOT_A_WORKER))
        report = self._service.report(named, item_id, result, stop=stop, secret=caller.secret)
        return _report_reply(await self._whole(report))

    # --- Ours

    async def _cancel(self, arguments: Arguments, caller: Caller) -> Reply:
        named, firm = arguments.required_text("job_id"), arguments.flag("firm") or False
        status = await self._whole(self._service.cancel(await self._found(named), firm=firm))
        return Reply({"status": status_object(status)}, status_text(status))

    async def _list(self, arguments: Arguments, caller: Caller) -> Reply:
        limit = arguments.count("limit")
        jobs = await asyncio.to_thread(self._service.list)
        shown = jobs[: declared.DEFAULT_LISTED if limit is None else limit]
        text = " ".join(status_text(job) for job in shown[:3]) or "There are no jobs."
        more = f" And {len(jobs) - 3} more." if len(jobs) > 3 else ""
        return Reply({"jobs": [status_object(job) for job in shown], "total_jobs": len(jobs)}, text + more)

    async def _retry(self, arguments: Arguments, caller: Caller) -> Reply:
        named, item_ids = arguments.required_text("job_id"), arguments.texts("item_ids")
        job = await self._found(named)
        changes = await self._runner_changes(job)
        retried, started, _ = await self._whole(self._service.retry(job, item_ids, changes=changes))
        status = await self._status_of(job)
        content = {"retried_items": retried, "started": started, "status": status_object(status)}
        return Reply(content, f"{retried} row{' was' if retried == 1 else 's were'} reset. {status_text(status)}")

    # --- Parts of them

    async def _found(self, named: str) -> str:
        """The name of the folder of the job that a call names, by which it is found again at once.

        Only jobs in the data folder count: a job elsewhere may have been put there by anybody, and it names the command that is run.
        """
        try:
            return (await asyncio.to_thread(find_job, self._service.data_dir, named)).name
        except OSError:  # a name that is too long for a file system
            raise RunError(f"agent job {named} not found") from None

    async def _runner_changes(self, job: str) -> dict[str, Any]:
        """The key and headers, which no journal keeps, so that each runner must get them anew: if they are for the job's endpoint."""
        worker = self._settings.worker
        secrets = {name: value for name in ("api_key", "header") if (value := worker.get(name)) is not None}
        if not secrets:
            return {}
        endpoint = JobSpec.make({"csv_path": "-", **self._settings.worker}).resolved().base_url
        options = (await asyncio.to_thread(self._recorded, job))["options"]
        by_agent = options.get("worker_command") is None and options.get("worker_function") is None
        return secrets if by_agent and read_addresses(options["base_url"]) == endpoint else {}

    def _recorded(self, job: str) -> dict[str, Any]:
        """What a job recorded about itself."""
        with closing(open_reader(find_job(self._service.data_dir, job))) as reader:
            recorded: dict[str, Any] = reader.meta("spec")
            return recorded

    async def _status_of(self, job: str) -> JobStatus:
        return await asyncio.to_thread(self._service.status, job)

    async def _errors(self, job: str, status: JobStatus) -> Sequence[dict[str, Any]]:
        if not status.failed_items:
            return []
        return await asyncio.to_thread(self._service.failed_item_errors, job, FIRST_ERRORS)

    async def _waited(self, job: str, seconds: float, caller: Caller) -> tuple[JobStatus, bool]:
        """Wait for a job's end; whether time ran out before."""
        waiting = asyncio.ensure_future(self._service.wait(job, seconds, caller.on_progress))
        leaving = asyncio.ensure_future(self._leaving.wait())
        try:
            await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else (await self._status_of(job), True)
        finally:
            waiting.cancel()
            leaving.cancel()


def _ignored(arguments: Arguments) -> list[str]:
    """A remark about what a call names and has no say in, if there is such."""
    known = declared.DECLARATIONS[declared.SPAWN].parameters["properties"]
    names = [name for name in arguments.names if name in JobSpec.fields and name not in known]
    if not names:
        return []
    return [f"ignored, because the options of this server decide it: {', '.join(names)}"]


def _one_line(error: Exception) -> str:
    """The message of an error on one line; several lines, as for several bad rows, are separated by semicolons."""
    lines = (" ".join(line.split()) for line in str(error).splitlines())
    return "; ".join(line.rstrip(";") for line in lines if line)


def _until(latest: float) -> float:
    """Seconds that are left; a moment if none are."""
    return max(0.1, latest - asyncio.get_running_loop().time())


def _runtime(arguments: Arguments) -> int | None:
    seconds = arguments.count("max_runtime_seconds")
    if seconds == 0:
        raise ToolError("max_runtime_seconds must be >= 1")
    return seconds


def _read_instruction(path: Path) -> str:
    """Raises ToolError for what is no text file of a reasonable size. Devices and pipes may have no end, or none to come."""
    try:
        if not path.is_file():
            raise ToolError(f"can't read instruction_file {path}: there is no such file")
        with path.open("rb") as handle:
            data = handle.read(_MAX_INSTRUCTION_BYTES + 1)
        if len(data) > _MAX_INSTRUCTION_BYTES:
            raise ToolError(f"instruction_file {path} is longer than {_MAX_INSTRUCTION_BYTES:,} bytes")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ToolError(f"instruction_file {path} is not UTF-8 text") from None
    except OSError as error:
        raise ToolError(f"can't read instruction_file {path}: {error.strerror or error}") from None


def _report_reply(answer: Acceptance) -> Reply:
    content = {**asdict(answer), "violations": list(answer.violations)}
    listed = "".join(f"\n- {violation}" for violation in answer.violations)
    return Reply(content, "Accepted." if answer.accepted else f"Not accepted: {answer.reason}{listed}")


def _with_next_step(text: str, step: str | None) -> str:
    return text if step is None else f"{text} {step}"
