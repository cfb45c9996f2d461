"""A child: a run as large as it is asked for, without executing it: a batch with prompts, answers, scores, tool calls and failures.

Arguments: ``folder``, ``items``. Reports the bytes of the journal. All of it is made of the number of each item, so that it is the same
each time.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from benchmarks.children import arguments, report
from manyhands.core.jsonio import Json, dumps
from manyhands.engine.journal.database import connect, migrate
from manyhands.engine.journal.lock import LOCK
from manyhands.engine.journal.reader import JOURNAL
from manyhands.engine.journal.records import pack

_ENDS = [
    f"{left}{right}{last}" for left in "bdklmnrst" for right in "aeiou" for last in ("", "n", "s", "r", "lo", "ti")
]
WORDS = [f"{first}{second}{end}" for first in "bdfgklmnprstvz" for second in "aeiou" for end in _ENDS]
"""Some 19,000 words; the first ones are used most."""
_WEIGHTS = list(accumulate(1 / (rank + 3) for rank in range(len(WORDS))))
CAUSES = ("rate_limit", "timeout", "model_error", "context_overflow")
REASONS = ("no_reasoning", "empty_answer", "unknown_tools")
TOOLS = ("terminal", "read_file", "write_file", "web_search", "browser_open", "python")
_BEGAN = 1_760_000_000.0
_CHUNK = 5_000
_USAGE = {
    "calls": 1,
    "cached_tokens": 0,
    "cache_write_tokens": 0,
    "reasoning_tokens": 0,
    "unpriced_calls": 0,
    "simulated_calls": 0,
}


def made(given: dict[str, Any]) -> dict[str, Any]:
    folder = Path(given["folder"])
    folder.mkdir(parents=True)
    (folder / LOCK).touch()
    path = folder / JOURNAL
    with closing(connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        migrate(connection, path)
        _fill(connection, given["items"])
    return {"bytes": path.stat().st_size}


def _fill(connection: sqlite3.Connection, items: int) -> None:
    facts: dict[str, Json] = {
        "run_id": "benchmark-run",
        "workload": "trajectories",
        "spec": {},
        "generation": 1,
        "planned": {"identity": None, "generation": 1},
        "commits": 1,
    }
    rows = [(name, dumps(value).decode()) for name, value in facts.items()]
    connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)
    connection.execute(
        "INSERT INTO sessions (process, host, started_at, heartbeat_at, ended_at, ending) VALUES (1, 'here', ?1, ?1, ?1, 'interrupted')",
        (_BEGAN,),
    )
    numbers = iter(range(1, items + 1))
    while chunk := list(islice(numbers, _CHUNK)):
        found = [_Item(number) for number in chunk]
        connection.execute("BEGIN")
        connection.executemany(
            "INSERT INTO items (number, key, position, generation, payload, state, attempt, performances, failures, reason, cause, "
            "message, record, started_at, finished_at, written) VALUES (?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)",
            [each.row() for each in found],
        )
        connection.executemany(
            "INSERT INTO steps (item, attempt, scope, seq, kind, digest, request, output, usage, started_at, finished_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [step for each in found for step in each.steps()],
        )
        connection.executemany(
            "INSERT INTO failures (item, attempt, at, cause, message) VALUES (?, ?, ?, ?, ?)",
            [(each.number, each.attempt, each.ended, each.cause, each.message) for each in found if each.cause],
        )
        connection.execute("COMMIT")


class _Item:
    """One item."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.random = random.Random(number)
        self.prompt = self.text(self.random.randrange(12, 32))
        self.state = self.random.choices(
            ("completed", "failed", "discarded", "cancelled", "pending"), (80, 3, 4, 1, 12)
        )[0]
        self.cause = self.random.choice(CAUSES) if self.state == "failed" else None
        self.reason = self.random.choice(REASONS) if self.state == "discarded" else None
        self.message = f"the endpoint said {self.text(6)}" if self.cause else None
        self.attempt = 2 if self.random.random() < 0.03 else 1
        self.began = _BEGAN + number * 0.05
        self.ended = self.began + self.random.expovariate(1 / 20)

    def text(self, words: int) -> str:
        return " ".join(self.random.choices(WORDS, cum_weights=_WEIGHTS, k=words))

    def row(self) -> tuple[Any, ...]:
        payload = {
            "prompt": self.prompt,
            "prompt_index": self.number - 1,
            "sample": 0,
            "image": None,
            "cwd": None,
            "id": f"row-{self.number}",
            "line": self.number,
            "source": {"topic": self.random.choice(WORDS[:40])},
            "system": None,
            "messages": [],
        }
        score, ended = round(self.random.random(), 3), self.state != "pending"
        grade = {
            "score": score,
            "verdict": "pass" if score >= 0.5 else "fail",
            "scores": [{"name": "words", "score": score}],
        }
        record = {"stop_reason": "answered", "turns": 2, "grade": grade} if self.state == "completed" else {}
        key = f"{self.number:08x}{self.random.getrandbits(64):016x}"
        position = self.number - 1
        beginning = (
            self.number,
            key,
            position,
            pack(payload),
            self.state,
            self.attempt,
            int(ended),
            int(self.cause is not None),
        )
        times = (self.began, self.ended) if ended else (None, None)
        return (*beginning, self.reason, self.cause, self.message, pack(record) if ended else None, *times)

    def steps(self) -> Iterator[tuple[Any, ...]]:
        """Those of a conversation with a tool call, of one without and a judge's, or none."""
        chosen = self.random.random()
        if self.state == "pending" or chosen > 0.2:
            return
        tool, middle = self.random.choice(TOOLS), (self.began + self.ended) / 2
        asked = {"added": [{"role": "user", "content": self.prompt}], "count": 1}
        if chosen < 0.12:
            call = {"id": "call_1", "type": "function", "function": {"name": tool, "arguments": '{"command": "ls -l"}'}}
            answer = {
                "message": {"role": "assistant", "content": "", "tool_calls": [call]},
                "finish_reason": "tool_calls",
            }
            yield self.step("", 0, "model", asked, answer, self.began, middle)
            calls = {"turn": "/0", "calls": [{"index": 0, "name": tool, "arguments": {"command": "ls -l"}}]}
            failed = {"failed": True} if self.random.random() < 0.1 else {}
            yield self.step(
                "", 1, "tools", calls, {"results": [{"content": self.text(15), **failed}]}, middle, middle + 1
            )
            yield self.step("", 2, "model", {"added": [], "count": 3}, self.answer(30), middle + 1, self.ended)
        else:
            yield self.step("", 0, "model", asked, self.answer(35), self.began, middle)
            judged = {"added": [{"role": "user", "content": "Is it right?"}], "count": 1}
            yield self.step("judge", 0, "model", judged, self.answer(5), middle, self.ended)

    def answer(self, words: int) -> Json:
        return {"message": {"role": "assistant", "content": self.text(words)}, "finish_reason": "stop"}

    def step(
        self, scope: str, seq: int, kind: str, request: Json, output: Json, began: float, ended: float
    ) -> tuple[Any, ...]:
        tokens_in, tokens_out = self.random.randrange(50, 5_000), self.random.randrange(5, 800)
        usage = {
            **_USAGE,
            "input_tokens": tokens_in,
            "output_tokens": tokens_out,
            "cost": (tokens_in + 4 * tokens_out) / 1e7,
        }
        packed = pack(usage) if kind == "model" else None
        digest = self.random.getrandbits(128).to_bytes(16)
        return self.number, self.attempt, scope, seq, kind, digest, pack(request), pack(output), packed, began, ended


if __name__ == "__main__":
    report(**made(arguments()))
