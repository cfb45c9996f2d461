"""What every attack from inside a sandbox begins with: this text, then the attack, by the sandbox's own Python.

Nothing is imported from the project. ``places`` is what an attacker might guess or know of the host. An attack ends with ``held`` if
nothing of it succeeded, and says ``ESCAPED`` if something did.
"""

# ruff: noqa: F401
# mypy: ignore-errors

import ctypes
import errno
import json
import mmap
import os
import platform
import signal
import socket
import stat
import subprocess
import sys
import time

places = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
# (x86_64, aarch64), asm/unistd.h
CALLS = {
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clone": (56, 220),
    "clone3": (435, 435),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_setup": (425, 425),
    "kcmp": (312, 272),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "openat2": (437, 437),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "request_key": (249, 218),
    "setns": (308, 268),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
NUMBERS = {name: pair[platform.machine() != "x86_64"] for name, pair in CALLS.items()}
NAMESPACES = {
    "user": 0x10000000,
    "mount": 0x00020000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "network": 0x40000000,
    "pid": 0x20000000,
    "cgroup": 0x02000000,
    "time": 0x00000080,
}


def escaped(what: object) -> None:
    print("ESCAPED:", what, flush=True)
    os._exit(13)


def refused(what, call, *arguments):
    """The error that a call ends with. That it ends without one is an escape."""
    try:
        result = call(*arguments)
    except OSError as error:
        return error.errno
    return escaped(f"{what} gave {result!r}")


def number(call, *arguments):
    """A system call by its number. Raises OSError."""
    words = [value if isinstance(value, bytes) or value is None else ctypes.c_long(value) for value in arguments]
    result = libc.syscall(ctypes.c_long(call), *words)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def syscall(name, *arguments):
    return number(NUMBERS[name], *arguments)


def silent(path):
    """There is nothing to read at a path: no file, no right to it, or an empty one in its place."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        data = os.read(descriptor, 64)
    except OSError:
        return
    if data:
        escaped(f"{path} gave {data!r}")


def in_child(call):
    """Whether a child that made a call says that it escaped, by ending with 99. How else it ends says nothing."""
    child = os.fork()
    if child == 0:
        try:
            call()
        finally:
            os._exit(0)
    code = os.waitpid(child, 0)[1]
    return os.WIFEXITED(code) and os.WEXITSTATUS(code) == 99
