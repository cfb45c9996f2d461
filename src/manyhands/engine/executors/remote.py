"""A worker process on another machine: ``python -m manyhands.engine.executors.remote``, with a ``Call`` as JSON on standard input."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from manyhands.core.errors import UserError
from manyhands.engine.executors import wire
from manyhands.engine.executors.handshake import Refused, reach
from manyhands.engine.executors.node_folder import NodeFolder
from manyhands.engine.executors.worker import serve
from manyhands.processes.event_loop import run_on_loop
from manyhands.processes.output import safe_streams
from manyhands.processes.python_functions import are_elsewhere
from manyhands.processes.strays import kill_strays
from manyhands.processes.system import die_with_parent

UNREACHABLE = 71
"""The exit code of a worker that could not reach its owner (EX_OSERR of sysexits.h)."""


@dataclass(frozen=True, slots=True)
class Call:
    """Where a worker finds its owner, and how it shows that it is one."""

    host: str
    port: int
    secret: str = field(repr=False)
    """The run's, in hexadecimal digits."""
    name: str
    """The worker's, in hexadecimal digits."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


async def work(call: Call) -> int:
    """Work for the owner until it says farewell or is gone; the exit code."""
    try:
        channel = await reach(call.host, call.port, bytes.fromhex(call.secret), bytes.fromhex(call.name))
    except (OSError, TimeoutError, Refused, UserError) as error:
        why = "it does not know the secret of this run" if isinstance(error, Refused) else str(error) or "no answer"
        print(f"{call.host}:{call.port} can't be reached: {why}", file=sys.stderr)
        return UNREACHABLE
    furnish: wire.Furnish | None = await channel.receive()
    if furnish is None:
        return 0
    os.environ.update(furnish.environ)
    with suppress(OSError):  # files that are named from there are at the same path on each node, or not at all
        os.chdir(furnish.current)
    await asyncio.to_thread(kill_strays, furnish.run_id)  # of a worker that was killed on this machine
    try:
        node = await NodeFolder.furnished(channel, furnish)
    except UserError as error:
        channel.send(wire.Unusable(str(error)))
        channel.close()
        return 0
    if node is not None:
        are_elsewhere({path: node.path / name for path, name in furnish.modules.items()})
        await serve(channel, node)
    return 0


def main() -> int:
    """Work as standard input says."""
    parent = os.getppid()
    die_with_parent()
    if parent != os.getppid():
        return 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    call = Call(**json.load(sys.stdin))
    with safe_streams():
        return run_on_loop(work(call))


if __name__ == "__main__":
    sys.exit(main())
