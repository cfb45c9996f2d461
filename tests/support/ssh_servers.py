"""A real ``sshd`` on loopback for tests: its own host key, configuration and port, and an account that logs in with a key of its own.

Where there is none, tests that ask for it are skipped with the reason; with ``MANYHANDS_REQUIRE_ENGINES=1`` they fail.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from manyhands.sandboxes.services.ssh.connections import SshTarget
from tests.support.engines import REQUIRED

ACCOUNT = "manyhands-ssh"
_SBIN = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
_START_TIME = 10.0


@dataclass
class SshServer:
    """A server that runs."""

    folder: Path
    port: int
    account: str
    config: Path
    """The client's configuration: which host key is the server's, and with which key to log in."""
    process: subprocess.Popen[bytes]

    @property
    def worlds(self) -> Path:
        return self.folder / "worlds"

    @property
    def target(self) -> SshTarget:
        return SshTarget("127.0.0.1", self.account, self.port, config=self.config, folder=str(self.worlds))

    @property
    def options(self) -> list[str]:
        """For the command line."""
        return [
            "--sandbox=ssh",
            "--ssh_host=127.0.0.1",
            f"--ssh_user={self.account}",
            f"--ssh_port={self.port}",
            f"--ssh_config={self.config}",
            f"--ssh_dir={self.worlds}",
        ]

    def stop(self) -> None:
        """Kill the server and all connections to it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


@contextmanager
def ssh_server(*, ordinary: bool = False, settings: str = "") -> Iterator[SshServer]:
    """A server for the user of the tests, or, with ``ordinary``, for an ordinary one, which only root can have. ``settings``: lines for its
    configuration. Skips the test if there can be none."""
    sshd = shutil.which("sshd", path=_SBIN)
    if sshd is None:
        _unavailable("sshd is missing (install the package openssh-server)")
    if ordinary and os.geteuid() != 0:
        _unavailable("only root can start a server for another user")
    account = _account() if ordinary else pwd.getpwuid(os.geteuid())
    assert sshd is not None
    folder = Path(tempfile.mkdtemp(prefix="sshd-of-tests-"))  # not below pytest's, which others may not enter
    folder.chmod(0o755)
    worlds = folder / "worlds"
    worlds.mkdir()
    os.chown(worlds, account.pw_uid, account.pw_gid)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    keys = folder / "authorized"
    keys.write_text((folder / "user.pub").read_text())
    keys.chmod(0o644)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = folder / "sshd_config"
    server.write_text(
        f"{settings}\nListenAddress 127.0.0.1\nPort {port}\nHostKey {folder}/host\nAuthorizedKeysFile {keys}\nStrictModes no\n"
        "UsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\nPidFile none\nPrintMotd no\nUseDNS no\n"
    )
    known = folder / "known_hosts"
    known.write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    config = folder / "ssh_config"
    config.write_text(
        f"IdentityFile {folder}/user\nIdentitiesOnly yes\nUserKnownHostsFile {known}\nGlobalKnownHostsFile none\n"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sshd, "-D", "-e", "-f", server], stdin=subprocess.DEVNULL, stderr=log, start_new_session=True
        )
    running = SshServer(folder, port, account.pw_name, config, process)
    try:
        _wait_for(running)
        yield running
    finally:
        running.stop()
        subprocess.run(["chmod", "-R", "u+rwX", worlds], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(server: SshServer) -> None:
    deadline = time.monotonic() + _START_TIME
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", server.port), timeout=1) as connection:
            connection.recv(10)
            return
        if server.process.poll() is not None or time.monotonic() > deadline:
            _unavailable(f"sshd does not start: {(server.folder / 'log').read_text(errors='replace')[-300:]}")
        time.sleep(0.02)


def _account() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(ACCOUNT)
    except KeyError:
        useradd = shutil.which("useradd", path=_SBIN)
        if useradd is None:
            _unavailable("useradd is missing (install the package passwd)")
        subprocess.run([str(useradd), "--create-home", "--shell", "/bin/sh", "--password", "*", ACCOUNT], check=True)
        return pwd.getpwnam(ACCOUNT)


def _unavailable(reason: str) -> None:
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(reason)
    pytest.skip(reason)


REFUSED = {
    "ssh_host": (["--ssh_host=a!b"], "'a!b' is no name of a machine"),
    "ssh_user": (["--ssh_host=127.0.0.1", "--ssh_user=-x"], "'-x' is no name of an account"),
    "ssh_port": (["--ssh_host=127.0.0.1", "--ssh_port=1"], "port 1: Connection refused"),
    "ssh_key": (["--ssh_host=127.0.0.1", "--ssh_key=/no/such/key"], "--ssh_key: there is no file /no/such/key"),
    "ssh_config": (["--ssh_host=127.0.0.1", "--ssh_config=/no/such"], "--ssh_config: there is no file /no/such"),
}
"""Options for worlds on another machine: words with which a run is refused, and what is said."""
