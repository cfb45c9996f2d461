"""Which sandbox a run gets, and where its commands start."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
import uvloop

from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from manyhands.sandboxes.bubblewrap.root import folders, mounts, search_path, start_directory
from manyhands.sandboxes.local import LocalBackend
from manyhands.sandboxes.protocol import Sandbox, SandboxBackend, SandboxLimits, SandboxRequest
from manyhands.sandboxes.selection import PacedBackend, choose_backend


def test_backends_by_name() -> None:
    assert choose_backend("auto").kind == "bubblewrap"
    assert choose_backend("bubblewrap").kind == "bubblewrap"
    assert choose_backend("local").kind == "local"


@pytest.mark.parametrize("name", ["singularity", "Local", "", "x"])
def test_other_names_are_refused_with_the_choices(name: str) -> None:
    with pytest.raises(UserError) as caught:
        choose_backend(name)
    message = str(caught.value)
    assert "\n" not in message
    assert "bubblewrap, local" in message
    assert "unknown" in message


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_an_engine_needs_an_image(name: str) -> None:
    with pytest.raises(UserError, match="name one with --image"):
        choose_backend(name)


def test_without_bubblewrap_the_choices_are_named(tmp_path: Path) -> None:
    code = (
        "from manyhands.sandboxes.selection import choose_backend\n"
        "try:\n    choose_backend('auto')\nexcept Exception as error:\n    print(type(error).__name__, error)"
    )
    environment = {"PATH": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("UserError --sandbox auto: bwrap is missing (install the package bubblewrap); ")
    assert "--sandbox local" in done.stdout


@pytest.mark.parametrize(
    ("cwd", "directory", "alias"),
    [
        (None, "/workspace", None),
        ("", "/workspace", None),
        (".", "/workspace", None),
        ("a/../b/", "/workspace/b", None),
        ("/workspace/x", "/workspace/x", None),
        ("/app", "/app", "/app"),
        ("//root/project/", "/root/project", "/root/project"),
        ("/tmp/x", "/tmp/x", "/tmp/x"),
    ],
)
def test_start_directories(cwd: str | None, directory: str, alias: str | None) -> None:
    assert start_directory(cwd) == (directory, alias)


@pytest.mark.parametrize(
    "cwd", ["/", "//", "/usr", "/usr/x", "/tmp", "/proc/1", "/bin", "/lib64/x", "..", "a/../..", "a\0b"]
)
def test_refused_start_directories(cwd: str) -> None:
    with pytest.raises(ItemError) as caught:
        start_directory(cwd)
    assert caught.value.cause == Cause.INVALID_INPUT


async def test_absolute_cwd_is_the_workspace_too(tmp_path: Path) -> None:
    sandbox = await BubblewrapBackend().create(SandboxRequest(tmp_path / "box", "absolute", cwd="/root/app"))
    try:
        await sandbox.write_file("one", b"1")
        await sandbox.write_file("/workspace/two", b"2")
        result = await sandbox.shell("pwd; cat one two; cat /workspace/one", timeout=10)
        assert result.output == b"/root/app\n121"
        assert await sandbox.read_file("/root/app/two") == b"2"
    finally:
        await sandbox.close()


async def test_local_absolute_cwd_must_exist_and_is_not_undone(tmp_path: Path) -> None:
    place = tmp_path / "place"
    with pytest.raises(ItemError) as caught:
        await LocalBackend().create(SandboxRequest(tmp_path / "box", "absolute", cwd=str(place)))
    assert caught.value.cause == Cause.INVALID_INPUT
    place.mkdir()
    sandbox = await LocalBackend().create(SandboxRequest(tmp_path / "box", "absolute", cwd=str(place)))
    try:
        assert (await sandbox.shell("pwd", timeout=10)).output.decode().strip() == str(place)
        await sandbox.begin_step("main/1")
        assert not await sandbox.reattach(False, "main/1")
    finally:
        await sandbox.close()


@pytest.mark.parametrize("attached", [True, False])
def test_system_files_are_not_all_shown(tmp_path: Path, attached: bool) -> None:
    shown = folders(tmp_path, None, None, ())
    arguments = mounts(shown, SandboxLimits(), attached=attached)
    assert "/etc/shadow" not in arguments
    assert "/etc" not in arguments
    assert "--share-net" not in arguments
    assert "--share-net" in mounts(shown, SandboxLimits(network=True), attached=attached)


def test_own_python_where_the_system_has_none(tmp_path: Path) -> None:
    assert search_path(tmp_path / "no-python").endswith(f":{sys.base_prefix}/bin")
    python = Path(sys.base_prefix, "bin", "python3")
    assert python.exists()


async def test_network_when_asked_for(tmp_path: Path) -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    request = SandboxRequest(tmp_path / "box", "network", limits=SandboxLimits(network=True))
    sandbox = await BubblewrapBackend().create(request)
    try:
        result = await sandbox.shell(f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached", timeout=10)
        assert result.output == b"reached\n"
    finally:
        await sandbox.close()
        server.close()


@pytest.mark.parametrize("backend", [LocalBackend(), BubblewrapBackend()], ids=lambda backend: backend.kind)
def test_on_uvloop(tmp_path: Path, backend: SandboxBackend) -> None:
    async def main() -> None:
        sandbox = await backend.create(SandboxRequest(tmp_path / "box", "uvloop"))
        try:
            results = await asyncio.gather(*(sandbox.run(["echo", "x"], timeout=10) for _ in range(10)))
            assert [result.output for result in results] == [b"x\n"] * 10
            assert (await sandbox.shell("cd /; sleep 9", timeout=0.2)).timed_out
            big = b"y" * 300_000
            assert (await sandbox.run(["cat"], timeout=10, input=big, max_output=400_000)).output == big
            process = await sandbox.spawn("cat")
            await process.write(b"z")
            await process.close_input()
            assert await process.wait(10) == 0
            assert process.output() == (b"z", 1)
        finally:
            await sandbox.close()

    uvloop.run(main())


class _Counting:
    """A backend that notes how many sandboxes it makes at once."""

    kind = "counting"

    def __init__(self) -> None:
        self.now = 0
        self.most = 0

    def unavailable(self) -> str | None:
        return "counting only"

    async def create(self, request: SandboxRequest) -> Sandbox:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.01)
        self.now -= 1
        raise ItemError(Cause.SANDBOX_LOST, "none to be had")


async def test_pace(tmp_path: Path) -> None:
    inner = _Counting()
    backend = PacedBackend(inner, at_once=3)
    request = SandboxRequest(tmp_path, "pace")
    results = await asyncio.gather(*(backend.create(request) for _ in range(10)), return_exceptions=True)
    assert all(isinstance(result, ItemError) for result in results)
    assert inner.most == 3
    assert (backend.kind, backend.unavailable()) == ("counting", "counting only")
    with pytest.raises(ValueError, match="at least 1"):
        PacedBackend(inner, at_once=0)


async def test_sandbox_goes_on_after_everything_inside_was_killed(tmp_path: Path) -> None:
    sandbox = await BubblewrapBackend().create(SandboxRequest(tmp_path / "box", "killed"))
    try:
        await sandbox.shell("kept=yes; echo file >file", timeout=10)
        process = await sandbox.spawn("sleep 75")
        await sandbox.shell("until pgrep sleep; do sleep 0.05; done; kill -9 -1", timeout=10)
        assert await process.wait(5) is not None
        result = await sandbox.shell("echo $kept; cat file", timeout=10)
        assert result.output == b"yes\nfile\n"
    finally:
        await sandbox.close()


async def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for backend in (LocalBackend(), BubblewrapBackend()):
        with pytest.raises(ItemError) as caught:
            await backend.create(SandboxRequest(tmp_path / "file" / "box", "x"))
        assert caught.value.cause == Cause.SANDBOX_LOST
