"""Argument parsers and plain text for commands that must answer at once: nothing here needs a large library."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

from manyhands.core.errors import UserError

GAP = "  "


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()) -> str:
    """Columns side by side, under their headings; those named in ``right`` are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    ends = [heading in right for heading in headings]
    return "\n".join(_line(cells, widths, ends) for cells in (headings, *rows))


def _line(cells: Sequence[str], widths: Sequence[int], ends: Sequence[bool]) -> str:
    placed = (
        cell.rjust(width) if end else cell.ljust(width) for cell, width, end in zip(cells, widths, ends, strict=True)
    )
    return GAP.join(placed).rstrip()


def shown_path(path: Path) -> str:
    """A path as it would be typed at this terminal: relative if it is below the current folder."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


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


MAX_WHOLE = 1_000_000_000
"""The largest number that an argument may be."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def parser(command: str, description: str) -> argparse.ArgumentParser:
    """A parser for ``manyhands COMMAND`` that takes no abbreviations and reports errors as UserError."""
    return _Parser(prog=f"manyhands {command}", description=description, allow_abbrev=False)


def positive(text: str) -> int:
    """A whole number from 1 up, for ``add_argument(type=…)``."""
    if not text.isdecimal() or len(text) > len(str(MAX_WHOLE)) or not 1 <= int(text) <= MAX_WHOLE:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {MAX_WHOLE:,}, not {text!r}")
    return int(text)


def add_run(result: argparse.ArgumentParser) -> None:
    """The arguments that name a run."""
    result.add_argument("run", metavar="RUN", help="the run's folder, or its name in the data folder")
    add_data_dir(result)


def add_job(result: argparse.ArgumentParser) -> None:
    """The arguments that name a job."""
    result.add_argument("job", metavar="JOB", help="the job's id (or its first 8 or more characters), name or folder")
    add_data_dir(result)


def add_data_dir(result: argparse.ArgumentParser) -> None:
    """The data folder."""
    result.add_argument(
        "--data_dir", "--data-dir", default="data", help="folder that holds the run folders (default: data)"
    )
