"""A batch runner: reads an eval file, screens the row of every test, and writes a JSON line for each.

python batch-runner.py --eval my-eval.yaml --output results.jsonl
python batch-runner.py --healthcheck
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

LIMIT = 10_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--eval", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--healthcheck", action="store_true")
    options = parser.parse_args()
    if options.healthcheck:
        print("batch-runner: healthy")
        return
    tests = YAML(typ="safe").load(options.eval.read_text(encoding="utf-8"))["tests"]
    with options.output.open("w", encoding="utf-8") as lines:
        for test in tests:
            lines.write(json.dumps(record_of(test)) + "\n")
            lines.flush()  # grading starts with the first line, while the others are still worked on


def record_of(test: dict[str, Any]) -> dict[str, Any]:
    """What is written about one test."""
    row = next(message["content"]["row"] for message in test["input"] if message["role"] == "user")
    decision = {"decision": "REVIEW" if row["amount"] > LIMIT else "CLEAR", "reasons": []}
    call = {"tool": "screening_check", "input": {"amount": row["amount"]}, "output": decision}
    return {
        "id": test["id"],
        "text": json.dumps({"id": row["id"], **decision}),
        "output": [
            {"role": "assistant", "tool_calls": [call]},
            {"role": "assistant", "content": decision},
        ],
    }


if __name__ == "__main__":
    main()
