"""Runs whose items work in containers: their images, and what becomes of the containers when items end, runs are killed or moved."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from manyhands.testing.scripted_server import RecordedRequest, Reply, chat_response
from tests.support.batches import BatchFolder, Ran, ServerThread, prompt_of, run_command
from tests.support.commands import Command, Ended
from tests.support.engines import Engine

WORDS = ("--dataset_file=d.jsonl", "--batch_size=2", "--distribution=terminal_only", "--quiet", "--model=m")


def _call(command: str) -> Reply:
    function = {"name": "terminal", "arguments": json.dumps({"command": command})}
    return chat_response(None, reasoning="so", tool_calls=[{"id": "c", "type": "function", "function": function}])


class Agent:
    """Runs the commands of its prompt, one a line, and answers with all that they printed. ``gate``: what it waits for before it asks for
    the last one."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = 0

    async def __call__(self, request: RecordedRequest) -> Reply:
        done = [message for message in request.body["messages"] if message["role"] == "tool"]
        commands = prompt_of(request).split("\n")
        if len(done) < len(commands):
            if len(done) == len(commands) - 1:
                self.waiting += 1
                while not self.gate.is_set():
                    await asyncio.sleep(0.05)
            return _call(commands[len(done)])
        return chat_response(
            " ".join(str(json.loads(message["content"])["output"]) for message in done), reasoning="so"
        )


class Work:
    def __init__(self, path: Path, engine: Engine, server: ServerThread, agent: Agent) -> None:
        self.folder = BatchFolder(path, [])
        self.engine = engine
        self.server = server
        self.agent = agent

    def words(self, name: str, *more: str) -> list[str]:
        return ["batch", *WORDS, f"--base_url={self.server.base_url}", f"--run_name={name}", *more]

    def batch(self, name: str = "r", *more: str, code: int = 0) -> Ran:
        ran = run_command(
            self.folder.path, *self.words(name, "--executor=local", "--concurrency=8", "--num_workers=1", *more)
        )
        assert ran.code == code, ran
        return ran

    def began(self, *more: str) -> Command:
        return Command(*self.words("r", "--num_workers=2", "--concurrency=2", *more), folder=self.folder.path)

    def answers(self, name: str = "r") -> list[str]:
        return [
            line["conversations"][-1]["value"].split("</think>")[-1].strip() for line in self.folder.lines(name=name)
        ]

    def containers(self, *more: str) -> list[str]:
        """Those of runs in this folder."""
        text = self.engine.client("ps", "-a", *more, "--format", "{{.ID}} {{.Labels}}")
        found = [(line, re.search(r"manyhands\.folder[=:]([^ ,\]]+)", line)) for line in text.splitlines()]
        own = str(self.folder.path)
        return [line.split()[0] for line, folder in found if folder is not None and folder[1].startswith(own)]

    def snapshots(self) -> list[str]:
        found: list[str] = []
        text = '{{.ID}} {{index .Config.Labels "manyhands.folder"}}'
        for each in dict.fromkeys(self.engine.client("images", "-aq", "--filter", "label=manyhands.folder").split()):
            with suppress(AssertionError):  # another test's may be gone by now
                found += self._of_folder("image", "inspect", "--format", text, each)
        return found

    def _of_folder(self, *words: str) -> list[str]:
        lines = [line.partition(" ") for line in self.engine.client(*words).splitlines()]
        return [found for found, _, folder in lines if folder.startswith(str(self.folder.path))]

    def until(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.05)


@contextmanager
def working(path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    for name, value in engine.environment.items():
        monkeypatch.setenv(name, value)
    agent = Agent()
    with ServerThread(agent) as server:
        made = Work(path, engine, server, agent)
        yield made
        agent.gate.set()
        for container in made.containers():
            engine.client("rm", "-f", container)
        for image in made.snapshots():
            engine.client("rmi", "-f", image)


@pytest.fixture
def work(tmp_path: Path, docker_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    with working(tmp_path, docker_engine, monkeypatch) as made:
        yield made


def _rows(image: str | None, *prompts: str) -> list[dict[str, Any]]:
    return [{"prompt": prompt, **({} if image is None else {"image": image})} for prompt in prompts]


def test_both_kinds_of_items_in_one_run_share_nothing_and_leave_nothing(work: Work) -> None:
    image = work.engine.full
    look = "cat /root/made made 2>/dev/null; touch /root/made; echo $(own-tool)"
    work.folder.write_rows(
        [*_rows(image, f"echo first >/root/made\n{look}", look), *_rows(None, "own-tool || echo host")]
    )
    work.batch()
    first, second, plain = (each.split() for each in work.answers())
    assert (first, second, plain[-1]) == (["first", "own"], ["own"], "host")
    # Tomorrow's run of the same rows sees nothing of today's.
    work.folder.write_rows(_rows(image, look, look))
    work.batch("tomorrow", "--keep_workspaces")
    assert [each.split() for each in work.answers("tomorrow")] == [["own"], ["own"]]
    assert len(work.containers()) == 2  # those that were to be kept
    again = run_command(work.folder.path, "worlds", "prune", "data/tomorrow", "--yes")
    assert again.code == 0, again
    assert (work.containers(), work.snapshots()) == ([], [])


def test_a_killed_run_goes_on_in_its_worlds_and_leaves_nothing(work: Work) -> None:
    rows = _rows(work.engine.full, *(f"echo {number} >/root/n\necho x >>/root/n\ncat /root/n" for number in range(4)))
    work.folder.write_rows(rows)
    work.agent.gate.clear()
    with work.began("--sandbox=docker") as command:
        work.until(lambda: work.agent.waiting >= 4 or not command.running)
        command.kill()
    assert len(work.containers()) == 4
    # A container of a run that is no run of ours stays.
    label = f"manyhands.folder={work.folder.path}/data/other/workspaces/1-1"
    other = work.engine.client("create", "--label", "manyhands.run=b.1", "--label", label, work.engine.bare, "sh")
    work.agent.gate.set()
    work.folder.run().rename(work.folder.run("moved"))
    ran = run_command(work.folder.path, "resume", "data/moved", "--quiet")
    assert ran.code == 0, ran
    assert [each.split() for each in work.answers("moved")] == [["0", "x"], ["1", "x"], ["2", "x"], ["3", "x"]]
    assert [line["metadata"]["attempt"] for line in work.folder.lines(name="moved")] == [1, 1, 1, 1]
    assert [each[:12] for each in work.containers()] == [other[:12]]
    work.engine.client("rm", other.strip())
    assert work.snapshots() == []


def test_ctrl_c_keeps_the_worlds_of_unfinished_items_and_counts_them(work: Work) -> None:
    work.folder.write_rows(_rows(work.engine.full, "echo 1 >/root/n\ncat /root/n", "echo 2 >/root/n\ncat /root/n"))
    work.agent.gate.clear()
    with work.began("--sandbox=docker") as command:
        work.until(lambda: work.agent.waiting >= 2 or not command.running)
        command.interrupt(signal.SIGINT)
        time.sleep(0.3)
        command.interrupt(signal.SIGINT)
        ended: Ended = command.wait()
    assert "2 worlds kept, " in ended.err, ended
    assert len(work.containers()) == 2
    assert work.containers("--filter", "status=running") == []
    listed = run_command(work.folder.path, "worlds", "list", "--json")
    (first, second) = [each for each in json.loads(listed.out) if each["folder"] == str(work.folder.run())]
    assert (first["run"], first["item"], first["attempt"], first["kind"], first["state"]) == (
        "r",
        1,
        1,
        "docker",
        "stopped",
    )
    assert second["size"] > 0
    # Items whose worlds are at another engine begin anew, and that is said.
    for path in (work.folder.run() / "workspaces").glob("*/world.json"):
        noted = json.loads(path.read_bytes())
        path.write_text(json.dumps({**noted, "identity": "another engine"}))
    work.agent.gate.set()
    ran = run_command(work.folder.path, "resume", "data/r", "--quiet")
    assert ran.code == 0, ran
    assert "2 unfinished items have their worlds in another engine" in ran.err
    assert sorted(each.split() for each in work.answers()) == [["1"], ["2"]]
    assert (work.containers(), work.snapshots()) == ([], [])


@pytest.mark.slow
def test_where_docker_does_not_answer_items_with_an_image_are_podmans(
    tmp_path: Path, podman_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    with working(tmp_path, podman_engine, monkeypatch) as work:
        look = "cat /root/made 2>/dev/null; touch /root/made; echo $(own-tool)"
        rows = [*_rows(podman_engine.full, f"echo first >/root/made\n{look}", look), *_rows(None, "echo plain")]
        work.folder.write_rows(rows)
        work.batch()
        assert [each.split() for each in work.answers()] == [["first", "own"], ["own"], ["plain"]]
        assert (work.containers(), work.snapshots()) == ([], [])


@pytest.mark.slow
def test_worlds_of_runs_that_are_gone_are_pruned_and_no_others(work: Work) -> None:
    def prune(*words: str) -> tuple[int, str, str]:
        ran = run_command(work.folder.path, "worlds", "prune", "--sandbox=docker", *words)
        return ran.code, ran.out, ran.err

    work.folder.write_rows(_rows(work.engine.full, "echo 1 >made"))
    work.batch("gone", "--keep_workspaces")
    work.batch("there", "--keep_workspaces")
    code, out, err = prune()
    assert (code, err) == (0, "")
    assert re.fullmatch(
        r"nothing to remove: no run whose folder is gone has worlds; \d+ worlds of other runs have not been touched\n",
        out,
    )
    shutil.rmtree(work.folder.run("gone"))
    assert prune() == (
        2,
        "",
        "manyhands: error: remove 1 world of data/gone from docker? Nobody can be asked here; --yes answers\n",
    )
    ours, theirs = pty.openpty()
    os.write(ours, b"n\n")
    words = [sys.executable, "-m", "manyhands", "worlds", "prune", "--sandbox=docker"]
    asked = subprocess.run(words, stdin=theirs, capture_output=True, text=True, cwd=work.folder.path, timeout=60)
    os.close(ours)
    os.close(theirs)
    assert asked.stdout == "remove 1 world of data/gone from docker? [y/N] nothing was removed\n"
    assert len(work.containers()) == 2
    assert prune("--yes") == (0, "removed from docker: 1 world of data/gone\n", "")
    assert len(work.containers()) == 1
    ran = run_command(work.folder.path, "worlds", "export", "data/there")  # of which no item goes on
    assert (ran.code, ran.out) == (0, "0 worlds exported to data/there/worlds\n"), ran
    assert prune("there", "--yes") == (0, "removed from docker: 1 world of data/there\n", "")
    assert prune("there")[1].startswith("nothing to remove: there has no worlds")


# --- Images


class CountingRegistry(socketserver.ThreadingTCPServer):
    """Hands on to the registry what comes, and counts the layers that are fetched, each after some time."""

    daemon_threads = True

    def __init__(self, registry: str) -> None:
        self.registry = registry
        self.layers: Counter[bytes] = Counter()
        super().__init__(("127.0.0.1", 0), _HandOn)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _HandOn(socketserver.BaseRequestHandler):
    server: CountingRegistry

    def handle(self) -> None:
        host, port = self.server.registry.split(":")
        with socket.create_connection((host, int(port))) as registry:
            back = threading.Thread(target=_copy, args=(registry, self.request, lambda data: None), daemon=True)
            back.start()
            _copy(self.request, registry, self._count)
            back.join(5)

    def _count(self, data: bytes) -> None:
        fetched = re.findall(rb"GET /v2/[^ ]*/blobs/([^ ]*)", data)
        self.server.layers.update(fetched)
        time.sleep(0.3 * len(fetched))


def _copy(source: socket.socket, target: socket.socket, look: Callable[[bytes], None]) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            look(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def _counting(registry: str) -> Iterator[CountingRegistry]:
    with CountingRegistry(registry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_sixteen_items_wait_for_one_pull(work: Work) -> None:
    assert work.engine.registry is not None
    container = work.engine.client("create", work.engine.bare, "sh").strip()
    work.engine.client("cp", __file__, f"{container}:/waited")
    work.engine.client("commit", container, "waited:1")
    work.engine.client("rm", container)
    work.engine.pushed("waited:1", "waited:1")
    work.engine.client("rmi", "waited:1")
    with _counting(work.engine.registry) as registry:
        reference = f"{registry.address}/waited:1"
        work.folder.write_rows(_rows(reference, *["echo here"] * 16))
        words = work.words("r", "--num_workers=2", "--concurrency=8", "--sandbox=docker")
        ran = run_command(work.folder.path, *words)
        assert ran.code == 0, ran
        assert [each.strip() for each in work.answers()] == ["here"] * 16
        # The configuration, which the look-up reads as well, and the layer that is not here.
        assert sorted(registry.layers.values()) == [1, 2]
        work.engine.client("rmi", "-f", *work.engine.client("images", "-q", f"{registry.address}/waited").split())


@pytest.mark.slow
def test_a_tag_that_moves_between_start_and_resume(work: Work) -> None:
    reference = work.engine.pushed("moving:1", work.engine.bare)
    work.folder.write_rows(_rows(reference, "own-tool 2>/dev/null || echo bare"))
    work.batch("r", "--sandbox=docker")
    status = run_command(work.folder.path, "status", "data/r")
    pinned = re.search(rf"sandbox docker, made of {re.escape(reference)} \((sha256:[0-9a-f]{{64}})\)", status.out)
    assert pinned is not None, status.out
    shown = run_command(work.folder.path, "show", "data/r", "1")
    assert f"sandbox: docker, image {reference} ({pinned[1]})" in shown.out
    assert work.engine.pushed("moving:1", work.engine.full) == reference
    work.folder.write_rows(_rows(reference, *["own-tool 2>/dev/null || echo bare"] * 2))
    work.batch("r", "--sandbox=docker", "--resume")
    assert [each.strip() for each in work.answers()] == ["bare", "bare"]


def test_images_that_do_not_exist_refuse_the_run_before_any_call(work: Work) -> None:
    assert work.engine.registry is not None
    images = [work.engine.bare] * 50
    for row in (4, 17, 31):
        images[row - 1] = f"{work.engine.registry}/nowhere:1"
    work.folder.write_rows([{"prompt": f"p{number}", "image": image} for number, image in enumerate(images)])
    ran = work.batch("r", code=2)
    assert f"3 rows whose image does not exist: {work.engine.registry}/nowhere:1 (rows 4, 17, 31)" in ran.err
    assert work.server.requests == []
    assert not work.folder.run().exists()
