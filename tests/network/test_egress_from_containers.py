"""Commands in a container reach what is listed, and nothing else: the cases of other sandboxes, and what only containers have."""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from manyhands.network.counts import HostCounts
from manyhands.sandboxes.containers.addresses import can_enter_worlds
from manyhands.sandboxes.containers.driver import ContainerDriver
from manyhands.sandboxes.protocol import Sandbox, SandboxLimits, SandboxRequest
from manyhands.sandboxes.remote.backend import RemoteBackend
from tests.attacks.ordinary_user import ordinary_user
from tests.network.egress_cases import CASES, RULES, Case
from tests.network.outside_web import OutsideWeb, outside_web
from tests.support.engine_keeper import ROOTLESS_USER
from tests.support.engines import Engine

pytestmark = pytest.mark.timeout(300)


@asynccontextmanager
async def container(
    engine: Engine, folder: Path, web: OutsideWeb, counts: HostCounts | None = None
) -> AsyncIterator[Sandbox]:
    driver = ContainerDriver(engine.kind, engine.host)
    backend = RemoteBackend(driver, look_up=web.names.look_up)
    request = SandboxRequest(
        folder,
        "egress",
        image=engine.full,
        environment=web.variables,
        limits=SandboxLimits(network_allow=RULES),
        hosts=counts,
    )
    try:
        sandbox = await backend.create(request)
        try:
            yield sandbox
        finally:
            await sandbox.close()
            for world in await driver.listed({"manyhands.folder": str(folder)}):
                await driver.delete(world.id)
    finally:
        await backend.close()


async def perform(engine: Engine, folder: Path, cases: tuple[Case, ...] = CASES) -> None:
    """All cases, in one container."""
    async with outside_web(folder) as web, container(engine, folder / "box", web) as sandbox:
        for case in cases:
            web.allowed.connections = 0
            result = await sandbox.shell(case.command, timeout=60)
            web.check(case, result.output.decode())


async def test_from_docker(docker_engine: Engine, tmp_path: Path) -> None:
    await perform(docker_engine, tmp_path)


@pytest.mark.slow
async def test_from_podman(podman_engine: Engine, tmp_path: Path) -> None:
    await perform(podman_engine, tmp_path)


@pytest.mark.slow
async def test_from_rootless_podman(rootless_podman_engine: Engine, tmp_path: Path) -> None:
    await perform(rootless_podman_engine, tmp_path)


async def test_a_container_that_was_started_anew_reaches_the_same(docker_engine: Engine, tmp_path: Path) -> None:
    counts = HostCounts()
    async with outside_web(tmp_path) as web, container(docker_engine, tmp_path / "box", web, counts) as sandbox:
        await sandbox.shell("export KEPT=1", timeout=20)
        name = docker_engine.client("ps", "--quiet", "--filter", f"label=manyhands.folder={tmp_path / 'box'}").strip()
        docker_engine.client("kill", name)
        for _ in range(2):
            result = await sandbox.shell("curl -sS -m 5 http://files.example:$ALLOWED/", timeout=30)
        assert result.output.startswith(b"allowed: GET /"), result.output
    assert counts.to_json()["files.example"]["allowed"] in (1, 2)


async def test_without_hosts_a_container_has_no_proxy(docker_engine: Engine, tmp_path: Path) -> None:
    driver = ContainerDriver(docker_engine.kind, docker_engine.host)
    backend = RemoteBackend(driver)
    try:
        sandbox = await backend.create(SandboxRequest(tmp_path / "box", "egress", image=docker_engine.full))
        try:
            result = await sandbox.shell("env | grep -ci proxy; cat /proc/net/tcp | wc -l", timeout=20)
            assert result.output == b"0\n1\n"
        finally:
            await sandbox.close()
            for world in await driver.listed({"manyhands.folder": str(tmp_path / "box")}):
                await driver.delete(world.id)
    finally:
        await backend.close()


_AS_OWNER = """
import asyncio, sys
from manyhands.network.egress import Egress

async def main():
    egress = Egress(("127.0.0.2",))
    await egress.open(int(sys.argv[1]))
    print("listening", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="starts processes as somebody else")
async def test_an_ordinary_user_serves_the_containers_of_their_own_engine(
    rootless_podman_engine: Engine, tmp_path: Path
) -> None:
    """Their process enters the container's network, and ends: then nothing answers there."""
    engine = rootless_podman_engine
    name = engine.client("run", "--detach", "--network", "none", engine.full, "sleep", "100").strip()
    ask = ("exec", name, "curl", "-sS", "-m", "5", "-x", "http://127.0.0.1:13128")
    try:
        pid = engine.client("inspect", "--format", "{{.State.Pid}}", name).strip()
        owner = pwd.getpwnam(ROOTLESS_USER)
        async with outside_web(tmp_path) as web:
            with ordinary_user() as user:
                command = ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups", "--"]
                serving = await asyncio.create_subprocess_exec(
                    *(*command, user.python, "-c", _AS_OWNER, pid),
                    stdout=asyncio.subprocess.PIPE,
                    cwd="/",
                    env={"PYTHONPATH": f"{user.folder}/src:{user.folder}/packages", "PATH": os.defpath},
                )
                try:
                    assert serving.stdout is not None
                    assert await asyncio.wait_for(serving.stdout.readline(), 30) == b"listening\n"
                    url = f"http://{web.allowed.address}:{web.allowed.port}/"
                    said = await asyncio.to_thread(engine.client, *ask, url)
                    assert said.startswith("allowed: GET /")
                finally:
                    serving.kill()
                    await serving.wait()
                with pytest.raises(AssertionError, match="Failed to connect"):
                    await asyncio.to_thread(engine.client, *ask, url)
    finally:
        engine.client("rm", "--force", "--time", "0", name)


@pytest.mark.skipif(os.getuid() != 0, reason="starts processes as somebody else")
def test_who_cannot_enter_containers_is_told(tmp_path: Path) -> None:
    """Somebody who may only ask an engine of root's."""
    code = (
        "import sys; from manyhands.sandboxes.containers.addresses import can_enter_worlds as c; print(c(sys.argv[1]))"
    )
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as engine:
        os.chmod(folder, 0o755)
        engine.bind(f"{folder}/docker.sock")
        os.chmod(f"{folder}/docker.sock", 0o666)
        engine.listen()
        address = f"unix://{folder}/docker.sock"
        assert can_enter_worlds(address)
        assert not can_enter_worlds("tcp://127.0.0.1:2375")
        with ordinary_user() as user:
            assert user.run([user.python, "-c", code, address]).stdout == "False\n"
            own = (
                "import os, socket, tempfile; from manyhands.sandboxes.containers.addresses import can_enter_worlds as c;"
                "s = socket.socket(socket.AF_UNIX); p = tempfile.mkdtemp() + '/s'; s.bind(p); s.listen(); print(c('unix://' + p))"
            )
            assert user.run([user.python, "-c", own]).stdout == "True\n"
