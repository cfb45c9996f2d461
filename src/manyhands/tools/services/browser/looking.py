"""Looking at a page: a screenshot of it, judged by a model that sees."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from manyhands.tools.protocol import ToolEnvironment, ToolResult
from manyhands.tools.registry import tool
from manyhands.tools.services.browser.session import Needs, Session
from manyhands.tools.services.browser.snapshot import Place, places
from manyhands.tools.services.browser.tools import QUEUE, restore
from manyhands.tools.services.vision import Vision

if TYPE_CHECKING:
    from playwright.async_api import Page

_MAX_LABELS = 200
_SECONDS = 300.0
_DRAW = """labels => { const layer = document.createElement('div'); layer.id = 'manyhands-labels';
  layer.style.cssText = 'position:fixed;inset:0;z-index:2147483647;pointer-events:none';
  for (const [ref, [x, y, width, height]] of labels) { const mark = document.createElement('div');
    mark.style.cssText = `position:absolute;left:${x}px;top:${y}px;width:${width}px;height:${height}px;outline:2px solid red`;
    const text = document.createElement('span'); text.textContent = `[${ref.slice(1)}]`;
    text.style.cssText = 'position:absolute;left:0;top:0;font:bold 12px sans-serif;color:white;background:red';
    mark.append(text); layer.append(mark) }
  document.documentElement.append(layer) }"""
_ERASE = "() => document.getElementById('manyhands-labels')?.remove()"


@tool(changes_world=False, restore=restore, queue=QUEUE)
async def browser_vision(
    environment: ToolEnvironment,
    question: Annotated[str, "What to find out about how the page looks.", Field(min_length=1)],
    annotate: Annotated[bool, "Draw [5] at the element whose ref is e5, and so on."] = False,
    full_page: Annotated[bool, "The whole page, not only what is visible of it without scrolling."] = False,
) -> ToolResult:
    """Take a screenshot of the page, and have a model that sees answer a question about it. Use it for what a snapshot can't tell, such as
    charts and layout. It costs a call of that model."""
    vision, steps, session = environment.service(Vision), environment.own_steps, Session.of(environment)

    async def work(page: Page) -> dict[str, Any]:
        async def shot() -> tuple[bytes, dict[str, Any]]:
            labels = await _labels(page) if annotate else []
            await page.evaluate(_DRAW, [[each.ref, each.box] for each in labels])
            try:
                data = await page.screenshot(full_page=full_page, timeout=20_000)
            finally:
                await page.evaluate(_ERASE)
            return data, {"labels": [{"ref": each.ref, "name": each.name} for each in labels]}

        until = environment.clock.monotonic() + min(environment.timeout, _SECONDS)
        request = {"screenshot": "page", "full_page": full_page, "annotate": annotate}
        seen = await vision.look(steps, session.artifacts, request, shot)
        labels = seen.pop("labels")
        answer = await vision.ask(steps, seen["artifact"], question, until - environment.clock.monotonic())
        return {"analysis": answer, "screenshot": seen, **({"annotations": labels} if annotate else {})}

    needs = Needs.RECORD if steps.replaying else Needs.PAGE
    return await session.call(environment, work, needs=needs, seconds=_SECONDS, acts=False)


async def _labels(page: Page) -> list[Place]:
    """The visible elements of the page itself that can be acted on."""
    tree = await page.aria_snapshot(mode="ai", boxes=True, timeout=10_000)
    return list(islice(places(tree), _MAX_LABELS))
