"""``manyhands view``: runs in a browser, live and finished."""

from __future__ import annotations

import argparse
import os
from collections.abc import Coroutine
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from manyhands.cli.plain import parser
from manyhands.core.errors import UserError

DEFAULT_FOLDER = "data"
NICENESS = 5
"""How much less of a busy processor the viewer gets than the runs that it shows."""
MAX_PORT = 65535
MAX_GIB = 100_000


def run(argv: list[str]) -> int:
    """Show runs in a browser until interrupted; 0."""
    options = _parser().parse_intermixed_args(argv)
    os.nice(NICENESS)
    # The server and its templates take a moment to import, and --help must answer at once.
    import asyncio

    from manyhands.cli.viewing.opening import opened_in_browser
    from manyhands.io.loopback import Address
    from manyhands.processes.event_loop import on_stop_signals, run_on_loop
    from manyhands.view.server import ViewOptions, serve

    async def stopped(serving: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(serving)
        with on_stop_signals(task.cancel), suppress(asyncio.CancelledError):
            await task

    def say(link: str, note: str | None) -> None:
        if note is not None:
            print(f"note: {note}", flush=True)
        print(f"Runs in {', '.join(map(str, folders))}: {link} (Ctrl-C ends it)", flush=True)
        if options.open:
            try:
                at_end.enter_context(opened_in_browser(link, cache_folder()))
            except OSError as error:
                print(f"note: the link can't be opened from here: {error.filename}: {error.strerror}", flush=True)

    folders = [_folder(name) for name in options.folder or [DEFAULT_FOLDER]]
    address = Address.private(options.port) if options.private else Address.of(options.host, options.port)
    chosen = ViewOptions(
        folders,
        address,
        cache_folder(),
        options.plain,
        Path(options.index_dir) if options.index_dir else None,
        options.index_gib,
        has_index=not options.no_index,
        is_live=not options.no_live,
    )
    with ExitStack() as at_end:
        run_on_loop(stopped(serve(chosen, say)))
    return 0


def cache_folder() -> Path:
    """The user's folder for what can be made again, by the XDG Base Directory Specification."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if given.startswith("/") else Path.home() / ".cache"
    return base / "manyhands"


def _folder(name: str) -> Path:
    """A folder that is to be shown. Raises UserError if there is none, but for the default one, which may come yet."""
    folder = Path(name)
    if not folder.is_dir() and name != DEFAULT_FOLDER:
        raise UserError(f"{name}: there is no such folder")
    return folder


def _port(text: str) -> int:
    if not text.isdecimal() or len(text) > 5 or int(text) > MAX_PORT:
        raise argparse.ArgumentTypeError(f"must be a port from 0 to {MAX_PORT}, not {text!r}")
    return int(text)


def _gib(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= MAX_GIB:
        raise argparse.ArgumentTypeError(f"must be a number above 0, up to {MAX_GIB}, not {text!r}")
    return value


def _parser() -> argparse.ArgumentParser:
    result = parser("view", "Show runs in a browser, live and finished. Only reads; only this machine can reach it.")
    result.add_argument(
        "folder",
        metavar="FOLDER",
        nargs="*",
        help=f"run folders, and folders under which runs lie (default: {DEFAULT_FOLDER})",
    )
    result.add_argument("--port", type=_port, default=0, help="port to listen on (default: 0, a free one)")
    result.add_argument("--host", default="127.0.0.1", help="loopback address to listen on (default: 127.0.0.1)")
    result.add_argument(
        "--private",
        action="store_true",
        help="listen on a random loopback address, so that the browser sends its cookie to no other server of this machine (Linux)",
    )
    result.add_argument("--open", action="store_true", help="open it in the default browser")
    result.add_argument(
        "--no_index",
        "--no-index",
        action="store_true",
        help="make no indexes: pages have no sorting, searching or charts over time",
    )
    result.add_argument(
        "--index_dir",
        "--index-dir",
        help="folder for the indexes of runs (default: manyhands/indexes in the user's cache folder)",
    )
    result.add_argument(
        "--index_gib", "--index-gib", type=_gib, default=5.0, help="GiB of all indexes together (default: 5)"
    )
    result.add_argument("--no_live", "--no-live", action="store_true", help="do not keep pages up to date")
    result.add_argument("--plain", action="store_true", help="show texts of models as they are: no Markdown, no images")
    return result
