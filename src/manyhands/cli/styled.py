"""What rich prints: texts on terminals, tables, and the bar of a run. Only imported where something of it is shown, because most batches
and jobs run where nobody looks, and rich takes as long to import as they take for several prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from manyhands.core.redaction import KNOWN
from manyhands.core.text import printable

_WIDE = 110
"""Columns from which a terminal has room for a long bar."""


class SafeConsole(Console):
    """A console that shows texts, also those in tables, as they are: markup and terminal control sequences in them have no effect."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(printable(KNOWN.text(text)), **settings)


class Bar(Progress):
    """A bar with a line below it. The line, and the details behind the bar, are cut where the terminal is too narrow for them."""

    below = ""

    def __init__(self, console: Console) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30 if console.width >= _WIDE else 10),
            MofNCompleteColumn(),
            TextColumn(
                "{task.fields[details]}",
                markup=False,
                table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
            ),
            TimeElapsedColumn(),
            console=console,
            expand=True,
            refresh_per_second=2,
            transient=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.below:
            yield Text(f"  {self.below}", no_wrap=True, overflow="ellipsis")


def table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[str]) -> Table:
    """A table without lines. ``right``: the headings of columns that are aligned to the right."""
    made = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for heading in headings:
        made.add_column(heading, justify="right" if heading in right else "left")
    for row in rows:
        made.add_row(*row)
    return made
