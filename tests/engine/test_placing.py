"""Nodes that can't execute what an owner makes, and clusters that can't be used, are named before anything is asked of a model."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from concurrent.futures import Future
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.engine.executors.cluster import check_address, host_and_port, listening, shipped_modules
from manyhands.engine.executors.placing import Placer, answers, unlike_us

OURS = metadata.version("manyhands")
ROOT = Path(__file__).resolve().parents[2]
PYTHON = ".".join(map(str, sys.version_info[:2]))


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({}, None),
        ({"manyhands": None}, f"manyhands is not installed on the node 10.0.0.7: install version {OURS} in the"),
        ({"manyhands": "9.9"}, f"the node 10.0.0.7 has manyhands 9.9, and this machine {OURS}: all must have the same"),
        ({"python": "3.5"}, f"the node 10.0.0.7 has Python 3.5, and this machine {PYTHON}: all must have the same"),
    ],
)
def test_a_node_with_other_versions_is_named(about: dict[str, Any], why: str | None) -> None:
    found = unlike_us({"address": "10.0.0.7", "node": "ab", "manyhands": OURS, "python": PYTHON, **about})
    assert (found or "").startswith(why or "")
    assert (found is None) is (why is None)


def test_an_owner_that_is_not_installed_knows_its_version(tmp_path: Path) -> None:
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "manyhands" not in entry.name:
            (tmp_path / entry.name).symlink_to(entry)
    about = {"address": "10.0.0.7", "python": PYTHON, "manyhands": "9.9"}
    code = f"from manyhands.engine.executors.placing import unlike_us; print(unlike_us({about}))"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(tmp_path)])}
    ran = subprocess.run([sys.executable, "-S", "-c", code], env=environ, capture_output=True, text=True, timeout=60)
    assert ran.stdout == f"the node 10.0.0.7 has manyhands 9.9, and this machine {OURS}: all must have the same\n", (
        ran.stderr
    )


class Answering:
    """Ray, of which a worker's node says something; and a worker of it."""

    util = SimpleNamespace(
        scheduling_strategies=SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: node),
    )

    def __init__(self, about: object) -> None:
        self._answer: Future[Any] = Future()
        self._answer.set_result(about)
        self.about = SimpleNamespace(remote=lambda: SimpleNamespace(future=lambda: self._answer))
        self.work = SimpleNamespace(remote=lambda run_id, call: SimpleNamespace(future=Future))

    def options(self, **options: Any) -> Any:
        return SimpleNamespace(remote=lambda: self._started(**options))

    def remote(self, actor: type) -> Answering:
        return self

    def kill(self, worker: object) -> None:
        raise RuntimeError("it is gone")

    def nodes(self) -> list[dict[str, Any]]:
        return []

    def _started(self, scheduling_strategy: str, **_: Any) -> Answering:
        if scheduling_strategy == "refused":
            raise ValueError("no such", " resource")
        if scheduling_strategy == "broken":
            raise RuntimeError("the head is busy")
        return self


def test_each_request_gets_an_answer_whatever_ray_says(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    about = {"address": "10.0.0.7", "python": PYTHON, "manyhands": OURS}  # without a node
    orders = [{"start": near, "call": "", "near": near} for near in ("broken", "refused", "unlike")]
    said = list[dict[str, Any]]()

    def lines() -> Iterator[str]:
        yield from map(json.dumps, orders)
        end = time.monotonic() + 20.0
        while len(said) < 5 and time.monotonic() < end:
            time.sleep(0.001)

    monkeypatch.setattr("sys.stdin", lines())
    Placer(Answering(about), "id", {}, said.append).run()
    assert said == [
        {"trouble": "RuntimeError: the head is busy"},
        {"ended": "broken", "how": "the head is busy", "node_lost": False},
        {"refused": "refused", "why": "no such resource"},
        {"trouble": "KeyError: 'node'"},
        {"ended": "unlike", "how": "'node'", "node_lost": False},
    ]
    assert "in _placed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("written", "port", "parts"),
    [
        ("10.0.0.7:6390", 6379, ("10.0.0.7", 6390)),
        ("10.0.0.7", 6379, ("10.0.0.7", 6379)),
        ("head.example", 0, ("head.example", 0)),
        ("[fd00::1]:7", 0, ("fd00::1", 7)),
        ("[fd00::1]", 5, ("fd00::1", 5)),
    ],
)
def test_addresses_may_leave_out_the_port(written: str, port: int, parts: tuple[str, int]) -> None:
    assert host_and_port(written, "--ray_address", port) == parts


@pytest.mark.parametrize("written", ["", ":", ":1", "a:b", "a:", "a:65536", "a:123456", "a:-1", "[]:1"])
def test_what_is_no_address_is_refused(written: str) -> None:
    with pytest.raises(UserError, match="--ray_listen must be HOST:PORT"):
        listening(written, "10.0.0.7")


def test_workers_find_the_owner_where_ray_does() -> None:
    assert listening(None, "10.0.0.7") == ("10.0.0.7", 0)


async def test_ray_client_is_refused_by_its_address() -> None:
    with pytest.raises(UserError, match=r"^--ray_address=ray://head:10001: name the cluster's head node as HOST:PORT"):
        await check_address("ray://head:10001")


# --- Modules of the person's own


def test_ones_own_modules_are_found_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").touch()
    (tmp_path / "module.py").touch()
    modules = [(name, tmp_path) for name in ("package.inner", "package", "module", "path/file.py")]
    assert shipped_modules(modules) == [tmp_path / "package", tmp_path / "module.py"]


@pytest.mark.parametrize("name", ["json", "sys", "_socket", "pytest", "manyhands.tools.todo", "math"])
def test_what_is_installed_here_is_not_copied(name: str, tmp_path: Path) -> None:
    assert shipped_modules([(name, tmp_path)]) == []


def test_what_can_not_be_copied_is_named(tmp_path: Path) -> None:
    (tmp_path / "machine.so").touch()
    with pytest.raises(UserError, match=r"^missing: there is no such module to copy to the nodes$"):
        shipped_modules([("missing", tmp_path)])
    with pytest.raises(UserError, match=r"^machine: can't be copied to the nodes, as it is neither one folder nor one"):
        shipped_modules([("machine", tmp_path)])


def test_a_package_in_several_folders_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for half in ("a", "b"):
        (tmp_path / half / "split_package").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "b")
    with pytest.raises(UserError, match=r"^split_package.inner: can't be copied"):
        shipped_modules([("split_package.inner", tmp_path / "a")])


def test_a_node_is_gone_where_nothing_listens_and_not_where_ray_says_nothing() -> None:
    def silent() -> list[dict[str, Any]]:
        raise RuntimeError("the head does not answer")

    with socket.create_server(("127.0.0.1", 0)) as server:
        node = {"NodeID": "a", "Alive": True, "NodeManagerAddress": "127.0.0.1"}
        node["NodeManagerPort"] = server.getsockname()[1]
        assert answers(lambda: [node], "a")
        assert not answers(lambda: [node], "b")
        assert not answers(lambda: [{**node, "Alive": False}], "a")
    assert not answers(lambda: [node], "a")
    assert answers(silent, "a")
