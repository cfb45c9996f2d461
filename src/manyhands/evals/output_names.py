"""What names of files say of the format that results are written in."""

from __future__ import annotations

from pathlib import Path

from manyhands.core.errors import UserError

ENDINGS = (".jsonl", ".json", ".xml", ".html", ".yaml", ".yml")
"""What ``--output`` may end in, each with its own format."""
LINES = ".jsonl"
_LINES = (LINES, ".ndjson")
_FORMATS = {"jsonl": _LINES, "yaml": (".yaml", ".yml")}
"""The endings that go with each ``--output_format``."""
_OTHER_FORMATS = frozenset(
    (
        *(".csv", ".tsv", ".xlsx", ".xls", ".ods", ".parquet", ".toml", ".htm", ".md", ".pdf", ".db", ".sqlite"),
        *(".gz", ".zip", ".bz2", ".xz", ".zst", ".tar", ".tgz", ".7z"),
    )
)
"""Endings that promise what is not written."""


def ending_of_out(path: Path, chosen: str | None) -> str:
    """The format of ``--out`` as an ending of ``ENDINGS``: ``chosen`` (``--output_format``), else what the file's name says, else JSON
    Lines."""
    if chosen is not None:
        return f".{chosen}"
    named = path.suffix.lower()
    return named if named in ENDINGS else LINES


def check_out_name(path: Path, chosen: str | None) -> None:
    """Raises UserError for an ``--out`` that promises another format than is written."""
    named = path.suffix.lower()
    if named in _OTHER_FORMATS:
        raise UserError(f"--out {path}: results are not written as {named}; let it end in one of {', '.join(ENDINGS)}")
    if chosen is not None and named in (*ENDINGS, *_LINES) and named not in _FORMATS[chosen]:
        raise UserError(f"--out {path}: {named} is not what --output_format={chosen} writes; leave one of them out")


def check_trace_name(path: Path) -> None:
    """Raises UserError for a ``--trace_file`` that promises another format than JSON Lines."""
    named = path.suffix.lower()
    if named in _OTHER_FORMATS or (named in ENDINGS and named not in _LINES):
        raise UserError(f"--trace_file {path}: is written as JSON Lines, not as {named}; let it end in {LINES}")
