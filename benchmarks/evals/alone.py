"""A child: what judges are compared with: a fresh ``python3`` for each answer, one after the other.

Arguments: ``folder`` with ``judge.py``, ``answers``: how many. Reports the seconds and the scores.
"""

from __future__ import annotations

import json
import subprocess
import time

from benchmarks.children import arguments, report


def main() -> None:
    given = arguments()
    began, scores = time.perf_counter(), []
    for number in range(given["answers"]):
        payload = json.dumps({"answer": f"The answer to test-{number} is 4.", "criteria": "It is four"})
        done = subprocess.run(
            ["python3", "judge.py"], input=payload, capture_output=True, text=True, check=True, cwd=given["folder"]
        )
        scores.append(json.loads(done.stdout)["score"])
    wall = time.perf_counter() - began
    report(wall=wall, passed=sum(score >= 0.8 for score in scores), mean=sum(scores) / len(scores))


if __name__ == "__main__":
    main()
