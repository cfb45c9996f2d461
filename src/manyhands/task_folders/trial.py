"""What is done in the world of a task before and after its agent, as recorded steps: its files and health, artifacts, the verifier.

Order: files, folders for logs and the health check; the agent; collecting commands and artifacts; the verifier. The world is remembered
before each of these, and one that is cut off is undone and done again as a whole; one that is recorded is not done again, and so there is
never a second result of a verifier. One that gave no reward is not recorded: when the item is executed again, so is the verifier, from the
world that the agent left.
"""

from __future__ import annotations

import asyncio
import io
import posixpath
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO

from manyhands.agents.worlds.archives import Entry, entries
from manyhands.agents.worlds.recorded_commands import recorded_command
from manyhands.agents.worlds.world import World
from manyhands.core.errors import ItemError, StorageError, ToolError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import pretty
from manyhands.core.redaction import KNOWN
from manyhands.core.text import printable
from manyhands.engine.contract import Context, Effect
from manyhands.io.files import is_full, make_private, mask_secrets
from manyhands.processes.children import ExecResult, to_the_end
from manyhands.processes.strays import remove_tree
from manyhands.sandboxes.files.packing import Packer, found_at, walked
from manyhands.sandboxes.protocol import Sandbox, SandboxBackend, SandboxRequest
from manyhands.task_folders.contents import DOCKERFILE, ENVIRONMENT, MAX_ARCHIVE, TEST_SCRIPT, TESTS, Task
from manyhands.task_folders.reading import COMPOSE_FILES
from manyhands.task_folders.rewards import MAX_REWARD_FILE, REWARD_JSON, REWARD_TEXT, NoReward, read_rewards
from manyhands.task_folders.schema import Artifact, Healthcheck, User
from manyhands.task_folders.variables import resolved

TASK = "task"
"""The kind of these steps."""
LOGS, AGENT_LOGS, VERIFIER_LOGS, ARTIFACT_LOGS = "/logs", "/logs/agent", "/logs/verifier", "/logs/artifacts"
TESTS_INSIDE, SOLUTION_INSIDE = "/tests", "/solution"
OWN_FOLDERS = (LOGS, TESTS_INSIDE, SOLUTION_INSIDE)
"""What a task finds in the root."""
TEST_OUTPUT = f"{VERIFIER_LOGS}/test-stdout.txt"
KEPT = "artifacts"
"""The folder in the run's folder with what is kept of items, each in a folder of its own (``<item>-<attempt>``)."""
MANIFEST = "manifest.json"
MAX_KEPT = 256 << 20
"""Bytes that are kept of one artifact."""
MAX_OUTPUT = 20_000
"""Bytes of a verifier's output that are recorded."""
_VERIFIER = "verifier"
"""In an attempt's folder: that of the sandbox which the verifier has for itself."""
_FINAL = (
    "only a new attempt verifies again (manyhands retry --fresh), as processes ran in the environment or it was too large to be "
    "brought back to before its verifier"
)
_SECONDS = 120.0
SHELL = ("/bin/sh", "-c")
_PREPARED = 'mkdir -p "$@" && chmod 777 "$@"'
_VERIFY = '"$0" > "$1" 2>&1 < /dev/null'
_IN_BASH = 'if command -v bash >/dev/null 2>&1; then exec bash -c "$1"; else exec sh -c "$1"; fi'
_UNPACK = 'mkdir -p -- "$1" && exec tar -x -C "$1" -f -'
_EXISTS = '[ -e "$1" ]'
# $1 how many folders are only to be there, as folders and no links to elsewhere; the others are emptied.
_MAKE_WAY = """\
kept=$1; shift
for folder; do
  if [ -L "$folder" ] || [ ! -d "$folder" ]; then rm -rf -- "$folder"; fi
  mkdir -p -- "$folder" && chmod u+rwx -- "$folder" || exit 1
  kept=$((kept - 1)); [ "$kept" -lt 0 ] || continue
  chmod 777 -- "$folder" && chmod -R u+rwx -- "$folder"
  for each in "$folder"/* "$folder"/.[!.]* "$folder"/..?*; do
    if [ -e "$each" ] || [ -L "$each" ]; then rm -rf -- "$each" || exit 1; fi
  done
done
"""
_LINK = 3
# $1 a file: fails if it is not there, with 3 if it, or a folder on the way, is a link.
_IS_PLAIN = f"""\
path=
IFS=/; set -f; set -- $1; shift
for name; do path=$path/$name; [ ! -L "$path" ] || exit {_LINK}; done
[ -e "$path" ]
"""


@dataclass(frozen=True, slots=True)
class Verified:
    """What the verifier came to."""

    rewards: Mapping[str, float | int] | None
    """None: it gave none that could be read."""
    error: str | None
    """Why."""
    exit_code: int | None
    """Of its script, which nothing depends on; None if it was stopped at its time limit."""
    output: str
    """The end of what its script printed."""
    seconds: float
    ended_processes: bool = False
    """Whether the agent had left anything running, which was ended before."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Verified:
        ended = value.get("ended_processes", False)  # earlier versions ended none
        return cls(value["rewards"], value["error"], value["exit_code"], value["output"], value["seconds"], ended)

    def to_json(self) -> dict[str, Any]:
        return {
            "rewards": None if self.rewards is None else dict(self.rewards),
            "error": self.error,
            "exit_code": self.exit_code,
            "output": self.output,
            "seconds": self.seconds,
            **({"ended_processes": True} if self.ended_processes else {}),
        }


class _NoRewards(Exception):
    """The verifier gave none, and that is not recorded. ``output``: a ``Verified`` in JSON."""

    def __init__(self, output: dict[str, Any]) -> None:
        self.output = output


@dataclass(frozen=True, slots=True)
class TaskTrial:
    """One attempt at a task."""

    task: Task
    context: Context
    world: World
    run_folder: Path
    environ: Mapping[str, str] = field(repr=False)
    """The variables that the task's own may be taken from."""
    backend: SandboxBackend | None = None
    """Makes the sandbox that the verifier has for itself; None if nothing happens outside."""
    verifier_request: Callable[[], SandboxRequest] | None = None
    """What to make then, but for its folder and image."""
    end_processes: bool = False
    """Whether what the agent left running is ended before a verifier in the same environment."""

    async def prepare(self) -> None:
        """Give the world what the task puts there, and wait until it is healthy.

        Raises ItemError: INVALID_INPUT if the task's folder is gone or not what it was, SANDBOX_LOST if the health check fails.
        """

        async def effect(sandbox: Sandbox) -> dict[str, Any]:
            await asyncio.to_thread(self.task.check_unchanged)
            await self._make_folders(sandbox)
            copied = self._copied_files()
            if copied is not None:
                archive = await asyncio.to_thread(self.task.archive, ENVIRONMENT, leave_out=copied)
                await put_files(sandbox, archive, ".", self.task)
            await self._check_health(sandbox, self.task.config.environment.healthcheck)
            return {"healthy": True}

        await self._changing("prepare", effect)

    async def collect(self) -> Sequence[Mapping[str, Any]]:
        """Run what collects, and keep the artifacts; the list of these. What fails of it is only noted."""
        scope = self.context.scope("task-collect")
        for hook in self.task.config.verifier.collect:
            command, user = hook.command, _user(hook.user)
            await recorded_command(scope, self.world, command, timeout=hook.timeout_sec, max_output=20_000, user=user)

        async def effect(sandbox: Sandbox) -> dict[str, Any]:
            return {"artifacts": await self._keep_artifacts(sandbox)}

        found: Mapping[str, Any] = await self._changing("artifacts", effect)
        artifacts: Sequence[Mapping[str, Any]] = found["artifacts"]
        return artifacts

    async def verify(self, artifacts: Sequence[Mapping[str, Any]] = ()) -> Verified:
        """Have the work verified. ``artifacts``: what ``collect`` gave. An error of the verifier is a value, which is recorded only where
        the verifier could not run again: where the world can't be brought back to what it was before it."""
        try:
            return Verified.from_json(await self._verify(artifacts))
        except _NoRewards as failed:
            return Verified.from_json(failed.output)

    async def _verify(self, artifacts: Sequence[Mapping[str, Any]]) -> Any:
        if not self.task.config.verifier.separate:
            return await self._changing("verify", self._verified_beside, alone=self.end_processes, check=_checked)
        await self.world.close()  # nobody needs it any more
        request = {"task": self.task.digest, "do": "verify"}

        async def effect() -> Effect:
            return Effect(_checked(await self._verified_apart(artifacts), True))

        return await self.context.scope("task-verify").step(TASK, request, effect)

    async def _changing(
        self,
        do: str,
        effect: Callable[[Sandbox], Awaitable[dict[str, Any]]],
        *,
        alone: bool = False,
        check: Callable[[dict[str, Any], bool], dict[str, Any]] | None = None,
    ) -> Any:
        """Take a step that changes the world. ``alone``: end what runs in it before, and have the result say whether anything did;
        ``check``: gives what is recorded of the result, and raises for one that is not to be recorded; it is told whether the step can be
        undone."""
        scope = self.context.scope(f"task-{do}")
        address, ran = scope.address, False

        async def taken() -> Effect:
            nonlocal ran
            ran = True
            ended = alone and await self.world.end_processes(address)
            await self.world.begin_step(address)
            try:
                sandbox = await self.world.sandbox()
                output = await effect(sandbox)
                output = {**output, "ended_processes": True} if ended else output
                return Effect(output if check is None else check(output, sandbox.can_undo))
            except ToolError as error:
                raise ItemError(Cause.INVALID_INPUT, f"task {self.task.name}: {error}") from error

        output = await scope.step(TASK, {"task": self.task.digest, "do": do}, taken)
        if not ran:
            self.world.replayed(address)
        return output

    # Before

    async def _make_folders(self, sandbox: Sandbox) -> None:
        folders = [AGENT_LOGS, VERIFIER_LOGS, ARTIFACT_LOGS]
        result = await self._by_root(sandbox, [*SHELL, _PREPARED, "sh", *folders])
        if result.exit_code != 0:
            raise ItemError(Cause.SANDBOX_LOST, f"can't make {', '.join(folders)}: {_last_words(result.output)}")

    def _copied_files(self) -> frozenset[str] | None:
        """What is left out where the files of the environment are copied into its working directory; None if they are not."""
        if self.task.built == ENVIRONMENT or not (self.task.folder / ENVIRONMENT).is_dir():
            return None
        return frozenset((DOCKERFILE, ".dockerignore", *COMPOSE_FILES))

    async def _check_health(self, sandbox: Sandbox, check: Healthcheck | None) -> None:
        if check is None:
            return
        clock, failures = self.context.clock, 0
        began = clock.monotonic()
        while True:
            result = await sandbox.run([*SHELL, _IN_BASH, "sh", check.command], timeout=check.timeout_sec)
            if result.exit_code == 0 and not result.timed_out:
                return
            starting = clock.monotonic() - began < check.start_period_sec
            failures += not starting
            if failures >= check.retries:
                said = f": {_last_words(result.output)}" if result.output.strip() else ""
                how = f"no end within {check.timeout_sec:g} s" if result.timed_out else f"exit code {result.exit_code}"
                raise ItemError(Cause.SANDBOX_LOST, f"task {self.task.name}: its health check failed ({how}){said}")
            await clock.sleep(check.start_interval_sec if starting else check.interval_sec)

    # After

    async def _keep_artifacts(self, sandbox: Sandbox) -> list[dict[str, Any]]:
        folder = kept_folder(self.run_folder, self.context)
        await asyncio.to_thread(_make_anew, folder)
        kept: list[dict[str, Any]] = []
        claimed = [MANIFEST]
        for artifact in self._artifacts():
            place = _kept_at(artifact)
            entry: dict[str, Any] = {"source": artifact.source, "destination": place}
            if any(_overlap(place, each) for each in claimed):
                kept.append({**entry, "status": "skipped"})
                continue
            found = await self._kept(sandbox, artifact, folder / place)
            if found is None and artifact.source == ARTIFACT_LOGS:
                continue  # nobody asked for it
            claimed.append(place)
            kept.append({**entry, **(found or {"status": "failed"})})
        if kept:
            await asyncio.to_thread((folder / MANIFEST).write_text, pretty(kept) + "\n")
        else:
            await asyncio.to_thread(remove_tree, folder)
        return kept

    def _artifacts(self) -> list[Artifact]:
        declared = list(self.task.config.artifacts)
        if any(each.source.rstrip("/") == ARTIFACT_LOGS for each in declared):
            return declared
        return [Artifact(source=ARTIFACT_LOGS), *declared]

    async def _kept(self, sandbox: Sandbox, artifact: Artifact, place: Path) -> dict[str, Any] | None:
        """Copy one to the host; what there is of it, None if there is nothing. Raises StorageError."""
        with tempfile.TemporaryFile(prefix="manyhands-") as archive:
            try:
                await sandbox.get(artifact.source, archive, max_bytes=MAX_KEPT)
            except ToolError:
                return None
            archive.seek(0)
            try:
                return await asyncio.to_thread(_unpack, archive, place, artifact.exclude)
            except tarfile.TarError:  # the sandbox's own program wrote it
                return None
            except OSError as error:
                raise StorageError(f"can't keep {artifact.source} in {place}: {error.strerror}") from error

    async def _verified_beside(self, sandbox: Sandbox) -> dict[str, Any]:
        """The same where the agent was: nothing that it put into the verifier's folders is left there, and no link leads elsewhere."""
        folders = ["1", LOGS, VERIFIER_LOGS, *([TESTS_INSIDE] if self.task.own_tests else [])]
        result = await self._by_root(sandbox, [*SHELL, _MAKE_WAY, "sh", *folders])
        if result.exit_code != 0:
            error = f"the verifier's folders can't be emptied: {_last_words(result.output)}"
            return Verified(None, error, None, "", 0.0).to_json()
        return await self._verified(sandbox)

    async def _verified(self, sandbox: Sandbox) -> dict[str, Any]:
        """Put the tests there, run them, and read what they leave."""
        task, verifier = self.task, self.task.config.verifier
        await asyncio.to_thread(task.check_unchanged)
        rewards = [posixpath.join(VERIFIER_LOGS, name) for name in (REWARD_TEXT, REWARD_JSON)]
        await self._by_root(sandbox, ["rm", "-rf", "--", TEST_OUTPUT, *rewards])
        script = f"{TESTS_INSIDE}/{TEST_SCRIPT}"
        if task.own_tests:
            await put_files(sandbox, await asyncio.to_thread(task.archive, TESTS), TESTS_INSIDE, task)
        await self._by_root(sandbox, ["chmod", "+x", script])
        result = await sandbox.run(
            [*SHELL, _VERIFY, script, TEST_OUTPUT],
            timeout=verifier.timeout_sec,
            user=self._verifying_user(sandbox),
            environment=resolved(verifier.env, self.environ),
        )
        tail = await self._by_root(sandbox, ["tail", "-c", str(MAX_OUTPUT), TEST_OUTPUT])
        text = tail.output if tail.exit_code == 0 else result.output
        output = KNOWN.text(text.decode(errors="replace"))
        found: Mapping[str, float | int] | None = None
        error: str | None = None
        if result.timed_out:
            error = f"the verifier took longer than {verifier.timeout_sec:g} s"
        else:
            try:
                found = read_rewards(await self._reward(sandbox, REWARD_JSON), await self._reward(sandbox, REWARD_TEXT))
            except NoReward as reason:
                error = str(reason)
                if not task.own_tests and await self._lacks(sandbox, script):
                    error = f"the verifier's own image has no {script}, and files of {TESTS}/ are not copied there"
        code = None if result.timed_out else result.exit_code
        await self._keep_logs(sandbox)
        return Verified(found, error, code, output, round(result.seconds, 3)).to_json()

    async def _verified_apart(self, artifacts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The same in a sandbox of the verifier's own, which is given the artifacts and nothing else."""
        if self.backend is None or self.verifier_request is None:
            raise RuntimeError("nothing can be made here")
        folder = self.context.workspace / _VERIFIER
        await asyncio.to_thread(_make_anew, folder)
        sandbox = await self.backend.create(replace(self.verifier_request(), folder=folder))
        try:
            await self._make_folders(sandbox)
            for artifact in artifacts:
                await self._place(sandbox, artifact)
            return await self._verified(sandbox)
        except ToolError as error:
            raise ItemError(Cause.INVALID_INPUT, f"task {self.task.name}: {error}") from error
        finally:
            await to_the_end(sandbox.discard())

    async def _place(self, sandbox: Sandbox, artifact: Mapping[str, Any]) -> None:
        """Put an artifact where it was."""
        if artifact.get("status") != "ok":
            return
        source, kept = artifact["source"], kept_folder(self.run_folder, self.context) / artifact["destination"]
        try:
            archive = await asyncio.to_thread(_packed, kept, posixpath.basename(source.rstrip("/")))
        except OSError as error:
            raise self.context.new_attempt_needed(f"the artifact {kept} is gone ({error.strerror})") from error
        await sandbox.put(archive, posixpath.dirname(source.rstrip("/")) or ".")

    async def _keep_logs(self, sandbox: Sandbox) -> None:
        """Keep what the verifier and the agent wrote into their folders of logs."""
        folder = kept_folder(self.run_folder, self.context)
        for inside in (VERIFIER_LOGS, AGENT_LOGS):
            place = folder / inside.removeprefix("/")
            await self._kept(sandbox, Artifact(source=inside), place)

    async def _reward(self, sandbox: Sandbox, name: str) -> bytes | None:
        path = posixpath.join(VERIFIER_LOGS, name)
        there = await self._by_root(sandbox, [*SHELL, _IS_PLAIN, "sh", path])
        if there.exit_code == _LINK:
            raise NoReward(f"{name}, or a folder on the way to it, is a link, which is not followed")
        if there.exit_code != 0:
            return None
        try:
            return await sandbox.read_file(path, max_bytes=MAX_REWARD_FILE + 1)
        except ToolError as error:
            raise NoReward(f"{name} can't be read: {error}") from error

    async def _lacks(self, sandbox: Sandbox, path: str) -> bool:
        return (await self._by_root(sandbox, [*SHELL, _EXISTS, "sh", path])).exit_code != 0

    def _verifying_user(self, sandbox: Sandbox) -> str | None:
        own = _user(self.task.config.verifier.user)
        if own is not None or self.task.config.verifier.separate or self.task.config.agent.user is None:
            return own
        return root_of(sandbox)

    async def _by_root(self, sandbox: Sandbox, command: Sequence[str]) -> ExecResult:
        return await sandbox.run(command, timeout=_SECONDS, cwd="/", user=root_of(sandbox))


def _checked(output: dict[str, Any], repeatable: bool) -> dict[str, Any]:
    """What is recorded of what a verifier came to. Raises _NoRewards if it gave none and can run again."""
    if output["rewards"] is not None:
        return output
    if repeatable:
        raise _NoRewards(output)
    return {**output, "error": f"{output['error']}; {_FINAL}"}


async def put_files(sandbox: Sandbox, archive: BinaryIO, path: str, task: Task) -> None:
    """Unpack files of a task where its agent's user might not be able to. Raises ToolError."""
    root = root_of(sandbox)
    if task.config.agent.user is None or root is None:
        await sandbox.put(archive, path)
        return
    unpacking = [*SHELL, _UNPACK, "sh", path]
    result = await sandbox.run(unpacking, timeout=_SECONDS, input=archive.read(), user=root)
    if result.exit_code != 0:
        raise ToolError(f"can't unpack into {path}: {_last_words(result.output)}")


def root_of(sandbox: Sandbox) -> str | None:
    """Who may do everything inside; None where there is nobody else than who runs commands."""
    return "0" if sandbox.other_users else None


def kept_folder(run_folder: Path, context: Context) -> Path:
    """Where artifacts and logs of an attempt are kept."""
    return run_folder / KEPT / f"{context.item.number}-{context.attempt}"


def _user(user: User) -> str | None:
    return None if user is None else str(user)


def _last_words(output: bytes) -> str:
    text = " ".join(printable(KNOWN.text(output.decode(errors="replace"))).split())
    return text if len(text) <= 300 else f"… {text[-300:]}"


def _make_anew(folder: Path) -> None:
    if folder.exists():
        remove_tree(folder)
    make_private(folder.parent)
    folder.mkdir(parents=True)


def _kept_at(artifact: Artifact) -> str:
    """Where an artifact is kept, below the folder of its item."""
    return "/".join(part for part in (artifact.destination or artifact.source).split("/") if part not in ("", "."))


def _overlap(first: str, second: str) -> bool:
    return f"{first}/".startswith(f"{second}/") or f"{second}/".startswith(f"{first}/")


def _unpack(archive: BinaryIO, place: Path, exclude: Sequence[str]) -> dict[str, Any] | None:
    """Unpack what ``Sandbox.get`` gave; what it is, None for an empty folder. Nobody knows who wrote it: of it only files and folders are
    taken, up to ``MAX_KEPT`` bytes, with nothing of their modes but whether a file can be executed, and no link. Known secrets in files are
    masked. Raises OSError if the disk is full, tarfile.TarError."""
    size = files = left_out = 0
    is_folder = False
    for entry in entries(archive, max_bytes=MAX_KEPT):
        if entry is None:
            left_out += 1
            continue
        below = entry.parts[1:]
        if not below and entry.member.isdir():
            is_folder = True
            continue
        name = "/".join(below)
        if below and any(fnmatchcase(name, each) or fnmatchcase(below[-1], each) for each in exclude):
            continue
        if entry.content is None and not entry.member.isdir():
            left_out += 1
            continue
        try:
            written = _unpacked(entry, place.joinpath(*below))
        except OSError as error:
            if is_full(error):
                raise
            left_out += 1  # a name that can't be there, or is there already as something else
            continue
        if written is not None:
            size += written
            files += 1
    if is_folder and not place.exists():
        return None
    found = {"status": "ok", "type": "directory" if is_folder else "file", "files": files, "bytes": size}
    return {**found, **({"left_out": left_out} if left_out else {})}


def _unpacked(entry: Entry, target: Path) -> int | None:
    """The bytes of a file; None for a folder. Raises OSError."""
    if entry.content is None:
        target.mkdir(parents=True, exist_ok=True)
        return None
    target.parent.mkdir(parents=True, exist_ok=True)
    with entry.content, target.open("wb") as stream:
        shutil.copyfileobj(entry.content, stream)
    mask_secrets(target)
    target.chmod(0o755 if entry.member.mode & 0o100 else 0o644)
    return target.stat().st_size


def _packed(path: Path, name: str) -> io.BytesIO:
    archive = io.BytesIO()
    first = found_at(path, name)
    with Packer(archive, max_bytes=MAX_ARCHIVE) as packer:
        for found in (first, *(walked(path, name) if first.kind == stat.S_IFDIR else ())):
            packer.add(found)
    archive.seek(0)
    return archive
