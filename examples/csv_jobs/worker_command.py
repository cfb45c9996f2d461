"""A command as a worker (``--worker_command="python examples/csv_jobs/worker_command.py"``). Any program will do.

It is launched for each row. The prompt comes on standard input; the row, the schema and more are named in its environment. What it
prints last, a JSON object, is the result. An exit code other than 0 fails the row.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from worker_function import score


def main() -> None:
    row = json.loads(Path(os.environ["MANYHANDS_ROW_FILE"]).read_text(encoding="utf-8"))
    print("Looking at", row["path"])
    print(json.dumps(score(row)))


if __name__ == "__main__":
    main()
