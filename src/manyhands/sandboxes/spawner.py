"""Threads from which processes are started: what such a thread has given up, its children lack from their first instruction on.

A filter of system calls and a session keyring belong to a thread, and a child inherits those of the thread that starts it. So
confining a command costs nothing but a hand-over to a thread that was confined once.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.sandboxes.seccomp import confine_thread, number_of

Spawn = Callable[..., "subprocess.Popen[bytes]"]
"""Starts a process as ``subprocess.Popen`` does, with its arguments."""

_JOIN_SESSION_KEYRING = 1


def spawn_confined() -> Spawn:
    """Starts processes under the filter of ``sandboxes.seccomp``, with a session keyring of their own. Raises ItemError(SANDBOX_LOST)."""
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
