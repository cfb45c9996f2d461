"""A person at the terminal, for a session of one's own."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause

_AT_ONCE = 1 << 16


class TerminalConnection:
    """The way to a person at the terminal. A reply ends with an empty line, or at the end of the input."""

    def __init__(self) -> None:
        self._read = b""

    async def open(self) -> None:
        if not sys.stdin.isatty():
            raise ItemError(Cause.INVALID_INPUT, "the agent human needs a terminal")

    async def send(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        match message["type"]:
            case "message":
                return {"text": await self._asked(message), "cost_usd": 0.0}
            case "load":
                return {"number": message["number"]}  # people remember by themselves
            case "reset":
                print("\n— Please forget all that was said so far. —", flush=True)
        return {}

    async def close(self) -> None:
        """Nothing to close."""

    async def _asked(self, message: Mapping[str, Any]) -> str:
        moment = datetime.fromtimestamp(float(message["now"])).strftime("%Y-%m-%d %H:%M:%S")
        print(f"\n[{moment}]\n{message['text']}\n(your reply, then an empty line)", flush=True)
        lines: list[str] = []
        while (line := await self._line()) and line.strip():
            lines.append(line.rstrip("\n"))
        return "\n".join(lines)

    async def _line(self) -> str:
        """A line with its newline; empty at the end of the input. (Not by a thread: that could not be stopped.)"""
        while b"\n" not in self._read:
            part = await _typed(sys.stdin.fileno())
            if not part:
                break
            self._read += part
        line, newline, self._read = self._read.partition(b"\n")
        return (line + newline).decode(errors="replace")


async def _typed(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, _AT_ONCE)
