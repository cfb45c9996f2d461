"""What stands where nothing may be called, as everything comes from the journal."""

from __future__ import annotations

from manyhands.core.clock import Clock
from manyhands.engine.context import Limits
from manyhands.models.protocol import ChatRequest, Completion
from manyhands.sandboxes.protocol import Sandbox, SandboxRequest


class NeverCalled:
    """Stands for the model and the sandboxes during a replay."""

    simulated = False
    kind = "none"

    async def complete(self, request: ChatRequest, limits: Limits, clock: Clock) -> Completion:
        raise RuntimeError("a replay called the model")

    async def create(self, request: SandboxRequest) -> Sandbox:
        raise RuntimeError("a replay made a sandbox")

    def unavailable(self) -> str | None:
        return None

    async def close(self) -> None:
        return
