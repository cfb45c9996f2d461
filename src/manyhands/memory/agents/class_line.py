"""An agent that is a Python class, in this process: the methods of the original's agents.

``reply(user_message, agent_response=None)`` is needed; ``reset()``, ``save()``, ``load()``, ``forward_time(seconds)``,
``observe(message, reply)`` and ``close()`` are called where the class has them. Methods may be coroutines. What the class adds to its
``costs_usd`` is counted.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.engine.files import written_aside
from manyhands.memory.agents.outside import REFUSED

KEPT = "messages.json"
"""The file in the agent's folder that says how many messages its saved state includes."""


class ClassLine:
    """See ``outside.Line``. ``make``: gives the object; ``folder``: its ``save_path``; ``seconds``: for one call of a method."""

    def __init__(self, make: Callable[[], Any], *, folder: Path, seconds: float) -> None:
        self._make = make
        self._folder = folder
        self._seconds = seconds
        self._agent: Any = None
        self._now: float | None = None

    async def open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._agent = await self._called(self._make)
        if not callable(getattr(self._agent, "reply", None)):
            raise ItemError(Cause.TARGET_ERROR, f"{type(self._agent).__name__} is no agent: it has no method reply")

    async def send(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        await self._forward(float(message["now"]), jump=message["type"] == "forward_time")
        match message["type"]:
            case "message":
                return await self._reply(message)
            case "load":
                return await self._load()
            case "exchange":
                await self._observe(message)
            case "reset":
                return await self._reset()
        return {}

    async def _reset(self) -> Mapping[str, Any]:
        if not callable(getattr(self._agent, "reset", None)):
            return {REFUSED: "it has no method reset"}
        try:
            await self._called(self._agent.reset)
        except ItemError as error:
            if isinstance(error.__cause__, NotImplementedError):
                return {REFUSED: "its reset raised NotImplementedError"}
            raise
        return {}

    async def close(self) -> None:
        if self._agent is not None:
            with suppress(ItemError):
                await self._optional("close")

    async def _reply(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        before = self._costs()
        expected = [message["expected_reply"]] if self._takes_reply else []
        text = await self._called(self._agent.reply, message["text"], *expected)
        if not isinstance(text, str):
            raise ItemError(Cause.TARGET_ERROR, f"the agent's reply is no text but {type(text).__name__}")
        if hasattr(self._agent, "save"):
            await self._called(self._agent.save)
            with written_aside(self._folder / KEPT) as file:
                file.write(json.dumps({"messages": message["number"]}))
        return {"text": text, "cost_usd": max(0.0, self._costs() - before)}

    async def _load(self) -> Mapping[str, Any]:
        with suppress(OSError, ValueError, KeyError, TypeError):
            number = int(json.loads((self._folder / KEPT).read_text())["messages"])
            if hasattr(self._agent, "load"):
                await self._called(self._agent.load)
                return {"number": number}
        return {"number": 0}

    async def _observe(self, message: Mapping[str, Any]) -> None:
        if hasattr(self._agent, "observe"):
            await self._called(self._agent.observe, message["text"], message["reply"])
            return
        # An agent that takes a reply for its own (agent_response) remembers it by that.
        if not self._takes_reply:
            raise ItemError(
                Cause.TARGET_ERROR, "the agent can't go on after a break: it has neither save and load nor observe"
            )
        await self._called(self._agent.reply, message["text"], message["reply"])

    @property
    def _takes_reply(self) -> bool:
        parameters = inspect.signature(self._agent.reply).parameters.values()
        return len(parameters) > 1 or any(each.kind is each.VAR_POSITIONAL for each in parameters)

    async def _forward(self, now: float, *, jump: bool) -> None:
        if jump and self._now is not None and now > self._now and hasattr(self._agent, "forward_time"):
            await self._called(self._agent.forward_time, now - self._now)
        self._now = now

    async def _optional(self, name: str) -> None:
        if hasattr(self._agent, name):
            await self._called(getattr(self._agent, name))

    async def _called(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call it, in a thread if it is no coroutine. Raises ItemError for whatever it raises."""
        try:
            async with asyncio.timeout(self._seconds):
                if inspect.iscoroutinefunction(function):
                    return await function(*arguments)
                return await asyncio.to_thread(function, *arguments)
        except TimeoutError:
            raise ItemError(Cause.TARGET_ERROR, f"the agent took longer than {self._seconds:g} seconds") from None
        except ItemError:
            raise
        except Exception as error:
            raise ItemError(Cause.TARGET_ERROR, f"the agent raised {type(error).__name__}: {error}") from error

    def _costs(self) -> float:
        value = getattr(self._agent, "costs_usd", 0.0)
        return float(value) if isinstance(value, (int, float)) else 0.0
