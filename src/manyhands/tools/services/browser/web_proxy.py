"""The proxy through which a browser reaches the web."""

from __future__ import annotations

import secrets
from contextlib import suppress

from manyhands.network.addresses import Address, read_host
from manyhands.network.connecting import LookUp, Refused, Streams, Unreachable
from manyhands.network.proxy import EgressProxy
from manyhands.network.rules import NetworkRules
from manyhands.network.serving import ProxyLimits

_OWN = "proxy.invalid"
_MAX_REFUSALS = 1000


class WebProxy(EgressProxy):
    """The proxy of a browser, which remembers why a host was not connected to: Chromium tells only that it was not.

    It serves only who knows ``user`` and ``password``, as everybody on this machine can reach its port."""

    own = f"http://{_OWN}/"
    """An address that the proxy itself answers, with a refusal."""

    def __init__(self, rules: NetworkRules, look_up: LookUp) -> None:
        self.user, self.password = secrets.token_hex(8), secrets.token_hex(16)
        super().__init__(
            rules, limits=ProxyLimits(connections=1024), look_up=look_up, credentials=(self.user, self.password)
        )
        self._refusals: dict[str, str] = {}

    async def connect(self, host: Address | str, port: int) -> Streams:
        if host == _OWN:
            raise Refused("here is nothing but the proxy")
        try:
            streams = await super().connect(host, port)
        except (Refused, Unreachable) as error:
            self._note(str(host), str(error))
            raise
        self._refusals.pop(str(host), None)
        return streams

    def refused(self, host: str) -> None:
        super().refused(host)
        self._note(host, f"{host} is no host that can be asked for")

    def why_refused(self, host: str) -> str | None:
        """Why a host was not connected to when it was last asked for; None if it was."""
        with suppress(ValueError):  # then it was refused as it stands
            host = str(read_host(host))
        return self._refusals.get(host.lower())

    def _note(self, host: str, why: str) -> None:
        if len(self._refusals) >= _MAX_REFUSALS:
            del self._refusals[next(iter(self._refusals))]
        self._refusals[host.lower()] = why
