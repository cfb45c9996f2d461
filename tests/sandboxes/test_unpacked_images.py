"""The cache of unpacked images: looked up, pinned, unpacked once, found again, removed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.sandboxes.images.store import Image, PullProgress
from manyhands.sandboxes.images.templates import ImageTemplate, RowImages, names_file
from manyhands.sandboxes.images.unpacked import UnpackedImages, cache_folder
from tests.support.image_files import layer, layout, member, saved

LAYERS = [layer(member("etc/one", b"1"), member("proc", b"no folder"))]


def quiet(progress: PullProgress) -> None:
    pass


async def found(images: UnpackedImages, reference: str) -> Image:
    image = await images.find(reference)
    assert image is not None
    return image


async def test_looked_up_pinned_and_unpacked(tmp_path: Path) -> None:
    digest = layout(tmp_path / "image", LAYERS, {"Env": ["A=1", "B=x=y", "bad"], "WorkingDir": "/w", "User": "u:g"})
    images = UnpackedImages(None, cache=tmp_path / "cache")
    image = await found(images, f"oci:{tmp_path}/image#one")
    assert (image.pin, image.platform.split("/")[0], image.present) == (digest, "linux", False)
    assert not await images.present(digest)
    said: list[PullProgress] = []
    await images.pull(image, said.append)
    assert await images.present(digest)
    assert said[-1].done == image.size
    unpacked = images.unpacked(digest)
    assert unpacked is not None
    assert (unpacked.root / "etc" / "one").read_bytes() == b"1"
    assert all((unpacked.root / name).is_dir() for name in ("proc", "dev", "project"))
    assert unpacked.variables == {"A": "1", "B": "x=y"}
    assert (unpacked.directory, unpacked.user) == ("/w", "u:g")
    assert (await found(images, f"oci:{tmp_path}/image#one")).present
    assert await images.find(f"oci:{tmp_path}/nowhere") is None


async def test_a_pin_is_enough_to_go_on_with(tmp_path: Path) -> None:
    digest = saved(tmp_path / "image.tar", LAYERS)
    image = await found(UnpackedImages(None, cache=tmp_path / "cache"), f"tar:{tmp_path}/image.tar")
    later = UnpackedImages(None, cache=tmp_path / "cache")
    again = await found(later, digest)
    assert (again.pin, again.present) == (digest, False)
    await later.pull(Image(image.reference, digest), quiet)
    assert (await found(later, digest)).present
    (tmp_path / "image.tar").unlink()
    assert (await found(later, digest)).present
    await later.remove(digest)
    with pytest.raises(ItemError) as caught:  # neither here, nor where it was, and there is no engine
        await later.find(digest)
    assert caught.value.cause == Cause.SANDBOX_LOST


async def test_a_file_that_changed_since(tmp_path: Path) -> None:
    file = tmp_path / "image.tar"
    saved(file, LAYERS)
    images = UnpackedImages(None, cache=tmp_path / "cache")
    image = await found(images, f"tar:{file}")
    saved(file, [*LAYERS, layer(member("two", b"2"))])
    with pytest.raises(ItemError, match="another image by now"):
        await images.pull(image, quiet)
    assert not await images.present(image.pin)
    assert not list((tmp_path / "cache").rglob("*.partial"))


async def test_files_that_hold_no_image(tmp_path: Path) -> None:
    images = UnpackedImages(None, cache=tmp_path / "cache")
    (tmp_path / "text").write_text("text")
    with pytest.raises(ItemError, match="text is no archive") as caught:
        await images.find(f"tar:{tmp_path}/text")
    assert caught.value.cause == Cause.INVALID_INPUT
    saved(tmp_path / "image.tar", LAYERS)
    with pytest.raises(ItemError, match="is for linux/"):
        await images.find(f"tar:{tmp_path}/image.tar", platform="linux/other")
    with pytest.raises(ItemError, match="name a file"):
        await images.find("some/image:1")


async def test_one_in_use_is_not_removed(tmp_path: Path) -> None:
    saved(tmp_path / "image.tar", LAYERS)
    images = UnpackedImages(None, cache=tmp_path / "cache")
    image = await found(images, f"tar:{tmp_path}/image.tar")
    await images.pull(image, quiet)
    held = images.hold(image.pin)
    await images.remove(image.pin)
    assert await images.present(image.pin)
    os.close(held)
    await images.remove(image.pin)
    assert not await images.present(image.pin)
    assert not list((tmp_path / "cache").rglob("rootfs"))


_UNPACK = """
import asyncio, sys
from pathlib import Path
from manyhands.sandboxes.images import unpacked
from manyhands.sandboxes.images.unpacked import UnpackedImages

class Counted(UnpackedImages):
    def _unpack(self, *arguments):
        print("unpacks", flush=True)
        super()._unpack(*arguments)

async def main():
    images = Counted(None, cache=Path(sys.argv[1]))
    image = await images.find(sys.argv[2])
    await images.pull(image, lambda progress: None)
    assert await images.present(image.pin)
    print("done", flush=True)

asyncio.run(main())
"""


def unpacking(cache: Path, file: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", _UNPACK, str(cache), f"tar:{file}"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)


def test_many_processes_unpack_once_and_a_killed_one_leaves_nothing(tmp_path: Path) -> None:
    file, cache = tmp_path / "image.tar", tmp_path / "cache"
    saved(file, [layer(*(member(f"f{number}", b"x" * 2000) for number in range(4000)))])
    killed = unpacking(cache, file)
    assert killed.stdout is not None
    assert killed.stdout.readline() == "unpacks\n"
    until(lambda: any(cache.rglob("*.partial/rootfs/f100")))
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=10)
    assert len(list(cache.rglob("*.partial"))) == 1
    several = [unpacking(cache, file) for _ in range(3)]
    said = [process.communicate(timeout=60)[0] for process in several]
    assert sorted(said) == ["done\n", "done\n", "unpacks\ndone\n"]
    assert not list(cache.rglob("*.partial"))
    assert len(list(cache.rglob("rootfs/f*"))) == 4000


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_only_the_person_may_name_files() -> None:
    assert [names_file(each) for each in ("tar:/x", "oci:./x", "tar:~/x")] == [True] * 3
    assert [names_file(each) for each in ("tar:latest", "oci:1", "docker.example/tar:1", "/x", "tar")] == [False] * 5
    for row in ({"image": "tar:/etc/shadow"}, {"docker_image": "oci:/home"}):
        with pytest.raises(ValueError, match="rows can't name"):
            RowImages.of(None, None).image(row)
    assert ImageTemplate.parse("tar:/images/{name}.tar").fill({"name": "one"}) == "tar:/images/one.tar"
    for value in ("../../etc/shadow", "..", "a/b", ".hidden"):
        with pytest.raises(ValueError, match="can't become part of a path"):
            ImageTemplate.parse("tar:/images/{name}.tar").fill({"name": value})
    with pytest.raises(ValueError, match="rows can't name"):
        ImageTemplate.parse("{kind}:{path}").fill({"kind": "tar", "path": "/etc/shadow"})


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MANYHANDS_IMAGE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "manyhands" / "images"
    monkeypatch.setenv("MANYHANDS_IMAGE_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


async def test_a_pin_that_is_none() -> None:
    for pin in ("name:1", "sha256:short", "../" * 30 + "etc"):
        with pytest.raises(ItemError) as caught:
            await asyncio.to_thread(UnpackedImages(None).unpacked, pin)
        assert caught.value.cause == Cause.INVALID_INPUT
