"""Git repositories in workspaces: cloned once, into a bare mirror in the data folder, and from there into each template.

``git_mirrors/<digest of the source>/`` in the data folder serves all runs. What is fetched is decided by what is asked for: a full commit
id that the mirror has needs no network; anything else is looked up anew once in a session.

A source is only ever fetched by ``https``, ``http``, ``ssh`` or as a local repository, and git asks nobody for a password. No hook, no
template and no file-system monitor is run. Submodules are left out; large files come as the person's own git is set up.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from manyhands.core.digests import digest
from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.redaction import Redactor
from manyhands.core.text import decode
from manyhands.io.files import make_private
from manyhands.processes.commands import CommandRunner, failure_of
from manyhands.sandboxes.files.removing import remove_tree
from manyhands.workloads.evals.evalfile.contents import Repo

MIRRORS = "git_mirrors"
"""The folder in the data folder."""
GIT_SECONDS = 600.0
"""Time limit of one git command."""
_LOCK_POLL = 0.2
_FULL = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_ELSEWHERE = (
    *(
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_COMMON_DIR",
        "GIT_INDEX_FILE",
        "GIT_NAMESPACE",
        "GIT_PREFIX",
        "GIT_TEMPLATE_DIR",
    ),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_EXEC_PATH", "GIT_EXTERNAL_DIFF"),
    *("GIT_CONFIG", "GIT_CONFIG_PARAMETERS", "GIT_CONFIG_COUNT"),
)
"""Variables by which git would work on another repository, or run something else."""
_GIT = (
    "env",
    *(word for name in _ELSEWHERE for word in ("-u", name)),
    *("git", "-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false", "-c", "advice.detachedHead=false"),
    *("-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "protocol.ext.allow=never"),
)
_ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "",
    "SSH_ASKPASS": "",
    "GIT_ALLOW_PROTOCOL": "file:http:https:ssh",
    "LC_ALL": "C",
}


class Repositories:
    """The repositories of one session."""

    def __init__(
        self, data_folder: Path, runner: CommandRunner, redactor: Redactor, tell: Callable[[str], None]
    ) -> None:
        """``tell``: shows what is cloned."""
        self._folder = data_folder.absolute() / MIRRORS
        self._runner = runner
        self._redactor = redactor
        self._tell = tell
        self._fetched: set[str] = set()

    async def check_out(self, repo: Repo, tree: Path) -> str:
        """Put a repository into a workspace; the id of the commit. Raises ItemError(TARGET_ERROR) if that can't be done."""
        target = tree / repo.path
        self._tell(f"git: {self._redactor.text(repo.source)} at {repo.commit}")
        try:
            if target.is_symlink() or not target.resolve().is_relative_to(tree.resolve()):  # git would follow the link
                raise ItemError(Cause.TARGET_ERROR, "its path leads out of the workspace")
            async with self._mirror(repo.source) as mirror:
                commit = await self._commit(repo, mirror)
                await self._git(
                    mirror.parent,
                    "clone",
                    "--quiet",
                    "--no-checkout",
                    "--no-hardlinks",
                    "--template=",
                    "--",
                    str(mirror),
                    str(target),
                )
        except ItemError as error:
            raise self._failed(repo, error) from error
        except OSError as error:
            raise self._failed(repo, ItemError(Cause.TARGET_ERROR, str(error))) from error
        try:
            await self._git(target, "remote", "set-url", "origin", "--", repo.source)
            if repo.sparse:
                await self._git(target, "sparse-checkout", "init", "--cone")
                folders = "".join(f"{folder}\n" for folder in repo.sparse)
                await self._git(target, "sparse-checkout", "set", "--stdin", input=folders.encode())
            await self._git(target, "checkout", "--quiet", "--detach", commit, "--")
        except ItemError as error:
            raise self._failed(repo, error) from error
        return commit

    def _failed(self, repo: Repo, error: ItemError) -> ItemError:
        message = f"the repository {repo.source} can't be had: {error.message}"
        return ItemError(Cause.TARGET_ERROR, self._redactor.text(message))

    @asynccontextmanager
    async def _mirror(self, source: str) -> AsyncIterator[Path]:
        """The mirror of a source, which nobody else changes meanwhile. Raises ItemError, OSError."""
        mirror = self._folder / digest("git mirror", {"source": source}).hex()[:24]
        await asyncio.to_thread(make_private, self._folder)
        async with locked(mirror.with_suffix(".lock"), GIT_SECONDS):
            if not (mirror / "HEAD").is_file():
                making = mirror.with_suffix(".new")
                await asyncio.to_thread(remove_tree, making)
                await self._git(self._folder, "clone", "--quiet", "--mirror", "--template=", "--", source, str(making))
                await asyncio.to_thread(os.rename, making, mirror)
                self._fetched.add(source)
            yield mirror

    async def _commit(self, repo: Repo, mirror: Path) -> str:
        if repo.source not in self._fetched and not (
            _FULL.fullmatch(repo.commit) and await self._found(repo.commit, mirror) is not None
        ):
            await self._git(mirror, "fetch", "--quiet", "--prune", "--force", "origin")
            self._fetched.add(repo.source)
        found = await self._found(repo.commit, mirror)
        if found is None and repo.commit.startswith("origin/"):
            found = await self._found(repo.commit.removeprefix("origin/"), mirror)
        if found is None and _FULL.fullmatch(repo.commit):  # one that no branch leads to, which a server may have yet
            await self._git(mirror, "fetch", "--quiet", "origin", repo.commit)
            found = await self._found(repo.commit, mirror)
        if found is None:
            raise ItemError(Cause.TARGET_ERROR, f"it has no commit {repo.commit}")
        if repo.ancestor:
            older = await self._found(f"{found}~{repo.ancestor}", mirror)
            if older is None:
                raise ItemError(Cause.TARGET_ERROR, f"commit {repo.commit} has no ancestor {repo.ancestor}")
            return older
        return found

    async def _found(self, name: str, mirror: Path) -> str | None:
        """The id of a commit; None if there is none of that name."""
        try:
            return await self._git(mirror, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        except ItemError:
            return None

    async def _git(self, folder: Path, *words: str, input: bytes = b"") -> str:
        """What git prints. Raises ItemError(TARGET_ERROR) if it fails, or takes too long."""
        ssh = os.environ.get("GIT_SSH_COMMAND") or "ssh -o BatchMode=yes"
        end = await self._runner.run(
            [*_GIT, *words],
            folder=folder,
            additions={**_ENVIRONMENT, "GIT_SSH_COMMAND": ssh},
            input=input,
            timeout=GIT_SECONDS,
            max_output=1 << 16,
        )
        failure = failure_of(end.exit_code, GIT_SECONDS if end.exit_code is None else None, decode(end.errors))
        if failure is not None:
            raise ItemError(Cause.TARGET_ERROR, f"git {words[0]}: {failure.removeprefix('the command ')}")
        printed: str = decode(end.output)
        return printed.strip()


@asynccontextmanager
async def locked(path: Path, seconds: float) -> AsyncIterator[None]:
    """Wait until no other process, and nobody in this one, has the lock file. Raises ItemError(TARGET_ERROR) after so many seconds."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            async with asyncio.timeout(seconds):
                while not _taken(descriptor):
                    await asyncio.sleep(_LOCK_POLL)
        except TimeoutError:
            raise ItemError(Cause.TARGET_ERROR, f"another process has kept {path} locked for {seconds:g} s") from None
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
