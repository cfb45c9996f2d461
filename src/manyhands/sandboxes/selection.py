"""Which backend a run uses, and at what pace it makes sandboxes.

Backends of installed packages (entry point group ``manyhands.sandboxes``) are chosen by the name of their entry point. It names a class, or
a function without arguments, that gives a ``SandboxBackend``.
"""

from __future__ import annotations

import asyncio
from importlib import import_module

from manyhands.core.errors import UserError
from manyhands.core.redaction import describe
from manyhands.io.plugins import plugins
from manyhands.sandboxes.protocol import Sandbox, SandboxBackend, SandboxRequest
from manyhands.sandboxes.settings import SandboxSettings

PLUGINS = "manyhands.sandboxes"
NAMES = ("auto", "bubblewrap", "local")
_BUBBLEWRAP = ("manyhands.sandboxes.bubblewrap.backend", "BubblewrapBackend")
_BACKENDS = {"auto": _BUBBLEWRAP, "bubblewrap": _BUBBLEWRAP, "local": ("manyhands.sandboxes.local", "LocalBackend")}
"""Module, and a class without arguments or a function of the name and the settings; imported when it is chosen: what the one takes of a
machine, the other may do without."""
_NOT_YET = ("docker", "podman", "apptainer", "singularity", "modal", "daytona")
_ON_HOST = "; or give --sandbox local to run commands on this machine itself"


def choose_backend(name: str, *, asks_for_image: bool, options: SandboxSettings | None = None) -> SandboxBackend:
    """The backend for a ``--sandbox`` value. ``asks_for_image``: whether any row names a container image; ``options``: where the backend
    finds the settings of its kind, such as a host's name (None: their defaults).

    ``auto`` is bubblewrap where this machine can use it. Raises UserError, in one line that names the choices.
    """
    if name == "auto" and asks_for_image:
        raise UserError(
            "the dataset asks for container images, and container sandboxes are not available in this version: "
            "give --sandbox bubblewrap or --sandbox local to ignore the images"
        )
    backend = _ours(name, options or SandboxSettings()) if name in _BACKENDS else _plugged(name)
    problem = backend.unavailable()
    if problem is not None:
        raise UserError(f"--sandbox {name}: {problem}{'' if name == 'local' else _ON_HOST}")
    return backend


def _ours(name: str, options: SandboxSettings) -> SandboxBackend:
    module, attribute = _BACKENDS[name]
    try:
        made = getattr(import_module(module), attribute)
        backend: SandboxBackend = made() if isinstance(made, type) else made(name, options)
    except ImportError as error:
        raise UserError(f"--sandbox {name}: not available on this system ({error}){_ON_HOST}") from error
    return backend


def _plugged(name: str) -> SandboxBackend:
    entry = plugins(PLUGINS).get(name)
    if entry is None:
        said = "not available yet in this version" if name in _NOT_YET else "unknown"
        raise UserError(f"--sandbox {name}: {said} (choose one of: {', '.join((*NAMES, *sorted(plugins(PLUGINS))))})")
    try:
        backend: SandboxBackend = entry.load()()
    except Exception as error:  # the boundary to a plug-in's own code, which may raise anything
        raise UserError(f"--sandbox {name}: the plug-in {entry.value} can't be used: {describe(error)}") from error
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
