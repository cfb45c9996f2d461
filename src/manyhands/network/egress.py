"""The one way out of a sandbox that has no network of its own."""

from __future__ import annotations

from collections.abc import Sequence

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.network.connecting import LookUp, look_up
from manyhands.network.counts import HostCounts
from manyhands.network.namespaces import listening_inside
from manyhands.network.proxy import EgressProxy
from manyhands.network.rules import NetworkRules


class Egress:
    """A proxy that listens inside a sandbox, and again inside whatever takes its place when it is started anew.

    ``allowed``: the rules, as people write them. Raises ItemError(INVALID_INPUT) for others, as items may bring their own.
    """

    def __init__(self, allowed: Sequence[str], counts: HostCounts | None = None, *, look_up: LookUp = look_up) -> None:
        try:
            self._rules = NetworkRules.read(allowed)
        except ValueError as error:
            raise ItemError(Cause.INVALID_INPUT, f"network_allow: {error}") from error
        self._counts = counts
        self._look_up = look_up
        self._proxy: EgressProxy | None = None

    async def open(self, process: int, user_namespace: int | None = None) -> None:
        """Listen in the network namespace of a process, see ``namespaces.listening_inside``, and nowhere else any more. Raises
        ItemError(SANDBOX_LOST)."""
        await self.close()
        listener = await listening_inside(process, user_namespace)
        self._proxy = EgressProxy(self._rules, counts=self._counts, look_up=self._look_up)
        await self._proxy.listen(listener)

    async def close(self) -> None:
        """Close everything. Idempotent."""
        proxy, self._proxy = self._proxy, None
        if proxy is not None:
            await proxy.close()
