"""Budgets of runs whose tools pay, for pictures that are made and looked at and for mixtures of agents, against services that count."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.digests import digest
from manyhands.engine.journal.browsing import JournalBrowser
from manyhands.runs.listing import item_details
from manyhands.runs.shown.blocks import Table
from manyhands.runs.summaries import run_status
from manyhands.testing.agent_doubles import tool_call
from manyhands.testing.scripted_server import RecordedRequest, Reply, chat_response
from manyhands.view.pages.run import overview_sections
from tests.support.batches import BatchFolder, ServerThread, run_command
from tests.support.commands import Command
from tests.support.picture_files import picture

PICTURE = 0.04
PRICES = {"agent": (1.0, 5.0), "sees": (2.0, 8.0), "ref-a": (1.0, 4.0), "ref-b": (3.0, 9.0), "joins": (5.0, 20.0)}
USED = (400, 200)
"""Tokens of each call: input and output."""
CALLS = 4 + 1 + 3 + 1
"""Paid calls of an item: its agent's, the model's that sees, the mixture's, and the picture."""
TURNS = ("image_generate", "vision_analyze", "mixture_of_agents")


class Services:
    """All services of a run, and what they would bill."""

    def __init__(self, delay: float = 0.0) -> None:
        self.delay = delay
        self.bill = 0.0
        self.made = Counter[str]()
        """Answers by request."""

    async def __call__(self, request: RecordedRequest) -> Reply:
        await asyncio.sleep(self.delay)
        self.made[digest(request.path, request.body).hex()] += 1
        if request.path.endswith("/images/generations"):
            self.bill += PICTURE
            return {"data": [{"b64_json": base64.b64encode(picture()).decode()}]}
        model = request.body["model"]
        answer = self._turn(request.body["messages"]) if model == "agent" else chat_response(f"{model} says 25.")
        answer["usage"] = dict(zip(("prompt_tokens", "completion_tokens"), USED, strict=True))
        self.bill += cost_of(model)
        return answer

    @staticmethod
    def _turn(messages: list[dict[str, Any]]) -> dict[str, Any]:
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn == len(TURNS):
            return chat_response("Done.", reasoning="All is there.")
        prompt = next(message["content"] for message in messages if message["role"] == "user")
        arguments = {"prompt": prompt} if turn == 0 else {"user_prompt": prompt}
        if turn == 1:
            artifact = json.loads(messages[-1]["content"])["artifact"]
            arguments = {"image_url": artifact, "question": prompt}
        call = tool_call(TURNS[turn], arguments, f"c{turn}")
        return chat_response(None, tool_calls=[call], reasoning="This helps.")


def cost_of(model: str) -> float:
    return sum(price * tokens for price, tokens in zip(PRICES[model], USED, strict=True)) / 1e6


ITEM = PICTURE + 4 * cost_of("agent") + sum(map(cost_of, ("sees", "ref-a", "ref-b", "joins")))
"""US dollars of an item."""


def made(path: Path, items: int) -> BatchFolder:
    folder = BatchFolder(path, [f"Which number is it in {number}?" for number in range(items)])
    prices = {name: {"input": each[0], "output": each[1]} for name, each in PRICES.items()}
    (path / "prices.yaml").write_text(json.dumps({**prices, "paints": {"request": PICTURE}}))
    return folder


def words(url: str, budget: float) -> list[str]:
    return [
        *(
            f"--base_url={url}",
            "--model=agent",
            "--vision_model=sees",
            "--moa_models=ref-a,ref-b",
            "--moa_aggregator=joins",
        ),
        *("--image_provider=openai", "--image_model=paints", f"--image_base_url={url}", "--distribution=drawing"),
        *("--distributions_file=drawing.yaml", "--prices=prices.yaml", "--max_tokens=200", f"--max_cost={budget}"),
    ]


DISTRIBUTION = "drawing: {description: All that pays., toolsets: {image_gen: 100, vision: 100, moa: 100}}\n"


def cost(folder: BatchFolder) -> float:
    return float(folder.json("summary.json")["usage"]["cost"])


@pytest.mark.parametrize("executor", ["local", pytest.param("processes", marks=pytest.mark.slow)])
def test_tools_never_pass_a_budget_and_the_ledger_is_the_bill(tmp_path: Path, executor: str) -> None:
    services, folder = Services(), made(tmp_path, 6)
    (tmp_path / "drawing.yaml").write_text(DISTRIBUTION)
    with ServerThread(services) as server:
        ran = folder.batch(*words(server.base_url, 2.5 * ITEM), f"--executor={executor}", "--concurrency=3")
        assert ran.code != 0
        assert "max_cost" in ran.err
        assert ITEM < services.bill <= 2.5 * ITEM + 1e-9
        assert cost(folder) == pytest.approx(services.bill)
        again = folder.batch(*words(server.base_url, 100 * ITEM), "--resume", "--concurrency=3")
        assert again.code == 0, again.err
    assert services.bill == pytest.approx(6 * ITEM) == cost(folder)
    assert set(services.made.values()) == {1}
    assert sum(services.made.values()) == 6 * CALLS
    metadata = [line["metadata"] for line in folder.lines()]
    assert all((each["usage"]["calls"], each["usage"]["tools"]["calls"]) == (4, CALLS - 4) for each in metadata)
    assert sum(each["cost"] for each in metadata) == pytest.approx(services.bill)
    everybody_sees_the_bill_by_tool(folder, metadata)


BY_TOOL = {
    "image_generate": (1, PICTURE),
    "vision_analyze": (1, cost_of("sees")),
    "mixture_of_agents": (3, sum(map(cost_of, ("ref-a", "ref-b", "joins")))),
}
"""Paid requests of an item, and their US dollars."""


def everybody_sees_the_bill_by_tool(folder: BatchFolder, metadata: list[dict[str, Any]]) -> None:
    """Of the run and of each item: by tool, and together the ledger's and the lines' sums."""
    items, status = len(metadata), json.loads(run_command(folder.path, "status", "data/r", "--json").out)
    expected: Any = {
        tool: (items * calls, pytest.approx(items * dollars)) for tool, (calls, dollars) in BY_TOOL.items()
    }
    assert {each["tool"]: (each["calls"], each["cost"]) for each in status["tools"]} == expected
    assert sum(each["calls"] for each in status["tools"]) == sum(each["usage"]["tools"]["calls"] for each in metadata)
    whole = {name: status["usage"][name] for name in ("calls", "cost", "input_tokens", "output_tokens")}
    with closing(JournalBrowser(folder.run())) as reader:
        (section,) = (
            each for each in overview_sections(reader, run_status(reader), []) if each.title == "Paid for by tools"
        )
        (table,) = section.blocks
        assert isinstance(table, Table)
        *parts, total = [[cell.value for cell in row[1:]] for row in table.rows]
        assert [pytest.approx(sum(figures)) for figures in zip(*parts, strict=True)] == total == [*whole.values()]
        assert parts[-1][0] == 4 * items, "the agent's own"
        for row in reader.items():
            of_item = {each["tool"]: (each["calls"], each["cost"]) for each in item_details(reader, row).tools}
            of_one: Any = {tool: (calls, pytest.approx(dollars)) for tool, (calls, dollars) in BY_TOOL.items()}
            assert of_item == of_one
    shown = run_command(folder.path, "show", "data/r", "1").out
    assert f"used: {CALLS} calls, 3,200 tokens in, 1,600 out, ${ITEM:.4f}" in shown
    assert "of this, image_generate: 1 call, 0 tokens in, 0 out, $0.0400" in shown
    text = run_command(folder.path, "status", "data/r").out
    assert re.search(rf"^vision_analyze +{items} +2,400 +1,200 +\$", text, re.MULTILINE), text
    assert re.search(rf"^all other calls +{4 * items} ", text, re.MULTILINE), text


def killed(path: Path, kills: int, executor: str, budget: float, items: int, concurrency: int) -> None:
    """A run is killed at random instants and resumed; each kill pays at most for the calls in flight again."""
    services, folder = Services(0.02), made(path, items)
    (path / "drawing.yaml").write_text(DISTRIBUTION)
    with ServerThread(services) as server:
        begun = ["batch", "--dataset_file=d.jsonl", "--batch_size=2", "--run_name=r", "--sandbox=local", "--quiet"]
        begun += [*words(server.base_url, budget), f"--executor={executor}", "--num_workers=1"]
        begun += [f"--concurrency={concurrency}"]
        for number in range(kills):
            before = sum(services.made.values())
            with Command(*begun, *(["--resume"] if number else []), folder=path) as command:
                command.wait_until(lambda: sum(services.made.values()) > before + 3 or not command.running)  # noqa: B023
                command.kill()
            assert services.bill <= budget + 1e-9
        ended = folder.batch(*words(server.base_url, 1000 * ITEM), "--resume", f"--concurrency={concurrency}")
        assert ended.code == 0, ended.err
    again = sum(times - 1 for times in services.made.values())
    assert len(services.made) == items * CALLS
    assert again <= kills * 2 * concurrency
    assert cost(folder) == pytest.approx(items * ITEM)
    assert services.bill <= items * ITEM + again * max(PICTURE, cost_of("joins")) + 1e-9


def test_a_kill_pays_at_most_for_the_calls_in_flight_again(tmp_path: Path) -> None:
    killed(tmp_path, 1, "local", 4 * ITEM, items=4, concurrency=2)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["local", "processes"])
def test_many_kills_never_pass_a_budget(tmp_path: Path, executor: str) -> None:
    killed(tmp_path, 8, executor, 20 * ITEM, items=30, concurrency=4)
