"""The bubblewrap sandbox keeps the contract with an image, too: one with bash, and one with busybox alone."""

from __future__ import annotations

from manyhands.testing.sandbox_contract import SandboxContract

_BACKEND = """
from dataclasses import replace
from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from tests.support.unpacked_images import {pin}

class WithImage(BubblewrapBackend):
    async def create(self, request):
        return await super().create(replace(request, image={pin}()))

backend = WithImage()
"""


class _WithAnImage(SandboxContract):
    root_is_own = True
    host_workspace = False
    home_is_workspace = False
    user = 0
    capabilities = 0x404FB


class TestBubblewrapWithAnImage(_WithAnImage):
    make_backend = _BACKEND.format(pin="full_image_pin")
    quick = ()


class TestBubblewrapWithAnImageWithoutBash(_WithAnImage):
    make_backend = _BACKEND.format(pin="bare_image_pin")
    has_bash = False
    has_python = False
    quick = (
        "test_shell_keeps_its_state",
        "test_files",
        "test_put_and_get",
        "test_background_process",
        "test_step_cut_off_is_undone",
    )
