"""The replicas of an endpoint: each address with each of its API keys has connections and a limiter of its own."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.usage import Reserve
from manyhands.engine.contract import GIVEN_BACK, Limits, OneOf
from manyhands.models.addresses import LOOK_SECONDS, Addresses, AddressFile, addresses_of, paired
from manyhands.models.openai.http import EndpointConnections
from manyhands.models.openai.request import Endpoint
from manyhands.runs.options import is_file_of_values


@dataclass(frozen=True, slots=True)
class EndpointReplica:
    """One of them."""

    endpoint: Endpoint
    connections: EndpointConnections
    limit_key: str
    """What its limiter is known by, see ``limit_key``."""


def limit_key(endpoint: Endpoint, api_key: str | None, path: str = "") -> str:
    """The key of the limiter for an address (or a path there) and an API key, of which it holds a digest, also of the address's query."""
    apart = f"{api_key or ''}\n{endpoint.query}" if endpoint.query else api_key or ""
    return f"{endpoint.shown}{path}#{hashlib.blake2b(apart.encode(), digest_size=4).hexdigest()}"


class EndpointReplicas:
    """The replicas of an endpoint, made of its addresses and keys (see ``paired``). Of a file, they are those that it lists now."""

    def __init__(
        self,
        base_url: Addresses,
        api_key: str | Sequence[str] | None = None,
        *,
        provider_of: Callable[[str], str] | None = None,
        path: str = "",
        **connecting: Any,
    ) -> None:
        """``provider_of``: whose keys an address takes, so that a file that changes takes them nowhere else; ``path``: what is called
        there, if that has a limiter of its own; ``connecting``: see ``EndpointConnections``. Raises UserError for a bad file."""
        self._keys = (api_key,) if isinstance(api_key, str) else tuple(api_key or ())
        self._path = path
        self._connecting = connecting
        self._made: dict[str, EndpointReplica] = {}
        self._file = AddressFile(base_url) if is_file_of_values(base_url) else None
        addresses = addresses_of(base_url) if self._file is None else self._file.read()
        pairs = paired(addresses, self._keys)
        self._keys_by_address = {address: tuple(key for each, key in pairs if each == address) for address in addresses}
        self._provider_of = provider_of or (lambda address: "")
        self._providers = set(map(self._provider_of, addresses))
        self._keys_now, self.endpoints = self._replicas_of(pairs)
        self.first = self._made[self._keys_now[0]]
        self.only = self.first if self._file is None and len(self._made) == 1 else None
        """The only one there ever is, if there is but one."""
        self.shown = self._shown(base_url, len(self._keys_now))
        """What all of them are called together."""
        self._remark: str | None = None

    async def acquire(
        self, limits: Limits, reserve: Reserve, avoid: Collection[str] = (), last: str | None = None
    ) -> tuple[int, EndpointReplica]:
        """The permit for a call, and the replica to make it with. ``avoid``: the limiters' keys of those that it failed with; ``last``: of
        the one to make it with again, if that can be. Raises what ``Limits.acquire`` does."""
        if self.only is not None:
            return await limits.acquire(self.only.limit_key, reserve), self.only
        if self._file is None:
            permit, key = await limits.acquire_one_of(OneOf(self._keys_now, tuple(avoid), last), reserve)
        else:
            permit, key = await self._acquire_of_file(limits, reserve, tuple(avoid), last)
        return permit, self._made[key]

    def has_others(self, keys: Collection[str]) -> bool:
        """Whether there are replicas besides those with these limiters' keys."""
        return self.only is None and any(key not in keys for key in self._keys_now)

    def remark(self) -> str | None:
        """What a person should know of the file, once."""
        remark, self._remark = self._remark, None
        return remark

    async def close(self) -> None:
        """Close all connections. The next call would open new ones."""
        for replica in self._made.values():
            await replica.connections.close()

    async def _acquire_of_file(
        self, limits: Limits, reserve: Reserve, avoid: tuple[str, ...], last: str | None
    ) -> tuple[int, str]:
        """Ask again where the file changes while a call waits, as it may then go to another replica."""
        self._look()
        while True:
            wanted = OneOf(self._keys_now, avoid, last)
            asking = asyncio.ensure_future(limits.acquire_one_of(wanted, reserve))
            try:
                while not (await asyncio.wait((asking,), timeout=LOOK_SECONDS))[0]:
                    if self._look():
                        break
                else:
                    return asking.result()
            except asyncio.CancelledError:
                if asking.done() and not asking.cancelled() and asking.exception() is None:
                    limits.release(asking.result()[0], GIVEN_BACK)
                raise
            finally:
                if asking.cancel():
                    await asyncio.gather(asking, return_exceptions=True)

    def _look(self) -> bool:
        """Take over what changed in the file; whether anything did. What can't be used is remarked, and the replicas stay."""
        if self._file is None:
            return False
        before = self._keys_now
        try:
            addresses = self._file.changed()
            if addresses is not None:
                pairs = [(address, key) for address in addresses for key in self._known_keys(address)]
                self._keys_now, self.endpoints = self._replicas_of(pairs)
        except UserError as error:
            self._remark = f"{error}; the addresses before it are kept"
        return self._keys_now != before

    def _known_keys(self, address: str) -> tuple[str | None, ...]:
        """The keys for an address that may be new. Raises UserError if those of the others are nobody's business there."""
        known = self._keys_by_address
        if address in known:
            return known[address]
        assert self._file is not None
        if len(set(known.values())) > 1:
            raise UserError(
                f"--base_url: {self._file.path}: no key is known for {address}, as each address has its own"
            )
        if self._provider_of(address) not in self._providers:
            raise UserError(
                f"--base_url: {self._file.path}: {address} is another provider's, and gets no key of this run"
            )
        return next(iter(known.values()))

    def _replicas_of(self, pairs: Sequence[tuple[str, str | None]]) -> tuple[tuple[str, ...], tuple[Endpoint, ...]]:
        """The limiters' keys of the replicas at addresses with their API keys, and their endpoints, each once."""
        keys = tuple(dict.fromkeys(self._replica(address, key) for address, key in pairs))
        return keys, tuple({(found := self._made[key].endpoint).url: found for key in keys}.values())

    def _replica(self, address: str, api_key: str | None) -> str:
        """The limiter's key of a replica, which is made if it is new."""
        endpoint = Endpoint.of(address)
        key = limit_key(endpoint, api_key, self._path)
        if key not in self._made:
            connections = EndpointConnections(endpoint, api_key, **self._connecting)
            self._made[key] = EndpointReplica(endpoint, connections, key)
        return key

    def _shown(self, base_url: Addresses, count: int) -> str:
        if self.only is not None:
            return self.only.endpoint.shown
        return base_url if isinstance(base_url, str) else f"{self.first.endpoint.shown} and {count - 1} more"
