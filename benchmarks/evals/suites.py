"""The eval files that are measured, with their programs."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

BULK = """\
    import json, os, sys
    with open(os.environ["MANYHANDS_TEST_IDS_FILE"]) as ids, open(sys.argv[1], "w") as out:
        for line in ids:
            out.write(json.dumps({"id": line.strip(), "text": "The answer to " + line.strip() + " is 4."}) + "\\n")
"""
JUDGE = """\
    import json, sys
    answer = json.load(sys.stdin)["answer"]
    print(json.dumps({"score": 1 if answer.endswith("4.") else 0, "hits": ["it is four"], "misses": []}))
"""
CODE: list[dict[str, object]] = [{"type": "code_judge", "name": "four", "script": ["python3", "judge.py"]}]
RULE: list[dict[str, object]] = [{"type": "contains", "name": "four", "value": "4"}]


def write_suite(folder: Path, tests: int, graders: list[dict[str, object]]) -> Path:
    """An eval file in JSON Lines, whose tests one command answers; the path."""
    folder.mkdir()
    target = {"name": "bulk", "provider": "cli", "command": "python3 bulk.py {OUTPUT_FILE}", "provider_batching": True}
    (folder / "targets.yaml").write_text(json.dumps({"targets": [target]}))
    (folder / "suite.yaml").write_text(json.dumps({"execution": {"target": "bulk"}, "assert": graders}))
    for name, text in (("bulk", BULK), ("judge", JUDGE)):
        (folder / f"{name}.py").write_text(dedent(text))
    path = folder / "suite.jsonl"
    with path.open("w") as file:
        for number in range(tests):
            file.write(
                json.dumps({"id": f"test-{number}", "criteria": "It is four", "input": f"{number}: 2 + 2?"}) + "\n"
            )
    return path
