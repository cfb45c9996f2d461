"""What is made of a container engine on this machine for a run: the driver of its worlds, and the store of its images."""

from __future__ import annotations

from manyhands.sandboxes.containers.addresses import expected_address
from manyhands.sandboxes.containers.client import EngineClient
from manyhands.sandboxes.containers.driver import ContainerDriver
from manyhands.sandboxes.containers.images import EngineImages
from manyhands.sandboxes.images.store import ImageStore
from manyhands.sandboxes.remote.driver import Driver
from manyhands.sandboxes.settings import SandboxSettings


def engine_driver(kind: str, options: SandboxSettings) -> Driver:
    """``kind``: ``docker`` or ``podman``."""
    return ContainerDriver(kind, expected_address(kind), runtime=options.container_runtime)


def engine_images(kind: str, options: SandboxSettings) -> ImageStore:
    return EngineImages(EngineClient(kind, expected_address(kind)))
