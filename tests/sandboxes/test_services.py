"""Drivers for Apptainer, Modal and Daytona, over stand-ins (``tests/support/service_doubles.py``): nothing here tried the real ones."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.sandboxes.protocol import SandboxLimits
from manyhands.sandboxes.remote.driver import FOLDER, RUN, WorldSpec
from manyhands.sandboxes.services.apptainer import ApptainerDriver
from manyhands.sandboxes.services.daytona import DaytonaDriver
from manyhands.sandboxes.services.modal import ModalDriver, labels_of, tags_of
from tests.support.service_doubles import DaytonaDouble, ModalDouble, apptainer_double

ODD = 'it\'s "two"\nlines é'


async def ran(driver: Any, world: str, script: str, data: bytes = b"", **variables: str) -> tuple[Any, bytes, bytes]:
    output, errors = bytearray(), bytearray()
    stream = await driver.execute(
        world,
        ["sh", "-c", script],
        environment=variables,
        user=None,
        directory=None,
        output=output.extend,
        errors=errors.extend,
    )
    await stream.write(data)
    await stream.close_input()
    code = await asyncio.wait_for(stream.wait(), 20)
    await stream.close()
    return code, bytes(output), bytes(errors)


async def held(driver: Any, folder: Path, image: str) -> None:
    """What all of them have to do."""
    assert driver.unavailable() is None
    assert await driver.identity() == await driver.identity()
    labels = {RUN: "run.1.2.3.4", FOLDER: str(folder / "attempt")}
    world = await driver.create(WorldSpec("w-1", labels, image, {"GIVEN": ODD}))
    assert (world.workspace, world.directory) == ("/workspace", "/workspace")
    data = bytes(range(256)) * 100
    code, output, errors = await ran(
        driver, world.id, 'printf %s "$GIVEN$MORE"; cat; echo bad >&2; exit 7', data, MORE="!"
    )
    assert (code, output, errors) == (7, f"{ODD}!".encode() + data, b"bad\n")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("folder/file")
        entry.size = 5
        tar.addfile(entry, io.BytesIO(b"hello"))
    archive.seek(0)
    await driver.put(world.id, archive, "/workspace")
    back = io.BytesIO()
    await driver.get(world.id, "/workspace/folder", back, max_bytes=1 << 20)
    back.seek(0)
    with tarfile.open(fileobj=back) as tar:
        assert tar.getnames() == ["folder", "folder/file"]
    with pytest.raises(ValueError, match="more than"):
        await driver.get(world.id, "/workspace/folder", io.BytesIO(), max_bytes=100)
    with pytest.raises(FileNotFoundError):
        await driver.get(world.id, "/workspace/missing", io.BytesIO(), max_bytes=100)
    snapshot = await driver.snapshot(world.id, labels)
    await ran(driver, world.id, "rm -r /workspace/folder")
    other = await driver.create(WorldSpec("w-2", {**labels, RUN: "other"}, snapshot))
    assert (await ran(driver, other.id, "cat /workspace/folder/file"))[1] == b"hello"
    found = await driver.listed({RUN: "run.1.2.3.4", FOLDER: ""})
    assert [(each.id, each.labels) for each in found if not each.snapshot] == [(world.id, labels)]
    await driver.stop(world.id)
    await driver.start(world.id)
    for each in (world.id, other.id, other.id):
        await driver.delete(each)
    await driver.delete_snapshot(snapshot)
    assert await driver.listed({}) == []
    with pytest.raises(ItemError) as caught:
        await ran(driver, world.id, "true")
    assert caught.value.cause == Cause.SANDBOX_LOST
    with pytest.raises(ItemError) as caught:
        await driver.create(WorldSpec("w-3", labels, image, limits=SandboxLimits(network_allow=("example.com",))))
    assert caught.value.cause == Cause.INVALID_INPUT
    await driver.close()


async def test_modal(tmp_path: Path) -> None:
    sdk = ModalDouble(tmp_path / "double")
    await held(ModalDriver(sdk), tmp_path, "base:1")
    assert [(each["timeout"], each["block_network"]) for each in sdk.made] == [(24 * 3600, True)] * 2
    with pytest.raises(ItemError, match="no such image") as caught:
        await ModalDriver(sdk).create(WorldSpec("w", {}, "missing:1"))
    assert caught.value.cause == Cause.INVALID_INPUT


def test_labels_as_tags_of_modal() -> None:
    labels = {RUN: "run.1.2.3.4", FOLDER: "/a folder/" + "é" * 100, "empty": ""}
    tags = tags_of(labels)
    assert labels_of({**tags, "someone's": "own"}) == labels
    assert all(len(value) <= 50 and value.replace("-", "").replace("_", "").isalnum() for value in tags.values())


async def test_daytona(tmp_path: Path) -> None:
    sdk = DaytonaDouble(tmp_path / "double")
    await held(DaytonaDriver(sdk), tmp_path, "base:1")
    for params in sdk.made:
        assert (params.ttl_minutes, params.auto_stop_interval, params.auto_delete_interval) == (1440, 60, 1440)
        assert params.network_block_all


async def test_apptainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    double = apptainer_double(tmp_path / "double")
    monkeypatch.setenv("PATH", f"{double}{os.pathsep}{os.environ['PATH']}")
    driver = ApptainerDriver(tmp_path / "state", tmp_path / "cache")
    await held(driver, tmp_path, "base@sha256:abc")
    names = ["a/b-c:1", "a-b/c:1", "a/b-c:1"]
    worlds = await asyncio.gather(*(driver.create(WorldSpec("w", {RUN: name}, name)) for name in names))
    calls = (double / "calls").read_text()
    assert sorted(line.split()[2] for line in calls.splitlines() if line.startswith("build")) == [
        "docker://a-b/c:1",
        "docker://a/b-c:1",
        "docker://base@sha256:abc",
    ]
    assert ODD not in calls
    assert len({*(tmp_path / "cache").glob("*.sif")}) == 3
    for world in worlds:
        await driver.delete(world.id)
    assert list((tmp_path / "state").iterdir()) == []
