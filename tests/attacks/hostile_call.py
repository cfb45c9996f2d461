"""Calls an endpoint some times at once, in a process of its own, and prints what came of it and the memory it took."""

from __future__ import annotations

import asyncio
import json
import resource
import sys

from manyhands.core.clock import SystemClock
from manyhands.core.errors import ItemError
from manyhands.engine.limits.shared import SharedLimits
from manyhands.models.openai.client import OpenAIChatModel
from manyhands.models.openai.errors import Retries
from manyhands.models.protocol import ChatRequest, ChatSettings

KEY = "sk-very-secret-key-of-a-person"
TIMEOUT = 0.8


async def _call(base_url: str) -> str:
    model = OpenAIChatModel(base_url, KEY, retries=Retries(tries=1), longest_rate_limit_wait=2.0)
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


if __name__ == "__main__":
    before = _memory()
    said = asyncio.run(_calls(sys.argv[1], int(sys.argv[2])))
    print(json.dumps({"said": said, "grown": _memory() - before}))
