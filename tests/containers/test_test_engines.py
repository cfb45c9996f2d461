"""The engines that tests start: they run what tests need, are shared, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.engine_keeper import belonging
from tests.support.engines import Engine, started

ROOT = Path(__file__).resolve().parents[2]


def _works(engine: Engine) -> None:
    run = ("run", "--rm", "--network", "none")
    assert (
        engine.client(*run, engine.full, "bash", "-c", "own-tool; python3 -c 'import ssl, sqlite3; print(1)'")
        == "own\n1\n"
    )
    assert engine.client(*run, engine.bare, "sh", "-c", "echo $((1 + 1))") == "2\n"


def test_docker_runs_both_images(docker_engine: Engine) -> None:
    _works(docker_engine)


def test_podman_runs_both_images(podman_engine: Engine) -> None:
    _works(podman_engine)


@pytest.mark.slow
def test_rootless_podman_runs_both_images(rootless_podman_engine: Engine) -> None:
    _works(rootless_podman_engine)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["docker", "podman", "rootless"])
def test_an_engine_ends_with_its_last_user_however_that_ends(kind: str, tmp_path: Path) -> None:
    code = f"""
import subprocess, sys, time
from pathlib import Path
from tests.support.engines import Engine, started
with started({kind!r}, Path({str(tmp_path)!r})) as state:
    engine = Engine("docker" if {kind!r} == "docker" else "podman", state["host"])
    engine.client("run", "-d", "--network", "none", engine.full, "sleep", "1000")
    print(engine.socket.parent, flush=True)
    time.sleep(1000)
"""
    user = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT)
    assert user.stdout is not None
    folder = Path(user.stdout.readline().decode().strip())
    assert folder.is_dir()
    assert len(belonging(folder)) > 2
    with started(kind, tmp_path):
        os.kill(user.pid, signal.SIGKILL)
        user.wait()
        time.sleep(0.5)
        assert folder.is_dir()
    deadline = time.monotonic() + 30
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not folder.exists()
    assert belonging(folder) == []
    assert str(folder) not in Path("/proc/self/mounts").read_text()
