"""Who may talk to the viewer: requests for this machine, from no foreign page, by whoever has seen the link that was printed at the start.

A link holds a token that works once. It is exchanged for a cookie, and the address is cleaned by a redirect. A cookie is a date and its
signature, by a secret that lies in a folder of the user's own, so that it outlasts the viewer.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote, unquote_plus, urlsplit

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from manyhands.io.files import make_private
from manyhands.io.loopback import is_foreign_origin, is_loopback_host, requested_host, same_secret
from manyhands.view.answers import Connection, add_headers, failure, failures, link, not_allowed, small_page

TOKEN = "token"
"""The parameter of an address that holds a token. No page has one of that name."""
SECRET_FILE = "view-secret"
COOKIE_SECONDS = 30 * 24 * 3600
"""How long a browser stays let in."""
_SECRET_BYTES = 32
_MAX_LINKS, _MAX_COOKIES = 20, 20
"""Links not used yet, and cookies of one name. Beyond that, the oldest links and the last cookies are ignored."""
_PATH = re.compile(r"/(?:[!-~](?<![#?\\]))*")
_QUERY = re.compile(r"(?:[!-~](?<!#))*")
_COOKIE = re.compile(r"([0-9]{1,12})\.[0-9a-f]{64}")
_SAFE = "!$%&'()*+,/:;=?@[]~"
_SAME = frozenset(["same-origin", "none"])
_WHAT_TO_DO = (
    "Open the link that 'manyhands view' printed when it was started. It works once, in one browser; start the viewer again for another. "
    "With curl: curl -c jar -L 'LINK', and from then on curl -b jar ADDRESS."
)


class Access:
    """Decides about requests to a viewer that listens on ``host`` and ``port`` of this machine.

    ``secret_folder``: a folder of the user's own, which is made, and closed to others. ``now``: seconds since 1970.
    """

    def __init__(self, secret_folder: Path, *, host: str, port: int, now: Callable[[], float] = time.time) -> None:
        self.note: str | None = None
        """One line to show if cookies end with this viewer, because their secret can't be kept."""
        try:
            self._secret = _kept_secret(secret_folder)
        except OSError as error:
            self._secret = secrets.token_bytes(_SECRET_BYTES)
            self.note = f"browsers are let in only until the viewer ends: {secret_folder}: {error.strerror or error}"
        self._server = f"{host} {port}"
        self._now = now
        self._tokens: list[str] = []

    def new_token(self) -> str:
        """A token that lets one browser in, once."""
        self._tokens = [*self._tokens, secrets.token_urlsafe(32)][-_MAX_LINKS:]
        return self._tokens[-1]

    def link(self, address: str) -> str:
        """An address of the viewer (of its start or of any page) with a token of its own."""
        parts = urlsplit(address)
        query = f"{parts.query}&" if parts.query else ""
        return parts._replace(path=parts.path or "/", query=f"{query}{TOKEN}={self.new_token()}").geturl()

    def protect(self, application: web.Application) -> None:
        """Install all of it in an application: its handlers, static ones too, see only what is let through, every answer has the headers,
        and failures become small pages."""
        application.middlewares.extend([self.middleware, failures])
        application.on_response_prepare.append(add_headers)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Lets a request through to its handler, or answers it."""
        answer = self._answer(request)
        if answer is not None:
            return answer
        if isinstance(request.protocol, Connection):
            request.protocol.let_in()
        return await handler(request)

    def _answer(self, request: web.Request) -> web.Response | None:
        host = requested_host(request.headers.getall(hdrs.HOST, ()), is_loopback_host)
        if host is None:
            return failure(request, 421, "Misdirected request", "the Host header does not name this machine's loopback")
        if request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
            return not_allowed(request)
        target = _Target(request.raw_path)
        if (answer := _refused_target(request, target)) is not None:
            return answer
        if (answer := _refused_origin(request, host, target)) is not None:
            return answer
        return self._refused_without_cookie(request, host, target)

    def _refused_without_cookie(self, request: web.Request, host: str, target: _Target) -> web.Response | None:
        port = host.rpartition("]")[2].partition(":")[2] or "80"
        name = f"manyhands-{port}"
        known = any(self._is_valid(value) for value in _cookies(request, name))
        if target.token is None:
            return None if known else failure(request, 401, "Not let in", _WHAT_TO_DO, body=_again(target))
        if known:
            return _redirect(target)
        if request.method != hdrs.METH_GET or not self._use(target.token):
            return failure(
                request, 401, "Not let in", f"This link was used before, or belongs to another viewer. {_WHAT_TO_DO}"
            )
        answer = _redirect(target)
        answer.set_cookie(name, self._cookie(), max_age=COOKIE_SECONDS, path="/", httponly=True, samesite="Strict")
        return answer

    def _use(self, token: str) -> bool:
        found = [own for own in self._tokens if same_secret(token, own)]
        self._tokens = [own for own in self._tokens if own not in found]
        return bool(found)

    def _cookie(self) -> str:
        return self._signed(int(self._now()))

    def _signed(self, issued: int) -> str:
        # The server is part of it: what another server at the same host name was sent by a browser opens no viewer but the one it was for.
        signature = hmac.new(self._secret, f"cookie {self._server} {issued}".encode(), hashlib.sha256)
        return f"{issued}.{signature.hexdigest()}"

    def _is_valid(self, cookie: str) -> bool:
        found = _COOKIE.fullmatch(cookie)
        if found is None or self._now() - int(found[1]) > COOKIE_SECONDS:
            return False
        return same_secret(cookie, self._signed(int(found[1])))


class _Target:
    """What a request asks for, as addresses within this server: ``as_sent``, and ``own`` without its ``token``, if it has one."""

    def __init__(self, raw: str) -> None:
        self.path, mark, query = raw.partition("?")
        self.query = query
        parts = query.split("&")
        tokens = [part.partition("=")[2] for part in parts if _is_token(part)]
        self.token = unquote_plus(tokens[0]) if tokens else None
        rest = "&".join(part for part in parts if not _is_token(part))
        kept = f"{self.path}?{rest}" if rest or (mark and not tokens) else self.path
        self.as_sent, self.own = _address(raw), _address(kept)


def _address(target: str) -> str:
    return quote(target, safe=_SAFE, errors="replace")


def _is_token(part: str) -> bool:
    return unquote_plus(part.partition("=")[0]) == TOKEN


def _refused_target(request: web.Request, target: _Target) -> web.Response | None:
    if not (_PATH.fullmatch(target.path) and _QUERY.fullmatch(target.query)):
        return failure(
            request,
            400,
            "Bad request",
            "the address must be a path that begins with /, without characters that need encoding",
        )
    leads_out = any(unquote(part) in (".", "..") for part in target.path.split("/"))
    if leads_out or target.path.startswith("//") or "%00" in target.path:
        return failure(request, 404, "Not Found", "there is no such page")
    return None


def _refused_origin(request: web.Request, host: str, target: _Target) -> web.Response | None:
    headers = request.headers
    if is_foreign_origin(headers.getall(hdrs.ORIGIN, ()), [host]):
        return failure(request, 403, "Forbidden", "requests from web pages of another origin are not answered")
    if _SAME.issuperset(headers.getall("Sec-Fetch-Site", ())):
        return None
    kind = (request.method, headers.get("Sec-Fetch-Mode"), headers.get("Sec-Fetch-Dest"))
    if kind != (hdrs.METH_GET, "navigate", "document"):
        return failure(request, 403, "Forbidden", "requests from web pages of another origin are not answered")
    # A link in another page was clicked. From there no browser sends the cookie; from a page of our own it does.
    again = f'<meta http-equiv="refresh" content="0;url={html.escape(target.as_sent)}">\n'
    return small_page(200, "Opening the page", "", head=again, body=link(target.as_sent, "Open it"))


def _redirect(target: _Target) -> web.Response:
    return web.Response(status=303, headers={hdrs.LOCATION: target.own})


def _again(target: _Target) -> str:
    return link(target.own, "Open this page again, if this browser was let in before")


def _cookies(request: web.Request, name: str) -> Iterator[str]:
    """The values of a cookie. Another server at the same host name may have set one of the same name, so that there are several."""
    left = _MAX_COOKIES
    for header in request.headers.getall(hdrs.COOKIE, ()):
        for part in header.split(";"):
            given, _, value = part.strip().partition("=")
            if given == name and left > 0:
                left -= 1
                yield value


def _kept_secret(folder: Path) -> bytes:
    """The secret in a folder; a new one if there is none, or one that others may have read or put there. Raises OSError."""
    make_private(folder)
    path = folder / SECRET_FILE
    for _ in range(3):
        if (found := _read_secret(path)) is not None:
            return found
        aside = folder / f".{SECRET_FILE}.{secrets.token_hex(8)}"
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(secrets.token_bytes(_SECRET_BYTES))
            if path.is_symlink() or path.exists():
                aside.replace(path)
            else:
                with suppress(FileExistsError):  # another viewer that starts just now
                    os.link(aside, path)
        finally:
            aside.unlink(missing_ok=True)
    raise OSError(f"{path} changes all the time")


def _read_secret(path: Path) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        secret = stream.read(_SECRET_BYTES + 1) if own and not status.st_mode & 0o077 else b""
    return secret if len(secret) == _SECRET_BYTES else None
