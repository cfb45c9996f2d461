"""Files of every format, well made and broken, and what the readers of tables make of them, as plain data."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.io.tables.formats import open_records, open_table

CASES: dict[str, tuple[str, bytes]] = {
    "plain csv": ("t.csv", b"prompt,b\nx,1\ny,2\n"),
    "short and long rows": ("t.csv", b"prompt,b\nx\ny,2,3\nz,4\n"),
    "a blank name": ("t.csv", b"prompt,, \nx,1,2\n"),
    "a name twice": ("t.csv", b"prompt,b,b\nx,1,2\n"),
    "a name twice but for blanks": ("t.csv", b"prompt,b, b\nx,1,2\n"),
    "blanks around names": ("t.csv", b" prompt , b\nx,1\n"),
    "no column called prompt": ("t.csv", b"a,b\nx,1\n"),
    "blank lines and rows": ("t.csv", b'\n\nprompt,b\n\nx,1\n,\n \n  , \n"",\ny,2\n\n'),
    "empty cells before the header": ("t.csv", b",,\nprompt,b\nx,1\n"),
    "line breaks in cells": ("t.csv", b'prompt,b\r\n"x\r\ny\n",1\r\nz,"2\n\n3"\r\nlast,4\r\n'),
    "line ends of old": ("t.csv", b"prompt,b\rx,1\ry,2\r"),
    "one line end of old": ("t.csv", b"prompt,b\nx,1\ry,2\nz,3\n"),
    "text behind a closing quote": ("t.csv", b'prompt,b\n"x"y,1\nz,2\n'),
    "a quote in a cell": ("t.csv", b'prompt,b\nx"y,"a""b"\n'),
    "a quote never closed": ("t.csv", b'prompt,b\nx,1\n"y,2\nz,3\n'),
    "a quote never closed in the last line": ("t.csv", b'prompt,b\nx,1\n"y,2'),
    "broken quoting in the header": ("t.csv", b'"prompt"x,b\ny,1\n'),
    "NUL characters": ("t.csv", b"prompt,b\nx\0,\0\n"),
    "semicolons": ("t.csv", b"prompt;b\nx;1\ny;2\n"),
    "tabs": ("t.tsv", b"prompt\tb\nx\t1\n"),
    "marked csv": ("t.csv", b"\xef\xbb\xbf\xef\xbb\xbfprompt,b\nx,1\n"),
    "csv in UTF-16": ("t.csv", "prompt,b\nä,1\n".encode("utf-16")),
    "bytes that are no text in a row": ("t.csv", b"prompt,b\nx\xff,1\ny,\xc3\xa4\nz,\xe4,3\n"),
    "bytes that are no text in a long cell": ("t.csv", b'prompt,b\n"x\n\xff\ny",1\nz,2\n'),
    "bytes that are no text in the header": ("t.csv", b"prompt,\xff\nx,1\n"),
    "one column with commas": ("t.csv", b'prompt\nx, y, and z\n"a, ""b"""\n;\n'),
    "one column below a blank line": ("t.csv", b"prompt\n\nhello, world\nx\na, b, c\n"),
    "csv in UTF-16 without a mark": ("t.csv", "prompt,b\nä,1\n".encode("utf-16-le")),
    "an empty csv": ("t.csv", b""),
    "a csv of blank lines": ("t.csv", b"\n\n"),
    "a header alone": ("t.csv", b"prompt,b\n"),
    "packed csv": ("t.csv.gz", gzip.compress(b"prompt,b\nx,1\n", mtime=0)),
    "packed csv cut off": ("t.csv.gz", gzip.compress(b"prompt,b\n" + b"x,1\n" * 3, mtime=0)[:-9]),
    "packed csv that is not": ("t.csv.gz", b"prompt,b\nx,1\n"),
    "json lines": ("t.jsonl", b'{"prompt": "x", "b": 1}\n\n \n{"prompt": "y", "c": null}\n'),
    "ndjson": ("t.ndjson", b'{"prompt": "x"}\n'),
    "marked json lines": ("t.jsonl", b'\xef\xbb\xbf{"prompt": "x"}\n\xef\xbb\xbf{"prompt": "y"}\n'),
    "json lines with old line ends": ("t.jsonl", b'{"prompt": "x"}\r\n{"prompt":\r"y"}\r\n'),
    "other breaks in json lines": ("t.jsonl", '{"prompt": "x\u2028\x85y"}\n'.encode()),
    "lines that are no objects": ("t.jsonl", b'[1]\n2\n"prompt"\nnull\n{"prompt": "x"}\n'),
    "lines that are no json": ("t.jsonl", b'{"prompt": "x"\n{prompt: 1}\nx\n{"prompt": "y"},\n{"prompt": "z"}\n'),
    "what json has no numbers for": ("t.jsonl", b'{"a": NaN}\n{"a": -Infinity}\n{"a": 1e999}\n{"a": 1e300}\n'),
    "long numbers": ("t.jsonl", b'{"a": 12345678901234567890}\n{"a": 1' + b"0" * 5000 + b"}\n"),
    "keys named twice": ("t.jsonl", b'{"a": 1, "a": 2}\n{"b": {"c": 1, "c": 2}}\n{"b": 3}\n'),
    "half a character": ("t.jsonl", b'{"a": "\\ud800"}\n{"\\ud800": 1}\n{"a": "\\ud83d\\ude00"}\n'),
    "nested deeply": ("t.jsonl", b'{"a": ' + b"[" * 300 + b"]" * 300 + b'}\n{"a": ' + b"[" * 150 + b"]" * 150 + b"}\n"),
    "bytes that are no text in json lines": ("t.jsonl", b'{"a": "\xff"}\n{"a": "\xc3\xa4"}\n'),
    "json lines in UTF-16": ("t.jsonl", '{"a": "ä"}\n'.encode("utf-16")),
    "blank keys": ("t.jsonl", b'{" ": 1}\n'),
    "empty objects": ("t.jsonl", b'{}\n{"a": 1}\n{}\n'),
    "empty json lines": ("t.jsonl", b""),
    "json lines without an object": ("t.jsonl", b"\n[]\n"),
    "packed json lines cut off": ("t.jsonl.gz", gzip.compress(b'{"a": "x"}\n' * 3, mtime=0)[:-9]),
    "packed json lines that are not": ("t.jsonl.gz", b'{"a": "x"}\n'),
    "a json array": ("t.json", b'[{"prompt": "x"}, 2, {"a": NaN}]'),
    "an object with rows": ("t.json", b'{"v": 1, "data": [{"prompt": "x"}], "w": 2}'),
    "json lines called json": ("t.json", b'{"prompt": "x"}\n{"prompt": "y"}\n'),
    "broken json": ("t.json", b'[{"prompt": "x"}, {"prompt" 2}]'),
    "packed json": ("t.json.gz", gzip.compress(b'[{"prompt": "x"}]', mtime=0)),
    "packed json cut off": ("t.json.gz", gzip.compress(b'[{"prompt": "x"}]', mtime=0)[:-9]),
    "another name": ("t.txt", b'{"prompt": "x,y"}\n'),
    "a name without an ending": ("t", b"prompt,b\nx,1\n"),
    "a spreadsheet": ("t.xlsx", b"PK"),
    "no parquet": ("t.parquet", b"PAR1"),
}
"""The name of a file and its content, for each situation."""


def as_table(path: Path, **settings: Any) -> list[Any]:
    """What a CSV job reads: the table's format, columns, encoding and delimiter, then number, cells and problem of each row; a message
    where reading ends."""

    def read(found: list[Any]) -> None:
        table = open_table(path, **settings)
        info = table.info
        found.append([info.format, list(info.headers), info.encoding, info.delimiter, table.unit])
        found.extend([row.line, list(row.cells), row.problem] for row in table.rows())

    return _read(path, read)


def as_dataset(path: Path) -> list[Any]:
    """What a batch of trajectories reads: what its numbers count, then number, value and problem of each record; a message where
    reading ends."""

    def read(found: list[Any]) -> None:
        records = open_records(path, "prompt")
        found.append(records.unit)
        found.extend([record.number, record.value, _plain(record.problem)] for record in records.read())

    return _read(path, read)


_ADVICE = re.compile(r" - do you need to open the file .*")
"""What the csv module adds, in words that change with its version."""


def _plain(value: Any) -> Any:
    return _ADVICE.sub("", value) if isinstance(value, str) else value


def _read(path: Path, read: Callable[[list[Any]], None]) -> list[Any]:
    found: list[Any] = []
    try:
        read(found)
    except UserError as error:
        found.append(_plain(str(error).replace(f"{path.parent}{os.sep}", "")))
    return found
