"""``manyhands export``: the conversations of runs in the formats that training and analysis read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, TextIO

from manyhands.cli.console import announced, notice, out
from manyhands.cli.exports.listing import print_formats
from manyhands.cli.options import UsageError, help_text, make, parse
from manyhands.cli.plain import shown_path
from manyhands.core.text import counted, expand_home
from manyhands.export.exporting import STANDARD_OUTPUT, Report, export
from manyhands.export.format import formats, load_format
from manyhands.export.settings import ExportSettings
from manyhands.processes.output import raw_stream
from manyhands.runs.exit_codes import ExitCode
from manyhands.runs.folders import find_run, latest_run

PROGRAM = "manyhands export"
USAGE = f"{PROGRAM} RUN…"
DESCRIPTION = (
    "Writes the conversations of runs of any workload in a format for training or analysis. Left out unless options say otherwise: "
    "items that are not completed, conversations that were broken off, this program's requests to continue or to summarize. A run that "
    "still goes on can be exported, too: what has ended so far. manyhands export --to list lists the formats."
)


def run(argv: list[str]) -> int:
    """Export the conversations of runs."""
    words = ["--output" + word[2:] if word == "-o" or word.startswith("-o=") else word for word in argv]
    line = parse(ExportSettings, _joined(words), PROGRAM, positional="runs", repeated=("runs", "select"))
    if line.help:
        print(help_text(ExportSettings, USAGE, DESCRIPTION, positional="runs"))
        return 0
    if line.values.get("to") == "list":
        return print_formats(formats(), load_format)
    values = {**line.values, **{name: values for name, values in line.lists.items() if values}}
    settings = make(ExportSettings, values, PROGRAM)
    folders = [find_run(name, settings.data_dir) for name in settings.runs or ()]
    if not folders:
        folders = [announced(latest_run(settings.data_dir))]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UsageError(f"a run is named twice (see {PROGRAM} --help)")
    output = None if settings.output in (None, STANDARD_OUTPUT) else expand_home(str(settings.output))
    stream = _binary(raw_stream(sys.stdout)) if settings.output == STANDARD_OUTPUT else None
    sys.stdout.flush()
    with _progress(shown=stream is None) as progress:
        report = export(folders, settings, output, stream=stream, progress=progress)
    _print(report)
    return ExitCode.DONE if report.rows or not report.items else ExitCode.FAILED


@contextmanager
def _progress(*, shown: bool) -> Iterator[Callable[[int, int], None] | None]:
    """What shows how far an export is, where somebody looks."""
    if not (shown and sys.stderr.isatty()):
        yield None
        return
    from manyhands.cli.styled import Bar, SafeConsole  # takes as long to import as a small export takes

    with Bar(SafeConsole(file=raw_stream(sys.stderr))) as bar:
        task = bar.add_task("exporting", total=None, details="")
        yield lambda done, items: bar.update(task, completed=done, total=items)


class _Text(BytesIO):
    """For a standard output that takes text alone, as one that is captured."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def flush(self) -> None:
        self._stream.write(self.getvalue().decode())
        self.seek(0)
        self.truncate()


def _binary(stream: TextIO) -> BinaryIO:
    return stream.buffer if hasattr(stream, "buffer") else _Text(stream)


def _joined(words: list[str]) -> list[str]:
    """``--output -`` as one word, as a dash alone is no option."""
    found: list[str] = []
    for word in words:
        if word == "-" and found and found[-1] == "--output":
            found[-1] = "--output=-"
        else:
            found.append(word)
    return found


def _print(report: Report) -> None:
    """What was written and what not. To standard error, where standard output has the rows."""
    for line in _lines(report):
        if report.output == STANDARD_OUTPUT:
            notice(line)
        else:
            out().print_line(line)


def _lines(report: Report) -> list[str]:
    what = f"{counted(report.pairs, 'pair')} from " if report.pairs else ""
    lines = [
        f"Exported {what}{report.exported_items:,} of {counted(report.items, 'item')} as {report.format}: "
        f"{counted(report.rows, 'row')}" + _splits(report)
    ]
    for title, counts in (
        ("Left out, items", report.left_out_items),
        ("Left out, conversations", report.left_out),
        ("Left out, pairs", report.left_out_pairs),
        ("Not held by the format", report.lost),
    ):
        if found := [f"{number:,} {name}" for name, number in counts.most_common() if number]:
            lines.append(f"{title}: {', '.join(found)}")
    if report.tokens is not None:
        tokens = report.tokens
        how = "" if tokens["with_chat_template"] else ", without a chat template"
        lines.append(
            f"Tokens ({tokens['tokenizer']}{how}): {tokens['total']:,} in all; median {tokens['median']:,}, "
            f"95 % up to {tokens['p95']:,}, longest {tokens['longest']:,}"
        )
    if report.redacted:
        lines.append(f"Secrets were replaced in {counted(report.redacted, 'conversation')}")
    if report.simulated:
        lines.append(f"With answers of the simulated model: {counted(report.simulated, 'conversation')}")
    if report.tools_changed:
        lines.append(
            f"The tools of {counted(report.tools_changed, 'conversation')} are as this version has them, not as they were sent"
        )
    lines += report.notes
    if report.items and not report.rows:
        lines.append("Nothing was exported: no conversation is left by these options")
    if report.output != STANDARD_OUTPUT:
        lines.append(f"Written: {shown_path(Path(report.output))}")
    return lines


def _splits(report: Report) -> str:
    return f" ({', '.join(f'{name} {rows:,}' for name, rows in report.splits.items())})" if report.splits else ""
