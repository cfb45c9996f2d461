"""The file that a world is exported to: what it has beyond its image.

``RUN/worlds/ITEM-ATTEMPT.tar`` (of a part of an attempt ``ITEM-ATTEMPT-PART.tar``), not compressed::

    world.json          what ``Exported`` says
    1.tar, 2.tar, …     the changes, as layers of the OCI image specification (``layer.md``), lowest first

Layers have owners, modes, times and links of all that was changed or added, and tell what was removed: ``.wh.NAME`` in a folder takes NAME
away, ``.wh..wh..opq`` all that was in it.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from manyhands.engine.workspaces import WORKSPACES
from manyhands.io.files import bytes_written_aside, make_private, open_inside
from manyhands.sandboxes.commands.shell_state import ShellState
from manyhands.sandboxes.images.extraction import BadArchive, open_archive

EXPORTS = "worlds"
"""The folder in that of a run."""
_WORLD = "world.json"
_MAX_WORLD = 16 << 20
_MAX_LAYERS = 1000


@dataclass(frozen=True, slots=True)
class Exported:
    """Which world was exported, and its state."""

    run_id: str
    name: str
    """``ITEM-ATTEMPT``, as the file is called."""
    step: str
    """The address of the step begun last."""
    recorded: bool
    """Whether the journal has that step. The world is the one after it then, and the one before it otherwise."""
    image: str | None
    """The pinned image, of which the world is made anew."""
    driver: str
    identity: str
    """Of the engine that it was exported from."""
    shell: ShellState | None
    """The state of the persistent shell; None if nobody had used it."""
    layers: int

    def to_json(self) -> dict[str, Any]:
        shell = None if self.shell is None else [self.shell.directory, self.shell.script]
        return {**{name: value for name, value in asdict(self).items() if name != "shell"}, "shell": shell}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Exported:
        """Raises ValueError, TypeError or KeyError."""
        shell = value["shell"]
        found = cls(**{**value, "shell": None if shell is None else ShellState(str(shell[0]), str(shell[1]))})
        if type(found.layers) is not int or not 0 <= found.layers <= _MAX_LAYERS:
            raise ValueError("layers")
        return found


@dataclass(frozen=True, slots=True)
class ExportPlace:
    """Where the world is exported to that belongs to a folder."""

    run_folder: Path
    name: str

    @property
    def path(self) -> Path:
        return self.run_folder / EXPORTS / f"{self.name}.tar"


def export_place(folder: Path) -> ExportPlace | None:
    """``folder``: of an attempt, or of a part of it; None if it is no run's."""
    parts = folder.parts
    if WORKSPACES not in parts[:-1]:
        return None
    place = len(parts) - 1 - parts[::-1].index(WORKSPACES)
    return ExportPlace(Path(*parts[:place]), "-".join(parts[place + 1 :]))


def write_export(place: ExportPlace, exported: Exported, layers: Sequence[Path]) -> int:
    """Write the file; its size in bytes. Raises StorageError."""
    with bytes_written_aside(place.path) as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
            content = json.dumps(exported.to_json()).encode()
            archive.addfile(_member(_WORLD, len(content)), io.BytesIO(content))
            for number, layer in enumerate(layers, 1):
                with layer.open("rb") as data:
                    archive.addfile(_member(f"{number}.tar", layer.stat().st_size), data)
        return file.tell()


def read_export(place: ExportPlace) -> Exported | None:
    """What an export says of itself; None if there is none, or it can't be read."""
    try:
        with _opened(place) as (_, exported):
            return exported
    except (OSError, BadArchive):
        return None


@contextmanager
def opened_layers(place: ExportPlace) -> Iterator[tuple[Exported, list[IO[bytes]]]]:
    """An export, with its layers to be read. Raises BadArchive, and OSError."""
    with _opened(place) as (archive, exported):
        try:
            layers = [_file(archive, archive.next(), f"{number}.tar") for number in range(1, exported.layers + 1)]
        except tarfile.TarError as error:
            raise BadArchive(f"is damaged: {error}") from error
        yield exported, layers


@contextmanager
def _opened(place: ExportPlace) -> Iterator[tuple[tarfile.TarFile, Exported]]:
    with open_inside(place.run_folder, place.path) as file:
        try:
            archive = open_archive(file, stream=False)
            said = _file(archive, archive.next(), _WORLD)
            exported = Exported.from_json(json.loads(said.read(_MAX_WORLD)))
        except (tarfile.TarError, ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
            raise BadArchive("is no export of a world") from error
        yield archive, exported


def _file(archive: tarfile.TarFile, member: tarfile.TarInfo | None, name: str) -> IO[bytes]:
    file = archive.extractfile(member) if member is not None and member.isreg() and member.name == name else None
    if file is None:
        raise BadArchive(f"has no {name}")
    return file


def remove_exports(run_folder: Path, unneeded: Callable[[str], bool]) -> None:
    """Remove exports of attempts, and what cut-off ones left. ``unneeded``: takes the name of an attempt's folder."""
    folder = run_folder / EXPORTS
    if folder.is_symlink() or not folder.is_dir():
        return
    with suppress(OSError):  # somebody else removes them as well; or they stay, where no step fits them any more
        for path in folder.iterdir():
            if path.name.startswith(".") and path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.suffix == ".tar" and unneeded("-".join(path.stem.split("-")[:2])):
                path.unlink(missing_ok=True)
        if not any(folder.iterdir()):
            folder.rmdir()


def made_private(run_folder: Path) -> Path:
    """The folder of a run's exports, made. Raises OSError."""
    folder = run_folder / EXPORTS
    make_private(folder)
    return folder


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    return member
