"""What ``datasets.load_dataset`` makes of a path that an export wrote: PATH COPY → {splits: {name: rows}, columns}.

The rows, as they come back, are written to COPY/SPLIT.jsonl, with what is null left out.
"""

import json
import sys
from pathlib import Path

from datasets import load_dataset


def without_null(value):
    """Structs come back with all the keys that any row has."""
    return {key: each for key, each in value.items() if each is not None}


path, copy = Path(sys.argv[1]), Path(sys.argv[2])
loaded = load_dataset(str(path)) if path.is_dir() else load_dataset("json", data_files=str(path))
for split, rows in loaded.items():
    with (copy / f"{split}.jsonl").open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(without_null(row)) + "\n")
columns = {split: rows.column_names for split, rows in loaded.items()}
print(json.dumps({"splits": {split: len(rows) for split, rows in loaded.items()}, "columns": columns}))
