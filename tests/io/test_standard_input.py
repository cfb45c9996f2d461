"""What standard input holds, by its first bytes."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest

from manyhands.io.tables.standard_input import kept_input, suffix_of_content


@pytest.mark.parametrize(
    ("suffix", "head"),
    [
        (".jsonl", b'{"prompt": "x"}\n'),
        (".jsonl", b'\xef\xbb\xbf\n  {"a": 1}'),
        (".jsonl", '{"a": 1}'.encode("utf-16")),
        (".json", b"[\n{}]"),
        (".csv", b"a,b\n"),
        (".csv", "ä;b".encode("cp1252")),
        (".csv", "a,b".encode("utf-16")),
        (".csv", b'"{x}",b\n'),
        (".xlsx", b"PK\x03\x04more"),
        (".parquet", b"PAR1"),
        (".jsonl.gz", gzip.compress(b'{"a": 1}', mtime=0)),
        (".csv.gz", gzip.compress(b"a,b\n" * 9000, mtime=0)[:100]),
        (".csv.gz", b"\x1f\x8bnot really"),
    ],
)
def test_the_ending_follows_from_the_content(suffix: str, head: bytes) -> None:
    assert suffix_of_content(head) == suffix


def test_a_format_given_counts_more() -> None:
    assert suffix_of_content(b"{}", "csv") == ".csv"
    assert suffix_of_content(gzip.compress(b"a"), "jsonl") == ".jsonl.gz"


class Interrupted(io.BytesIO):
    """Ctrl-C is pressed while all but the beginning is read."""

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell():
            raise KeyboardInterrupt
        return super().read(size)


def test_an_interruption_while_it_is_copied_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), kept_input(Interrupted(b"a,b\n" * 9000), tmp_path / "r" / "settings", "d"):
        pass
    assert [*tmp_path.iterdir()] == []
