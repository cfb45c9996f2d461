"""Addresses and names of hosts: how they may be written, and which addresses are public.

What is not public is IANA's special-purpose address registries (RFC 6890), multicast (RFC 5771, RFC 4291), and addresses at which clouds
serve a machine's own metadata. Forms of IPv6 that carry an IPv4 address are judged by what they lead to, or are not public.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_MAX_NAME = 253
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_FOUR_PARTS = re.compile(r"(0|[1-9][0-9]{0,2})(\.(0|[1-9][0-9]{0,2})){3}")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")

_SPECIAL_4 = {
    "0.0.0.0/8": "an address of this machine",
    "10.0.0.0/8": "a private address",
    "100.64.0.0/10": "an address of the provider's own network",
    "127.0.0.0/8": "a loopback address",
    "168.63.129.16/32": "a cloud's metadata address",
    "169.254.0.0/16": "a link-local address, as clouds' metadata services have",
    "172.16.0.0/12": "a private address",
    "192.0.0.0/24": "an address reserved for protocols",
    "192.0.2.0/24": "an address for documentation",
    "192.88.99.0/24": "an address of 6to4 relays",
    "192.168.0.0/16": "a private address",
    "198.18.0.0/15": "an address for benchmarks",
    "198.51.100.0/24": "an address for documentation",
    "203.0.113.0/24": "an address for documentation",
    "224.0.0.0/4": "a multicast address",
    "240.0.0.0/4": "a reserved address",
}
_SPECIAL_6 = {
    "::1/128": "a loopback address",
    "::/128": "an address of this machine",
    "::/96": "an IPv4 address in IPv6 form",
    "64:ff9b:1::/48": "an address of a local translation to IPv4",
    "100::/64": "an address that leads nowhere",
    "2001::/23": "an address of a tunnel or reserved for protocols",
    "2001:db8::/32": "an address for documentation",
    "2002::/16": "an IPv4 address in IPv6 form (6to4)",
    "3fff::/20": "an address for documentation",
    "5f00::/16": "an address of a provider's own routing",
    "fc00::/7": "a private address",
    "fe80::/10": "a link-local address",
    "fec0::/10": "a private address",
    "ff00::/8": "a multicast address",
}
_SPECIAL: tuple[tuple[Network, str], ...] = tuple(
    (ip_network(block), words) for block, words in (*_SPECIAL_4.items(), *_SPECIAL_6.items())
)
_GLOBAL_6 = IPv6Network("2000::/3")
_MAPPED, _TRANSLATED = IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96")
_MAPPED_BITS = 96
_IN_INTERFACE = (0x00005EFE, 0x02005EFE)
"""The upper half of an interface's id that holds an IPv4 address in the lower one (ISATAP, RFC 5214)."""


def plain(address: Address) -> Address:
    """The same address; an IPv4 one that was written in IPv6 form (``::ffff:a.b.c.d``) as IPv4."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def plain_network(network: Network) -> Network:
    """The like for a block."""
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        return IPv4Network((int(network.network_address) & 0xFFFFFFFF, network.prefixlen - _MAPPED_BITS))
    return network


def why_not_public(address: Address) -> str | None:
    """What an address is that is not public ("a private address"), or None if it is."""
    address = plain(address)
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return "an address of one network interface"
        if address in _TRANSLATED:
            return why_not_public(IPv4Address(int(address) & 0xFFFFFFFF))
        if (int(address) >> 32) & 0xFFFFFFFF in _IN_INTERFACE:
            return "an IPv4 address in IPv6 form (ISATAP)"
    found = next((words for block, words in _SPECIAL if address in block), None)
    if found is None and isinstance(address, IPv6Address) and address not in _GLOBAL_6:
        return "a reserved address"
    return found


def is_special(network: Network) -> bool:
    """Whether a block lies in one whose addresses are not public."""
    if isinstance(network, IPv6Network) and not network.overlaps(_GLOBAL_6):
        return True
    blocks = (block for block, _ in _SPECIAL)
    return any(block.version == network.version and network.subnet_of(block) for block in blocks)  # type: ignore[arg-type]


def read_host(text: str) -> Address | str:
    """A host as it stands in an address of the web: an IP address (IPv6 with or without brackets), else a name in its one form: lower
    case, ASCII (IDNA), without a dot at its end. Raises ValueError, in words that follow the host, for what is neither: also for IPv4
    addresses in short, octal or hexadecimal forms, which programs read differently, and for zones of interfaces."""
    if text.startswith("[") and text.endswith("]"):
        return _version_6(text[1:-1])
    if ":" in text:
        return _version_6(text)
    if _FOUR_PARTS.fullmatch(text):
        try:
            return IPv4Address(text)
        except ValueError:
            raise ValueError("is no IPv4 address") from None
    return read_name(text)


def _version_6(text: str) -> Address:
    if "%" in text:
        raise ValueError("names a network interface")
    try:
        return plain(IPv6Address(text))
    except ValueError:
        raise ValueError("is no IPv6 address") from None


@lru_cache(1024)
def read_name(text: str) -> str:
    """A host's name in its one form. Raises ValueError as ``read_host`` does."""
    name = _ascii(text).lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > _MAX_NAME or not all(map(_LABEL.fullmatch, labels)):
        raise ValueError("is no name of a host")
    if _NUMBER.fullmatch(labels[-1]):
        raise ValueError("is no name of a host, nor an address in its usual form (four decimal numbers)")
    return name


def _ascii(text: str) -> str:
    if text.isascii():
        return text
    import idna  # large, and hardly any name needs it

    try:
        return idna.encode(text, uts46=True).decode()
    except (idna.IDNAError, UnicodeError):
        raise ValueError("is no name of a host") from None
