"""A task as it is recorded with an item, and the files in its folder."""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.sandboxes.files.packing import Packer, TooLarge, walked
from manyhands.task_folders.schema import TaskConfig

TASK_FILE = "task.toml"
INSTRUCTION = "instruction.md"
ENVIRONMENT, TESTS, SOLUTION = "environment", "tests", "solution"
"""The folders of a task."""
TEST_SCRIPT, SOLVE_SCRIPT = "test.sh", "solve.sh"
DOCKERFILE = "Dockerfile"
IMAGE_SEED = "image"
"""What the digests in the tags of built images begin with."""
MAX_ARCHIVE = 1 << 30
"""Bytes of the files that are copied into an environment at once."""


class Unreadable(ValueError):
    """Files of a task that can't be taken, in words that name them."""


@dataclass(slots=True)  # not frozen: see Outcome
class Task:
    """A task. ``to_json`` is what an item's payload holds: with the folder it is enough to execute the item."""

    name: str
    folder: Path
    """Absolute."""
    digest: str
    """32 hexadecimal digits: what all files of the folder, and their modes, come to."""
    instruction: str
    config: TaskConfig
    image: str | None = None
    """The image of the environment: the one that is named, or the tag under which the Dockerfile is built; None if it has none, and the
    machine's own programs are used."""
    built: str | None = None
    """The folder, from the task's, whose Dockerfile makes the image; None if that is not built."""
    verifier_image: str | None = None
    """The like of a verifier's own environment."""
    verifier_built: str | None = None
    own_tests: bool = True
    """Whether the tests are copied to the verifier; its image has them otherwise."""
    solved: bool = False
    """Whether it has a solution."""

    def to_json(self) -> dict[str, Any]:
        """Without the instruction, which is the item's prompt."""
        value = {
            "name": self.name,
            "folder": str(self.folder),
            "digest": self.digest,
            "config": self.config.to_json(),
            "image": self.image,
            "built": self.built,
            "verifier_image": self.verifier_image,
            "verifier_built": self.verifier_built,
            "own_tests": self.own_tests,
            "solved": self.solved,
        }
        return {name: each for name, each in value.items() if each is not None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], instruction: str) -> Task:
        """What ``to_json`` gave. ``instruction``: the item's prompt."""
        config, folder = TaskConfig.from_json(value["config"]), Path(value["folder"])
        return cls(**{**value, "config": config, "folder": folder}, instruction=instruction)

    @property
    def isolated(self) -> bool:
        """Whether what it works in has an image."""
        return self.image is not None

    def archive(self, name: str, *, leave_out: frozenset[str] = frozenset()) -> io.BytesIO:
        """The files of one of its folders as a tar archive, owned by root. ``leave_out``: names directly in it.

        Raises ItemError(INVALID_INPUT) if the folder is gone, or can't be read.
        """
        try:
            return archive_of(self.folder / name, leave_out=leave_out)
        except (OSError, Unreadable) as error:
            raise ItemError(Cause.INVALID_INPUT, f"task {self.name}: can't read its folder {name}: {error}") from error

    def check_unchanged(self) -> None:
        """Raises ItemError(INVALID_INPUT) if the folder is gone, or is not what it was when the run was planned."""
        try:
            now = digest_of(self.folder)
        except OSError as error:
            raise ItemError(Cause.INVALID_INPUT, f"task {self.name}: its folder {self.folder} is gone") from error
        except Unreadable as error:
            raise ItemError(Cause.INVALID_INPUT, f"task {self.name}: {error}") from error
        if now != self.digest:
            message = (
                f"task {self.name}: its folder has changed since the run was planned; a resume takes it as other work"
            )
            raise ItemError(Cause.INVALID_INPUT, message)


def digest_of(folder: Path, *, seed: str = "") -> str:
    """32 hexadecimal digits of all files in a folder: names, whether they can be executed, contents, links' targets. Raises OSError,
    Unreadable."""
    state = hashlib.blake2b(seed.encode(), digest_size=16, person=b"task")
    for path in _entries(folder):
        found = path.lstat()
        kind = stat.S_IFMT(found.st_mode) | (found.st_mode & stat.S_IXUSR)
        state.update(b"%b\0%o\0" % (os.fsencode(path.relative_to(folder)), kind))
        if stat.S_ISLNK(found.st_mode):
            state.update(os.fsencode(os.readlink(path)) + b"\0")
        elif stat.S_ISREG(found.st_mode):
            state.update(b"%d\0" % found.st_size)
            with path.open("rb") as stream:
                while block := stream.read(1 << 20):
                    state.update(block)
        elif not stat.S_ISDIR(found.st_mode):
            raise Unreadable(f"{path.relative_to(folder)} is neither a file nor a folder")
    return state.hexdigest()


def archive_of(folder: Path, *, leave_out: frozenset[str] = frozenset()) -> io.BytesIO:
    """The files in a folder as a tar archive, owned by root, the same for the same files. Raises OSError, Unreadable."""
    archive = io.BytesIO()
    try:
        with Packer(archive, max_bytes=MAX_ARCHIVE, times=False) as packer:
            for found in walked(folder):
                if found.path.partition("/")[0] in leave_out:
                    continue
                if not found.packable:
                    raise Unreadable(f"{found.path} is neither a file nor a folder")
                packer.add(found)
    except TooLarge as error:
        raise Unreadable(f"its files are more than {error}") from None
    archive.seek(0)
    return archive


def leads_out(folder: Path) -> str | None:
    """The first link in a folder that leads out of it, as a path from there; None if none does."""
    root = folder.resolve()
    for path in _entries(folder):
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            return str(path.relative_to(folder))
    return None


def _entries(folder: Path) -> Iterator[Path]:
    """Everything in a folder, in one order wherever it is. Links are not followed. Raises OSError."""
    for entry in sorted(os.scandir(folder), key=lambda each: os.fsencode(each.name)):
        path = Path(entry.path)
        yield path
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(path)
