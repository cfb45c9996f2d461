"""Bubblewrap sandboxes of images: what of the image holds inside, what root is there, what is undone, and that nothing is left."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import secrets
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.processes.strays import MARK
from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from manyhands.sandboxes.files.removing import remove_tree
from manyhands.sandboxes.protocol import Sandbox, SandboxLimits, SandboxRequest
from tests.support.image_files import folder, layer, link, member
from tests.support.image_tars import IMAGE_PATH, full_image
from tests.support.unpacked_images import full_image_pin, unpacked_pin

AS_ROOT = os.geteuid() == 0
OTHER = {"WorkingDir": "/opt/tool", "User": "tester:nogroup"}
"""Another configuration of the same image."""
SECONDS = 20


@asynccontextmanager
async def made(box: Path, **fields: Any) -> AsyncIterator[Sandbox]:
    fields = {"image": full_image_pin(), "run_id": f"worlds-{secrets.token_hex(4)}", **fields}
    sandbox = await BubblewrapBackend().create(SandboxRequest(box, **fields))
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def said(sandbox: Sandbox, command: str) -> str:
    result = await sandbox.shell(command, timeout=SECONDS)
    assert result.exit_code == 0, result.output
    return result.output.decode().strip()


def like_full(pin_of: dict[str, Any], *more: tuple[tarfile.TarInfo, bytes]) -> str:
    """The pin of an image like the ``full`` one, with further entries. It is kept between sessions."""
    added = layer(*more)
    kept = full_image()
    tar = kept.with_name(f"{kept.stem}-{hashlib.sha256(added).hexdigest()[:8]}.tar")
    if tar.exists():
        return unpacked_pin(tar, pin_of)
    aside = tar.with_name(f".{os.getpid()}-{tar.name}")
    with tarfile.open(kept) as before, tarfile.open(aside, "w") as after:
        for entry in before:
            after.addfile(entry, before.extractfile(entry) if entry.isreg() else None)
        with tarfile.open(fileobj=io.BytesIO(added)) as further:
            for entry in further:
                after.addfile(entry, further.extractfile(entry) if entry.isreg() else None)
    aside.rename(tar)
    return unpacked_pin(tar, pin_of)


# --- What of the image holds


async def test_environment_and_directories_are_the_images(tmp_path: Path) -> None:
    async with made(tmp_path / "a", environment={"GIVEN": "by the row"}) as sandbox:
        assert await said(sandbox, "own-tool; pwd; echo $PATH $OF_THE_IMAGE $GIVEN $HOME") == (
            f"own\n/workspace\n{IMAGE_PATH} yes by the row /root"
        )
        assert (await sandbox.run(["own-tool"], timeout=SECONDS)).output == b"own\n"
        process = await sandbox.spawn("own-tool")
        await process.wait(SECONDS)
        assert process.output()[0] == b"own\n"
        assert await said(sandbox, "cat ~tester/kept; getent hosts localhost >/dev/null && echo named") == (
            "of the image\nnamed"
        )
        assert sandbox.workspace == "/workspace"
    working = full_image_pin(OTHER)
    async with made(tmp_path / "b", image=working) as sandbox:
        assert await said(sandbox, "pwd") == sandbox.workspace == "/opt/tool"
    async with made(tmp_path / "c", image=working, cwd="new/folder") as sandbox:
        assert await said(sandbox, "pwd; touch mine; stat -c %u mine") == (
            f"/opt/tool/new/folder\n{1000 if AS_ROOT else 0}"
        )
    async with made(tmp_path / "d", cwd="/home/tester") as sandbox:
        assert await said(sandbox, "pwd") == "/home/tester"


async def test_requests_that_an_image_can_not_fulfil(tmp_path: Path) -> None:
    for fields, named in (
        ({"cwd": "/no/such"}, "/no/such"),
        ({"cwd": "../out"}, "leads out"),
        ({"user": "nobody-knows"}, "nobody-knows"),
        ({"user": "99999999"}, "99999999"),
    ):
        with pytest.raises(ItemError, match=named) as caught:
            async with made(tmp_path / "box", **fields):
                pass
        assert caught.value.cause == Cause.INVALID_INPUT
        assert "\n" not in caught.value.message
    with pytest.raises(ItemError, match="not unpacked here") as caught:
        async with made(tmp_path / "box", image="sha256:" + "0" * 64):
            pass
    assert caught.value.cause == Cause.SANDBOX_LOST
    assert mounts_below(tmp_path) == []


async def test_root_inside_is_nobody_outside(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host only")
    async with made(tmp_path / "box") as sandbox:
        assert await said(sandbox, "id -u; grep CapEff /proc/self/status") == "0\nCapEff:\t00000000000404fb"
        assert await said(sandbox, "grep -E 'CapBnd|CapPrm' /proc/self/status | sort -u | cut -f2 | sort -u") == (
            "00000000000404fb"
        )
        assert await said(sandbox, "grep NoNewPrivs /proc/self/status | cut -f2") == "1"
        assert await said(sandbox, "echo x >/usr/x; rm -r /opt; echo root::0:0::/:/bin/sh >/etc/passwd; ls /usr/x") == (
            "/usr/x"
        )
        assert b"host only" not in (await sandbox.shell(f"cat {secret} /proc/*/root{secret}", timeout=SECONDS)).output
        outside = f"ls {Path.home()}; ls /proc/1/root /proc/1/fd; cat /proc/1/environ; kill -9 1; mount -t tmpfs x /mnt"
        result = await sandbox.shell(f"{outside}; mknod /disk b 8 0; chroot / mount -t proc x /opt", timeout=SECONDS)
        assert result.exit_code != 0
        assert MARK.encode() not in result.output
        assert await said(sandbox, "test ! -e /disk; ls -d /proc/[0-9]* | wc -l") in ("3", "4", "5")
        assert str(tmp_path) not in await said(sandbox, "grep overlay /proc/self/mountinfo")
        assert "manyhands-test-images" not in await said(sandbox, "cat /proc/[0-9]*/cmdline /proc/self/mountinfo")
    assert secret.read_text() == "host only"
    assert not Path("/usr/x").exists()


@pytest.mark.skipif(not AS_ROOT, reason="an ordinary user has one id inside")
async def test_users_of_the_image(tmp_path: Path) -> None:
    async with made(tmp_path / "a", user="tester") as sandbox:
        assert await said(sandbox, "id -un; id -G; pwd; echo $HOME; touch x ~/y; grep CapEff /proc/self/status") == (
            "tester\n1000\n/workspace\n/home/tester\nCapEff:\t0000000000000000"
        )
        assert (await sandbox.shell("touch /usr/x", timeout=SECONDS)).exit_code != 0
        assert (await sandbox.run(["id", "-u"], timeout=SECONDS, user="0")).output == b"0\n"
        result = await sandbox.run(["sh", "-c", "id -u; id -g; echo $HOME"], timeout=SECONDS, user="4321:77")
        assert result.output == b"4321\n77\n/\n"
        with pytest.raises(ItemError, match="no user 'other'"):
            await sandbox.run(["true"], timeout=SECONDS, user="other")
        await sandbox.shell("exec 5</dev/null; chmod 700 ~", timeout=SECONDS)
        changed = 'chown 1000:33 /usr/bin/env; useradd() { echo "$1:x:77:88::/x:/bin/sh" >>/etc/passwd; }; useradd more'
        assert (await sandbox.run(["bash", "-c", changed], timeout=SECONDS, user="root")).exit_code == 0
        assert (await sandbox.run(["id", "-u"], timeout=SECONDS, user="more")).output == b"77\n"
        assert await said(sandbox, "stat -c %u:%g /usr/bin/env") == "1000:33"
    async with made(tmp_path / "b", image=full_image_pin(OTHER)) as sandbox:
        assert await said(sandbox, "id -u; id -G") == "1000\n65534"
        dropped = await sandbox.run(
            ["setpriv", "--reuid=5", "--regid=6", "--clear-groups", "id"], timeout=SECONDS, user="0"
        )
        assert dropped.output.startswith(b"uid=5 gid=6")


async def test_nothing_of_an_image_runs_before_it_is_inside(tmp_path: Path) -> None:
    """An image whose loader settings and variables name a library of its own, and whose folders are links to the host's."""
    host = Path(f"/tmp/manyhands-test-of-the-host-{os.getuid()}")  # its name is in an image that is kept
    host.mkdir(exist_ok=True)
    (host / "file").write_text("as it was")
    config = {
        "Env": ["LD_PRELOAD=/evil.so", f"LD_LIBRARY_PATH={host}", "BASH_ENV=/evil.sh", "ENV=/evil.sh", "PATH=/usr/bin"]
    }
    pin = like_full(
        config,
        member("evil.so", b"no library"),
        member("etc/ld.so.preload", b"/evil.so\n"),
        link("workspace", f"/oldroot{host}"),
        link("etc/hosts", f"/oldroot{host}/file"),
        link("etc/resolv.conf", f"/oldroot{host}/file"),
        folder("mnt"),
    )
    async with made(tmp_path / "box", image=pin, limits=SandboxLimits(network=True), cwd="/tmp") as sandbox:
        result = await sandbox.shell("echo $LD_PRELOAD; exit 0", timeout=SECONDS)
        assert b"/evil.so" in result.output
        # Its own programs are told to load it. What brought them here was not.
        assert b"object '/evil.so'" in (await sandbox.run(["env"], timeout=SECONDS)).output
    assert [path.name for path in host.iterdir()] == ["file"]
    assert (host / "file").read_text() == "as it was"


async def test_links_that_an_agent_left_at_mount_points(tmp_path: Path) -> None:
    async with made(tmp_path / "box") as sandbox:
        await said(sandbox, "rmdir /project; ln -s /usr /project")
    with pytest.raises(ItemError, match="/project is no folder any more"):
        async with made(tmp_path / "box"):
            pass


async def test_project_and_host_names(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir(mode=0o700)
    (project / "file").write_text("of the project")
    async with made(tmp_path / "box", project=project) as sandbox:
        assert (
            await said(sandbox, "pwd; cat file; echo $PROJECT $WORKSPACE")
            == "/project\nof the project/project /workspace"
        )
        assert (await sandbox.shell("touch new", timeout=SECONDS)).exit_code != 0


async def test_archives_in_and_out(tmp_path: Path) -> None:
    async with made(tmp_path / "box") as sandbox:
        content = layer(member("d/file", b"text", uid=1000, gid=1000, mode=0o640))
        await sandbox.put(io.BytesIO(content), "/srv/new")
        owner = "1000" if AS_ROOT else "0"
        assert await said(sandbox, "stat -c '%u %a' /srv/new/d/file; cat /srv/new/d/file") == f"{owner} 640\ntext"
        out = io.BytesIO()
        await sandbox.get("/srv/new", out, max_bytes=1 << 20)
        out.seek(0)
        with tarfile.open(fileobj=out) as archive:
            assert sorted(archive.getnames()) == ["new", "new/d", "new/d/file"]


# --- Undoing

_OWNER = """
import asyncio, sys
from pathlib import Path
from manyhands.processes.strays import process_mark
from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from manyhands.sandboxes.protocol import SandboxRequest

async def main():
    request = SandboxRequest(Path(sys.argv[1]), process_mark(sys.argv[2]), image=sys.argv[3])
    sandbox = await BubblewrapBackend().create(request)
    for line in sys.argv[4:]:
        verb, _, rest = line.partition(" ")
        if verb == "begin":
            await sandbox.begin_step(rest)
        elif verb == "start":
            asyncio.ensure_future(sandbox.shell(rest, timeout=60))
            await asyncio.sleep(0.5)
        else:
            result = await sandbox.shell(rest, timeout=60)
            assert result.exit_code == 0, result
    print("ready", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def owner_of(box: Path, run: str, *lines: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", _OWNER, str(box), run, full_image_pin(), *lines]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)


def ready(owner: subprocess.Popen[str]) -> None:
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"


_LISTING = """(
cd /; find etc home opt root usr/new var workspace srv -not -type d -printf '%p %y %m %U:%G %n %l ' \
  -exec sh -c '[ -f "$1" ] && [ ! -h "$1" ] && md5sum <"$1" || echo' sh {} ';' | sort
find etc home opt root var workspace srv usr -maxdepth 2 -type d -printf '%p %m %U:%G\\n' | sort; stat -c '%a %u:%g' /
)"""
_BEFORE = """\
(set -e; mkdir -p /workspace/d/e /srv/deep; echo old >/workspace/d/file; ln /workspace/d/file /workspace/linked; ln -s d/file /workspace/sym
chmod 640 /workspace/d/file; rm /home/tester/kept; rm -r /opt/tool; mkdir /opt/tool; echo own >/opt/tool/mine; echo add >>/etc/profile
chmod 700 /srv/deep; mkfifo /workspace/pipe; rm -r /root; mkdir -m 711 /root; touch /usr/new; chmod 751 /; CLOSED)
"""
_GIVEN = "chown 1000:33 /workspace/d/file /opt && chown -h 12:13 /workspace/sym && chown 5:6 /srv /workspace/pipe"
_TORN = """\
echo new >>/workspace/d/file; rm /workspace/linked /workspace/sym /usr/new; rm -r /opt /srv /etc/profile
mkdir -p /gone/x /home/tester/kept; chmod 777 / /workspace/d /etc; chown 7:8 / /workspace /var /etc/group
rm /workspace/pipe; echo x >/root/x; mv /etc/group /etc/other; ln /etc/other /gone; rm -rf /var; echo made >/var; sleep 60
"""


async def test_step_cut_off_is_undone_exactly(tmp_path: Path) -> None:
    box, run = tmp_path / "box", f"undone-{secrets.token_hex(4)}"
    lines = [
        f"shell {_BEFORE.replace('CLOSED', 'mkdir -m 000 /srv/closed' if AS_ROOT else 'true')}",
        *([f"shell {_GIVEN}"] if AS_ROOT else []),
        "begin main/1",
        f"shell {_LISTING} >/tmp/list",
    ]
    owner = owner_of(box, run, *lines, "begin main/3", f"start {_TORN}")
    ready(owner)
    listed = (box / "upper" / "tmp" / "list").read_text()
    assert "workspace/linked f 640" in listed
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    await until(lambda: as_coroutine(not processes_of(run)))
    assert not (box / "upper" / "workspace" / "linked").exists()
    async with made(box) as sandbox:
        assert sandbox.open_step == "main/3"
        assert await sandbox.reattach(False, "main/3")
        assert await said(sandbox, f"{_LISTING} >/tmp/again; diff /tmp/list /tmp/again && echo same") == "same"
        assert (
            await said(sandbox, "ls /opt/tool; test ! -e /home/tester/kept; test ! -e /gone; echo well") == "mine\nwell"
        )
        await sandbox.begin_step("main/3")


async def test_recorded_step_stands_in_an_image(tmp_path: Path) -> None:
    box, run = tmp_path / "box", f"stands-{secrets.token_hex(4)}"
    owner = owner_of(box, run, "begin main/1", "shell echo new >/usr/new; rm /etc/profile; cd /home; v=7")
    ready(owner)
    owner.kill()
    owner.wait()
    await until(lambda: as_coroutine(not processes_of(run)))
    async with made(box) as sandbox:
        assert await sandbox.reattach(True, "main/1")
        assert (
            await said(sandbox, "pwd; echo $v; cat /usr/new; test ! -e /etc/profile && echo gone")
            == "/home\n7\nnew\ngone"
        )


# --- Nothing is left


def processes_of(run: str) -> list[int]:
    """What carries the mark of a run, or descends from that."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if run.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def mounts_below(path: Path) -> list[str]:
    """Mounts that any process sees, whose options or places name a path, or that are overlays of ours."""
    found = set()
    for mounts in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            lines = mounts.read_text().splitlines()
        except OSError:
            continue
        found |= {line for line in lines if str(path) in line}
    return sorted(found)


async def until(holds: Callable[[], Awaitable[bool]], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not await holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def as_coroutine(value: bool) -> bool:
    return value


@pytest.mark.parametrize("rounds", [4, pytest.param(40, marks=pytest.mark.slow)])
async def test_owner_killed_at_any_instant_leaves_nothing(tmp_path: Path, rounds: int) -> None:
    """From the start of its sandbox on, which takes some hundredths of a second."""
    full_image_pin()
    for number in range(rounds):
        run = f"killed-{secrets.token_hex(4)}"
        owner = owner_of(tmp_path / f"box{number}", run, "shell sleep 60 & (setsid sleep 60 &)")
        state = tmp_path / f"box{number}" / "filled"
        await until(lambda: as_coroutine(state.exists()), 30)  # noqa: B023
        await asyncio.sleep(0.2 * number / rounds)
        owner.kill()
        owner.wait()
        await until(lambda: as_coroutine(not processes_of(run)))  # noqa: B023
        await until(lambda: as_coroutine(not mounts_below(tmp_path / f"box{number}")))  # noqa: B023
    assert " manyhands " not in Path("/proc/self/mountinfo").read_text()


async def test_removal_of_what_is_left(tmp_path: Path) -> None:
    async with made(tmp_path / "box") as sandbox:
        await said(
            sandbox, "mkdir -p /srv; mkdir -m 000 /srv/closed; rm -r /opt; echo x >/srv/x; chmod 000 /srv/x /usr"
        )
        assert (await sandbox.shell("ls /usr", timeout=SECONDS)).exit_code in (0, 127)
    assert (tmp_path / "box" / "work" / "work").exists()
    remove_tree(tmp_path / "box")
    assert not (tmp_path / "box").exists()


async def test_limits_hold(tmp_path: Path) -> None:
    limits = SandboxLimits(disk=20 << 20, processes=50, memory=256 << 20)
    async with made(tmp_path / "box", limits=limits) as sandbox:
        result = await sandbox.shell("head -c 30000000 /dev/zero >/usr/large; sync; true", timeout=SECONDS)
        assert b"disk quota exceeded" in result.output
        assert await said(sandbox, "rm /usr/large; echo well") == "well"
        assert (await sandbox.shell("head -c 200 /proc/1/mem; umount /proc", timeout=SECONDS)).exit_code != 0


async def test_start_takes_little_more_than_without_an_image(tmp_path: Path) -> None:
    image = full_image_pin()
    seconds: dict[str | None, list[float]] = {None: [], image: []}
    for number in range(6):
        for each, taken in seconds.items():
            began = time.monotonic()
            request = SandboxRequest(tmp_path / f"box{number}{each is None}", "start", image=each)
            sandbox = await BubblewrapBackend().create(request)
            taken.append(time.monotonic() - began)
            await sandbox.close()
    print(json.dumps({str(each): round(min(taken), 4) for each, taken in seconds.items()}))
    assert min(seconds[image]) < min(seconds[None]) + 0.05
