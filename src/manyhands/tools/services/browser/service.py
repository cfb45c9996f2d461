"""The browser as a service of a run: whether one can be had, and what its tools share in a process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.network.rules import NetworkRules
from manyhands.processes.system import processors
from manyhands.processes.system.memory import free_memory
from manyhands.tools.services.artifacts import ArtifactStore
from manyhands.tools.services.browser.chromium import Chromium, find_chromium
from manyhands.tools.services.browser.session import Pool
from manyhands.tools.services.registry import ServiceOpening

_CDP_VARIABLE = "BROWSER_CDP_URL"
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
        joins = _cdp(options, environ) is not None
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
        address = _cdp(options, environ)
        if address is None:
            raise UserError(f"the run used a browser that runs already; give --browser_cdp or set {_CDP_VARIABLE}")
        return {"cdp": address}

    @asynccontextmanager
    async def opened(self, record: Json, opening: ServiceOpening) -> AsyncIterator[Pool]:
        folder = opening.run_folder / _FOLDER
        executable = find_chromium(record["executable"], os.environ)
        rules = NetworkRules.web(private=record["private"])
        chromium = Chromium(executable, opening.secrets.get("cdp"), folder, rules)
        slots = asyncio.Semaphore(record["contexts"] or _contexts())
        try:
            yield Pool(chromium, slots, folder, ArtifactStore(opening.run_folder), fresh=record["resume"] == "attempt")
        finally:
            await chromium.close()


def _cdp(options: Any, environ: Mapping[str, str]) -> str | None:
    found: str | None = options.browser_cdp or environ.get(_CDP_VARIABLE)
    return found or None


def _contexts() -> int:
    memory = free_memory()
    by_memory = processors() * _PER_PROCESSOR if memory is None else memory // _MEMORY
    return max(1, min(processors() * _PER_PROCESSOR, by_memory))


SERVICE = BrowserService()
