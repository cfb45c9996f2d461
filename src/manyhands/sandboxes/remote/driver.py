"""What an engine or a service must be able to do so that sandboxes can be made there: a ``Driver``.

``sandboxes.remote.sandbox`` makes a ``Sandbox`` of any driver. What a driver keeps are *worlds*: a root file system with the processes in
it. A world has an id that the driver gives, and labels by which it is found again after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable

from manyhands.sandboxes.protocol import SandboxLimits

RUN, FOLDER, OWNER, VERSION = "manyhands.run", "manyhands.folder", "manyhands.owner", "manyhands.version"
"""Labels of worlds and snapshots: the mark of their run (``processes.strays.process_mark``), the folder of their attempt (absolute), the
process that made them (host, boot id, process id, as text), and this program's version."""


@dataclass(frozen=True, slots=True)
class WorldOptions:
    """What a run says of all its worlds."""

    runtime: str | None = None
    """The engine's runtime, such as ``runsc``; None: its default."""
    checkpoints: bool = True
    """Whether a snapshot is taken after steps that change a world."""
    checkpoint_limit: int = 64 << 20
    """Bytes of changes beyond which no further snapshot of a world is taken."""
    durable: bool = False
    """Whether snapshots outlive the machine's death: the disks are synced after each, and after a restart the snapshot is used in place of
    the world."""


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """A world to be made."""

    name: str
    """Unique at the driver."""
    labels: Mapping[str, str]
    image: str | None
    """A pinned image, or the snapshot of a world; None: the driver's own default."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables of all commands, beside those of the image."""
    user: str | None = None
    """Who runs commands; None: the image's user."""
    directory: str | None = None
    """Where commands start; None: where the image says, unless that is the root."""
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    project: Path | None = None
    """A folder of this machine to be seen read-only at ``/project``; refused by drivers of other machines."""
    hidden: tuple[Path, ...] = ()
    """Folders in it that are left out."""
    time_to_live: float = 24 * 3600.0
    """Seconds after which a service ends the world by itself, whatever happened to us. An engine on this machine ends it with its owner
    instead."""
    changes: Path | None = None
    """What the world has beyond the image: a copy of what ``Overlaid`` showed of one. Only such drivers are asked for it."""


@dataclass(frozen=True, slots=True)
class World:
    """A world as it was made."""

    id: str
    workspace: str
    """The folder where agents work, as seen inside; it is there."""
    directory: str
    """Where commands start, as seen inside."""
    home: str | None = None
    """The home folder of who runs commands, if that is known."""
    alone: bool = True
    """Whether commands see no processes but those of the world, as in a container. Else only what carries the sandbox's own mark is ended
    and counted."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A world or a snapshot that a driver keeps."""

    id: str
    labels: Mapping[str, str]
    running: bool = False
    snapshot: bool = False
    size: int | None = None
    """Bytes of its own; None if that is not known."""


def has_labels(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether something that is listed is meant, as ``Driver.listed`` says: it has all these labels, with these values; an empty value
    stands for any."""
    return all(name in labels and value in ("", labels[name]) for name, value in wanted.items())


class ExecStream(Protocol):
    """A command that runs in a world. What it writes goes to the two functions that ``Driver.execute`` was given, in the event loop's
    thread."""

    async def write(self, data: bytes) -> None:
        """To its standard input. Raises ConnectionError if nobody reads that any more."""
        ...

    async def close_input(self) -> None: ...

    async def wait(self) -> int | None:
        """Wait until all that it writes has ended. Its exit code; None if that is not known, as the connection broke."""
        ...

    async def close(self) -> None:
        """Give up the connection. It does not end the command. Idempotent."""
        ...


class Driver(Protocol):
    """Keeps worlds of one kind. One object serves all sandboxes of an event loop.

    Methods raise ItemError: SANDBOX_LOST for whatever a new try may mend (the engine does not answer, the world is gone), INVALID_INPUT
    for what none can (no such image, no such user, no ``cwd``, an image without ``/bin/sh``).
    """

    @property
    def kind(self) -> str:
        """What ``--sandbox`` calls it."""
        ...

    @property
    def ends_with_owner(self) -> bool:
        """Whether a world stops by itself, with everything in it, when the process that made or started it dies."""
        ...

    def unavailable(self) -> str | None:
        """One line on why it can't be used from here, or None. Opens nothing that would have to be closed."""
        ...

    async def identity(self) -> str:
        """What tells this engine or service, and a start of its machine, from others: worlds of another identity can't be trusted. For an
        engine on this machine its id and, as the last word, the machine's boot id."""
        ...

    async def unenforced(self) -> tuple[str, ...]:
        """What of ``SandboxLimits`` it can't keep worlds to, by names of its fields; empty if there is nothing."""
        ...

    async def create(self, spec: WorldSpec) -> World:
        """Make a world and start it."""
        ...

    async def start(self, world: str) -> None:
        """Start a world that stopped with its owner; its files are as they were. Does nothing for one that runs."""
        ...

    async def stop(self, world: str) -> None:
        """End everything in it, but keep its files. Does nothing for one that is stopped or gone."""
        ...

    async def execute(
        self,
        world: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        user: str | None,
        directory: str | None,
        output: Callable[[bytes], None],
        errors: Callable[[bytes], None],
    ) -> ExecStream:
        """Start a command, with its three streams. ``user``, ``directory``: None takes the world's."""
        ...

    async def put(self, world: str, archive: BinaryIO, path: str) -> None:
        """Unpack a tar archive into a folder that is there. Owners in the archive count."""
        ...

    async def get(self, world: str, path: str, archive: BinaryIO, *, max_bytes: int) -> None:
        """Write a tar archive of a file or folder. Raises FileNotFoundError if there is none, ValueError for more than ``max_bytes``
        bytes."""
        ...

    async def snapshot(self, world: str, labels: Mapping[str, str]) -> str:
        """Keep the world's files as they are now; the id of an image from which ``create`` makes such a world. Nothing runs in it
        meanwhile but what waits."""
        ...

    async def size(self, world: str) -> int | None:
        """Bytes that the world's files take beyond those of its image; None if that is not known."""
        ...

    async def delete(self, world: str) -> None:
        """End a world and remove its files. Does nothing if it is gone."""
        ...

    async def delete_snapshot(self, snapshot: str) -> None:
        """Does nothing if it is gone."""
        ...

    async def listed(self, labels: Mapping[str, str]) -> list[Listed]:
        """All worlds and snapshots with these labels; of all owners' with none but the names (an empty value fits any)."""
        ...

    async def close(self) -> None:
        """Close all connections to the engine. Worlds that end with their owner end now. Idempotent."""
        ...


@runtime_checkable
class Enterable(Protocol):
    """A driver whose worlds are processes of this machine: in a network of theirs, which has no way out, our egress proxy can listen."""

    def why_not_entered(self) -> str | None:
        """One line on why this user can't enter the namespaces of its worlds, or None."""
        ...

    async def process(self, world: str) -> int:
        """The id of the first process of a world that runs, as this machine counts. Raises ItemError(SANDBOX_LOST)."""
        ...


@runtime_checkable
class Overlaid(Protocol):
    """A driver whose worlds are overlays on this machine, so that a copy of a folder can stand for a snapshot."""

    async def upper(self, world: str) -> Path | None:
        """The folder with all that a world has beyond its image, see ``files.overlay_copy``; None where it can't be had."""
        ...


@runtime_checkable
class Exportable(Protocol):
    """A driver whose worlds can be moved to another engine: what they have beyond their images can be written to files, and put into a new
    world of the same image."""

    async def changes(self, snapshot: str, image: str | None, folder: Path, *, max_bytes: int) -> list[Path]:
        """Write what a snapshot has beyond the image that its world was made of: layers of the OCI image specification, not compressed,
        lowest first, each a file in ``folder``. Raises ItemError, and ValueError for more than ``max_bytes`` bytes."""
        ...
