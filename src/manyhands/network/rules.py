"""What may be connected to: names, names below a name, addresses, blocks of addresses.

Two questions, both to be answered before a connection is made: whether a host may be asked for (``host``; of names that may not, no
address is looked up, since a look-up alone tells a stranger's server something), and whether an address may be connected to
(``address``), which is the one that the connection then goes to. A name says nothing about the addresses behind it, so an address that is
not public must be listed itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network

from manyhands.core.errors import UserError
from manyhands.network.addresses import (
    Address,
    Network,
    is_special,
    plain,
    plain_network,
    read_host,
    read_name,
    why_not_public,
)

OPTION = "--network_allow"
_NOT_LISTED = f"which {OPTION} does not list"
_PRIVATE = ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7")
"""What tools of the web may be allowed to reach besides: no metadata services of clouds, nor other special addresses."""
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class NetworkRules:
    """What may be connected to, at any port. Without anything in it: nothing."""

    names: frozenset[str] = frozenset()
    """Names, each for itself."""
    domains: frozenset[str] = frozenset()
    """Names below which all names may be asked for, but not they themselves."""
    networks: tuple[Network, ...] = ()
    """Addresses and blocks."""
    all_public: bool = False
    """Whether all names, and all public addresses, may be connected to besides."""
    words: tuple[str, ...] = ()
    """The rules as they were written."""
    not_listed: str = _NOT_LISTED
    """Said of an address that is not public."""

    @classmethod
    def read(cls, words: Iterable[str], *, all_public: bool = False) -> NetworkRules:
        """Rules as people write them: ``HOST``, ``*.HOST``, an address or a block. Raises ValueError, naming the word, for others."""
        words = tuple(words)
        names, domains, networks = set(), set(), []
        for word in words:
            try:
                rule = _rule(word)
            except ValueError as error:
                raise ValueError(f"{word!r} {error}") from None
            if not isinstance(rule, str):
                networks.append(rule)
            elif rule.startswith("*."):
                domains.add(rule[2:])
            else:
                names.add(rule)
        return cls(frozenset(names), frozenset(domains), tuple(networks), all_public, words)

    @classmethod
    def all(cls, listed: Iterable[str] = ()) -> NetworkRules:
        """Everything public, and what is listed besides, as private addresses must be."""
        return cls.read(listed, all_public=True)

    @classmethod
    def web(cls, *, private: bool) -> NetworkRules:
        """For tools of the web: everything public, and with ``private`` (``--web_allow_private``) also private and loopback addresses."""
        rules = cls.all(_PRIVATE if private else ())
        return replace(rules, not_listed="which this tool does not reach")

    def host(self, host: Address | str) -> str | None:
        """Why a host (as ``addresses.read_host`` gives it) can't be asked for, in words that follow it; None if it can."""
        if not isinstance(host, str):
            return self.address(host)
        if self.all_public or host in self.names or any(parent in self.domains for parent in _above(host)):
            return None
        return f"is not among the hosts that {OPTION} lists{self._listed()}"

    def address(self, address: Address, name: str | None = None) -> str | None:
        """Why an address can't be connected to, in words that follow it; None if it can. ``name``: the host that was asked for and has
        this address, if that is a name that may be asked for."""
        address = plain(address)
        not_public = why_not_public(address)
        if self.lists(address):
            return None
        if not_public is not None:
            return f"is {not_public}, {self.not_listed}"
        if self.all_public or name is not None:
            return None
        return f"is not among the hosts that {OPTION} lists{self._listed()}"

    def lists(self, address: Address) -> bool:
        """Whether an address is listed itself, or lies in a block that is. One that is not public lies only in blocks that are not."""
        address = plain(address)
        not_public = why_not_public(address)
        return any(address in network for network in self.networks if not_public is None or is_special(network))

    def within(self, others: NetworkRules) -> NetworkRules:
        """What both allow: these come from somebody who may only tighten the ``others``."""
        ours = [word for word in self.words if others.contains(word)]
        kept = NetworkRules.read(ours)
        theirs = [word for word in others.words if self.contains(word) and not kept.contains(word)]
        return NetworkRules.read([*ours, *theirs], all_public=self.all_public and others.all_public)

    def contains(self, word: str) -> bool:
        """Whether everything that a rule allows is allowed here, too. Raises ValueError for no rule."""
        rule = _rule(word)
        if not isinstance(rule, str):
            inside = any(each.version == rule.version and rule.subnet_of(each) for each in self.networks)  # type: ignore[arg-type]
            return inside or (self.all_public and not is_special(rule))
        if rule.startswith("*."):
            return self.all_public or any(parent in self.domains for parent in (rule[2:], *_above(rule[2:])))
        return self.host(rule) is None

    def _listed(self) -> str:
        if not self.words:
            return " (none)"
        more = f" and {len(self.words) - _SHOWN} more" if len(self.words) > _SHOWN else ""
        return f" ({', '.join(self.words[:_SHOWN])}{more})"


def read_rules(words: Iterable[str]) -> NetworkRules:
    """The rules of ``--network_allow``. Raises UserError, naming the word."""
    try:
        return NetworkRules.read(words)
    except ValueError as error:
        raise UserError(f"{OPTION} {error}") from None


def tightened(rules: Iterable[str], allowed: Iterable[str]) -> tuple[str, ...]:
    """What both lists of rules allow, as it is written in either of them. Raises ValueError, naming the word, for no rule."""
    return NetworkRules.read(rules).within(NetworkRules.read(allowed)).words


def public_alone(rules: Iterable[str]) -> tuple[str, ...]:
    """Those rules that open no address which is not public: for lists that come from somebody else, such as a dataset's author. Raises
    ValueError, naming the word, for no rule."""
    return NetworkRules.read(rules).within(NetworkRules.all()).words


def _rule(word: str) -> str | Network:
    """A name in its one form, with ``*.`` in front if that was there, or a block."""
    text = word.strip()
    if "://" in text:
        raise ValueError("is an address of the web: give the name of its host alone")
    if text == "*":
        raise ValueError("is everything: give --network for that")
    if text.startswith("*."):
        return f"*.{read_name(text[2:])}"
    if "/" in text:
        return _block(text)
    if _has_port(text):
        raise ValueError("names a port: give the host alone, whose ports can all be reached")
    host = read_host(text)
    return host if isinstance(host, str) else ip_network(host)


def _block(text: str) -> Network:
    start, _, length = text.partition("/")
    try:
        ip_address(start)
    except ValueError:
        raise ValueError("is neither a host nor a block of addresses (such as 10.1.0.0/16)") from None
    if "%" in start or not (length.isascii() and length.isdecimal()):
        raise ValueError("is no block of addresses (such as 10.1.0.0/16)")
    try:
        network = plain_network(ip_network(text))
    except ValueError as error:
        said = f"has bits behind its first {length}" if "host bits" in str(error) else "is no block of addresses"
        raise ValueError(said) from None
    if network.prefixlen == 0:
        raise ValueError("is everything: give --network for that")
    return network


def _has_port(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return port.isdecimal() and bool(host) and (":" not in host or host.endswith("]"))


def _above(name: str) -> Iterable[str]:
    """The names above a name: of ``a.b.c`` these are ``b.c`` and ``c``."""
    labels = name.split(".")
    return (".".join(labels[start:]) for start in range(1, len(labels)))
