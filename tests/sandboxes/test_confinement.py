"""What holds the commands of a bubblewrap sandbox: no root's id, a number 1 that can't be examined, and a filter of system calls."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.processes.strays import process_table
from manyhands.sandboxes import confinement
from manyhands.sandboxes.bubblewrap import as_root
from manyhands.sandboxes.bubblewrap.as_root import User, hand_over, stand_in_for_root
from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from manyhands.sandboxes.confinement import compiled, missing_for, number_of, spawn_confined, spawn_with_own_keys
from manyhands.sandboxes.protocol import Sandbox, SandboxRequest

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "riscv64": 0xC00000F3, "loongarch64": 0xC0000102}
ALLOWED = 0x7FFF0000
AS_ROOT = os.geteuid() == 0


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    sandbox = await BubblewrapBackend().create(SandboxRequest(tmp_path / "box", "confinement"))
    try:
        yield sandbox
    finally:
        await sandbox.close()


# The filter, run here instruction by instruction as the kernel does


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("call", "arguments", "error"),
    [
        ("mount", (), errno.EPERM),
        ("keyctl", (), errno.EPERM),
        ("clone3", (), errno.ENOSYS),
        ("unshare", (0x10000000,), errno.EPERM),
        ("unshare", (0x80,), errno.EPERM),
        ("unshare", (0x400,), 0),
        ("clone", (0x10000000 | 17,), errno.EPERM),
        ("clone", (0x3D0F00,), 0),
        ("clone", (0x80 | 17,), 0),
        ("fchmod", (3, 0o4755), errno.EPERM),
        ("fchmodat", (3, 0, 0o2755), errno.EPERM),
        ("fchmodat", (3, 0, 0o1777), 0),
        ("openat", (3, 0, os.O_CREAT, 0o4755), errno.EPERM),
        ("openat", (3, 0, 0o20000000, 0o2755), errno.EPERM),
        ("openat", (3, 0, os.O_RDONLY, 0o7777), 0),
        ("openat", (3, 0, os.O_CREAT, 0o644), 0),
        ("socket", (1, 1, 0), 0),
        ("socket", (10, 2, 17), 0),
        ("socket", (16, 3, 0), 0),
        ("socket", (16, 3, 9), errno.EPROTONOSUPPORT),
        ("socket", (40, 1, 0), errno.EAFNOSUPPORT),
        ("socketpair", (1, 1, 0), 0),
        ("socketpair", (30, 1, 0), errno.EAFNOSUPPORT),
        ("ioctl", (0, 0x5412), errno.EPERM),
        ("ioctl", (0, 0x5401), 0),
        ("ioctl", (0, 0x5412 | 1 << 32), errno.EPERM),
    ],
)
def test_what_the_filter_answers(machine: str, call: str, arguments: tuple[int, ...], error: int) -> None:
    assert _answer(compiled(machine), MACHINES[machine], number_of(call, machine), arguments) == error


@pytest.mark.parametrize("machine", MACHINES)
@given(number=st.integers(0, 600), arguments=st.lists(st.integers(0, (1 << 64) - 1), min_size=6, max_size=6))
def test_the_filter_comes_to_an_end_and_lets_other_calls_pass(machine: str, number: int, arguments: list[int]) -> None:
    column = 0 if machine == "x86_64" else 1
    known = {numbers[column] for numbers in confinement._NUMBERS.values()}
    answer = _answer(compiled(machine), MACHINES[machine], number, arguments)
    assert answer == 0 or number in known
    assert _answer(compiled(machine), 0x40000003, number, arguments) == errno.ENOSYS  # a 32-bit program
    if machine == "x86_64":
        assert _answer(compiled(machine), MACHINES[machine], number | 0x40000000, arguments) == errno.ENOSYS


def test_machines_without_a_table_are_named() -> None:
    assert missing_for("s390x") == "no system call filter for s390x machines"
    assert missing_for() is None


def test_what_a_confined_thread_starts_is_confined(tmp_path: Path) -> None:
    script = "import os, sys; os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY, 0o4755)"
    for spawn, works in ((spawn_confined(), False), (spawn_with_own_keys(), True)):
        process = spawn([sys.executable, "-I", "-c", script, tmp_path / str(works)], stderr=subprocess.PIPE)
        errors = process.communicate(timeout=30)[1]
        assert (b"Operation not permitted" in errors) is not works, errors


def test_commands_have_a_session_keyring_of_their_own() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.syscall(number_of("add_key"), b"user", b"manyhands-test", b"secret", 6, -3) > 0
    search = (
        f"import ctypes; print(ctypes.CDLL(None).syscall({number_of('keyctl')}, 10, -3, b'user', b'manyhands-test', 0))"
    )
    command = [sys.executable, "-I", "-c", search]
    assert int(subprocess.run(command, capture_output=True, check=True, timeout=30).stdout) > 0
    child = spawn_with_own_keys()(command, stdout=subprocess.PIPE)
    assert int(child.communicate(timeout=30)[0]) == -1


# Number 1 inside


async def test_number_1_can_not_be_examined_stopped_or_ended(sandbox: Sandbox) -> None:
    script = "for n in $(seq 1 64); do kill -$n 1 2>/dev/null; done; kill -9 -1 2>/dev/null; echo alive"
    assert (await sandbox.run(["bash", "-c", script], timeout=20)).output == b"alive\n"
    for file in ("exe", "environ", "maps", "mem", "root", "cwd", "fd", "stack"):
        result = await sandbox.run(["sh", "-c", f"cat /proc/1/{file} || ls -l /proc/1/{file}/"], timeout=10)
        assert result.exit_code != 0, file
        assert b"ermission denied" in result.output, (file, result.output)
    attach = "import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.ptrace(16, 1, 0, 0), ctypes.get_errno())"
    assert (await sandbox.run(["python3", "-c", attach], timeout=10)).output.decode().split() == [
        "-1",
        str(errno.EPERM),
    ]


async def test_number_1_ends_with_the_sandbox_and_collects_orphans(tmp_path: Path) -> None:
    sandbox = await BubblewrapBackend().create(SandboxRequest(tmp_path / "box", "orphans"))
    try:
        orphans = "for i in $(seq 50); do (true &) ; done; sleep 0.3; ps -eo stat | grep -c Z"
        assert (await sandbox.run(["sh", "-c", orphans], timeout=10)).output == b"0\n"
    finally:
        await sandbox.close()
    assert not [pid for pid in process_table() if _environment(pid).get("MANYHANDS_RUN") == "orphans"]


# Whose rights


async def test_commands_have_no_id_of_roots_on_the_host(sandbox: Sandbox) -> None:
    process = await sandbox.spawn("sleep 41.5")
    try:
        await _shell(sandbox, "until pgrep -x sleep >/dev/null; do :; done")
        pids = [pid for pid in process_table() if _words(pid)[:2] == ["sleep", "41.5"]]
        assert len(pids) == 1
        status = Path(f"/proc/{pids[0]}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert "0" not in [*fields["Uid"].split(), *fields["Gid"].split(), *fields["Groups"].split()]
        assert "0" not in [line.split()[1] for line in Path(f"/proc/{pids[0]}/uid_map").read_text().splitlines()]
        assert fields["CapEff"].strip("0") == fields["CapPrm"].strip("0") == ""
        assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    finally:
        await process.kill()


async def test_a_workspace_of_before_is_handed_over(tmp_path: Path) -> None:
    old = tmp_path / "box" / "workspace" / "deep"
    old.mkdir(parents=True, mode=0o700)
    (old / "file").write_text("old")
    (old / "file").chmod(0o600)
    outside = tmp_path / "outside"
    outside.write_text("not theirs")
    owner = outside.stat().st_uid
    (old / "link").symlink_to(outside)
    sandbox = await BubblewrapBackend().create(SandboxRequest(tmp_path / "box", "older"))
    try:
        assert (
            await _shell(sandbox, "cat deep/file; echo new >deep/file; rm deep/link; touch deep/more; id -u")
            == "old1000"
        )
    finally:
        await sandbox.close()
    assert (outside.stat().st_uid, outside.read_text()) == (owner, "not theirs")


async def test_folders_that_only_we_can_enter_are_shown(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    project = closed / "project"
    (project / "data").mkdir(parents=True)
    (project / "data" / "run.db").write_text("journal")
    (project / "private").write_text("ours")
    (project / "private").chmod(0o600)
    closed.chmod(0o700)
    request = SandboxRequest(closed / "box", "closed", project=project, hidden=(project / "data",))
    sandbox = await BubblewrapBackend().create(request)
    try:
        assert (
            await _shell(sandbox, "cat private; ls -A data; touch new data/new 2>&1 | grep -c 'Read-only'") == "ours2"
        )
        assert await _shell(sandbox, "echo mine >$WORKSPACE/file; cat $WORKSPACE/file") == "mine"
    finally:
        await sandbox.close()
    assert sorted(path.name for path in project.rglob("*")) == ["data", "private", "run.db"]


def test_handing_over_follows_no_link(tmp_path: Path) -> None:
    if not AS_ROOT:
        return  # nobody else can give files away
    (tmp_path / "outside").mkdir()
    (tmp_path / "tree" / "inner").mkdir(parents=True)
    (tmp_path / "tree" / "inner" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "tree" / "set-id").touch(0o755)
    (tmp_path / "tree" / "set-id").chmod(0o6755)
    hand_over(tmp_path / "tree", User(4321, 8765))
    for path in (tmp_path / "tree", *(tmp_path / "tree").rglob("*")):
        assert (path.lstat().st_uid, path.lstat().st_gid) == (4321, 8765), path
    assert (tmp_path / "outside").stat().st_uid == 0
    assert (tmp_path / "tree" / "set-id").stat().st_mode & 0o6000 == 0


def test_only_root_needs_a_stand_in() -> None:
    user = stand_in_for_root()
    assert (user is not None) is AS_ROOT
    assert user is None or (user.uid > 0 and user.gid > 0)


def test_root_of_a_container_takes_an_id_that_there_is() -> None:
    everybody, few, alone = [(0, 0, 1 << 32)], [(0, 1000, 1), (1, 100_000, 65_536)], [(0, 1000, 1)]
    assert as_root._chosen(everybody) > 1 << 30
    assert as_root._chosen(few) == 65_536
    assert [as_root._is_somebody_outside(each) for each in (everybody, few, alone)] == [False, False, True]
    with pytest.raises(OSError, match="no other id"):
        as_root._chosen([(0, 0, 1)])


# Interfaces of the kernel


async def test_nothing_of_the_kernel_can_be_written(sandbox: Sandbox) -> None:
    walk = """
import os, stat
tried, opened = 0, []
for top in [f"/proc/{name}" for name in os.listdir("/proc") if not name.isdigit() and "self" not in name] + ["/sys"]:
    for folder, folders, files in [(os.path.dirname(top), [], [os.path.basename(top)]), *os.walk(top)]:
        for path in (os.path.join(folder, name) for name in files):
            if not os.path.isdir(path):
                tried += 1
                try:
                    opened.append((path, os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))))
                except OSError:
                    pass
print(tried > 100, opened, os.path.exists("/sys"))
"""
    assert (await sandbox.run(["python3", "-c", walk], timeout=30)).output == b"True [] False\n"


def _answer(program: bytes, architecture: int, number: int, arguments: tuple[int, ...] | list[int]) -> int:
    """What a filter says: an error's number, or 0 if it allows the call."""
    values = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number, architecture, 0, *values)
    instructions = list(struct.iter_unpack("<HBBI", program))
    at, accumulator = 0, 0
    for _ in range(len(instructions)):
        code, if_true, if_false, value = instructions[at]
        at += 1
        if code == 0x20:
            accumulator = struct.unpack_from("<I", data, value)[0]
        elif code == 0x54:
            accumulator &= value
        elif code == 0x15:
            at += if_true if accumulator == value else if_false
        elif code == 0x35:
            at += if_true if accumulator >= value else if_false
        else:
            assert code == 0x06
            return 0 if value == ALLOWED else value & 0xFFFF
    raise AssertionError("the program does not end")


async def _shell(sandbox: Sandbox, command: str) -> str:
    result = await sandbox.shell(command, timeout=20)
    return result.output.decode().replace("\n", "")


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _environment(pid: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(entry.partition("=")[::2] for entry in text.split("\0"))
