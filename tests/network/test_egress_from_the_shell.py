"""Commands in a bubblewrap sandbox reach what is listed, and nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from manyhands.core.errors import ItemError
from manyhands.network.counts import HostCounts
from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from manyhands.sandboxes.local import LocalBackend
from manyhands.sandboxes.protocol import Sandbox, SandboxLimits, SandboxRequest
from tests.network.egress_cases import CASES, RULES, Case
from tests.network.outside_web import OutsideWeb, outside_web
from tests.support.unpacked_images import full_image_pin


@asynccontextmanager
async def bubblewrap(
    folder: Path, web: OutsideWeb, counts: HostCounts | None = None, image: str | None = None
) -> AsyncIterator[Sandbox]:
    limits = SandboxLimits(network_allow=RULES)
    request = SandboxRequest(folder, "egress", image=image, environment=web.variables, limits=limits, hosts=counts)
    sandbox = await BubblewrapBackend(look_up=web.names.look_up).create(request)
    try:
        yield sandbox
    finally:
        await sandbox.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_from_the_shell(case: Case, tmp_path: Path) -> None:
    async with outside_web(tmp_path) as web, bubblewrap(tmp_path / "box", web) as sandbox:
        result = await sandbox.shell(case.command, timeout=60)
        web.check(case, result.output.decode())


@pytest.mark.slow
async def test_with_an_image(tmp_path: Path) -> None:
    async with outside_web(tmp_path) as web, bubblewrap(tmp_path / "box", web, image=full_image_pin()) as sandbox:
        for case in CASES:
            web.allowed.connections = 0
            result = await sandbox.shell(case.command, timeout=60)
            web.check(case, result.output.decode())


async def test_what_was_asked_for_is_counted(tmp_path: Path) -> None:
    counts = HostCounts()
    async with outside_web(tmp_path) as web, bubblewrap(tmp_path / "box", web, counts) as sandbox:
        command = (
            "for h in files.example evil.example files.example 10.0.0.1; do curl -s -m 5 http://$h:$ALLOWED/; done"
        )
        await sandbox.shell(command, timeout=30)
        assert web.names.asked == ["files.example"] * 2
    assert counts.to_json() == {
        "10.0.0.1": {"refused": 1},
        "evil.example": {"refused": 1},
        "files.example": {"allowed": 2},
    }


async def test_a_sandbox_that_was_started_anew_reaches_the_same(tmp_path: Path) -> None:
    async with outside_web(tmp_path) as web, bubblewrap(tmp_path / "box", web) as sandbox:
        await sandbox.shell("export KEPT=1", timeout=10)
        await sandbox.shell("kill -9 -1", timeout=10)
        for _ in range(2):
            result = await sandbox.shell(
                "echo $KEPT $http_proxy; curl -sS -m 5 http://files.example:$ALLOWED/", timeout=20
            )
        assert result.output.startswith(b"1 http://127.0.0.1:13128\nallowed: GET /"), result.output


async def test_two_sandboxes_do_not_share_a_way_out(tmp_path: Path) -> None:
    async with outside_web(tmp_path) as web, bubblewrap(tmp_path / "open", web) as sandbox:
        request = SandboxRequest(tmp_path / "closed", "egress", environment=web.variables)
        closed = await BubblewrapBackend().create(request)
        try:
            command = "curl -sS -m 5 -x http://127.0.0.1:13128 http://files.example:$ALLOWED/; env | grep -ci proxy"
            refused = await closed.shell(command, timeout=20)
            assert (await sandbox.shell(command, timeout=20)).output.startswith(b"allowed: GET /")
        finally:
            await closed.close()
        assert b"Failed to connect" in refused.output
        assert refused.output.endswith(b"\n0\n")


async def test_the_way_out_ends_with_its_owner(tmp_path: Path) -> None:
    """An owner is killed while its sandbox's proxy serves a connection: that ends, and nothing listens any more."""
    async with outside_web(tmp_path) as web:
        code = f"""
            import asyncio
            from pathlib import Path
            from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
            from manyhands.sandboxes.protocol import SandboxLimits, SandboxRequest

            async def main():
                limits = SandboxLimits(network_allow=("127.0.0.2",))
                request = SandboxRequest(Path({str(tmp_path / "box")!r}), "owner", limits=limits)
                sandbox = await BubblewrapBackend().create(request)
                await sandbox.spawn("curl -sS -p http://127.0.0.2:{web.hanging}/")
                await asyncio.sleep(60)

            asyncio.run(main())
        """
        environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
        owner = await asyncio.to_thread(
            subprocess.Popen, [sys.executable, "-c", textwrap.dedent(code)], env=environment
        )
        try:
            await asyncio.wait_for(web.hanging_connected.wait(), 30)
            owner.send_signal(signal.SIGKILL)
            await asyncio.wait_for(web.hanging_ended.wait(), 5)
        finally:
            owner.kill()
            await asyncio.to_thread(owner.wait)


async def test_the_local_sandbox_refuses_what_it_cannot_keep(tmp_path: Path) -> None:
    request = SandboxRequest(tmp_path / "box", "egress", limits=SandboxLimits(network_allow=("files.example",)))
    with pytest.raises(ItemError, match="network_allow"):
        await LocalBackend().create(request)
