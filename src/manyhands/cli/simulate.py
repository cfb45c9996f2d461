"""``manyhands simulate``: the simulated model over HTTP, with latency and faults to order."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from pathlib import Path
from typing import Annotated

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
from manyhands.models.simulated.server import ServerOptions, SimulatedServer, serve
from manyhands.processes.event_loop import run_on_loop

PROGRAM = "manyhands simulate"
DESCRIPTION = (
    "Serves a simulated model that speaks OpenAI chat completions, streaming and not, until it is interrupted. "
    "GET /stats says what was asked and answered."
)
_WHERE = "Where"
_FAULTS = "Faults (shares of requests, 0 to 1)"
_TIMES = "Times"
_USED = "What answers count as having used"


class SimulateSettings(Settings):
    """The options of ``manyhands simulate``."""

    host: Text = setting("127.0.0.1", "Address to listen on.", group=_WHERE)
    port: Annotated[int, whole(0, 65535)] = setting(8000, "Port to listen on; 0 takes a free one.", group=_WHERE)
    seed: Annotated[int, whole(0)] = setting(0, "Makes answers and faults repeatable.", group=_WHERE)
    log_file: OptionalPath = setting(None, "One JSON line for each request.", group=_WHERE, value="FILE")
    latency: Annotated[float, number(0)] = setting(0.0, "Seconds before each answer.", group=_TIMES)
    latency_jitter: Annotated[float, number(0)] = setting(0.0, "Seconds by which the latency varies.", group=_TIMES)
    retry_after: Annotated[float, number(0)] = setting(0.2, "Seconds that a 429 asks to wait.", group=_TIMES)
    hang_seconds: Annotated[float, number(0)] = setting(60.0, "Seconds that a hanging request is held.", group=_TIMES)
    requests_per_second: Annotated[float | None, optional_number(above=0)] = setting(
        None, "More requests than this get a 429.", group=_TIMES
    )
    rate_429: Annotated[float, number(0, 1)] = setting(0.0, "Answered with 429.", group=_FAULTS)
    rate_500: Annotated[float, number(0, 1)] = setting(0.0, "Answered with 500.", group=_FAULTS)
    rate_truncated: Annotated[float, number(0, 1)] = setting(0.0, "Cut off in mid-body.", group=_FAULTS)
    rate_hang: Annotated[float, number(0, 1)] = setting(0.0, "Held without an answer.", group=_FAULTS)
    rate_malformed: Annotated[float, number(0, 1)] = setting(
        0.0, "Answered with a tool call that is no JSON or names no known tool.", group=_FAULTS
    )
    rate_unreadable: Annotated[float, number(0, 1)] = setting(
        0.0, "Answered with what was used, but without an answer.", group=_FAULTS
    )
    rate_paid_500: Annotated[float, number(0, 1)] = setting(
        0.0, "Answered with 500 after the answer was made.", group=_FAULTS
    )
    fill: Flag = setting(
        False, "Count as many output tokens as an answer may have: max_tokens, or 100,000 without.", group=_USED
    )
    answer_tokens: Annotated[int | None, optional_whole(0)] = setting(
        None, "Count so many output tokens, whatever max_tokens says.", group=_USED
    )
    dense: Flag = setting(False, "Count an input token for each byte.", group=_USED)
    input_price: Annotated[float, number(0)] = setting(0.0, "US dollars per million input tokens.", group=_USED)
    output_price: Annotated[float, number(0)] = setting(0.0, "US dollars per million output tokens.", group=_USED)
    no_usage: Flag = setting(False, "Don't say what an answer used.", group=_USED)


def run(argv: list[str]) -> int:
    """Serve until interrupted; 0."""
    settings = read(SimulateSettings, argv, PROGRAM, DESCRIPTION)
    if settings is None:
        return 0
    values = settings.model_dump()
    log_file = values.pop("log_file")
    run_on_loop(_serve(ServerOptions(**values, log_file=Path(log_file) if log_file else None)))
    return 0


async def _serve(options: ServerOptions) -> None:
    serving = asyncio.ensure_future(serve(options, _say))
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, serving.cancel)
    with suppress(asyncio.CancelledError):
        await serving


def _say(server: SimulatedServer) -> None:
    print(f"simulated model at {server.base_url} (Ctrl-C ends it)", flush=True)
    print(f"try: manyhands batch --base_url={server.base_url} --model=simulated …", flush=True)
