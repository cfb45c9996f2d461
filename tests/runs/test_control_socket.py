"""The socket over which a run is steered."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from manyhands.core.errors import StorageError
from manyhands.runs.steering.control import RUNNER, ControlServer, Message


async def test_a_socket_that_can_not_be_made_known_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(message: Message) -> Message:
        return {}

    sockets, run = tmp_path / "sockets", tmp_path / "run"
    sockets.mkdir()
    (run / RUNNER / "in-the-way").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(sockets))
    server = ControlServer(run, answer)
    with pytest.raises(StorageError):
        await server.open()
    assert [*sockets.iterdir()] == []
    server.withdraw()
    await server.close(ended=True)
