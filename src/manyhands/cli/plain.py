"""Argument parsers and plain text for commands that must answer at once: nothing here needs a large library."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from manyhands.core.errors import UserError
from manyhands.core.text import counted

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from manyhands.core.usage import Usage

GAP = "  "


def print_labelled(lines: Sequence[tuple[str, str]]) -> None:
    """Print texts, each behind its label, in one column."""
    width = max((len(label) for label, _ in lines), default=0)
    for label, text in lines:
        print(f"{label:<{width}}  {text}")


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()) -> str:
    """Columns side by side, under their headings; those named in ``right`` are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    ends = [heading in right for heading in headings]
    return "\n".join(_line(cells, widths, ends) for cells in (headings, *rows))


def _line(cells: Sequence[str], widths: Sequence[int], ends: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if end else cell.ljust(width) for cell, width, end in zip(cells, widths, ends, strict=True)
    )
    return GAP.join(padded).rstrip()


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


def usage_text(usage: Mapping[str, Any], working_seconds: float) -> str:
    """What a whole run has used of models and services, all sessions together. ``usage``: as ``Usage.to_json`` gives it."""
    text = (
        f"Used by the whole run: {counted(usage['calls'], 'call')}, {usage['input_tokens']:,} tokens in, "
        f"{usage['output_tokens']:,} out, ${usage['cost']:.4f}"
    )
    if usage["simulated_calls"]:
        text += f" ({counted(usage['simulated_calls'], 'call')} answered by the simulated model, which costs nothing)"
    if usage["unpriced_calls"]:
        text += f" (the price of {counted(usage['unpriced_calls'], 'call')} is unknown, so the true cost is higher)"
    return f"{text}; {working_seconds:.1f} s of work"


SHARES_TITLE = "Of this, paid for by tools"


def shares_table(shares: Iterable[tuple[str, Usage]]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The headings and rows of a table of what each tool used, of which a run's usage is the sum."""
    rows = [
        (
            name,
            f"{each.calls:,}",
            f"{each.input_tokens:,}",
            f"{each.output_tokens:,}",
            f"${each.cost:.4f}",
            each.remarks,
        )
        for name, each in shares
    ]
    return ("tool", "requests", "tokens in", "tokens out", "cost", ""), rows


MAX_WHOLE = 1_000_000_000
"""The largest number that an argument may be."""


def parser(command: str, description: str) -> ArgumentParser:
    """A parser for ``manyhands COMMAND`` that takes no abbreviations and reports errors as UserError."""
    from argparse import ArgumentParser  # here, because the commands with settings need none

    class Parser(ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise UserError(f"{message} (see {self.prog} --help)")

    return Parser(prog=f"manyhands {command}", description=description, allow_abbrev=False)


def positive(text: str) -> int:
    """A whole number from 1 up, for ``add_argument(type=…)``."""
    from argparse import ArgumentTypeError

    if not text.isdecimal() or len(text) > len(str(MAX_WHOLE)) or not 1 <= int(text) <= MAX_WHOLE:
        raise ArgumentTypeError(f"must be a whole number from 1 to {MAX_WHOLE:,}, not {text!r}")
    return int(text)


def add_run(result: ArgumentParser, *, required: bool = False) -> None:
    """The arguments that name a run. ``required``: the latest one is not meant where none is named."""
    about = "the run's folder, or its name in the data folder"
    if required:
        result.add_argument("run", metavar="RUN", help=about)
    else:
        result.add_argument("run", metavar="RUN", nargs="?", help=f"{about} (default: the latest run there)")
    add_data_dir(result)


def add_job(result: ArgumentParser) -> None:
    """The arguments that name a job."""
    result.add_argument("job", metavar="JOB", help="the job's id (or its first 8 or more characters), name or folder")
    add_data_dir(result)


def add_data_dir(result: ArgumentParser) -> None:
    """The data folder."""
    result.add_argument(
        "--data_dir", "--data-dir", default="data", help="folder that holds the run folders (default: data)"
    )
