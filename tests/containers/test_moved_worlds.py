"""Runs that are killed, exported, moved, and continued at another engine."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from tests.containers.test_run_worlds import working
from tests.support.batches import run_command, without_times
from tests.support.engines import Engine

CHANGE = (
    "mkdir /root/d && cd /root/d && echo text >file && ln file hard && ln -s /etc/shadow link && chown 1000:7 file "
    "&& chmod 4750 file && touch $'n\\377me' && mkfifo pipe "
    "&& rm -r /home/tester /opt/tool && mkdir -m 711 /home/tester && export word=kept"
)
LOOK = (
    "echo $(pwd) $word $(stat -c '%n %F %a %u %g %h' file hard link pipe) $(cat file) $(readlink link) $(ls -b) "
    "$(ls -A /home /home/tester /opt) $(stat -c %a /home/tester) $(cat /root/n 2>/dev/null)"
)


def _moved(
    path: Path,
    engines: tuple[Engine, Engine],
    monkeypatch: pytest.MonkeyPatch,
    prompts: list[str],
    image: str,
) -> None:
    """Kill a run in the middle at the first engine, and end it at the second one."""
    first, second = engines
    with working(path, first, monkeypatch) as work:
        work.folder.write_rows([{"prompt": prompt, "image": image} for prompt in prompts])
        work.batch("undisturbed", f"--sandbox={first.kind}")
        calls = len(work.server.requests)
        work.agent.gate.clear()
        work.agent.waiting = 0
        with work.began() as command:
            work.until(lambda: work.agent.waiting >= len(prompts) or not command.running)
            early = run_command(work.folder.path, "worlds", "export", "data/r")
            assert (early.code, "this run is being executed by process" in early.err) == (2, True), early
            command.kill()
        ran = run_command(work.folder.path, "worlds", "export", "data/r")
        assert ran.code == 0, ran
        assert f"{len(prompts)} worlds exported to data/r/worlds, " in ran.out
        work.agent.gate.set()
        (path / "elsewhere").mkdir()
        moved = work.folder.run().rename(path / "elsewhere" / "r")
        _check_archive(moved / "worlds" / "1-1.tar")
        _take(first, second, path, monkeypatch)
        ran = run_command(path, "resume", str(moved), "--quiet")
        assert ran.code == 0, ran
        assert f"{len(prompts)} unfinished items go on from their exported worlds" in ran.err
        lines = [json.loads(line) for line in (moved / "trajectories.jsonl").read_text().splitlines()]
        undisturbed = work.folder.lines(name="undisturbed")
        assert list(map(without_times, lines)) == list(map(without_times, undisturbed))
        assert [line["metadata"]["attempt"] for line in lines] == [1] * len(prompts)
        assert "kept file regular file 4750 1000 7 2 hard" in lines[0]["conversations"][-1]["value"]
        assert len(work.server.requests) - calls <= calls + len(prompts)  # those in flight
        assert not (moved / "worlds").exists()
        assert "/elsewhere/r/" not in second.client("ps", "-a", "--format", "{{.Labels}}")


def _check_archive(path: Path) -> None:
    assert path.stat().st_size < 1_000_000  # nothing of the image is in it
    with tarfile.open(path) as archive:
        assert archive.getnames()[0] == "world.json"


def _take(first: Engine, second: Engine, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on another machine: the first engine is not there."""
    nobody = f"unix://{path}/nobody.sock"
    for name in first.environment:
        monkeypatch.setenv(name, nobody)
    for name, value in second.environment.items():
        monkeypatch.setenv(name, value)


def test_a_run_is_killed_with_docker_and_goes_on_with_podman(
    tmp_path: Path, docker_engine: Engine, podman_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = docker_engine.pushed("moved:1", docker_engine.full)
    prompts = [f"{CHANGE}\n{LOOK}", "cd /opt; echo 2 >/root/n\necho $(pwd) $(cat /root/n)"]
    _moved(tmp_path, (docker_engine, podman_engine), monkeypatch, prompts, image)


@pytest.mark.slow
def test_a_run_is_killed_with_podman_and_goes_on_with_docker(
    tmp_path: Path, docker_engine: Engine, podman_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an image that no registry has: the same content has the same id at both."""
    saved = tmp_path / "saved.tar"
    docker_engine.client("save", "-o", str(saved), docker_engine.full)
    podman_engine.client("load", "-i", str(saved))
    image = docker_engine.client("image", "inspect", "--format", "{{.Id}}", docker_engine.full).strip()
    prompts = [f"{CHANGE}\n{LOOK}", "cd /opt; echo 2 >/root/n\necho $(pwd) $(cat /root/n)"]
    _moved(tmp_path, (podman_engine, docker_engine), monkeypatch, prompts, image)


@pytest.mark.slow
def test_a_command_that_was_cut_off_leaves_nothing_at_the_other_engine(
    tmp_path: Path, docker_engine: Engine, podman_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = docker_engine.pushed("moved:2", docker_engine.full)
    with working(tmp_path, docker_engine, monkeypatch) as work:
        prompt = f"{CHANGE}; touch /root/n\necho x >>/root/n; rm -r /root/d; sleep 20\ncd; cat n"
        work.folder.write_rows([{"prompt": prompt, "image": image}])
        with work.began() as command:
            work.until(lambda: len(work.server.requests) >= 2 or not command.running)
            (container,) = work.containers()
            work.until(lambda: "x" in work.engine.client("exec", container, "cat", "/root/n"))
            command.kill()
        ran = run_command(work.folder.path, "worlds", "export", "data/r")
        assert (ran.code, "1 world exported" in ran.out) == (0, True), ran
        calls = len(work.server.requests)
        _take(docker_engine, podman_engine, tmp_path, monkeypatch)
        ran = run_command(tmp_path, "resume", "data/r", "--quiet")
        assert ran.code == 0, ran
        assert work.answers()[0].split() == ["x"]
        assert work.folder.lines()[0]["metadata"]["attempt"] == 1
        assert len(work.server.requests) == calls + 2
