"""The toolset ``collab``: an agent with a scripted model starts jobs, which real runners perform with the simulated model."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from manyhands.agents.loop import run_agent
from manyhands.agents.options import AgentOptions
from manyhands.agents.run_settings import parent_run
from manyhands.agents.task import AgentSettings, AgentTask
from manyhands.agents.toolbox import RunTools
from manyhands.agents.worlds.world import World
from manyhands.core.clock import SystemClock
from manyhands.core.errors import ToolError
from manyhands.engine.contract import Item
from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from manyhands.sandboxes.local import LocalBackend
from manyhands.sandboxes.protocol import SandboxBackend, SandboxRequest
from manyhands.testing.agent_doubles import CHAT, ScriptedModel, assistant, tool_call
from manyhands.testing.context import Crash, CrashPoint, MemoryContext, MemoryJournal
from manyhands.testing.scripted_server import RecordedRequest, chat_response
from manyhands.tools.protocol import ParentRun, ToolEnvironment
from manyhands.workloads.csv_jobs.mcp.collab import collab_tools, inherited
from manyhands.workloads.csv_jobs.service.jobs import JobService
from manyhands.workloads.csv_jobs.spec import JobSpec
from tests.support.batches import BatchFolder, ServerThread

TABLE = "id,city\na,Rome\nb,Oslo\nc,Lima\n"
SPAWN = {"csv_path": "rows.csv", "instruction": "Say something about {city}.", "id_column": "id", "job_name": "cities"}
WRITE = ("write_file", {"path": "rows.csv", "content": TABLE})
WAIT = ("wait_agent_job", {"job_id": "cities", "timeout_ms": 60_000})
STATUS = ("get_agent_job_status", {"job_id": "cities"})
READ = ("terminal", {"command": "cat rows.agent-job-*.csv"})
Call = tuple[str, dict[str, Any]]


@dataclass
class Attempt:
    """An attempt at one item of a run, whose agent does what a test says. It goes on where it was cut off."""

    folder: Path
    options: dict[str, Any] = field(default_factory=dict)
    backend: SandboxBackend = field(default_factory=LocalBackend)
    project: Path | None = None
    depth: int = 0
    max_depth: int = 1
    number: int = 1
    journal: MemoryJournal = field(default_factory=dict)

    async def hold(self, *calls: Call, crash: CrashPoint | None = None) -> list[Any]:
        """A conversation with one call a turn; what each came to."""
        context = MemoryContext(self.journal, item=Item(self.number, "item", {}), crash=crash)
        answers: list[Any] = [assistant(None, tool_call(*call)) for call in calls]
        known = sum(step.kind == "model" for step in self.journal.values())
        async with World(context, self.backend, self._request) as world:
            environment = ToolEnvironment(world.sandbox, SystemClock(), 60.0, parent=self._parent(context))
            result = await run_agent(
                context,
                AgentTask("Do it."),
                model=ScriptedModel([*answers, "Done."][known:]),
                tools=RunTools.recorded(None).toolbox(["terminal", "file", "collab"]),
                environment=environment,
                settings=AgentSettings(CHAT, max_turns=20),
                world=world,
            )
        return [read(message["content"]) for message in result.messages if message["role"] == "tool"]

    def _request(self) -> SandboxRequest:
        return SandboxRequest(self.folder / f"box-{self.number}", "test", project=self.project)

    def _parent(self, context: MemoryContext) -> ParentRun:
        settings = AgentOptions(model="simulated", sandbox="local", **self.options).recorded()
        options = {**settings, "toolsets": ["collab"]}
        depth, most = self.depth, self.max_depth
        return parent_run(context, self.folder / "run", "the-run", options, {}, depth=depth, max_depth=most)


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


def read(content: str) -> Any:
    return json.loads(content) if content.startswith("{") else content


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def no_host_path(attempt: Attempt, *contents: Any) -> bool:
    return str(attempt.folder / "run") not in json.dumps(contents)


async def test_a_job_from_the_table_to_the_results(attempt: Attempt) -> None:
    _, spawned, waited, shown, listed = await attempt.hold(
        WRITE, ("spawn_agents_on_csv", SPAWN), WAIT, READ, ("list_agent_jobs", {})
    )
    output = f"rows.agent-job-{spawned['job_id'][:8]}.csv"
    assert (spawned["started"], spawned["total_items"], spawned["output_csv_path"]) == (True, 3, output)
    status = waited["status"]
    assert (waited["timed_out"], status["state"], status["completed_items"]) == (False, "completed", 3)
    assert waited["output_written"] == {"job_id": spawned["job_id"], "output_csv_path": output}
    rows = table(shown["output"])
    assert [(row["id"], row["city"], row["item_id"], row["status"]) for row in rows] == [
        ("a", "Rome", "a", "completed"),
        ("b", "Oslo", "b", "completed"),
        ("c", "Lima", "c", "completed"),
    ]
    assert [job["job_id"] for job in listed["jobs"]] == [spawned["job_id"]]
    assert listed["jobs"][0]["output_csv_path"] == output
    assert no_host_path(attempt, spawned, waited, listed)
    assert (attempt.folder / "run" / "jobs" / "1-1" / "cities" / "run.db").exists()


async def test_a_spawn_that_waits(attempt: Attempt) -> None:
    spawn = ("spawn_agents_on_csv", {**SPAWN, "wait": True, "output_csv_path": "out/all.csv", "max_workers": 2})
    _, spawned, shown = await attempt.hold(WRITE, spawn, ("terminal", {"command": "cat out/all.csv"}))
    assert (spawned["status"], spawned["completed_items"], spawned["timed_out"]) == ("completed", 3, False)
    assert spawned["output_csv_path"] == "out/all.csv"
    assert len(table(shown["output"])) == 3


async def test_a_spawn_that_is_repeated_after_a_crash_makes_no_second_job(attempt: Attempt) -> None:
    calls: tuple[Call, ...] = (WRITE, ("spawn_agents_on_csv", SPAWN), WAIT, ("list_agent_jobs", {}))
    with pytest.raises(Crash):
        await attempt.hold(*calls, crash=CrashPoint(4, "before_recording"))
    jobs = attempt.folder / "run" / "jobs" / "1-1"
    (made,) = [path for path in jobs.iterdir() if (path / "run.db").exists()]
    before = (made / "run.db").stat().st_ino
    _, spawned, waited, listed = await attempt.hold(*calls)
    assert (made / "run.db").stat().st_ino == before
    assert [job["job_id"] for job in listed["jobs"]] == [spawned["job_id"]]
    assert waited["status"]["completed_items"] == 3


async def test_results_are_put_into_the_sandbox_once(attempt: Attempt) -> None:
    change = ("terminal", {"command": "for file in rows.agent-job-*; do echo mine >$file; done"})
    calls = (WRITE, ("spawn_agents_on_csv", SPAWN), WAIT, change, STATUS, READ)
    with pytest.raises(Crash):
        await attempt.hold(*calls, crash=CrashPoint(9, "before_effect"))
    *_, status, shown = await attempt.hold(*calls)
    assert "output_written" not in status
    assert shown["output"] == "mine\n"


async def test_an_export_goes_where_it_is_asked_to(attempt: Attempt) -> None:
    export = ("export_agent_job_csv", {"job_id": "cities", "output_csv_path": "some/where.jsonl"})
    again = ("export_agent_job_csv", {"job_id": "cities"})
    calls = (WRITE, ("spawn_agents_on_csv", {**SPAWN, "auto_export": False}), WAIT)
    look = ("terminal", {"command": "wc -l <some/where.jsonl; ls"})
    *_, waited, exported, shown, plain, after = await attempt.hold(*calls, export, look, again, look)
    assert "output_written" not in waited
    assert (exported["output_csv_path"], exported["row_count"]) == ("some/where.jsonl", 3)
    assert shown["output"].splitlines() == ["3", "rows.csv", "some"]
    assert plain["output_csv_path"] in after["output"].splitlines()
    assert no_host_path(attempt, exported, plain)
    (kept,) = (attempt.folder / "run" / "jobs" / "1-1").glob("*.files")
    assert sorted(path.name for path in kept.iterdir()) == ["paths.json", "table.csv"]


async def test_a_name_that_promises_another_format_is_refused_as_the_model_knows_it(attempt: Attempt) -> None:
    spawn = ("spawn_agents_on_csv", {**SPAWN, "output_csv_path": "out.json"})
    export = ("export_agent_job_csv", {"job_id": "cities", "output_csv_path": "some/where.md"})
    calls = (WRITE, spawn, ("spawn_agents_on_csv", SPAWN), WAIT, export, ("terminal", {"command": "ls"}))
    _, refused, _, _, not_exported, shown = await attempt.hold(*calls)
    assert "out.json: results are not written as .json" in json.dumps(refused)
    assert "some/where.md: results are not written as .md" in json.dumps(not_exported)
    assert no_host_path(attempt, refused, not_exported)
    assert "some" not in shown["output"].split()


async def test_an_attempt_sees_its_own_jobs_only(attempt: Attempt) -> None:
    await attempt.hold(WRITE, ("spawn_agents_on_csv", {**SPAWN, "wait": True}))
    other = Attempt(attempt.folder, number=2)
    _, listed, status, spawned = await other.hold(
        WRITE, ("list_agent_jobs", {}), STATUS, ("spawn_agents_on_csv", {**SPAWN, "wait": True})
    )
    assert listed["jobs"] == []
    assert "agent job cities not found" in str(status)
    assert spawned["started"] is True


async def test_workers_are_too_deep(attempt: Attempt) -> None:
    attempt.depth = 1
    _, refused = await attempt.hold(WRITE, ("spawn_agents_on_csv", SPAWN))
    assert "agent depth limit reached; this session cannot spawn more subagents" in str(refused)
    assert not (attempt.folder / "run" / "jobs").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"csv_path": "none.csv"}, "no such file: "),
        ({"csv_path": "rows.csv.gz"}, "unpack it first"),
        ({"csv_path": 5}, "csv_path must be text"),
        ({"instruction": "{town}"}, "town"),
        ({"instruction": " "}, "instruction must be non-empty"),
        ({"id_column": "nr"}, "id_column nr was not found in csv headers"),
        ({"csv_path": "bad.csv"}, "bad.csv"),
        ({"output_schema": {"type": "nonsense"}}, "nonsense"),
        ({"max_runtime_seconds": 0}, "max_runtime_seconds must be >= 1"),
        ({"instruction_file": "rows.csv"}, "instruction or instruction_file, not both"),
    ],
)
async def test_a_spawn_that_can_not_be(attempt: Attempt, change: dict[str, Any], said: str) -> None:
    bad = ("write_file", {"path": "bad.csv", "content": 'id,city\n"1"1,x\n'})
    *_, refused, listed = await attempt.hold(
        WRITE, bad, ("spawn_agents_on_csv", {**SPAWN, **change}), ("list_agent_jobs", {})
    )
    assert said in str(refused)
    assert no_host_path(attempt, refused)
    assert listed["jobs"] == []
    assert not any((attempt.folder / "run").rglob("*.files"))


async def test_the_instruction_can_be_in_a_file_of_the_sandbox(attempt: Attempt) -> None:
    write = ("write_file", {"path": "do.txt", "content": "Say something about {city}."})
    spawn = {**SPAWN, "instruction": "", "instruction_file": "do.txt", "wait": True}
    *_, spawned = await attempt.hold(WRITE, write, ("spawn_agents_on_csv", spawn))
    assert spawned["completed_items"] == 3


async def test_a_table_of_the_project_has_its_results_in_the_workspace(tmp_path: Path) -> None:
    backend = BubblewrapBackend()
    if (reason := backend.unavailable()) is not None:
        pytest.skip(reason)
    project = tmp_path / "project"
    project.mkdir()
    (project / "rows.csv").write_text(TABLE)
    attempt = Attempt(tmp_path, backend=backend, project=project)
    spawned, shown = await attempt.hold(
        ("spawn_agents_on_csv", {**SPAWN, "wait": True}), ("terminal", {"command": "cat /workspace/*.csv"})
    )
    assert spawned["output_csv_path"] == f"/workspace/rows.agent-job-{spawned['job_id'][:8]}.csv"
    assert len(table(shown["output"])) == 3
    assert [path.name for path in project.iterdir()] == ["rows.csv"]


async def test_results_that_can_not_be_written_are_no_failure(attempt: Attempt) -> None:
    spawn = ("spawn_agents_on_csv", {**SPAWN, "wait": True, "output_csv_path": "dir"})
    fix = ("terminal", {"command": "rmdir dir"})
    _, _, spawned, _, status = await attempt.hold(WRITE, ("terminal", {"command": "mkdir dir"}), spawn, fix, STATUS)
    assert spawned["status"] == "completed"
    assert "could not be written" in spawned["output_error"]
    assert status["output_written"]["output_csv_path"] == "dir"


async def test_cancel_and_go_on(attempt: Attempt) -> None:
    attempt.options = {"simulated_latency": 0.5}
    spawn = ("spawn_agents_on_csv", {**SPAWN, "max_concurrency": 1})
    cancel = ("cancel_agent_job", {"job_id": "cities"})
    run = ("run_agent_job", {"job_id": "cities", "max_concurrency": 3})
    _, _, cancelled, _, started, waited, shown = await attempt.hold(WRITE, spawn, cancel, WAIT, run, WAIT, READ)
    assert cancelled["status"]["job_id"] == waited["status"]["job_id"]
    assert started["started"] is True
    assert waited["status"]["completed_items"] == 3
    assert [row["status"] for row in table(shown["output"])] == ["completed"] * 3


async def test_nothing_can_be_started_where_there_is_no_run() -> None:
    tool = collab_tools()[0]

    async def nowhere() -> Any:
        raise AssertionError

    with pytest.raises(ToolError, match="jobs can't be started here"):
        await tool.call(dict(SPAWN), ToolEnvironment(nowhere, SystemClock()))


def parent(tmp_path: Path, options: dict[str, Any], **more: Any) -> ParentRun:
    return ParentRun("id", tmp_path, "1-1", options, **more)


def test_what_workers_inherit(tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text("x")
    options = JobSpec(
        csv_path="t.csv",
        instruction="i",
        model="some/model",
        temperature=0.5,
        max_turns=7,
        max_cost=1.5,
        mcp_config="m.json",
        prices=str(tmp_path / "prices.yaml"),
        toolsets=("file", "collab"),
        project="/code",
        output_schema={"type": "object"},
        data_dir="elsewhere",
        executor="local",
        quiet=True,
    )
    recorded = options.recorded()
    given = inherited(parent(tmp_path, recorded, secrets={"api_key": "key"}, max_depth=2, depth=1))
    made = JobSpec.make({**given, "csv_path": "rows.csv", "instruction": "other"})
    same = ("model", "temperature", "max_turns", "max_cost", "mcp_config", "prices", "project")
    assert {name: getattr(made, name) for name in same} == {name: getattr(options, name) for name in same}
    assert made.toolsets == ("file",)
    assert (made.max_depth, made.executor, made.quiet, made.output_schema) == (2, "auto", False, None)
    assert made.data_dir == str(tmp_path / "jobs" / "1-1")
    assert [key.text for key in made.api_key or ()] == ["key"]
    shallow = JobSpec.make({**inherited(parent(tmp_path, recorded, max_depth=2)), "csv_path": "x"})
    assert shallow.toolsets == ("file", "collab")
    alone = inherited(parent(tmp_path, {**recorded, "toolsets": ["collab"]}))
    assert JobSpec.make({**alone, "csv_path": "x"}).toolsets == ()


def test_a_price_table_that_is_gone_is_taken_from_the_run(tmp_path: Path) -> None:
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "prices.yaml").write_text("x")
    given = inherited(parent(tmp_path, {"prices": "/nowhere/prices.yaml"}))
    assert given["prices"] == str(tmp_path / "settings" / "prices.yaml")


def call_message(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return chat_response(None, tool_calls=[tool_call(name, arguments)], reasoning="I think so.")


def ids_of(prompt: str) -> dict[str, str]:
    """The job and the item that a worker's prompt names."""
    lines = dict(line.split(": ", 1) for line in prompt.splitlines() if line.startswith(("Job ID: ", "Item ID: ")))
    return {"job_id": lines["Job ID"].strip('"'), "item_id": lines["Item ID"].strip('"')}


def agents(request: RecordedRequest) -> dict[str, Any]:
    """Answers the agent of the batch, and the agents of the job that it starts."""
    names = {tool["function"]["name"] for tool in request.body["tools"]}
    results = sum(message["role"] == "tool" for message in request.body["messages"])
    if "report_agent_job_result" in names:
        assert "spawn_agents_on_csv" not in names
        prompt = next(message["content"] for message in request.body["messages"] if message["role"] == "user")
        return call_message("report_agent_job_result", {**ids_of(prompt), "result": {"seen": True}})
    script: list[Callable[[], dict[str, Any]]] = [
        lambda: call_message(*WRITE),
        lambda: call_message("spawn_agents_on_csv", {**SPAWN, "wait": True, "output_csv_path": "all.csv"}),
        lambda: call_message("read_file", {"path": "all.csv"}),
        lambda: chat_response("Done.", reasoning="I think so."),
    ]
    answer: dict[str, Any] = script[results]()
    return answer


def test_an_agent_of_a_batch_starts_a_job(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, ["Look at the cities."])
    (tmp_path / "own.yaml").write_text("mine: {toolsets: {collab: 100, file: 100}}\n")
    with ServerThread(agents) as server:
        ran = folder.batch(
            "--distributions_file=own.yaml",
            "--distribution=mine",
            f"--base_url={server.base_url}",
            "--api_key=sk-secret",
        )
    assert ran.code == 0, ran.err
    (line,) = folder.lines()
    assert line["completed"] is True
    assert "spawn_agents_on_csv" not in line["tool_stats"]
    shown = next(turn["value"] for turn in reversed(line["conversations"]) if turn["from"] == "tool")
    assert shown.count("seen") == 3
    (job,) = (folder.run() / "jobs" / "1-1").glob("*/run.db")
    assert b"sk-secret" not in job.read_bytes()


def outer_and_inner(request: RecordedRequest) -> dict[str, Any]:
    """Answers the agents of a job, and those of the job that the first of them start."""
    names = {tool["function"]["name"] for tool in request.body["tools"]}
    results = [read(message["content"]) for message in request.body["messages"] if message["role"] == "tool"]
    prompt = next(message["content"] for message in request.body["messages"] if message["role"] == "user")
    if "spawn_agents_on_csv" in names and len(results) < 2:
        return call_message(*(WRITE, ("spawn_agents_on_csv", {**SPAWN, "wait": True}))[len(results)])
    result = {"spawned": results[1]} if results else {"tools": sorted(names)}
    return call_message("report_agent_job_result", {**ids_of(prompt), "result": result})


@pytest.mark.parametrize("depth", [1, 2])
async def test_agents_of_a_job_start_a_job_if_they_may(tmp_path: Path, depth: int) -> None:
    (tmp_path / "outer.csv").write_text("n\n1\n")
    desk = JobService(tmp_path / "data", environ=os.environ)
    with ServerThread(outer_and_inner) as server:
        given = {"csv_path": str(tmp_path / "outer.csv"), "instruction": "Start one.", "job_name": "outer"}
        agent = {"base_url": server.base_url, "api_key": "sk-secret", "sandbox": "local", "toolsets": "file,collab"}
        await desk.spawn(JobSpec.make({**given, **agent, "max_depth": depth}), notice=lambda text: None)
        status, timed_out = await desk.wait("outer", 60)
    assert (status.state, timed_out) == ("completed", False)
    exported = desk.export("outer", tmp_path / "out.jsonl")
    (line,) = (json.loads(text) for text in Path(exported.path).read_text().splitlines())
    spawned = line["result_json"]["spawned"]
    inner = JobService(tmp_path / "data" / "outer" / "jobs" / "1-1", environ=os.environ)
    if depth == 1:
        assert "this session cannot spawn more subagents" in str(spawned)
        assert inner.list() == []
        return
    assert spawned["completed_items"] == 3
    (job,) = inner.list()
    assert job.job_id == spawned["job_id"]
    results = [json.loads(text) for text in exported_lines(inner, job.job_id, tmp_path)]
    assert all("report_agent_job_result" in result["result_json"]["tools"] for result in results)
    assert not any("spawn_agents_on_csv" in result["result_json"]["tools"] for result in results)


def exported_lines(desk: JobService, job: str, folder: Path) -> list[str]:
    return Path(desk.export(job, folder / "inner.jsonl").path).read_text().splitlines()
