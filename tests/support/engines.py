"""Real container engines for tests, one of each kind for a whole session of pytest, however many processes perform its tests.

Fixtures: ``docker_engine``, ``podman_engine`` (root's), ``rootless_podman_engine``, ``image_registry``. Where an engine can't be started,
tests that ask for it are skipped with the reason; with ``MANYHANDS_REQUIRE_ENGINES=1`` they fail.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from tests.support.engine_keeper import BARE, FULL, START_TIME, Unavailable

REQUIRED = "MANYHANDS_REQUIRE_ENGINES"
_REFUSE = object()
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Engine:
    """A running engine, with its two images."""

    kind: str
    """``docker`` or ``podman``."""
    host: str
    """Its address: ``unix://…``."""
    rootless: bool = False
    registry: str | None = None
    """``127.0.0.1:PORT`` of a registry that it can pull from and push to."""
    full: str = FULL
    """An image with bash, coreutils, procps, git and Python, a user ``tester``, and a PATH of its own."""
    bare: str = BARE
    """An image with busybox alone."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables by which programs of ours, and the engine's own client, find it."""

    @property
    def socket(self) -> Path:
        return Path(self.host.removeprefix("unix://"))

    def client(self, *words: str, timeout: float = 60.0, input: bytes | None = None) -> str:
        """What the engine's own program prints. Raises CalledProcessError."""
        command = (
            ["docker", "-H", self.host, *words]
            if self.kind == "docker"
            else ["podman", "--remote", "--url", self.host, *words]
        )
        done = subprocess.run(
            command,
            input=input,
            capture_output=True,
            timeout=timeout,
            check=False,
            env={**os.environ, **self.environment},
        )
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(command)} failed: {done.stderr.decode(errors='replace')}")
        return done.stdout.decode()

    def ask(self, method: str, path: str, *, missing: Any = _REFUSE) -> Any:
        """What the engine's API answers. ``missing``: the answer where there is no such thing, or it is not in that state; without it,
        that raises AssertionError."""
        connection = http.client.HTTPConnection("engine")
        connection.sock = socket.socket(socket.AF_UNIX)
        try:
            connection.sock.settimeout(60.0)
            connection.sock.connect(str(self.socket))
            connection.request(method, f"/v1.41/{path}")
            answer = connection.getresponse()
            said = answer.read()
        finally:
            connection.close()
        gone = answer.status == 500 and b"no such container" in said  # Podman, of one that is just being removed
        if (gone or answer.status in (304, 404, 409)) and missing is not _REFUSE:
            return missing
        assert answer.status < 300, (path, answer.status, said)
        return json.loads(said) if said.strip() else {}

    def pushed(self, name: str, image: str | None = None) -> str:
        """Put an image into the registry as ``name``, and remove that name here; the reference by which it can be pulled."""
        assert self.registry is not None
        reference = f"{self.registry}/{name}"
        self.client("tag", image or self.bare, reference)
        self.client("push", *(["--tls-verify=false"] if self.kind == "podman" else []), reference)
        self.client("rmi", reference)
        return reference


@contextlib.contextmanager
def started(kind: str, folder: Path, registry: str = "") -> Iterator[dict[str, str]]:
    """An engine that all processes with the same ``folder`` share, for as long as any of them is in here. Raises Unavailable."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "users").open("a+") as users:
        with (folder / "starting").open("a+") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            _join(users)
            state = _running(folder) or _start(kind, folder, registry)
        yield state


def _join(users: IO[str]) -> None:
    deadline = time.monotonic() + START_TIME
    while True:
        try:  # a lock of this process alone: forked ones don't have it
            fcntl.lockf(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Unavailable("an earlier one does not end") from None
            time.sleep(0.05)


def _running(folder: Path) -> dict[str, str] | None:
    with contextlib.suppress(FileNotFoundError):
        raise Unavailable((folder / "failed").read_text())
    with (folder / "keeper").open("a+") as keeper:
        try:
            fcntl.flock(keeper, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return _state(folder)
    return None


def _start(kind: str, folder: Path, registry: str) -> dict[str, str]:
    with (folder / "log").open("ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.support.engine_keeper", kind, str(folder), registry],
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + 2 * START_TIME
    while time.monotonic() < deadline:
        if (folder / "failed").exists():
            raise Unavailable((folder / "failed").read_text())
        if (folder / "state.json").exists():
            return _state(folder)
        if keeper.poll() is not None:
            raise Unavailable(f"its keeper ended: {(folder / 'log').read_text(errors='replace')[-500:]}")
        time.sleep(0.03)
    keeper.terminate()
    raise Unavailable("it did not start in time")


def _state(folder: Path) -> dict[str, str]:
    state: dict[str, str] = json.loads((folder / "state.json").read_text())
    return state


def _shared(factory: pytest.TempPathFactory) -> Path:
    """A folder of the whole session."""
    own = factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "engines"


def _given(kind: str, factory: pytest.TempPathFactory, registry: str = "") -> Iterator[dict[str, str]]:
    try:
        with started(kind, _shared(factory) / kind, registry) as state:
            yield state
    except Unavailable as error:
        said = f"{kind} can't be started here: {error}"
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(said, pytrace=False)
        pytest.skip(said)


@pytest.fixture(scope="session")
def image_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``127.0.0.1:PORT`` of an empty registry."""
    yield from (
        state["host"] for state in _given("registry", tmp_path_factory, f"127.0.0.1:{_registry_port(tmp_path_factory)}")
    )


def _registry_port(factory: pytest.TempPathFactory) -> int:
    """The same one for all processes of a session, also when the registry is started anew."""
    folder = _shared(factory)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "registry-port").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if noted := file.read():
            return int(noted)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        file.write(str(port))
    return port


@pytest.fixture(scope="session")
def docker_engine(tmp_path_factory: pytest.TempPathFactory, image_registry: str) -> Iterator[Engine]:
    """A ``dockerd`` of the session's own."""
    for state in _given("docker", tmp_path_factory):
        yield engine_of("docker", state, image_registry)


@pytest.fixture(scope="session")
def podman_engine(tmp_path_factory: pytest.TempPathFactory, image_registry: str) -> Iterator[Engine]:
    """Podman's service, run by root."""
    for state in _given("podman", tmp_path_factory, image_registry):
        yield engine_of("podman", state, image_registry)


@pytest.fixture(scope="session")
def rootless_podman_engine(tmp_path_factory: pytest.TempPathFactory, image_registry: str) -> Iterator[Engine]:
    """Podman's service, run by an ordinary user."""
    for state in _given("rootless", tmp_path_factory, image_registry):
        yield engine_of("rootless", state, image_registry)


def engine_of(kind: str, state: Mapping[str, str], registry: str | None = None) -> Engine:
    """An engine that was ``started``."""
    if kind == "docker":
        return Engine("docker", state["host"], registry=registry, environment={"DOCKER_HOST": state["host"]})
    environment = {"CONTAINER_HOST": state["host"], "CONTAINERS_REGISTRIES_CONF": state["registries"]}
    return Engine("podman", state["host"], rootless=kind == "rootless", registry=registry, environment=environment)
