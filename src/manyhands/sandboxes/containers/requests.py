"""What a container is made of: the request to the engine for a world.

Its first process is the *lifeline*: a shell that waits for the end of its own input, to which the world's owner is attached. When the
owner ends, however it does, the engine closes that input, the shell ends, and with it everything in the container; the files stay. While it
waits, the shell reaps whatever processes are left to it.

The lifeline is always root's, and each command is given its user: where a container is another user's, engines leave even root no
capabilities.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from manyhands.sandboxes.project import PROJECT, hidden_below
from manyhands.sandboxes.remote.driver import WorldSpec

CAPABILITIES = (
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "SETUID",
    "SETGID",
    "KILL",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
)
"""Those that commands keep: enough for package managers, ``su`` and servers; none that reaches beyond the container."""
WORKSPACE = "/workspace"
"""Where agents work if the image names no folder."""
DIRECTORY_LABEL, LIMITS_LABEL, USER_LABEL = "manyhands.directory", "manyhands.limits", "manyhands.user"
"""Where commands start, ``ulimit`` words for the bounds of single processes, and who runs commands where nobody else is asked for: what a
later process must know of a container, and a container of a snapshot of another."""
SHM_BYTES = 256 << 20
_LIFELINE = """\
exec 3<&0
(while read -r _; do :; done) <&3 >/dev/null 2>&1 &
trap 'exit 0' TERM
wait $!
"""
"""``read`` is a part of every shell, ``cat`` is a program that an image may lack. As the first process itself does not read, it reaps."""
_OPEN_FILES = 65536


def workspace_of(image: Mapping[str, Any]) -> str:
    """The folder where agents work: what the image says, unless that is the root. ``image``: its ``Config``."""
    said = str(image.get("WorkingDir") or "/")
    return said if said.strip("/") else WORKSPACE


def user_of(spec: WorldSpec, image: Mapping[str, Any]) -> str:
    """Who runs commands; empty for root. ``image``: the image's ``Config``, which names root if it is a snapshot."""
    if spec.user is not None:
        return spec.user
    labels: Mapping[str, str] = image.get("Labels") or {}
    return str(labels.get(USER_LABEL, image.get("User") or ""))


@dataclass(frozen=True, slots=True)
class EngineBounds:
    """What an engine can and can't do for a container."""

    runtime: str | None = None
    """The runtime that it is to use; None: its default."""
    unenforced: Collection[str] = ()
    """Limits that it can't enforce, which it is then not asked to."""
    storage: bool = False
    """Whether it bounds a container's disk space."""
    rlimits: Mapping[str, int] = field(default_factory=dict)
    """Its own limits, ``nofile`` and ``nproc``."""
    podman: bool = False


def container_request(spec: WorldSpec, image: Mapping[str, Any], engine: EngineBounds) -> dict[str, Any]:
    """The body of the request that makes a container. ``image``: the image's ``Config``."""
    workspace = workspace_of(image)
    bounds = f"-f {spec.limits.file_size // 512} -t {spec.limits.cpu_seconds} -c 0"
    labels = {
        DIRECTORY_LABEL: spec.directory or workspace,
        LIMITS_LABEL: bounds,
        USER_LABEL: user_of(spec, image),
        **spec.labels,
    }
    return {
        "Image": spec.image,
        "Entrypoint": ["/bin/sh"],
        "Cmd": ["-c", _LIFELINE],
        "Env": [f"{name}={value}" for name, value in spec.environment.items()],
        "Labels": labels,
        "User": "0",
        "WorkingDir": workspace,
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": False,
        "AttachStderr": False,
        "Healthcheck": {"Test": ["NONE"]},
        "StopTimeout": 1,
        "HostConfig": _host_config(spec, engine),
    }


def limited(command: Sequence[str], bounds: str) -> list[str]:
    """A command that takes its bounds (``LIMITS_LABEL``) upon itself, for engines that don't set them."""
    words = bounds.split()
    script = "".join(f"ulimit {flag} {bound}; " for flag, bound in zip(words[::2], words[1::2], strict=True))
    return ["/bin/sh", "-c", f'{script}exec "$@"', "sh", *command]


def _host_config(spec: WorldSpec, engine: EngineBounds) -> dict[str, Any]:
    limits = spec.limits
    config: dict[str, Any] = {
        "CapDrop": ["ALL"],
        "CapAdd": list(CAPABILITIES),
        "SecurityOpt": ["no-new-privileges"],
        "Privileged": False,
        "ShmSize": SHM_BYTES,
        "LogConfig": {"Type": "none"},
        "Ulimits": _ulimits(spec, engine.rlimits),
    }
    config |= _project(spec, podman=engine.podman)
    if not limits.network:
        config["NetworkMode"] = "none"
    if "memory" not in engine.unenforced:
        config |= {"Memory": limits.memory, "MemorySwap": limits.memory}
    if "processes" not in engine.unenforced:
        config["PidsLimit"] = limits.processes
    if limits.cpus is not None and "cpus" not in engine.unenforced:
        config["NanoCpus"] = int(limits.cpus * 1e9)
    if engine.runtime is not None:
        config["Runtime"] = engine.runtime
    if engine.storage:
        config["StorageOpt"] = {"size": str(limits.disk)}
    return config


def _ulimits(spec: WorldSpec, rlimits: Mapping[str, int]) -> list[dict[str, Any]]:
    """Bounds of single processes. An engine can't give more than it has itself, which Podman tries unless it is told."""
    bounds = {"fsize": spec.limits.file_size, "core": 0, "cpu": spec.limits.cpu_seconds, **rlimits}
    bounds["nofile"] = min(_OPEN_FILES, rlimits.get("nofile", _OPEN_FILES))
    return [{"Name": name, "Soft": bound, "Hard": bound} for name, bound in bounds.items()]


def _project(spec: WorldSpec, *, podman: bool) -> dict[str, Any]:
    """The project, read-only, with empty folders over those in it that are to be hidden."""
    if spec.project is None:
        return {}
    project = spec.project.resolve()
    # Podman copies what lies below into an empty folder in memory, unless it is told not to by a word that Docker doesn't know.
    options = "ro,size=4k,mode=555" + (",notmpcopyup" if podman else "")
    return {
        "Mounts": [{"Type": "bind", "Source": str(project), "Target": PROJECT, "ReadOnly": True}],
        "Tmpfs": {f"{PROJECT}/{name}": options for name in hidden_below(project, spec.hidden)},
    }
