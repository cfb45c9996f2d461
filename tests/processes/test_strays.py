"""What processes leave behind, and who ends it."""

import asyncio
import os
import secrets
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from manyhands.processes.strays import (
    SANDBOX_VARIABLE,
    Leftovers,
    Tags,
    end_session,
    kill_marked,
    process_table,
    remove_tree,
    tagged_words,
)
from manyhands.processes.system import children, environment_of, process_line, ticks_now
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


LONE = """
import os, sys
from manyhands.processes.children import LoneGuard

guard = LoneGuard([f"STRAY_TEST={mark}" for mark in sys.argv[1:]])
assert open(f"/proc/self/task/{os.getpid()}/children").read() == ""
print(flush=True)
if input():
    guard.dismiss()
"""


@pytest.mark.parametrize("dismissed", [False, True])
def test_a_lone_guard_ends_what_has_one_of_its_marks_when_its_owner_is_killed(dismissed: bool) -> None:
    marks = [secrets.token_hex(8) for _ in range(2)]
    sleepers = [
        subprocess.Popen(["sleep", "60"], env={"STRAY_TEST": mark}, start_new_session=True)
        for mark in (*marks, marks[0] + "x")
    ]
    owner = subprocess.Popen([sys.executable, "-c", LONE, *marks], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert owner.stdin is not None
        assert owner.stdout is not None
        assert owner.stdout.readline()
        if dismissed:
            owner.communicate(b"dismiss\n", timeout=20)
            assert owner.returncode == 0
            time.sleep(0.3)
        else:
            owner.kill()
            assert [sleeper.wait(20) for sleeper in sleepers[:2]] == [-9, -9]
        assert [sleeper.poll() for sleeper in sleepers[2 * (not dismissed) :]] == [None] * (3 if dismissed else 1)
    finally:
        for process in (owner, *sleepers):
            process.kill()
            process.communicate()


@pytest.mark.parametrize(("chains", "ended"), [(3, 0), (3, 3000), (10, 0)])
def test_a_chain_whose_processes_end_at_once_is_killed(tmp_path: Path, chains: int, ended: int) -> None:
    """Each process makes the next and is gone, most often before anybody could look at it; also where a look at all takes long, as nobody
    has waited for many that ended, and where there is always a newer one."""
    crowd = f"import os\nfor _ in range({ended}):\n if not os.fork(): os._exit(0)\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", crowd], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as unwaited:
        assert unwaited.stdout is not None
        unwaited.stdout.readline()
        try:
            _kill_chains(tmp_path / "now", chains)
        finally:
            unwaited.kill()


def _kill_chains(now: Path, chains: int) -> None:
    mark = secrets.token_hex(8)
    now.touch()
    chain = f"import os\nwhile True:\n if os.fork(): os._exit(0)\n open({str(now)!r}, 'r+').write('x')\n"
    try:
        for _ in range(chains):
            subprocess.run([sys.executable, "-c", chain], env={**os.environ, "STRAY_TEST": mark}, check=True)
        while not now.stat().st_size:
            time.sleep(0.01)
        kill_marked("STRAY_TEST", mark)
        before = now.stat().st_mtime_ns
        time.sleep(0.3)
        assert now.stat().st_mtime_ns == before
    finally:
        now.unlink()  # without it a chain ends


def test_a_search_spares_its_own_threads() -> None:
    """The kernel gives threads ids as it does processes, and the newest may be one of ours."""
    script = (
        "import os, subprocess, threading, time\nfrom manyhands.processes.strays import kill_marked\n"
        "for _ in range(5):\n found = subprocess.Popen(['sleep', '60'])\n"
        " threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        " kill_marked('STRAY_TEST', os.environ['STRAY_TEST'])\n assert found.wait() == -9\n"
        "print('alive', flush=True)\nos._exit(0)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "STRAY_TEST": secrets.token_hex(8)}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, b"alive\n")


async def test_what_several_commands_left_is_killed_for_all_at_once() -> None:
    marks, tags, leftovers = [secrets.token_hex(8) for _ in range(4)], Tags(), Leftovers()
    given = {mark: tags.new() for mark in marks}
    started = [
        await asyncio.create_subprocess_exec(
            *tagged_words(["sleep", "60"], tag if number % 2 else None, os.environ, "/"),
            env={**os.environ, SANDBOX_VARIABLE: "nothing" if number % 2 else mark},
        )
        for number, (mark, tag) in enumerate(given.items())
    ]
    await asyncio.sleep(0.2)
    try:
        await asyncio.gather(*(leftovers.kill(mark, given[mark]) for mark in marks[:3]))
        assert [await process.wait() for process in started[:3]] == [-9] * 3
        assert started[3].returncode is None
        await leftovers.kill(marks[3], given[marks[3]])
        assert await started[3].wait() == -9
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()


def test_only_what_has_ended_has_no_environment() -> None:
    """The kernel's threads have an empty one: a search need not begin anew because of them."""
    table = process_table()
    threads = [pid for pid, line in table.items() if line.session == 0 and environment_of(pid) is None]
    assert [pid for pid in threads if process_line(pid) is not None] == []
    with subprocess.Popen(["true"], start_new_session=True) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not any(environment_of(process.pid) or [])


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


def test_to_remove_what_is_not_there_changes_no_mode(tmp_path: Path) -> None:
    (tmp_path / "above").mkdir()
    (tmp_path / "above").chmod(0o755)
    remove_tree(tmp_path / "above" / "missing")
    assert stat.S_IMODE((tmp_path / "above").stat().st_mode) == 0o755
