"""A pace for making sandboxes."""

from __future__ import annotations

import asyncio

from manyhands.sandboxes.protocol import Sandbox, SandboxBackend, SandboxRequest


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
