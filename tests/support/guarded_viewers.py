"""A trivial application behind the rules of who may talk to the viewer."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web

from manyhands.core.errors import ManyhandsError, RunError, UserError
from manyhands.io.loopback import Address
from manyhands.view.access import Access
from tests.support.view_servers import Answer, ask

SECRET = "what only the owner may see"
STATIC = "x = 'what a script holds'"


class Viewer:
    """A trivial application behind the rules, served at ``address``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seconds = 1e9
        self.reached: list[str] = []
        """Paths of the requests that got to a handler."""
        self.address = Address("", 0)
        self.access: Access

    def application(self, address: Address) -> web.Application:
        self.address = address
        self.access = Access(self.folder / "cache", host=address.host, port=address.port, now=lambda: self.seconds)
        application = web.Application()
        self.access.protect(application)
        (self.folder / "static").mkdir(exist_ok=True)
        (self.folder / "static" / "own.js").write_text(STATIC)
        application.router.add_static("/static/", self.folder / "static")
        application.router.add_get("/fail/{how}", fail)
        application.router.add_get("/events", self._events)
        application.router.add_get("/item/{key}", self._show)
        application.router.add_get("/", self._show)
        return application

    def enter(self, target: str = "/", host: str | None = None) -> Answer:
        """Open a fresh link to ``target``."""
        parts = urlsplit(self.access.link(f"http://{self.address.in_url}:{self.address.port}{target}"))
        return ask(self.address, f"{parts.path}?{parts.query}", host=host)

    def cookie(self) -> str:
        """A header line with a valid cookie."""
        return cookie_of(self.enter())

    def ask(self, target: str = "/", *headers: str, method: str = "GET", host: str | None = None) -> Answer:
        return ask(self.address, target, *headers, method=method, host=host)

    async def _show(self, request: web.Request) -> web.Response:
        self.reached.append(request.path)
        return web.json_response({"said": SECRET, "key": request.match_info.get("key"), "query": dict(request.query)})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        self.reached.append(request.path)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(f"data: {SECRET}\n\n".encode())
        return response


def cookie_of(answer: Answer) -> str:
    return "Cookie: " + (answer.header("set-cookie") or "").partition(";")[0]


async def fail(request: web.Request) -> web.Response:
    errors: dict[str, Exception] = {
        "user": UserError("<b>no</b> such\nrun"),
        "run": RunError("of a later version"),
        "other": ManyhandsError("the disk is full"),
        "late": TimeoutError(),
        "bug": ValueError("inner detail"),
        "gone": web.HTTPNotFound(text="no item \x1b[1m<i>"),
        "plain": web.HTTPNotFound(),
    }
    raise errors[request.match_info["how"]]
