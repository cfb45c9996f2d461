"""Commands on this machine itself, with a folder and an environment of their own but no isolation.

Must be requested by name: what a model writes runs with all rights of whoever started the run.
"""

from __future__ import annotations

import os

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.sandboxes.protocol import Sandbox, SandboxRequest

LIMITLESS = "the local sandbox can't keep commands from any host, so it can't be given network_allow"


class LocalBackend:
    """Makes sandboxes that are mere folders of the host. ``request.image`` is ignored.

    ``control_groups``: False to do without them also where this machine lets us make some.
    """

    def __init__(self, *, control_groups: bool = True) -> None:
        self._control_groups = control_groups

    @property
    def kind(self) -> str:
        return "local"

    def unavailable(self) -> str | None:
        if os.name != "posix":
            return "the local sandbox needs a POSIX system"
        return None

    async def create(self, request: SandboxRequest) -> Sandbox:
        """Raises ItemError: SANDBOX_LOST if it can't be made, INVALID_INPUT for a ``cwd`` that can't be used."""
        if request.limits.network_allow and not request.limits.network:
            raise ItemError(Cause.INVALID_INPUT, LIMITLESS)
        from manyhands.sandboxes.host_folders import make_sandbox  # here, because many items ask for no sandbox

        return await make_sandbox(request, control_groups=self._control_groups)
