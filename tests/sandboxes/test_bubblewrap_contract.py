"""The bubblewrap sandbox keeps the contract."""

from manyhands.testing.sandbox_contract import SandboxContract


class TestBubblewrap(SandboxContract):
    make_backend = "from manyhands.sandboxes.bubblewrap import BubblewrapBackend; backend = BubblewrapBackend()"
