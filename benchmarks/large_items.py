"""A child: a run of three large items, without executing it: one of very many steps, one with a very large tool output, and one with a
conversation that is large as a whole.

Arguments: ``folder``, ``like`` (the folder of a run whose settings it gets), ``steps``, ``output`` and ``conversation`` (bytes).
Reports the id of the step with the large output, and the SHA-256 of that as JSON.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.children import arguments, report
from manyhands.core.jsonio import Json, dumps
from manyhands.engine.journal.reader import JOURNAL
from manyhands.engine.journal.records import pack

_BEGAN = 1_760_000_000.0
_TURN = 3_500_000
"""Characters of each turn of the large conversation."""
_USAGE = {"calls": 1, "input_tokens": 900, "output_tokens": 80, "cost": 0.001}
_INSERT = (
    "INSERT INTO steps (item, attempt, scope, seq, kind, digest, request, output, usage, started_at, finished_at) "
    "VALUES (?, 1, '', ?, ?, x'00', ?, ?, ?, ?, ?)"
)


def made(given: dict[str, Any]) -> dict[str, Any]:
    folder = Path(given["folder"])
    shutil.copytree(given["like"], folder)
    with closing(sqlite3.connect(folder / JOURNAL)) as journal:
        journal.execute("PRAGMA synchronous = OFF")
        journal.execute("UPDATE meta SET value = '\"large-items\"' WHERE name = 'run_id'")
        journal.execute("DELETE FROM steps")
        output = {"results": [{"content": {"output": _text(given["output"], 1), "exit_code": 0, "error": None}}]}
        journal.executemany(_INSERT, _turns(1, given["steps"] // 2))
        journal.executemany(_INSERT, _turns(2, 2))
        found = journal.execute("SELECT max(id) FROM steps WHERE item = 2 AND kind = 'tools'").fetchone()[0]
        journal.execute("UPDATE steps SET output = ? WHERE id = ?", (pack(output), found))
        journal.executemany(_INSERT, _turns(3, given["conversation"] // _TURN, _TURN))
        journal.commit()
    return {"step": found, "digest": hashlib.sha256(dumps(output)).hexdigest()}


def _turns(item: int, turns: int, size: int = 300) -> Iterator[tuple[Any, ...]]:
    """Calls of the model with one call of a tool each; ``size``: characters of what the tool gave."""
    for turn in range(turns):
        at, said = _BEGAN + 20 * turn, f"Turn {turn}: what does the next file say?"
        call = {
            "id": f"call_{turn}",
            "type": "function",
            "function": {"name": "terminal", "arguments": '{"command": "ls"}'},
        }
        asked: Json = {"added": [{"role": "user", "content": said}] if turn == 0 else [], "count": 2 * turn + 1}
        answer = {
            "message": {"role": "assistant", "content": said, "tool_calls": [call]},
            "finish_reason": "tool_calls",
        }
        yield item, 2 * turn, "model", pack(asked), pack(answer), pack(_USAGE), at, at + 9
        called = {
            "turn": f"/{2 * turn}",
            "calls": [{"index": 0, "id": f"call_{turn}", "name": "terminal", "arguments": {"command": "ls"}}],
        }
        result = {"results": [{"content": {"output": _text(size, turn), "exit_code": 0, "error": None}}]}
        yield item, 2 * turn + 1, "tools", pack(called), pack(result), None, at + 10, at + 19


def _text(size: int, seed: int) -> str:
    return random.Random(seed).randbytes(size // 2 + 1).hex()[:size]


if __name__ == "__main__":
    report(**made(arguments()))
