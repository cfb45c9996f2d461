"""A code judge: gets a test and its answer as JSON on standard input, and prints a score as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> None:
    test = json.load(sys.stdin)
    expected = decision_of(message.get("content") for message in test["expected_output"])
    try:
        actual = decision_of([json.loads(test["answer"])])
    except ValueError:
        actual = None
    right = expected == actual
    found = f"decision matches: {expected}" if right else f"mismatch: expected={expected} actual={actual}"
    score = {
        "score": 1.0 if right else 0.0,
        "hits": [found] if right else [],
        "misses": [] if right else [found],
        "reasoning": "Batch runner output matches expected."
        if right
        else "Batch runner output did not match expected.",
    }
    print(json.dumps(score))


def decision_of(contents: Any) -> Any:
    """The decision of the first object among some."""
    return next((content.get("decision") for content in contents if isinstance(content, dict)), None)


if __name__ == "__main__":
    main()
