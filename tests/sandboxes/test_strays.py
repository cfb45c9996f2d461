"""What processes leave behind, and who ends it."""

import asyncio
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

from manyhands.processes.strays import children, end_session, kill_marked, process_line, process_table, ticks_now
from manyhands.sandboxes.commands import cgroups


def test_process_lines_know_odd_names(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"], start_new_session=True) as process:
        try:
            while (line := process_line(process.pid)) is None or line.session != process.pid:
                time.sleep(0.01)
            assert line.parent == os.getpid()
            assert line.state in "RS"
            assert abs(line.started - ticks_now()) < 1000
            assert process_table()[process.pid].session == process.pid
            assert process.pid in children(os.getpid())
        finally:
            process.kill()
    assert process_line(process.pid) is None


def test_marked_processes_are_killed_and_others_spared() -> None:
    mark = secrets.token_hex(8)
    environment = {**os.environ, "STRAY_TEST": mark}
    forking = "import os, time\nfor _ in range(3): os.fork()\ntime.sleep(60)"
    marked = subprocess.Popen([sys.executable, "-c", forking], env=environment, start_new_session=True)
    other = subprocess.Popen(["sleep", "60"], env={**os.environ, "STRAY_TEST": mark + "x"})
    try:
        time.sleep(0.3)
        assert kill_marked("STRAY_TEST", mark) == 8
        assert marked.wait(5) == -9
        assert kill_marked("STRAY_TEST", mark) == 0
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


async def test_a_session_is_ended_from_a_time_on() -> None:
    script = "trap '' TERM; sleep 60 & sleep 0.3; sleep 61 & echo ready; wait"
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", script, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    await process.stdout.readline()
    first, second = sorted(children(process.pid))
    line = process_line(second)
    assert line is not None
    await end_session(process.pid, line.started)
    assert _ended(second)
    assert not _ended(first)
    assert process.returncode is None
    await end_session(process.pid, 0)
    await process.wait()
    assert _ended(first)


def test_groups_of_a_killed_process_are_swept(tmp_path: Path) -> None:
    if cgroups.usable_hierarchies() is None:
        assert cgroups.make_group(memory=1 << 30, processes=10) is None
        return
    maker = (
        "import os, subprocess, sys\nfrom manyhands.sandboxes.commands.cgroups import make_group\n"
        "group = make_group(memory=1 << 30, processes=10)\n"
        "join = ' && '.join(f'echo 0 >{entrance}' for entrance in group.entrances)\n"
        "child = subprocess.Popen(['sh', '-c', join + ' && exec sleep 74'], start_new_session=True, stdout=2)\n"
        "while child.pid not in group.members(): pass\n"
        "print(child.pid, *group.folders, flush=True)\nsys.stdin.read()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", maker], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    child, *folders = process.stdout.readline().split()
    cgroups.sweep()
    assert all(os.path.isdir(folder) for folder in folders), "its maker lives"
    process.kill()
    process.communicate()
    assert cgroups.sweep() >= 1
    assert not any(os.path.isdir(folder) for folder in folders)
    assert _ended(int(child))


def _ended(pid: int) -> bool:
    line = process_line(pid)
    return line is None or line.state in "ZX"
