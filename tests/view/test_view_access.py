"""Who may talk to the viewer: a real server, and requests typed by hand."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.io.loopback import Address, is_loopback_host
from manyhands.view.access import COOKIE_SECONDS, SECRET_FILE, Access
from manyhands.view.answers import MAX_CONNECTIONS, SECURITY_HEADERS, STRANGER_SECONDS
from tests.support.guarded_viewers import SECRET, STATIC, Viewer, cookie_of
from tests.support.view_servers import Answer, ask, parsed, server, spoken


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    shown = Viewer(tmp_path_factory.mktemp("viewer"))
    with server(shown.application):
        yield shown


@pytest.fixture(scope="module")
def cookie(viewer: Viewer) -> str:
    return viewer.cookie()


def is_guarded(answer: Answer) -> bool:
    """Whether it has all the headers, and no word about the software."""
    assert {name.lower(): answer.header(name.lower()) for name in SECURITY_HEADERS} == {
        name.lower(): value for name, value in SECURITY_HEADERS.items()
    }
    return answer.header("server") is None


def refused(answer: Answer, *statuses: int) -> None:
    assert answer.status in statuses
    assert is_guarded(answer)
    assert SECRET not in answer.body
    assert STATIC not in answer.body
    assert "Traceback" not in answer.body
    assert answer.header("set-cookie") is None


def test_a_link_lets_one_browser_in_once(viewer: Viewer) -> None:
    link = viewer.access.link(f"http://127.0.0.1:{viewer.address.port}")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", link)
    target = link.partition(str(viewer.address.port))[2]
    refused(viewer.ask(target, method="HEAD"), 401)  # a look at it, as previews take, does not use it up
    first = viewer.ask(target)
    assert (first.status, first.header("location"), is_guarded(first)) == (303, "/", True)
    said = first.header("set-cookie") or ""
    assert said.startswith(f"manyhands-{viewer.address.port}=")
    assert {"HttpOnly", "Path=/", "SameSite=Strict", f"Max-Age={COOKIE_SECONDS}"} <= set(said.split("; "))
    refused(viewer.ask(target), 401)
    again = viewer.ask(target, cookie_of(first))
    assert (again.status, again.header("location"), again.header("set-cookie")) == (303, "/", None)
    page = viewer.ask("/", cookie_of(first))
    assert (page.status, json.loads(page.body)["said"], is_guarded(page)) == (200, SECRET, True)


def test_each_link_has_a_token_of_its_own_and_is_used_by_whom_it_lets_in(viewer: Viewer, cookie: str) -> None:
    links = [urlsplit(viewer.access.link(f"http://127.0.0.1:{viewer.address.port}/item/a?b=c")) for _ in range(2)]
    assert links[0] != links[1]
    targets = [f"{parts.path}?{parts.query}" for parts in links]
    assert viewer.ask(targets[0], cookie).header("location") == "/item/a?b=c"
    assert [viewer.ask(target).status for target in (*targets, *targets)] == [303, 303, 401, 401]


@pytest.mark.parametrize(
    ("target", "clean"),
    [
        ("/", "/"),
        ("/item/a%2Fb%20c?x=%26&y=&x=2", "/item/a%2Fb%20c?x=%26&y=&x=2"),
        ("/item/%5C%5Cevil.example", "/item/%5C%5Cevil.example"),
        ("/?next=//evil.example", "/?next=//evil.example"),
        ("/?tok%65n=no", "/"),
    ],
)
def test_the_address_is_cleaned(viewer: Viewer, target: str, clean: str) -> None:
    answer = viewer.ask(f"{target}{'&' if '?' in target else '?'}token={viewer.access.new_token()}", viewer.cookie())
    assert (answer.status, answer.header("location")) == (303, clean)


@pytest.mark.parametrize("token", ["", "x", "%00", "%ff", "a" * 4000, "%F0%9F%98%80"])
def test_wrong_tokens(viewer: Viewer, token: str) -> None:
    viewer.access.new_token()
    refused(viewer.ask(f"/?token={token}"), 401)


def test_without_a_cookie_the_page_says_what_to_do(viewer: Viewer) -> None:
    for target in ("/", "/nothing", "/static/own.js", "/events", "/item/x?y=%22%3E%3Cscript%3E&z='\"<script>"):
        answer = viewer.ask(target)
        refused(answer, 401)
        assert answer.header("content-type") == "text/html; charset=utf-8"
        assert "manyhands view" in answer.body
        assert "curl -c jar -L" in answer.body
        assert "<script" not in answer.body
        assert re.findall('href="([^"]*)"', answer.body)[0].partition("?")[0] == target.partition("?")[0]
    answer = viewer.ask("/?format=json")
    refused(answer, 401)
    assert "manyhands view" in json.loads(answer.body)["error"]


def test_cookies_that_let_nobody_in(viewer: Viewer, cookie: str) -> None:
    name, _, value = cookie.removeprefix("Cookie: ").partition("=")
    date, _, signature = value.partition(".")
    wrong = [
        f"{name}=",
        f"{name}=x",
        f"{name}x={value}",
        f"manyhands={value}",
        f"{name.upper()}={value}",
        f"{name}={value}x",
        f"{name}={value[:-1]}",
        f"{name}={date}.{'0' * len(signature)}",
        f"{name}={int(date) + 1}.{signature}",
        f"{name}=0{value}",
        f"{name}={date}.\udcff",
        "; ".join([f"{name}=x"] * 50 + [f"{name}={value}"]),
    ]
    for each in wrong:
        refused(viewer.ask("/", f"Cookie: {each}"), 401)
    for each in (
        f"a=b; {name}=x; {name}={value}; c",
        f"{name}={value};;",
    ):  # another server at this host set one of the name
        assert viewer.ask("/", f"Cookie: {each}").status == 200
    assert viewer.ask("/", f"Cookie: {name}=x", f"Cookie: {name}={value}").status == 200


def test_a_cookie_ends(viewer: Viewer) -> None:
    cookie = viewer.cookie()
    before = viewer.seconds
    try:
        viewer.seconds += COOKIE_SECONDS
        assert viewer.ask("/", cookie).status == 200
        viewer.seconds += 1
        refused(viewer.ask("/", cookie), 401)
    finally:
        viewer.seconds = before


def test_a_cookie_outlasts_the_viewer_and_opens_no_other_one(viewer: Viewer, tmp_path: Path) -> None:
    def seen(other: Viewer, address: Address) -> int:
        with server(other.application, address):
            return ask(other.address, "/", cookie, host=f"127.0.0.1:{port}").status

    first = Viewer(tmp_path)
    with server(first.application):
        cookie, address = first.cookie(), first.address
    port = address.port
    assert seen(Viewer(tmp_path), address) == 200  # with the same secret
    assert seen(Viewer(tmp_path), Address("127.0.0.1", 0)) == 401  # at another port
    assert seen(Viewer(tmp_path), Address("127.9.8.7", port)) == 401  # at another address
    (tmp_path / "cache" / SECRET_FILE).unlink()
    assert seen(Viewer(tmp_path), address) == 401


def test_the_secret_is_closed_to_others_and_renewed_if_it_was_not(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "cache"
    path = folder / SECRET_FILE

    def kept() -> bytes:
        assert Access(folder, host="127.0.0.1", port=1).note is None
        assert (folder.stat().st_mode & 0o777, path.lstat().st_mode & 0o777) == (0o700, 0o600)
        assert [each.name for each in folder.iterdir()] == [SECRET_FILE]
        assert not path.is_symlink()
        return path.read_bytes()

    previous = os.umask(0)
    try:
        first = kept()
        assert (len(first), kept()) == (32, first)
        path.chmod(0o640)
        second = kept()
        assert second != first
        path.write_bytes(second + b"x")
        third = kept()
        assert third != second
        target = tmp_path / "elsewhere"
        target.write_bytes(first)
        target.chmod(0o600)
        path.unlink()
        path.symlink_to(target)
        assert kept() not in (first, third)
        assert target.read_bytes() == first
        path.unlink()
        os.mkfifo(path)
        kept()
    finally:
        os.umask(previous)


def test_many_viewers_that_start_at_once_share_one_secret(tmp_path: Path) -> None:
    async def start() -> None:
        await asyncio.gather(*(asyncio.to_thread(Access, tmp_path / "c", host="127.0.0.1", port=1) for _ in range(20)))
        made = [Access(tmp_path / "c", host="127.0.0.1", port=1) for _ in range(2)]
        assert [each.note for each in made] == [None, None]

    asyncio.run(start())
    assert [each.name for each in (tmp_path / "c").iterdir()] == [SECRET_FILE]


def test_without_a_place_for_the_secret_there_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in the way")
    shown = Viewer(tmp_path)
    with server(shown.application):
        assert shown.access.note is not None
        assert "until the viewer ends" in shown.access.note
        assert shown.ask("/", shown.cookie()).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:1",
        "127.0.0.1",
        "127.0.0.1:65535",
        "127.200.3.4:80",
        "[::1]",
        "[::1]:8000",
        "[0:0:0:0:0:0:0:1]:8",
    ],
)
def test_hosts_of_this_machine_at_any_port(viewer: Viewer, host: str) -> None:
    entered = viewer.enter(host=host)
    port = re.search(r":(\d+)$", host)
    assert (entered.header("set-cookie") or "").startswith(f"manyhands-{port[1] if port else 80}=")
    assert viewer.ask("/", cookie_of(entered), host=host).status == 200
    assert viewer.ask("/", cookie_of(entered), f"Origin: http://{host}", host=host).status == 200


FOREIGN_HOSTS = [
    "",
    "evil.example",
    "localhost.evil.example:80",
    "evil.localhost",
    "127.0.0.1.evil.example",
    "127.0.0.1:80:80",
    "127.0.0.1:",
    "127.0.0.1:0",
    "127.0.0.1:65536",
    "127.0.0.1:8²",
    "127.1",
    "2130706433",
    "0x7f.0.0.1",
    "0.0.0.0",
    "[::]",
    "::1",
    "[127.0.0.1]",
    "[::1%25lo]",
    "[::1",
    "10.0.0.1:80",
    "user@localhost",
    "localhost, evil.example",
    "localhost/evil",
    "\udcff",
]


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_other_hosts(viewer: Viewer, cookie: str, host: str) -> None:
    refused(viewer.ask("/", cookie, host=host), 421, 400)
    token = viewer.access.new_token()
    refused(viewer.ask(f"/?token={token}", host=host), 421, 400)
    assert viewer.ask(f"/?token={token}").status == 303  # and is not used up


@given(st.text(max_size=30) | st.from_regex(r"\[?[0-9a-fl:.]{1,20}\]?(:[0-9]{0,6})?", fullmatch=True))
def test_every_text_is_a_host_or_not(text: str) -> None:
    if is_loopback_host(text):
        assert Address.of(re.sub(r":\d+$", "", text) if not text.endswith("]") else text, 0).host


def test_addresses() -> None:
    assert Address.of("LOCALHOST", 1) == Address("127.0.0.1", 1)
    assert Address.of("[::1]", 1).in_url == "[::1]"
    for host in ("0.0.0.0", "example.com", "::", "10.0.0.1", "", "::1%lo"):
        with pytest.raises(UserError, match="must be a loopback address"):
            Address.of(host, 1)
    private = {Address.private(7).host for _ in range(100)}
    assert len(private) > 95
    assert all(re.fullmatch(r"127\.[1-9]\d*\.\d+\.[1-9]\d*", host) and is_loopback_host(host) for host in private)


def test_a_private_address(tmp_path: Path) -> None:
    shown = Viewer(tmp_path)
    with server(shown.application, Address.private(0)) as address:
        assert shown.ask("/", shown.cookie()).status == 200
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", address.port), 1)


def test_requests_without_one_clear_host(viewer: Viewer, cookie: str) -> None:
    own = f"127.0.0.1:{viewer.address.port}"
    for head in (
        f"GET / HTTP/1.1\r\n{cookie}\r\nConnection: close\r\n\r\n",
        f"GET / HTTP/1.0\r\n{cookie}\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost: {own}\r\nHost: {own}\r\n{cookie}\r\nConnection: close\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost: {own}\r\nhost: evil.example\r\n{cookie}\r\nConnection: close\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: {own}\r\n{cookie}\r\nConnection: close\r\n\r\n",
        f"GET http://evil.example/ HTTP/1.1\r\nHost: {own}\r\n{cookie}\r\nConnection: close\r\n\r\n",
        f"GET http://{own}/ HTTP/1.1\r\nHost: {own}\r\n{cookie}\r\nConnection: close\r\n\r\n",
        f"GET http://{own}/ HTTP/1.1\r\nHost: evil.example\r\n{cookie}\r\nConnection: close\r\n\r\n",
        f"GET evil HTTP/1.1\r\nHost: {own}\r\n{cookie}\r\nConnection: close\r\n\r\n",
    ):
        refused(parsed(spoken(viewer.address, head.encode())), 400, 421)
    old = parsed(spoken(viewer.address, f"GET / HTTP/1.0\r\nHost: {own}\r\n{cookie}\r\n\r\n".encode()))
    assert (old.status, is_guarded(old)) == (200, True)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "CONNECT"])
def test_other_methods(viewer: Viewer, cookie: str, method: str) -> None:
    answer = viewer.ask("*" if method == "OPTIONS" else "/", cookie, "Content-Length: 0", method=method)
    refused(answer, 405)
    assert answer.header("allow") == "GET, HEAD"


def test_head(viewer: Viewer, cookie: str) -> None:
    answer = viewer.ask("/", cookie, method="HEAD")
    assert (answer.status, answer.body, is_guarded(answer)) == (200, "", True)


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "", "https://127.0.0.1:{port}", "http://127.0.0.1:1", "http://localhost:{port}",
     "http://127.0.0.1:{port}.evil.example", "http://127.0.0.1:{port}/", "http://127.0.0.1:{port}, http://evil.example"],
)  # fmt: skip
def test_origins(viewer: Viewer, cookie: str, origin: str) -> None:
    refused(viewer.ask("/", cookie, f"Origin: {origin.format(port=viewer.address.port)}"), 403)


def test_what_a_browser_says_of_the_page_that_asks(viewer: Viewer, cookie: str) -> None:
    own = f"http://127.0.0.1:{viewer.address.port}"
    navigation = ("Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")
    for site in ("cross-site", "same-site", "something-new", ""):
        for rest in (
            (),
            ("Sec-Fetch-Mode: no-cors",),
            ("Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"),
            navigation[1:],
        ):
            refused(viewer.ask("/", cookie, f"Sec-Fetch-Site: {site}", *rest), 403)
        refused(viewer.ask("/", cookie, f"Sec-Fetch-Site: {site}", *navigation, method="HEAD"), 403)
        refused(viewer.ask("/", cookie, f"Sec-Fetch-Site: {site}", *navigation, "Origin: null"), 403)
    refused(viewer.ask("/", cookie, "Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: cross-site"), 403)
    for site in ("same-origin", "none"):
        assert viewer.ask("/", cookie, f"Sec-Fetch-Site: {site}", f"Origin: {own}").status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_link_in_another_page_gets_a_page_without_data(viewer: Viewer, cookie: str, site: str) -> None:
    navigation = (f"Sec-Fetch-Site: {site}", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")
    for target, again in (
        ("/item/a%2Fb?x=1&y=;url=http://evil.example", "/item/a%2Fb?x=1&amp;y=;url=http://evil.example"),
        ("/?q='\"><script>", "/?q=&#x27;%22%3E%3Cscript%3E"),
    ):
        for cookies in ((), (cookie,)):
            answer = viewer.ask(target, *cookies, *navigation)
            refused(answer, 200)
            assert f'<meta http-equiv="refresh" content="0;url={again}">' in answer.body
            assert "<script" not in answer.body
    token = viewer.access.new_token()
    assert f"/?token={token}" in viewer.ask(f"/?token={token}", *navigation).body
    assert viewer.ask(f"/?token={token}", *navigation).header("set-cookie") is None
    same = ("Sec-Fetch-Site: same-origin", *navigation[1:])
    refused(viewer.ask("/", *same), 401)  # it does not go round
    assert viewer.ask(f"/?token={token}", *same).status == 303


@pytest.mark.parametrize(
    "target",
    ["//evil.example", "//evil.example/..", "///", "/%2e%2e/", "/..", "/a/../b", "/.%2E", "/./", "/%00", "/item/a%00b",
     "/static/..%2f..%2fcache%2fview-secret", "/static/%2e%2e/cache/view-secret", "/static//etc/passwd", "/static/", "/static",
     "/static/..%5c..%5ccache", "/static/%ff", "/%", "/%2", "/item/a/b"],
)  # fmt: skip
def test_paths_that_lead_nowhere(viewer: Viewer, cookie: str, target: str) -> None:
    for rest in ("", "?token=x"):
        answer = viewer.ask(target + rest, cookie)
        if rest and answer.status == 303:  # the address is cleaned first
            assert re.match(r"/[^/\\]", answer.header("location") or "")
        else:
            refused(answer, 404, 403)
    refused(viewer.ask(target), 401, 404)


@pytest.mark.parametrize(
    "target",
    ["/\\evil.example", "/a\\..\\b", "\\\\evil", "/a\x00b", "/a\x01b", "/a\x7fb", "/a#b", "/é", "", "?x", "/a b"],
)
def test_addresses_that_are_none(viewer: Viewer, cookie: str, target: str) -> None:
    refused(viewer.ask(target, cookie), 400)


def test_large_requests(viewer: Viewer, cookie: str) -> None:
    for target, headers in (
        ("/" + "a" * 10_000, ()),
        ("/?" + "a" * 1_000_000, ()),
        ("/", ("X: " + "a" * 100_000,)),
        ("/", tuple(f"X{number}: a" for number in range(1000))),
    ):
        answer = viewer.ask(target, cookie, *headers)
        refused(answer, 400)
    assert viewer.ask("/item/" + "a" * 7000, cookie).status == 200
    assert viewer.ask("/", "Cookie: other=" + "a" * 20_000, cookie).status == 200


def test_what_is_no_http(viewer: Viewer) -> None:
    for said in (b"\x16\x03\x01\x02\x00\x01\x00", b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /\r\n\r\n",
                 b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n",
                 b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\nX\x00: y\r\n\r\n"):  # fmt: skip
        refused(parsed(spoken(viewer.address, said)), 400, 421)


def test_smuggled_requests(viewer: Viewer, cookie: str) -> None:
    own = f"127.0.0.1:{viewer.address.port}"
    inner = f"GET /item/smuggled HTTP/1.1\r\nHost: {own}\r\n{cookie}\r\nConnection: close\r\n\r\n"
    for head in (
        f"Content-Length: {len(inner)}\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "Transfer-Encoding: xchunked",
        "Content-Length: 0\r\nContent-Length: 5",
        "Content-Length: +0",
        "Content-Length: -1",
        f"Content-Length: {len(inner)}",
        f"Upgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: {len(inner)}",
        f"Expect: 100-continue\r\nContent-Length: {len(inner)}",
    ):
        body = f"0\r\n\r\n{inner}" if "chunked" in head else inner
        said = spoken(
            viewer.address, f"POST / HTTP/1.1\r\nHost: {own}\r\n{head}\r\nConnection: close\r\n\r\n{body}".encode()
        )
        assert "smuggled" not in said, head
        assert SECRET not in said
    refused(viewer.ask("/", "Expect: something"), 417)
    two = spoken(
        viewer.address, f"GET / HTTP/1.1\r\nHost: {own}\r\n\r\n{inner}".encode()
    )  # pipelined: each is judged for itself
    assert re.findall(r"HTTP/1\.1 (\d+)", two) == ["401", "200"]


@pytest.mark.parametrize(
    ("how", "status", "words"),
    [
        ("user", 400, "&lt;b&gt;no&lt;/b&gt; such run"),
        ("run", 409, "of a later version"),
        ("other", 500, "the disk is full"),
        ("late", 504, "an error in the viewer"),
        ("bug", 500, "an error in the viewer"),
        ("gone", 404, "no item \\x1b[1m&lt;i&gt;"),
        ("plain", 404, "there is no such page"),
    ],
)
def test_failures_are_one_clear_line(
    viewer: Viewer, cookie: str, how: str, status: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        answer = viewer.ask(f"/fail/{how}", cookie)
        twin = viewer.ask(f"/fail/{how}?format=json", cookie)
    refused(answer, status)
    refused(twin, status)
    assert words in answer.body
    assert "inner detail" not in answer.body + twin.body
    assert list(json.loads(twin.body)) == ["error"]
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]
    assert ("inner detail" in caplog.text) == (how == "bug")


def test_pages_files_and_streams_have_the_headers(viewer: Viewer, cookie: str) -> None:
    for target, words in (("/", SECRET), ("/static/own.js", STATIC), ("/events", SECRET)):
        answer = viewer.ask(target, cookie)
        assert (answer.status, is_guarded(answer), words in answer.body) == (200, True, True)
    partly = viewer.ask("/static/own.js", cookie, "Range: bytes=0-3")
    assert (partly.status, is_guarded(partly)) == (206, True)
    refused(viewer.ask("/static/own.js", cookie, "Range: bytes=999-"), 416)
    assert viewer.ask("/item/..%2Fa%2Fb%5Cc", cookie).status == 200  # keys may look like paths


def test_strangers_do_not_take_all_connections(viewer: Viewer, cookie: str) -> None:
    with ExitStack() as held:
        idle = [
            held.enter_context(socket.create_connection(("127.0.0.1", viewer.address.port), 5))
            for _ in range(MAX_CONNECTIONS + 20)
        ]
        for each in idle[:20]:
            assert each.recv(1) == b""
        assert viewer.ask("/", cookie).status == 200
        assert idle[20].recv(1) == b""
        idle[-1].sendall(f"GET / HTTP/1.0\r\nHost: localhost:{viewer.address.port}\r\n\r\n".encode())
        assert idle[-1].recv(1 << 16).startswith(b"HTTP/1.0 401")


def test_connections_that_were_let_in_are_bounded(viewer: Viewer, cookie: str) -> None:
    request = f"GET / HTTP/1.1\r\nHost: localhost:{viewer.address.port}\r\n{cookie}\r\n\r\n".encode()
    with ExitStack() as held:
        for _ in range(MAX_CONNECTIONS):
            known = held.enter_context(socket.create_connection(("127.0.0.1", viewer.address.port), 5))
            known.sendall(request)
            assert known.recv(1 << 16).startswith(b"HTTP/1.1 200")
        last = held.enter_context(socket.create_connection(("127.0.0.1", viewer.address.port), 5))
        assert last.recv(1) == b""
    for _ in range(50):
        if spoken(viewer.address, request.replace(b"HTTP/1.1", b"HTTP/1.0")):
            break
    assert viewer.ask("/", cookie).status == 200


@pytest.mark.slow
def test_a_connection_that_asks_for_nothing_is_closed(viewer: Viewer, cookie: str) -> None:
    host = f"Host: localhost:{viewer.address.port}\r\n"
    with ExitStack() as held:
        silent, refused, known = (
            held.enter_context(socket.create_connection(("127.0.0.1", viewer.address.port), 5)) for _ in range(3)
        )
        refused.sendall(f"GET / HTTP/1.1\r\n{host}\r\n".encode())
        known.sendall(f"GET / HTTP/1.1\r\n{host}{cookie}\r\n\r\n".encode())
        assert refused.recv(1 << 16).startswith(b"HTTP/1.1 401")
        assert known.recv(1 << 16).startswith(b"HTTP/1.1 200")
        for closed in (silent, refused):
            closed.settimeout(STRANGER_SECONDS + 10)
            while closed.recv(1 << 16):
                pass
        known.sendall(f"GET / HTTP/1.1\r\n{host}{cookie}\r\n\r\n".encode())
        assert b"HTTP/1.1 200" in known.recv(1 << 16)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(viewer: Viewer, tmp_path: Path) -> None:
    base = f"http://127.0.0.1:{viewer.address.port}"

    def curl(*words: str) -> str:
        done = subprocess.run(
            ["curl", "-sS", "--noproxy", "*", *words], capture_output=True, text=True, check=True, cwd=tmp_path
        )
        return done.stdout

    assert SECRET in curl("-c", "jar", "-L", viewer.access.link(base))
    assert json.loads(curl("-b", "jar", f"{base}/item/x?format=json"))["key"] == "x"
    assert json.loads(curl(f"{base}/item/x?format=json")).keys() == {"error"}
