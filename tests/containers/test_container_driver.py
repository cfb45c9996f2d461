"""The driver of containers over real engines."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.sandboxes.files.overlay_copy import copy_upper
from manyhands.sandboxes.remote.driver import FOLDER, RUN
from tests.support.container_worlds import Worlds, worlds_of
from tests.support.engines import Engine

ROOT = Path(__file__).resolve().parents[2]
SLOW = pytest.mark.slow


@pytest.fixture(
    scope="module", params=["docker", *(pytest.param(kind, marks=SLOW) for kind in ("podman", "rootless_podman"))]
)
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(f"{request.param}_engine")
    return found


@pytest_asyncio.fixture
async def worlds(engine: Engine) -> AsyncIterator[Worlds]:
    async with worlds_of(engine) as made:
        yield made


async def test_a_command_has_its_three_streams_and_its_code(worlds: Worlds) -> None:
    world = await worlds.make()
    said = await worlds.run_in(world, "/bin/sh", "-c", "cat; echo wrong >&2; exit 7", input=b"\xff\x00given")
    assert (said.code, said.output, said.errors) == (7, b"\xff\x00given", b"wrong\n")
    assert (await worlds.run_in(world, "true")).code == 0
    big = b"x" * 3_000_000
    assert (await worlds.run_in(world, "cat", input=big)).output == big


async def test_files_stay_when_a_world_is_started_again(worlds: Worlds) -> None:
    world = await worlds.make()
    await worlds.sh(world, "echo kept > file; (sleep 100 &)")
    await worlds.driver.stop(world.id)
    assert [each.running for each in await worlds.driver.listed({RUN: worlds.run})] == [False]
    with pytest.raises(ItemError) as caught:
        await worlds.sh(world, "true")
    assert caught.value.cause is Cause.SANDBOX_LOST
    await worlds.driver.start(world.id)
    await worlds.driver.start(world.id)
    assert await worlds.sh(world, "cat file; ps -ef | grep -c [s]leep || true") == "kept\n0\n"


async def test_a_world_is_lost_when_it_is_gone(worlds: Worlds) -> None:
    world = await worlds.make()
    worlds.engine.client("rm", "-f", *(["-t", "0"] if worlds.engine.kind == "podman" else []), world.id)
    for call in (worlds.sh(world, "true"), worlds.driver.start(world.id), worlds.driver.snapshot(world.id, {})):
        with pytest.raises(ItemError) as caught:
            await call
        assert caught.value.cause is Cause.SANDBOX_LOST
    await worlds.driver.stop(world.id)
    await worlds.driver.delete(world.id)


async def test_the_directory_is_the_rows_else_the_images_else_a_workspace(worlds: Worlds, tmp_path: Path) -> None:
    plain = await worlds.make()
    assert (plain.directory, plain.workspace, plain.home) == ("/workspace", "/workspace", "/root")
    assert await worlds.sh(plain, "pwd") == "/workspace\n"
    given = await worlds.make(directory="/home/tester")
    assert (given.directory, given.workspace) == ("/home/tester", "/workspace")
    assert await worlds.sh(given, "pwd; ls /workspace") == "/home/tester\n"
    with pytest.raises(ItemError, match="/no/where") as caught:
        await worlds.make(directory="/no/where")
    assert caught.value.cause is Cause.INVALID_INPUT
    with pytest.raises(ItemError, match="/no/where") as caught:
        await worlds.run_in(plain, "true", directory="/no/where")
    assert caught.value.cause is Cause.INVALID_INPUT
    made = worlds.engine.client("create", "--network", "none", worlds.engine.full, "sh").strip()
    image = worlds.engine.client("commit", "--change", "WORKDIR /home/tester", "--change", "USER tester", made).strip()
    worlds.engine.client("rm", made)
    own = await worlds.make(image=image)
    assert (own.directory, own.workspace, own.home) == ("/home/tester",) * 3
    assert (
        await worlds.sh(own, "pwd; whoami; echo $HOME; cat kept")
        == "/home/tester\ntester\n/home/tester\nof the image\n"
    )
    await worlds.driver.delete(own.id)
    worlds.engine.client("rmi", image)
    assert len(await worlds.driver.listed({RUN: worlds.run})) == 2


async def test_users_are_given_by_name_or_number_and_own_their_workspace(worlds: Worlds) -> None:
    named = await worlds.make(user="tester")
    assert named.home == "/home/tester"
    assert await worlds.sh(named, "id -un; touch made; stat -c %U made") == "tester\ntester\n"
    assert await worlds.sh(named, "id -u", user="0") == "0\n"
    numbered = await worlds.make(user="1234")
    assert await worlds.sh(numbered, "id -u; touch made") == "1234\n"
    for attempt in (worlds.make(user="nobody-here"), worlds.run_in(named, "true", user="nobody-here")):
        with pytest.raises(ItemError, match="no user nobody-here") as caught:
            await attempt
        assert caught.value.cause is Cause.INVALID_INPUT


async def test_root_can_do_what_containers_may_and_users_nothing_whoever_the_container_is_for(worlds: Worlds) -> None:
    engine = worlds.engine
    made = engine.client("create", "--network", "none", engine.full, "sh").strip()
    image = f"of-tester-{worlds.run}:1"
    engine.client("commit", "--change", "USER tester", made, image)
    engine.client("rm", made)
    facts = "id -u; id -G; echo $HOME; sed -n 's/^CapEff:\t//p; s/^CapPrm:\t//p; s/^CapAmb:\t//p' /proc/self/status"
    tester = "1000\n1000\n/home/tester\n" + 3 * "0000000000000000\n"
    root = 2 * "00000000000404fb\n"
    of_image = await worlds.make(image=image)
    asked = await worlds.make(user="tester:1000")
    for world in (of_image, asked):
        assert world.home == "/home/tester"
        assert await worlds.sh(world, facts) == tester
        said = (await worlds.sh(world, facts, user="root")).split("\n", 3)
        assert (said[0], said[2], said[1].split()[0]) == ("0", "/root", "0")
        assert sorted(said[3].splitlines(True))[1:] == root.splitlines(True)
        await worlds.sh(world, "chmod 000 /workspace && echo x > /workspace/x && chown 1234 /workspace/x", user="root")
    snapshot = await worlds.driver.snapshot(of_image.id, {RUN: worlds.run})
    again = await worlds.make(image=snapshot)
    assert again.home == "/home/tester"
    assert await worlds.sh(again, f"cd /; {facts}") == tester
    for world in (of_image, again):
        await worlds.driver.delete(world.id)
    await worlds.driver.delete_snapshot(snapshot)
    engine.client("rmi", image)


async def test_archives_come_and_go_with_their_owners(worlds: Worlds) -> None:
    world = await worlds.make()
    sent = io.BytesIO()
    with tarfile.open(fileobj=sent, mode="w") as archive:
        member = tarfile.TarInfo("folder/file")
        member.size, member.uid, member.gid, member.mode = 5, 1000, 1000, 0o640
        archive.addfile(member, io.BytesIO(b"given"))
    sent.seek(0)
    await worlds.driver.put(world.id, sent, "/workspace")
    assert await worlds.sh(world, "stat -c '%u %g %a' folder/file; cat folder/file") == "1000 1000 640\ngiven"
    got = io.BytesIO()
    await worlds.driver.get(world.id, "/workspace/folder", got, max_bytes=1_000_000)
    got.seek(0)
    with tarfile.open(fileobj=got) as archive:
        assert [member.name for member in archive] == ["folder", "folder/file"]
    with pytest.raises(FileNotFoundError):
        await worlds.driver.get(world.id, "/workspace/nothing", io.BytesIO(), max_bytes=1_000_000)
    if worlds.engine.kind == "docker":  # Podman makes it
        with pytest.raises(FileNotFoundError):
            await worlds.driver.put(world.id, io.BytesIO(sent.getvalue()), "/workspace/nothing")
    with pytest.raises(ValueError, match="more than"):
        await worlds.driver.get(world.id, "/usr/bin", io.BytesIO(), max_bytes=100_000)
    assert await worlds.sh(world, "echo goes on") == "goes on\n"


async def test_a_snapshot_makes_the_same_world_again(worlds: Worlds) -> None:
    world = await worlds.make(user="tester", environment={"GIVEN": "yes"})
    await worlds.sh(world, "echo first > file; rm /home/tester/kept; mkfifo /home/tester/pipe")
    labels = {RUN: worlds.run, FOLDER: '/a "b" $HOME\\c'}
    first = await worlds.driver.snapshot(world.id, labels)
    await worlds.sh(world, "echo second > file")
    size = await worlds.driver.size(world.id)
    assert size is not None
    assert 0 < size < 1_000_000
    kept = [each for each in await worlds.driver.listed({FOLDER: labels[FOLDER]}) if each.snapshot]
    assert [each.id for each in kept] == [first]
    await worlds.driver.delete(world.id)
    again = await worlds.make(image=first, user="tester")
    assert (again.directory, again.home) == ("/workspace", "/home/tester")
    assert await worlds.sh(again, "cat file; ls /home/tester; stat -c %U file") == "first\npipe\ntester\n"
    second = await worlds.driver.snapshot(again.id, labels)
    await worlds.driver.delete_snapshot(first)
    await worlds.driver.delete_snapshot(second)
    await worlds.driver.delete(again.id)
    assert await worlds.driver.listed({RUN: worlds.run}) == []
    await worlds.driver.delete_snapshot(first)


async def test_an_image_with_volumes_has_no_snapshot_and_leaves_none(worlds: Worlds) -> None:
    engine = worlds.engine
    made = engine.client("create", "--network", "none", engine.bare, "sh").strip()
    image = engine.client("commit", "--change", "VOLUME /home", made).strip()
    engine.client("rm", made)
    before = engine.client("volume", "ls", "-q")
    world = await worlds.make(image=image)
    assert await worlds.sh(world, "cat /home/tester/kept; echo x > /home/x") == "of the image\n"
    with pytest.raises(ItemError, match="volumes"):
        await worlds.driver.snapshot(world.id, {})
    await worlds.driver.delete(world.id)
    assert engine.client("volume", "ls", "-q") == before
    engine.client("rmi", image)


async def test_worlds_are_found_by_their_labels_started_or_not(worlds: Worlds) -> None:
    running = await worlds.make()
    stopped = await worlds.make(labels={RUN: worlds.run, FOLDER: "here"})
    await worlds.driver.stop(stopped.id)
    created = worlds.engine.client(
        "create", "--label", f"{RUN}={worlds.run}", "--network", "none", worlds.engine.bare, "sh"
    ).strip()
    found = {each.id: each.running for each in await worlds.driver.listed({RUN: worlds.run})}
    assert found == {running.id: True, stopped.id: False, created: False}
    assert [each.id for each in await worlds.driver.listed({RUN: worlds.run, FOLDER: ""})] == [stopped.id]
    assert await worlds.driver.listed({RUN: "another"}) == []


async def test_a_project_is_read_only_and_hides_what_it_should(worlds: Worlds, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder != Path("/tmp") and folder.is_relative_to("/tmp") and folder.stat().st_uid == os.getuid():
            folder.chmod(0o755)  # for the engine of another user
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "secret").write_text("hidden")
    (tmp_path / "shown").write_text("shown")
    world = await worlds.make(project=tmp_path, hidden=(tmp_path / "run", Path("/elsewhere")), directory="/project")
    assert world.workspace == "/workspace"
    assert await worlds.sh(
        world, "pwd; cat shown; ls -A run; touch x 2>/dev/null || touch run/x 2>/dev/null || echo no"
    ) == ("/project\nshownno\n")
    assert await worlds.sh(world, "touch /workspace/x && ls /workspace") == "x\n"


async def test_what_is_limited(worlds: Worlds) -> None:
    world = await worlds.make()
    facts = await worlds.sh(
        world,
        "ulimit -c; ulimit -f; ulimit -n; df -k /dev/shm | tail -1 | tr -s ' ' | cut -d' ' -f2; "
        "grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status; ls /sys/class/net",
    )
    lines = facts.split("\n")
    assert lines[0] == "0"
    assert lines[1] == str((8 << 20) // 512)
    assert int(lines[2]) <= 65536
    assert lines[3] == str((256 << 20) // 1024)
    assert lines[4].split() == ["CapEff:", "00000000000404fb"]
    assert lines[5].split() == ["NoNewPrivs:", "1"]
    assert lines[6].split() == ["Seccomp:", "2"]
    assert lines[7].split() == ["lo"]
    if "processes" not in await worlds.driver.unenforced():
        said = await worlds.run_in(world, "sh", "-c", "for i in $(seq 200); do sleep 5 & done; wait")
        assert b"ork" in said.errors or b"esource" in said.errors
        world = await worlds.make()  # in the first one, processes that were left may still take the place of any other
        code = "a = bytearray(400 << 20); print(len(a))"
        assert (await worlds.run_in(world, "python3", "-c", code)).code in (137, 1)


async def test_zombies_are_reaped(worlds: Worlds) -> None:
    for image in (worlds.engine.full, worlds.engine.bare):
        world = await worlds.make(image=image)
        await worlds.sh(world, "for i in 1 2 3 4 5; do (sleep 0.1 &) ; done; sleep 0.5")
        assert "Z" not in await worlds.sh(world, "cat /proc/[0-9]*/stat | cut -d' ' -f3")


@pytest.mark.parametrize("image", ["full", pytest.param("bare", marks=SLOW)])
async def test_a_world_ends_with_its_killed_owner_and_has_its_files_again(worlds: Worlds, image: str) -> None:
    code = f"""
import asyncio, sys
from tests.support.container_worlds import Worlds, ContainerDriver
from tests.support.engines import Engine
async def main():
    engine = Engine({worlds.engine.kind!r}, {worlds.engine.host!r})
    worlds = Worlds(ContainerDriver(engine.kind, engine.host), engine, run={worlds.run!r})
    world = await worlds.make(image=worlds.engine.{image})
    await worlds.sh(world, "echo kept > /workspace/file; (sleep 1000 &)")
    print(world.id, flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""
    owner = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE)  # noqa: ASYNC220
    assert owner.stdout is not None
    world = (await asyncio.to_thread(owner.stdout.readline)).decode().strip()
    pid = await worlds.driver.process(world)
    os.kill(owner.pid, signal.SIGKILL)
    killed = time.monotonic()
    owner.wait()
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() - killed < 5
        await asyncio.sleep(0.005)
    assert time.monotonic() - killed < 1.0, "as is promised"
    await worlds.driver.start(world)
    assert await worlds.sh(world, "cat file") == "kept\n"


async def test_an_engine_has_an_identity_and_says_what_it_can_not_enforce(worlds: Worlds) -> None:
    identity = await worlds.driver.identity()
    assert identity == await worlds.driver.identity()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert boot.replace("-", "") in identity.replace("-", "")
    async with worlds_of(worlds.engine) as other:
        assert await other.driver.identity() == identity
    if worlds.engine.rootless:
        assert set(await worlds.driver.unenforced()) <= {"memory", "processes", "cpus"}
    else:
        assert await worlds.driver.unenforced() == ()


async def test_a_name_or_an_image_that_can_not_be(worlds: Worlds) -> None:
    with pytest.raises(ItemError, match="no image nowhere-at-all") as caught:
        await worlds.make(image="nowhere-at-all:1")
    assert caught.value.cause is Cause.INVALID_INPUT
    engine = worlds.engine
    made = engine.client("create", "--network", "none", engine.bare, "sh").strip()
    empty = io.BytesIO()
    with tarfile.open(fileobj=empty, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("only"), io.BytesIO())
    engine.client("rm", made)
    name = f"empty-{worlds.run}:1"
    engine.client("import", "-", name, input=empty.getvalue())
    with pytest.raises(ItemError, match="no /bin/sh") as caught:
        await worlds.make(image=name)
    assert caught.value.cause is Cause.INVALID_INPUT
    assert await worlds.driver.listed({RUN: worlds.run}) == []
    engine.client("rmi", name)


_CHANGES = r"""
rm -rf /usr/share/doc /home/tester; mkdir -p /home/tester; echo new >/home/tester/new
chmod 6755 /usr/bin/env; chown 7:8 /usr/bin/env; chmod 1711 /; echo x >>/etc/passwd; ln /etc/passwd /etc/again
ln -s / /root/link; mkfifo /root/pipe; mkdir -m 000 /srv/closed; mv /etc/profile /etc/other; rm -rf /srv/a; touch -d 2001-02-03 /root/old
"""
_LISTING = r"""
stat -c '%a %u %g' /
{ find / -xdev -mindepth 1 \( -path /proc -o -path /sys -o -path /dev -o -path /tmp \) -prune -o -printf '%p %y %m %U %G %s %n %T@ %l\n'
find /etc /root /home -xdev -type f -exec md5sum {} +; } | sort |
grep -v '/etc/\(hosts\|hostname\|resolv.conf\|mtab\)\|^/run\|^/\.dockerenv'
"""


async def test_a_copy_of_its_upper_folder_makes_the_same_world_again(worlds: Worlds, tmp_path: Path) -> None:
    world = await worlds.make()
    await worlds.sh(world, _CHANGES)
    before = await worlds.sh(world, _LISTING)
    upper = await worlds.driver.upper(world.id)
    if worlds.engine.rootless or os.geteuid() != 0:
        assert upper is None
        return
    assert upper is not None
    copy_upper(upper, tmp_path / "copy", max_bytes=1 << 30)
    await worlds.driver.delete(world.id)
    again = await worlds.make(changes=tmp_path / "copy")
    assert await worlds.sh(again, _LISTING) == before
    assert "new\n" in await worlds.sh(again, "cat /home/tester/new; test ! -e /etc/profile; test ! -e /usr/share/doc")
    # Which may itself be changed, and copied.
    await worlds.sh(again, "rm /home/tester/new; mv /etc/other /etc/profile")
    changed = await worlds.sh(again, _LISTING)
    second = await worlds.driver.upper(again.id)
    assert second is not None
    copy_upper(second, tmp_path / "second", max_bytes=1 << 30)
    assert await worlds.sh(await worlds.make(changes=tmp_path / "second"), _LISTING) == changed
