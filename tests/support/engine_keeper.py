"""The process that keeps a container engine for the tests of a session: starts it in a folder of its own, ends it when nobody uses it.

Whoever uses the engine holds a shared lock on the file ``users``; the kernel lets go of it when that process ends, however it does. So an
engine ends with its last user, with all its containers, helpers and mounts, and its folder is removed.

``python -m tests.support.engine_keeper KIND FOLDER REGISTRY`` writes ``FOLDER/state.json`` as soon as the engine answers, or
``FOLDER/failed`` with the reason. KIND: ``docker``, ``podman``, ``rootless`` or ``registry``.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from tests.support.image_tars import IMAGE_PATH, bare_image, full_image

START_TIME = 40.0
"""Seconds for an engine's start."""
FULL, BARE = "manyhands-full:1", "manyhands-bare:1"
ROOTLESS_USER = "manyhands-tests"
_SBIN = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
_PR_SET_PDEATHSIG = 1


class Unavailable(Exception):
    """Why an engine can't be started here."""


def program(name: str, package: str) -> str:
    """The path of a program. Raises Unavailable."""
    found = shutil.which(name, path=_SBIN)
    if found is None:
        raise Unavailable(f"{name} is not installed (package {package})")
    return found


class Kept:
    """An engine of one kind in a folder."""

    def __init__(self, folder: Path, registry: str) -> None:
        self.folder = folder
        self.registry = registry
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> dict[str, str]:
        """Start it; what its users are told."""
        raise NotImplementedError

    def empty(self) -> None:
        """Remove what it runs."""

    def _spawn(
        self, command: Sequence[str], environment: dict[str, str], user: pwd.struct_passwd | None = None
    ) -> None:
        def prepare() -> None:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={"PATH": _SBIN, **environment},
                start_new_session=True,
                preexec_fn=prepare,
                **({} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}),  # type: ignore[call-overload]
            )

    def _wait_for(self, ready: Callable[[], bool]) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_TIME
        while not ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Unavailable(
                    "; ".join((self.folder / "log").read_text(errors="replace").splitlines()[-3:]) or "it ended at once"
                )
            time.sleep(0.03)

    def end(self) -> None:
        """End it, with everything that it started."""
        if self.process is not None and self.process.poll() is None:
            self.empty()
            self.process.terminate()
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        remove_leftovers(self.folder)


class Docker(Kept):
    def start(self) -> dict[str, str]:
        if os.getuid() != 0:
            raise Unavailable("only root can start dockerd")
        daemon = program("dockerd", "docker")
        program("docker", "docker")
        containerd = program("containerd", "containerd")
        del containerd
        if Path("/run/containerd/containerd.sock").is_socket():
            self._start_containerd()
        (self.folder / "daemon.json").write_text("{}")
        self.address = f"unix://{self.folder}/docker.sock"
        options = ["--storage-driver=overlay2", "--shutdown-timeout=1", "--bridge=none"]
        options += ["--iptables=false", "--ip6tables=false", "--ip-forward=false"]
        places = {"config-file": "daemon.json", "data-root": "root", "exec-root": "exec", "pidfile": "pid"}
        named = [word for name, place in places.items() for word in (f"--{name}", str(self.folder / place))]
        own = ["--containerd", str(self.folder / "c.sock")] if (self.folder / "c.sock").exists() else []
        self._spawn([daemon, *named, "-H", self.address, *options, *own], {})
        self._wait_for(lambda: answers(self.folder / "docker.sock"))
        self._docker("import", "-c", f"ENV PATH={IMAGE_PATH}", str(full_image()), FULL)
        self._docker("import", str(bare_image()), BARE)
        return {"host": self.address}

    def _start_containerd(self) -> None:
        """An own one: dockerd would take the machine's."""
        (self.folder / "containerd.toml").write_text(
            f'version = 2\nroot = "{self.folder}/c-root"\nstate = "{self.folder}/c-state"\n'
            f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
            f'[grpc]\naddress = "{self.folder}/c.sock"\n'
        )
        self._spawn([program("containerd", "containerd"), "--config", str(self.folder / "containerd.toml")], {})
        self._wait_for((self.folder / "c.sock").is_socket)

    def _docker(self, *words: str) -> str:
        return ran(["docker", *words], {"DOCKER_HOST": self.address, "HOME": str(self.folder)})

    def empty(self) -> None:
        for _ in range(3):
            containers = self._docker("ps", "-aq").split()
            if not containers:
                return
            self._docker("rm", "-f", *containers)


class Podman(Kept):
    def start(self) -> dict[str, str]:
        user = self._user()
        podman = program("podman", "podman")
        self.address = f"unix://{self.folder}/podman.sock"
        (self.folder / "containers.conf").write_text("[containers]\ndefault_ulimits = []\n")
        (self.folder / "registries.conf").write_text(
            f'unqualified-search-registries = ["{self.registry}"]\n[[registry]]\nlocation = "{self.registry}"\ninsecure = true\n'
            if self.registry
            else "unqualified-search-registries = []\n"
        )
        (self.folder / "runtime").mkdir(mode=0o700)
        if user is not None:
            for place in (self.folder, self.folder / "runtime"):
                os.chown(place, user.pw_uid, user.pw_gid)
        self.environment = {
            "HOME": str(self.folder),
            "XDG_RUNTIME_DIR": str(self.folder / "runtime"),
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(self.folder / "registries.conf"),
        }
        if os.getuid() == 0 and user is None:
            del self.environment["XDG_RUNTIME_DIR"]
        places = [
            word for name in ("root", "runroot", "tmpdir") for word in (f"--{name}", str(self.folder / f"p-{name}"))
        ]
        runtime = ["--runtime", shutil.which("runc", path=_SBIN) or program("crun", "runc")]
        options = [
            *places,
            "--storage-driver",
            "overlay",
            *runtime,
            "--cgroup-manager",
            "cgroupfs",
            "--events-backend",
            "file",
        ]
        self._spawn([podman, *options, "system", "service", "--time", "0", self.address], self.environment, user)
        self._wait_for(lambda: answers(self.folder / "podman.sock"))
        self._podman("import", "-c", f"ENV PATH={IMAGE_PATH}", str(full_image()), FULL)
        self._podman("import", str(bare_image()), BARE)
        return {"host": self.address, "registries": str(self.folder / "registries.conf")}

    def _user(self) -> pwd.struct_passwd | None:
        if os.getuid() != 0:
            raise Unavailable("only root starts root's podman")
        program("runc", "runc")
        return None

    def _podman(self, *words: str) -> str:
        return ran(
            ["podman", "--remote", "--url", self.address, *words], {**self.environment, "HOME": str(self.folder)}
        )

    def empty(self) -> None:
        self._podman("rm", "-f", "-a", "-t", "0")


class Rootless(Podman):
    def _user(self) -> pwd.struct_passwd | None:
        for name, package in (("newuidmap", "uidmap"), ("runc", "runc")):
            program(name, package)
        if os.getuid() != 0:
            return None
        try:
            return pwd.getpwnam(ROOTLESS_USER)
        except KeyError:
            ran([program("useradd", "passwd"), "--create-home", "--shell", "/bin/false", ROOTLESS_USER], {})
            return pwd.getpwnam(ROOTLESS_USER)


class Registry(Kept):
    def start(self) -> dict[str, str]:
        server = program("docker-registry", "docker-registry")
        address, port = self.registry.split(":")
        (self.folder / "config.yml").write_text(
            f"version: 0.1\nlog: {{level: warn}}\n"
            f"storage: {{filesystem: {{rootdirectory: {self.folder}/data}}, delete: {{enabled: true}}}}\n"
            f"http: {{addr: '{self.registry}'}}\n"
        )
        self._spawn([server, "serve", str(self.folder / "config.yml")], {})
        self._wait_for(lambda: listens(address, int(port)))
        return {"host": self.registry}


KINDS: dict[str, type[Kept]] = {"docker": Docker, "podman": Podman, "rootless": Rootless, "registry": Registry}


def ran(command: Sequence[str], environment: dict[str, str]) -> str:
    """What a program prints. Raises Unavailable if it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env={"PATH": _SBIN, **environment}
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{' '.join(command[:4])} took more than 60 seconds") from error
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(command[:4])}: {done.stderr.strip()[-300:]}")
    return done.stdout


def answers(path: Path) -> bool:
    """Whether an engine answers at a socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(2)
        try:
            client.connect(str(path))
            client.sendall(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n")
            return b"200 OK" in client.recv(4096)
        except OSError:
            return False


def listens(address: str, port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(2)
        return client.connect_ex((address, port)) == 0


def remove_leftovers(folder: Path) -> None:
    """End what an engine left running, undo its mounts, and remove its folder."""
    for pid in belonging(folder):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    for _ in range(3):
        mounts = [
            line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines() if f" {folder}/" in line
        ]
        if not mounts:
            break
        for mount in reversed(mounts):
            subprocess.run(["umount", "-l", mount], check=False, capture_output=True, timeout=20)
    shutil.rmtree(folder, ignore_errors=True)


def belonging(folder: Path) -> list[int]:
    """Processes that name the folder in their command line, or whose root lies in it, or in whose environment a rootless engine's is."""
    mark = f"{folder}/".encode()
    rootless = next((user.pw_uid for user in pwd.getpwall() if user.pw_name == ROOTLESS_USER), None)
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            engine = mark in (entry / "cmdline").read_bytes()
            inside = any(
                mark in line and line.split()[4] == b"/" for line in (entry / "mountinfo").read_bytes().splitlines()
            )
            of_user = entry.stat().st_uid == rootless and mark in (entry / "environ").read_bytes()
        except OSError:
            continue
        if engine or inside or of_user:
            found.append(int(entry.name))
    return found


def keep(kind: str, folder: Path, registry: str) -> None:
    """Start an engine, and end it as soon as no process uses it any more."""
    users = (folder / "users").open("a+")
    own = (folder / "keeper").open("a+")
    fcntl.flock(own, fcntl.LOCK_EX)
    engine = KINDS[kind](Path(tempfile.mkdtemp(prefix=f"mh-{kind}-", dir="/tmp")), registry)
    os.chmod(engine.folder, 0o755)
    state = folder / "state.json"
    try:
        _tell(state, json.dumps(engine.start()))
        while engine.process is not None and engine.process.poll() is None:
            try:
                fcntl.lockf(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.1)
    except (Unavailable, FileNotFoundError) as error:
        _tell(folder / "failed", str(error))
    finally:
        state.unlink(missing_ok=True)
        engine.end()


def _tell(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".new")
    unfinished.write_text(text)
    unfinished.rename(path)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
