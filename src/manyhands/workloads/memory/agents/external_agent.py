"""Agents that are not this program's: one exchange is one step, and what they remember is their own.

After a crash such an agent first gets a request for what it has kept (``load``), and then again what was said since, with its own replies
(``exchange``), so that one that keeps nothing can follow too. No message is sent to it twice, but for one that was on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from manyhands.core.digests import digest
from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import without_surrogates
from manyhands.core.usage import MAX_COUNT, Reserve, Usage, as_cost
from manyhands.engine.contract import CallReport, Context, Effect
from manyhands.workloads.memory.conversation.driver import Answer, Incoming, MemoryAgent
from manyhands.workloads.memory.conversation.tokens import TokenCounter

REFUSED = "refused"
"""The key of an answer to ``reset`` of an agent that can't: why."""
EXCHANGE = "exchange"
"""The kind of a step in which an agent outside was sent a message."""
OwnClock = Callable[[float], AbstractContextManager[Any]]
"""Lets this process's clock go on from a time, in seconds since 1970 UTC, for as long as something runs."""


@dataclass(frozen=True, slots=True)
class SeenExchange:
    """Something that an agent was sent before."""

    kind: Literal["message", "forward_time", "reset"]
    number: int
    """Of a message; 0 for what is none."""
    now: float
    """Virtual time, in seconds since 1970 UTC."""
    text: str = ""
    reply: str = ""


class AgentConnection(Protocol):
    """The way to an agent outside. What it is sent and answers are JSON objects (see docs/memory.md)."""

    async def open(self) -> None:
        """Make it ready. Raises ItemError."""
        ...

    async def send(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Raises ItemError if no usable reply comes in time."""
        ...

    async def close(self) -> None: ...


class ExternalAgent(MemoryAgent):
    """An agent that is not this program's: a program, a server, a Python class or a person."""

    simulated = False

    def __init__(
        self,
        name: str,
        connection: AgentConnection,
        *,
        conversation: str,
        max_message_size: int | None = None,
        clock: OwnClock | None = None,
        isolated: bool = False,
        tokens: TokenCounter | None = None,
    ) -> None:
        """``conversation``: names it to the agent; ``clock``: what this process's clock shows to the agent, None for what it is;
        ``isolated``: it must be able to forget, and gets a request to before anything is said; ``tokens``: how it counts tokens itself."""
        self.name = name
        self.tokens = tokens
        self._is_isolated = isolated
        self._clock: OwnClock = clock or (lambda now: nullcontext())
        self.max_message_size = max_message_size
        self._connection = connection
        self._conversation = conversation
        self._open = False
        self._now = 0.0
        self._seen: list[SeenExchange] = []

    async def reply(self, context: Context, incoming: Incoming) -> Answer:
        request = {"number": incoming.number, "text": digest("text", incoming.text).hex()}
        self._now = incoming.now

        async def effect() -> Effect:
            permit = await context.limits.acquire(self.name, Reserve())  # what it takes is known only afterwards
            report = CallReport(failed=True)
            try:
                await self._ready()
                expected = incoming.expected_reply
                said = {"type": "message", "number": incoming.number, "text": incoming.text, "expected_reply": expected}
                found = await self._sent(said, incoming.now)
                usage = _usage(found)
                report = CallReport(usage)
                text = without_surrogates(_text(found))  # what the journal gives back later
                return Effect({"text": text, "usage": usage.to_json()}, usage)
            finally:
                context.limits.release(permit, report)

        recorded = context.replaying
        output: dict[str, Any] = await context.step(EXCHANGE, request, effect)
        if recorded:
            self._seen.append(SeenExchange("message", incoming.number, incoming.now, incoming.text, output["text"]))
        return Answer(output["text"], Usage.from_json(output["usage"]))

    async def forward_time(self, context: Context, now: float) -> None:
        await self._tell_once(context, "forward_time", now)

    async def reset(self, context: Context) -> None:
        await self._tell_once(context, "reset", self._now)

    async def close(self) -> None:
        await self._connection.close()

    async def _tell_once(self, context: Context, kind: Literal["forward_time", "reset"], now: float) -> None:
        self._now = now

        async def effect() -> Effect:
            await self._ready()
            await self._tell(kind, now)
            return Effect({})

        recorded = context.replaying
        request = {"now": now} if kind == "forward_time" else {}
        await context.step(kind, request, effect)
        if recorded:
            self._seen.append(SeenExchange(kind, 0, now))

    async def _ready(self) -> None:
        """Open the connection, once, and let the agent catch up with what it has been through."""
        if self._open:
            return
        with self._clock(self._now):
            await self._connection.open()
        self._open = True
        seen, self._seen = self._seen, []
        if not seen:
            if self._is_isolated:
                await self._tell("reset", self._now)  # whether it can is known before anything is paid
            return
        last = max((each.number for each in seen), default=0)
        kept = (await self._sent({"type": "load", "number": last}, seen[-1].now)).get("number")
        known = min(kept, last) if isinstance(kept, int) and not isinstance(kept, bool) else 0
        kept_count = next((index + 1 for index, each in enumerate(seen) if each.number == known), 0) if known else 0
        for each in seen[kept_count:]:
            await self._repeat(each)

    async def _repeat(self, seen: SeenExchange) -> None:
        if seen.kind == "message":
            message = {"type": "exchange", "number": seen.number, "text": seen.text, "reply": seen.reply}
            await self._sent(message, seen.now)
        else:
            await self._tell(seen.kind, seen.now)

    async def _tell(self, kind: str, now: float) -> None:
        """Raises ItemError, which is not tried again, if the agent can't do what its tests rest on."""
        found = await self._sent({"type": kind}, now)
        if kind == "reset" and (problem := _not_reset(found)):
            raise ItemError(
                Cause.INVALID_INPUT,
                f"--isolated: the agent {self.name} can't forget one test before the next: {problem}",
            )

    async def _sent(self, message: Mapping[str, Any], now: float) -> Mapping[str, Any]:
        with self._clock(now):
            return await self._connection.send({**message, "session": self._conversation, "now": now})


def _not_reset(found: Mapping[str, Any]) -> str:
    """Why an answer to ``reset`` does not say that the agent has forgotten; empty if it does."""
    if found.get(REFUSED):
        return f"asked to reset, {found[REFUSED]}"
    if found.get("text"):
        return "it answered reset as if that were a message"
    if any(found.get(name) is False for name in ("reset", "ok")):
        return "it answered reset with false"
    return ""


def _text(found: Mapping[str, Any]) -> str:
    """The agent's reply. Raises ItemError if there is none: it would be scored as if the agent had said nothing."""
    text = found.get("text")
    if not isinstance(text, str):
        shown = ", ".join(map(repr, list(found)[:5])) or "nothing"
        problem = f"its text is {type(text).__name__}" if "text" in found else f"it has no text, but {shown}"
        raise ItemError(Cause.TARGET_ERROR, f"the agent's answer to a message holds no reply: {problem}")
    return text


def _usage(found: Mapping[str, Any]) -> Usage:
    """What the agent says that a reply took: ``cost_usd``, ``input_tokens``, ``output_tokens``."""
    cost = as_cost(found.get("cost_usd"))
    tokens = [found.get(name) for name in ("input_tokens", "output_tokens")]
    used = [each if isinstance(each, int) and 0 <= each <= MAX_COUNT else 0 for each in tokens]
    return Usage(
        calls=1,
        input_tokens=used[0],
        output_tokens=used[1],
        cost=cost or 0.0,
        unpriced_calls=int(cost is None),
    )
