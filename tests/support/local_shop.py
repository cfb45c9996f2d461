"""A shop on this machine for tests of browsers: goods, a login, a cart for each customer, and pages with all that a page may do."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from aiohttp import web

_HEAD = "<html><head><title>{title}</title></head><body><nav><a href='/'>Home</a> <a href='/cart'>Cart</a></nav>"
_TRICKS = {
    "dialog": "<p id=out>asked nothing</p><button onclick=\"out.textContent = 'said ' + confirm('Really?')\">Ask</button>",
    "tab": "<a href='/goods/7' target=_blank>Open lamp 7</a>",
    "moving": "<script>history.replaceState(null, '', location.pathname + '?' + Math.random())</script><p>Where is it?</p>",
    "frame": "<iframe src='/goods/3'></iframe>",
    "console": "<script>console.log('hello', 5); setTimeout(() => { throw new Error('broken') })</script><p>noisy</p>",
    "false": "<script>Math.round = () => 'x'; Array.prototype.map = () => 5; String.prototype.slice = () => 'false'; "
    "document.title = 'T'.repeat(1e6); for (const name of ['innerHeight', 'scrollY']) window[name] = {}</script>"
    "<form name=scrollingElement><input name=scrollHeight></form><img src='/lamp.png' alt='A lamp'>",
    "noise": "<p>quiet</p><script>setTimeout(() => setInterval(() => console.log('x'.repeat(1e6)), 5), 200)</script>",
    "files": "<a href='/endless'>All lamps</a><button onclick='for (let i = 0; i < 5; i++) { const a = document.createElement("
    '"a"); a.href = "/endless?" + i; a.download = ""; a.click() }\'>Each lamp</button>',
    "images": "<img src='/lamp.png' alt='A lamp'><img src='data:image/gif;base64,R0lGODlhAQABAAAAACw=' alt='dot'>",
    "file": "<a href='/price-list.txt'>Price list</a>",
    "stuck": "<button onclick='for (;;) { alert(1) }'>Stick</button>",
    "covered": "<button>Below</button><div style='position:fixed;inset:0;background:white'>Cover</div>",
    "long": "".join(f"<p>Line {number} of a page that is long</p>" for number in range(600)),
    "form": "<label>Colour <select><option>red<option>blue</select></label><label>Name <input name=name></label>"
    "<p id=typed></p><script>document.querySelector('input').onkeydown = e => { if (e.key == 'Enter') typed.textContent = "
    "'got ' + e.target.value + ' in ' + document.querySelector('select').value }</script>",
}


@dataclass
class Shop:
    """``hits``: requests by path; ``carts``: numbers of goods by customer; ``proofs``: passwords that were given to ``/locked/STATUS``."""

    url: str = ""
    hits: Counter[str] = field(default_factory=Counter)
    carts: dict[str, list[str]] = field(default_factory=dict)
    proofs: list[str] = field(default_factory=list)

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._counted])
        app.add_routes(
            [
                web.get("/", self._home),
                web.get("/login", self._login_form),
                web.post("/login", self._login),
                web.get("/goods/{number}", self._goods),
                web.post("/cart/{number}", self._add),
                web.get("/cart", self._cart),
                web.get("/price-list.txt", self._file),
                web.get("/endless", self._endless),
                web.get("/to", self._redirect),
                web.get("/tricks/{name}", self._trick),
                web.get("/slow", self._slow),
                web.get("/echo", self._echo),
                web.get("/locked/{status}", self._locked),
            ]
        )
        return app

    @web.middleware
    async def _counted(self, request: web.Request, handler: object) -> web.StreamResponse:
        self.hits[request.path] += 1
        return await handler(request)  # type: ignore[operator, no-any-return]

    async def _home(self, request: web.Request) -> web.Response:
        goods = "".join(
            f"<li><a href='/goods/{number}'>Lamp {number}</a> costs {number * 10}</li>" for number in range(1, 9)
        )
        return _page("Lamps", f"<h1>Lamps</h1><ul>{goods}</ul><a href='/login'>Log in</a>")

    async def _login_form(self, request: web.Request) -> web.Response:
        return _page(
            "Log in",
            "<form method=post><label>Name <input name=name></label><label>Password <input name=password type=password>"
            "</label><button>Log in</button></form>",
        )

    async def _login(self, request: web.Request) -> web.Response:
        form = await request.post()
        if form["password"] != "light":
            return _page("Log in", "<p>Wrong password</p>")
        answer = web.Response(status=303, headers={"Location": "/cart"})
        answer.set_cookie("customer", str(form["name"]), httponly=True)
        return answer

    async def _goods(self, request: web.Request) -> web.Response:
        number = request.match_info["number"]
        button = f"<form method=post action='/cart/{number}'><button>Buy lamp {number}</button></form>"
        return _page(f"Lamp {number}", f"<h1>Lamp {number}</h1><p>Very bright</p>{button}")

    async def _add(self, request: web.Request) -> web.Response:
        customer = request.cookies.get("customer")
        if customer is None:
            return web.Response(status=303, headers={"Location": "/login"})
        self.carts.setdefault(customer, []).append(request.match_info["number"])
        return web.Response(status=303, headers={"Location": "/cart"})

    async def _cart(self, request: web.Request) -> web.Response:
        customer = request.cookies.get("customer")
        goods = ", ".join(f"lamp {number}" for number in self.carts.get(customer or "", []))
        return _page("Cart", f"<h1>Cart of {customer or 'nobody'}</h1><p>In it: {goods or 'nothing'}</p>")

    async def _file(self, request: web.Request) -> web.Response:
        return web.Response(text="lamp 1: 10\n", headers={"Content-Disposition": "attachment; filename=price-list.txt"})

    async def _endless(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Disposition": "attachment; filename=lamps.bin"})
        await answer.prepare(request)
        while True:
            await answer.write(bytes(1 << 20))
            await asyncio.sleep(0.01)

    async def _redirect(self, request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": request.query["url"]})

    async def _trick(self, request: web.Request) -> web.Response:
        return _page(request.match_info["name"], _TRICKS[request.match_info["name"]])

    async def _echo(self, request: web.Request) -> web.WebSocketResponse:
        channel = web.WebSocketResponse()
        await channel.prepare(request)
        async for message in channel:
            await channel.send_str(f"you said {message.data}")
        return channel

    async def _locked(self, request: web.Request) -> web.Response:
        self.proofs += [value for name, value in request.headers.items() if name.lower().endswith("authorization")]
        asked = dict.fromkeys(("WWW-Authenticate", "Proxy-Authenticate"), 'Basic realm="manyhands"')
        return web.Response(status=int(request.match_info["status"]), headers=asked, text="Who are you?")

    async def _slow(self, request: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return _page("Slow", "at last")


def _page(title: str, body: str) -> web.Response:
    return web.Response(text=_HEAD.format(title=title) + body + "</body></html>", content_type="text/html")


@asynccontextmanager
async def local_shop(address: str = "127.0.0.1") -> AsyncIterator[Shop]:
    """The shop on a free port."""
    shop = Shop()
    runner = web.AppRunner(shop.app(), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, address, 0)
    await site.start()
    shop.url = f"http://{address}:{runner.addresses[0][1]}"
    try:
        yield shop
    finally:
        await runner.cleanup()


@contextmanager
def shop_in_thread() -> Iterator[Shop]:
    """The shop for tests that are no coroutines."""
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    shops: list[Shop] = []

    async def serve() -> None:
        async with local_shop() as shop:
            shops.append(shop)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield shops[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
