"""A live view of a run: a bar on a terminal, a line now and then elsewhere.

``--verbose``: one line for each prompt that ends, and one for each of its tool calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

from manyhands.agents.descriptions import item_lines
from manyhands.cli.console import err
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.text import one_line, printable
from manyhands.engine.contract import Item
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.progress import Progress

LINE_SECONDS = 15.0
"""Seconds between lines where there is no terminal."""


class _Bar(Bar):
    """A bar with a line below it, which is cut at the edge of the terminal."""

    below = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.below:
            yield Text(f"  {self.below}", no_wrap=True, overflow="ellipsis")


class ProgressView:
    """Shows ``Progress`` values as they come, at most as often as they come. ``failed``: what failed items are called; ``graded``: how many
    items are graded, and end when something else does."""

    def __init__(
        self,
        label: str,
        *,
        quiet: bool = False,
        failed: str = ItemState.FAILED,
        graded: Callable[[], int] | None = None,
    ) -> None:
        self._graded = graded
        self._label = printable(label)
        self._failed = failed
        self._quiet = quiet
        self._console = err()
        self._bar: _Bar | None = None
        self._printed_at = time.monotonic()
        self._last_finished = -1

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._quiet:
            self._bar = _Bar(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TextColumn("{task.fields[details]}", markup=False),
                TimeElapsedColumn(),
                console=self._console,
                refresh_per_second=2,
                transient=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._bar.start()
            self._bar.add_task(self._label, total=None, details="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, progress: Progress) -> None:
        """Bring the view up to date."""
        waiting = next((wait.text(time.time()) for wait in progress.waits), "")
        graded = 0 if self._graded is None else self._graded()
        beside = details(progress, self._failed, graded)
        self.show_figures(progress.items, progress.finished, beside, waiting, graded=graded)

    def tell(self, line: str) -> None:
        """Say what the run waits for. On a terminal, the bar says so."""
        if self._bar is None and not self._quiet:
            self._console.print(f"{self._label}: {line}", markup=False, soft_wrap=True)

    def show_figures(self, items: int, finished: int, beside: str, waiting: str = "", *, graded: int = 0) -> None:
        """The like, from the number of items, how many of them have ended, what is said beside the bar, and what is waited for.
        ``graded``: those that have not ended, and count as if they had."""
        if self._bar is not None:
            self._bar.below = one_line(waiting)
            self._bar.update(self._bar.task_ids[0], total=items, completed=finished + graded, details=beside)
        elif not self._quiet:
            self._line(items, finished, beside)

    def _line(self, items: int, finished: int, beside: str) -> None:
        now = time.monotonic()
        ended = finished == items and finished != self._last_finished
        if ended or now - self._printed_at >= LINE_SECONDS:
            self._printed_at, self._last_finished = now, finished
            text = f"{self._label}: {finished} of {items} ended, {beside}"
            self._console.print(text, markup=False, soft_wrap=True)


def details(progress: Progress, failed: str = ItemState.FAILED, graded: int = 0) -> str:
    """The figures beside the bar: in flight, what went wrong, speed, cost. ``graded``: how many of those in flight wait for an end that is
    not theirs."""
    parts = [f"{max(0, progress.in_flight - graded)} in flight"]
    if graded:
        parts.insert(0, f"{graded} graded, to end with their command")
    for state, word in ((ItemState.DISCARDED, str(ItemState.DISCARDED)), (ItemState.FAILED, failed)):
        if count := sum(n for (name, _), n in progress.counts.items() if name == state):
            parts.append(f"{count} {word}")
    ended = progress.finished + graded - progress.finished_before
    if ended and progress.seconds > 0:
        parts.append(f"{ended / progress.seconds:.1f}/s")
    usage = progress.usage
    if usage.total_tokens:
        parts.append(f"{usage.total_tokens:,} tokens")
    if usage.cost:
        parts.append(f"${usage.cost:.4f}")
    if usage.simulated_calls:
        parts.append("simulated model")
    return ", ".join(parts)


class ItemLog:
    """Writes to standard error; previews of arguments and results are cut to ``preview`` characters."""

    def __init__(self, folder: Path, preview: int) -> None:
        self._folder = folder
        self._preview = preview
        self._reader: JournalReader | None = None

    def show(self, item: Item, outcome: Outcome) -> None:
        """An item has ended."""
        self._reader = self._reader or JournalReader(self._folder)
        record = outcome.record
        toolsets = ", ".join(record.get("toolsets", ())) or "none"
        why = outcome.reason or outcome.cause or record.get("stop_reason", "")
        label = f"P{item.payload['prompt_index']}"
        first, *calls = item_lines(label, item, outcome, why, self._reader, self._preview)
        for line in (f"{first}, toolsets {toolsets}", *calls):
            err().print(line, markup=False, soft_wrap=True)


class LogTail:
    """Shows what comes to a log file, line by line, on standard error. ``start``: the byte from which on."""

    def __init__(self, path: Path, start: int = 0) -> None:
        self._path = path
        self._place = start
        self._begun = b""

    @classmethod
    def from_now(cls, path: Path) -> Self:
        """Only what comes from now on."""
        return cls(path, path.stat().st_size if path.exists() else 0)

    def show(self) -> None:
        """Print the lines that have come since."""
        if not self._path.exists():
            return
        with self._path.open("rb") as log:
            log.seek(self._place)
            new = log.read()
        self._place += len(new)
        *lines, self._begun = (self._begun + new).split(b"\n")
        for line in lines:
            err().print(line.decode("utf-8", "replace"), markup=False, soft_wrap=True)
