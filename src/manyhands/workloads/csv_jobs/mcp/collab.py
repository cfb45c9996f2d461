"""The toolset ``collab``: the built-in agent's own tools for starting jobs and following them.

They are those of the MCP server, but for two things. The paths in a call are paths in the agent's sandbox: the table is read from
there when a job is made, and the results are put there when it has ended. And a call that is repeated after a crash makes no
second job, because a job's id follows from the call. Jobs are kept in the folder of the run that the agent belongs to, and an
agent sees those that it started itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from manyhands.agents.options import AgentOptions
from manyhands.agents.run_settings import API_KEY, keys_in
from manyhands.agents.worlds.settings import COLUMNS
from manyhands.core.errors import RunError, ToolError, UserError
from manyhands.io.files import bytes_written_aside
from manyhands.io.tables.formats import check_name
from manyhands.models.headers import headers_among
from manyhands.runs.making import kept_file
from manyhands.runs.options import ClusterSettings
from manyhands.sandboxes.files.removing import remove_tree
from manyhands.sandboxes.protocol import Sandbox
from manyhands.sandboxes.settings import RowImageSettings
from manyhands.tools.protocol import ParentRun, ToolEnvironment, ToolResult
from manyhands.tools.results import result_of
from manyhands.workloads.csv_jobs.folders import SHORT
from manyhands.workloads.csv_jobs.mcp import declarations as declared
from manyhands.workloads.csv_jobs.mcp.calls import Arguments
from manyhands.workloads.csv_jobs.mcp.settings import (
    DEFAULT_CONCURRENCY_LIMIT,
    DEFAULT_WAIT_LIMIT,
    ToolPaths,
    ToolSettings,
)
from manyhands.workloads.csv_jobs.mcp.tools import TOO_DEEP, Caller, JobTools
from manyhands.workloads.csv_jobs.service.jobs import JobService
from manyhands.workloads.csv_jobs.service.status import ENDS, JobStatus

COLLAB = "collab"
"""The toolset's name."""
NAMES = (
    declared.SPAWN,
    declared.RUN,
    declared.STATUS,
    declared.WAIT,
    declared.EXPORT,
    declared.CANCEL,
    declared.LIST,
    declared.RETRY,
)
MAX_TABLE_BYTES = 50_000_000
"""Bytes of a table, and of results, that go from and to a sandbox."""
WRITTEN = "output_written"
"""The key of an answer by which the results were put into the sandbox just now."""
_PROBLEM = "output_error"
_MAX_INSTRUCTION_BYTES = 1_000_000
_MAX_SUFFIX_CHARS = 10
_IDS = UUID("6f1c0a52-8f0e-4d53-9d5b-52d1a5b3a6f1")
_STATE = "collab_written"
_OF_THE_RUN = frozenset(
    (
        *("data_dir", "executor", "max_concurrency", "on_end", "prices", *ClusterSettings.fields),
        *("workspace", "workspace_digest", "setup", "collect", *COLUMNS, *RowImageSettings.fields),
    )
)
_ALSO_INHERITED = ("project", "max_depth", "log_prefix_chars")
_PART_OF_WAIT = 0.9
"""How much of a call's time it may spend on waiting; the rest is for bringing the results."""


def collab_tools() -> list[CollabTool]:
    """The toolset's tools."""
    return [CollabTool(declared.DECLARATIONS[name]) for name in NAMES]


@dataclass(frozen=True, slots=True)
class CollabTool:
    """One of them."""

    declaration: declared.Declaration

    @property
    def name(self) -> str:
        return self.declaration.name

    @property
    def description(self) -> str:
        return self.declaration.description

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self.declaration.parameters

    @property
    def changes_world(self) -> bool:
        """All but the list may put results into the sandbox."""
        return self.name != declared.LIST

    async def call(self, arguments: dict[str, Any], environment: ToolEnvironment) -> ToolResult:
        """Raises ToolError, for the model."""
        content = await _Call(environment).call(self.name, arguments)
        return result_of(ToolResult(content), environment.max_output)

    def restore(self, arguments: dict[str, Any], result: ToolResult, environment: ToolEnvironment) -> None:
        if isinstance(result.content, dict):
            _note(environment, self.name, result.content)


@dataclass(frozen=True, slots=True)
class _JobFiles:
    """A job's table and results: on the host, and in the sandbox under the names that the model knows."""

    table: Path
    results: Path
    csv_path: str
    output_csv_path: str

    def seen(self, value: Any) -> Any:
        """A JSON value with the host's paths in it as the model knows them."""
        if isinstance(value, str):
            return value.replace(str(self.table), self.csv_path).replace(str(self.results), self.output_csv_path)
        if isinstance(value, dict):
            return {name: self.seen(part) for name, part in value.items()}
        return [self.seen(part) for part in value] if isinstance(value, list) else value


class _Call:
    """One call being executed."""

    def __init__(self, environment: ToolEnvironment) -> None:
        if environment.parent is None:
            raise ToolError("jobs can't be started here")
        self._environment = environment
        self._parent = parent = environment.parent
        self._caller = Caller(depth=parent.depth)
        self._service = JobService(parent.jobs, environ=os.environ, secrets=parent.secrets)
        self._tools = JobTools(self._service, _settings(parent, environment.timeout))

    async def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if name == declared.SPAWN:
            content = await self._spawn(arguments)
        elif name == declared.EXPORT:
            return await self._export(arguments)
        else:
            content = (await self._tools.call(name, arguments, self._caller)).content
        if name == declared.LIST:
            return {**content, "jobs": [self._seen(job["job_id"], job) for job in content["jobs"]]}
        _note(self._environment, name, content)
        status = content.get("status")
        return await self._with_results(content, status if isinstance(status, dict) else content)

    async def _spawn(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if self._caller.depth >= self._parent.max_depth:
            raise ToolError(TOO_DEEP)
        read, sandbox = Arguments(arguments), await self._environment.sandbox()
        instruction = await _instruction(sandbox, read)
        job_id = str(uuid5(_IDS, self._environment.call_key))
        files = await self._files_of(job_id) or await self._made_files(job_id, read, sandbox)
        given = {**arguments, "csv_path": str(files.table), "output_csv_path": str(files.results)}
        given |= {"instruction": instruction, "instruction_file": None}
        caller = Caller(depth=self._caller.depth, job_id=job_id)
        try:
            await self._go_on(job_id)
            content = (await self._tools.call(declared.SPAWN, given, caller)).content
        except (ToolError, UserError, RunError) as error:
            if await self._status(job_id) is None:
                await asyncio.to_thread(remove_tree, self._folder(job_id))
            raise ToolError(files.seen(" ".join(str(error).split()))) from error
        return {**content, "csv_path": files.csv_path}

    async def _go_on(self, job_id: str) -> None:
        """If the job is there already, because the call is repeated, have it executed."""
        status = await self._status(job_id)
        if status is not None and not status.ended and not status.runner_active:
            await self._tools.go_on(status)

    async def _status(self, job_id: str) -> JobStatus | None:
        """Where a job stands, if it was made."""
        try:
            return await asyncio.to_thread(self._service.status, job_id)
        except RunError:
            return None

    async def _export(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        read = Arguments(arguments)
        sandbox = await self._environment.sandbox()
        status = await self._tools.call(declared.STATUS, {"job_id": read.required_text("job_id")}, self._caller)
        job_id = status.content["job_id"]
        files = await self._files_of(job_id)
        typed = read.text("output_csv_path", "path") or (files.output_csv_path if files else None)
        if typed is None:
            raise ToolError("output_csv_path is missing: a path in the sandbox")
        try:
            check_name(Path(typed))
        except UserError as error:
            raise ToolError(f"output_csv_path {error}") from error
        target = self._folder(job_id) / f"{uuid5(_IDS, self._environment.call_key)}{_suffix(typed)}"
        await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
        try:
            given = {"job_id": job_id, "output_csv_path": str(target)}
            content = (await self._tools.call(declared.EXPORT, given, self._caller)).content
            await sandbox.write_file(typed, await asyncio.to_thread(_bounded, target))
        finally:
            target.unlink(missing_ok=True)
        return {**content, "output_csv_path": typed}

    async def _with_results(self, content: dict[str, Any], status: Mapping[str, Any]) -> dict[str, Any]:
        """An answer as the model may see it. If the job has ended, its results are put into the sandbox, once."""
        job_id = status["job_id"]
        files = await self._files_of(job_id)
        if files is None:
            return content
        seen: dict[str, Any] = files.seen(content)
        if status["state"] not in ENDS or job_id in _written(self._environment) or not files.results.exists():
            return seen
        sandbox = await self._environment.sandbox()
        try:
            await sandbox.write_file(files.output_csv_path, await asyncio.to_thread(_bounded, files.results))
        except ToolError as error:
            return {**seen, _PROBLEM: f"the results could not be written: {error}; use {declared.EXPORT}"}
        _written(self._environment).add(job_id)
        return {**seen, WRITTEN: {"job_id": job_id, "output_csv_path": files.output_csv_path}}

    def _seen(self, job_id: str, value: Any) -> Any:
        files = _read_files(self._folder(job_id))
        return value if files is None else files.seen(value)

    def _folder(self, job_id: str) -> Path:
        """Where a job's table and results are on the host: beside the job's own folder."""
        return self._parent.jobs / f"{job_id}.files"

    async def _files_of(self, job_id: str) -> _JobFiles | None:
        return await asyncio.to_thread(_read_files, self._folder(job_id))

    async def _made_files(self, job_id: str, read: Arguments, sandbox: Sandbox) -> _JobFiles:
        """Fetch the table from the sandbox."""
        csv_path = read.required_text("csv_path")
        output = read.text("output_csv_path") or _default_output(csv_path, job_id, sandbox)
        folder = self._folder(job_id)
        files = _JobFiles(folder / f"table{_suffix(csv_path)}", folder / f"results{_suffix(output)}", csv_path, output)
        data = await sandbox.read_file(csv_path, max_bytes=MAX_TABLE_BYTES)
        await asyncio.to_thread(_keep, folder, files, data)
        return files


def _settings(parent: ParentRun, timeout: float) -> ToolSettings:
    limit = parent.options.get("max_concurrency_limit") or DEFAULT_CONCURRENCY_LIMIT
    return ToolSettings(
        paths=ToolPaths.of(parent.folder),
        worker=inherited(parent),
        max_concurrency=min(limit, DEFAULT_CONCURRENCY_LIMIT),
        wait_limit=min(DEFAULT_WAIT_LIMIT, timeout * _PART_OF_WAIT),
        max_depth=parent.max_depth,
    )


def inherited(parent: ParentRun) -> dict[str, Any]:
    """The settings of jobs that the agents of a run start: how its own agents work, without what belongs to the run itself.

    Their agents can start jobs only if they are not too deep for it.
    """
    names = [name for name in AgentOptions.fields if name not in _OF_THE_RUN]
    given = {name: parent.options.get(name) for name in (*names, *_ALSO_INHERITED)}
    settings = {name: value for name, value in given.items() if value is not None}
    if variables := [each for each in settings.pop("container_env", ()) if "=" in each]:
        settings["container_env"] = variables  # the values of others are not recorded
    settings |= {"data_dir": str(parent.jobs), "max_depth": parent.max_depth}
    if "toolsets" in parent.options:
        deeper = parent.depth + 1 < parent.max_depth
        settings["toolsets"] = [name for name in parent.options["toolsets"] or () if deeper or name != COLLAB] or [
            "none"
        ]
    if parent.options.get("prices"):
        kept = kept_file(parent.folder, parent.options["prices"])
        settings["prices"] = str(kept if kept.exists() else parent.options["prices"])
    if keys := keys_in(parent.secrets, API_KEY):
        settings["api_key"] = list(keys)
    if headers := headers_among(parent.secrets, API_KEY):
        settings["header"] = headers
    return settings


async def _instruction(sandbox: Sandbox, read: Arguments) -> str | None:
    """The instruction; one that is in a file of the sandbox is read."""
    instruction, file = read.text("instruction"), read.text("instruction_file")
    if file is None:
        return instruction
    if instruction is not None and instruction.strip():
        raise ToolError("give instruction or instruction_file, not both")
    data = await sandbox.read_file(file, max_bytes=_MAX_INSTRUCTION_BYTES)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ToolError(f"instruction_file {file} is not UTF-8 text") from None


def _default_output(csv_path: str, job_id: str, sandbox: Sandbox) -> str:
    """Beside the table, or in the workspace if the table is in the project."""
    name = posixpath.basename(csv_path)
    stem = name.removesuffix(posixpath.splitext(name)[1])
    path = posixpath.join(posixpath.dirname(csv_path), f"{stem}.agent-job-{job_id[:SHORT]}.csv")
    project = sandbox.project
    if project is None:
        return path
    # Without a path of its own, a project is where relative ones begin.
    inside = posixpath.relpath(posixpath.normpath(posixpath.join(project, csv_path)), project)
    return path if inside.startswith("..") else posixpath.join(sandbox.workspace, posixpath.basename(path))


def _suffix(path: str) -> str:
    """The suffix of a file's name, which determines its format. Raises ToolError for a packed one, as its size can't be known."""
    suffix = posixpath.splitext(path)[1].lower()
    if suffix == ".gz":
        raise ToolError(f"{path}: packed files can't be used here; unpack it first")
    return suffix if suffix[1:].isalnum() and len(suffix) < _MAX_SUFFIX_CHARS else ".csv"


def _keep(folder: Path, files: _JobFiles, data: bytes) -> None:
    with bytes_written_aside(files.table) as handle:
        handle.write(data)
    names = (files.table.name, files.results.name, files.csv_path, files.output_csv_path)
    with bytes_written_aside(folder / "paths.json") as handle:
        handle.write(json.dumps(names).encode())


def _read_files(folder: Path) -> _JobFiles | None:
    try:
        table, results, csv_path, output = json.loads((folder / "paths.json").read_bytes())
    except OSError:
        return None
    return _JobFiles(folder / table, folder / results, csv_path, output)


def _bounded(path: Path) -> bytes:
    """A file's content. Raises ToolError if it is too much to be copied."""
    if (size := path.stat().st_size) > MAX_TABLE_BYTES:
        raise ToolError(
            f"the results have {size:,} bytes, and at most {MAX_TABLE_BYTES:,} can be copied into the sandbox"
        )
    return path.read_bytes()


def _written(environment: ToolEnvironment) -> set[str]:
    """The ids of jobs whose results are in the sandbox, so that they are put there once and left alone afterwards."""
    written: set[str] = environment.state.setdefault(_STATE, set())
    return written


def _note(environment: ToolEnvironment, name: str, content: Mapping[str, Any]) -> None:
    """Learn from an answer, given now or before a crash."""
    if isinstance(content.get(WRITTEN), dict):
        _written(environment).add(content[WRITTEN]["job_id"])
    if name in (declared.RUN, declared.RETRY) and content.get("started"):
        _written(environment).discard(content["status"]["job_id"])
