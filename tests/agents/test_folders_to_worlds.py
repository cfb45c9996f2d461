"""Folders of this machine into sandboxes whose files lie elsewhere, and back: over a driver of worlds, with hostile archives."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from manyhands.agents.worlds.archives import fetch, send, unpack
from manyhands.agents.worlds.furnishing import Furnished, Furnishing
from manyhands.agents.worlds.item_world import ItemWorld
from manyhands.agents.worlds.templates import read_template
from manyhands.agents.worlds.world import World
from manyhands.sandboxes.remote.backend import RemoteBackend
from manyhands.testing.context import Crash, CrashPoint, MemoryContext, MemoryJournal
from manyhands.testing.fake_worlds.driver import FakeDriver, fake_service


@pytest.fixture(scope="module", autouse=True)
def _service() -> Iterator[None]:
    with fake_service():
        yield


def folder_in(place: Path) -> Path:
    folder = place / "folder"
    (folder / "deep").mkdir(parents=True, exist_ok=True)
    (folder / "deep" / "file").write_text("sent\n")
    (folder / "run").write_text("#!/bin/sh\necho ran >made\n")
    (folder / "run").chmod(0o755)
    if not (folder / "link").is_symlink():
        (folder / "link").symlink_to("deep/file")
    return folder


@asynccontextmanager
async def worlds() -> AsyncIterator[RemoteBackend]:
    backend = RemoteBackend(FakeDriver())
    try:
        yield backend
    finally:
        await backend.close()


async def there_and_back(context: MemoryContext, furnished: Furnished, folder: Path) -> list[str]:
    async with World(
        context, RemoteBackend(FakeDriver()), lambda: furnished.request(context.workspace, "mark")
    ) as world:
        await send(context.scope("in"), world, folder)
        await furnished.prepare(context, world)
        return await fetch(context.scope("out"), world, folder)


async def test_a_folder_goes_to_a_world_and_comes_back_as_it_is_then(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    furnished = Furnishing(setup="./run; rm deep/file; mkdir new; ln -s /etc/passwd outside").for_item(ItemWorld())
    assert await there_and_back(MemoryContext(workspace=tmp_path / "1-1"), furnished, folder) == []
    assert sorted(os.listdir(folder)) == ["deep", "link", "made", "new", "outside", "run"]
    assert os.listdir(folder / "deep") == []
    assert os.readlink(folder / "outside") == "/etc/passwd"
    assert (folder / "run").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    ("step", "when"),
    [
        (2, "before_recording"),
        (3, "before_recording"),
        pytest.param(1, "before_recording", marks=pytest.mark.slow),
        pytest.param(2, "after_recording", marks=pytest.mark.slow),
    ],
)
async def test_a_crash_in_between_repeats_only_what_it_cut_off(step: int, when: str, tmp_path: Path) -> None:
    folder, journal = folder_in(tmp_path), MemoryJournal()
    furnished = Furnishing(setup="echo once >>counted").for_item(ItemWorld())
    context = MemoryContext(journal, workspace=tmp_path / "1-1", crash=CrashPoint(step, when))  # type: ignore[arg-type]
    with pytest.raises(Crash):
        await there_and_back(context, furnished, folder)
    context = MemoryContext(journal, workspace=tmp_path / "1-1")
    await there_and_back(context, furnished, folder)
    assert (folder / "counted").read_text() == "once\n"
    assert context.performed == 3 - (step if when == "after_recording" else step - 1)


async def test_templates_and_files_reach_worlds_elsewhere_alike(tmp_path: Path) -> None:
    template = read_template(folder_in(tmp_path))
    run = Furnishing(
        template=(template.folder, template.digest),
        setup="./run",
        collect="cat made link given; echo $WHERE",
        environment={"WHERE": "there"},
    )
    furnished, context = run.for_item(ItemWorld(files={"given": "row\n"})), MemoryContext(workspace=tmp_path / "1-1")
    async with World(
        context, RemoteBackend(FakeDriver()), lambda: furnished.request(context.workspace, "mark")
    ) as world:
        await furnished.prepare(context, world)
        record = await furnished.collect(context, world)
    assert record is not None
    assert (record.output, record.problem) == ("ran\nsent\nrow\nthere\n", None)


def test_an_archive_reaches_nothing_outside_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    members = [
        ("w/../../kept", tarfile.REGTYPE, ""),
        ("w/out", tarfile.SYMTYPE, str(tmp_path)),
        ("w/out/kept", tarfile.REGTYPE, ""),
        ("w/deep/up", tarfile.SYMTYPE, ".."),
        ("w/deep/up/here", tarfile.REGTYPE, ""),
        ("w/hard", tarfile.LNKTYPE, "../kept"),
        ("w/elsewhere", tarfile.LNKTYPE, "w/nothing"),
        ("w/device", tarfile.CHRTYPE, ""),
        ("w/pipe", tarfile.FIFOTYPE, ""),
        ("w/" + "n" * 300, tarfile.REGTYPE, ""),
        ("w/fine", tarfile.REGTYPE, ""),
        ("/w/also", tarfile.REGTYPE, ""),
    ]
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as packing:
        for name, kind, target in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            info.size = 3 if kind == tarfile.REGTYPE else 0
            packing.addfile(info, io.BytesIO(b"new"))
    archive.seek(0)
    folder = tmp_path / "folder"
    folder.mkdir()
    left_out = unpack(archive, folder)
    assert sorted(path.name for path in folder.rglob("*")) == ["also", "deep", "fine", "out", "up"]
    assert left_out == 8
    assert (tmp_path / "kept").read_text() == "kept"
    assert sorted(os.listdir(tmp_path)) == ["folder", "kept"]


def packed(*members: tuple[str, bytes, str, int], content: bytes = b"") -> io.BytesIO:
    """An archive of members: (name, type, where it leads to, size that its header tells)."""
    archive = io.BytesIO()
    for name, kind, target, size in members:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, target, size
        archive.write(info.tobuf(tarfile.GNU_FORMAT))
        archive.write(content if kind == tarfile.REGTYPE else b"")
        archive.write(b"\0" * (-len(content) % 512 if kind == tarfile.REGTYPE else 0))
    archive.write(b"\0" * 1024)
    archive.seek(0)
    return archive


def test_further_names_of_a_file_do_not_multiply_what_is_written(tmp_path: Path) -> None:
    content = b"x" * 1_000_000
    names = [(f"w/name{number}", tarfile.LNKTYPE, "w/file", 0) for number in range(1000)]
    archive = packed(("w/file", tarfile.REGTYPE, "", len(content)), *names, content=content)
    assert archive.getbuffer().nbytes < 2_000_000
    assert unpack(archive, tmp_path, max_bytes=5_000_000) == 1
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == {
        "file": 1_000_000, **{f"name{number}": 1_000_000 for number in range(4)}
    }  # fmt: skip


@pytest.mark.parametrize(
    "archive",
    [
        packed(("w/file", tarfile.REGTYPE, "", -1024)),
        packed(("w/file", tarfile.REGTYPE, "", 5000), content=b"short"),
        packed(*[("x", tarfile.XHDTYPE, "", 0)] * 2000),
        io.BytesIO(b"no archive" * 100),
        io.BytesIO(gzip.compress(packed(("w/file", tarfile.REGTYPE, "", 3), content=b"new").getvalue())),
    ],
    ids=["negative size", "cut off", "headers of headers", "no archive", "compressed"],
)
def test_an_archive_that_is_none_is_told_from_one(archive: io.BytesIO, tmp_path: Path) -> None:
    with pytest.raises(tarfile.TarError):
        unpack(archive, tmp_path)
    assert list(tmp_path.iterdir()) in ([], [tmp_path / "file"])


def test_a_file_with_a_huge_hole_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "from" / "w").mkdir(parents=True)
    with (tmp_path / "from" / "w" / "hole").open("wb") as file:
        file.truncate(1 << 40)
    command = ["tar", "-c", "-S", "-f", "-", "-C", str(tmp_path / "from"), "w"]
    archive = io.BytesIO(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    (tmp_path / "to").mkdir()
    assert archive.getbuffer().nbytes < 100_000
    assert unpack(archive, tmp_path / "to") == 1
    assert list((tmp_path / "to").iterdir()) == []
