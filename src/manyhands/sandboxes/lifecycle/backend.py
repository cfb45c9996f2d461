"""One backend for all items of a run: those with an image get a sandbox made of it, the others one of the plain kind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from manyhands.runs.progress import IMAGES
from manyhands.sandboxes.images.pins import Pins
from manyhands.sandboxes.images.pulls import Pulls
from manyhands.sandboxes.images.store import ImageStore
from manyhands.sandboxes.kinds import kind_named, part_of
from manyhands.sandboxes.lifecycle.planning import needs_no_image
from manyhands.sandboxes.protocol import Sandbox, SandboxBackend, SandboxRequest
from manyhands.sandboxes.selection import PacedBackend, choose_backend, close_at_end, made_backend
from manyhands.sandboxes.settings import SandboxSettings


@asynccontextmanager
async def opened_backend(options: SandboxSettings, pins: Pins, run_folder: Path) -> AsyncIterator[SandboxBackend]:
    """The backend of a run's process, closed at the end. ``pins``: what ``planned_images`` gave when the run was made or continued. Raises
    UserError if a kind of sandboxes can't be used that is needed for certain."""
    async with AsyncExitStack() as stack:
        if pins.kind is None:
            yield PacedBackend(close_at_end(choose_backend(options.sandbox, options), stack))
            return
        kind = kind_named(pins.kind)
        backend = PacedBackend(close_at_end(made_backend(pins.kind, kind, options), stack))
        pulls: Pulls | None = None
        if kind.images is not None:
            store: ImageStore = part_of(pins.kind, kind.images, options)
            stack.push_async_callback(store.close)
            pulls = Pulls(run_folder / IMAGES, store, policy=options.pull, cache=options.image_cache)
            pulls.announce(list(pins.images.values()))
            stack.push_async_callback(pulls.close)

        def plain() -> SandboxBackend:
            own = needs_no_image(options.sandbox)
            return backend if own else PacedBackend(close_at_end(choose_backend(options.sandbox, options), stack))

        yield WorldsBackend(pins, backend, pulls, plain, options.image)


class WorldsBackend:
    """Makes sandboxes of images that it brings here, and of the plain kind for items without one."""

    def __init__(
        self,
        pins: Pins,
        of_images: SandboxBackend,
        pulls: Pulls | None,
        plain: Callable[[], SandboxBackend],
        image: str | None = None,
    ) -> None:
        """``image``: that of items that name none; ``plain``: called when an item without any comes."""
        self._pins = pins
        self._of_images = of_images
        self._pulls = pulls
        self._make_plain = plain
        self._plain: SandboxBackend | None = None
        self._image = image

    @property
    def kind(self) -> str:
        return self._of_images.kind

    def unavailable(self) -> str | None:
        return self._of_images.unavailable()

    async def create(self, request: SandboxRequest) -> Sandbox:
        """Raises ItemError(SANDBOX_LOST) if the image can't be pulled or the sandbox can't be made, INVALID_INPUT for an image that was not
        looked up."""
        reference = request.image or self._image
        if reference is None:
            self._plain = self._plain or self._make_plain()
            return await self._plain.create(request)
        image = self._pins.image(reference)
        request = replace(request, image=image.pin)
        if self._pulls is None:
            return await self._of_images.create(request)
        async with self._pulls.using(image):
            return await self._of_images.create(request)
