"""What the engine asks of an executor."""

from __future__ import annotations

from typing import Protocol

from manyhands.engine.performance import Claim, Performed


class Executor(Protocol):
    """Performs items somewhere. Only the engine's own process writes the journal: an executor records steps through it."""

    @property
    def capacity(self) -> int:
        """Items it can have in flight."""
        ...

    async def start(self) -> None:
        """Get ready. Raises UserError if the workload can't be performed as configured."""
        ...

    async def perform(self, claim: Claim) -> Performed:
        """Perform an item once. Raises StorageError or UserError for what no item is to blame for."""
        ...

    def stop(self) -> None:
        """Begin no further steps; those in flight end and are recorded."""
        ...

    async def close(self) -> None:
        """End at once whatever still runs, and leave nothing behind. Idempotent."""
        ...
