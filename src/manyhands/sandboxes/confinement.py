"""System calls that no command in a sandbox can make: a filter that the kernel holds against a thread and all that it starts.

A filter is a program for the kernel's packet filter machine (seccomp(2), Documentation/userspace-api/seccomp_filter.rst), made here
from two tables: calls that fail always, and calls that fail for some value of an argument. Everything else is allowed.

``setns`` stays allowed, as commands enter their sandbox by it, with the filter already in force. It gives nothing to a process without
rights on some user namespace, and no process inside can get any: namespaces can't be made.

A filter and a session keyring belong to a thread, and a child inherits those of the thread that starts it, from its first instruction on.
So confining a command costs nothing but a hand-over to a thread that was confined once.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.processes.children import Spawn
from manyhands.processes.fork_server import may_be_lost

_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "riscv64": 0xC00000F3, "loongarch64": 0xC0000102}
"""AUDIT_ARCH_* of linux/audit.h. All are little-endian; but for x86_64, all use the generic numbers of asm-generic/unistd.h."""

# Number on x86_64, number elsewhere; None where a machine lacks the call. From 424 on, all machines have the same numbers.
_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chmod": (90, None),
    "clone": (56, 220),
    "clone3": (435, 435),
    "creat": (85, None),
    "create_module": (174, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open": (2, None),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "openat": (257, 56),
    "openat2": (437, 437),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "query_module": (178, None),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysfs": (139, None),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}

_ALWAYS: dict[str, int] = {
    # Structures behind a pointer can't be examined here. Programs that find these calls missing use older ones, which can be.
    "clone3": errno.ENOSYS,
    "openat2": errno.ENOSYS,
    # Interfaces that have let many out, and that hardly any program can't do without.
    "io_uring_enter": errno.ENOSYS,
    "io_uring_register": errno.ENOSYS,
    "io_uring_setup": errno.ENOSYS,
    **dict.fromkeys(
        (
            *("add_key", "keyctl", "request_key"),  # keys are kept by user, not by namespace
            *("bpf", "perf_event_open", "userfaultfd", "fanotify_init", "lookup_dcookie"),
            *("fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr", "move_mount"),
            *("open_tree", "open_tree_attr", "pivot_root", "umount2"),
            *("name_to_handle_at", "open_by_handle_at"),  # files by number, past every path
            *("create_module", "delete_module", "finit_module", "init_module", "query_module"),
            *(
                "acct",
                "ioperm",
                "iopl",
                "kexec_file_load",
                "kexec_load",
                "nfsservctl",
                "quotactl",
                "quotactl_fd",
                "reboot",
            ),
            *("swapoff", "swapon", "sysfs", "syslog", "uselib", "vhangup"),
        ),
        errno.EPERM,
    ),
}


@dataclass(frozen=True, slots=True)
class _Test:
    """Holds if bits in an argument of a call have one of several values."""

    argument: int
    """The argument's number, from 0."""
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF
    """The bits that count."""
    negate: bool = False
    """Holds if they have none of the values."""


def _any_bit(argument: int, mask: int) -> _Test:
    return _Test(argument, (0,), mask, negate=True)


_SET_ID = 0o6000
_CREATES = 0o20000100
"""O_CREAT and O_TMPFILE: without them, whatever stands in the place of a mode means nothing."""
_NAMESPACES = 0x7E020000
"""CLONE_NEW* of linux/sched.h, as ``clone`` takes them."""
_TIME_NAMESPACE = 0x80
"""CLONE_NEWTIME: only for ``unshare``, in ``clone`` the bit is part of a signal's number."""
_UNIX, _INET, _INET6, _NETLINK, _NETLINK_ROUTE = 1, 2, 10, 16, 0
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C

_SOMETIMES: tuple[tuple[str, tuple[_Test, ...], int], ...] = (
    # Nobody can make a file that runs with another's rights.
    ("openat", (_any_bit(2, _CREATES), _any_bit(3, _SET_ID)), errno.EPERM),
    ("open", (_any_bit(1, _CREATES), _any_bit(2, _SET_ID)), errno.EPERM),
    # Namespaces come with rights of their own, by which much more of the kernel can be reached.
    ("clone", (_any_bit(0, _NAMESPACES),), errno.EPERM),
    ("unshare", (_any_bit(0, _NAMESPACES | _TIME_NAMESPACE),), errno.EPERM),
    ("chmod", (_any_bit(1, _SET_ID),), errno.EPERM),
    ("fchmod", (_any_bit(1, _SET_ID),), errno.EPERM),
    ("fchmodat", (_any_bit(2, _SET_ID),), errno.EPERM),
    ("fchmodat2", (_any_bit(2, _SET_ID),), errno.EPERM),
    ("creat", (_any_bit(1, _SET_ID),), errno.EPERM),
    ("mknod", (_any_bit(1, _SET_ID),), errno.EPERM),
    ("mknodat", (_any_bit(2, _SET_ID),), errno.EPERM),
    # Sockets of other families (vsock leads to the host of a virtual machine) know no namespaces or have let many out.
    ("socket", (_Test(0, (_UNIX, _INET, _INET6, _NETLINK), negate=True),), errno.EAFNOSUPPORT),
    ("socket", (_Test(0, (_NETLINK,)), _Test(2, (_NETLINK_ROUTE,), negate=True)), errno.EPROTONOSUPPORT),
    ("socketpair", (_Test(0, (_UNIX,), negate=True),), errno.EAFNOSUPPORT),
    # Typing into a terminal.
    ("ioctl", (_Test(1, (_TIOCSTI, _TIOCLINUX)),), errno.EPERM),
)
"""A call fails if all its tests hold."""

# Instructions of the machine (linux/bpf_common.h) and answers (linux/seccomp.h).
_LOAD, _AND, _RETURN, _EQUAL, _AT_LEAST = 0x20, 0x54, 0x06, 0x15, 0x35
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_X32 = 0x40000000

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2

Instruction = tuple[int, int, int, int]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def missing_for(machine: str = "") -> str | None:
    """One line on why there is no filter for this machine (``machine``: as ``uname -m`` says; ours if empty), or None."""
    machine = machine or platform.machine()
    return None if machine in _MACHINES else f"no system call filter for {machine} machines"


def compiled(machine: str = "") -> bytes:
    """The filter as the kernel takes it: eight bytes an instruction. Raises KeyError for an unknown machine."""
    machine = machine or platform.machine()
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in _instructions(machine))


def number_of(call: str, machine: str = "") -> int:
    """The number of a system call that the tables here name. Raises KeyError for others."""
    on_x86, elsewhere = _NUMBERS[call]
    number = on_x86 if (machine or platform.machine()) == "x86_64" else elsewhere
    if number is None:
        raise KeyError(call)
    return number


def confine_thread() -> None:
    """Put the filter in force for the calling thread and for all processes that it starts from now on, for good; these can't gain
    rights by starting a program either (``no_new_privs``). Raises OSError."""
    filter_ = compiled()
    buffer = ctypes.create_string_buffer(filter_, len(filter_))
    program = _Program(len(filter_) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), f"can't filter system calls: {os.strerror(ctypes.get_errno())}")


def _instructions(machine: str) -> Iterator[Instruction]:
    column = 0 if machine == "x86_64" else 1
    yield (_LOAD, 0, 0, _ARCHITECTURE)
    yield (_EQUAL, 1, 0, _MACHINES[machine])
    yield _failing(errno.ENOSYS)  # programs for another architecture, such as 32-bit ones
    yield (_LOAD, 0, 0, _NUMBER)
    if machine == "x86_64":
        yield (_AT_LEAST, 0, 1, _X32)
        yield _failing(errno.ENOSYS)
    # The kernel remembers which calls are allowed whatever their arguments. For all others it comes here: the frequent ones first.
    for call, tests, error in _SOMETIMES:
        # The argument has taken the number's place: whoever comes past the body needs that again.
        yield from _about(_NUMBERS[call][column], [*_body(tests, error), (_LOAD, 0, 0, _NUMBER)])
    for call, error in _ALWAYS.items():
        yield from _about(_NUMBERS[call][column], [_failing(error)])
    yield (_RETURN, 0, 0, _ALLOW)


def _about(number: int | None, body: list[Instruction]) -> list[Instruction]:
    """``body`` for the call of this number only; nothing where the machine has no such call."""
    return [] if number is None else [(_EQUAL, 0, len(body), number), *body]


def _body(tests: tuple[_Test, ...], error: int) -> list[Instruction]:
    """Fails if all tests hold, else leads past its end. Jumps count instructions to skip: made from the end on."""
    body: list[Instruction] = [_failing(error)]
    for test in reversed(tests):
        comparisons: list[Instruction] = []
        for left, value in enumerate(reversed(test.values)):  # ``left``: comparisons behind this one
            if test.negate:
                comparisons.insert(0, (_EQUAL, left + len(body), 0, value))
            else:
                comparisons.insert(0, (_EQUAL, left, 0 if left else len(body), value))
        load: list[Instruction] = [(_LOAD, 0, 0, _ARGUMENTS + 8 * test.argument), (_AND, 0, 0, test.mask)]
        body = [*load, *comparisons, *body]
    return body


def _failing(error: int) -> Instruction:
    return (_RETURN, 0, 0, _FAIL | error)


_JOIN_SESSION_KEYRING = 1


def spawn_confined() -> Spawn:
    """Starts processes under the filter of this module, with a session keyring of their own. Raises ItemError(SANDBOX_LOST)."""
    return _spawner(os.getpid(), filtered=True)


def spawn_with_own_keys() -> Spawn:
    """Starts processes with a session keyring of their own, so that they possess no key of ours; for what must make namespaces."""
    return _spawner(os.getpid(), filtered=False)


@cache
def _spawner(process: int, *, filtered: bool) -> Spawn:
    """One thread a kind for each process: a fork takes no threads along. It lives as long as the process, which its children may
    depend on (``PR_SET_PDEATHSIG`` is about the thread)."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="manyhands-spawner")
    try:
        thread.submit(_confine, filtered).result()
        may_be_lost(thread.submit(threading.current_thread).result())
    except OSError as error:
        raise ItemError(Cause.SANDBOX_LOST, f"can't confine commands: {error.strerror or error}") from error

    def spawn(*arguments: Any, **keywords: Any) -> subprocess.Popen[bytes]:
        start: Spawn = subprocess.Popen
        return thread.submit(start, *arguments, **keywords).result()

    return spawn


def _confine(filtered: bool) -> None:
    with suppress(OSError):  # without keyrings in the kernel there is nothing to be taken away
        _join_fresh_keyring()
    if filtered:
        confine_thread()


def _join_fresh_keyring() -> None:
    """keyctl(2), KEYCTL_JOIN_SESSION_KEYRING without a name."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number_of("keyctl"), _JOIN_SESSION_KEYRING, None) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
