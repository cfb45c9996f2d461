"""The image stores of real engines: look-up without a pull, pins, pulls, builds, exports."""

from __future__ import annotations

import asyncio
import json
import subprocess
import tarfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.sandboxes.containers.client import EngineClient
from manyhands.sandboxes.containers.images import EngineImages
from manyhands.sandboxes.images.store import Image, PullProgress
from tests.support.engines import Engine


@pytest.fixture(scope="module", params=["docker", pytest.param("podman", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(f"{request.param}_engine")
    return found


@pytest_asyncio.fixture
async def images(engine: Engine) -> AsyncIterator[EngineImages]:
    store = EngineImages(EngineClient(engine.kind, engine.host))
    yield store
    await store.close()


def _name(engine: Engine, word: str) -> str:
    return f"{engine.kind}-{word}-{time.monotonic_ns()}"


def _another(engine: Engine) -> str:
    """An image that no other test has."""
    made = engine.client("create", "--network", "none", engine.bare, "sh").strip()
    identity = engine.client("commit", made).strip()
    engine.client("rm", made)
    return identity


async def test_an_image_of_the_engine_alone_is_pinned_by_its_id(images: EngineImages, engine: Engine) -> None:
    found = await images.find(engine.full)
    assert found is not None
    assert found.pin.startswith("sha256:")
    assert found.present
    assert found.size is not None
    assert found.size > 10_000_000
    assert found.platform.startswith("linux/")
    assert await images.present(found.pin)
    again = await images.find(found.pin)
    assert again is not None
    assert again.pin == found.pin


async def test_nothing_is_found_where_nothing_is(images: EngineImages, engine: Engine) -> None:
    assert await images.find(f"{engine.registry}/nothing/here:1") is None
    assert await images.find("sha256:" + "0" * 64) is None
    with pytest.raises(ItemError) as caught:
        await images.find("127.0.0.1:1/nothing:1")
    assert caught.value.cause is Cause.SANDBOX_LOST
    assert "127.0.0.1:1" in str(caught.value)


async def test_an_image_at_a_registry_is_found_pulled_once_and_removed(images: EngineImages, engine: Engine) -> None:
    reference = engine.pushed(f"{_name(engine, 'pulled')}:1", _another(engine))
    found = await images.find(reference)
    assert found is not None
    assert not found.present
    assert found.pin.startswith(f"{reference.removesuffix(':1')}@sha256:")
    assert not await images.present(found.pin)
    said: list[PullProgress] = []
    await asyncio.gather(*(images.pull(found, said.append) for _ in range(8)))
    assert await images.present(found.pin)
    assert all(progress.total is None or progress.done <= progress.total for progress in said)
    after = await images.find(reference.removesuffix(":1") + "@" + found.pin.partition("@")[2])
    assert after is not None
    assert after.pin == found.pin
    await images.remove(found.pin)
    assert not await images.present(found.pin)
    await images.remove(found.pin)


async def test_a_pin_stays_when_its_tag_moves(images: EngineImages, engine: Engine) -> None:
    reference = engine.pushed(f"{_name(engine, 'moved')}:1")
    before = await images.find(reference)
    engine.pushed(reference.partition("/")[2], _another(engine))
    after = await images.find(reference)
    assert before is not None
    assert after is not None
    assert before.pin != after.pin
    await images.pull(before, lambda progress: None)
    assert await images.present(before.pin)


async def test_a_digest_that_is_gone_is_said(images: EngineImages, engine: Engine) -> None:
    gone = Image("it", f"{engine.registry}/gone@sha256:{'0' * 64}")
    with pytest.raises(ItemError) as caught:
        await images.pull(gone, lambda progress: None)
    assert caught.value.cause is Cause.SANDBOX_LOST
    assert "pull it" in str(caught.value)


async def test_a_dockerfile_is_built_once_with_its_log(images: EngineImages, engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {engine.full}\nCOPY kept /kept\nENV MADE=yes\nWORKDIR /made\n")
    (tmp_path / "kept").write_text("of the context")
    tag, log = f"{_name(engine, 'built')}:1", tmp_path / "logs" / "build.log"
    built = await images.build(tmp_path, tag=tag, timeout=60, log=log)
    assert built.pin.startswith("sha256:")
    assert "COPY kept" in log.read_text()
    (tmp_path / "Dockerfile").write_text("FROM nowhere")
    assert (await images.build(tmp_path, tag=tag, timeout=60, log=log)).pin == built.pin

    archive = tmp_path / "file-system.tar"
    await images.export(built.pin, archive)
    with tarfile.open(archive) as content:
        names = content.getnames()
    assert {"kept", "usr/bin/bash"} <= {name.removeprefix("./") for name in names}
    config = json.loads((tmp_path / "file-system.tar.json").read_text())
    assert "MADE=yes" in config["Env"]
    assert config["WorkingDir"] == "/made"
    assert "manyhands-export" not in engine.client("ps", "-a")
    await images.remove(built.pin)
    assert not await images.present(built.pin)


async def test_a_dockerfile_that_does_not_build_is_refused_with_its_last_words(
    images: EngineImages, engine: Engine, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {engine.bare}\nCOPY missing-file /x\n")
    with pytest.raises(UserError, match="missing-file"):
        await images.build(tmp_path, tag=_name(engine, "broken"), timeout=60, log=tmp_path / "log")
    (tmp_path / "Dockerfile").write_text(f"FROM {engine.bare}\nRUN exit 37\n")
    with pytest.raises(UserError, match="does not build"):
        await images.build(tmp_path, tag=_name(engine, "failing"), timeout=60, log=tmp_path / "log")
    assert "exit 37" not in engine.client("ps", "-a", "--no-trunc", "--format", "{{.Command}}")
    (tmp_path / "Dockerfile").unlink()
    with pytest.raises(UserError, match="no Dockerfile"):
        await images.build(tmp_path, tag=_name(engine, "broken"), timeout=60, log=tmp_path / "log")


@pytest.mark.slow
async def test_a_build_ends_at_its_time_limit(docker_engine: Engine, tmp_path: Path) -> None:
    engine, images = docker_engine, EngineImages(EngineClient("docker", docker_engine.host))
    (tmp_path / "Dockerfile").write_text(f"FROM {engine.bare}\nRUN sleep 300.125\n")
    began = time.monotonic()
    with pytest.raises(UserError, match="not built within 5 seconds"):
        await images.build(tmp_path, tag=_name(engine, "slow"), timeout=5, log=tmp_path / "log")
    assert time.monotonic() - began < 15
    deadline = time.monotonic() + 15
    await images.close()
    while _runs("sleep 300.125"):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.2)


def _runs(words: str) -> bool:
    return subprocess.run(["pgrep", "-f", words], check=False, capture_output=True).returncode == 0
