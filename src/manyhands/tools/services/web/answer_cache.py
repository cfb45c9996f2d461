"""Answers that are kept: in a folder, where they are shared by items and runs for a day, and in this process for reading on."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from manyhands.core.clock import Clock
from manyhands.core.errors import StorageError, ToolError
from manyhands.core.jsonio import Json, canonical, dumps, loads
from manyhands.io.files import bytes_written_aside, read_inside
from manyhands.tools.services.artifacts import ArtifactStore
from manyhands.tools.services.steps import Charge, ServiceAnswer, ToolSteps

ARTIFACT = "artifact"
"""The field of an answer that names the file with its text."""
_MAX_RECENT = 1000
_DAY = 86_400.0


class AnswerCache:
    """The answers of one service in one process. ``folder``: where they are kept for others; None: nowhere."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._recent: OrderedDict[str, tuple[float, Json]] = OrderedDict()
        """What this process may read on in, with the time until when."""

    async def answer(
        self,
        steps: ToolSteps,
        charge: Charge | None,
        request: Mapping[str, Any],
        send: Callable[[], Awaitable[ServiceAnswer]],
        *,
        artifacts: ArtifactStore,
        clock: Clock,
        again: bool = False,
    ) -> tuple[dict[str, Any], bool]:
        """The answer to a request, and whether it was kept, which costs nothing. ``request``: everything that an answer depends on;
        ``charge``: of a new one, None if that is free; ``again``: whether this process may have got it before. Raises ServiceError."""
        found: Any = None
        if again or self._folder is not None:
            found = await steps.request(
                None, dict(request), lambda: self._found(request, artifacts, clock, again), service="web cache"
            )
        cached = found is not None
        if not cached:
            replayed = steps.replaying
            found = await steps.request(charge, dict(request), send, service="web")
            if not replayed and self._folder is not None:  # else it may be of another day
                await self._keep(request, found, artifacts, clock)
        if not again or _key(request) not in self._recent:
            self._recent[_key(request)] = clock.now() + _DAY, found
            if len(self._recent) > _MAX_RECENT:
                self._recent.popitem(last=False)
        return found, cached

    async def _found(
        self, request: Mapping[str, Any], artifacts: ArtifactStore, clock: Clock, again: bool
    ) -> ServiceAnswer:
        """The answer to a request if it is kept, else one without content."""
        key = _key(request)
        if again and key in self._recent:
            until, answer = self._recent[key]
            if clock.now() < until:
                return ServiceAnswer(answer)
            del self._recent[key]
        entry = None if self._folder is None else await asyncio.to_thread(self._read, request, clock)
        if entry is None:
            return ServiceAnswer(None)
        if "text" in entry:
            await artifacts.put(entry["text"].encode(), "text/plain")
        return ServiceAnswer(entry["answer"])

    async def _keep(self, request: Mapping[str, Any], answer: Json, artifacts: ArtifactStore, clock: Clock) -> None:
        """Keep an answer for others. A folder that can't be written to is as good as none."""
        entry = {"answer": answer}
        try:
            if ARTIFACT in answer:
                entry["text"] = (await artifacts.get(answer[ARTIFACT])).decode()
            await asyncio.to_thread(self._write, self._path(request, clock), dumps(entry))
        except (StorageError, ToolError):
            return

    def _read(self, request: Mapping[str, Any], clock: Clock) -> dict[str, Any] | None:
        assert self._folder is not None
        try:
            entry = loads(read_inside(self._folder, self._path(request, clock)))
        except (OSError, ValueError):
            return None
        is_one = isinstance(entry, dict) and isinstance(entry.get("answer"), dict)
        return entry if is_one and isinstance(entry.get("text", ""), str) else None

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        with bytes_written_aside(path) as handle:
            handle.write(data)

    def _path(self, request: Mapping[str, Any], clock: Clock) -> Path:
        assert self._folder is not None
        day = datetime.fromtimestamp(clock.now(), UTC).strftime("%Y-%m-%d")
        return self._folder / day / f"{_key(request)}.json"


def _key(request: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(dict(request))).hexdigest()
