"""What a configuration or an agent may not do, and what is left as it was where something is refused."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from manyhands.cli.memory.running import spelled
from manyhands.core.errors import RunError, UserError
from tests.support.commands import run
from tests.support.memory_benchmarks import opened, performed, rows_of, write_configuration


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"datasets": [{"name": "colours", "args": {"name": "Names"}}, "names"]}, "two datasets have the name 'Names'"),
        ({"incompatibilities": [["colours", "nmes"]]}, r"config\.incompatibilities\[0\]\[1\]: unknown dataset 'nmes'"),
        ({"span": 20}, r"datasets\.datasets\[0\]: Colours - 0: its script has \d+ tokens"),
        ({"datasets": ["chapterbreak"]}, r"datasets\.datasets\[0\]: dataset 'chapterbreak': data_location is not set"),
    ],
)
def test_a_configuration_that_can_not_be_meant(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    write_configuration(tmp_path, **changes)
    with pytest.raises(UserError, match=says) as caught:
        opened(tmp_path, "forgetful")
    assert str(caught.value).startswith(f"{tmp_path}/small.yml, line ")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()


async def test_tests_that_can_not_be_made_anew_leave_the_old_ones(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    run = opened(tmp_path, "forgetful")
    await performed(run)
    write_configuration(tmp_path, span=20)
    with pytest.raises(UserError, match="its script has"):
        opened(tmp_path, "forgetful", regenerate=True)
    assert [place.name for place in run.folder.parent.iterdir()] == ["small"]


ANSWERING = """
import json, sys
for line in sys.stdin:
    print(json.dumps(ANSWER if json.loads(line)["type"] == "message" else {}), flush=True)
"""


@pytest.mark.parametrize(
    ("answer", "says"),
    [({"reply": "hello"}, "no text, but 'reply'"), ({"text": None}, "its text is NoneType"), ({}, "nothing")],
)
async def test_an_answer_without_a_reply_is_no_silent_zero(tmp_path: Path, answer: dict[str, Any], says: str) -> None:
    write_configuration(tmp_path)
    (tmp_path / "agent.py").write_text(ANSWERING.replace("ANSWER", repr(answer)))
    run = opened(tmp_path, f"command:python {tmp_path / 'agent.py'}", max_attempts=1)
    assert (await performed(run)).exit_code == 1
    assert says in str(rows_of(run.folder)[0].message)
    assert not (run.folder / "results").exists()


async def test_each_session_has_its_own_word_on_costs(tmp_path: Path) -> None:
    """An agent that is tested after a free one is not free as well."""
    write_configuration(tmp_path)
    await performed(opened(tmp_path, "simulated", local=True))
    run = opened(tmp_path, "cost(1,1)")
    await performed(run)
    stats = json.loads(next(run.folder.glob("results/Cost*/runstats.json")).read_text())
    assert stats["agent_costs_usd"] > 0
    assert opened(tmp_path, "simulated").workload.spec["sessions"][0]["local"] is True
    with pytest.raises(RunError, match="begun without --local"):
        opened(tmp_path, "cost(1,1)", local=True)


class Silent:
    """Has nothing to say."""


class Brief:
    """Takes short messages only."""

    max_message_size = 120

    def reply(self, text: str, agent_response: str | None = None) -> str:
        return agent_response or "yes"


async def test_a_class_that_is_no_agent_is_named(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    run = opened(tmp_path, f"python:{__name__}:Silent", max_attempts=1)
    assert (await performed(run)).exit_code == 1
    assert rows_of(run.folder)[0].message == "Silent is no agent: it has no method reply"


async def test_an_agent_has_its_own_longest_message(tmp_path: Path) -> None:
    write_configuration(tmp_path, ["colours"])
    run = opened(tmp_path, f"python:{__name__}:Brief")
    assert (await performed(run)).exit_code == 0
    lines = (run.folder / "results/Brief/master_log.jsonl").read_text().splitlines()
    filler = [event["data"]["message"] for event in map(json.loads, lines) if event["type"] == 3][1:]
    assert len(filler) > 5
    # An entry may be beyond the limit; the estimate has a token for about four bytes.
    assert max(map(len, filler)) < 1000


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["-m4096", "-yl"], ["--max_prompt_size=4096", "--yes", "--local"]),
        (["-ycb.yml", "-i"], ["--yes", "--configuration=b.yml", "--isolated"]),
        (["-m=7", "-a", "ts-x"], ["--max_prompt_size=7", "--agent_name", "ts-x"]),
        (["-yz", "--isolated", "-"], ["--yes", "-z", "--isolated", "-"]),
    ],
)
def test_short_options_together_as_the_original_takes_them(words: list[str], meant: list[str]) -> None:
    assert spelled(words) == meant


def test_a_failed_session_is_said_on_one_line_and_an_estimate_lacks_no_judge(tmp_path: Path) -> None:
    write_configuration(tmp_path, ["colours"])
    (tmp_path / "agents.py").write_text(
        "class Bad:\n    def reply(self, text):\n        raise ValueError('one\\ntwo')\n"
    )
    words = ["-c", f"{tmp_path}/small.yml", f"--data_dir={tmp_path}/data", "-a", "cost(1,1)", "--max_attempts=1"]
    done = run("memory", "run", *words, "-a", f"python:{tmp_path}/agents.py:Bad")
    assert done.code == 1, done.err
    assert [line for line in done.errors if "Bad" in line] == ["Bad: the agent raised ValueError: one two"]
    assert "judge_model" not in done.out


def test_a_run_that_was_imported_is_read_but_not_continued(tmp_path: Path) -> None:
    """Earlier versions made runs of sessions of the GoodAI LTM Benchmark that had not ended."""
    write_configuration(tmp_path)
    imported = opened(tmp_path, "forgetful")
    asyncio.run(performed(imported))
    past = {"events": [], "counters": [0, 0, 0.0, None], "scores": {}, "lengths": {}, "cost": 0.0, "judge_cost": 0.0}
    journal = sqlite3.connect(imported.folder / "run.db")
    with closing(journal), journal:
        (text,) = journal.execute("SELECT value FROM meta WHERE name = 'spec'").fetchone()
        spec = json.loads(text)
        spec["sessions"][0]["past"] = past
        journal.execute("UPDATE meta SET value = ? WHERE name = 'spec'", (json.dumps(spec),))
    with pytest.raises(
        RunError, match=r"imported from the GoodAI LTM Benchmark, which this version can't continue; .*$"
    ):
        opened(tmp_path, "forgetful")
    for command, code in (("resume", 2), ("show", 0), ("memory rescore", 0), ("memory report", 0)):
        found = run(*command.split(), str(imported.folder), folder=tmp_path)
        assert found.code == code, found.err
        assert len(found.errors) == (1 if code else 0), found.err
