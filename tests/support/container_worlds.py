"""Worlds of real engines for tests of drivers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from manyhands.sandboxes.containers.driver import ContainerDriver
from manyhands.sandboxes.protocol import SandboxLimits
from manyhands.sandboxes.remote.driver import RUN, World, WorldSpec
from tests.support.engines import Engine

LIMITS = SandboxLimits(memory=256 << 20, processes=64, file_size=8 << 20, cpus=1.0)


@dataclass
class Said:
    """What a command wrote, and how it ended."""

    code: int | None = None
    output: bytes = b""
    errors: bytes = b""


@dataclass
class Worlds:
    """A driver, with the worlds that a test made."""

    driver: ContainerDriver
    engine: Engine
    run: str = field(default_factory=lambda: secrets.token_hex(6))
    made: list[str] = field(default_factory=list)

    def spec(self, **changes: Any) -> WorldSpec:
        name = f"test-{self.run}-{len(self.made)}-{secrets.token_hex(3)}"
        given: dict[str, Any] = {
            "name": name,
            "labels": {RUN: self.run},
            "image": self.engine.full,
            "limits": LIMITS,
            **changes,
        }
        return WorldSpec(**given)

    async def make(self, **changes: Any) -> World:
        world = await self.driver.create(self.spec(**changes))
        self.made.append(world.id)
        return world

    async def run_in(
        self,
        world: World | str,
        *command: str,
        input: bytes = b"",
        environment: Mapping[str, str] | None = None,
        user: str | None = None,
        directory: str | None = None,
        seconds: float = 30.0,
    ) -> Said:
        """Run a command to its end."""
        said = Said()

        def output(data: bytes) -> None:
            said.output += data

        def errors(data: bytes) -> None:
            said.errors += data

        stream = await self.driver.execute(
            world if isinstance(world, str) else world.id,
            command,
            environment=environment or {},
            user=user,
            directory=directory,
            output=output,
            errors=errors,
        )
        try:
            async with asyncio.timeout(seconds):
                if input:
                    await stream.write(input)
                await stream.close_input()
                said.code = await stream.wait()
        finally:
            await stream.close()
        return said

    async def sh(self, world: World | str, script: str, **options: Any) -> str:
        """What a script prints; it must succeed."""
        said = await self.run_in(world, "/bin/sh", "-c", script, **options)
        assert said.code == 0, said
        return said.output.decode()


@asynccontextmanager
async def worlds_of(engine: Engine) -> AsyncIterator[Worlds]:
    """Worlds, removed at the end."""
    driver = ContainerDriver(engine.kind, engine.host)
    worlds = Worlds(driver, engine)
    try:
        yield worlds
    finally:
        for each in await driver.listed({RUN: worlds.run}):
            await (driver.delete_snapshot(each.id) if each.snapshot else driver.delete(each.id))
        await driver.close()
