"""Variables that an item brings reach its commands, and nothing that runs on the host for them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from manyhands.sandboxes.local import LocalBackend
from manyhands.sandboxes.protocol import SandboxBackend, SandboxRequest

pytestmark = pytest.mark.skipif(BubblewrapBackend().unavailable() is not None, reason="bubblewrap can't be used here")


def traps(folder: Path) -> tuple[Path, Path]:
    """A folder of programs that leave a trace before they do what they are called after, and the folder of traces."""
    programs, traces = folder / "programs", folder / "traces"
    for each in (programs, traces):
        each.mkdir()
        each.chmod(0o777)
    folder.chmod(0o755)
    for name in ("nsenter", "chroot", "env", "bwrap"):
        own = f'#!/bin/sh\nexport PATH=/usr/sbin:/usr/bin:/bin\n: >{traces}/{name}\nexec {name} "$@"\n'
        (programs / name).write_text(own)
        (programs / name).chmod(0o755)
    return programs, traces


async def test_variables_reach_commands_as_they_are(tmp_path: Path) -> None:
    programs, traces = traps(tmp_path)
    given = {"PATH": f"{programs}:/usr/bin:/bin", "LANG": "C", "UID": "7", "no name": "x", "GIVEN": "a 'b' $c\n\\"}
    sandbox = await BubblewrapBackend().create(SandboxRequest(tmp_path / "sandbox", "run", environment=given))
    try:
        ran = await sandbox.run(["/usr/bin/env"], timeout=20)
        shell = await sandbox.shell('printf "%s|" "$PATH" "$GIVEN" "$LANG"; env | grep _MH_', timeout=20)
        spawned = await sandbox.spawn('printf %s "$GIVEN"')
        assert await spawned.wait(20) == 0
    finally:
        await sandbox.close()
    assert list(traces.iterdir()) == []
    assert b"GIVEN=a 'b' $c\n\\\n" in ran.output
    assert b"_MH_" not in ran.output
    assert shell.output.decode() == "|".join((given["PATH"], given["GIVEN"], "C", ""))
    assert spawned.output()[0].decode() == given["GIVEN"]


async def test_no_loader_of_the_host_heeds_variables(tmp_path: Path) -> None:
    _, traces = traps(tmp_path)
    # As harmful as LD_PRELOAD, but easier to see.
    given = {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": f"{traces}/loader"}
    sandbox = await BubblewrapBackend().create(SandboxRequest(tmp_path / "sandbox", "run", environment=given))
    try:
        assert (await sandbox.run(["true"], timeout=20)).exit_code == 0
    finally:
        await sandbox.close()
    assert list(traces.iterdir()) == []


@pytest.mark.parametrize("backend", [BubblewrapBackend(), LocalBackend()], ids=["bubblewrap", "local"])
async def test_no_value_is_seen_in_a_command_line(backend: SandboxBackend, tmp_path: Path) -> None:
    sandbox = await backend.create(SandboxRequest(tmp_path / "sandbox", "run", environment={"FIRST": "first-value"}))
    try:
        words = ["sh", "-c", "echo $FIRST $SECOND; touch here; sleep 20"]
        running = asyncio.ensure_future(sandbox.run(words, timeout=5, environment={"SECOND": "second-value"}))
        while not (tmp_path / "sandbox" / "workspace" / "here").exists():
            await asyncio.sleep(0.02)
        lines = [line for line in map(read_bytes, Path("/proc").glob("[0-9]*/cmdline")) if b"$SECOND" in line]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        ran = await sandbox.run(["sh", "-c", "echo $FIRST $SECOND"], timeout=5, environment={"SECOND": "second-value"})
    finally:
        await sandbox.close()
    assert lines
    assert not [line for line in lines if b"-value" in line]
    assert ran.output == b"first-value second-value\n"


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""
