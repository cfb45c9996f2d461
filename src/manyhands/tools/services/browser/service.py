"""The browser as a service of a run: whether one can be had, and what its tools share in a process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.engine.workspaces import STATES
from manyhands.models.addresses import protected_keys
from manyhands.network.rules import NetworkRules
from manyhands.processes.system import processors
from manyhands.processes.system.memory import free_memory
from manyhands.tools.services.artifacts import ArtifactStore
from manyhands.tools.services.browser.chromium import Chromium, find_chromium
from manyhands.tools.services.browser.session import Pool
from manyhands.tools.services.registry import ServiceOpening

_CDP_VARIABLE = "BROWSER_CDP_URL"
_CDP_SCHEMES = ("http", "https", "ws", "wss")
_FOLDER = "browser"
"""In a run's folder."""
_PER_PROCESSOR = 2
_MEMORY = 400 << 20
"""Bytes that an item's pages take."""


class BrowserService:
    """What the ``browser_`` tools need."""

    def chosen(self, options: Any, environ: Mapping[str, str]) -> Json:
        asked_for = options.browser_executable is not None or options.browser_cdp is not None
        if find_spec("playwright") is None:
            if asked_for:
                raise UserError("a browser needs Playwright: install manyhands[browser]")
            return None
        joins = _joined(options, environ)
        if not joins and find_chromium(options.browser_executable, environ) is None:
            if asked_for:
                raise UserError(f"--browser_executable: {options.browser_executable} is no program that can be run")
            return None
        return {
            "kind": "cdp" if joins else "chromium",
            "executable": options.browser_executable,
            "contexts": options.browser_contexts,
            "resume": options.browser_resume,
            "private": options.web_allow_private,
        }

    def secrets(self, record: Json, options: Any, environ: Mapping[str, str]) -> Mapping[str, str]:
        if record["kind"] != "cdp":
            return {}
        address: str | None = options.browser_cdp or environ.get(_CDP_VARIABLE)
        if not address:
            raise UserError(f"the run used a browser that runs already; give --browser_cdp or set {_CDP_VARIABLE}")
        return {"cdp": address.strip()}

    @asynccontextmanager
    async def opened(self, record: Json, opening: ServiceOpening) -> AsyncIterator[Pool]:
        folder = opening.run_folder / _FOLDER
        executable = find_chromium(record["executable"], os.environ)
        rules = NetworkRules.web(private=record["private"])
        chromium = Chromium(executable, opening.secrets.get("cdp"), folder, rules)
        slots = asyncio.Semaphore(record["contexts"] or _contexts())
        try:
            states, artifacts = opening.run_folder / STATES, ArtifactStore(opening.run_folder)
            yield Pool(chromium, slots, states, artifacts, fresh=record["resume"] == "attempt")
        finally:
            await chromium.close()


def _joined(options: Any, environ: Mapping[str, str]) -> bool:
    """Whether a browser is used that runs already. Raises UserError for an address that can't be used."""
    given: str | None = options.browser_cdp
    if given is not None and options.browser_executable is not None:
        raise UserError(
            "--browser_cdp is a browser that runs already, and --browser_executable one to be started: give one of them"
        )
    if given is None:
        address, name = environ.get(_CDP_VARIABLE, ""), _CDP_VARIABLE
        if not address or options.browser_executable is not None:
            return False
    else:
        address, name = given, "--browser_cdp"
    try:
        parts = urlsplit(address.strip())
        usable = parts.scheme in _CDP_SCHEMES and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable:
        raise UserError(
            f"{name} must be an address that starts with {', '.join(f'{each}://' for each in _CDP_SCHEMES)}"
        )
    if given is not None and (protected_keys(parts) or "@" in parts.netloc):
        raise UserError(f"--browser_cdp must not hold a key, which would be recorded; set {_CDP_VARIABLE} instead")
    return True


def _contexts() -> int:
    memory = free_memory()
    by_memory = processors() * _PER_PROCESSOR if memory is None else memory // _MEMORY
    return max(1, min(processors() * _PER_PROCESSOR, by_memory))


SERVICE = BrowserService()
