"""A small web on this machine, and stand-ins for the services that search it and read it.

The services answer in the shapes of their documentation, and say nothing about the real ones. They count what they are asked.
"""

from __future__ import annotations

import asyncio
import gzip
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Self

from aiohttp import web

from manyhands.core.jsonio import Json

KEYS = {
    "firecrawl": "fc-0123456789abcdef",
    "exa": "exa-0123456789abcdef",
    "tavily": "tvly-0123456789abcdef",
    "brave": "BSA0123456789abcdef",
}
CLOSED = [
    "http://127.0.0.1:{port}/",
    "http://127.1.2.3:{port}/",
    "http://localhost:{port}/",
    "http://[::1]:{port}/",
    "http://[::ffff:127.0.0.1]:{port}/",
    "http://[::ffff:7f00:1]:{port}/",
    "http://[::127.0.0.1]:{port}/",
    "http://[64:ff9b::7f00:1]:{port}/",
    "http://[2002:7f00:1::]:{port}/",
    "http://[fe80::1]/",
    "http://[fe80::1%25lo]/",
    "http://[fd00:ec2::254]/",
    "http://0.0.0.0:{port}/",
    "http://10.0.0.1/",
    "http://172.16.0.1/",
    "http://192.168.1.1/",
    "http://100.64.0.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://168.63.129.16/",
    "http://2130706433:{port}/",
    "http://0x7f000001:{port}/",
    "http://0177.0.0.1:{port}/",
    "http://127.1:{port}/",
    "http://127.0.0.1.:{port}/",
    "http://①②⑦.0.0.1:{port}/",
    "http://inside.example:{port}/",
    "http://both.example:{port}/../",
    "http://metadata.example/",
    "http://public.example@127.0.0.1:{port}/",
    "http://user:word@public.example/",
    "file:///etc/passwd",
    "ftp://127.0.0.1:{port}/",
    "gopher://127.0.0.1:{port}/_GET",
    "javascript:alert(1)",
    "//127.0.0.1:{port}/",
    "http://",
    "http://127.0.0.1\\@public.example:{port}/",
    "http://unknown.example/",
    "http://public.example:0/",
    "http://{long}/",
]
"""Addresses that no tool reaches, most of them of a site on this machine: its port goes in for ``port``, and many letters for ``long``."""
PAGE = """<!doctype html><html><head><title>{title}</title><script>var menu = 1;</script></head><body>
<nav><a href="/">Home</a> <a href="/about">About</a></nav><main><article><h1>{title}</h1><p>{text}</p>
<p>It was written by hand, <a href="/more">and there is more</a> of it in this sentence, which is long enough to count.</p>
<table><tr><th>Year</th><th>Sales</th></tr><tr><td>2024</td><td>17</td></tr></table></article></main><footer>Imprint</footer></body></html>"""


def page(title: str, text: str) -> str:
    """A page with a menu, an article and a footer."""
    return PAGE.format(title=title, text=text)


def pdf(*texts: str) -> bytes:
    """A PDF with a page for each text."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>"]
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(texts)))
    objects += [
        f"<< /Type /Pages /Kids [{kids}] /Count {len(texts)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(texts):
        drawing = f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET"
        resources = "/Resources << /Font << /F1 3 0 R >> >>"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R {resources} /MediaBox [0 0 600 800] /Contents {5 + 2 * number} 0 R >>"
        )
        objects.append(f"<< /Length {len(drawing)} >>\nstream\n{drawing}\nendstream")
    data, places = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        places.append(len(data))
        data += f"{number} 0 obj\n{each}\nendobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    end = (
        f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\n"
    )
    return data + f"{end}startxref\n{len(data)}\n%%EOF\n".encode()


class _Server:
    """A server on a free port of the loopback. ``counts``: requests by what they ask for."""

    def __init__(self, port: int = 0) -> None:
        self.counts: Counter[str] = Counter()
        self.port = port
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        raise NotImplementedError


class LocalSite(_Server):
    """A web site: pages by path (with their query), each an answer, text, or bytes. Some paths are made to cause trouble."""

    def __init__(self, pages: Mapping[str, web.Response | str | bytes] | None = None) -> None:
        super().__init__()
        self.pages: dict[str, web.Response | str | bytes] = dict(pages or {})
        self.agents: set[str] = set()
        self.cookies: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.counts[request.path_qs] += 1
        self.agents.add(request.headers.get("User-Agent", ""))
        self.cookies += request.headers.getall("Cookie", [])
        trouble = getattr(self, f"_{request.path[1:].replace('-', '_')}", None)
        if request.path_qs in self.pages:
            return _response(self.pages[request.path_qs])
        if trouble is not None and request.path[1:] in TROUBLES:
            made: web.StreamResponse = await trouble(request)
            return made
        return web.Response(status=404, text="not here")

    async def _slow(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(200):
            await response.write(b"a")
            await asyncio.sleep(0.05)
        return response

    async def _endless(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        while True:
            await response.write(b"a" * 65536)

    async def _short(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b"only this")
        assert request.transport is not None
        request.transport.close()
        return response

    async def _bomb(self, request: web.Request) -> web.StreamResponse:
        return web.Response(
            body=gzip.compress(bytes(50 << 20)), headers={"Content-Encoding": "gzip", "Content-Type": "text/html"}
        )

    async def _cookie(self, request: web.Request) -> web.StreamResponse:
        response = web.Response(status=302, headers={"Location": "/article"})
        response.set_cookie("session", "1")
        return response

    async def _loop(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": f"/loop?n={int(request.query.get('n', 0)) + 1}"})

    async def _garbage(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(b"\0\1\2 what is this\r\n\r\n")
        request.transport.close()
        return web.Response()


TROUBLES = ("slow", "endless", "short", "bomb", "cookie", "loop", "garbage")


def _response(found: web.Response | str | bytes) -> web.Response:
    if isinstance(found, web.Response):
        return web.Response(status=found.status, body=found.body, headers=found.headers)
    if isinstance(found, bytes):
        return web.Response(body=found, content_type="application/pdf")
    return web.Response(text=found, content_type="text/html")


class FakeServices(_Server):
    """All five services at one address, each below its own name. ``results``: what a search finds: title, address, description;
    ``texts``: what pages hold, by address. A ``*`` in a result
    is what was searched for, and as an address it is all others. ``faults``: answers (status, headers, body) that come first, by service.

    ``counts``: requests by service and what was requested, ``exa/search``; ``seen``: queries and addresses in their order.
    ``pause``: seconds before each answer.
    """

    def __init__(
        self, results: list[tuple[str, str, str]] | None = None, texts: Mapping[str, str] | None = None, port: int = 0
    ) -> None:
        super().__init__(port)
        self.results = results or []
        self.texts = dict(texts or {})
        self.faults: dict[str, list[tuple[int, dict[str, str], bytes]]] = {}
        self.seen: list[str] = []
        self.pause = 0.0

    def environ(self, *names: str) -> dict[str, str]:
        """The variables that lead to these services."""
        found = {f"{name.upper()}_API_KEY": KEYS[name] for name in names if name in KEYS}
        addresses = {"searxng": "SEARXNG_URL"}
        return found | {addresses.get(name, f"{name.upper()}_API_URL"): f"{self.url}/{name}" for name in names}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        name, _, path = request.path[1:].partition("/")
        operation = "search" if path.endswith("search") else "extract"
        self.counts[f"{name}/{operation}"] += 1
        if self.faults.get(name):
            status, headers, body = self.faults[name].pop(0)
            return web.Response(status=status, headers=headers, body=body)
        if not _authorized(name, request):
            return web.json_response({"error": "Unauthorized: invalid API key"}, status=401)
        await asyncio.sleep(self.pause)
        body = await request.json() if request.method == "POST" else {}
        asked = _ANSWERS[f"{name}/{path}"](self, request, body)
        return web.json_response(asked)

    def found(self, query: str, limit: int) -> list[dict[str, Any]]:
        self.seen.append(query)
        subject = "-".join(query.split())
        named = ([text.replace("*", subject) for text in result] for result in self.results[:limit])
        return [{"title": title, "url": url, "said": said} for title, url, said in named]

    def text(self, url: str) -> str | None:
        self.seen.append(url)
        return self.texts.get(url, self.texts.get("*"))


def _authorized(name: str, request: web.Request) -> bool:
    headers = request.headers
    given = {
        "firecrawl": headers.get("Authorization", "").removeprefix("Bearer "),
        "exa": headers.get("x-api-key"),
        "tavily": headers.get("Authorization", "").removeprefix("Bearer "),
        "brave": headers.get("X-Subscription-Token"),
    }
    return name == "searxng" or given[name] == KEYS[name]


def _renamed(hits: list[dict[str, Any]], description: str) -> list[Json]:
    return [{"title": hit["title"], "url": hit["url"], description: hit["said"]} for hit in hits]


def _firecrawl_scrape(fakes: FakeServices, request: web.Request, body: Any) -> Json:
    text = fakes.text(body["url"])
    about = {"title": "A page", "sourceURL": body["url"], "statusCode": 200 if text is not None else 404}
    return {"success": True, "data": {"markdown": text or "", "metadata": about}}


def _exa_contents(fakes: FakeServices, request: web.Request, body: Any) -> Json:
    texts = [(url, fakes.text(url)) for url in body["urls"]]
    results = [{"title": "A page", "url": url, "text": text} for url, text in texts if text is not None]
    return {"results": results, "costDollars": {"total": 0.001}}


def _tavily_extract(fakes: FakeServices, request: web.Request, body: Any) -> Json:
    texts = [(url, fakes.text(url)) for url in body["urls"]]
    return {
        "results": [{"url": url, "raw_content": text} for url, text in texts if text is not None],
        "failed_results": [{"url": url, "error": "no such page"} for url, text in texts if text is None],
    }


def _exa_search(fakes: FakeServices, request: web.Request, body: Any) -> Json:
    hits = _renamed(fakes.found(body["query"], body["numResults"]), "highlight")
    return {"results": [{**hit, "highlights": [hit.pop("highlight")]} for hit in hits], "costDollars": {"total": 0.005}}


_ANSWERS: Mapping[str, Callable[[FakeServices, web.Request, Any], Json]] = {
    "firecrawl/v2/search": lambda fakes, request, body: {
        "success": True,
        "data": {"web": _renamed(fakes.found(body["query"], body["limit"]), "description")},
    },
    "firecrawl/v2/scrape": _firecrawl_scrape,
    "exa/search": _exa_search,
    "exa/contents": _exa_contents,
    "tavily/search": lambda fakes, request, body: {
        "results": _renamed(fakes.found(body["query"], body["max_results"]), "content")
    },
    "tavily/extract": _tavily_extract,
    "brave/res/v1/web/search": lambda fakes, request, body: {
        "web": {"results": _renamed(fakes.found(request.query["q"], int(request.query["count"])), "description")}
    },
    "searxng/search": lambda fakes, request, body: {
        "results": _renamed(fakes.found(request.query["q"], 20), "content")
    },
}
