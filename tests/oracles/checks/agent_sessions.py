"""The messages that ``datasets`` with ``teich`` reads of a FOLDER of sessions, written to COPY a line each → {rows, harness}."""

import json
import sys
from pathlib import Path

from datasets import load_dataset

folder, copy = Path(sys.argv[1]), Path(sys.argv[2])
rows = load_dataset("json", data_files=sorted(map(str, folder.glob("*.jsonl"))), split="train")
with copy.open("w", encoding="utf-8") as file:
    for row in rows:
        file.write(json.dumps(row["messages"]) + "\n")
print(json.dumps({"rows": len(rows), "harness": sorted(set(rows["harness"]))}))
