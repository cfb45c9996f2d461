"""Where a container engine is found: the address in ``DOCKER_HOST`` or ``CONTAINER_HOST``, else the usual sockets."""

from __future__ import annotations

import os
import re
import resource
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

KINDS = ("docker", "podman")
VARIABLES = {"docker": "DOCKER_HOST", "podman": "CONTAINER_HOST"}
_START = {
    "docker": "install Docker Engine and start dockerd",
    "podman": "install Podman and start its service (podman system service --time 0)",
}
_PING_SECONDS = 5.0
_UNIX = "unix://"
_CAP_SYS_ADMIN = 21


def engine_address(kind: str, environment: Mapping[str, str] | None = None) -> str | None:
    """The address of an engine: what its variable says, else the first usual socket that is there; None if there is none."""
    environment = os.environ if environment is None else environment
    if given := environment.get(VARIABLES[kind]):
        return given
    return next((f"{_UNIX}{path}" for path in _usual(kind, environment) if path.is_socket()), None)


def expected_address(kind: str) -> str:
    """The same, or where an engine would be."""
    return engine_address(kind) or f"{_UNIX}{next(_usual(kind, os.environ))}"


def is_local(address: str) -> bool:
    """Whether an engine can see this machine's folders."""
    return address.startswith(_UNIX)


def can_enter_worlds(address: str) -> bool:
    """Whether this user can enter the namespaces of an engine's containers: whoever may administer the system, and whose own the engine
    is."""
    if not is_local(address):
        return False
    if os.geteuid() == 0:
        return _has_capability(_CAP_SYS_ADMIN)
    with suppress(OSError), _connected(address) as client:
        _, user, _ = struct.unpack("iII", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return bool(user == os.geteuid())
    return False


def unreachable(kind: str, address: str | None = None) -> str | None:
    """One line on why an engine can't be used from here, with what was tried and what to do; None if it answers. ``address``: None is
    where it is found."""
    if find_spec("aiodocker") is None:
        return "the package aiodocker is missing: pip install 'manyhands[containers]'"
    address = address or expected_address(kind)
    if not is_local(address):
        return None  # asked when it is used
    path = Path(address.removeprefix(_UNIX))
    usual = list(_usual(kind, os.environ))
    if path in usual and not path.exists():
        return f"no engine found (tried {', '.join(map(str, usual))}): {_START[kind]}, or set {VARIABLES[kind]}"
    problem = _ping(path)
    return (
        None
        if problem is None
        else f"the engine at {address} does not answer ({problem}): {_START[kind]}, or set {VARIABLES[kind]}"
    )


def rlimits(address: str) -> dict[str, int]:
    """The hard limits ``nofile`` and ``nproc`` of an engine's process, as far as they can be seen, at most our own: it can't give
    containers more. Those without a bound are left out."""
    found = {
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "nproc": resource.getrlimit(resource.RLIMIT_NPROC)[1],
    }
    bounds = {name: bound for name, bound in found.items() if bound != resource.RLIM_INFINITY}
    if is_local(address):
        with suppress(OSError), _connected(address) as client:
            (pid,) = struct.unpack_from("i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            text = Path(f"/proc/{pid}/limits").read_text()
            for name, words in (("nofile", "Max open files"), ("nproc", "Max processes")):
                if limit := re.search(rf"^{words}\s+\S+\s+(\d+)", text, re.MULTILINE):
                    bounds[name] = min(bounds.get(name, int(limit[1])), int(limit[1]))
    return bounds


def _connected(address: str) -> socket.socket:
    """A connection to an engine. Raises OSError."""
    client = socket.socket(socket.AF_UNIX)
    try:
        client.settimeout(_PING_SECONDS)
        client.connect(address.removeprefix(_UNIX))
    except BaseException:
        client.close()
        raise
    return client


def _has_capability(number: int) -> bool:
    """Whether this process has a capability (capabilities(7)) in force."""
    with suppress(OSError):
        found = re.search(r"^CapEff:\s*([0-9a-f]+)", Path("/proc/self/status").read_text(), re.MULTILINE)
        return found is not None and bool(int(found[1], 16) >> number & 1)
    return False


def _usual(kind: str, environment: Mapping[str, str]) -> Iterator[Path]:
    own = Path(environment.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
    if kind == "docker":
        yield from (Path("/run/docker.sock"), Path("/var/run/docker.sock"), own / "docker.sock")
        if home := environment.get("HOME"):
            yield Path(home) / ".docker/run/docker.sock"
    else:
        if os.getuid() == 0:
            yield Path("/run/podman/podman.sock")
        yield own / "podman/podman.sock"


def _ping(path: Path) -> str | None:
    """What is wrong with the engine behind a socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_PING_SECONDS)
        try:
            client.connect(str(path))
            client.sendall(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n")
            answer = client.recv(4096)
        except OSError as error:
            return error.strerror or str(error) or type(error).__name__
    return None if b" 200 " in answer.partition(b"\r\n")[0] else "its answer is not an engine's"
