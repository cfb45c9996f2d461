"""Argument parsers of the small commands."""

from __future__ import annotations

import argparse
from typing import NoReturn

from manyhands.core.errors import UserError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def parser(command: str, description: str) -> argparse.ArgumentParser:
    """A parser for ``manyhands COMMAND`` that takes no abbreviations and reports errors as UserError."""
    return _Parser(prog=f"manyhands {command}", description=description, allow_abbrev=False)


def add_run(result: argparse.ArgumentParser) -> None:
    """The arguments that name a run."""
    result.add_argument("run", metavar="RUN", help="the run's folder, or its name under the data folder")
    result.add_argument("--data_dir", "--data-dir", default="data", help="where run folders are (default: data)")
