"""Reading pages directly: what is read, what is not, and how a host is treated."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import pytest
from aiohttp import web

from manyhands.core.errors import ToolError
from manyhands.network.rules import NetworkRules
from manyhands.tools.services.courtesy import USER_AGENT, Courtesy
from manyhands.tools.services.steps import ServiceError
from manyhands.tools.services.web.fetching import DirectFetcher, Fetched
from manyhands.tools.services.web.reading import Document, decoded, read_file
from tests.support.local_web import LocalNames, served
from tests.support.web_fakes import CLOSED, LocalSite, page, pdf

LONG = "The mill has ground corn since 1712, and its wheel still turns on Sundays for visitors who come by."
NAMES = LocalNames({"site.example": [["127.0.0.1"]], "changing.example": [["1.1.1.1"], ["127.0.0.1"]]})


@pytest.fixture
async def site() -> AsyncIterator[LocalSite]:
    async with LocalSite({"/article": page("The mill", LONG)}) as server:
        yield server


async def fetched(address: str, *, robots: bool = False, seconds: float = 20.0) -> Fetched:
    fetcher = DirectFetcher(
        NetworkRules.web(private=True),
        ignore_robots=not robots,
        look_up=NAMES.look_up,
        courtesy=Courtesy(0),
        seconds=seconds,
    )
    try:
        return await fetcher.fetch(address)
    finally:
        await fetcher.close()


async def text_of(address: str) -> Document:
    return await read_file(await fetched(address))


async def test_a_page_is_read_without_its_menu(site: LocalSite) -> None:
    document = await text_of(f"{site.url}/article#part")
    assert (document.title, document.media_type, document.cut) == ("The mill", "text/html", False)
    assert LONG in document.text
    assert "| 2024 | 17 |" in document.text
    assert "[and there is more]" in document.text
    assert "Imprint" not in document.text
    assert "menu" not in document.text
    assert site.agents == {USER_AGENT}


async def test_a_page_without_an_article_is_read_whole(site: LocalSite) -> None:
    site.pages["/links"] = "<html><body><script>x=1</script><button><a href='/a'>One</a></button></body></html>"
    assert (await text_of(f"{site.url}/links")).text == f"[One]({site.url}/a)"


async def test_pdf_text_and_json_are_read(site: LocalSite) -> None:
    site.pages["/report"] = pdf("First page", "Second page")
    site.pages["/data"] = web.Response(text='{"a": 1}', content_type="application/json")
    site.pages["/notes"] = web.Response(body="naïve".encode(), content_type="application/octet-stream")
    report = await text_of(f"{site.url}/report")
    assert (report.text, report.media_type) == ("First page\n\nSecond page", "application/pdf")
    assert (await text_of(f"{site.url}/data")).text == '{"a": 1}'
    assert (await text_of(f"{site.url}/notes")).text == "naïve"


@pytest.mark.parametrize(
    ("content", "charset", "text"),
    [
        ("Größe".encode(), None, "Größe"),
        ("Größe".encode("latin-1"), "iso-8859-1", "Größe"),
        ("Größe".encode("latin-1"), "utf-8", "Größe"),
        ("Größe".encode(), "no-such-charset", "Größe"),
        ("Größe".encode("utf-16"), "utf-8", "Größe"),
        (b"\xef\xbb\xbfGr\xc3\xb6\xc3\x9fe", None, "Größe"),
        (b'<meta charset="shift_jis">' + "日本".encode("shift_jis"), None, '<meta charset="shift_jis">日本'),
        (b'<meta charset="rot13">caf\xe9', "hex", '<meta charset="rot13">café'),
    ],
)
def test_charsets_that_are_wrong_do_not_matter(content: bytes, charset: str | None, text: str) -> None:
    assert decoded(content, charset) == text


@pytest.mark.parametrize("packing", ["gzip", "deflate"])
async def test_packed_pages_are_unpacked(site: LocalSite, packing: str) -> None:
    form = {"gzip": 31, "deflate": -15}[packing]
    body = zlib.compressobj(9, zlib.DEFLATED, form)
    site.pages["/packed"] = web.Response(
        body=body.compress(b"small") + body.flush(),
        headers={"Content-Encoding": packing, "Content-Type": "text/plain"},
    )
    assert (await fetched(f"{site.url}/packed")).content == b"small"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("slow", "no whole answer within 0.3 s"),
        ("endless", "larger than 10 MB"),
        ("short", "broke off before its end"),
        ("bomb", "larger than 10 MB"),
        ("loop", "more than 5 times"),
        ("garbage", "can't be read: "),
        ("nothing", "the server answers HTTP 404"),
        ("nowhere", "but does not say where"),
        ("odd", "packed as br"),
        ("torn", "not packed as its server says"),
        ("busy", "asks not to be asked again for 3600 s"),
        ("elsewhere", "leads on: ftp://site.example/ can't be read"),
        ("inside", "leads on: an address with a user name"),
    ],
)
async def test_what_cannot_be_read_is_said(site: LocalSite, path: str, said: str) -> None:
    site.pages |= {
        "/nowhere": web.Response(status=302),
        "/odd": web.Response(body=b"?", headers={"Content-Encoding": "br"}),
        "/torn": web.Response(body=b"?", headers={"Content-Encoding": "gzip"}),
        "/busy": web.Response(status=429, headers={"Retry-After": "3600"}),
        "/elsewhere": web.Response(status=302, headers={"Location": "ftp://site.example/"}),
        "/inside": web.Response(status=302, headers={"Location": "http://a:b@site.example/"}),
    }
    with pytest.raises(ServiceError) as failure:
        await fetched(f"{site.url}/{path}", seconds=0.3 if path == "slow" else 20.0)
    assert said in str(failure.value)
    assert not failure.value.rate_limited


async def test_a_short_pause_is_waited_for(site: LocalSite) -> None:
    site.pages["/busy"] = web.Response(status=503, headers={"Retry-After": "2"})
    with pytest.raises(ServiceError) as failure:
        await fetched(f"{site.url}/busy")
    assert (failure.value.rate_limited, failure.value.retry_after) == (True, 2.0)


@pytest.mark.parametrize(
    ("content", "media_type", "said"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0", "image/png", "is image/png, which has no text"),
        (b"\0\1\2", "", "is a file of an unknown type"),
        (b"%PDF-1.4 broken", "application/pdf", "it is broken"),
        (pdf(""), "application/pdf", "holds no text"),
    ],
)
async def test_files_without_text_are_refused(content: bytes, media_type: str, said: str) -> None:
    with pytest.raises(ToolError, match=said):
        await read_file(Fetched(content, media_type, None, "http://a.example/file"))


async def test_deeply_nested_pages_are_no_trouble() -> None:
    content = b"<div>" * 10_000 + b"deep" + b"</div>" * 10_000
    with pytest.raises(ToolError, match="broken"):
        await read_file(Fetched(content, "text/html", None, "http://a.example/"))


async def test_redirects_are_followed_without_cookies(site: LocalSite) -> None:
    found = await fetched(f"http://site.example:{site.port}/cookie")
    assert found.final_url == f"http://site.example:{site.port}/article"
    assert site.cookies == []


async def test_robots_are_obeyed_and_asked_for_once(site: LocalSite) -> None:
    site.pages["/robots.txt"] = "User-agent: *\nDisallow: /\n\nUser-agent: manyhands\nDisallow: /private\nAllow: /\n"
    fetcher = DirectFetcher(NetworkRules.web(private=True), courtesy=Courtesy(0))
    try:
        await asyncio.gather(*(fetcher.fetch(f"{site.url}/article") for _ in range(3)))
        with pytest.raises(ServiceError, match=r"the robots.txt of 127.0.0.1 asks programs not to read it"):
            await fetcher.fetch(f"{site.url}/private/page")
    finally:
        await fetcher.close()
    assert site.counts["/robots.txt"] == 1
    assert "/private/page" not in site.counts
    with pytest.raises(ServiceError, match="HTTP 404"):
        await fetched(f"{site.url}/private/page")


@pytest.mark.parametrize(("status", "read"), [(404, True), (403, True), (500, False), (503, False)])
async def test_robots_that_cannot_be_had(site: LocalSite, status: int, read: bool) -> None:
    site.pages["/robots.txt"] = web.Response(status=status)
    if read:
        assert (await fetched(f"{site.url}/article", robots=True)).content
    else:
        with pytest.raises(ServiceError, match=r"robots\.txt"):
            await fetched(f"{site.url}/article", robots=True)


@pytest.mark.parametrize(
    "before", [b"", b'{"site.example": 1e99, "other.example": 1}', b'{"site.example": "x"}', b"[\xff"]
)
async def test_processes_of_a_run_wait_for_one_another(tmp_path: Path, before: bytes) -> None:
    turns, began = tmp_path / "turns.json", time.time()
    turns.write_bytes(before)

    async def ask(courtesy: Courtesy) -> None:
        for _ in range(3):
            async with courtesy.turn("site.example"):
                pass

    processes = [Courtesy(0.05, turns) for _ in range(3)]
    await asyncio.gather(*map(ask, processes))
    assert time.time() - began > 0.05 * 8 - 0.01
    turns.unlink()
    turns.symlink_to(tmp_path / "elsewhere")
    await ask(processes[0])
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(("failed_seconds", "asked"), [(60.0, 1), (0.0, 2)])
async def test_robots_that_could_not_be_had_are_asked_for_again(
    site: LocalSite, failed_seconds: float, asked: int
) -> None:
    site.pages["/robots.txt"] = web.Response(status=503)
    courtesy = Courtesy(0, failed_seconds=failed_seconds)
    fetcher = DirectFetcher(NetworkRules.web(private=True), courtesy=courtesy)
    try:
        with pytest.raises(ServiceError, match=r"robots\.txt can't be read \(HTTP 503\)"):
            await fetcher.fetch(f"{site.url}/article")
        site.pages["/robots.txt"] = "User-agent: *\nAllow: /\n"
        with nullcontext() if asked > 1 else pytest.raises(ServiceError, match="HTTP 503"):
            await fetcher.fetch(f"{site.url}/article")
    finally:
        await fetcher.close()
    assert site.counts["/robots.txt"] == asked


async def test_a_host_that_does_not_answer_is_waited_for_once() -> None:
    asked = 0

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(60)

    fetcher = DirectFetcher(NetworkRules.web(private=True), courtesy=Courtesy(0), seconds=0.2)
    async with served(silent) as port:
        pages = (fetcher.fetch(f"http://127.0.0.1:{port}/{number}") for number in range(10))
        found = await asyncio.gather(*pages, return_exceptions=True)
    await fetcher.close()
    assert asked == 1
    assert {str(each) for each in found} == {
        f"http://127.0.0.1:{port}/robots.txt can't be read: no whole answer within 0.2 s"
    }


async def test_a_host_gets_two_requests_at_a_time_with_pauses() -> None:
    courtesy, running, most = Courtesy(0.02), 0, 0
    begun: list[float] = []

    async def one() -> None:
        nonlocal running, most
        async with courtesy.turn("a.example"):
            begun.append(asyncio.get_running_loop().time())
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.05)
            running -= 1

    await asyncio.gather(*(one() for _ in range(5)))
    assert most == 2
    assert all(later - earlier >= 0.019 for earlier, later in pairwise(begun))


# --- What is not reached

INSIDE = {
    "localhost": [["127.0.0.1", "::1"]],
    "inside.example": [["10.1.2.3"]],
    "both.example": [["127.0.0.1", "192.168.0.9"]],
    "metadata.example": [["169.254.169.254"]],
    "public.example": [["127.0.0.1"]],
}


@pytest.mark.parametrize("address", CLOSED)
@pytest.mark.parametrize("robots", [True, False])
async def test_nothing_private_is_reached(site: LocalSite, address: str, robots: bool) -> None:
    fetcher = DirectFetcher(
        NetworkRules.web(private=False),
        look_up=LocalNames(INSIDE).look_up,
        courtesy=Courtesy(0),
        ignore_robots=not robots,
        seconds=5,
    )
    try:
        with pytest.raises(ServiceError) as failure:
            await fetcher.fetch(address.format(port=site.port, long="a" * 3000))
    finally:
        await fetcher.close()
    assert "can't be read" in str(failure.value)
    assert not site.counts


async def test_redirects_and_changing_names_do_not_lead_inside(site: LocalSite) -> None:
    """One loopback address is allowed, so that there is a site to begin at."""
    names = LocalNames({"site.example": [["127.0.0.1"]], "changing.example": [["127.0.0.1"], ["127.0.0.2"]]})
    rules = NetworkRules.all(["127.0.0.1"])
    fetcher = DirectFetcher(rules, look_up=names.look_up, courtesy=Courtesy(0), ignore_robots=True)
    targets = ["http://127.0.0.2/", "http://[::1]/", "http://169.254.169.254/", "//10.0.0.1/", "http://0x7f.1/"]
    site.pages |= {
        f"/to-{number}": web.Response(status=307, headers={"Location": target}) for number, target in enumerate(targets)
    }
    try:
        for number in range(len(targets)):
            with pytest.raises(ServiceError, match="can't be read: "):
                await fetcher.fetch(f"http://site.example:{site.port}/to-{number}")
        assert (await fetcher.fetch(f"http://changing.example:{site.port}/article")).content
        with pytest.raises(ServiceError, match=r"127\.0\.0\.2, which is a loopback address, which --network_allow"):
            await fetcher.fetch(f"http://changing.example:{site.port}/article")
    finally:
        await fetcher.close()
    assert names.asked.count("changing.example") == 2


async def test_link_local_addresses_stay_closed() -> None:
    for address in ("http://169.254.169.254/", "http://[fe80::1]/"):
        with pytest.raises(ServiceError, match="which this tool does not reach"):
            await fetched(address)
