"""A live view of sessions: which test speaks, which wait for what, the virtual time, tokens, the score so far."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timedelta

from rich.live import Live
from rich.table import Table
from rich.text import Text

from manyhands.cli.console import err
from manyhands.cli.plain import printable
from manyhands.cli.progress import LINE_SECONDS
from manyhands.memory.progress import Standing, WaitingTest

SECONDS = 0.5
"""Seconds between two looks."""
_WAITING_SHOWN = 3


class MemoryView:
    """Looks at the sessions now and then. ``look``: where they stand."""

    def __init__(self, look: Callable[[], Iterable[Standing]], *, quiet: bool) -> None:
        self._look = look
        self._quiet = quiet
        self._console = err()
        self._printed_at = time.monotonic()

    async def show(self) -> None:
        """Show them until it is cancelled."""
        if self._quiet:
            return
        if not self._console.is_terminal:
            await self._lines()
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as live, suppress(asyncio.CancelledError):
            while True:
                live.update(view_of(self._look()), refresh=True)
                await asyncio.sleep(SECONDS)

    def tell(self, line: str) -> None:
        """Say what a run waits for, above the table if there is one."""
        if not self._quiet:
            self._console.print(line, markup=False, soft_wrap=True)

    async def _lines(self) -> None:
        """Where there is no terminal: a line for each session now and then."""
        with suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(LINE_SECONDS)
                for each in self._look():
                    self._console.print(line_of(each), markup=False, soft_wrap=True)


def view_of(standings: Iterable[Standing]) -> Table:
    """The sessions as a table."""
    table = Table(box=None, pad_edge=False)
    for name in ("agent", "tests", "score", "tokens", "virtual time", "speaking", "waiting"):
        table.add_column(name, justify="right" if name in ("tests", "score", "tokens") else "left", overflow="ellipsis")
    for each in standings:
        cells = (
            each.agent,
            f"{each.ended}/{each.tests}",
            _score(each),
            f"{each.tokens:,}",
            _moment(each.now),
            _real_wait(each) or each.speaking or "(filler)",
            ", ".join(map(_waiting, each.waiting[:_WAITING_SHOWN])) + _more(len(each.waiting) - _WAITING_SHOWN),
        )
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def line_of(each: Standing) -> str:
    """A session as a line."""
    parts = [
        f"{each.ended} of {each.tests} tests ended",
        f"score so far {_score(each)}",
        f"{each.tokens:,} tokens",
        f"virtual time {_moment(each.now)}",
        f"{len(each.waiting)} tests wait",
        *filter(None, [_real_wait(each)]),
    ]
    return f"{printable(each.agent)}: {', '.join(parts)}"


def _real_wait(each: Standing) -> str:
    """Until when real time has to pass, if it has."""
    return "" if each.real_until is None else f"waiting until {_moment(each.real_until)}: time passes really"


def _score(each: Standing) -> str:
    return "-" if each.score is None else f"{each.score:.2f}"


def _moment(now: float) -> str:
    return datetime.fromtimestamp(now).strftime("%Y-%m-%d %H:%M:%S")


def _waiting(each: WaitingTest) -> str:
    parts = [f"{each.tokens:,} tokens"] if each.tokens else []
    parts += [str(timedelta(seconds=round(each.seconds)))] if each.seconds else []
    return f"{each.test} ({' and '.join(parts) or 'its turn'})"


def _more(number: int) -> str:
    return f" and {number} more" if number > 0 else ""
