"""Counts the words of a text: python count_words.py PROMPT_FILE OUTPUT_FILE."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

words = re.findall(r"\w+", Path(sys.argv[1]).read_text(encoding="utf-8"))
found = {"words": len(words), "longest": max(words, key=len, default=None)}
Path(sys.argv[2]).write_text(json.dumps({"text": json.dumps(found)}), encoding="utf-8")
