"""Which backend a run uses, and at what pace it makes sandboxes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from importlib import import_module
from typing import Any

from manyhands.core.errors import UserError
from manyhands.sandboxes.kinds import AUTO, Kind, check_network, kind_named, on_host, part_of
from manyhands.sandboxes.protocol import Sandbox, SandboxBackend, SandboxRequest
from manyhands.sandboxes.remote.driver import Driver, WorldOptions
from manyhands.sandboxes.settings import SandboxSettings

_PLAIN = "bubblewrap"
"""What ``auto`` takes for items without an image."""


def choose_backend(name: str, options: SandboxSettings | None = None) -> SandboxBackend:
    """The backend for a ``--sandbox`` value and items that name no container image: with ``auto`` that is bubblewrap. ``options``: where it
    finds the settings of its kind, such as a host's name (None: their defaults).

    Raises UserError, in one line that names the choices, if there is none, or this machine can't use it.
    """
    backend = made_backend(name, _plain_kind(name, options), options or SandboxSettings())
    _check_available(name, backend)
    return backend


def check_backend(options: SandboxSettings) -> None:
    """Raises UserError as ``choose_backend`` does, for the settings of a run. No backend is made, so that there is none to close."""
    kind = _plain_kind(options.sandbox, options)
    _check_available(options.sandbox, part_of(options.sandbox, kind.backend or kind.driver or "", options))


def _plain_kind(name: str, options: SandboxSettings | None) -> Kind:
    """The kind of items that name no image. Raises UserError."""
    chosen = _PLAIN if name == AUTO else name
    kind = kind_named(chosen)
    if options is not None:
        check_network(chosen, kind, options)
    if kind.driven and kind.takes_images:
        raise UserError(f"--sandbox {name}: its sandboxes are made of images: name one with --image")
    return kind


def _check_available(name: str, part: SandboxBackend | Driver) -> None:
    if (problem := part.unavailable()) is not None:
        raise UserError(f"--sandbox {name}: {problem}{on_host(name)}")


def made_backend(name: str, kind: Kind, options: SandboxSettings) -> SandboxBackend:
    """The backend of a kind; ``close_at_end`` closes it. Raises UserError if it can't be made."""
    if kind.backend is not None:
        found: SandboxBackend = part_of(name, kind.backend, options)
        return found
    driver: Driver = part_of(name, kind.driver or "", options)
    made: Any = import_module("manyhands.sandboxes.remote.backend").RemoteBackend
    remote: SandboxBackend = made(driver, world_options(options))
    return remote


def close_at_end(backend: SandboxBackend, stack: AsyncExitStack) -> SandboxBackend:
    """The backend, whose connections to an engine, if it has any, are closed with the stack."""
    close = getattr(backend, "close", None)
    if close is not None:
        stack.push_async_callback(close)
    return backend


def world_options(options: SandboxSettings) -> WorldOptions:
    """What the settings say of all worlds of an engine."""
    return WorldOptions(
        options.container_runtime, options.checkpoints, options.checkpoint_limit, options.durable_worlds
    )


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
