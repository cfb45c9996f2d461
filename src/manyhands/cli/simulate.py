"""``manyhands simulate``: the simulated model over HTTP, with configurable latency and faults."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from manyhands.cli.options import read
from manyhands.core.settings import (
    Flag,
    OptionalPath,
    Settings,
    Text,
    number,
    optional_number,
    optional_whole,
    setting,
    whole,
)
from manyhands.processes.event_loop import on_stop_signals, run_on_loop

if TYPE_CHECKING:
    from manyhands.models.simulated.server import SimulatedServer

PROGRAM = "manyhands simulate"
DESCRIPTION = (
    "Serves a simulated model with the API of OpenAI chat completions, streaming and not, until it is interrupted. "
    "GET /stats returns counts of requests and answers."
)
_SERVER = "Server"
_FAULTS = "Faults (fractions of requests, 0 to 1)"
_TIMES = "Timing"
_USED = "Reported usage"


class SimulateSettings(Settings):
    """The options of ``manyhands simulate``."""

    host: Text = setting("127.0.0.1", "Address to listen on.", group=_SERVER)
    port: Annotated[int, whole(0, 65535)] = setting(8000, "Port to listen on; 0 selects a free port.", group=_SERVER)
    seed: Annotated[int, whole(0)] = setting(0, "Seed of answers and faults.", group=_SERVER)
    log_file: OptionalPath = setting(None, "Log file, with one JSON line per request.", group=_SERVER, value="FILE")
    latency: Annotated[float, number(0)] = setting(0.0, "Seconds before each answer.", group=_TIMES)
    latency_jitter: Annotated[float, number(0)] = setting(
        0.0, "Maximum deviation of the latency in seconds.", group=_TIMES
    )
    retry_after: Annotated[float, number(0)] = setting(0.2, "Retry-After of a 429 in seconds.", group=_TIMES)
    hang_seconds: Annotated[float, number(0)] = setting(
        60.0, "Seconds for which a hanging request is kept open.", group=_TIMES
    )
    requests_per_second: Annotated[float | None, optional_number(above=0)] = setting(
        None, "Rate limit: further requests get a 429.", group=_TIMES
    )
    rate_429: Annotated[float, number(0, 1)] = setting(0.0, "Answered with 429.", group=_FAULTS)
    rate_500: Annotated[float, number(0, 1)] = setting(0.0, "Answered with 500.", group=_FAULTS)
    rate_truncated: Annotated[float, number(0, 1)] = setting(0.0, "Answered with a truncated body.", group=_FAULTS)
    rate_hang: Annotated[float, number(0, 1)] = setting(0.0, "Kept open without an answer.", group=_FAULTS)
    rate_malformed: Annotated[float, number(0, 1)] = setting(
        0.0, "Answered with a tool call that is invalid JSON or names an unknown tool.", group=_FAULTS
    )
    rate_unreadable: Annotated[float, number(0, 1)] = setting(
        0.0, "Answered with the usage, but without an answer.", group=_FAULTS
    )
    rate_paid_500: Annotated[float, number(0, 1)] = setting(
        0.0, "Answered with 500 after generating the answer.", group=_FAULTS
    )
    fill: Flag = setting(
        False, "Report as many output tokens as an answer may have: max_tokens, or 100,000 without.", group=_USED
    )
    answer_tokens: Annotated[int | None, optional_whole(0)] = setting(
        None, "Report this number of output tokens, regardless of max_tokens.", group=_USED
    )
    dense: Flag = setting(False, "Report one input token per byte.", group=_USED)
    input_price: Annotated[float, number(0)] = setting(0.0, "US dollars per million input tokens.", group=_USED)
    output_price: Annotated[float, number(0)] = setting(0.0, "US dollars per million output tokens.", group=_USED)
    no_usage: Flag = setting(False, "Omit the usage from answers.", group=_USED)


def run(argv: list[str]) -> int:
    """Serve until interrupted; 0."""
    settings = read(SimulateSettings, argv, PROGRAM, DESCRIPTION)
    if settings is None:
        return 0
    # Its HTTP library is large, and --help must answer at once.
    from manyhands.models.simulated.server import ServerOptions, serve

    values = settings.values()
    log_file = values.pop("log_file")
    run_on_loop(_stopped(serve(ServerOptions(**values, log_file=Path(log_file) if log_file else None), _say)))
    return 0


async def _stopped(served: Coroutine[Any, Any, None]) -> None:
    """Serve until a signal comes."""
    serving = asyncio.ensure_future(served)
    with on_stop_signals(serving.cancel), suppress(asyncio.CancelledError):
        await serving


def _say(server: SimulatedServer) -> None:
    print(f"simulated model at {server.base_url} (Ctrl-C ends it)", flush=True)
    print(f"try: manyhands batch --base_url={server.base_url} --model=simulated …", flush=True)
