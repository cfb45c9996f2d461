"""Servers and commands that name absurd costs and counts: the paid answer is kept, the figures stay figures, the files stay JSON."""

from __future__ import annotations

import json
import math
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.jsonio import dumps, finite, line, loads, loads_mended, pretty
from manyhands.core.usage import MAX_COST, MAX_COUNT, Usage, as_cost, plausible
from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedResponse
from tests.support.batches import REASONED, BatchFolder, ServerThread
from tests.support.commands import ledger, run, trajectories

ABSURD = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e308",
    "1e999",
    "-1",
    "1" + "0" * 400,
    "9" * 5000,
    '"a lot"',
    "true",
    "null",
    "[1]",
    '{"a": 1}',
    "0.25",
]


def strict(path: Path) -> Any:
    """A file as JSON that everybody reads."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in {path}")

    return json.loads(path.read_text(), parse_constant=refuse)


def reply(request: RecordedRequest) -> Reply:
    """The cost, and each count, is what the prompt's number says."""
    number = int(request.body["messages"][-1]["content"].split()[-1])
    body = json.dumps(dict(REASONED))
    usage = '{"prompt_tokens": %s, "completion_tokens": 5, "total_tokens": %s, "cost": %s}'
    value = ABSURD[number]
    whole = json.loads(body)
    whole["usage"] = "HERE"
    return ScriptedResponse(json.dumps(whole).replace('"HERE"', usage % (value, value, value)).encode())


def test_a_server_with_absurd_figures(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, [f"prompt {number}" for number in range(len(ABSURD))])
    with ServerThread(reply) as server:
        ran = folder.batch(f"--base_url={server.base_url}", "--executor=local")
        asked = len(server.requests)
        assert ran.code == 0, ran
        assert asked == len(ABSURD), "an answer was paid twice"
        resumed = run("resume", str(folder.run()), "--quiet")
        assert (resumed.code, resumed.err) == (0, "")
        assert len(server.requests) == asked
    assert ledger(folder.run())["completed"] == trajectories(folder.run()) == len(ABSURD)
    usage = strict(folder.run() / "summary.json")["usage"]
    assert 0.25 <= usage["cost"] < 1  # the one that can be; the others by the table
    assert 0 <= usage["input_tokens"] <= MAX_COUNT
    strict(folder.run() / "statistics.json")
    for words in (["status"], ["runs"], ["show"]):
        name = ["r"] if words != ["runs"] else []
        looked = run(*words, *name, f"--data_dir={tmp_path / 'data'}", "--json")
        assert looked.code == 0
        assert "Infinity" not in looked.out
        assert "NaN" not in looked.out


def test_what_an_earlier_version_left_does_not_end_a_resume(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, ["prompt 13"])
    with ServerThread(reply) as server:
        assert folder.batch(f"--base_url={server.base_url}", "--executor=local").code == 0
        place = folder.run()
        connection = sqlite3.connect(place / "run.db", isolation_level=None)
        connection.execute("UPDATE usage SET cost = 9e999")
        connection.execute("INSERT INTO accounts VALUES ('web_search', 1, 2, 3, 0, 0, 0, 9e999, 0, 0)")
        connection.close()
        (place / "run.lock").unlink()  # its checksum is that of the journal before
        (place / "summary.json").write_text('{"usage": {"cost": Infinity}')
        for words in (["resume", str(place), "--quiet"], ["status", str(place)], ["show", str(place)]):
            ended = run(*words)
            assert ended.code == 0, ended
    assert strict(place / "summary.json")["usage"]["cost"] == 0


def test_a_batch_command_with_absurd_costs() -> None:
    from manyhands.workloads.evals.batch.records import parse_line
    from manyhands.workloads.evals.targets.answers import read_record

    for value in ("NaN", "Infinity", "-Infinity", "1e307", "-1"):
        text = b'{"id": "a", "text": "yes \\"cost_usd\\": NaN", "cost_usd": %s, "duration_ms": %s}' % (
            (value.encode(),) * 2
        )
        answer = read_record(parse_line(text))
        assert answer.text == 'yes "cost_usd": NaN'
        assert answer.cost_usd is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e308, -1, -0.5, 10**400, "1", True, None, [], {}])
def test_no_figure_of_a_cost(value: Any) -> None:
    assert as_cost(value) is None


@pytest.mark.parametrize("value", [0, 0.0, 1, 0.5, MAX_COST])
def test_a_figure_of_a_cost(value: float) -> None:
    assert as_cost(value) == value


def test_sums_stay_finite() -> None:
    total = Usage()
    for cost in (math.nan, math.inf, -1.0, 1e308, 1e308, 0.5):
        total += plausible(Usage(calls=1, input_tokens=10**30, output_tokens=7, cost=cost))
    assert total == Usage(calls=6, output_tokens=42, cost=0.5, unpriced_calls=5)
    assert plausible(total) is total


def test_what_is_written_is_json() -> None:
    value = {"a": [math.nan, (math.inf, 1.5)], "b": 2**70, "c": -math.inf, "d": "NaN"}
    for text in (dumps(value), line(value), pretty(value), json.dumps(finite(value))):
        assert loads(text) == {"a": [None, [None, 1.5]], "b": pytest.approx(2**70), "c": None, "d": "NaN"}


def test_what_others_said_is_read_with_gaps() -> None:
    assert loads_mended(b'{"a": NaN, "b": [1, -Infinity], "c": "NaN"}') == {"a": None, "b": [1, None], "c": "NaN"}
    for text in (b"{", b"", b"[" * 100_000, b"nan", b"\xff"):
        with pytest.raises(ValueError):
            loads_mended(text)
