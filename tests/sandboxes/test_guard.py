"""What a killed owner leaves running in a local sandbox is ended without anybody opening the run again."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
from pathlib import Path

from manyhands.processes.children import Guard
from manyhands.processes.strays import process_table

OWNER = """
import asyncio, sys
from pathlib import Path
from manyhands.sandboxes.local import LocalBackend
from manyhands.sandboxes.protocol import SandboxRequest

async def main():
    sandbox = await LocalBackend().create(SandboxRequest(Path(sys.argv[1]), sys.argv[2]))
    await sandbox.shell("setsid sleep 83 & sleep 83 &", timeout=20)
    await sandbox.spawn("sleep 83")
    asyncio.ensure_future(sandbox.shell("sleep 83; echo on >late", timeout=60))
    await asyncio.sleep(0.3)
    print("ready", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_killed_owner_leaves_nothing_behind(tmp_path: Path) -> None:
    run_id = secrets.token_hex(8)
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, str(tmp_path / "box"), run_id, stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout is not None
    assert await asyncio.wait_for(owner.stdout.readline(), 30) == b"ready\n"
    assert len(sleepers(run_id)) == 4
    owner.kill()
    await owner.wait()
    await until_ended(run_id)


async def test_a_dismissed_guard_kills_nobody() -> None:
    run_id = secrets.token_hex(8)
    marked = await asyncio.create_subprocess_exec("sleep", "83", env={**os.environ, "MANYHANDS_RUN": run_id})
    guard = Guard(f"MANYHANDS_RUN={run_id}")
    await guard.dismiss()
    await guard.dismiss()
    await asyncio.sleep(0.2)
    assert marked.returncode is None
    marked.kill()
    await marked.wait()


def test_only_what_carries_the_very_mark_is_killed() -> None:
    run_id = secrets.token_hex(8)
    others = [
        subprocess.Popen(["sleep", "83"], env={**os.environ, "MANYHANDS_RUN": f"{run_id}{more}"})
        for more in (".1", "0")
    ]
    code = "import asyncio, os, sys\nfrom manyhands.processes.children import Guard\n"
    code += "async def main():\n    Guard(sys.argv[1])\n    os._exit(0)\nasyncio.run(main())"
    marked = subprocess.Popen(["sleep", "83"], env={**os.environ, "MANYHANDS_RUN": run_id})
    try:
        subprocess.run([sys.executable, "-c", code, f"MANYHANDS_RUN={run_id}"], check=True, timeout=30)
        assert marked.wait(10) == -9
        assert all(other.poll() is None for other in others)
    finally:
        for process in (*others, marked):
            process.kill()
            process.wait()


def test_of_a_family_all_that_begins_like_it_is_killed() -> None:
    family = secrets.token_hex(8)
    environments = [{**os.environ, "MANYHANDS_SANDBOX": f"{beginning}7"} for beginning in (family, f"0{family}")]
    marked, other = [subprocess.Popen(["sleep", "83"], env=environment) for environment in environments]
    code = "import asyncio, os, sys\nfrom manyhands.processes.children import Guard\n"
    code += "async def main():\n    Guard(sys.argv[1], family=True)\n    os._exit(0)\nasyncio.run(main())"
    try:
        subprocess.run([sys.executable, "-c", code, f"MANYHANDS_SANDBOX={family}"], check=True, timeout=30)
        assert marked.wait(10) == -9
        assert other.poll() is None
    finally:
        for process in (marked, other):
            process.kill()
            process.wait()


def sleepers(run_id: str) -> list[int]:
    """The living ``sleep`` processes of a run."""
    found = []
    for pid, line in process_table().items():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        marked = f"MANYHANDS_RUN={run_id}".encode() in environment
        if marked and line.state not in "ZX" and command.startswith(b"sleep"):
            found.append(pid)
    return found


async def until_ended(run_id: str) -> None:
    async with asyncio.timeout(10):
        while await asyncio.to_thread(sleepers, run_id):
            await asyncio.sleep(0.05)
