"""A child: what is compared with. A bare asyncio loop with the same HTTP library, the same requests, no journal.

Arguments: ``base_url``, ``model``, ``items``, ``in_flight``, ``toolsets``. As many tasks as calls in flight take the next prompt, post
it, and parse the answer; nothing is kept. The requests are those of a trajectory batch to the byte, which the server's count of
different bodies shows. The loop and the HTTP session are the same as in a batch; the garbage collector is as Python sets it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import aiohttp
import orjson

from benchmarks.children import Meter, arguments, report
from benchmarks.prompts import prompt
from manyhands.agents.task import BASE_PROMPT, TOOLS_PROMPT
from manyhands.agents.toolbox import Toolbox
from manyhands.processes.event_loop import loop_factory
from manyhands.tools.standard import standard_registry
from manyhands.tools.toolsets import STANDARD, with_groups


def offered(toolsets: list[str]) -> list[dict[str, Any]]:
    """The tools of these toolsets, as requests hold them."""
    registry = standard_registry()
    names = registry.available(with_groups(STANDARD, registry).tools(toolsets))
    return list(Toolbox([registry.get(name) for name in names]).definitions)


def body(model: str, number: int, tools: list[dict[str, Any]]) -> bytes:
    system = f"{BASE_PROMPT}\n\n{TOOLS_PROMPT}" if tools else BASE_PROMPT
    messages = [{"role": "system", "content": system}, {"role": "user", "content": prompt(number)}]
    return orjson.dumps({"model": model, "messages": messages, **({"tools": tools} if tools else {})})


async def calls(given: dict[str, Any]) -> None:
    url, model, tools = f"{given['base_url']}/chat/completions", given["model"], offered(given["toolsets"])
    numbers = iter(range(given["items"]))
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def slot(numbers: Iterator[int]) -> None:
            for number in numbers:
                data = body(model, number, tools)
                async with session.post(url, data=data, headers={"Content-Type": "application/json"}) as response:
                    answer = orjson.loads(await response.read())
                    assert answer["choices"][0]["message"]["content"]

        await asyncio.gather(*(slot(numbers) for _ in range(given["in_flight"])))


def main() -> None:
    given = arguments()
    offered(given["toolsets"])  # imports and schemas belong to nobody's account
    meter = Meter()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(calls(given))
    report(**asdict(meter.read()))


if __name__ == "__main__":
    main()
