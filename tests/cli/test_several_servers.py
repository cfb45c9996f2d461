"""Runs over several servers of one model, and with several keys: real servers, of which one is slow and one dies."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from select import select
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.runs.folders import open_reader
from manyhands.testing.scripted_server import ScriptedServer, chat_response
from tests.support.batches import BatchFolder, ServerThread, run_command
from tests.support.eval_runs import perform_eval
from tests.support.job_folders import JobFolder, reporting
from tests.support.memory_benchmarks import write_configuration
from tests.support.ports import held_port

STARTS_WITHIN = 60.0
TURNS = 9
KEYS = ("first-key-0123456789", "second-key-0123456789")


class Fake:
    """A server in a process of its own, which can be killed and started again at its port."""

    def __init__(self, folder: Path, port: int, name: str, *words: str) -> None:
        self.port, self.log = port, folder / f"{name}.log"
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._command = [sys.executable, "-m", "manyhands", "simulate", f"--port={self.port}", f"--log_file={self.log}"]
        self._command += words
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert self._process.stdout is not None
        assert select([self._process.stdout], [], [], STARTS_WITHIN)[0]
        assert b"simulated model at" in self._process.stdout.readline()

    def kill(self) -> None:
        if self._process is not None:
            end(self._process)

    @property
    def requests(self) -> int:
        return len(self.log.read_text(encoding="utf-8").splitlines()) if self.log.exists() else 0


def end(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


@contextmanager
def fakes(folder: Path) -> Iterator[list[Fake]]:
    latencies = {"fast": 0.03, "slow": 0.5, "dying": 0.03}
    with ExitStack() as stack:
        started = [
            Fake(folder, stack.enter_context(held_port()), name, f"--latency={latency}")
            for name, latency in latencies.items()
        ]
        for fake in started:
            stack.callback(fake.kill)
            fake.start()
        yield started


ITEMS, IN_FLIGHT = 70, 6


@pytest.mark.slow
def test_three_servers_of_which_one_is_slow_and_one_dies(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, [f"[simulate: tools={TURNS}] prompt {number}" for number in range(ITEMS)])
    with fakes(tmp_path) as (fast, slow, dying), ExitStack() as stack:
        words = ["batch", "--dataset_file=d.jsonl", "--batch_size=10", "--run_name=r", "--distribution=terminal_only"]
        words += [f"--base_url={fake.url}" for fake in (fast, slow, dying)]
        words += ["--sandbox=local", "--num_workers=2", f"--concurrency={IN_FLIGHT // 2}", "--model=simulated"]
        run = subprocess.Popen(
            [sys.executable, "-m", "manyhands", *words],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        stack.callback(end, run)
        wait_for(lambda: dying.requests >= 8)
        dying.kill()
        at_death = dying.requests
        wait_for(lambda: out_since(tmp_path, dying.url))
        dying.start()
        printed, _ = run.communicate(timeout=90)
        assert run.returncode == 0, printed
        assert dying.requests > at_death, "it was tried again, and used"
    assert f"{dying.url} is left out" in printed
    assert f"{dying.url} answers again after" in printed
    lines = folder.lines()
    assert len(lines) == ITEMS
    assert all(line["completed"] for line in lines)
    places = places_of(tmp_path)
    moved = [number for number, used in places.items() if len(set(used)) > 1]
    assert 0 < len(moved) <= IN_FLIGHT, "only conversations of the dead one moved"
    assert all(dying.url in places[number] for number in moved)
    counted = Counter(used[0] for used in places.values())
    assert counted[slow.url] < counted[fast.url] / 2
    requests, steps = sum(fake.requests for fake in (fast, slow, dying)), sum(map(len, places.values()))
    assert requests - steps <= IN_FLIGHT, "no more calls were paid twice than were in flight"
    status = json.loads(run_command(tmp_path, "status", "r", "--json").out)
    assert [each["replica"] for each in status["replicas"]] == [fast.url, slow.url, dying.url]
    assert sum(each["answered"] for each in status["replicas"]) == steps
    shown = run_command(tmp_path, "status", "r").out
    assert "Replicas" in shown
    item = run_command(tmp_path, "show", "r", "1").out
    assert item.count("answered by") == TURNS + 1
    assert places[1][0] in item


def wait_for(condition: Any, seconds: float = 30.0) -> None:
    latest = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < latest
        time.sleep(0.05)


def out_since(folder: Path, url: str) -> bool:
    replicas = json.loads(run_command(folder, "status", "r", "--json").out)["replicas"]
    return any(each["replica"] == url and each["out_since"] for each in replicas)


def places_of(folder: Path) -> dict[int, list[str]]:
    """Where each item's answers came from, in order."""
    found: dict[int, list[str]] = defaultdict(list)
    with closing(open_reader(folder / "data" / "r")) as reader:
        for row in reader.items():
            for step in reader.steps(row.number, row.attempt):
                if step.kind == "model":
                    found[row.number].append(step.output["extra"]["address"])
    return found


def test_a_run_goes_on_with_other_addresses(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path)
    with ServerThread() as one, ServerThread() as two:
        started = folder.batch(f"--base_url={one.base_url}", "--max_samples=1")
        assert started.code == 0
        again = folder.batch(f"--base_url={two.base_url}", f"--base_url={one.base_url}", "--resume")
        assert again.code == 0, again.err
        assert len(folder.lines()) == 3
        assert len(one.requests) + len(two.requests) == 3


def authorizations(*servers: ServerThread | ScriptedServer) -> list[set[str]]:
    return [{request.headers["Authorization"].removeprefix("Bearer ") for request in each.requests} for each in servers]


def test_keys_by_position_are_in_no_file(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, [f"prompt {number}" for number in range(8)])
    with ServerThread() as one, ServerThread() as two:
        words = [f"--base_url={one.base_url},{two.base_url}", *(f"--api_key={key}" for key in KEYS)]
        ran = folder.batch(*words, "--executor=processes", "--num_workers=2", "--concurrency=2", "--verbose")
        assert ran.code == 0, ran.err
        assert authorizations(one, two) == [{KEYS[0]}, {KEYS[1]}]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files for key in KEYS if key.encode() in path.read_bytes()]
    assert not any(key in text for key in KEYS for text in (ran.out, ran.err))


def test_headers_go_to_each_address_beside_its_key(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, [f"prompt {number}" for number in range(8)])
    secret = "of-the-gateway-0123456789"
    with ServerThread() as one, ServerThread() as two:
        words = [f"--base_url={one.base_url}", f"--base_url={two.base_url}", *(f"--api_key={key}" for key in KEYS)]
        words += ["--header=X-Team: mine", f"--header=X-Gateway-Key: {secret}", "--num_workers=2", "--concurrency=2"]
        ran = folder.batch(*words, "--executor=processes")
        assert ran.code == 0, ran.err
        assert authorizations(one, two) == [{KEYS[0]}, {KEYS[1]}]
        sent = [(each.headers["X-Team"], each.headers["X-Gateway-Key"]) for each in (*one.requests, *two.requests)]
        assert sent == [("mine", secret)] * 8
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    with closing(open_reader(folder.run())) as reader:
        recorded = reader.meta("spec")["options"]
    assert recorded["recorded_headers"] == ["X-Team", "X-Gateway-Key"]
    assert recorded["base_url"] == [one.base_url, two.base_url]


def test_keys_that_do_not_go_with_the_addresses(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path)
    words = ["--base_url=http://127.0.0.1:9/v1,http://127.0.0.1:10/v1", *(f"--api_key={key}" for key in (*KEYS, "x"))]
    ran = folder.batch(*words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.strip().endswith("--api_key: 3 keys for 2 addresses: give one key, or one for each address in order")
    assert not folder.run().exists()
    missing = folder.batch("--base_url=@none.txt")
    assert missing.code == 2
    assert "none.txt: No such file or directory" in missing.err


def test_a_run_over_a_file_of_addresses(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, [f"prompt {number}" for number in range(8)])
    with ServerThread() as one, ServerThread() as two:
        (tmp_path / "servers.txt").write_text(f"# ours\n{one.base_url}\n{two.base_url}\n")
        ran = folder.batch("--base_url=@servers.txt", "--num_workers=1", "--concurrency=2")
        assert ran.code == 0, ran.err
        assert len(one.requests) == len(two.requests) == 4
    with closing(open_reader(folder.run())) as reader:
        assert reader.meta("spec")["options"]["base_url"] == f"@{tmp_path}/servers.txt"


def test_a_job_over_two_servers_and_keys_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANYHANDS_API_KEYS", ", ".join(KEYS))
    answer = reporting({"said": "yes"})
    with JobFolder(tmp_path, ["a", "b", "c", "d"]) as folder, ServerThread(answer) as one, ServerThread(answer) as two:
        ended = folder.spawn(f"--base_url={one.base_url}", f"--base_url={two.base_url}", "--max_concurrency=2")
        assert ended.code == 0, ended.err
        assert authorizations(one, two) == [{KEYS[0]}, {KEYS[1]}]
        assert folder.status()["completed_items"] == 4


async def test_a_target_with_lists_of_servers_and_keys(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"ONE_KEY={KEYS[0]}\nTWO_KEY={KEYS[1]}\n")
    replies = [chat_response("said so")]
    async with ScriptedServer(replies) as one, ScriptedServer(replies) as two, ScriptedServer(replies) as three:
        (tmp_path / "servers.txt").write_text(f"{three.base_url}\n")
        by_list = {"provider": "model", "model": "m", "base_url": [one.base_url, two.base_url]}
        keys = {"api_key": ["${{ ONE_KEY }}", "${{ TWO_KEY }}"]}
        suite = {
            "targets": {
                "list": {**by_list, **keys},
                "file": {"provider": "model", "model": "m", "base_url": "@servers.txt"},
            },
            "execution": {"targets": ["list", "file"]},
            "tests": [{"id": name, "criteria": "c", "input": name} for name in "abcdef"],
            "assert": [{"type": "contains", "value": "said so"}],
        }
        (tmp_path / "suite.yaml").write_text(json.dumps(suite))
        run = await perform_eval(tmp_path)
        assert {each["status"] for each in run.records()} == {"passed"}
        assert authorizations(one, two) == [{KEYS[0]}, {KEYS[1]}]
        assert len(one.requests) + len(two.requests) == len(three.requests) == 6


async def test_a_literal_key_in_a_list_is_refused(tmp_path: Path) -> None:
    target = {"provider": "model", "model": "m", "base_url": "http://h/v1", "api_key": ["${{ ONE_KEY }}", KEYS[0]]}
    suite = {"targets": {"t": target}, "tests": [{"id": "a", "criteria": "c", "input": "i"}]}
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    with pytest.raises(UserError, match="must be a variable of the environment") as caught:
        await perform_eval(tmp_path)
    assert KEYS[0] not in str(caught.value)


def test_a_memory_benchmark_over_two_servers(tmp_path: Path) -> None:
    configuration = write_configuration(tmp_path, ("colours",))
    with ServerThread([chat_response("ok")]) as one, ServerThread([chat_response("ok")]) as two:
        words = ["memory", "run", "-c", str(configuration), "-a", "m", "-y", f"--data_dir={tmp_path}/data"]
        ran = run_command(tmp_path, *words, f"--base_url={one.base_url}", f"--base_url={two.base_url}")
        assert ran.code == 0, ran.err
        assert bool(one.requests) != bool(two.requests), "it is one conversation"


def test_a_judge_of_trajectories_at_servers_in_a_file_beside_its_own(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, ["one"])
    (tmp_path / "grading").mkdir()
    verdict = chat_response(json.dumps({"checks": {"rubric-1": {"satisfied": True, "reasoning": "It is."}}}))
    with ServerThread() as server, ServerThread([verdict]) as judge:
        (tmp_path / "grading" / "servers.txt").write_text(f"{judge.base_url}\n")
        (tmp_path / "grading" / "checks.yaml").write_text(
            "judge: {base_url: '@servers.txt', model: j}\nassert: [{type: rubrics, rubrics: [It is done.]}]\n"
        )
        ran = folder.batch(f"--base_url={server.base_url}", "--grade=grading/checks.yaml")
        assert ran.code == 0, ran
        assert len(judge.requests) == 1
    assert [line["metadata"]["score"] for line in folder.lines()] == [1.0]
