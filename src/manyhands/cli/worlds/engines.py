"""The engines and services that are asked for the worlds that they keep."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from manyhands.cli.console import notice
from manyhands.core.errors import ItemError, UserError
from manyhands.sandboxes.lifecycle.keeping import Kept, kept_by, opened_driver
from manyhands.sandboxes.lifecycle.planning import ENGINES
from manyhands.sandboxes.remote.driver import Driver
from manyhands.sandboxes.settings import SandboxSettings


def add_kinds(result: ArgumentParser, default: str = "docker and podman") -> None:
    """The argument that names kinds of sandboxes. ``default``: those that are meant without it, for people."""
    result.add_argument(
        "--sandbox",
        metavar="KIND",
        action="append",
        help=f"kind of sandboxes, as --sandbox of a run names it; may be repeated (default: {default})",
    )


@asynccontextmanager
async def asked_engines(kinds: Sequence[str] | None) -> AsyncIterator[list[tuple[Driver, list[Kept]]]]:
    """The drivers of these kinds, each with all that it keeps. Of the usual ones, those that can't be used are left out, with a notice if
    they are there. Raises UserError for others, and if none can be used."""
    async with AsyncExitStack() as stack:
        found, absent = list[tuple[Driver, list[Kept]]](), list[str]()
        for kind in kinds or ENGINES:
            try:
                driver = await stack.enter_async_context(opened_driver(kind, SandboxSettings(sandbox=kind)))
            except UserError as error:
                if kinds:
                    raise
                absent.append(str(error))
                continue
            try:
                found.append((driver, await kept_by(driver)))
            except ItemError as error:
                if kinds:
                    raise UserError(f"--sandbox {kind}: {error.message}") from error
                notice(f"{kind} is left out: {error.message}")
        if len(absent) == len(ENGINES):
            raise UserError(f"no engine can be asked for its worlds: {'; '.join(absent)}")
        yield found
