"""The local sandbox keeps the contract."""

from manyhands.testing.sandbox_contract import SandboxContract


class TestLocal(SandboxContract):
    make_backend = "from manyhands.sandboxes.local import LocalBackend; backend = LocalBackend()"
    isolates = False
