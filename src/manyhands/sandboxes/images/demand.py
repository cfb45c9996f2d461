"""Which images the rows of a dataset name: gathered while they are read, in memory that grows with the images alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from manyhands.core.text import counted

SHOWN = 10
"""Images, and rows of each, that a message names."""


@dataclass(frozen=True, slots=True)
class Build:
    """An image that is built here."""

    folder: Path
    """With the ``Dockerfile``; it is the context."""
    seconds: float
    """That it may take."""
    wanted_by: str
    """The first row that needs it, for messages."""


class ImageDemand:
    """The images that rows name, and which rows do. ``unit``: what a row is called that has a number; ``noun``: what rows are called;
    ``skip``: the option that leaves out those whose image does not exist."""

    def __init__(
        self, unit: str = "row", *, noun: str = "row", skip: str = "--skip_missing_images", unnamed: int = 0
    ) -> None:
        self.unit = unit
        self.noun = noun
        self.skip = skip
        self.unnamed = unnamed
        """Rows that name none."""
        self.builds: dict[str, Build] = {}
        """Those of the images that are built here, by their tags."""
        self._counts: dict[str, int] = {}
        self._rows: dict[str, list[int | str]] = {}

    def add(self, reference: str | None, row: int | str) -> None:
        """Take a row into account. ``row``: its number, or its name."""
        if reference is None:
            self.unnamed += 1
            return
        self._counts[reference] = self._counts.get(reference, 0) + 1
        rows = self._rows.setdefault(reference, [])
        if len(rows) < SHOWN:
            rows.append(row)

    @property
    def references(self) -> Collection[str]:
        """Each once, in order of their first rows."""
        return self._counts.keys()

    def count(self, references: Iterable[str] | None = None) -> int:
        """How many rows name one of these, or any."""
        return sum(self._counts.get(each, 0) for each in (self._counts if references is None else references))

    def counted(self, references: Iterable[str] | None = None) -> str:
        """The same with what rows are called."""
        return counted(self.count(references), self.noun)

    def listed(self, references: Iterable[str]) -> str:
        """Images with the rows that name them, in one line."""
        named = list(references)
        parts = [f"{each}{self._where(each)}" for each in named[:SHOWN]]
        if len(named) > SHOWN:
            parts.append(f"and {counted(len(named) - SHOWN, 'more image')}")
        return ", ".join(parts)

    def _where(self, reference: str) -> str:
        rows = self._rows.get(reference)
        if not rows:
            return ""
        more = ", …" if self._counts[reference] > len(rows) else ""
        plural = "s" if self._counts[reference] > 1 else ""
        return f" ({self.unit}{plural} {', '.join(map(str, rows))}{more})"
