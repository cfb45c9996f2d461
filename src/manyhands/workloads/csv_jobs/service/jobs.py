"""Creating, executing, following and exporting jobs: the command line and the tools over MCP are two front ends of this service.

Nothing is kept between calls: a job is found by its id each time, so any process can continue what another one began.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from manyhands.agents.registry import load_agent
from manyhands.agents.run_settings import (
    API_KEY,
    check_prices,
    headers_for,
    key_secrets,
    keys_in,
    usable_keys,
    warn_of_budget,
    with_endpoint,
)
from manyhands.agents.toolbox import changed_functions, services_of
from manyhands.agents.worlds.furnishing import as_secret, check_world, with_template
from manyhands.agents.worlds.settings import looked_up
from manyhands.agents.worlds.templates import check_apart
from manyhands.core import VERSION
from manyhands.core.clock import SystemClock
from manyhands.core.errors import RunError, UserError
from manyhands.core.jsonio import Json
from manyhands.core.outcomes import ItemState
from manyhands.core.text import expand_home
from manyhands.engine.contract import BEHIND_INPUT, PlannedItem
from manyhands.engine.journal.lock import is_owned
from manyhands.engine.journal.store import Store
from manyhands.io.tables.formats import check_name, format_in_name, format_named, suffix_of
from manyhands.io.tables.standard_input import STANDARD_STREAM, kept_input
from manyhands.models.headers import as_secrets
from manyhands.runs.folders import open_reader
from manyhands.runs.making import KEPT, create_run, keep_files
from manyhands.runs.options import check_cluster
from manyhands.runs.progress import Notice
from manyhands.runs.steering.client import give_order
from manyhands.runs.steering.control import ANSWER_SECONDS, request, watch
from manyhands.runs.steering.owner import RETRY
from manyhands.sandboxes.images.demand import ImageDemand
from manyhands.sandboxes.images.pins import NO_PINS, Pins
from manyhands.sandboxes.lifecycle.planning import planned_images
from manyhands.tools.services.registry import service_secrets
from manyhands.workloads.csv_jobs.command_memory import with_memory_limit
from manyhands.workloads.csv_jobs.folders import SHORT, find_job, job_folder
from manyhands.workloads.csv_jobs.prepared import (
    PreparedJob,
    check_worker,
    of_standard_input,
    prepare,
    with_machine_limit,
    with_table_of_now,
)
from manyhands.workloads.csv_jobs.rows.export import ExportOptions
from manyhands.workloads.csv_jobs.rows.images import image_demand, left_demand, row_images
from manyhands.workloads.csv_jobs.rows.planning import JobRow, plan_rows, under_other_headers
from manyhands.workloads.csv_jobs.rows.updating import Changes, TableUpdate
from manyhands.workloads.csv_jobs.rows.worlds import check_rows, row_problem
from manyhands.workloads.csv_jobs.service.control import RunnerStart, launch
from manyhands.workloads.csv_jobs.service.status import (
    CANCELLED,
    CANCELLED_ON_REQUEST,
    END,
    FAILED,
    JobStatus,
    job_status,
    job_statuses,
)
from manyhands.workloads.csv_jobs.spec import JobChanges, JobSpec, check_binding, check_executor
from manyhands.workloads.csv_jobs.workers.reports import Acceptance
from manyhands.workloads.csv_jobs.workload import IMPORTED, CsvJobsWorkload

OWNER_PAUSE = 0.1
OWNER_LOOKS = 20
"""Seconds between looks for the socket of a runner that has just begun, or is just ending, and how many there are."""
NAMED_ROWS = 20
"""Rows that the record of an order names."""
STOPPING_SECONDS = 40.0
"""Seconds to wait for the end of a runner that is stopping: those that cancelled rows get, and a few more."""


@dataclass(frozen=True, slots=True)
class Spawned:
    """A job that was created."""

    job_id: str
    name: str
    folder: Path
    started: bool
    """Whether its runner was started."""
    output_csv_path: str
    total_items: int


@dataclass(frozen=True, slots=True)
class Exported:
    """A table that was written."""

    job_id: str
    path: str
    rows: int
    """Without the header."""
    format: str


class JobService:
    """Jobs under one data folder. All methods raise UserError or RunError with one clear line, or StorageError."""

    def __init__(
        self,
        data_dir: Path,
        *,
        environ: Mapping[str, str],
        secrets: Mapping[str, str] | None = None,
        folders: bool = False,
    ) -> None:
        """``environ``: where keys of endpoints are looked for; runners inherit it. ``secrets``: those that go before it (by the
        names of a workload's secrets). ``folders``: a job may also be named by its folder, wherever that is."""
        self.data_dir = data_dir
        self._environ = dict(environ)
        self._given = dict(secrets or {})
        self._folders = folders

    async def spawn(
        self,
        spec: JobSpec,
        *,
        notice: Notice,
        start: bool = True,
        depth: int = 0,
        job_id: str | None = None,
        standard_input: BinaryIO | None = None,
    ) -> Spawned:
        """Make a job and start its runner.

        ``depth``: how many jobs it comes from. ``job_id``: its id, where the caller has one; if there is such a job already it is the
        one, and nothing is made. ``standard_input``: where the table comes from if it is called ``-``; the job's folder keeps a copy.
        """
        if job_id is not None and (known := self._known(job_id)) is not None:
            return known
        job_id = job_id or str(uuid.uuid4())
        folder = job_folder(self.data_dir, spec.job_name, job_id)
        if standard_input is None or spec.csv_path != STANDARD_STREAM:
            return await self._spawn(spec, folder, job_id, depth, start, notice)
        with kept_input(standard_input, folder / KEPT, f"table-{job_id[:SHORT]}", spec.table_format) as table:
            spec = of_standard_input(spec, table, job_id)
            return await self._spawn(spec, folder, job_id, depth, start, notice)

    async def _spawn(
        self, spec: JobSpec, folder: Path, job_id: str, depth: int, start: bool, notice: Notice
    ) -> Spawned:
        check_cluster(spec, spec.given)
        options = with_machine_limit(self._with_endpoint(spec.resolved(), notice), self._environ)
        options, memory = with_memory_limit(options)
        options = await asyncio.to_thread(with_template, options, None, notice)
        job = await prepare(options, job_id, depth=depth, notice=notice, environ=self._environ)
        self._check(job, notice)
        await asyncio.to_thread(_check_worlds, job, folder)
        job = await self._pinned(job, notice)
        if memory is not None:
            notice(str(memory))
        if left_out := job.left_out_columns():
            notice(
                f"columns of an earlier job are not in the prompts: {', '.join(left_out)} (--prompt_columns chooses columns)"
            )
        workload = CsvJobsWorkload(job.to_json(), folder)
        try:
            await asyncio.to_thread(
                create_run, folder, workload.name, workload, version=VERSION, notice=notice, run_id=job_id
            )
        except asyncio.CancelledError:
            workload.abandon()  # the thread then removes what it has made
            raise
        keep_files(options, folder)
        started = start and await self._launched(folder, RunnerStart(self._secrets(options, job.mcp)))
        total = job_status(folder).total_items
        return Spawned(job_id, job.name, folder, started, job.output_csv_path, total)

    async def run(
        self,
        job: str,
        *,
        changes: Mapping[str, Any] | None = None,
        retry_failed: bool = False,
        notice: Notice = lambda text: None,
    ) -> bool:
        """Start or continue a job; False if a process executes it already, or if nothing is left to do. If its runner is stopping, its
        end is waited for, within bounds.

        ``changes``: settings that differ from the recorded ones; the runner rejects those that would make it another job. ``notice`` gets
        what is otherwise than when the job was made.
        """
        folder = self._find(job)
        await self._stopped(job, folder)
        status = job_status(folder)
        recorded = self._recorded(folder)
        options, given = self._changed(recorded.options, changes)
        # A job that broke with no row left is one whose results are not written.
        unfinished = not status.completed_at or status.state == FAILED
        left = _left(folder, options.limit) or (retry_failed and status.failed_items) or unfinished
        if status.runner_active or not left:
            return False
        await self._check_images(folder, recorded, options, notice)
        for file in changed_functions(recorded.mcp):
            notice(
                f"{file} changed since the job was made; rows that are executed from now on have its functions as they are now"
            )
        with_memory, _ = with_memory_limit(options)
        if with_memory.memory_concurrency != options.memory_concurrency:
            given["memory_concurrency"] = with_memory.memory_concurrency
        limit = with_machine_limit(options, self._environ).max_concurrency_limit
        if limit != options.max_concurrency_limit:
            given["max_concurrency_limit"] = limit
        secrets = self._secrets(options, recorded.mcp)
        now = await asyncio.to_thread(with_template, options, recorded.options, notice)
        if now.workspace_digest != recorded.options.workspace_digest:
            given["workspace_digest"] = now.workspace_digest
        keep_files(options, folder)
        return await self._launched(folder, RunnerStart(secrets, given, retry_failed))

    async def update(
        self,
        job: str,
        *,
        keep: bool = True,
        changes: Mapping[str, Any] | None = None,
        notice: Notice = lambda text: None,
    ) -> Changes:
        """Read a job's table again: rows that are new or changed become pending, those that are gone are cancelled unless they were
        completed, and nothing else changes. All of it is done or nothing.

        ``keep``: False only counts. ``changes``: settings that ``run`` is given next; they are not recorded here, but nothing is done if
        they would be rejected. ``notice`` gets what was decided by looking at the table. Raises RunError if a process executes the job,
        UserError if the table can't be used any more.
        """
        folder = self._find(job)
        await self._stopped(job, folder)
        if is_owned(folder):
            raise RunError(f"{folder}: the job is running; its table can be read again when it has ended")
        options, given = self._changed(self._recorded(folder).options, changes)
        pins = NO_PINS
        if keep:
            self._secrets(options)
            now = with_table_of_now(self._recorded(folder), lambda text: None)
            pins = (await self._pinned(now, notice)).pins
        return await asyncio.to_thread(_updated, folder, keep, given, pins, notice)

    def status(self, job: str) -> JobStatus:
        """The status of a job."""
        return job_status(self._find(job))

    async def wait(
        self,
        job: str,
        seconds: float | None,
        on_progress: Callable[[JobStatus], Awaitable[None]] | None = None,
    ) -> tuple[JobStatus, bool]:
        """Wait until a job ends, or no process executes it, ``seconds`` at most; and whether that time ran out. ``on_progress`` gets the
        status whenever it changes, at most twice a second."""
        folder = self._find(job)
        try:
            async with asyncio.timeout(seconds):
                while is_owned(folder):
                    async for _ in watch(folder):
                        if on_progress is not None:
                            await on_progress(job_status(folder))
                    if is_owned(folder):
                        await asyncio.sleep(OWNER_PAUSE)
        except TimeoutError:
            return job_status(folder), True
        return job_status(folder), False

    def export(
        self,
        job: str,
        target: Path | None = None,
        *,
        format: str | None = None,
        flatten: bool | None = None,
        excel_safe: bool | None = None,
        columns: Sequence[str] | None = None,
        delimiter: str | None = None,
    ) -> Exported:
        """Write a job's present results, also while it runs; what is not given is as the job's own export."""
        folder = self._find(job)
        recorded = self._recorded(folder)
        settings = recorded.options
        path = _own_output(recorded, format) if target is None else expand_home(target).absolute()
        if target is not None:
            check_name(path, format)
            named = format_in_name(path)
            format = format or (named.name if named is not None else settings.export_format)
        chosen = format or (recorded.export_format if target is None else "csv")
        if Path(recorded.table.path).exists() and path.exists() and path.samefile(recorded.table.path):
            raise UserError(f"{path} is the job's table itself, which would be overwritten")
        options = ExportOptions(
            chosen,
            flatten=settings.flatten if flatten is None else flatten,
            excel_safe=settings.excel_safe if excel_safe is None else excel_safe,
            columns=settings.output_columns if columns is None else columns,
            delimiter=delimiter or settings.output_delimiter,
        )
        with closing(open_reader(folder)) as reader:
            rows = CsvJobsWorkload(recorded.to_json(), folder).write(reader, path, options)
            return Exported(str(reader.meta("run_id")), str(path), rows, chosen)

    def export_to(self, stream: BinaryIO, job: str, *, format: str | None = None, **options: Any) -> Exported:
        """As ``export``, to a stream, which gets nothing before everything could be written."""
        recorded = self._recorded(self._find(job))
        chosen = format or recorded.export_format
        own = suffix_of(Path(recorded.output_csv_path))  # a .tsv has tabs
        with TemporaryDirectory() as folder:
            path = Path(
                folder, f"results{own if chosen == recorded.export_format else format_named(chosen).suffixes[0]}"
            )
            exported = self.export(job, path, format=chosen, **options)
            with path.open("rb") as written:
                copyfileobj(written, stream)
        return replace(exported, path=STANDARD_STREAM)

    async def report(self, job_id: str, item_id: str, result: Any, *, stop: bool, secret: str) -> Acceptance:
        """Hand in the report of an external worker. A refusal says why."""
        try:
            folder = self._find(job_id)
        except RunError as error:
            return Acceptance(False, str(error))
        message = {
            "op": "report",
            "job_id": job_id,
            "item_id": item_id,
            "result": result,
            "stop": stop,
            "secret": secret,
        }
        answer = await request(folder, message)
        if answer is None or "accepted" not in answer:
            return Acceptance(False, "no process executes this job now, so that no report can be accepted")
        return Acceptance(answer["accepted"], answer["reason"], tuple(answer["violations"]))

    async def cancel(self, job: str, *, firm: bool = False) -> JobStatus:
        """Cancel a job: no more rows are started, those in progress may end (with ``firm``, or some time later, they are stopped). Rows
        that have not started stay pending, and are executed if the job is run again."""
        folder = self._find(job)
        if is_owned(folder) and await self._order(folder, {"op": "cancel", "firm": firm}):
            return job_status(folder)
        status = job_status(folder)
        if not status.ended:
            with closing(Store(folder, SystemClock(), lambda text: None)) as store:
                end = {"state": CANCELLED, "error": CANCELLED_ON_REQUEST, "at": SystemClock().now()}
                store.set_meta(**{END: end})
        return job_status(folder)

    async def stop(self, job: str, *, firm: bool = False) -> None:
        """End a job's runner: as ``cancel``, but the job is only interrupted."""
        folder = self._find(job)
        if is_owned(folder):
            await self._order(folder, {"op": "stop", "firm": firm})

    async def retry(
        self,
        job: str,
        item_ids: Sequence[str] | None = None,
        *,
        completed: bool = False,
        changes: Mapping[str, Any] | None = None,
    ) -> tuple[int, bool, bool]:
        """Reset failed rows (these, or all) to be executed again: how many there are, whether a runner was started for them, and whether
        the one that was there already has them.

        ``completed``: of these rows also the completed ones, from nothing; what they had come to is kept in the journal. ``changes``: as of
        ``run``."""
        folder = self._find(job)
        await self._stopped(job, folder)
        states = frozenset(
            {ItemState.FAILED, ItemState.CANCELLED, ItemState.COMPLETED} if completed else {ItemState.FAILED}
        )
        rows = self._ended_of(folder, item_ids, states)
        if not rows:
            return 0, False, False
        if not is_owned(folder):  # else nothing would be left of what they had come to
            self._secrets(self._changed(self._recorded(folder).options, changes)[0])
        select = "state=failed" if item_ids is None else " ".join(f"key={key}" for key in item_ids[:NAMED_ROWS])
        _, by_runner = await give_order(folder, RETRY, numbers=rows, fresh=False, select=select)
        return len(rows), not by_runner and await self.run(job, changes=changes), by_runner

    def list(self) -> Sequence[JobStatus]:
        """All jobs, the newest first."""
        return job_statuses(self.data_dir)

    def failed_item_errors(self, job: str, limit: int = 5) -> Sequence[dict[str, Any]]:
        """The first failed rows in their order: ``item_id``, ``source_id``, ``last_error``."""
        with closing(open_reader(self._find(job))) as reader:
            rows = reader.failed_items(limit)
        return [
            {"item_id": row.key, "source_id": JobRow.of(row.item).source_id, "last_error": row.message} for row in rows
        ]

    async def _launched(self, folder: Path, start: RunnerStart) -> bool:
        """Start a runner; False if another process was faster and executes the job, or has ended it meanwhile."""
        end = _end_of(folder)
        try:
            await launch(folder, replace(start, end=end), self._environ)
        except RunError:
            if not is_owned(folder) and _end_of(folder) == end:
                raise
            return False
        return True

    def _find(self, job: str) -> Path:
        return find_job(self.data_dir, job, folders=self._folders)

    def _check(self, job: PreparedJob, notice: Notice) -> None:
        """Raises UserError for a worker that can't be used."""
        options = job.options
        check_worker(options, self._environ)
        if options.worker_kind == "command":
            check_prices(options)
            _warn_of_launches(options, notice)
        if options.worker_kind == "agent":
            load_agent(options.agent)
            self._secrets(options)
            check_prices(options)
            warn_of_budget(options, [options], notice)

    async def _pinned(self, job: PreparedJob, notice: Notice) -> PreparedJob:
        """The job with what the images mean that its table's rows name now; those that it has already keep their meaning. Raises UserError
        if the sandbox can't be used, or an image does not exist."""
        options = job.options
        if options.worker_kind != "agent" or not options.toolsets:
            return job
        demand = ImageDemand(unnamed=1)
        if row_images(options) is not None:
            skips = options.on_bad_row == "skip"
            demand = await asyncio.to_thread(lambda: image_demand(job.opened(), options, bad_rows=skips))
        pins = await planned_images(
            options, demand, notice, recorded=job.pins, needed=(), skip_missing=options.skip_missing_images
        )
        return replace(job, pins=pins)

    async def _check_images(self, folder: Path, job: PreparedJob, options: JobSpec, notice: Notice) -> None:
        """Raises UserError if the rows that are left can't be executed in their images any more."""
        if job.pins.kind is None:
            return
        with closing(open_reader(folder)) as reader:
            rows = [
                JobRow.of(row.item)
                for row in reader.items()
                if not row.left_input and (not row.state.final or row.state is ItemState.FAILED)
            ]
        demand = left_demand(rows, job.table.headers, options)
        if rows:
            await planned_images(options, demand, notice, recorded=job.pins, needed=demand.references)

    def _secrets(self, options: JobSpec, tools: Json = None) -> dict[str, str]:
        """``tools``: the record of the agents' tools."""
        if options.worker_kind != "agent":
            return {}
        headers = as_secrets(headers_for(options, self._environ), API_KEY)
        others = headers | as_secret(looked_up(options.container_env, self._environ))
        others |= service_secrets(services_of(tools), options, self._environ)
        if API_KEY in self._given and options.api_key is None:
            return key_secrets(API_KEY, keys_in(self._given, API_KEY)) | others
        return key_secrets(API_KEY, usable_keys(options, self._environ)) | others

    def _changed(self, options: JobSpec, changes: Mapping[str, Any] | None) -> tuple[JobSpec, dict[str, Any]]:
        """The recorded settings with changes, and these as a runner gets them. Raises UserError for those that can't be used."""
        if not changes:
            return options, {}
        checked = JobChanges.make({"csv_path": options.csv_path, **changes}, lambda name: f"--{name}")
        options = checked.inherit(options)
        check_executor(options)
        check_binding(options, changes)
        given = _sendable(checked, changes)
        if options.header is not None:
            options = self._with_endpoint(options, lambda text: None)
            given["recorded_headers"] = options.recorded_headers
        return options, given

    def _with_endpoint(self, options: JobSpec, notice: Notice) -> JobSpec:
        if options.worker_kind != "agent" or API_KEY in self._given:
            return options
        return with_endpoint(options, options.model, self._environ, notice)

    def _known(self, job_id: str) -> Spawned | None:
        try:
            status = self.status(job_id)
        except RunError:
            return None
        return Spawned(status.job_id, status.name, status.folder, False, status.output_csv_path, status.total_items)

    def _recorded(self, folder: Path) -> PreparedJob:
        with closing(open_reader(folder)) as reader:
            return PreparedJob.from_json(reader.meta("spec"), folder.parent)

    def _ended_of(self, folder: Path, item_ids: Sequence[str] | None, states: Collection[ItemState]) -> Sequence[int]:
        """The numbers of the rows (None: of all) that are in one of the states. Raises RunError for an id that names none."""
        with closing(open_reader(folder)) as reader:
            if item_ids is None:
                return [each.number for page in reader.outlines() for each in page if each.state in states]
            rows = {key: reader.item_by_key(key) for key in item_ids}
        missing = [key for key, row in rows.items() if row is None]
        if missing:
            raise RunError(f"{folder}: no item is called {missing[0]!r}")
        return [row.number for row in rows.values() if row is not None and row.state in states and not row.left_input]

    async def _stopped(self, job: str, folder: Path) -> None:
        """Wait for the end of a runner that is stopping, so that another one can begin."""
        answer = await request(folder, {"op": "progress"})
        if answer is not None and answer.get("stopping"):
            await self.wait(job, STOPPING_SECONDS)

    async def _order(self, folder: Path, message: dict[str, Any]) -> bool:
        """Give a runner an order; False if there is none any more. Raises RunError if it does not accept it."""
        latest = asyncio.get_running_loop().time() + ANSWER_SECONDS
        answer: dict[str, Any] = {}
        for _ in range(OWNER_LOOKS):
            answer = await request(folder, message) or {}
            if answer.get("ok"):
                return True
            if not is_owned(folder):
                return False
            if asyncio.get_running_loop().time() > latest:
                break
            await asyncio.sleep(OWNER_PAUSE)
        raise RunError(f"{folder}: {answer.get('error', 'the process that executes this job does not answer')}")


def _check_worlds(job: PreparedJob, folder: Path) -> None:
    """Raises UserError for what the sandboxes of agents can't be given."""
    options = job.options
    if options.worker_kind != "agent":
        return
    check_world(options, options, images=options.image is not None or row_images(options) is not None)
    if options.workspace is not None:
        check_apart(Path(options.workspace), folder)
    if options.on_bad_row == "fail":
        check_rows(job.opened(), options)


def _left(folder: Path, limit: int | None) -> int:
    """How many rows are to be executed yet, up to a limit."""
    with closing(open_reader(folder)) as reader:
        return reader.left(BEHIND_INPUT if limit is None else limit)


def _updated(folder: Path, keep: bool, settings: Mapping[str, Any], pins: Pins, notice: Notice) -> Changes:
    with closing(Store(folder, SystemClock(), lambda text: None)) as store:
        recorded = PreparedJob.from_json(store.reader.meta("spec"), folder.parent)
        job, options = with_table_of_now(recorded, notice), recorded.options
        job.continued(settings)
        headers, table = job.table.headers, job.opened()

        def rows() -> Iterator[PlannedItem]:
            problem = row_problem(options, pins.missing)
            return plan_rows(table, options.id_column, options.on_bad_row, problem)

        def removed(payload: Json) -> Json:
            return under_other_headers(JobRow.of_payload(payload), former, headers).to_json()

        items, former = store.reader.items(), recorded.table.headers
        with closing(TableUpdate.of(items, former, rows(), headers)) as update:
            changes = update.changes()
            if keep:
                facts = {"spec": replace(job, pins=pins).to_json(), END: None}
                rewritten = None if headers == former else removed
                store.replan(update.plan(rows(), headers), IMPORTED, removed=rewritten, **facts)
            return changes


def _warn_of_launches(options: JobSpec, notice: Notice) -> None:
    """Say how far a budget holds for the launches of a command."""
    if options.bounded:
        limit = "max_cost" if options.max_cost is not None else "max_total_tokens"
        notice(
            "the cost of a launch of the worker command is known when it has ended and printed it (Claude Code with "
            "--output-format=json, Codex with --json): the first launch that does not print it stops the job, and concurrent launches may "
            f"exceed --{limit} by what they cost beyond the most expensive one before them"
        )


def _own_output(job: PreparedJob, format: str | None) -> Path:
    """Where a job's own results go; in another format, beside that."""
    path = Path(job.output_csv_path)
    if format is None or format == job.export_format:
        return path
    return path.with_name(path.name.removesuffix(".gz")).with_suffix(format_named(format).suffixes[0])


def _end_of(folder: Path) -> Any:
    """How a job's last session ended, as it is recorded."""
    with closing(open_reader(folder)) as reader:
        return reader.meta(END)


def _sendable(checked: JobChanges, given: Mapping[str, Any]) -> dict[str, Any]:
    """Changed settings as JSON, without secrets, which go another way, and independent of the current folder: with the contents of
    files in place of their names."""
    resolved = checked.resolved()
    names = {resolved.contents[name][0] if name in resolved.contents else name for name in given}
    return resolved.to_json([name for name in names if not resolved.about(name).secret])
