"""How a command is started: its environment, its limits, its directory.

Limits are per process (setrlimit(2), set by the ``ulimit`` of a small ``sh`` in front of the command) and, where this machine
has control groups for us, for the sandbox as a whole. A process group's memory limit makes the per-process one on
address space superfluous, and as several runtimes reserve far more address space than they use, it is left out then.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.processes.children import Spawn
from manyhands.processes.strays import MARK, SANDBOX_VARIABLE
from manyhands.sandboxes.commands.cgroups import Group
from manyhands.sandboxes.project import variables
from manyhands.sandboxes.protocol import SandboxLimits, SandboxRequest

# $1: how many group files follow; then those files, then the command.
_LIMIT = """\
{door}ulimit -c 0 -t {cpu} 2>/dev/null || {{ ulimit -c 0; ulimit -t {cpu}; }}
ulimit -f {file_blocks}
{more}count=$1; shift
while [ "$count" -gt 0 ]; do echo 0 >"$1" || exit 126; shift; count=$((count - 1)); done
exec "$@"
"""
_IN_DIRECTORY = '{exports}cd -- "$1" {closed}|| exit 126; shift; exec "$@" {closed}'
PREFIX = "_MH_"
"""Four bytes; names that begin with it are passed on by a shell."""
DOOR = 9
"""The descriptor by which a command enters its sandbox, where it needs one. The command itself does not get it."""
_BLOCK = 512
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SHELL = "/bin/sh"


class Launcher(Protocol):
    """What makes one kind of sandbox different from another, as far as starting commands goes."""

    @property
    def kind(self) -> str: ...

    @property
    def other_users(self) -> bool:
        """Whether commands can be another user's."""
        ...

    @property
    def workspace(self) -> str:
        """The workspace's path inside."""
        ...

    @property
    def project(self) -> str | None:
        """The project's path inside, if there is one."""
        ...

    @property
    def start_directory(self) -> str:
        """Where commands start, as seen inside; an absolute path."""
        ...

    @property
    def environment(self) -> Mapping[str, str]: ...

    async def prepare(self) -> bool:
        """Called before each start. Returns whether the sandbox had to be started anew, so that nothing of before runs any
        more. Raises ItemError(SANDBOX_LOST)."""
        ...

    @property
    def spawn(self) -> Spawn:
        """What starts that command's process."""
        ...

    @property
    def keep(self) -> Sequence[int]:
        """Descriptors that this command's process needs, once the sandbox runs."""
        ...

    def command(
        self, command: Sequence[str], directory: str, user: str | None = None, *, variables: Collection[str] = ()
    ) -> list[str]:
        """The host's command that runs ``command`` inside, in ``directory`` (absolute, as seen inside), as another ``user`` than the
        sandbox's, by name or number. ``variables``: names of those that it gets besides, by ``handed``. Raises ItemError(INVALID_INPUT)
        for a user that the sandbox can't give it."""
        ...

    def handed(self, variables: Mapping[str, str]) -> Mapping[str, str]:
        """What to add to the environment so that a command has these variables. In no command line, which everybody on the machine can
        read."""
        ...

    def members(self) -> set[int] | None:
        """The ids of all processes that commands started, as the host counts; None where that can't be known."""
        ...

    def processes(self) -> set[int]:
        """The same, looked for in the process table if need be, and as far as they can be found. Not for the event loop's thread."""
        ...

    @property
    def tag(self) -> int | None:
        """What commands' processes are tagged with, see ``processes.strays``; None where they all end with the sandbox anyway."""
        ...

    async def kill(self) -> None:
        """Kill everything inside; the next command starts it anew, as ``prepare`` says."""
        ...

    async def stop(self) -> None:
        """Kill everything inside, for good. Idempotent."""
        ...


def check_no_other_user(kind: str, user: str | None) -> None:
    """Raises ItemError(INVALID_INPUT) if a user is asked for."""
    if user is not None:
        raise ItemError(Cause.INVALID_INPUT, f"user {user!r}: a {kind} sandbox without an image has no other users")


def limited(
    command: Sequence[str],
    limits: SandboxLimits,
    group: Group | None,
    processes: int | None,
    *,
    door: str | None = None,
    directory: str | None = None,
) -> list[str]:
    """``command`` under the limits. ``processes``: the per-user limit on processes to set, if any. ``door``: a file to open as
    descriptor ``DOOR``. ``directory``: where to start it on the host; exits with 126 if there is no such directory."""
    more = "" if processes is None else f"ulimit -p {processes} 2>/dev/null || ulimit -u {processes}\n"
    if group is None:
        more += f"ulimit -v {max(1, limits.memory >> 10)}\n"
    if directory is not None:
        more += f"cd -- {shlex.quote(directory)} || exit 126\n"
    opening = "" if door is None else f"exec {DOOR}<{shlex.quote(door)} || exit 126\n"
    blocks = max(1, limits.file_size // _BLOCK)
    script = _LIMIT.format(door=opening, cpu=limits.cpu_seconds, file_blocks=blocks, more=more)
    entrances = group.entrances if group is not None else []
    return [SHELL, "-c", script, "sh", str(len(entrances)), *entrances, *command]


def handed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment that means nothing to the programs that bring a command into its sandbox: each name with ``PREFIX``. A loader or a
    shell that heeded them would run what an item says with the rights of the host."""
    return {f"{PREFIX}{name}": value for name, value in environment.items()}


def in_directory(
    command: Sequence[str], directory: str, variables: Mapping[str, str], handed: Iterable[str] = ()
) -> list[str]:
    """``command``, started in a directory of its sandbox, with these variables besides and without the descriptor ``DOOR``; exits with 126
    if there is no such directory. ``handed``: variables that come as ``handed_on`` names them."""
    exports = "".join(f"export {name}={shlex.quote(value)}; " for name, value in variables.items())
    given = [name for name in handed if _NAME.fullmatch(name)]  # a shell hands on no others
    # Not export alone: where a variable can't be set, that ends the shell.
    exports += "".join(f'command export {name}="${PREFIX}{name}" 2>/dev/null; ' for name in given)
    exports += f"unset {' '.join(PREFIX + name for name in given)}; " if given else ""
    return [SHELL, "-c", _IN_DIRECTORY.format(exports=exports, closed=f"{DOOR}<&- "), "sh", directory, *command]


def scrubbed_environment(request: SandboxRequest, *, home: str, path: str, project: str | None) -> dict[str, str]:
    """What commands get to see: nothing of ours but what is named here, so no keys. ``home`` is the workspace; ``project``: its
    path inside, if there is one."""
    basics = {"PATH": path, "HOME": home, "LANG": "C.UTF-8", "TERM": "dumb"}
    return {**basics, **variables(project, home), **(request.environment or {})}


def marked(environment: Mapping[str, str], request: SandboxRequest, sandbox_id: str) -> dict[str, str]:
    """An environment with the entries by which a sandbox's processes are found."""
    return {**environment, MARK: request.run_id, SANDBOX_VARIABLE: sandbox_id}


def marks(environment: Mapping[str, str]) -> list[str]:
    """Those entries, as ``NAME=value``; none where commands don't carry them."""
    return [f"{name}={environment[name]}" for name in (MARK, SANDBOX_VARIABLE) if name in environment]


def host_path() -> str:
    """The host's search path for programs."""
    return os.environ.get("PATH") or os.defpath
