"""What is due to a host whose pages are read: its ``robots.txt`` (RFC 9309), few requests at the same time, and a pause between them."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from manyhands.core import VERSION
from manyhands.core.jsonio import dumps, loads
from manyhands.processes.killable import killable
from manyhands.tools.services.steps import ServiceError

ROBOT = "manyhands"
"""The name by which a ``robots.txt`` may speak of us."""
USER_AGENT = f"{ROBOT}/{VERSION}"
AT_ONCE = 2
"""Requests to one host at the same time."""
PAUSE = 1.0
"""Seconds between the beginnings of two requests to one host."""
MAX_RULES = 500 << 10
"""Bytes of a ``robots.txt`` that count (RFC 9309, 2.5)."""
FAILED_SECONDS = 30.0
TURNS = "web-turns.json"
"""In a run's folder, the file by which its processes keep pauses together."""
_KEPT_SECONDS = 86_400.0
"""For which a ``robots.txt`` counts (RFC 9309, 2.4)."""
_RULES_SECONDS = 2.0
_MAX_HOSTS = 4096
_FAR = 3600.0
"""Seconds. A turn that is further away was written by another clock."""


class _Host:
    """What is known of one host."""

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(AT_ONCE)
        self.order = asyncio.Lock()
        self.next = 0.0
        self.asking = asyncio.Lock()
        self.rules: dict[str, _Rules] = {}
        """By the part of the address before its path."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """A ``robots.txt``."""

    text: str
    until: float
    failure: str = ""
    """Why it can't be had."""


class Courtesy:
    """The hosts of one process. ``pause``: seconds between the beginnings of requests to one host; ``turns``: a file by which processes
    of this machine that have the same one keep it together; ``failed_seconds``: for which nothing of a host is read whose ``robots.txt``
    can't be had (RFC 9309, 2.3.1.4), before that is asked for again."""

    def __init__(
        self, pause: float = PAUSE, turns: Path | None = None, *, failed_seconds: float = FAILED_SECONDS
    ) -> None:
        self._pause, self._turns, self._failed_seconds = pause, turns, failed_seconds
        self._hosts: OrderedDict[str, _Host] = OrderedDict()

    @asynccontextmanager
    async def turn(self, host: str, *, paused: bool = True) -> AsyncIterator[None]:
        """Wait until a request to a host may begin. ``paused``: whether there is a pause after the one before."""
        known = self._host(host)
        async with known.places:
            if paused and self._pause:
                await self._wait(host, known)
            yield

    async def may_read(self, host: str, origin: str, address: str, get_rules: Callable[[], Awaitable[str]]) -> bool:
        """Whether an address may be read by robots. ``origin``: its part before the path; ``get_rules``: gets the host's rules, which is
        done once for all who ask. Raises ServiceError, as that does, if there may be rules, but they can't be had."""
        known, clock = self._host(host), asyncio.get_running_loop().time
        async with known.asking:
            rules = known.rules.get(origin)
            if rules is None or clock() >= rules.until:
                try:
                    rules = _Rules(await get_rules(), clock() + _KEPT_SECONDS)
                except ServiceError as error:
                    rules = _Rules("", clock() + self._failed_seconds, str(error))
                known.rules[origin] = rules
        if rules.failure:
            raise ServiceError(rules.failure)
        if not rules.text.strip():
            return True
        try:
            return await killable(is_allowed, rules.text, address, seconds=_RULES_SECONDS)
        except TimeoutError:
            return False

    async def _wait(self, host: str, known: _Host) -> None:
        clock = asyncio.get_running_loop().time
        async with known.order:
            if self._turns is not None:
                with suppress(OSError):  # a full disk, or one without locks: then each process keeps it for itself
                    seconds = await asyncio.to_thread(_next_turn, self._turns, host, self._pause)
                    known.next = max(known.next, clock() + seconds)
            if (seconds := known.next - clock()) > 0:
                await asyncio.sleep(seconds)
            known.next = clock() + self._pause

    def _host(self, host: str) -> _Host:
        found = self._hosts.get(host)
        if found is None:
            found = self._hosts[host] = _Host()
            if len(self._hosts) > _MAX_HOSTS:
                self._hosts.popitem(last=False)
        self._hosts.move_to_end(host)
        return found


def _next_turn(file: Path, host: str, pause: float) -> float:
    """Take the next turn of a host; seconds until it comes. The file has the time from which on each host may be asked again. Raises
    OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(file, flags, 0o600), "r+b") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        now = time.time()
        try:
            turns = {name: at for name, at in loads(handle.read()).items() if now < at < now + _FAR}
        except (ValueError, AttributeError, TypeError):  # it is new, or was left half written
            turns = {}
        at = turns.get(host, now)
        turns[host] = at + pause
        handle.seek(0)
        handle.truncate()
        handle.write(dumps(turns))
    return float(at - now)


def is_allowed(rules: str, address: str) -> bool:
    """Whether the text of a ``robots.txt`` allows an address to be read. Its patterns may take long to match, so this is done in a helper
    process."""
    from protego import Protego  # needs an extra

    return bool(Protego.parse(rules).can_fetch(address, ROBOT))
