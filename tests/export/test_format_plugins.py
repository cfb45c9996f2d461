"""Export formats of installed packages, by entry points."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PLUGIN = """
from manyhands.export.format import Format

class Texts(Format):
    name = "texts"
    about = "the texts of a conversation"

    def rows(self, conversation):
        yield {"texts": [turn.message["content"] for turn in conversation.turns]}
"""
ENTRIES = """[manyhands.export_formats]
texts = texts_format:Texts
broken = nowhere_at_all:Format
other = os:path
"""
SCRIPT = """
from manyhands.cli.main import main

main(["import", "rows.jsonl", "--from=messages", "--run_name=r", "--quiet"])
print("---")
for words in (["r", "--to=texts"], ["r", "--to=broken"], ["r", "--to=other"], ["--to=list"]):
    print(main(["export", *words]))
"""


def test_a_format_of_another_package(tmp_path: Path) -> None:
    information = tmp_path / "texts_format-1.0.dist-info"
    information.mkdir()
    (tmp_path / "texts_format.py").write_text(PLUGIN)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: texts-format\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(ENTRIES)
    row = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
    (tmp_path / "rows.jsonl").write_text(row)
    ended = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2] / 'src'}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (tmp_path / "data/r/exports/texts.jsonl").read_text() == '{"texts":["a","b"]}\n'
    lines = ended.stdout.partition("---\n")[2].splitlines()
    assert lines[:3] == ["Exported 1 of 1 item as texts: 1 row", "Written: data/r/exports/texts.jsonl", "0"]
    assert lines[3:5] == ["2", "2"]
    assert any(line.split() == ["texts", "the", "texts", "of", "a", "conversation"] for line in lines)
    assert any(line.startswith("broken ") and "No module named 'nowhere_at_all'" in line for line in lines)
    errors = [line for line in ended.stderr.splitlines() if "error:" in line]
    assert len(errors) == 2
    assert "the export format plug-in 'broken' (nowhere_at_all:Format) can't be used" in errors[0]
    assert "the export format plug-in 'other' (os:path) is no subclass of manyhands.export.format.Format" in errors[1]
