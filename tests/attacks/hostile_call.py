"""Calls an endpoint some times at once, in a process of its own: what came of it and the memory it took.

The processes are forked from one that has imported everything already and does nothing else.
"""

from __future__ import annotations

import asyncio
import resource
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from manyhands.core.clock import SystemClock
from manyhands.core.errors import ItemError
from manyhands.engine.limits.shared import SharedLimits
from manyhands.models.openai.client import OpenAIChatModel
from manyhands.models.openai.errors import Retries
from manyhands.models.protocol import ChatRequest, ChatSettings

KEY = "sk-very-secret-key-of-a-person"
TIMEOUT = 0.8
LONGEST = 60.0
"""Seconds that calls may take until they have failed to end."""


async def _call(base_url: str) -> str:
    model = OpenAIChatModel(base_url, KEY, retries=Retries(tries=1), max_rate_limit_wait=2.0)
    request = ChatRequest(ChatSettings("m", call_timeout=TIMEOUT), [{"role": "user", "content": "hello"}])
    try:
        answered = await model.complete(request, SharedLimits(first_pause=0.01), SystemClock())
    except ItemError as error:
        return f"{error.cause}: {error.message}"
    finally:
        await model.close()
    return f"answer: {str(answered.message['content'])[:50]}"


def _memory() -> int:
    """The most that this process has had in memory so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


async def _calls(base_url: str, count: int) -> list[str]:
    return list(await asyncio.gather(*(_call(base_url) for _ in range(count))))


def _tell(teller: Connection, base_url: str, count: int) -> None:
    before = _memory()
    said = asyncio.run(_calls(base_url, count))
    teller.send({"said": said, "grown": _memory() - before})


def called(base_url: str, count: int = 1) -> dict[str, Any]:
    """What calls of an endpoint came to. Raises TimeoutError if they don't end, EOFError if their process ends before."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    told, teller = context.Pipe(duplex=False)
    process = context.Process(target=_tell, args=(teller, base_url, count))
    with told:
        process.start()
        teller.close()
        try:
            if not told.poll(LONGEST):
                raise TimeoutError(f"the calls take more than {LONGEST:g} s")
            found: dict[str, Any] = told.recv()
            return found
        finally:
            process.kill()
            process.join()
