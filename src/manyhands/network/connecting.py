"""Connections to hosts that the rules allow.

A name is looked up once, each address that it has is checked, and the connection goes to one that passed: there is no second look-up
whose answer could be another.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address

from manyhands.network.addresses import Address, plain
from manyhands.network.rules import NetworkRules

LookUp = Callable[[str], Awaitable[Sequence[str]]]
"""Gives the addresses of a name. Raises OSError if it has none."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_LOOK_UP_SECONDS = 15.0
_ADDRESSES = 8
"""Of those that a name has, how many are tried."""
BUFFER = 1 << 16


class Refused(Exception):
    """The rules don't allow it; the message is a sentence without its dot."""


class Unreachable(Exception):
    """It is allowed, but can't be connected to; the message is a sentence without its dot."""


async def look_up(name: str) -> list[str]:
    """The addresses of a name, as this machine finds them. Raises OSError."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def tell(found: list[str] | None, error: OSError | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(found or [])

    def find() -> None:
        found, failure = None, None
        try:
            answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            found = list(dict.fromkeys(str(address[0]) for *_, address in answers))
        except (OSError, UnicodeError) as error:
            failure = error if isinstance(error, OSError) else OSError(str(error))
        with suppress(RuntimeError):  # the loop may be closed by now
            loop.call_soon_threadsafe(tell, found, failure)

    # A thread of its own: a name server that does not answer would else hold back all others that wait for a pool's threads.
    threading.Thread(target=find, name="manyhands-name", daemon=True).start()
    return await answer


async def allowed_addresses(host: Address | str, rules: NetworkRules, look_up: LookUp = look_up) -> list[Address]:
    """The addresses of a host that may be connected to, in the order in which they are to be tried. ``host``: as ``addresses.read_host``
    gives it. Raises Refused if there is none, Unreachable if it has no address."""
    if (problem := rules.host(host)) is not None:
        raise Refused(f"{host} {problem}")
    if not isinstance(host, str):
        return [host]
    found = await _found(host, look_up)
    problems = {address: rules.address(address, host) for address in found}
    allowed = [address for address, problem in problems.items() if problem is None]
    if not allowed:
        address, problem = next(iter(problems.items()))
        raise Refused(f"{host} has the address {address}, which {problem}")
    return allowed[:_ADDRESSES]


def is_ours(address: Address) -> bool:
    """Whether an address is one of this machine's own: whoever connects from here comes past whatever keeps others from its services."""
    with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))  # sends nothing
            return plain(ip_address(probe.getsockname()[0])) == address
        except OSError:
            return False


async def connectable_addresses(host: Address | str, rules: NetworkRules, look_up: LookUp = look_up) -> list[Address]:
    """The like, for a connection from this machine: none of them is its own, unless it is listed."""
    addresses = await allowed_addresses(host, rules, look_up)
    ours = [address for address in addresses if is_ours(address) and not rules.lists(address)]
    if ours:
        which = "is" if ours[0] == host else f"has the address {ours[0]}, which is"
        raise Refused(f"{host} {which} this machine's own, {rules.not_listed}")
    return addresses


async def connect(
    host: Address | str, port: int, rules: NetworkRules, *, seconds: float, look_up: LookUp = look_up
) -> Streams:
    """A connection to a host that may be connected to, within ``seconds``. Raises Refused or Unreachable."""
    addresses = await connectable_addresses(host, rules, look_up)
    reason = "no answer in time"
    each = seconds / len(addresses)
    for address in addresses:
        try:
            async with asyncio.timeout(max(1.0, each)):
                return await asyncio.open_connection(str(address), port, limit=BUFFER)
        except TimeoutError:
            reason = "no answer in time"
        except OSError as error:
            reason = error.strerror or type(error).__name__
    raise Unreachable(f"{host} can't be connected to at port {port}: {reason}")


async def _found(name: str, look_up: LookUp) -> list[Address]:
    try:
        async with asyncio.timeout(_LOOK_UP_SECONDS):
            texts = await look_up(name)
        found = [plain(ip_address(text)) for text in texts]
    except TimeoutError:
        raise Unreachable(f"no address of {name} was found in time") from None
    except (OSError, ValueError):
        raise Unreachable(f"{name} has no address") from None
    if not found:
        raise Unreachable(f"{name} has no address")
    return list(dict.fromkeys(found))
