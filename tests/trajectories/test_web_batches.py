"""Agents that search the web and read its pages, in every workload: batches that are killed repeat no recorded request, and keep their
budget; targets of evaluations and workers of jobs have the tools, too."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from manyhands.engine.journal.reader import JournalReader
from tests.support.commands import Command, Ended, run, write_prompts
from tests.support.web_fakes import FakeServices

ITEMS = 6


@pytest.fixture
async def fakes() -> AsyncIterator[FakeServices]:
    async with FakeServices(
        [("On *", "https://*.example/", "All about *.")], {"*": "Everything there is to know. " * 20}
    ) as services:
        yield services


def words(folder: Path, *more: str) -> list[str]:
    write_prompts(
        folder / "p.jsonl", [f"Look up topic{letter * 3} now [simulate: tools=2]" for letter in "abcdef"[:ITEMS]]
    )
    usual = [
        "--dataset_file=p.jsonl",
        "--run_name=r",
        "--batch_size=3",
        "--num_workers=2",
        "--model=simulated",
        "--tools=web",
    ]
    return ["batch", *usual, "--quiet", *more]


async def performed(folder: Path, environ: dict[str, str], *more: str) -> Ended:
    """A command, run while the services here answer it."""
    return await asyncio.to_thread(run, *more, folder=folder, environ=environ)


def recorded(folder: Path) -> list[str]:
    """The queries and addresses of all recorded requests that services answered."""
    reader = JournalReader(folder / "data" / "r")
    try:
        steps = reader.steps_of_items(range(1, ITEMS + 1))
    finally:
        reader.close()
    requests = [step.request for found in steps.values() for step in found if step.kind == "request"]
    return [
        each["request"].get("query") or each["request"]["page"] for each in requests if each["service"] != "web cache"
    ]


async def test_a_killed_batch_repeats_no_recorded_request(fakes: FakeServices, tmp_path: Path) -> None:
    environ, kills = fakes.environ("exa"), list[tuple[int, set[str]]]()
    fakes.pause = 0.02
    for answers in (3, 9):
        command = words(tmp_path) if not kills else ["resume", "r", "--quiet"]

        def has_come_so_far(least: int = answers) -> bool:
            return len(fakes.seen) >= least

        with Command(*command, folder=tmp_path, environ=environ) as running:
            assert await asyncio.to_thread(running.wait_until, has_come_so_far)
        kills.append((len(fakes.seen), set(recorded(tmp_path))))
    ended = await performed(tmp_path, environ, "resume", "r", "--quiet")
    assert ended.code == 0, ended
    assert all(known.isdisjoint(fakes.seen[before:]) for before, known in kills)
    found = recorded(tmp_path)
    assert len(found) == len(set(found)) >= 2 * ITEMS
    assert set(found) == set(fakes.seen)
    cost = 0.005 * len([each for each in found if not each.startswith("https:")])
    cost += 0.001 * len([each for each in found if each.startswith("https:")])
    summary = json.loads((tmp_path / "data" / "r" / "summary.json").read_text())
    assert (summary["ledger"]["completed"], summary["usage"]["cost"]) == (ITEMS, pytest.approx(cost))


async def test_a_budget_holds_back_searches(fakes: FakeServices, tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text("tavily/search: {request: 0.02}\ntavily/extract: {request: 0.01}\n")
    ended = await performed(
        tmp_path, fakes.environ("tavily"), *words(tmp_path, "--prices=prices.yaml", "--max_cost=0.05")
    )
    bill = 0.02 * fakes.counts["tavily/search"] + 0.01 * fakes.counts["tavily/extract"]
    summary = json.loads((tmp_path / "data" / "r" / "summary.json").read_text())
    assert summary["usage"]["cost"] == pytest.approx(bill)
    assert 0.03 <= bill <= 0.05
    assert ended.code != 0
    assert summary["ledger"]["completed"] < ITEMS


async def test_targets_of_evaluations_search(fakes: FakeServices, tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(
        "targets: [{name: t, provider: agent, model: simulated, toolsets: [web], sandbox: local, web_search: searxng}]\n"
        "tests: [{id: a, input: 'Look up mills. [simulate: tools=2]', assert: [{type: contains, value: mills}]}]\n"
    )
    ended = await performed(tmp_path, fakes.environ("searxng", "exa"), "eval", "e.yaml", "--quiet")
    assert ended.code == 0, ended
    assert fakes.counts == {"searxng/search": 1, "exa/extract": 1}


async def test_workers_of_jobs_search(fakes: FakeServices, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("company,text\nMill,[simulate: tools=2]\n")
    usual = ["jobs", "spawn", "rows.csv", "--instruction=Look up {company}. {text}", "--job_name=j", "--num_workers=1"]
    more = ["--output_csv_path=out.csv", "--model=simulated", "--toolsets=web", "--sandbox=local"]
    ended = await performed(tmp_path, fakes.environ("brave", "tavily"), *usual, *more)
    assert ended.code == 0, ended
    assert fakes.counts == {"tavily/search": 1, "tavily/extract": 1}
    with (tmp_path / "out.csv").open(newline="") as handle:
        assert [row["status"] for row in csv.DictReader(handle)] == ["completed"]
