"""The bubblewrap sandbox keeps the contract."""

from manyhands.testing.sandbox_contract import SandboxContract


class TestBubblewrap(SandboxContract):
    make_backend = "from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend; backend = BubblewrapBackend()"
