"""A child: a model server that does next to nothing, so that what is measured is its clients.

Arguments: ``latency`` (seconds before each answer), ``turns`` (how often a conversation is told to run ``COMMAND`` in the terminal before
it is answered), ``full`` (requests in flight whose moment is noted). ``GET /stats`` says what it saw. It prints its base URL and serves
until it is terminated.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from benchmarks.children import arguments
from manyhands.processes.event_loop import run_on_loop

COMMAND = "echo ready"
_USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120, "cost": 0.0}
_END_OF_HEAD = b"\r\n\r\n"
_TOOL_MESSAGE = b'"role":"tool"'


def answer(turn: int, turns: int) -> bytes:
    """The response to a conversation that has had that many turns."""
    message: dict[str, Any] = {
        "role": "assistant",
        "reasoning": "I know what to do.",
        "content": "The last harbour is Bodø.",
    }
    reason = "stop"
    if turn < turns:
        function = {"name": "terminal", "arguments": orjson.dumps({"command": COMMAND}).decode()}
        message |= {"content": None, "tool_calls": [{"id": f"call_{turn}", "type": "function", "function": function}]}
        reason = "tool_calls"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return response({"id": "1", "object": "chat.completion", "model": "fake", "choices": [choice], "usage": _USAGE})


def response(payload: Any) -> bytes:
    body = orjson.dumps(payload)
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


@dataclass(slots=True)
class Seen:
    """What came. Times are of ``time.time``; ``bodies`` is the same for the same requests in any order."""

    full: int
    requests: int = 0
    in_flight: int = 0
    most: int = 0
    bodies: int = 0
    first: float = 0.0
    filled: float | None = None
    last: float = 0.0
    waited: float = 0.0
    gaps: list[float] = field(default_factory=lambda: [0.0] * 16)
    """Seconds between the answer before and a request of each turn, which tell something if requests come one at a time."""

    def began(self, body: bytes, turn: int) -> None:
        now = time.time()
        self.first = self.first or now
        self.gaps[turn] += now - self.last
        self.requests += 1
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        self.bodies ^= int.from_bytes(hashlib.blake2b(body, digest_size=6).digest())
        if self.filled is None and self.in_flight >= self.full:
            self.filled = now

    def ended(self, seconds: float) -> None:
        self.in_flight -= 1
        self.waited += seconds
        self.last = time.time()

    def stats(self) -> dict[str, Any]:
        mean = self.waited / (self.last - self.first) if self.last > self.first else 0.0
        names = ("requests", "most", "bodies", "first", "filled", "gaps")
        return {"mean_in_flight": mean, **{name: getattr(self, name) for name in names}}


class Connection(asyncio.Protocol):
    """One client's requests, one after the other."""

    def __init__(self, seen: Seen, latency: float, answers: list[bytes]) -> None:
        self._seen, self._latency, self._answers = seen, latency, answers
        self._received = b""
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, rest = self._received.partition(_END_OF_HEAD)
        if not end:
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        if len(rest) < length:
            return
        self._received = rest[length:]
        if head.startswith(b"GET"):
            self._transport.write(response(self._seen.stats()))
            return
        turn = rest.count(_TOOL_MESSAGE)
        self._seen.began(rest[:length], turn)
        self._loop.call_later(self._latency, self._answer, turn, time.time())

    def _answer(self, turn: int, began: float) -> None:
        self._seen.ended(time.time() - began)
        self._transport.write(self._answers[turn])


async def serve(latency: float, turns: int, full: int) -> None:
    seen, answers = Seen(full), [answer(turn, turns) for turn in range(turns + 1)]
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(seen, latency, answers), "127.0.0.1", 0, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    run_on_loop(serve(**arguments()))
