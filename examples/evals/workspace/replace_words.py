"""Replaces a word in all files of the folder in which it starts: python replace_words.py PROMPT_FILE, which holds OLD NEW."""

from __future__ import annotations

import sys
from pathlib import Path

old, new = Path(sys.argv[1]).read_text(encoding="utf-8").split()
for path in sorted(Path().rglob("*.txt")):
    text = path.read_text(encoding="utf-8")
    if old in text:  # which also finds it within longer words
        path.write_text(text.replace(old, new), encoding="utf-8")
        print(f"changed {path}")
