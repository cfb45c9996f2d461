"""What a program asks of the proxy: its request's target and headers, read strictly, and headers as they are passed on."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass

import h11

from manyhands.network.addresses import Address, read_host

Headers = list[tuple[bytes, bytes]]

_WEB_PORT = 80
_HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    )
)
"""About one connection and not the message (RFC 9110, 7.6.1)."""
_MAX_SHOWN = 100


class BadRequest(Exception):
    """No request that the proxy can serve; the message is a sentence without its dot."""


class BadHost(Exception):
    """The host is written in no form that is read here; the message is a sentence without its dot."""

    def __init__(self, host: str, problem: str) -> None:
        self.host = host[:_MAX_SHOWN]
        super().__init__(f"{self.host} {problem}")


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes."""

    host: Address | str
    port: int
    authority: bytes
    """Host and port as they were written."""
    path: bytes = b""
    """Path and query; empty for a tunnel."""
    tunnel: bool = False


def read_target(request: h11.Request) -> Target:
    """Raises BadRequest, or BadHost."""
    target = request.target
    if request.method == b"CONNECT":
        host, port = _authority(target, None)
        found = Target(host, port, target, tunnel=True)
    else:
        scheme, separator, rest = target.partition(b"://")
        if not separator:
            raise BadRequest("this is a proxy: it needs the whole address, http://HOST/PATH")
        if scheme.lower() != b"http":
            raise BadRequest("the proxy serves addresses that start with http://, and CONNECT for all others")
        end = min((at for mark in b"/?#\\" if (at := rest.find(mark)) >= 0), default=len(rest))
        host, port = _authority(rest[:end], _WEB_PORT)
        found = Target(host, port, rest[:end], _path(rest[end:]))
    _check_headers(request, found)
    return found


def basic(user: str, password: str) -> bytes:
    """What a program that knows a password proves it with (RFC 7617)."""
    return b"Basic " + b64encode(f"{user}:{password}".encode())


def proof_in(request: h11.Request) -> bytes:
    """What a request proves to the proxy; nothing if it does not try, or more than once."""
    found = [value for name, value in request.headers if name == b"proxy-authorization"]
    return found[0] if len(found) == 1 else b""


def passed_on(request: h11.Request, target: Target) -> h11.Request:
    """The request as the other side gets it, on a connection for it alone."""
    chunked = any(name == b"transfer-encoding" for name, _ in request.headers)
    headers = [(b"Host", target.authority)]
    headers += [(name, value) for name, value in _kept(request) if name.lower() not in (b"host", b"expect")]
    headers += [(b"Transfer-Encoding", b"chunked")] if chunked else []
    return h11.Request(method=request.method, target=target.path, headers=[*headers, (b"Connection", b"close")])


def answered(response: h11.Response) -> h11.Response:
    """An answer as the program gets it."""
    chunked = any(name == b"transfer-encoding" for name, _ in response.headers)
    # Where both are given, the length counts for nothing (RFC 9112, 6.3).
    headers = [(name, value) for name, value in _kept(response) if not (chunked and name.lower() == b"content-length")]
    return h11.Response(status_code=response.status_code, reason=response.reason, headers=headers)


def _kept(message: h11.Request | h11.Response) -> Headers:
    """Those that are not about the connection, with their names as they were written."""
    named = {
        word.strip().lower() for name, value in message.headers if name == b"connection" for word in value.split(b",")
    } - {
        b"content-length",
        b"host",
    }
    left_out = named | _HOP_BY_HOP
    return [(name, value) for name, value in message.headers.raw_items() if name.lower() not in left_out]


def _check_headers(request: h11.Request, target: Target) -> None:
    names = [name for name, _ in request.headers]
    if b"transfer-encoding" in names and b"content-length" in names:
        raise BadRequest("a request has either Content-Length or Transfer-Encoding, not both")
    for name, value in request.headers:
        if name == b"host" and _authority(value, target.port if target.tunnel else _WEB_PORT) != (
            target.host,
            target.port,
        ):
            raise BadRequest("the Host header names another host than the address")


def _authority(text: bytes, port: int | None) -> tuple[Address | str, int]:
    """Host and port. ``port``: the one that is meant where none is given; None: one must be given."""
    if not text.isascii() or b"@" in text:
        raise BadRequest("an address has no user name before its host, and is plain ASCII")
    authority = text.decode("ascii")
    host, separator, number = authority.rpartition(":")
    if not separator or number.endswith("]"):
        host, number = authority, ""
    if number:
        port = int(number) if number.isdecimal() and len(number) <= 5 else 0
    if port is None or not 0 < port < 1 << 16:
        raise BadRequest("an address needs a port between 1 and 65535")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise BadRequest("an IPv6 address stands in brackets")
    try:
        return read_host(host), port
    except ValueError as error:
        raise BadHost(host, str(error)) from None


def _path(rest: bytes) -> bytes:
    if b"#" in rest or b"\\" in rest:
        raise BadRequest("an address has neither # nor \\ in it")
    return rest if rest.startswith(b"/") else b"/" + rest
