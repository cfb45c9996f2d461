"""Servers that only this machine reaches: where they listen, and which requests are meant for them.

Everything on a machine can reach its loopback, also a page in a browser. A page of another origin shows itself by the ``Host`` that led it
here, if a foreign name was made to point to this machine (DNS rebinding), or by the ``Origin`` that a browser sends. What a server takes
is decided here, without regard to the library that serves.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
import socket
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from manyhands.core.errors import UserError

MAX_WAITING_CONNECTIONS = 200
"""Connections that wait to be accepted."""
_NAMES = ("127.0.0.1", "localhost", "[::1]")
_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[0-9a-z.]{1,45})(?::([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens: a loopback address, and a port (0: a free one)."""

    host: str
    port: int

    @classmethod
    def of(cls, host: str, port: int) -> Address:
        """Raises UserError for anything but this machine's loopback."""
        plain = host.strip("[]").lower()
        if plain == "localhost":
            return cls("127.0.0.1", port)
        if not _is_loopback(plain):
            raise UserError(f"--host must be a loopback address (127.0.0.1, ::1 or localhost), not {host!r}")
        return cls(plain, port)

    @classmethod
    def private(cls, port: int) -> Address:
        """An address of 127.0.0.0/8 that was drawn by lot, so that it shares cookies with no other server of this machine.

        Raises UserError where only 127.0.0.1 leads to this machine.
        """
        if not sys.platform.startswith("linux"):
            raise UserError("--private needs Linux, where every address 127.x.y.z leads to this machine")
        # 127.0.y.z holds addresses that systems use: those of the host's name and of name servers.
        return cls(f"127.{1 + secrets.randbelow(254)}.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}", port)

    @property
    def in_url(self) -> str:
        """The host as a URL has it."""
        return f"[{self.host}]" if ":" in self.host else self.host

    def bind(self) -> socket.socket:
        """A listening socket. Raises UserError if the port is taken."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((self.host, self.port))
            listening.listen(MAX_WAITING_CONNECTIONS)
        except OSError as error:
            listening.close()
            raise UserError(f"can't listen on {self.host} port {self.port}: {error.strerror or error}") from None
        return listening


def hosts_at(address: Address, port: int) -> frozenset[str]:
    """What ``Host`` may be for a server that is reached at its own port only."""
    return frozenset(f"{name}:{port}" for name in (*_NAMES, address.in_url))


def is_loopback_host(host: str) -> bool:
    """Whether a ``Host`` in lower case names this machine's loopback, at any port: a forwarded port (``ssh -L``) has another number."""
    found = _HOST.fullmatch(host)
    if found is None or (found[2] is not None and not 0 < int(found[2]) < 65536):
        return False
    name = found[1]
    return name == "localhost" or ((":" in name) == name.startswith("[") and _is_loopback(name.strip("[]")))


def requested_host(given: Sequence[str], allowed: Callable[[str], bool]) -> str | None:
    """The ``Host`` of a request in lower case, from all headers of that name; None if there is not exactly one, and that ``allowed``."""
    if len(given) != 1:
        return None
    host = given[0].lower()
    return host if allowed(host) else None


def is_foreign_origin(given: Sequence[str], own_hosts: Collection[str]) -> bool:
    """Whether one of a request's ``Origin`` headers is none of ``own_hosts`` (name and port, lower case), served over plain HTTP."""
    return any(origin.lower() not in {f"http://{host}" for host in own_hosts} for origin in given)


def same_secret(given: str, own: str) -> bool:
    """Compared in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), own.encode())


def _is_loopback(address: str) -> bool:
    with suppress(ValueError):
        return "%" not in address and ipaddress.ip_address(address).is_loopback
    return False
