"""``manyhands report``: a run as one HTML file, or runs as a folder of pages, to be passed on."""

from __future__ import annotations

import argparse
from pathlib import Path

from manyhands.cli.plain import add_data_dir, parser, shown_path
from manyhands.core.errors import UserError
from manyhands.core.text import counted
from manyhands.runs.folders import find_run
from manyhands.view.static import DEFAULT_MB

MIN_MB, MAX_MB = 1.0, 2000.0


def run(argv: list[str]) -> int:
    """Write the report and say where it is; 0."""
    options = _parser().parse_args(argv)
    if options.folder is not None and options.max_mb is not None:
        raise UserError("--max_mb: a folder of pages has no limit; it is for -o FILE.html")
    folders = [find_run(name, options.data_dir) for name in options.run]
    if options.folder is not None:
        return _write_folder(folders, Path(options.folder), options)
    if len(folders) > 1:
        raise UserError("several runs have no place in one file; --folder DIR writes pages about all of them")
    return _write_file(folders[0], Path(options.output), options)


def _write_file(folder: Path, path: Path, options: argparse.Namespace) -> int:
    if path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--output {path}: must end in .html")
    if path.is_dir():
        raise UserError(f"--output {path}: is a folder")
    # Templates and what colours code take a moment to import, and --help must answer at once.
    from manyhands.io.files import bytes_written_aside
    from manyhands.view.static.passing_on import PassingOn
    from manyhands.view.static.run_document import write_run_report

    with bytes_written_aside(path) as handle:
        most = DEFAULT_MB if options.max_mb is None else options.max_mb
        contents = write_run_report(
            handle,
            folder,
            select=options.select,
            max_mb=most,
            plain=options.plain,
            passing_on=PassingOn(options.redact, options.keep_secrets),
        )
    size = path.stat().st_size / 1e6
    of = "" if contents.conversations == contents.items else f"{contents.conversations:,} of "
    print(f"{shown_path(path)}: {size:.1f} MB, {of}{counted(contents.items, 'item')} with conversations")
    return 0


def _write_folder(folders: list[Path], target: Path, options: argparse.Namespace) -> int:
    from manyhands.view.static.passing_on import PassingOn
    from manyhands.view.static.run_folder import write_run_folder

    passing_on = PassingOn(options.redact, options.keep_secrets)
    written = write_run_folder(folders, target, select=options.select, plain=options.plain, passing_on=passing_on)
    about = f"{counted(written.runs, 'run')}, {counted(written.items, 'item')}, {counted(written.files, 'file')}"
    print(f"{shown_path(target / 'index.html')}: {about}")
    return 0


def _megabytes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not MIN_MB <= value <= MAX_MB:
        raise argparse.ArgumentTypeError(f"must be a number from {MIN_MB:g} to {MAX_MB:g}, not {text!r}")
    return value


def _parser() -> argparse.ArgumentParser:
    result = parser(
        "report",
        "Write a run as one HTML file that needs nothing else, or runs as a folder of pages that lead to each other. Both open from a disk "
        "and ask nothing from any server.",
    )
    result.add_argument("run", metavar="RUN", nargs="+", help="the run's folder, or its name in the data folder")
    kind = result.add_mutually_exclusive_group(required=True)
    kind.add_argument("-o", "--output", metavar="FILE.html", help="one file about one run, of a limited size")
    kind.add_argument(
        "--folder",
        metavar="DIR",
        help="a folder of pages about one or several runs: all items, also those that left the input, and all their attempts",
    )
    result.add_argument(
        "--select",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="which items (repeatable): state=STATE, cause=CAUSE, key=KEY, item=NUMBER or item=FROM-TO, or @FILE with a key on each line",
    )
    result.add_argument(
        "--max_mb",
        "--max-mb",
        type=_megabytes,
        metavar="N",
        help=f"size of the file in MB: conversations of failed items come first, then those with the lowest scores, then an even choice of "
        f"the others (default: {DEFAULT_MB:g})",
    )
    result.add_argument(
        "--redact", action="store_true", help="replace secrets by [redacted] instead of stopping at the first"
    )
    result.add_argument("--keep_secrets", "--keep-secrets", action="store_true", help="do not look for secrets")
    result.add_argument("--plain", action="store_true", help="show texts of models as they are: no Markdown, no images")
    add_data_dir(result)
    return result
