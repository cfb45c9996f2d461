"""The tools that steer a browser."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from manyhands.core.errors import ToolError
from manyhands.core.jsonio import dumps
from manyhands.core.text import cut, one_line, shorten
from manyhands.tools.protocol import ToolEnvironment, ToolResult
from manyhands.tools.registry import tool
from manyhands.tools.services.browser.session import NAVIGATION_SECONDS, Needs, Session
from manyhands.tools.services.browser.snapshot import MAX_CHARACTERS, compact, part_of, read_ref

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page, Response

QUEUE = "browser"
"""Calls of one turn are made one after the other."""
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):(?![0-9])")
_BLOCKED_TITLES = re.compile(
    r"just a moment|access denied|attention required|are you (a )?(human|robot)|captcha|security check|bot detection",
    re.I,
)
_EXPRESSION_SECONDS = 5.0
_STOPPED = f"the expression was stopped after {_EXPRESSION_SECONDS:g} seconds"
_IMAGES = """[...document.images].filter(i => !i.src.startsWith('data:')).slice(0, 200).map(
  i => ({src: i.src.slice(0, 2000), alt: i.alt.slice(0, 500), width: i.naturalWidth, height: i.naturalHeight}))"""
_SCROLL = """{ const share = %s, page = document.scrollingElement; scrollBy(0, innerHeight * share);
  share < 0 ? scrollY <= 0 : scrollY + innerHeight >= (page ? page.scrollHeight : 0) - 1; }"""
_SCROLLED_SHARE = 0.8
Ref = Annotated[str, "The element's ref in the snapshot, such as e5.", Field(min_length=1, max_length=50)]


def restore(arguments: dict[str, Any], result: ToolResult, environment: ToolEnvironment) -> None:
    """As of ``Tool``, for all tools of the browser."""
    if result.kept is not None and environment.services is not None:  # a finished run is replayed without any
        Session.of(environment).restore(result.kept)


async def _gone_to(page: Page, address: str) -> Response | None:
    """Behind an address that can't be opened, Chromium goes to its error page, which would get in the way of what is opened next."""
    from playwright.async_api import Error  # an extra

    try:
        return await page.goto(address, wait_until="domcontentloaded", timeout=NAVIGATION_SECONDS * 1000)
    except Error as error:
        if "net::ERR_" in str(error) and "ERR_ABORTED" not in str(error):
            with suppress(Error):
                await page.wait_for_url("chrome-error://**", wait_until="commit", timeout=1000)
        raise


@tool(changes_world=False, restore=restore, queue=QUEUE)
async def browser_navigate(
    environment: ToolEnvironment,
    url: Annotated[str, "An address of the web, http or https.", Field(min_length=1, max_length=8000)],
) -> ToolResult:
    """Open a page in the browser. This must come before all other browser tools. For mere facts prefer web_search and web_extract, which
    are quicker; use the browser for what takes clicks and forms, or where these fail."""
    address = _address(url)
    session = Session.of(environment)

    async def work(page: Page) -> dict[str, Any]:
        from playwright.async_api import Error  # an extra

        try:
            answer = await _gone_to(page, address)
        except Error as error:
            if "Download is starting" not in str(error) and "ERR_ABORTED" not in str(error):
                raise
            answer = None
        told: dict[str, Any] = {} if answer is None else {"status": answer.status}
        if _BLOCKED_TITLES.search(await session.title()):
            told["bot_detection_warning"] = "the page seems to be one that keeps programs out"
        return told

    return await session.call(environment, work, needs=Needs.NOTHING, seconds=NAVIGATION_SECONDS + 10)


@tool(changes_world=False, restore=restore, queue=QUEUE)
async def browser_snapshot(
    environment: ToolEnvironment,
    full: Annotated[bool, "Everything on the page; otherwise only what can be acted on, headings and texts."] = False,
    offset: Annotated[int, "Line to begin at, for a snapshot that was cut.", Field(ge=0)] = 0,
) -> ToolResult:
    """Get the page as a tree in text, with a ref for each element that can be acted on, such as [ref=e5]. Refs are valid until the page
    changes. At most 8,000 characters are returned at once; next_offset then says where to go on."""

    session = Session.of(environment)

    async def work(page: Page) -> dict[str, Any]:
        tree = await page.aria_snapshot(mode="ai", timeout=10_000)
        part = part_of(tree if full else compact(tree), offset=offset, max_characters=MAX_CHARACTERS)
        more = {"lines_left": part.left, "next_offset": part.following} if part.left else {}
        about = {"url": cut(page.url, 4000), "title": await session.title()}
        return {"snapshot": part.text, "element_count": part.elements, **about, **more}

    return await session.call(environment, work, needs=Needs.PAGE, acts=False)


@tool(changes_world=False, restore=restore, queue=QUEUE)
async def browser_click(environment: ToolEnvironment, ref: Ref) -> ToolResult:
    """Click an element of the last snapshot. What follows from it is in the result: a new page, a dialog (which is dismissed), a download,
    a new tab (which is then the page)."""
    wanted = read_ref(ref)

    async def work(page: Page) -> dict[str, Any]:
        await (await _element(page, wanted)).click()
        return {"clicked": wanted}

    return await Session.of(environment).call(environment, work, needs=Needs.ELEMENTS)


@tool(changes_world=False, restore=restore, queue=QUEUE)
async def browser_type(
    environment: ToolEnvironment,
    ref: Ref,
    text: Annotated[str, "What to write; in a list of choices, the one to choose.", Field(max_length=100_000)],
) -> ToolResult:
    """Write text into a field of the last snapshot, in place of what is in it. Press Enter with browser_press to send it."""
    wanted = read_ref(ref)

    async def work(page: Page) -> dict[str, Any]:
        element = await _element(page, wanted)
        if await element.evaluate("element => element.tagName") == "SELECT":
            await element.select_option(label=text)
        else:
            await element.fill(text)
        return {"typed": cut(text, 200), "element": wanted}

    return await Session.of(environment).call(environment, work, needs=Needs.ELEMENTS, acts=False)


@tool(changes_world=False, restore=restore, queue=QUEUE)
async def browser_scroll(
    environment: ToolEnvironment, direction: Annotated[Literal["up", "down"], "Where to."]
) -> ToolResult:
    """Scroll the page by most of what is visible, so that it loads what it loads only then. A snapshot has the whole page without that."""

    session = Session.of(environment)
    share = _SCROLLED_SHARE if direction == "down" else -_SCROLLED_SHARE

    async def work(page: Page) -> dict[str, Any]:
        return {"scrolled": direction, "at_end": await session.seen(_SCROLL % share)}

    return await session.call(environment, work, needs=Needs.PAGE)


@tool(changes_world=False, restore=restore, queue=QUEUE)
async def browser_back(environment: ToolEnvironment) -> ToolResult:
    """Go back to the page before. In a new tab without one, close it and go back to the tab that opened it."""
    session = Session.of(environment)

    async def work(page: Page) -> dict[str, Any]:
        if await session.back() is None:
            raise ToolError("there is no page to go back to")
        return {}

    return await session.call(environment, work, needs=Needs.PAGE)


@tool(changes_world=False, restore=restore, queue=QUEUE)
async def browser_press(
    environment: ToolEnvironment,
    key: Annotated[str, "Enter, Tab, Escape, ArrowDown, Control+a, …", Field(min_length=1, max_length=50)],
) -> ToolResult:
    """Press a key in the page: it goes to the element that was clicked or written to last."""

    async def work(page: Page) -> dict[str, Any]:
        await page.keyboard.press(key)
        return {"pressed": key}

    return await Session.of(environment).call(environment, work, needs=Needs.ELEMENTS)


@tool(changes_world=False, restore=restore, queue=QUEUE)
async def browser_get_images(environment: ToolEnvironment) -> ToolResult:
    """List the images of the page, with their addresses, alternative texts and sizes in pixels."""

    session = Session.of(environment)

    async def work(page: Page) -> dict[str, Any]:
        images = await session.seen(_IMAGES)
        return {"images": images, "count": len(images)}

    return await session.call(environment, work, needs=Needs.PAGE, acts=False)


@tool(changes_world=False, restore=restore, queue=QUEUE)
async def browser_console(
    environment: ToolEnvironment,
    clear: Annotated[bool, "Forget the messages after this."] = False,
    expression: Annotated[
        str | None, "JavaScript to evaluate in the page; its value is in the result.", Field(max_length=50_000)
    ] = None,
) -> ToolResult:
    """Get what the page wrote to its console, and its uncaught errors; or evaluate an expression in it, for 5 seconds at most."""

    session = Session.of(environment)

    async def work(page: Page) -> dict[str, Any]:
        told = {} if expression is None else {"result": await _evaluated(page, expression)}
        console = session.console(page)
        told |= console.to_json()
        if clear:
            console.clear()
        return told

    return await session.call(environment, work, needs=Needs.PAGE, acts=expression is not None)


@tool(changes_world=False, restore=restore, queue=QUEUE)
async def browser_close(environment: ToolEnvironment) -> ToolResult:
    """Close the browser, with its cookies. It is closed by itself when you have finished."""
    session = Session.of(environment)
    was_open = await session.close()
    warning = {} if was_open else {"warning": "no browser was open"}
    return ToolResult({"success": True, "closed": True, **warning}, kept=session.kept)


BROWSER_TOOLS = (
    browser_navigate,
    browser_snapshot,
    browser_click,
    browser_type,
    browser_scroll,
    browser_back,
    browser_press,
    browser_get_images,
    browser_console,
    browser_close,
)


def _address(text: str) -> str:
    """The address that a model meant. Raises ToolError for what is none of the web."""
    text = text.strip()
    if text == "about:blank":
        return text
    scheme = _SCHEME.match(text)
    if scheme is None:
        return f"https://{text.removeprefix('//')}"
    if scheme[1].lower() not in ("http", "https"):
        raise ToolError(f"{scheme[1]}: can't be opened; give an address with http or https")
    return text


async def _element(page: Page, ref: str) -> Locator:
    found = page.locator(f"aria-ref={ref}")
    if await found.count() == 0:
        raise ToolError(f"there is no element {ref} on this page now; take a snapshot")
    return found


async def _evaluated(page: Page, expression: str) -> Any:
    """The value of an expression, as JSON, or what it is where it has none. Chromium itself stops a script that does not end."""
    from playwright.async_api import Error  # an extra

    how = {"expression": expression, "awaitPromise": True, "returnByValue": True, "userGesture": True}
    loop = asyncio.get_running_loop()
    end = loop.time() + _EXPRESSION_SECONDS
    channel = await page.context.new_cdp_session(page)
    try:
        async with asyncio.timeout(_EXPRESSION_SECONDS + 1):
            answer = await channel.send("Runtime.evaluate", {**how, "timeout": _EXPRESSION_SECONDS * 1000})
    except TimeoutError:
        raise ToolError(_STOPPED) from None
    except Error:
        if loop.time() < end:
            raise
        raise ToolError(_STOPPED) from None
    finally:
        with suppress(Exception):  # a page that has gone meanwhile
            await channel.detach()
    if fault := answer.get("exceptionDetails"):
        said = str(fault.get("exception", {}).get("description") or fault.get("text") or "an error")
        raise ToolError(_STOPPED if "terminated" in said else f"the expression failed: {one_line(said, 500)}")
    value = answer["result"].get("value", answer["result"].get("description"))
    text = dumps(value).decode("utf-8", "replace")
    return value if len(text) <= MAX_CHARACTERS else shorten(text, MAX_CHARACTERS)
