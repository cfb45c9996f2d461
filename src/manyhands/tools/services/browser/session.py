"""The browser of one attempt: a context of its own, its page, what happens in it meanwhile, and how it is brought back after a crash.

What calls gave is replayed; the page is not. After each call its address and its cookies are kept, the cookies in a file of the private
run folder, not in the journal. The first call that is not replayed gets a fresh context with them, in which the address is opened again.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import urlsplit

from manyhands.core.errors import ToolError
from manyhands.core.jsonio import Json, dumps, loads
from manyhands.core.text import cut, one_line
from manyhands.io.files import bytes_written_aside, make_private
from manyhands.tools.protocol import ToolEnvironment, ToolResult
from manyhands.tools.services.artifacts import SUFFIXES, ArtifactStore
from manyhands.tools.services.browser.chromium import Chromium
from manyhands.tools.services.browser.console import Console

if TYPE_CHECKING:
    from playwright.async_api import (
        BrowserContext,
        ConsoleMessage,
        Dialog,
        Download,
        Frame,
        Page,
        Request,
        Response,
        WebError,
    )

    Work = Callable[[Page], Awaitable[dict[str, Any]]]

STATE = "browser"
"""Where an attempt's session is in ``ToolEnvironment.state``."""
NAVIGATION_SECONDS, CALL_SECONDS = 60.0, 30.0
_SETTLE_SECONDS = 5.0
_WAIT_SECONDS = 3600.0
"""For a free context."""
_CLOSE_SECONDS = 10.0
_STATE_SECONDS = 5.0
_DOWNLOAD_SECONDS = 20.0
_MAX_DOWNLOAD = 20 << 20
_MAX_DOWNLOADS = 3
"""That come at the same time."""
_MAX_STATE = 4 << 20
_MAX_ORIGINS = 20
_MAX_PAGES = 8
_MAX_EVENTS = 20
_MAX_HISTORY = 20
_MAX_URL = 4_000
_STREAMS = frozenset(("websocket", "eventsource", "media"))
"""Requests that are not waited for."""
_MEDIA_TYPES = {suffix: media_type for media_type, suffix in SUFFIXES.items()}
_RELOADED = "the page was loaded again, so what was typed and all refs are gone; take a snapshot"
_REASON = re.compile(
    r"intercepts pointer events|not visible|not enabled|not stable|outside of the viewport|not editable"
)
_TITLE = "typeof document.title == 'string' ? document.title.slice(0, 300) : ''"
_TRIES = 3
_HOST_FAULTS = (403, 502)
"""What the proxy answers itself."""


class Needs(Enum):
    """What a call relies on."""

    RECORD = auto()
    """No browser: it repeats what is recorded, and does not look at the page that it gets."""
    NOTHING = auto()
    """No page: it opens one."""
    PAGE = auto()
    """A page, which may have been loaded again."""
    ELEMENTS = auto()
    """What is on the page, as the model has seen it."""


@dataclass(frozen=True, slots=True)
class Pool:
    """What all sessions of a process share."""

    chromium: Chromium
    slots: asyncio.Semaphore
    """One for each context that may be open."""
    states: Path
    """Where each attempt has a private folder for its cookies, see ``engine.workspaces``."""
    artifacts: ArtifactStore
    fresh: bool = False
    """After a crash, an attempt that had a page open is given up, and another one begins."""
    quiet: float = 0.5
    """Seconds without requests after which a page counts as loaded."""


@dataclass(slots=True)
class _Kept:
    """What is recorded of a session after a call."""

    number: int = 0
    """Of calls, so that the last one is known whatever the order in which they are replayed."""
    url: str | None = None
    """None: no page is open."""
    before: list[str] = field(default_factory=list)
    """The addresses to go back to, the nearest one last."""
    state: str = ""
    """The name of the file with cookies and local storage; empty if there are none."""

    def to_json(self) -> dict[str, Any]:
        return {"number": self.number, "url": self.url, "before": self.before, "state": self.state}


class Session:
    """The browser of one attempt. Its calls are made one after the other."""

    def __init__(self, pool: Pool, attempt: str) -> None:
        """``attempt``: whose it is, as ``3-1``."""
        self._pool = pool
        self._folder = pool.states / attempt
        self._files: list[str] = []
        """The names of its files there, the newest last."""
        self._kept = _Kept()
        self._context: BrowserContext | None = None
        self._page: Page | None = None
        self._consoles: dict[Page, Console] = {}
        self._crashed = False
        self._was_replayed = False
        self._storage: dict[str, Json] = {}
        """What pages keep in their local storage, by origin."""
        self._earlier: list[str] = []
        """Addresses to go back to from before the context was made."""
        self._first_entry = 0
        """Of the page's history, from where on it is that of its addresses."""
        self._activity = _Activity(pool.quiet)
        self._tasks: set[asyncio.Task[None]] = set()
        self._coming = 0
        """Downloads that come."""
        self._events: dict[str, list[Json]] = {}

    @classmethod
    def of(cls, environment: ToolEnvironment) -> Session:
        """The session of the call's attempt, which is made with its first call."""
        found: Session | None = environment.state.get(STATE)
        if found is None:
            attempt = "-".join(environment.call_key.split("/")[1:3])
            found = environment.state[STATE] = cls(environment.service(Pool), attempt)
            environment.closing.push_async_exit(found)
        return found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The attempt has ended: with an error it may be gone on with, and else nobody needs the cookies any more."""
        await self._drop()
        if kind is None:
            await asyncio.to_thread(self._forget, 0)

    def restore(self, record: Json) -> None:
        """A call was replayed; ``record``: what was kept of it."""
        if isinstance(record, dict) and record["number"] > self._kept.number:
            self._kept = _Kept(record["number"], record["url"], list(record["before"]), record["state"])
            self._note_file(record["state"])
            self._was_replayed = True

    # --- Calls

    async def call(
        self,
        environment: ToolEnvironment,
        work: Work,
        *,
        needs: Needs,
        seconds: float = CALL_SECONDS,
        acts: bool = True,
    ) -> ToolResult:
        """Do something with the page. ``acts``: it may change the page, so that what follows from it is waited for."""
        from playwright.async_api import Error  # an extra

        self._activity.begin()
        for console in self._consoles.values():
            console.begin()
        try:
            resumed = await self._opened(environment, needs)
            async with asyncio.timeout(seconds):
                content = await self._done(work, acts)
        except ToolError as error:
            content = {"success": False, "error": str(error)}
        except TimeoutError:
            content = {"success": False, "error": f"the page did not answer within {seconds:g} seconds"}
            await self._drop_if_stuck()
        except Error as error:
            content = {"success": False, "error": await self._failure(error)}
        else:
            if resumed:
                content["resumed"] = True
        content |= self._told()
        await self._keep()
        return ToolResult(content, failed=not content["success"], kept=self._kept.to_json())

    async def close(self) -> bool:
        """Close the browser; whether there was one open."""
        was_open = self._kept.url is not None or self._context is not None
        await self._drop()
        self._kept = _Kept(self._kept.number + 1)
        return was_open

    @property
    def artifacts(self) -> ArtifactStore:
        return self._pool.artifacts

    @property
    def kept(self) -> Json:
        return self._kept.to_json()

    async def _done(self, work: Work, acts: bool) -> dict[str, Any]:
        content = await work(cast("Page", self._page))
        if acts:
            await self._settle()
            if why := self._refused():
                raise ToolError(why)
            title = await self.title()
            page = self._present()
            content = {"success": True, **content, "url": cut(page.url, _MAX_URL), "title": title}
            return content | {"navigated": self._activity.navigated}
        return {"success": True, **content}

    async def _failure(self, error: Exception) -> str:
        """What went wrong, in a sentence."""
        from playwright.async_api import TimeoutError as PageTimeout  # an extra

        if self._lost:
            await self._drop()
            return "the browser ended; with the next call the page is loaded again"
        if why := self._refused():
            return why
        if isinstance(error, PageTimeout):
            await self._drop_if_stuck()
        lines = str(error).splitlines() or [type(error).__name__]
        if "ERR_INVALID_AUTH_CREDENTIALS" in lines[0]:
            # What a context gets, too, when Chromium's process for the network ended, which had the proxy's password.
            await self._drop()
            return "the page asks for a name and a password, which can't be given; if it did not before, try again"
        reason = next((line for line in lines[1:] if _REASON.search(line)), "")
        return one_line(f"{lines[0]} {reason.strip(' -')}".strip(), 500)

    @property
    def _lost(self) -> bool:
        page, context = self._page, self._context
        if self._crashed or page is None or context is None or page.is_closed():
            return True
        return context.browser is None or not context.browser.is_connected()

    async def _drop_if_stuck(self) -> None:
        """Give up a page that does not answer at all, as one whose script never ends."""
        if self._page is not None:
            try:
                async with asyncio.timeout(2.0):
                    await self._page.evaluate("1")
                return
            except Exception:  # noqa: BLE001 - whatever a page that is stuck, or gone, does
                pass
        await self._drop()

    def _told(self) -> dict[str, Any]:
        events, self._events = self._events, {}
        return dict(events)

    # --- Opening, and what is kept

    async def _opened(self, environment: ToolEnvironment, needs: Needs) -> bool:
        """Have a page; whether it was brought back. Raises ToolError, or what starts a fresh attempt."""
        if needs is Needs.RECORD or (self._context is not None and not self._lost):
            return False
        await self._drop()
        url, brought_back = self._kept.url, self._kept.url is not None
        if not brought_back and needs is not Needs.NOTHING:
            raise ToolError("no page is open; call browser_navigate first")
        if brought_back and self._was_replayed and self._pool.fresh:
            raise environment.own_steps.new_attempt_needed("its browser is gone (--browser_resume=attempt)")
        if brought_back and self._was_replayed and not self._has_state():
            raise environment.own_steps.new_attempt_needed("what its browser had kept is not on this machine")
        self._was_replayed = False
        with environment.untimed():
            try:
                async with asyncio.timeout(_WAIT_SECONDS):
                    await self._pool.slots.acquire()
            except TimeoutError:
                raise ToolError("no browser was free for an hour; do without") from None
        try:
            async with asyncio.timeout(NAVIGATION_SECONDS):
                await self._begin()
                if url is not None and needs is not Needs.NOTHING:
                    await self._load(url)
        except BaseException:
            if self._context is None:
                self._pool.slots.release()
            raise
        if brought_back and needs is Needs.ELEMENTS:
            raise ToolError(_RELOADED)
        return brought_back

    async def _begin(self) -> None:
        browser = await self._pool.chromium.browser()
        state = await asyncio.to_thread(self._read_state)
        self._storage = {} if state is None else {each["origin"]: each for each in state["origins"]}
        context = self._context = await browser.new_context(
            storage_state=state,
            viewport={"width": 1280, "height": 800},
            service_workers="block",
            accept_downloads=True,
        )
        context.set_default_timeout(5_000)
        page = await context.new_page()
        await self._pool.chromium.let_out(page)
        context.on("console", self._message)
        context.on("weberror", self._script_error)
        context.on("page", self._page_opened)
        context.on("request", self._activity.requested)
        context.on("requestfinished", self._activity.ended)
        context.on("requestfailed", self._activity.failed)
        context.on("response", self._activity.answered)
        self._page_opened(page)
        self._crashed = False
        self._earlier, self._first_entry = list(self._kept.before), 0

    async def _load(self, url: str) -> None:
        assert self._page is not None
        await self._page.goto(url, wait_until="domcontentloaded", timeout=NAVIGATION_SECONDS * 1000)
        await self._settle()

    async def _keep(self) -> None:
        """Note where the session is."""
        self._kept.number += 1
        if self._context is None or self._page is None:
            return
        with suppress(Exception):  # a page that is stuck: what was noted last counts
            async with asyncio.timeout(_STATE_SECONDS):
                if self._page.url.startswith(("http:", "https:")):
                    before, _ = await self._history()
                    self._kept.before = [*self._earlier, *before][-_MAX_HISTORY:]
                    self._kept.url = self._page.url
                await self._note_storage()
                state = {"cookies": await self._context.cookies(), "origins": list(self._storage.values())}
                self._kept.state = await asyncio.to_thread(self._written, state)

    async def _note_storage(self) -> None:
        """Note the local storage of the page's origin. Playwright's own way visits all origins that were ever open, one by one."""
        assert self._page is not None
        address = urlsplit(self._page.url)
        if address.scheme not in ("http", "https"):
            return
        origin = f"{address.scheme}://{address.netloc.rpartition('@')[2]}"
        where = {"securityOrigin": origin, "isLocalStorage": True}
        # Chromium is asked rather than the page, which could name what it likes.
        entries = (await self._asked("DOMStorage.getDOMStorageItems", {"storageId": where}))["entries"]
        self._storage.pop(origin, None)
        if entries:
            stored = [{"name": name, "value": value} for name, value in entries]
            self._storage[origin] = {"origin": origin, "localStorage": stored}
        if len(self._storage) > _MAX_ORIGINS:
            del self._storage[next(iter(self._storage))]

    async def back(self) -> str | None:
        """Go back to the page before; its address, or None if there is none."""
        before, index = await self._history()
        page = self._present()
        if before:
            await page.go_back(wait_until="domcontentloaded", timeout=CALL_SECONDS * 1000)
        elif opener := next((each for each in reversed(page.context.pages) if each is not page), None):
            await page.close()
            self._page = opener
        elif self._earlier:
            await page.goto(self._earlier.pop(), wait_until="domcontentloaded", timeout=CALL_SECONDS * 1000)
            self._first_entry = index + 1
        else:
            return None
        return self._present().url

    async def _history(self) -> tuple[list[str], int]:
        """The addresses before the present one, the nearest last, without those from before a resume; and the present one's index."""
        found = await self._asked("Page.getNavigationHistory")
        entries, index = found["entries"], found["currentIndex"]
        return [entry["url"] for entry in entries[self._first_entry : index] if entry["url"] != "about:blank"], index

    def console(self, page: Page) -> Console:
        """What a page wrote. Raises ToolError if it was closed meanwhile."""
        if page not in self._consoles:
            raise ToolError("the page was closed")
        return self._consoles[page]

    def _present(self) -> Page:
        """The page. Raises ToolError if it was closed meanwhile."""
        if self._page is None:
            raise ToolError("the page was closed")
        return self._page

    async def title(self) -> str:
        """The page's title, 300 characters at most."""
        return str(await self.seen(_TITLE))

    async def seen(self, expression: str) -> Any:
        """What an expression comes to, as JSON, with the page's elements but in a world of its own: the page's scripts can't change what
        built-in functions do there. Raises ToolError."""
        from playwright.async_api import Error  # an extra

        page = self._present()
        channel = await page.context.new_cdp_session(page)
        try:
            for left in reversed(range(_TRIES)):
                frame = (await channel.send("Page.getFrameTree"))["frameTree"]["frame"]["id"]
                try:
                    world = await channel.send("Page.createIsolatedWorld", {"frameId": frame})
                    where = {"contextId": world["executionContextId"], "returnByValue": True}
                    answer = await channel.send("Runtime.evaluate", {"expression": expression, **where})
                    break
                except Error:  # the page has gone on to another one
                    if not left:
                        raise
        finally:
            with suppress(Exception):  # a page that has gone meanwhile
                await channel.detach()
        if "exceptionDetails" in answer:
            raise ToolError("the page keeps this from being seen")
        return answer["result"].get("value")

    async def _asked(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        """What Chromium answers about the page, by its DevTools protocol."""
        assert self._page is not None
        assert self._context is not None
        channel = await self._context.new_cdp_session(self._page)
        try:
            found: dict[str, Any] = await channel.send(method, parameters)
            return found
        finally:
            await channel.detach()

    def _written(self, found: dict[str, Any]) -> str:
        state = dumps(found)
        if len(state) > _MAX_STATE:
            state = dumps({**found, "origins": []})
        if state == _EMPTY or len(state) > _MAX_STATE:
            return ""
        name = f"{hashlib.sha256(state).hexdigest()}.json"
        path = self._folder / name
        if not path.exists():
            make_private(self._pool.states)
            make_private(self._folder)
            with bytes_written_aside(path) as handle:
                handle.write(state)
        self._note_file(name)
        self._forget(2)  # until the call is recorded, a crash goes back to the one before
        return name

    def _note_file(self, name: str) -> None:
        if name:
            self._files = [*(each for each in self._files if each != name), name]

    def _has_state(self) -> bool:
        """Whether what was kept last is here, if anything was."""
        return not self._kept.state or (self._folder / Path(self._kept.state).name).is_file()

    def _read_state(self) -> Json:
        with suppress(OSError, ValueError):
            return loads((self._folder / Path(self._kept.state).name).read_bytes()) if self._kept.state else None
        return None

    def _forget(self, but: int) -> None:
        """Remove its files but for so many, the newest."""
        with suppress(OSError):
            while len(self._files) > but:
                (self._folder / Path(self._files[0]).name).unlink(missing_ok=True)
                del self._files[0]
            if not but:
                self._folder.rmdir()

    async def _drop(self) -> None:
        """Close the context, and let another item have its place. Idempotent."""
        context, self._context, self._page = self._context, None, None
        self._consoles.clear()
        for task in self._tasks:
            task.cancel()
        if context is None:
            return
        try:
            with suppress(Exception):  # it may be gone already
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await context.close()
        finally:
            self._pool.slots.release()

    # --- What happens in the meantime

    async def _settle(self) -> None:
        """Wait for a navigation that has begun, then for some time without requests; five seconds at most."""
        await self._activity.quiet(_SETTLE_SECONDS)
        downloads = [task for task in self._tasks if not task.done()]
        if downloads:
            await asyncio.wait(downloads, timeout=_DOWNLOAD_SECONDS)
        if self._page is not None and not self._page.is_closed():
            with suppress(Exception):  # it is told as it is then
                await self._page.wait_for_load_state("domcontentloaded", timeout=_SETTLE_SECONDS * 1000)

    def _refused(self) -> str | None:
        """Why the proxy refused the page that was to be opened."""
        proxy, activity = self._pool.chromium.proxy, self._activity
        if proxy is None or activity.document is None:
            return None
        url, status = activity.document
        return proxy.why_refused(urlsplit(url).hostname or "") if status is None or status in _HOST_FAULTS else None

    def _page_opened(self, page: Page) -> None:
        if self._page is not None:
            self._note("new_tabs", cut(page.url, _MAX_URL))
        self._page = page
        self._consoles.setdefault(page, Console())
        page.on("request", self._requested)
        page.on("dialog", lambda dialog: self._run(self._dismiss(dialog)))
        page.on("download", lambda download: self._run(self._fetch(download)))
        self._run(self._bound_downloads(page))
        page.on("framenavigated", self._navigated)
        page.on("crash", self._has_crashed)
        page.on("close", self._closed)
        pages = page.context.pages
        if len(pages) > _MAX_PAGES:
            self._run(pages[0].close())

    def _navigated(self, frame: Frame) -> None:
        if frame.parent_frame is None and frame.url != "about:blank":
            self._activity.navigated = True
            if console := self._consoles.get(frame.page):
                console.navigated()

    def _requested(self, request: Request) -> None:
        if _is_page(request) and (console := self._consoles.get(request.frame.page)):
            console.loading = True

    def _message(self, message: ConsoleMessage) -> None:
        if message.page is not None:
            self._consoles.setdefault(message.page, Console()).message(message)
            self._close_flooded(message.page)

    def _script_error(self, error: WebError) -> None:
        if error.page is not None:
            self._consoles.setdefault(error.page, Console()).error(error.error, error.page.url)
            self._close_flooded(error.page)

    def _close_flooded(self, page: Page) -> None:
        console = self._consoles[page]
        if console.flooded and not console.closing:
            console.closing = True
            reason = "it wrote too much to its console"
            self._note("closed_pages", {"url": cut(page.url, _MAX_URL), "reason": reason})
            self._run(page.close())

    def _has_crashed(self, page: Page) -> None:
        self._crashed = self._crashed or page is self._page

    def _closed(self, page: Page) -> None:
        self._consoles.pop(page, None)
        if page is self._page and self._context is not None:
            left = [each for each in self._context.pages if each is not page]
            self._page = left[-1] if left else None

    async def _dismiss(self, dialog: Dialog) -> None:
        leaving = dialog.type == "beforeunload"
        if not leaving:
            self._note("dialogs", {"type": dialog.type, "message": cut(dialog.message, 1000), "dismissed": True})
        await (dialog.accept() if leaving else dialog.dismiss())

    async def _bound_downloads(self, page: Page) -> None:
        """Have Chromium end the downloads of a page that grow too large while they come."""
        channel = await page.context.new_cdp_session(page)
        about = (await channel.send("Target.getTargetInfo"))["targetInfo"]

        def progressed(event: dict[str, Any]) -> None:
            too_large = max(event["receivedBytes"], event["totalBytes"]) > _MAX_DOWNLOAD
            if too_large and event["state"] == "inProgress":
                which = {"guid": event["guid"], "browserContextId": about["browserContextId"]}
                self._run(channel.send("Browser.cancelDownload", which))

        channel.on("Page.downloadProgress", progressed)
        await channel.send("Page.enable")

    async def _fetch(self, download: Download) -> None:
        self._coming += 1
        try:
            told = {"file": cut(download.suggested_filename, 200), **await self._fetched(download)}
            self._note("downloads", told)
            if "error" in told:
                await download.cancel()
            await download.delete()
        finally:
            self._coming -= 1

    async def _fetched(self, download: Download) -> dict[str, Any]:
        """What became of a download."""
        if self._coming > _MAX_DOWNLOADS:
            return {"error": f"no more than {_MAX_DOWNLOADS} may come at the same time"}
        try:
            async with asyncio.timeout(_DOWNLOAD_SECONDS):
                return await self._downloaded(download)
        except TimeoutError:
            return {"error": f"it took longer than {_DOWNLOAD_SECONDS:g} seconds"}
        except Exception as error:  # noqa: BLE001 - whatever keeps a file from coming
            return {"error": one_line(str(error), 200)}

    async def _downloaded(self, download: Download) -> dict[str, Any]:
        """Keep a file. Raises ToolError if it is too large."""
        from playwright.async_api import Error  # an extra

        too_large = ToolError(f"it has more than {_MAX_DOWNLOAD:,} bytes")
        try:
            path = await download.path()
        except Error as error:
            raise too_large if "canceled" in str(error) else error from None
        size = path.stat().st_size
        if size > _MAX_DOWNLOAD:
            raise too_large
        data = await asyncio.to_thread(path.read_bytes)
        media_type = _MEDIA_TYPES.get(Path(download.suggested_filename).suffix.lower(), "")
        return {"artifact": await self._pool.artifacts.put(data, media_type), "bytes": size}

    def _note(self, kind: str, event: Json) -> None:
        events = self._events.setdefault(kind, [])
        if len(events) < _MAX_EVENTS:
            events.append(event)

    def _run(self, work: Coroutine[Any, Any, object]) -> None:
        async def quietly() -> None:
            with suppress(Exception):  # the page may be gone meanwhile
                await work

        task = asyncio.ensure_future(quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_EMPTY = dumps({"cookies": [], "origins": []})


class _Activity:
    """The requests of a context since a call began."""

    def __init__(self, quiet: float) -> None:
        self._quiet = quiet
        self._open: set[Request] = set()
        self._last = 0.0
        self.navigated = False
        self.document: tuple[str, int | None] | None = None
        """The address of the last page that was asked for, and the status of its answer if there was one."""

    def begin(self) -> None:
        self._open.clear()
        self._last = asyncio.get_running_loop().time()
        self.navigated = False
        self.document = None

    async def quiet(self, seconds: float) -> None:
        """Wait until there was no request for a while, ``seconds`` at most."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        self._last = max(self._last, loop.time())
        while loop.time() < end and (self._open or loop.time() - self._last < self._quiet):
            await asyncio.sleep(0.05)

    def requested(self, request: Request) -> None:
        if request.resource_type not in _STREAMS:
            self._open.add(request)
            self._last = asyncio.get_running_loop().time()

    def ended(self, request: Request) -> None:
        self._open.discard(request)
        self._last = asyncio.get_running_loop().time()

    def failed(self, request: Request) -> None:
        self.ended(request)
        if _is_page(request):
            self.document = request.url, None

    def answered(self, response: Response) -> None:
        if _is_page(response.request):
            self.document = response.url, response.status


def _is_page(request: Request) -> bool:
    from playwright.async_api import Error  # an extra

    try:
        return request.is_navigation_request() and request.frame.parent_frame is None
    except Error:  # before its page is there, Playwright has no frame of a request
        return request.is_navigation_request()
