"""The attacks of the table in worlds made of an image: in bubblewrap, and in a container.

The image's files belong to such a world, and its root has nine capabilities: attacks that try what is allowed there are left out, each with
the reason. In a container, the engine's filter of system calls decides.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from manyhands.sandboxes.containers.driver import ContainerDriver
from manyhands.sandboxes.remote.backend import RemoteBackend
from tests.attacks.attack_table import ATTACKS, Attack
from tests.attacks.held_sandbox import HeldSandbox
from tests.attacks.outside import CANARY, Outside, key_in_the_environment, own_folder
from tests.attacks.test_inside import attempt, comes_back
from tests.support.engines import Engine
from tests.support.unpacked_images import full_image_pin

OWN_ROOT = {
    "files-of-the-host": "the image has these paths, too",
    "links-to-the-host": "links to the image's files are the world's own",
    "files-outside-the-workspace": "the whole image can be changed, in a layer of its own",
    "system-calls": "SYS_CHROOT is one of the nine capabilities",
    "rights": "there are nine capabilities",
    "files-of-process-1-that-take-writes": "root may open them; a write is refused",
}
OF_THE_ENGINE = {
    **OWN_ROOT,
    "set-id-files": "they can be made, and give no rights: no-new-privileges",
    "device-nodes": "the engine mounts /dev/mqueue",
    "socket-families": "the engine's filter lets vsock through",
    "kernel-files-that-take-writes": "the engine shows /proc/dma and others",
    "kernel-files-that-tell": "the engine shows /proc/key-users and others",
    "terminal-injection": "only into a terminal that the attacker made",
    "process-1-and-its-executable": "it is a process of the container's",
    "memory-of-process-1": "it is a process of the container's",
}
QUICK = {
    "mounts",
    "new-namespaces",
    "sockets-of-the-host",
    "loopback-and-metadata",
    "processes-of-the-host",
    "environment",
}
CASES = [
    pytest.param(kind, attack, id=f"{kind}-{attack.name}", marks=[] if attack.name in QUICK else [pytest.mark.slow])
    for kind, left_out in (("bubblewrap", OWN_ROOT), ("docker", OF_THE_ENGINE))
    for attack in ATTACKS
    if attack.name not in left_out
]


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    with key_in_the_environment(), Outside(tmp_path_factory.mktemp("outside")) as outside:
        yield outside


@pytest.fixture(scope="module")
def bubblewrap(outside: Outside) -> Iterator[HeldSandbox]:
    with own_folder() as folder, HeldSandbox("bubblewrap", folder / "box", image=full_image_pin()) as box:
        yield box


@pytest.fixture(scope="module")
def docker(outside: Outside, docker_engine: Engine) -> Iterator[HeldSandbox]:
    backend = RemoteBackend(ContainerDriver("docker", docker_engine.host))
    with (
        own_folder() as folder,
        HeldSandbox("docker", folder / "box", image=docker_engine.full, backend=backend) as box,
    ):
        yield box


@pytest.mark.parametrize(("kind", "attack"), CASES)
def test_an_attack_from_an_image_gets_nowhere(
    kind: str, attack: Attack, outside: Outside, request: pytest.FixtureRequest
) -> None:
    sandbox: HeldSandbox = request.getfixturevalue(kind)
    before = outside.state()
    result = attempt(sandbox, attack, outside)
    said = "" if result is None else result.output.decode(errors="replace")
    assert CANARY not in said
    assert outside.state() == before
    assert "ESCAPED" not in said, said
    if not attack.ends:
        assert result is not None
        assert (result.exit_code, said.splitlines()[-1:]) == (0, ["held"]), said
    assert comes_back(sandbox)


def test_what_is_left_out_is_in_the_table() -> None:
    assert set(OF_THE_ENGINE) | QUICK <= {attack.name for attack in ATTACKS}
