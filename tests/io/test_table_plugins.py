"""Formats of tables that other packages bring: read as a job's table and as a dataset, and written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from manyhands.io.tables.formats import BUILTIN

PACKAGE = """
from manyhands.io.tables.formats import TableFormat


def read(path):
    for line in path.read_text().splitlines():
        if line == "!":
            raise ValueError("no pairs")
        yield dict(pair.split(":") for pair in line.split())


def write(handle, names, rows):
    written = 0
    for row in rows:
        handle.write((" ".join(f"{name}:{value}" for name, value in zip(names, row)) + "\\n").encode())
        written += 1
    return written


FORMAT = TableFormat("pairs", "Pairs", (".pairs",), read, write)
"""

PROGRAM = """
import io, sys
from pathlib import Path
from manyhands.core.errors import UserError
from manyhands.io.tables.formats import check_name, format_in_name, formats, open_records, open_table

path = Path(sys.argv[1])
print(*formats())
table = open_table(path)
print(table.info.format, table.info.headers, table.unit, [list(row.cells) for row in table.rows()])
print([list(record) for record in open_records(path).read()])
check_name(Path("out.pairs"))
out = io.BytesIO()
print(format_in_name(Path("out.pairs")).write(out, ["a"], [["1"], ["2"]]), out.getvalue())
path.write_text("a:1\\n!\\n")
for read in (open_table, lambda path: list(open_records(path).read())):
    try:
        read(path)
    except UserError as error:
        print(error)
"""


def run(folder: Path, entry: str) -> str:
    """What the program prints where a package with such an entry point is installed."""
    installed = folder / "pairs-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: pairs\nVersion: 1\n")
    (installed / "entry_points.txt").write_text(f"[manyhands.table_formats]\npairs = {entry}\n")
    (folder / "pairs_format.py").write_text(PACKAGE)
    (folder / "t.pairs").write_text("prompt:x b:1\nprompt:y\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    command = [sys.executable, "-c", PROGRAM, str(folder / "t.pairs")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)
    return ended.stdout + ended.stderr


def test_a_format_of_another_package(tmp_path: Path) -> None:
    path = tmp_path / "t.pairs"
    assert run(tmp_path, "pairs_format:FORMAT").splitlines() == [
        " ".join((*BUILTIN, "pairs")),
        "pairs ('prompt', 'b') row [['x', '1'], ['y', None]]",
        "[[1, {'prompt': 'x', 'b': '1'}, None], [2, {'prompt': 'y'}, None]]",
        "2 b'a:1\\na:2\\n'",
        f"{path}: not readable as Pairs: no pairs",
        f"{path}: not readable as Pairs: no pairs",
    ]


def test_a_format_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    said = run(tmp_path, "pairs_format:MISSING").splitlines()[-1]
    assert "table format 'pairs' (pairs_format:MISSING) can't be loaded: AttributeError" in said
