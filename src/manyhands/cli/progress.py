"""A live view of a run: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from manyhands.cli.console import err
from manyhands.core.outcomes import ItemState
from manyhands.engine.run import Progress

LINE_SECONDS = 15.0
"""Seconds between lines where there is no terminal."""


class ProgressView:
    """Shows ``Progress`` values as they come, at most as often as they come."""

    def __init__(self, label: str, *, quiet: bool = False) -> None:
        self._label = label
        self._quiet = quiet
        self._console = err()
        self._bar: Bar | None = None
        self._printed_at = time.monotonic()
        self._last_finished = -1

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._quiet:
            self._bar = Bar(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TextColumn("{task.fields[details]}"),
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
        if self._bar is not None:
            task = self._bar.task_ids[0]
            self._bar.update(task, total=progress.items, completed=progress.finished, details=details(progress))
        elif not self._quiet:
            self._line(progress)

    def _line(self, progress: Progress) -> None:
        now = time.monotonic()
        ended = progress.finished == progress.items and progress.finished != self._last_finished
        if ended or now - self._printed_at >= LINE_SECONDS:
            self._printed_at, self._last_finished = now, progress.finished
            text = f"{self._label}: {progress.finished} of {progress.items} ended, {details(progress)}"
            self._console.print(text, markup=False, soft_wrap=True)


def details(progress: Progress) -> str:
    """The figures beside the bar: in flight, what went wrong, speed, cost."""
    parts = [f"{progress.in_flight} in flight"]
    ended_otherwise = {
        state: sum(n for (name, _), n in progress.counts.items() if name == state)
        for state in (ItemState.DISCARDED, ItemState.FAILED)
    }
    parts += [f"{count} {state}" for state, count in ended_otherwise.items() if count]
    ended = progress.finished - progress.finished_before
    if ended and progress.seconds > 0:
        parts.append(f"{ended / progress.seconds:.1f}/s")
    usage = progress.usage
    parts.append(f"{usage.total_tokens:,} tokens")
    if usage.cost:
        parts.append(f"${usage.cost:.4f}")
    if usage.simulated_calls:
        parts.append("simulated model")
    return ", ".join(parts)
