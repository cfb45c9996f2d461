"""A code judge: compares files of the workspace with those that the test expects."""

from __future__ import annotations

import json
import sys
from pathlib import Path

test = json.load(sys.stdin)
hits, misses = [], []
for name, expected in test["expected_output"][-1]["content"].items():
    text = Path(test["workspace_path"], name).read_text(encoding="utf-8")
    (hits if text == expected else misses).append(f"{name}: {text.strip()}")
print(json.dumps({"score": len(hits) / (len(hits) + len(misses)), "hits": hits, "misses": misses}))
