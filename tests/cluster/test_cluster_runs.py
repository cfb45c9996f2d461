"""Runs on a Ray cluster of two nodes: what comes out is what comes out on one machine."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import random
import shutil
import signal
import site
import sys
import threading
import time
import venv
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from manyhands.engine.journal.reader import JournalReader
from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedResponse, chat_response
from tests.crash.cluster_rounds import ClusterRound, ClusterSite, ClusterWork, Victim
from tests.crash.rounds import entries
from tests.support.batches import REASONED, ServerThread, prompt_of, read_lines
from tests.support.certificates import make_certificates, tls_variables
from tests.support.commands import (
    PROGRAM,
    Command,
    Ended,
    SimulatedProcess,
    alive,
    children,
    environment,
    ledger,
    one_line,
    run,
    write_prompts,
)
from tests.support.made_tasks import make_task
from tests.support.ray_clusters import END_SECONDS, Cluster, required, two_nodes

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 110.0
"""That a command may take on a busy machine."""
PLACES = '''
"""Tools that say where they are."""


def {name}(text: str) -> str:
    """Say where this function is."""
    return f"{{__file__}}"
'''


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with required(), two_nodes() as cluster:
        yield cluster


class Place:
    """A folder like a person's, and what is run in it on a cluster, all at once: mostly each run waits for its start."""

    def __init__(self, folder: Path, cluster: Cluster, stack: ExitStack) -> None:
        self.folder = folder
        self._on_cluster = [f"--ray_address={cluster.address}", "--executor=ray", '--ray_resources={"num_cpus": 0.5}']
        self._stack = stack
        self._commands: dict[str, Command] = {}
        self._ended: dict[str, Ended] = {}

    def start(self, name: str, *words: str, **how: Any) -> None:
        """Begin to run something on the cluster. ``how``: as of ``Command``."""
        command = Command(*words, *self._on_cluster, folder=self.folder, **how)
        self._commands[name] = self._stack.enter_context(command)

    def ended(self, name: str) -> Ended:
        """How that ended."""
        if name not in self._ended:
            self._ended[name] = self._commands[name].wait(SECONDS)
        return self._ended[name]


LACKING = '''
"""A tool that can't be had on every node."""

import os

if "LACKS_A_MODULE" in os.environ:
    raise ImportError("No module named 'extra'")


def say(text: str) -> str:
    """Say something."""
    return text
'''

WORKERS = ("--num_workers=2", "--concurrency=5")
BATCH = ("batch", "examples/prompts.jsonl", "--model=simulated", "--batch_size=10", *WORKERS)
JOBS = {
    "agent": ("--model=simulated", "--instruction=Score {path}."),
    "function": ("--worker_function=examples/csv_jobs/worker_function.py:score", "--instruction=Score."),
    "command": ("--worker_command=python3 examples/csv_jobs/worker_command.py", "--instruction=Score {path}."),
}
JOB = ("jobs", "spawn", "examples/csv_jobs/files.csv", "--project=.", "--num_workers=1")
MEMORY = (
    *("memory", "run", "-c", "examples/memory/quick.yml", "-a", "simulated", "-m", "3000", "--yes"),
    *("--start_time=2024-05-17T09:00:00+00:00", "--num_workers=1"),
)
EVAL = ("eval", "examples/evals/per_test/words.yaml", "--num_workers=1", "--quiet")
OWN = ("--tools=terminal,places/by_path.py,by_name:say", "--model=m", "--api_key=k", "--num_workers=1")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("place")
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / "places").mkdir()
    (folder / "places/by_path.py").write_text(PLACES.format(name="there"))
    (folder / "importable").mkdir()
    (folder / "importable/by_name.py").write_text(PLACES.format(name="say"))
    write_prompts(folder / "own.jsonl", ["places", "keep", "break"])
    task = 'artifacts = ["done.txt"]\n[verifier]\nenvironment_mode = "separate"\n'
    make_task(folder / "tasks/one", toml=task, test="#!/bin/bash\ncat done.txt >/logs/verifier/reward.txt\n")
    with ServerThread(_answer) as server, ExitStack() as stack:
        place = Place(folder, cluster, stack)
        place.start("batch", *BATCH, "--run_name=batch")
        place.start("memory", *MEMORY, "--data_dir=memory")
        place.start("eval", *EVAL, "--run_name=eval", "--output=words.jsonl")
        for kind, words in JOBS.items():
            place.start(kind, *JOB, *words, f"--job_name={kind}", f"--output_csv_path={kind}.csv")
        own = ("batch", "own.jsonl", "--batch_size=5", "--run_name=own", f"--base_url={server.base_url}", *OWN)
        path = os.pathsep.join([str(folder / "importable"), environment()["PYTHONPATH"]])
        place.start("own", *own, program=PROGRAM, environ={"PYTHONPATH": path})
        solve = "--agent_command=echo 1 > done.txt"
        place.start("tasks", "batch", "tasks", "--batch_size=5", "--run_name=tasks", solve, "--num_workers=1")
        yield place


def _answer(request: RecordedRequest) -> Reply:
    """A model that does with its tools what the prompt names, and then answers, or refuses to."""
    said = [each for each in request.body["messages"] if each["role"] == "tool"]
    plans: dict[str, list[tuple[str, dict[str, str]]]] = {
        "places": [("there", {"text": "a"}), ("say", {"text": "a"})],
        "keep": [("terminal", {"command": "echo kept > note"}), ("terminal", {"command": "cat note"})],
        "break": [("terminal", {"command": "echo seen > evidence"})],
    }
    prompt = prompt_of(request)
    if len(said) == len(plans[prompt]):
        return REASONED if prompt != "break" else ScriptedResponse({"error": {"message": "no more"}}, status=400)
    name, arguments = plans[prompt][len(said)]
    call = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"id": f"call_{len(said)}", "type": "function", "function": call}]
    return chat_response(None, tool_calls=calls, reasoning="I look.")


def test_a_batch_gives_the_same_trajectories(place: Place) -> None:
    here = run(*BATCH, "--run_name=here", "--executor=local", folder=place.folder)
    ended = place.ended("batch")
    assert (here.code, ended.code) == (0, 0), ended.err
    data = place.folder / "data"
    assert entries(data / "batch/trajectories.jsonl") == entries(data / "here/trajectories.jsonl")
    assert ledger(data / "batch")["completed"] == 30


@pytest.mark.parametrize("kind", JOBS)
def test_a_job_gives_the_same_table(place: Place, kind: str) -> None:
    words = (f"--job_name=here-{kind}", f"--output_csv_path=here-{kind}.csv", "--executor=local")
    here = run(*JOB, *JOBS[kind], *words, folder=place.folder)
    ended = place.ended(kind)
    assert (here.code, ended.code) == (0, 0), ended.out + ended.err
    assert results(place.folder / f"{kind}.csv") == results(place.folder / f"here-{kind}.csv")


def results(table: Path) -> list[dict[str, str]]:
    """A job's table but for what differs from job to job."""
    with table.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert rows
    return [{name: cell for name, cell in row.items() if name in SAME} for row in rows]


SAME = ("path", "area", "item_id", "row_index", "status", "result_json", "attempt_count", "last_error")


def test_a_memory_benchmark_gives_the_same_results(place: Place) -> None:
    here = run(*MEMORY, "--data_dir=memory-here", "--executor=local", folder=place.folder)
    ended = place.ended("memory")
    assert (here.code, ended.code) == (0, 0), ended.out + ended.err
    found = scores(place.folder / "memory")
    assert found == scores(place.folder / "memory-here")
    assert len(found) == 18


def scores(folder: Path) -> dict[str, float]:
    """The scores of the tests of a run of the memory benchmark."""
    files = folder.rglob("results/**/*_0.json")
    return {str(path.relative_to(folder)): json.loads(path.read_text())["score"] for path in files}


def test_an_evaluation_gives_the_same_results(place: Place) -> None:
    here = run(*EVAL, "--run_name=here-eval", "--output=here.jsonl", "--executor=local", folder=place.folder)
    ended = place.ended("eval")
    assert here.code == ended.code, ended.out + ended.err
    found, wanted = (read_lines(place.folder / name) for name in ("words.jsonl", "here.jsonl"))
    same = ("test_id", "status", "score", "output")
    assert [[each.get(name) for name in same] for each in found] == [
        [each.get(name) for name in same] for each in wanted
    ]
    assert len(found) == 3


def test_ones_own_tools_come_to_a_node_that_has_none_of_them(place: Place, cluster: Cluster) -> None:
    ended = place.ended("own")
    assert ended.code == 1, ended.err  # one item breaks
    places, kept = read_lines(place.folder / "data/own/trajectories.jsonl")
    by_path, by_name = said_by_tools(places)
    assert any(by_path.startswith(str(node.folder)) for node in cluster.nodes), by_path
    assert "/runtime_resources/py_modules_files/" in by_name
    assert said_by_tools(kept)[-1].strip() == "kept"


def said_by_tools(entry: Mapping[str, Any]) -> list[str]:
    """What the tools of a trajectory gave."""
    found = []
    for turn in entry["conversations"]:
        if turn["from"] == "tool":
            content = json.loads(turn["value"].removeprefix("<tool_response>\n").removesuffix("\n</tool_response>"))
            inner = content["content"]
            found.append(str(inner.get("output", inner.get("result", inner)) if isinstance(inner, dict) else inner))
    return found


def test_only_the_workspace_of_what_failed_stays_on_its_node_and_is_named(place: Place, cluster: Cluster) -> None:
    said = place.ended("own").err
    with_evidence = [found for node in cluster.nodes for found in node.folder.rglob("workspaces/*/workspace/*")]
    assert [found.name for found in with_evidence] == ["evidence"]
    folder = with_evidence[0].parents[2]
    assert f"in {folder}" in said
    assert not any((place.folder / "data/own/workspaces").glob("*"))


def test_what_a_task_leaves_comes_back_to_the_run_folder(place: Place) -> None:
    ended = place.ended("tasks")
    assert ended.code == 0, ended.err
    found = [path for path in (place.folder / "data/tasks/artifacts").rglob("done.txt") if path.is_file()]
    assert [path.read_text() for path in found] == ["1\n"]
    (line,) = read_lines(place.folder / "data/tasks/trajectories.jsonl")
    assert line["metadata"]["score"] == 1.0


class Held:
    """A model that calls the terminal once, and answers then: in its own time, or not before it is allowed to."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.seconds = 0.5

    async def answer(self, request: RecordedRequest) -> Reply:
        if request.body["messages"][-1]["role"] == "tool":
            end = time.monotonic() + SECONDS
            while not self.released.is_set() and time.monotonic() < end:
                await asyncio.sleep(0.02)
            return ScriptedResponse(REASONED, delay=self.seconds)
        call = {"name": "terminal", "arguments": json.dumps({"command": "echo seen > note"})}
        calls = [{"id": "call", "type": "function", "function": call}]
        return ScriptedResponse(chat_response(None, tool_calls=calls, reasoning="I look."), delay=self.seconds)


def test_nodes_may_come_and_go(tmp_path: Path, cluster: Cluster) -> None:
    """Each item is in a sandbox, so it would have to begin anew if its node went before it ended."""
    items = 80
    write_prompts(tmp_path / "prompts.jsonl", (f"Case {n}: look." for n in range(items)))
    model, leaving = Held(), cluster.nodes[1]
    with ServerThread(model.answer) as server:
        options = [f"--base_url={server.base_url}", "--model=m", "--api_key=k", "--tools=terminal"]
        words = ["--executor=ray", f"--ray_address={cluster.address}", "--num_workers=6", "--concurrency=1"]
        batch = ["batch", "prompts.jsonl", "--batch_size=10", "--run_name=r", "--sandbox=bubblewrap"]
        with Command(*batch, *options, *words, folder=tmp_path) as command:

            def has_all_worlds() -> bool:
                """Whether each of its nodes executes two items."""
                return [len(list(node.folder.rglob("workspaces/*/workspace/note"))) for node in cluster.nodes] == [
                    2
                ] * 3

            joined = cluster.add()
            assert command.wait_until(has_all_worlds, seconds=SECONDS, pause=0.1)
            cluster.drain(leaving, 60.0)
            model.released.set()
            assert command.wait_until(lambda: not leaving.workers(), seconds=SECONDS, pause=0.1)
            assert len(server.requests) < 2 * items
            assert len(joined.workers()) == 2
            model.seconds = 0.0
            ended = command.wait(SECONDS)
        assert ended.code == 0, ended.err
        assert len(server.requests) == 2 * items
    assert ledger(tmp_path / "data/r")["completed"] == items
    with closing(JournalReader(tmp_path / "data/r")) as reader:
        assert {(row.attempt, row.performances) for row in reader.items()} == {(1, 1)}
    cluster.remove(leaving)


HOLDS = """
'''A tool that ends nothing that it started.'''
import os, pathlib, signal, subprocess


def hold(name: str) -> str:
    '''Hold.'''
    started = subprocess.Popen(["sleep", "600"], start_new_session=True).pid
    forked = os.fork()
    if not forked:
        os.setsid()
        signal.pause()
    notes = pathlib.Path({folder!r})
    (notes / f".{{name}}").write_text(f"{{os.getpid()}} {{started}} {{forked}}")
    (notes / f".{{name}}").rename(notes / name)
    subprocess.run(["sleep", "600"])
    return "done"
"""


def _hold(request: RecordedRequest) -> Reply:
    """A model that calls the tool ``hold``."""
    call = {"name": "hold", "arguments": json.dumps({"name": prompt_of(request)})}
    calls = [{"id": "call", "type": "function", "function": call}]
    return chat_response(None, tool_calls=calls, reasoning="I hold.")


def test_nothing_outlives_a_worker_on_a_node_whatever_dies(tmp_path: Path, cluster: Cluster) -> None:
    """The owner is stopped meanwhile, so that no other worker begins there, which would end what it finds."""
    if len(cluster.nodes) < 2:
        cluster.add().wait()
    (notes := tmp_path / "notes").mkdir()
    (tmp_path / "holds.py").write_text(HOLDS.format(folder=str(notes)))
    write_prompts(tmp_path / "prompts.jsonl", "abcd")
    words = ("--executor=ray", f"--ray_address={cluster.address}", "--num_workers=4", "--concurrency=1")
    with ServerThread(_hold) as server:
        model = (f"--base_url={server.base_url}", "--model=m", "--api_key=k", "--tools=holds.py", "--batch_size=4")
        with Command("batch", "prompts.jsonl", *model, *words, "--run_name=r", folder=tmp_path) as command:
            assert command.wait_until(lambda: len(list(notes.glob("[a-d]"))) == 4, seconds=SECONDS), command.said
            command.send(signal.SIGSTOP)
            killed_worker, killed_actor, killed_both, lost_owner = (
                [int(word) for word in path.read_text().split()] for path in sorted(notes.iterdir())
            )
            actors = {child: pid for node in cluster.nodes for pid in node.actors() for child in children(pid)}
            for victim in (killed_worker[0], actors[killed_actor[0]], actors[killed_both[0]], killed_both[0]):
                with suppress(ProcessLookupError):  # a worker whose actor was killed may be gone already
                    os.kill(victim, signal.SIGKILL)
            assert all_end([*killed_worker, *killed_actor, *killed_both])
            assert all(map(alive, lost_owner))
            command.kill()
            assert all_end(lost_owner)


def all_end(processes: list[int]) -> bool:
    """Whether processes end, within some time."""
    end = time.monotonic() + END_SECONDS
    while any(map(alive, processes)) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(map(alive, processes))


@pytest.mark.parametrize(
    ("sandbox", "victims"),
    [
        ("none", ("worker", "node", "owner", "actor")),
        pytest.param("bubblewrap", ("actor", "owner", "node", "worker"), marks=pytest.mark.slow),
    ],
)
def test_what_is_killed_anywhere_costs_no_more_than_the_calls_in_flight(
    tmp_path: Path, cluster: Cluster, sandbox: str, victims: tuple[Victim, ...]
) -> None:
    if len(cluster.nodes) < 2:
        cluster.add().wait()
    with SimulatedProcess(tmp_path, latency=0.15, latency_jitter=0.1) as server:
        site, work = ClusterSite(tmp_path, server, cluster), ClusterWork(100, sandbox=sandbox, concurrency=6)
        performed = ClusterRound(site, work, victims, random.Random(sandbox), replaces_nodes=False)
        report = performed.perform(len(victims))
    assert report.violations == []
    assert report.kills == len(victims)


def test_what_ray_can_not_reserve_is_named(tmp_path: Path, cluster: Cluster) -> None:
    write_prompts(tmp_path / "d.jsonl", ["one"])
    words = ("--executor=ray", f"--ray_address={cluster.address}", '--ray_resources={"num_gpus": 1.5}')
    ended = run("batch", "d.jsonl", "--model=simulated", "--batch_size=1", "--run_name=r", *words, folder=tmp_path)
    assert ended.code in (1, 2)
    said = one_line(ended)
    assert "Ray starts no workers: GPU resource quantities >1 must be whole numbers" in said
    assert said.endswith("(--ray_resources)")


@pytest.mark.slow
def test_nodes_that_can_not_be_used_get_no_work(tmp_path: Path, cluster: Cluster) -> None:
    """Of one the metadata say that it has another version, one has Ray, but not this package, and one lacks what a tool imports."""
    other = tmp_path / "other/manyhands-9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: manyhands\nVersion: 9.9\n")
    packages = bare_environment(tmp_path / "bare")
    nodes = (
        cluster.add('--resources={"other": 1}', cpus=1, environ={"PYTHONPATH": str(other.parent)}),
        cluster.add('--resources={"bare": 1}', cpus=0, python=str(packages / "bin/python")),
        cluster.add('--resources={"lacking": 1}', cpus=1, environ={"LACKS_A_MODULE": "1"}),
    )
    (tmp_path / "own.py").write_text(LACKING)
    try:
        for node in nodes:
            node.wait()
        write_prompts(tmp_path / "d.jsonl", ["one"])
        with ServerThread() as server:
            model = (f"--base_url={server.base_url}", "--model=m", "--api_key=k", "--quiet", "--tools=own.py")
            for name, why in (
                ("other", "has manyhands 9.9, and this machine"),
                ("bare", "manyhands is not installed on"),
                ("lacking", "No module named 'extra'"),
            ):
                words = ("--executor=ray", f"--ray_address={cluster.address}", "--batch_size=1", f"--run_name={name}")
                resources = f'--ray_resources={{"num_cpus": 0, "{name}": 1}}'
                ended = run("batch", "d.jsonl", *model, *words, resources, folder=tmp_path)
                assert ended.code in (1, 2)
                assert why in one_line(ended)
            assert server.requests == []
        words = ("--executor=ray", f"--ray_address={cluster.address}", "--num_workers=6", "--concurrency=1")
        write_prompts(tmp_path / "six.jsonl", map(str, range(6)))
        items = ("batch", "six.jsonl", "--model=simulated", "--batch_size=6", "--quiet", "--tools=own.py")
        ended = run(*items, *words, "--run_name=mixed", folder=tmp_path, seconds=SECONDS)
        assert ended.code == 0, ended.err
        assert ended.err.count("has manyhands 9.9, and this machine") == 1
    finally:
        for node in nodes:
            cluster.remove(node)


def bare_environment(folder: Path) -> Path:
    """A virtual environment with all that this one has, but this package."""
    venv.create(folder, symlinks=True, with_pip=False)
    for source in map(Path, site.getsitepackages()):
        target = folder / source.relative_to(sys.prefix)
        target.mkdir(parents=True, exist_ok=True)
        for entry in source.iterdir():
            if "manyhands" not in entry.name:
                (target / entry.name).symlink_to(entry)
    return folder


@pytest.mark.slow
def test_a_run_whose_owner_is_lost_goes_on_elsewhere(tmp_path: Path, cluster: Cluster) -> None:
    items, in_flight = 30, 8
    write_prompts(tmp_path / "d.jsonl", (f"Case {n}: look. [simulate: tools=2]" for n in range(items)))
    with SimulatedProcess(tmp_path, latency=0.4) as server:
        model = (f"--base_url={server.base_url}", "--model=simulated", "--tools=todo", "--quiet", "--batch_size=10")
        words = ("--executor=ray", f"--ray_address={cluster.address}", "--num_workers=4", "--concurrency=2")
        with Command("batch", "d.jsonl", *model, *words, "--run_name=r", folder=tmp_path) as command:
            assert command.wait_until(lambda: server.count() > 20, seconds=SECONDS, pause=0.05)
            command.kill()
        elsewhere = tmp_path / "elsewhere"
        shutil.copytree(tmp_path / "data/r", elsewhere)
        resumed = run("resume", str(elsewhere), "--executor=processes", "--quiet", folder=tmp_path)
        assert resumed.code == 0, resumed.err
        assert server.count() <= 3 * items + in_flight
    assert ledger(elsewhere)["completed"] == items


@pytest.mark.slow
def test_of_two_copies_of_a_run_at_once_the_second_is_refused(tmp_path: Path, cluster: Cluster) -> None:
    """Their paths end alike, so that both would have the same folder on a node."""
    if len(cluster.nodes) < 2:  # room for both
        cluster.add().wait()
    write_prompts(tmp_path / "d.jsonl", (f"Case {n}: look." for n in range(4)))
    model = Held()
    model.seconds = 0.0
    run_folder, copy = tmp_path / "one/x/y/r", tmp_path / "two/x/y/r"
    with ServerThread(model.answer) as server:
        options = (f"--base_url={server.base_url}", "--model=m", "--api_key=k", "--tools=terminal", "--batch_size=4")
        words = ("--executor=ray", f"--ray_address={cluster.address}", "--num_workers=2", "--concurrency=2")
        batch = ("batch", "d.jsonl", *options, *words, f"--data_dir={run_folder.parent}", "--run_name=r", "--quiet")
        with Command(*batch, folder=tmp_path) as command:
            assert command.wait_until(lambda: len(server.requests) == 8, seconds=SECONDS), command.said
            command.kill()
        shutil.copytree(run_folder, copy)
        resume = ("--executor=ray", f"--ray_address={cluster.address}", "--quiet")
        environ = {"OPENAI_API_KEY": "k"}
        with Command("resume", str(run_folder), *resume, folder=tmp_path, environ=environ) as command:
            assert command.wait_until(lambda: len(server.requests) == 12, seconds=SECONDS), command.said
            refused = run("resume", str(copy), *resume, folder=tmp_path, environ=environ, seconds=SECONDS)
            assert refused.code in (1, 2)
            said = one_line(refused)
            assert "another copy of this run is being executed there" in said
            assert str(run_folder) in said
            model.released.set()
            ended = command.wait(SECONDS)
        assert ended.code == 0, ended.err
        assert run("resume", str(copy), *resume, folder=tmp_path, environ=environ, seconds=SECONDS).code == 0
    assert ledger(run_folder)["completed"] == ledger(copy)["completed"] == 4


@pytest.mark.slow
def test_a_cluster_may_use_tls(tmp_path: Path) -> None:
    make_certificates(tmp_path, "ours")
    environ = tls_variables(tmp_path, "ours", "ours")
    write_prompts(tmp_path / "d.jsonl", (f"Case {n}: look. [simulate: tools=2]" for n in range(8)))
    with required(), two_nodes(environ) as cluster:
        words = ("--executor=ray", f"--ray_address={cluster.address}", "--num_workers=2", "--concurrency=2")
        batch = ("batch", "d.jsonl", "--model=simulated", "--tools=todo", "--quiet", "--batch_size=10", "--run_name=r")
        ended = run(*batch, *words, folder=tmp_path, environ=environ, seconds=SECONDS)
        assert ended.code == 0, ended.err
        assert ledger(tmp_path / "data/r")["completed"] == 8
        without = run(*batch[:-1], "--run_name=without", *words, folder=tmp_path, seconds=SECONDS)
        assert without.code in (1, 2)
        assert "Ray" in one_line(without)
