"""The bubblewrap sandbox keeps the contract with an image, too."""

import pytest

from manyhands.testing.sandbox_contract import SandboxContract


@pytest.mark.slow
class TestBubblewrapWithAnImage(SandboxContract):
    make_backend = """
from dataclasses import replace
from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from tests.support.unpacked_images import full_image_pin

class WithImage(BubblewrapBackend):
    async def create(self, request):
        return await super().create(replace(request, image=full_image_pin()))

backend = WithImage()
"""
    root_is_own = True
    host_workspace = False
    home_is_workspace = False
    user = 0
    capabilities = 0x404FB
