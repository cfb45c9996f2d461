"""Argument parsers of the small commands."""

from __future__ import annotations

import argparse
from typing import NoReturn

from manyhands.core.errors import UserError

LARGEST = 1_000_000_000


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def parser(command: str, description: str) -> argparse.ArgumentParser:
    """A parser for ``manyhands COMMAND`` that takes no abbreviations and reports errors as UserError."""
    return _Parser(prog=f"manyhands {command}", description=description, allow_abbrev=False)


def positive(text: str) -> int:
    """A whole number from 1 up, for ``add_argument(type=…)``."""
    if not text.isdecimal() or len(text) > len(str(LARGEST)) or not 1 <= int(text) <= LARGEST:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {LARGEST:,}, not {text!r}")
    return int(text)


def add_run(result: argparse.ArgumentParser) -> None:
    """The arguments that name a run."""
    result.add_argument("run", metavar="RUN", help="the run's folder, or its name under the data folder")
    add_data_dir(result)


def add_job(result: argparse.ArgumentParser) -> None:
    """The arguments that name a job."""
    result.add_argument("job", metavar="JOB", help="the job's id (or its first 8 characters or more), name or folder")
    add_data_dir(result)


def add_data_dir(result: argparse.ArgumentParser) -> None:
    """The data folder."""
    result.add_argument("--data_dir", "--data-dir", default="data", help="where run folders are (default: data)")
