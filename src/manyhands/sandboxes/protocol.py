"""What a sandbox is to the tools, whatever the backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from manyhands.network.counts import HostCounts
from manyhands.processes.children import ExecResult


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Bounds on what runs inside."""

    memory: int = 4 << 30
    """Bytes."""
    processes: int = 512
    file_size: int = 2 << 30
    """Bytes of one file."""
    cpu_seconds: int = 3600
    disk: int = 8 << 30
    """Bytes of the sandbox's own folders (``sandboxes.files.disk_watch`` counts them)."""
    files: int = 1_000_000
    """Files and folders in them."""
    min_free: int | None = None
    """Bytes that are to stay free on their file system; None: 1 GiB, or 2 % of a small one."""
    network: bool = False
    """Off unless requested."""
    network_allow: tuple[str, ...] = ()
    """Without ``network``: names, ``*.`` names, addresses and CIDR blocks that can be reached through the egress proxy all the same."""
    cpus: float | None = None
    """Processors that may be busy at once; None: all of them."""


@dataclass(frozen=True, slots=True)
class SandboxRequest:
    """What to make."""

    folder: Path
    """A host folder of this sandbox alone. It may hold what an earlier process of the same attempt left, see ``Sandbox.reattach``."""
    run_id: str
    """What ``processes.strays.process_mark`` gives for the run's id: by this mark strays of a crashed run are found and killed."""
    name: str | None = None
    """What names it where worlds of many runs lie together, as an engine's containers do: ``<run>-<item>-<attempt>``. Never an item's
    number alone."""
    image: str | None = None
    """A container image, pinned, for backends that take one."""
    cwd: str | None = None
    """Where commands start, as seen inside; None is the project, or the workspace where there is none, or, with an image, where that
    says."""
    user: str | None = None
    """Who runs commands in a container, by name or number; None: the image's user."""
    environment: Mapping[str, str] | None = None
    """Variables for commands, beside those that every sandbox has."""
    limits: SandboxLimits = SandboxLimits()
    hosts: HostCounts | None = None
    """Where to count the hosts that commands ask the egress proxy for."""
    project: Path | None = None
    """A folder of the host's that commands may read, see ``sandboxes.project``."""
    hidden: tuple[Path, ...] = ()
    """Folders that an isolated sandbox leaves out of it, such as the run's own."""
    folders: tuple[str, ...] = ()
    """Absolute paths with a single name, such as ``/logs``, where an isolated sandbox without an image has further empty folders of its own
    that can be written to. With an image, whoever needs a folder makes it."""
    ahead: bool = False
    """Whether there is time to start already what a first command would start, as nobody waits for the sandbox yet."""


class BackgroundProcess(Protocol):
    """A command left running in a sandbox."""

    @property
    def id(self) -> str:
        """Its name in this sandbox: ``p1``, ``p2`` …"""
        ...

    @property
    def command(self) -> str: ...

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        ...

    def output(self, start: int = 0, max_output: int = 50_000) -> tuple[bytes, int]:
        """Output from byte ``start`` of everything written so far (head and tail kept), and the total number of bytes so far."""
        ...

    async def write(self, data: bytes) -> None: ...

    async def close_input(self) -> None: ...

    async def wait(self, timeout: float) -> int | None:
        """Wait for its end, ``timeout`` seconds at most; the exit code, or None if it still runs."""
        ...

    async def kill(self) -> None: ...


class Sandbox(Protocol):
    """Where the commands of one attempt run. Paths are as seen inside; relative ones start where commands start: at the request's
    ``cwd``, else at the project, else at the workspace.

    Methods raise ItemError(SANDBOX_LOST) when the sandbox itself fails, and ToolError for what the model can mend (no such file …).
    """

    @property
    def kind(self) -> str:
        """``local``, ``bubblewrap`` …"""
        ...

    @property
    def other_users(self) -> bool:
        """Whether ``run`` takes a ``user``."""
        ...

    @property
    def workspace(self) -> str:
        """The workspace's path inside."""
        ...

    @property
    def project(self) -> str | None:
        """The project's path inside; None if the request named none."""
        ...

    async def run(
        self,
        command: Sequence[str],
        *,
        timeout: float,
        input: bytes | None = None,
        cwd: str | None = None,
        max_output: int = 100_000,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run a program on its own, in a process group that is killed at the time limit. May run beside others. ``user``: another one
        than the sandbox's, by name or number; ``environment``: variables besides. Raises ItemError(INVALID_INPUT) for a user that the
        sandbox can't give it."""
        ...

    async def shell(self, command: str, *, timeout: float, max_output: int = 100_000) -> ExecResult:
        """Run a command line in the persistent shell: directory, variables, functions stay for the next one. While the shell is
        busy, a further command runs beside it in a shell of its own that starts from the persistent one's last known directory
        and exported variables (and leaves no trace in it). A command stopped at its time limit costs the shell its unexported state
        at most."""
        ...

    async def spawn(self, command: str, *, cwd: str | None = None) -> BackgroundProcess:
        """Start a command line in the background."""
        ...

    def background(self) -> Mapping[str, BackgroundProcess]:
        """Background processes by id, ended ones included."""
        ...

    async def read_file(self, path: str, *, max_bytes: int = 50_000_000) -> bytes: ...

    async def write_file(self, path: str, data: bytes) -> None:
        """Write aside, then rename; parent folders are made. Keeps an existing file's mode. Raises ToolError."""
        ...

    async def put(self, archive: BinaryIO, path: str) -> None:
        """Unpack a tar archive into the folder ``path``, which is made. Owners in the archive count where commands run as root; else
        everything belongs to who runs them. Raises ToolError."""
        ...

    async def get(self, path: str, archive: BinaryIO, *, max_bytes: int) -> None:
        """Write a tar archive of a file or folder, whose names start with the last part of ``path``. Raises ToolError, also for more
        than ``max_bytes`` bytes."""
        ...

    async def begin_step(self, address: str) -> None:
        """Called before a step that may change the world: remembers the world as it is now, so that a crash in the middle of the
        step can be undone. Cheap when little changed since the last call; a world too large to copy is only marked."""
        ...

    async def end_step(self) -> None:
        """Called when a step that may have changed the world has ended: what the next ``begin_step`` has to do can begin now, beside the
        model's next call. Does not wait for it. Raises ItemError(SANDBOX_LIMIT) if the world holds too much."""
        ...

    async def reattach(self, recorded: bool, address: str) -> bool:
        """Called once, on a sandbox made over a folder from an interrupted attempt, before its first use. ``address`` is what
        ``open_step`` said; ``recorded`` whether the journal holds that step's output. Brings the world to the state after the last recorded
        step and returns True; returns False if it can't (background processes died, the world was too large to copy)."""
        ...

    @property
    def open_step(self) -> str | None:
        """The address that the last ``begin_step`` in this folder named, also by an earlier process; None if there was none."""
        ...

    @property
    def can_undo(self) -> bool:
        """Whether a later ``reattach`` can undo what was done since the last ``begin_step``."""
        ...

    async def end_processes(self) -> bool:
        """End all that runs inside, however it hides, and whether anything ran that commands had left. Files stay. What
        runs next runs in new processes, and the next shell begins without anything of the former one: no directory, variables, functions
        or traps. Raises ItemError(SANDBOX_LOST)."""
        ...

    async def freeze(self) -> None:
        """Have all that runs inside stand still until ``thaw``, so that its files can be looked at; what can't be made to is ended, with
        everything else. Nothing is to be started meanwhile."""
        ...

    async def thaw(self) -> None:
        """Have it go on. Does nothing where nothing stands still."""
        ...

    async def close(self) -> None:
        """Stop everything inside. Idempotent. The folder is left to its owner."""
        ...

    async def discard(self) -> None:
        """The same for a sandbox that is never brought back: nothing of it stays outside of its folder. What can't be removed now is found
        when the run is next opened."""
        ...


class SandboxBackend(Protocol):
    """Makes sandboxes of one kind."""

    @property
    def kind(self) -> str: ...

    def unavailable(self) -> str | None:
        """One line on why this machine can't use it (what to install), or None if it can."""
        ...

    async def create(self, request: SandboxRequest) -> Sandbox:
        """Raises ItemError(SANDBOX_LOST) if it can't be made."""
        ...
