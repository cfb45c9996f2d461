"""Text for people without a library behind it, for commands that must answer at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from manyhands.core.text import json_text as json_text
from manyhands.core.text import one_line as one_line
from manyhands.core.text import printable as printable

GAP = "  "


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()) -> str:
    """Columns side by side, under their headings; those named in ``right`` have their ends in line."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    ends = [heading in right for heading in headings]
    return "\n".join(_line(cells, widths, ends) for cells in (headings, *rows))


def _line(cells: Sequence[str], widths: Sequence[int], ends: Sequence[bool]) -> str:
    placed = (
        cell.rjust(width) if end else cell.ljust(width) for cell, width, end in zip(cells, widths, ends, strict=True)
    )
    return GAP.join(placed).rstrip()


def shown_path(path: Path) -> str:
    """A path as a person at this terminal would type it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def counted_rows(count: int) -> str:
    """How many rows."""
    return "1 row" if count == 1 else f"{count:,} rows"


def duration(seconds: float) -> str:
    """A time span to the second: ``42s``, ``1m 05s``, ``2h 03m``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


def usage_text(usage: dict[str, Any], working_seconds: float) -> str:
    """What a whole run has used, all sessions together. ``usage``: as ``Usage.to_json`` gives it."""
    text = (
        f"Used by the whole run: {usage['calls']:,} model calls, {usage['input_tokens']:,} tokens in, "
        f"{usage['output_tokens']:,} out, ${usage['cost']:.4f}"
    )
    if usage["simulated_calls"]:
        text += f" ({usage['simulated_calls']:,} calls answered by the simulated model, which costs nothing)"
    if usage["unpriced_calls"]:
        text += f" (the price of {usage['unpriced_calls']:,} calls is unknown, so the true cost is higher)"
    return f"{text}; {working_seconds:.1f} s of work"
