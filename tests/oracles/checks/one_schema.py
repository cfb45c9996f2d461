"""Whether ``datasets`` loads FILES of Parquet together, in either order → {rows, features}; the messages go to COPY, a line each."""

import json
import sys
from pathlib import Path

from datasets import load_dataset

copy, files = Path(sys.argv[1]), sys.argv[2:]
backwards = load_dataset("parquet", data_files=files[::-1], split="train")
rows = load_dataset("parquet", data_files=files, split="train")
assert rows.features == backwards.features
with copy.open("w", encoding="utf-8") as file:
    for row in rows:
        file.write(json.dumps(row["messages"]) + "\n")
print(json.dumps({"rows": [len(rows), len(backwards)], "features": sorted(rows.features)}))
