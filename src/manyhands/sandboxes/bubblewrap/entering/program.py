"""The program that is number 1 in a world made of an image, and the way of commands into it.

Nothing of an image may run with rights on the host, and a program of the host's that is started inside would load the image's libraries.
So both are one program of a few system calls that loads nothing, made here (``assembler``) and kept in memory.

Without arguments it is number 1: it lets its children's ends be ignored, so that the kernel keeps nothing of orphans, copies its input to
its output, and ends with its input.

With arguments it brings a command inside: ``PIDFD FILE NAMESPACES CAPABILITIES GROUPS GROUP… GID UID PROGRAM WORD…``. It joins the
namespaces (flags of setns(2)) of the process that descriptor ``PIDFD`` is of, all at once: the kernel compares rights with those that
were there before. It closes both descriptors (``FILE`` is the program's own). A child of it keeps of the capabilities those in the mask,
takes the groups (``GROUPS``: their number plus one, 0 if they can't be set here), and the ids, all as counted inside, and becomes the
program. Of its environment it hands on what begins with ``PREFIX``, without that: so nothing that is meant for inside is heeded before.
The parent waits and ends as the child does.
"""

from __future__ import annotations

import fcntl
import os
import platform
from collections.abc import Sequence
from functools import cache

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.sandboxes.bubblewrap.entering.assembler import ASSEMBLERS, Assembler
from manyhands.sandboxes.commands.launch import PREFIX

_SCRATCH = 1024
MAX_GROUPS = _SCRATCH // 4
_EINTR = 4
_SIGCHLD, _SIGCONT, _SIGSTOP = 17, 18, 19
_SIG_IGN, _WUNTRACED, _STOPPED = 1, 2, 0x7F
_PR_CAPBSET_DROP = 24
_CANT, _NO_PROGRAM = 126, 127
_MFD_CLOEXEC, _MFD_ALLOW_SEALING, _MFD_EXEC = 0x1, 0x2, 0x10
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def missing_for(machine: str = "") -> str | None:
    """One line on why there is no such program for this machine (as ``uname -m`` says), or None."""
    machine = machine or platform.machine()
    return None if machine in ASSEMBLERS else f"images can't be entered on {machine} machines"


def entering(
    pidfd: int, file: int, namespaces: int, capabilities: int, groups: Sequence[int] | None, uid: int, gid: int
) -> list[str]:
    """What comes in front of a command inside, but for the program itself."""
    count = [0] if groups is None else [len(groups[:MAX_GROUPS]) + 1, *groups[:MAX_GROUPS]]
    return [str(number) for number in (pidfd, file, namespaces, capabilities, *count, gid, uid)]


@cache
def program_file(process: int, uid: int, gid: int) -> int:
    """A descriptor of the program, sealed, belonging to these ids of the host. One for each process of ours. Raises
    ItemError(SANDBOX_LOST)."""
    try:
        return sealed_program(compiled(), (uid, gid))
    except OSError as error:
        raise ItemError(Cause.SANDBOX_LOST, f"can't keep a program in memory: {error.strerror}") from error


def sealed_program(content: bytes, owner: tuple[int, int] | None) -> int:
    """A descriptor of a program in memory that nobody can change, and that may be run but not read; so what runs it can't be examined.
    ``owner``: user and group id of the host. Raises OSError."""
    flags = _MFD_CLOEXEC | _MFD_ALLOW_SEALING
    try:
        descriptor = os.memfd_create("manyhands-init", flags | _MFD_EXEC)
    except OSError:  # Linux before 6.3 does not know the flag, and needs none
        descriptor = os.memfd_create("manyhands-init", flags)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as memory:
            memory.write(content)
        if owner is not None and owner != (os.geteuid(), os.getegid()):
            os.fchown(descriptor, *owner)
        os.fchmod(descriptor, 0o111)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def compiled(machine: str = "") -> bytes:
    """The executable file. Raises KeyError for an unknown machine."""
    made = ASSEMBLERS[machine or platform.machine()]()
    made.stack("v0")
    made.load("v1", "v0")
    made.reserve(_SCRATCH)
    made.jump_if_equal("v1", 1, "number 1")
    made.add("v0", 16)  # behind the count of arguments and the first of them
    _enter(made)
    _follow(made)
    _become(made)
    _end(made)
    _number_one(made)
    made.data("can't enter", b"can't enter the sandbox\n")
    made.data("can't start", b"can't start a program in the sandbox\n")
    return made.executable()


def _number_one(made: Assembler) -> None:
    made.label("number 1")
    made.stack("v0")
    made.constant("v1", _SIG_IGN)
    made.constant("v2", 0)
    for value in ("v1", "v2", "v2", "v2"):
        made.store(value, "v0")
        made.add("v0", 8)
    made.add("v0", -32)
    made.call("rt_sigaction", a0=_SIGCHLD, a1="v0", a2=0, a3=8)
    made.label("next")
    made.call("read", a0=0, a1="v0", a2=64)
    made.move("v1", "result")
    made.jump_if_equal("v1", 0, "over")
    made.jump_if_negative("v1", "interrupted?")
    made.call("write", a0=1, a1="v0", a2="v1")
    made.jump("next")
    made.label("interrupted?")
    made.add("v1", _EINTR)
    made.jump_if_equal("v1", 0, "next")
    made.label("over")
    made.call("exit_group", a0=0)


def _enter(made: Assembler) -> None:
    """Join the namespaces, close descriptors, and make a child."""
    _take(made, "v1")
    _take(made, "v2")
    _take(made, "v3")
    made.call("setns", a0="v1", a1="v3")
    made.jump_if_negative("result", "can't")
    made.call("close", a0="v1")
    made.call("close", a0="v2")
    made.call("clone", a0=_SIGCHLD, a1=0, a2=0, a3=0, a4=0)
    made.move("v1", "result")
    made.jump_if_negative("v1", "can't")
    made.jump_if_equal("v1", 0, "child")


def _follow(made: Assembler) -> None:
    """What the parent does: it stands still and ends with its child."""
    made.stack("v0")
    made.label("wait")
    made.call("wait4", a0="v1", a1="v0", a2=_WUNTRACED, a3=0)
    made.move("v2", "result")
    made.add("v2", _EINTR)
    made.jump_if_equal("v2", 0, "wait")
    made.jump_if_negative("result", "can't")
    made.load("v2", "v0", size=4)
    made.move("v3", "v2")
    made.mask("v3", 8)
    made.jump_if_equal("v3", _STOPPED, "stopped")
    made.mask("v3", 7)
    made.jump_if_equal("v3", 0, "exited")
    made.call("getpid")
    made.call("kill", a0="result", a1="v3")
    made.move("v2", "v3")
    made.add("v2", 128)
    made.call("exit_group", a0="v2")
    made.label("exited")
    made.shift("v2", -8)
    made.mask("v2", 8)
    made.call("exit_group", a0="v2")
    made.label("stopped")
    made.call("getpid")
    made.call("kill", a0="result", a1=_SIGSTOP)
    made.call("kill", a0="v1", a1=_SIGCONT)
    made.jump("wait")


def _become(made: Assembler) -> None:
    """What the child does."""
    made.label("child")
    _take(made, "v3")
    made.constant("v4", 0)
    made.label("capability")
    made.move("v5", "v3")
    made.mask("v5", 1)
    made.jump_if_equal("v5", 1, "kept")
    made.call("prctl", a0=_PR_CAPBSET_DROP, a1="v4", a2=0, a3=0, a4=0)
    made.move("v5", "result")
    made.add("v5", 22)  # EINVAL: the kernel has no capability of this number
    made.jump_if_equal("v5", 0, "groups")
    made.jump_if_negative("result", "can't")
    made.label("kept")
    made.shift("v3", -1)
    made.add("v4", 1)
    made.jump("capability")
    made.label("groups")
    _take(made, "v3")
    made.jump_if_equal("v3", 0, "ids")
    made.add("v3", -1)
    made.move("v4", "v3")
    made.stack("v5")
    made.label("group")
    made.jump_if_equal("v4", 0, "all groups")
    _take(made, "v1")
    made.store("v1", "v5", size=4)
    made.add("v5", 4)
    made.add("v4", -1)
    made.jump("group")
    made.label("all groups")
    made.stack("v5")
    made.call("setgroups", a0="v3", a1="v5")
    made.jump_if_negative("result", "can't")
    made.label("ids")
    for call in ("setgid", "setuid"):
        _take(made, "v3")
        made.call(call, a0="v3")
        made.jump_if_negative("result", "can't")
    _hand_on(made)
    made.load("a0", "v0")
    made.call("execve", a0="a0", a1="v0", a2="v5")
    made.address("v1", "can't start")
    made.call("write", a0=2, a1="v1", a2=37)
    made.call("exit_group", a0=_NO_PROGRAM)


def _hand_on(made: Assembler) -> None:
    """Leave of the environment, whose place comes to be in ``v5``, what is to be handed on. ``v0``: where the program's words are."""
    made.move("v5", "v0")
    made.label("word")
    made.load("v1", "v5")
    made.add("v5", 8)
    made.jump_if_equal("v1", 0, "environment")
    made.jump("word")
    made.label("environment")
    made.move("v2", "v5")  # where to read
    made.move("v3", "v5")  # where to write
    made.label("variable")
    made.load("v1", "v2")
    made.add("v2", 8)
    made.jump_if_equal("v1", 0, "end of environment")
    for position, letter in enumerate(PREFIX.encode()):
        made.load("v4", "v1", size=1)
        made.add("v1", 1)
        made.jump_if_equal("v4", letter, f"letter {position}")
        made.jump("variable")
        made.label(f"letter {position}")
    made.store("v1", "v3")
    made.add("v3", 8)
    made.jump("variable")
    made.label("end of environment")
    made.constant("v1", 0)
    made.store("v1", "v3")


def _end(made: Assembler) -> None:
    made.label("can't")
    made.address("v1", "can't enter")
    made.call("write", a0=2, a1="v1", a2=24)
    made.call("exit_group", a0=_CANT)


def _take(made: Assembler, to: str) -> None:
    """Read the next argument as a decimal number."""
    digit, end = (f"{name} {len(made.code)}" for name in ("digit", "end"))
    made.load("a0", "v0")
    made.add("v0", 8)
    made.constant(to, 0)
    made.label(digit)
    made.load("a1", "a0", size=1)
    made.add("a0", 1)
    made.jump_if_equal("a1", 0, end)
    made.move("a2", to)
    made.shift(to, 3)
    made.add_register(to, "a2")
    made.add_register(to, "a2")
    made.add_register(to, "a1")
    made.add(to, -ord("0"))
    made.jump(digit)
    made.label(end)
