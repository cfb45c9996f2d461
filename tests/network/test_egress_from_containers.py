"""Commands in a container reach what is listed, and nothing else: the cases of other sandboxes, and what only containers have."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from manyhands.network.counts import HostCounts
from manyhands.sandboxes.containers.driver import ContainerDriver
from manyhands.sandboxes.protocol import Sandbox, SandboxLimits, SandboxRequest
from manyhands.sandboxes.remote.backend import RemoteBackend
from tests.network.egress_cases import CASES, RULES, Case
from tests.network.outside_web import OutsideWeb, outside_web
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
