"""One Chromium for all items of a process: found, started at first use, held to the web's rules by an egress proxy, and ended.

What a page may reach is decided where connections are made, not by looking at addresses: Chromium knows no other way out than the proxy, so
frames, scripts and redirects are covered. It ends with its driver, which ends with this process; a guard kills what outlives both.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.core.errors import ToolError
from manyhands.core.text import one_line
from manyhands.io.files import make_private
from manyhands.network.connecting import LookUp, look_up
from manyhands.network.rules import NetworkRules
from manyhands.processes.children import Guard, to_the_end
from manyhands.processes.strays import SANDBOX_VARIABLE, kill_marked, remove_tree, started

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page, Playwright

    from manyhands.tools.services.browser.web_proxy import WebProxy

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_START_SECONDS = 60.0
_END_SECONDS = 10.0
_ARGUMENTS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--no-pings",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--dns-prefetch-disable",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",  # as older versions call it
    "--proxy-bypass-list=<-loopback>",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)
_HOME = "home-"


def find_chromium(given: str | None, environ: Mapping[str, str]) -> str | None:
    """The program: what was given, else the first in the PATH, else the one that Playwright has installed; None if there is none."""
    if given is not None:
        return shutil.which(given, path=environ.get("PATH"))
    for name in _NAMES:
        if found := shutil.which(name, path=environ.get("PATH")):
            return found
    folder = environ.get("PLAYWRIGHT_BROWSERS_PATH") or os.path.join(
        environ.get("HOME", os.sep), ".cache", "ms-playwright"
    )
    installed = sorted(Path(folder).glob("chromium-*/chrome-linux*/chrome"))
    return str(installed[-1]) if installed else None


class Chromium:
    """The browser of a process. ``executable``: None for one that runs already, at the address ``cdp``. ``folder``: a private one, in which
    it gets a home for as long as it runs."""

    def __init__(
        self, executable: str | None, cdp: str | None, folder: Path, rules: NetworkRules, *, look_up: LookUp = look_up
    ) -> None:
        self._executable, self._cdp, self._folder = executable, cdp, folder
        self._rules, self._look_up = rules, look_up
        self._stack: AsyncExitStack | None = None
        self._browser: Browser | None = None
        self._playwright: Playwright | None = None
        self._starting = asyncio.Lock()
        self.proxy: WebProxy | None = None
        """Not there for a browser that runs already."""

    async def browser(self) -> Browser:
        """The browser, started if it does not run. Raises ToolError if it can't be."""
        async with self._starting:
            if self._browser is None or not self._browser.is_connected():
                await self._end()
                self._browser = await self._started()
            return self._browser

    async def let_out(self, page: Page) -> None:
        """Have the context of a page learn the proxy's password, which it then gives to the proxy by itself, and to nobody else.

        Playwright's own way would pause each request of each page, and not use Chromium's cache."""
        proxy = self.proxy
        if proxy is None:
            return
        channel = await page.context.new_cdp_session(page)
        password = {"response": "ProvideCredentials", "username": proxy.user, "password": proxy.password}

        async def prove(asked: dict[str, Any]) -> None:
            answer = password if asked["authChallenge"]["source"] == "Proxy" else {"response": "CancelAuth"}
            await channel.send(
                "Fetch.continueWithAuth", {"requestId": asked["requestId"], "authChallengeResponse": answer}
            )

        async def go_on(request: dict[str, Any]) -> None:
            await channel.send("Fetch.continueRequest", {"requestId": request["requestId"]})

        channel.on("Fetch.authRequired", prove)
        channel.on("Fetch.requestPaused", go_on)
        try:
            await channel.send("Fetch.enable", {"handleAuthRequests": True, "patterns": [{"urlPattern": proxy.own}]})
            await page.evaluate("url => fetch(url, {mode: 'no-cors'}).catch(() => {})", proxy.own)
        finally:
            await channel.detach()

    async def close(self) -> None:
        """End it. Idempotent; finishes even when cancelled."""
        async with self._starting:
            await to_the_end(self._end())

    async def _end(self) -> None:
        stack, self._stack, self._browser = self._stack, None, None
        if stack is not None:
            await stack.aclose()

    async def _started(self) -> Browser:
        from playwright.async_api import Error, async_playwright  # an extra

        stack = AsyncExitStack()
        try:
            async with asyncio.timeout(_START_SECONDS):
                playwright = await async_playwright().start()
                stack.push_async_callback(_bounded, playwright.stop)
                browser = await (self._launched(playwright, stack) if self._cdp is None else self._joined(playwright))
                stack.push_async_callback(_bounded, browser.close)
        except BaseException as error:
            await to_the_end(stack.aclose())
            if isinstance(error, (Error, OSError, TimeoutError)):
                raise ToolError(self._why_not(error)) from error
            raise
        self._stack = stack
        return browser

    def _why_not(self, error: Exception) -> str:
        if self._cdp is not None:  # what Playwright says has the address, which may have a key in it
            return "the browser that runs already can't be reached"
        return f"no browser can be started: {one_line(str(error)) or 'no answer in time'}"

    async def _joined(self, playwright: Playwright) -> Browser:
        assert self._cdp is not None
        return await playwright.chromium.connect_over_cdp(self._cdp)

    async def _launched(self, playwright: Playwright, stack: AsyncExitStack) -> Browser:
        from manyhands.tools.services.browser.web_proxy import (
            WebProxy,
        )  # takes long to import, and few runs come to that

        proxy = self.proxy = WebProxy(self._rules, self._look_up)
        stack.push_async_callback(proxy.close)
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        port = listener.getsockname()[1]
        await proxy.listen(listener)
        home = await asyncio.to_thread(self._fresh_home)
        stack.push_async_callback(asyncio.to_thread, remove_tree, home)
        mark = secrets.token_hex(16)
        guard = Guard(f"{SANDBOX_VARIABLE}={mark}")
        stack.push_async_callback(guard.dismiss)
        stack.push_async_callback(asyncio.to_thread, kill_marked, SANDBOX_VARIABLE, mark)  # what did not end when asked
        return await playwright.chromium.launch(
            executable_path=self._executable,
            headless=True,
            args=[*_ARGUMENTS, f"--proxy-server=http://127.0.0.1:{port}"],
            chromium_sandbox=os.geteuid() != 0,
            handle_sigint=False,
            handle_sigterm=False,
            handle_sighup=False,
            downloads_path=str(home),
            env=_environment(home, mark),
        )

    def _fresh_home(self) -> Path:
        """A home folder of this process; those of processes that have ended go."""
        make_private(self._folder)
        for left in self._folder.glob(f"{_HOME}*"):
            pid, _, _ = left.name.removeprefix(_HOME).partition("-")
            if not pid.isdecimal() or started(int(pid)) is None:
                with suppress(OSError):
                    remove_tree(left)
        home = self._folder / f"{_HOME}{os.getpid()}-{secrets.token_hex(4)}"
        make_private(home)
        return home


def _environment(home: Path, mark: str) -> dict[str, str | float | bool]:
    """What Chromium has of this process's environment: no keys."""
    kept = {
        name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ", "FONTCONFIG_PATH") if name in os.environ
    }
    return {**kept, "HOME": str(home), SANDBOX_VARIABLE: mark}


async def _bounded(end: Callable[[], Awaitable[object]]) -> None:
    """End something that may be gone already, or not answer any more."""
    with suppress(Exception):
        async with asyncio.timeout(_END_SECONDS):
            await end()
