"""What attacks from inside a sandbox are aimed at, and what must be as it was after each of them."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CANARY = f"sk-canary-{secrets.token_hex(12)}"
"""A key that must not be seen inside, nor in anything that an attack prints."""
KEY_NAME = "ATTACKED_API_KEY"
BREAKOUT = "manyhands-breakout"
"""The name of every file that an attack would make outside."""
WATCHED = ("/", "/tmp", "/etc", "/usr", "/usr/bin", "/dev", "/dev/shm", "/var/tmp", "/home", "/root")


class Outside:
    """The host as an attacker would like it: files, a neighbour's workspace, servers, a key in the environment, programs of ours."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.touched: list[str] = []
        self._listeners: list[socket.socket] = []
        for name in ("planted", "neighbour/workspace", "neighbour/tmp"):
            (folder / name).mkdir(parents=True)
            (folder / name / "secret").write_text(CANARY)
        self.files = sorted(str(path) for path in folder.rglob("secret"))
        self.socket = str(folder / "planted" / "socket")
        self.abstract = f"manyhands-attacked-{secrets.token_hex(4)}"
        self.port = 0

    def __enter__(self) -> Outside:
        self.port = self._listen(socket.AF_INET, ("127.0.0.1", 0))[1]
        self._listen(socket.AF_UNIX, self.socket)
        self._listen(socket.AF_UNIX, "\0" + self.abstract)
        return self

    def __exit__(self, *_: object) -> None:
        for listener in self._listeners:
            listener.close()

    def places(self, **more: Any) -> str:
        """What attackers are told, as JSON."""
        told = {
            "files": [*self.files, str(self.folder)],
            "port": self.port,
            "socket": self.socket,
            "abstract": self.abstract,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "commands": [Path(f"/proc/{pid}/cmdline").read_text() for pid in {os.getpid(), os.getppid()} if pid > 1],
        }
        return json.dumps({**told, **more})

    def state(self) -> dict[str, Any]:
        """All that an attack must leave as it is."""
        return {
            "files": {str(path): _content(path) for path in sorted(self.folder.rglob("*"))},
            "touched": list(self.touched),
            "core_pattern": Path("/proc/sys/kernel/core_pattern").read_text(),
            "host": socket.gethostname(),
            "breakouts": [where for where in WATCHED if os.path.lexists(os.path.join(where, BREAKOUT))],
        }

    def _listen(self, family: int, address: Any) -> Any:
        listener = socket.socket(family)
        listener.bind(address)
        listener.listen()
        self._listeners.append(listener)
        threading.Thread(target=self._answer, args=(listener,), daemon=True).start()
        return listener.getsockname()

    def _answer(self, listener: socket.socket) -> None:
        while True:
            try:
                client = listener.accept()[0]
            except OSError:
                return
            self.touched.append(f"a connection to {listener.family.name}")
            with client:
                client.sendall(CANARY.encode())


@contextmanager
def own_folder(mode: int = 0o700) -> Iterator[Path]:
    """A fresh folder, removed at the end however deep its trees are, which is more than Python's ``rmtree`` or pytest can do."""
    folder = Path(tempfile.mkdtemp(prefix="manyhands-attacks-"))
    try:
        folder.chmod(mode)
        yield folder
    finally:
        for last in (False, False, True):  # what an attack had started may still be ending, and write
            removed = subprocess.run(["rm", "-rf", "--one-file-system", "--", str(folder)], check=last)
            if removed.returncode == 0:
                break
            time.sleep(1.0)


@contextmanager
def own_programs() -> Iterator[Path]:
    """Copies of the programs that make sandboxes, which whoever runs this owns, first on the search path: as with conda. What an attack
    does to them is seen, and harms nothing."""
    before = os.environ.get("PATH", os.defpath)
    with own_folder(0o755) as folder:
        for name in ("bwrap", "nsenter", "setpriv", "chroot"):
            found = shutil.which(name)
            assert found is not None, f"{name} is missing"
            shutil.copy(found, folder / name)
            (folder / name).chmod(0o755)
        os.environ["PATH"] = f"{folder}:{before}"
        try:
            yield folder
        finally:
            os.environ["PATH"] = before


@contextmanager
def key_in_the_environment() -> Iterator[None]:
    """A key in the environment of this process."""
    os.environ[KEY_NAME] = CANARY
    try:
        yield
    finally:
        del os.environ[KEY_NAME]


def digests(folder: Path) -> dict[str, str]:
    """The contents of the files in a folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def _content(path: Path) -> tuple[int, int, str]:
    status = path.lstat()
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    return status.st_mode, status.st_uid, digest
