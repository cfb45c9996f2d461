"""A program of its own: what a batch is compared with. It asks a model the prompts of a dataset and runs the commands that it is told to.

Nothing of manyhands is in it: a bare asyncio loop with the same HTTP library, JSON library and event loop, and a subprocess for each
command. As many tasks as calls in flight take the next prompt; the last answer of each goes into a file, and nothing else is kept.
Argument, as JSON: ``url``, ``dataset``, ``results``, ``in_flight``, and ``frame`` with the ``model``, ``system`` and ``tools`` of all
requests; ``uvloop``: whether to use it where it is installed; ``orjson``: whether to use it, or the standard library's ``json``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, BinaryIO

import aiohttp
import orjson

loop_factory: Callable[[], asyncio.AbstractEventLoop] | None
try:
    from uvloop import new_event_loop as loop_factory
except ImportError:
    loop_factory = None

JSON = {"Content-Type": "application/json"}
dumps: Callable[[Any], bytes | str] = orjson.dumps
loads: Callable[[bytes | str], Any] = orjson.loads


async def run(command: str) -> str:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_shell(command, stdout=pipe, stderr=asyncio.subprocess.STDOUT)
    return (await process.communicate())[0].decode()


async def converse(session: aiohttp.ClientSession, url: str, frame: dict[str, Any], prompt: str) -> dict[str, Any]:
    """The message that ends the conversation."""
    messages = [{"role": "system", "content": frame["system"]}, {"role": "user", "content": prompt}]
    body = {"model": frame["model"], "messages": messages, **({"tools": frame["tools"]} if frame["tools"] else {})}
    while True:
        async with session.post(url, data=dumps(body), headers=JSON) as response:
            message: dict[str, Any] = loads(await response.read())["choices"][0]["message"]
        if not message.get("tool_calls"):
            return message
        messages.append(message)
        for call in message["tool_calls"]:
            output = await run(loads(call["function"]["arguments"])["command"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})


async def converse_all(given: dict[str, Any], dataset: Iterator[bytes], results: BinaryIO) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def slot(rows: Iterator[bytes]) -> None:
            for row in rows:
                message = await converse(session, given["url"], given["frame"], loads(row)["prompt"])
                line = dumps(message)
                results.write((line if isinstance(line, bytes) else line.encode()) + b"\n")

        await asyncio.gather(*(slot(dataset) for _ in range(given["in_flight"])))


def main() -> None:
    global dumps, loads
    given = json.loads(sys.argv[1])
    if not given["orjson"]:
        dumps, loads = partial(json.dumps, ensure_ascii=False, separators=(",", ":")), json.loads
    dataset, results = open(given["dataset"], "rb"), open(given["results"], "wb")  # noqa: SIM115 - closed below
    with dataset, results, asyncio.Runner(loop_factory=loop_factory if given["uvloop"] else None) as runner:
        runner.run(converse_all(given, iter(dataset), results))


if __name__ == "__main__":
    main()
