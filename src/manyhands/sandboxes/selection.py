"""Which backend a run uses.

A pace for making sandboxes.
"""

from __future__ import annotations

import asyncio

from manyhands.core.errors import UserError
from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from manyhands.sandboxes.local import LocalBackend
from manyhands.sandboxes.protocol import Sandbox, SandboxBackend, SandboxRequest

NAMES = ("auto", "bubblewrap", "local")
_NOT_YET = ("docker", "podman", "apptainer", "singularity", "modal", "daytona")


def choose_backend(name: str, *, asks_for_image: bool) -> SandboxBackend:
    """The backend for a ``--sandbox`` value. ``asks_for_image``: whether any row names a container image.

    ``auto`` is bubblewrap where this machine can use it. Raises UserError, in one line that names the choices.
    """
    if name in _NOT_YET:
        raise UserError(f"--sandbox {name}: not available yet in this version (choose one of: {', '.join(NAMES)})")
    if name not in NAMES:
        raise UserError(f"--sandbox {name}: unknown (choose one of: {', '.join(NAMES)})")
    if name == "auto" and asks_for_image:
        raise UserError(
            "the dataset asks for container images, and container sandboxes are not available in this version: "
            "give --sandbox bubblewrap or --sandbox local to ignore the images"
        )
    backend: SandboxBackend = LocalBackend() if name == "local" else BubblewrapBackend()
    problem = backend.unavailable()
    if problem is not None:
        other = "" if name == "local" else "; or give --sandbox local to run commands on this machine itself"
        raise UserError(f"--sandbox {name}: {problem}{other}")
    return backend


class PacedBackend:
    """A backend that makes at most ``at_once`` sandboxes at the same time; further ones wait their turn."""

    def __init__(self, backend: SandboxBackend, at_once: int = 16) -> None:
        if at_once < 1:
            raise ValueError(f"at_once must be at least 1, not {at_once}")
        self._backend = backend
        self._turns = asyncio.Semaphore(at_once)

    @property
    def kind(self) -> str:
        return self._backend.kind

    def unavailable(self) -> str | None:
        return self._backend.unavailable()

    async def create(self, request: SandboxRequest) -> Sandbox:
        async with self._turns:
            return await self._backend.create(request)
