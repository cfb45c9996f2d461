"""What a benchmark says: one figure a row, with the bound that it must keep where it has one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. ``at_most`` or ``at_least``: the bound; with neither the row is for information. ``note``: what it was made of."""

    name: str
    figure: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    @property
    def kept(self) -> bool | None:
        """Whether the bound is kept; None without one."""
        if self.at_most is not None:
            return self.figure <= self.at_most
        if self.at_least is not None:
            return self.figure >= self.at_least
        return None


HEADINGS = ("benchmark", "figure", "bound", "", "measured")


def cells(row: Row) -> tuple[str, str, str, str, str]:
    """A row as text, in the order of ``HEADINGS``."""
    bound = "–"
    if row.at_most is not None:
        bound = f"≤ {number(row.at_most)} {row.unit}"
    elif row.at_least is not None:
        bound = f"≥ {number(row.at_least)} {row.unit}"
    verdict = {True: "ok", False: "OVER", None: ""}[row.kept]
    return row.name, f"{number(row.figure)} {row.unit}", bound.strip(), verdict, row.note


def number(value: float) -> str:
    """Three significant digits, or all of a large number."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def failed(rows: Iterable[Row]) -> bool:
    """Whether any bound is not kept."""
    return any(row.kept is False for row in rows)
