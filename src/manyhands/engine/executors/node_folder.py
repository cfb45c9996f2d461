"""The folder that stands in for the run's folder on another machine: what is put there, and what is brought back.

Nothing need be shared between machines. A worker's node gets copies of those files of the run's folder that the workload names
(``Workload.worker_files``), and a journal with no more than the run's facts, and its items if the workload reads them. What items leave in
the folders of ``Workload.worker_results`` is sent to the owner before the step that left it is recorded, and before their ends are.
Workspaces stay on the node. They and the node's folder are shared by all workers of the node, and survive each of them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import secrets
import stat
import tempfile
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from socket import gethostname
from typing import BinaryIO

from manyhands.core.errors import ManyhandsError, StorageError, UserError
from manyhands.core.outcomes import ItemState
from manyhands.core.redaction import describe
from manyhands.engine.contract import Execution, Workload, Worlds
from manyhands.engine.executors import wire
from manyhands.engine.executors.claiming import CLAIM, claim, is_alone
from manyhands.engine.journal.reader import JOURNAL, JournalReader, copy_journal
from manyhands.engine.workspaces import KEEP, STATES, WORKSPACES
from manyhands.io.files import bytes_written_aside, make_private, open_inside
from manyhands.processes.strays import remove_tree

FOLDER_VARIABLE = "MANYHANDS_NODE_FOLDER"
"""The environment variable of a node that names the folder for what workers keep there (default: one in the temporary folder)."""
MODULES = "modules"
"""The folder in a node's folder for files of the person's own that are loaded by their paths."""
SCRATCH = ".shipment"
"""The folder in a run's folder for what is made for its workers alone. It is removed when the session ends."""
CHUNK = 1 << 20
"""Bytes of a file that are sent at once."""
MAX_IN_LOOP = 4 << 20
"""Bytes of a file that are written in the event loop's thread at most, which takes less time there than a change of threads for each of
many small files."""
MAX_NEIGHBOURS, MAX_MODULE_BYTES = 200, 16 << 20
"""Files beside one that is loaded by its path, and bytes of all of them, that go with it at most."""
ARTIFACTS = "artifacts"
"""The folder in a run's folder where an attempt may have a folder for what is kept of it, named as ``3-1``: item 3, attempt 1."""
_ATTEMPT = re.compile("[0-9]+-[0-9]+")
_FOR_GOOD = frozenset((ItemState.COMPLETED, ItemState.DISCARDED))
_PARTS = 3
_CLOCK_TICK = 50_000_000
"""Nanoseconds, more than file systems' clocks step by."""
_State = tuple[int, int, bool]
"""Of a file: when it was changed, how large it is, and whether it can be executed."""
_IMPOSSIBLE = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EILSEQ, errno.EINVAL}
"""What is wrong with a file's name rather than with the disk."""
_OF_MACHINE = frozenset(
    (
        *("PATH", "HOME", "PWD", "OLDPWD", "SHLVL", "USER", "LOGNAME", "SHELL"),
        *("HOSTNAME", "TMPDIR", "TEMP", "TMP", "MAIL", "TERM", "DISPLAY", "DOCKER_HOST"),
        *("CONTAINER_HOST", "VIRTUAL_ENV", "MANYHANDS_RUN", "MANYHANDS_NODE_FOLDER", "_"),
        *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    )
)
_KINDS_OF_MACHINE = ("LD_", "PYTHON", "CONDA", "RAY_", "XDG_", "SSH_", "DBUS_")


def shared_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that workers elsewhere get: all but those that say something of this machine."""
    return {
        name: value
        for name, value in environ.items()
        if name not in _OF_MACHINE and not name.startswith(_KINDS_OF_MACHINE)
    }


# --- At the owner


class Shipment:
    """What the workers of a run need of its folder. Its methods read files: not for the event loop's thread."""

    def __init__(self, run_folder: Path, run_id: str, workload: Workload) -> None:
        self._folder = Path(os.path.abspath(run_folder))  # without "..", which would lead out of a node's folder
        self._run_id = run_id
        self._session = f"{secrets.token_hex(16)} {gethostname()}:{self._folder}"
        self._workload = workload
        self._files: dict[str, Path] = {}
        self._digests: dict[Path, tuple[int, int, bytes]] = {}
        self._scratch = self._folder / SCRATCH
        remove_tree(self._scratch)  # an owner that was killed left it

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def close(self) -> None:
        """Idempotent."""
        remove_tree(self._scratch)

    def furnish(self, environ: Mapping[str, str]) -> wire.Furnish:
        """What a worker is told first. Raises StorageError, UserError."""
        ended = self._ended_attempts()
        files = {name: path for each in self._workload.worker_files for name, path in self._named(each, ended)}
        modules = {}
        for path in files_by_path(self._workload.modules):
            for name, source in _with_neighbours(path):
                files[name] = source
                modules[str(source)] = name
        journal = self._scratch / "facts.db"  # not called as a journal is, so that nobody takes it for a run
        if self._workload.reads_items or not journal.exists():
            copy = journal.with_suffix(".new")  # as the last one may just be read, for another worker
            try:
                self._scratch.mkdir(exist_ok=True)
            except OSError as error:
                raise StorageError(f"{self._scratch}: can't be made ({error.strerror})") from error
            copy_journal(self._folder / JOURNAL, copy, items=self._workload.reads_items)
            copy.replace(journal)
        files[JOURNAL] = journal
        self._files |= files
        try:
            manifest = {name: self._described(path) for name, path in files.items()}
        except OSError as error:
            raise StorageError(f"{error.filename}: can't be read ({error.strerror})") from error
        return wire.Furnish(
            self._run_id,
            self._folder.parts[-_PARTS:],
            manifest,
            modules,
            shared_variables(environ),
            self._workload.worker_results,
            _current_folder(),
            (
                *(name for each in self._workload.worker_results for name, _ in self._named(each, ended)),
                *(f"{ARTIFACTS}/{each}" for each in ended),
            ),
            self._session,
        )

    def content(self, name: str) -> Iterator[wire.Content]:
        """A file, in parts. Raises StorageError, and KeyError for what was not offered."""
        path = self._files[name]
        try:
            with path.open("rb") as file:
                yield from _in_parts(name, file, executable=is_executable(os.fstat(file.fileno())))
        except OSError as error:
            raise StorageError(f"{path}: can't be read ({error.strerror})") from error

    def _named(self, name: str, ended: Set[str]) -> Iterator[tuple[str, Path]]:
        """The files of this name in the run's folder, or in its folder of this name, but for what ended attempts keep."""
        path = self._folder / name
        if path.is_file():
            yield name, path
        for found in _files_below(path, lambda folder: name != ARTIFACTS or folder not in ended):
            yield f"{name}/{found}", path / found

    def _ended_attempts(self) -> set[str]:
        """The attempts with a folder in ``ARTIFACTS`` that no worker reads any more, as their items have ended for good, which failed ones
        have not. Raises StorageError."""
        try:
            found = {each for each in os.listdir(self._folder / ARTIFACTS) if is_attempt(each)}
        except FileNotFoundError:
            return set()
        if not found:
            return found
        with closing(JournalReader(self._folder)) as reader:
            ended = {str(each.number) for page in reader.outlines() for each in page if each.state in _FOR_GOOD}
        return {each for each in found if each.partition("-")[0] in ended}

    def _described(self, path: Path) -> tuple[int, bytes, bool]:
        status = path.stat()
        known = self._digests.get(path)
        if known is None or known[:2] != (status.st_mtime_ns, status.st_size):
            known = self._digests[path] = status.st_mtime_ns, status.st_size, digest_of_file(path)
        return *known[1:], is_executable(status)


def _current_folder() -> str:
    """This process's; empty if somebody has removed it."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def files_by_path(modules: Iterable[tuple[str, Path]]) -> list[Path]:
    """Those of the person's own modules that are loaded by their paths."""
    return [(folder / source).absolute() for source, folder in modules if source.endswith(".py")]


def _with_neighbours(path: Path) -> Iterator[tuple[str, Path]]:
    """A file that is loaded by its path, and the Python files beside it, which it may import."""
    mark = blake2b(os.fsencode(path.parent), digest_size=8).hexdigest()
    beside = sorted(each for each in path.parent.glob("*.py") if each.is_file() and each != path)
    size = 0
    for each in [path, *beside[:MAX_NEIGHBOURS]]:
        if not each.is_file():
            raise UserError(f"there is no file {each}")
        size += each.stat().st_size
        if each is path or size <= MAX_MODULE_BYTES:
            yield f"{MODULES}/{mark}/{each.name}", each


class Returns:
    """Files that workers send, as they come into the run's folder."""

    def __init__(self, run_folder: Path, results: Sequence[str]) -> None:
        self._folder = run_folder
        self._results = frozenset(results)
        self.impossible: list[str] = []
        """Files that can't be here by their names, which agents may have made up: too long, or a folder's name and a file's at once."""
        self._latest: dict[str, tuple[str, int]] = {}

    def of_worker(self, node: str = "") -> ReturnedFiles:
        """What takes the files of one worker, on a node."""
        return ReturnedFiles(self, node)

    def path_of(self, content: wire.Content, node: str) -> Path | None:
        """Where a file of a node belongs; None if a later state of it is there. Workers of a node see each other's files; what comes from
        another node is later, whatever the clocks of the two say. Raises ValueError for a file that belongs nowhere."""
        parts = PurePosixPath(content.path).parts
        if len(parts) < 2 or parts[0] not in self._results or ".." in parts or "\0" in content.path:
            raise ValueError(f"{content.path!r} is nothing that a worker may leave")
        of, modified = self._latest.get(content.path, (node, 0))
        if of == node and modified > content.modified:
            return None
        self._latest[content.path] = node, content.modified
        return self._folder.joinpath(*parts)


class ReturnedFiles:
    """The files of one worker, one after the other."""

    def __init__(self, returns: Returns, node: str) -> None:
        self._returns = returns
        self._node = node
        self._path = ""
        """Of the file that is being taken."""
        self._size = 0
        """What came of it so far, in bytes."""
        self._writing: ExitStack | None = None
        self._file: BinaryIO | None = None

    def take(self, content: wire.Content) -> Awaitable[None] | None:
        """Take the next part of a file, which is there as a whole once its last part is. Of large files the parts are written elsewhere
        than in the event loop's thread: the result, if there is one, must be waited for before anything else is taken. Raises StorageError,
        ValueError, as does the result."""
        if content.first:
            self.close()
            self._size = 0
        elif content.path != self._path:
            raise ValueError(f"{content.path!r} has not begun")
        self._size += len(content.data)
        if self._size > MAX_IN_LOOP:
            return asyncio.to_thread(self._take, content)
        self._take(content)
        return None

    def _take(self, content: wire.Content) -> None:
        path = self._returns.path_of(content, self._node) if content.first else None
        self._path = content.path
        try:
            if path is not None:
                self._writing = ExitStack()
                self._file = self._writing.enter_context(bytes_written_aside(path))
            if self._file is not None:
                self._file.write(content.data)
                if content.last and content.executable:
                    make_executable(self._file)
            if content.last and self._writing is not None:
                writing, self._writing, self._file = self._writing, None, None
                writing.close()
        except StorageError as error:
            self.close()
            if not (isinstance(error.__cause__, OSError) and error.__cause__.errno in _IMPOSSIBLE):
                raise
            self._returns.impossible.append(content.path)
        except OSError as error:
            self.close()
            raise StorageError(f"{self._path}: can't be written ({error.strerror or error})") from error

    def close(self) -> None:
        """Give up a file of which the rest will not come."""
        writing, self._writing, self._file = self._writing, None, None
        if writing is not None:
            given_up = ConnectionError("the rest of it did not come")
            try:
                writing.__exit__(type(given_up), given_up, None)
            except (StorageError, ConnectionError):
                pass


# --- On the node


class NodeFolder:
    """The folder of one run on this machine, as one of its workers uses it."""

    def __init__(self, path: Path, results: Sequence[str], notice: Callable[[str], None] = lambda text: None) -> None:
        """``notice`` gets what a person should know."""
        self.path = path
        self._results = results
        self._notice = notice
        self._results_here = [path / name for name in results]
        self._known: dict[str, _State] = {}
        """What the owner has of the results, as they were then."""
        self._looked_at: list[int] = []
        """When the folders of results had been changed, at the last look for what steps left."""
        self._claimed: int | None = None
        """What says that the folder is of this session."""
        self._sending = asyncio.Lock()
        self._worlds: Worlds | None = None

    @classmethod
    async def furnished(cls, channel: wire.Channel, furnish: wire.Furnish) -> NodeFolder | None:
        """Have everything there that the owner offers. None if the owner is gone. Raises UserError."""
        try:
            folder = cls(_place(furnish), furnish.results, lambda text: channel.send(wire.Notice(text)))
            again = partial(_place, furnish)
            folder._claimed = await asyncio.to_thread(partial(claim, folder.path, furnish.session, again=again))
            weakref.finalize(folder, os.close, folder._claimed)
            missing = await asyncio.to_thread(folder.missing, furnish.manifest)
            channel.send(wire.Missing(tuple(missing), tuple(folder.attempts()), os.getpid(), str(folder.path)))
            for name in missing:
                if not await folder.receive(channel, name):
                    return None
        except (OSError, StorageError) as error:
            raise UserError(f"this node's folder can't be used: {error}") from error
        await asyncio.to_thread(folder.took_over, {*furnish.manifest, *furnish.kept})
        return folder

    def attempts(self) -> list[str]:
        """The attempts that have a workspace here."""
        root = self.path / WORKSPACES
        return [each.name for each in root.iterdir()] if root.is_dir() else []

    def missing(self, manifest: Mapping[str, tuple[int, bytes, bool]]) -> list[str]:
        """The files that are not here as they are to be."""
        return [name for name, described in manifest.items() if not self._has(name, *described)]

    async def receive(self, channel: wire.Channel, name: str) -> bool:
        """Take a file from the owner; False if the owner is gone, and then nothing is here of it."""
        try:
            with bytes_written_aside(self.path / name) as file:
                while True:
                    part = await channel.receive()
                    if part is None:
                        raise EOFError
                    if not isinstance(part, wire.Content) or part.path != name:
                        raise UserError("the owner sent something else than what was missing")
                    file.write(part.data)
                    if part.last:
                        if part.executable:
                            make_executable(file)
                        return True
        except EOFError:
            return False

    def took_over(self, names: Set[str]) -> None:
        """The owner has results of these names, or all in folders of these names. What else is here was left by a worker that died before
        it could bring it back."""
        self._known.update(
            (path, state)
            for path, state in self.changed()
            if path in names or "/".join(PurePosixPath(path).parts[:2]) in names
        )

    def changed(self, attempt: str | None = None) -> list[tuple[str, _State]]:
        """The results that the owner does not have as they are now, but for what other attempts than ``attempt`` keep for themselves. Reads
        folders: not for the event loop's thread."""
        return self._unlike(
            f"{top}/{name}"
            for top in self._results
            for name in _files_below(self.path / top, partial(_may_change, top, attempt))
        )

    def left_by_step(self, attempt: str) -> list[tuple[str, _State]]:
        """Of these, what the attempt keeps for itself, and the files with new names right in a folder of results: found without a look at
        all that is there, of which there may be much. Reads folders: not for the event loop's thread."""
        own = f"{ARTIFACTS}/{attempt}"
        names = (f"{top}/{name}" for top in self._results for name in _new_names(self.path / top))
        new = (path for path in names if path not in self._known and _is_plain(self.path / path))
        return self._unlike([*new, *(f"{own}/{name}" for name in _files_below(self.path / own))])

    def _unlike(self, paths: Iterable[str]) -> list[tuple[str, _State]]:
        """Those of these files that the owner does not have as they are now."""
        found = []
        for path in paths:
            with suppress(FileNotFoundError, NotADirectoryError):
                status = os.stat(self.path / path, follow_symlinks=False)
                state = status.st_mtime_ns, status.st_size, is_executable(status)
                if self._known.get(path) != state:
                    found.append((path, state))
        return found

    async def bring_back(self, channel: wire.Channel, attempt: str | None = None) -> None:
        """Send the owner what items have left here, or only what belongs to this attempt or to no certain one; when this returns, all that
        was there when it was called is on its way. Raises OSError."""
        if any(os.access(each, os.F_OK) for each in self._results_here):  # no thread for the many that leave nothing
            await self._send_all(channel, partial(self.changed, attempt))

    async def bring_back_step(self, channel: wire.Channel, attempt: str) -> None:
        """The same of what a step of an attempt has left. For the many that leave nothing, no more is read than when the folders of results
        were changed. Raises OSError."""
        times = [_changed_at(each) for each in self._results_here]
        if times != self._looked_at or os.access(f"{self.path}/{ARTIFACTS}/{attempt}", os.F_OK):
            await self._send_all(channel, partial(self.left_by_step, attempt))
            # A name that is added within the same tick of the file system's clock leaves no trace.
            self._looked_at = times if max(times, default=0) < time.time_ns() - _CLOCK_TICK else []

    async def _send_all(self, channel: wire.Channel, find: Callable[[], list[tuple[str, _State]]]) -> None:
        async with self._sending:  # the parts of a file follow each other
            for path, state in await asyncio.to_thread(find):
                with suppress(FileNotFoundError):  # it was removed since
                    await self._send(channel, path, state)

    async def _send(self, channel: wire.Channel, path: str, state: _State) -> None:
        modified, _, executable = state
        with open_inside(self.path, self.path / path) as file:
            for part in _in_parts(path, file, modified, executable):
                channel.send(part)
                await channel.drained()
        self._known[path] = state

    def keeps(self, attempt: str) -> bool:
        """Whether anything of an attempt is here."""
        return any(os.access(f"{self.path}/{each}/{attempt}", os.F_OK) for each in (WORKSPACES, STATES))

    async def over(self, attempt: str, failed: bool | None, workload: Workload) -> str | None:
        """An attempt goes on no more: remove what is here of it, unless it is to stay. Where it stays, if it does."""
        execution, folder = workload.execution, self.path / WORKSPACES / attempt
        if (states := self.path / STATES / attempt).is_dir():
            await asyncio.to_thread(remove_tree, states)
        if not folder.is_dir():
            return None
        if execution.keep_workspaces or (failed is not None and _stays(folder, failed, execution)):
            return None if failed is None else str(folder)
        with self._telling(f"workspaces in {folder.parent} can't be removed"):
            if self._worlds is None:
                self._worlds = workload.worlds()
            if self._worlds is not None:
                await self._worlds.discard([folder])
            await asyncio.to_thread(remove_tree, folder)
            if folder.exists():
                self._notice(f"workspaces that can't be removed stay in {folder.parent}")
        return None

    async def close(self, workload: Workload, *, over: bool) -> None:
        """Let go of the folder. ``over``: nobody needs it any more, but for the workspaces in it."""
        if over and self._worlds is None:
            self._worlds = workload.worlds()
        if self._worlds is not None:
            with self._telling("what ended items left can't be removed"):
                if over:  # what lost workers had may be noted in no folder
                    for line in await self._worlds.sweep(Path.is_dir):
                        self._notice(line)
                await self._worlds.close()
        if over:
            with self._telling(f"what is left in {self.path} can't be removed"):
                await asyncio.to_thread(self._remove)

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        """Let a person know why something could not be done. The run goes on, as all that it needs is at the owner."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever an engine or a disk has to say
            self._notice(f"{what}: {error if isinstance(error, ManyhandsError) else describe(error)}")

    def _remove(self) -> None:
        """Remove the folder, but for workspaces that stay. The last worker of the node does it, as another session may have it next."""
        if self._claimed is not None and not is_alone(self._claimed):
            return
        with suppress(FileNotFoundError):
            for each in list(self.path.iterdir()):
                if each.name not in (WORKSPACES, CLAIM):
                    remove_tree(each) if each.is_dir() and not each.is_symlink() else each.unlink(missing_ok=True)
        (self.path / CLAIM).unlink(missing_ok=True)
        for folder in [self.path / WORKSPACES, self.path, *list(self.path.parents)[:_PARTS]]:
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:  # something stays in it
                return

    def _has(self, name: str, size: int, digest: bytes, executable: bool) -> bool:
        path = self.path / name
        try:
            status = path.stat()
            alike = status.st_size == size and is_executable(status) == executable
            return alike and digest_of_file(path) == digest
        except OSError:
            return False


def _stays(folder: Path, failed: bool, execution: Execution) -> bool:
    return not execution.remove_workspaces and (failed or (folder / KEEP).exists())


def _place(furnish: wire.Furnish) -> Path:
    """This node's folder for a run, made. Raises OSError, UserError."""
    named = os.environ.get(FOLDER_VARIABLE)
    top = Path(named or Path(tempfile.gettempdir(), f"manyhands-{os.getuid()}")).absolute()
    private = top / furnish.run_id if named and top.is_dir() else top  # a folder that others use, too, stays theirs
    make_private(private)
    status = os.lstat(private)
    if stat.S_ISLNK(status.st_mode) or status.st_uid != os.getuid():
        raise UserError(f"{private} belongs to somebody else")
    folder = top.joinpath(furnish.run_id, *(part.strip("/") or "run" for part in furnish.parts))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def digest_of_file(path: Path) -> bytes:
    """The digest of a file's content. Raises OSError."""
    with path.open("rb") as file:
        found = blake2b(digest_size=16)
        while block := file.read(CHUNK):
            found.update(block)
        return found.digest()


def is_attempt(name: str) -> bool:
    """Whether a folder's name is that of an attempt."""
    return _ATTEMPT.fullmatch(name) is not None


def _may_change(top: str, attempt: str | None, name: str) -> bool:
    """Whether a folder of results is of this attempt, or of no certain one."""
    return top != ARTIFACTS or attempt in (None, name) or not is_attempt(name)


def _files_below(folder: Path, wanted: Callable[[str], bool] = lambda name: True) -> Iterator[str]:
    """The plain files below a folder, by their paths in it, but for those that are being written aside; none if there is no folder.
    ``wanted``: which of its folders are looked into."""
    if not folder.is_dir():
        return
    for above, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if Path(above) != folder or wanted(each))
        for name in sorted(names):
            path = Path(above, name)
            if not _is_aside(name) and _is_plain(path):
                yield str(path.relative_to(folder))


def _new_names(folder: Path) -> Iterator[str]:
    """What is right in a folder of results, but for what is kept by attempts, and what is being written aside."""
    with suppress(FileNotFoundError, NotADirectoryError):
        for name in os.listdir(folder):
            if not (is_attempt(name) or _is_aside(name)):
                yield name


def _changed_at(folder: Path) -> int:
    """When a name was last added to a folder or removed from it, in nanoseconds; 0 if there is no such folder."""
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0


def _is_aside(name: str) -> bool:
    """Whether a file is being written aside."""
    return name.startswith(".") and name.endswith(".new")


def _is_plain(path: Path) -> bool:
    """Whether it is a plain file; whoever made it may have removed it since."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def is_executable(status: os.stat_result) -> bool:
    """Whether its owner may execute a file."""
    return bool(status.st_mode & stat.S_IXUSR)


def make_executable(file: BinaryIO) -> None:
    """Have everybody who may read a file execute it, too."""
    mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    os.fchmod(file.fileno(), mode | (mode & 0o444) >> 2)


def _in_parts(name: str, file: BinaryIO, modified: int = 0, executable: bool = False) -> Iterator[wire.Content]:
    first, data = True, file.read(CHUNK)
    while True:
        following = file.read(CHUNK)
        yield wire.Content(name, data, first, not following, modified, executable)
        if not following:
            return
        first, data = False, following
