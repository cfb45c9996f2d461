"""Rounds in which items buy something in a shop, each in a real Chromium, and the owner or a worker is killed at random instants.

The model is goal-driven: from whatever page it sees it goes on to what it has to buy, so that an item whose page was loaded again comes to
the same answer. What it asks for and what the shop sold are counted.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from manyhands.core.jsonio import loads
from manyhands.testing.scripted_server import RecordedRequest, Reply, chat_response
from tests.crash.rounds import Report
from tests.support.batches import ServerThread
from tests.support.commands import PROGRAM, Command
from tests.support.local_shop import Shop, shop_in_thread

WORKERS, CONTEXTS = 2, 2
MAX_MEMORY = 400 << 20
"""Bytes of one context."""
_STOP_SECONDS = 10.0
"""In which the browser of a killed process must have ended."""
_MARK = "BROWSER_ROUND"
_TASK = re.compile(r"Customer (\w+) buys lamp (\d+) at (\S+)\.")
_REF = r'"?.*?\[ref=(\w+)\]'


class BrowserRound:
    """One run of a batch that is killed and resumed until it ends."""

    def __init__(self, folder: Path, items: int, instants: random.Random) -> None:
        self._folder = folder / f"browsers-{instants.randrange(1 << 32):08x}"
        self._items = items
        self._instants = instants
        self._mark = f"{_MARK}={self._folder.name}"
        self._memory, self._measured = 0, 0.0
        self.report = Report(f"browsers: owner or worker, processes, {items}")

    def perform(self, kills: int) -> Report:
        """With so many kills at most."""
        began, report = time.monotonic(), self.report
        self._folder.mkdir(parents=True)
        with shop_in_thread() as shop, ServerThread(_answer) as model:
            self._write(shop)
            words = self._words(model)
            while True:
                report.sessions += 1
                with Command(*words, folder=self._folder, program=PROGRAM, environ=self._environ) as command:
                    killed = self._session(command, shop, kills)
                    if not killed:
                        ended = command.wait(1800)
                self._ended_by_itself()
                if not killed:
                    break
            report.expect(ended.code == 0, f"the last session ended with {ended.code}: {ended.err[-500:]}")
            report.requests = len(model.requests)
            self._check(shop)
        report.seconds = time.monotonic() - began
        return report

    @property
    def _environ(self) -> dict[str, str]:
        return {_MARK: self._folder.name, "OPENAI_API_KEY": "none"}

    def _words(self, model: ServerThread) -> list[str]:
        how = ["--model", "goal", "--base_url", model.base_url, "--api_key", "none", "--tools", "browser"]
        many = [
            "--num_workers",
            str(WORKERS),
            "--concurrency",
            "3",
            "--browser_contexts",
            str(CONTEXTS),
            "--max_turns",
            "40",
        ]
        return ["batch", "prompts.jsonl", "--run_name", "shop", "--resume", "--web_allow_private", *how, *many]

    def _write(self, shop: Shop) -> None:
        lines = (f'{{"prompt": "Customer c{n} buys lamp {n % 8 + 1} at {shop.url}."}}\n' for n in range(self._items))
        (self._folder / "prompts.jsonl").write_text("".join(lines))

    def _session(self, command: Command, shop: Shop, kills: int) -> bool:
        """Until it ends, or its owner is killed, which is the case if it gives True."""
        while self.report.kills < kills:
            wanted = shop.hits.total() + self._instants.randint(1, 12 + self._items // 4)
            if not command.wait_until(partial(self._has_asked, shop, wanted), seconds=600, pause=0.1):
                return False
            if command.ends_within(self._instants.uniform(0.0, 0.7)):
                return False
            workers = command.workers()
            self.report.kills += 1
            self.report.allowed += WORKERS * 3
            if workers and self._instants.random() < 0.5:
                with suppress(ProcessLookupError):
                    os.kill(self._instants.choice(workers), signal.SIGKILL)
            else:
                command.kill()
                return True
        while not command.ends_within(0.5):
            self._measure()
        return False

    def _has_asked(self, shop: Shop, wanted: int) -> bool:
        self._measure()
        return shop.hits.total() >= wanted

    def _measure(self) -> None:
        if time.monotonic() < self._measured + 1.0:
            return
        self._measured = time.monotonic()
        self._memory = max(self._memory, sum(map(_proportional_memory, self._browsers())))

    def _browsers(self) -> Iterator[int]:
        """The processes of Chromium and its driver that the run has started."""
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                environ = (path / "environ").read_bytes()
                if (b"chromium" in (line := (path / "cmdline").read_bytes()) or b"playwright" in line) and (
                    self._mark.encode() in environ or bytes(self._folder) in environ
                ):
                    yield int(path.name)

    def _ended_by_itself(self) -> None:
        end = time.monotonic() + _STOP_SECONDS
        while (left := list(self._browsers())) and time.monotonic() < end:
            time.sleep(0.05)
        self.report.lingering += len(left)
        self.report.expect(not left, f"processes of a browser are left: {left}")

    def _check(self, shop: Shop) -> None:
        run, report = self._folder / "data/shop", self.report
        with Command("check", str(run), program=PROGRAM) as check:
            ended = check.wait()
            report.expect(ended.code == 0, f"the run can't be performed again from its journal: {ended.out[-500:]}")
        answers: dict[str, str] = {}
        for line in (run / "trajectories.jsonl").read_text().splitlines():
            turns = loads(line)["conversations"]
            task = next(turn["value"] for turn in turns if turn["from"] == "human")
            answers[_customer(task)[0]] = re.sub(r"<think>.*?</think>\s*", "", turns[-1]["value"], flags=re.DOTALL)
        expected = {f"c{n}": f"c{n} has lamp {n % 8 + 1}" for n in range(self._items)}
        wrong = {name: answers.get(name) for name, answer in expected.items() if answers.get(name) != answer}
        report.expect(not wrong, f"other answers than undisturbed: {wrong}")
        sold = sum(map(len, shop.carts.values()))
        report.extra = sold - self._items
        report.expect(0 <= report.extra <= report.allowed, f"{sold} lamps were sold to {self._items} customers")
        most = WORKERS * CONTEXTS * MAX_MEMORY
        report.expect(0 < self._memory <= most, f"browsers took {self._memory >> 20} MiB, more than {most >> 20}")
        report.expect(not list((run / "states").rglob("*.json")), "cookies are left in the run folder")


def _customer(prompt: str) -> tuple[str, str, str]:
    found = _TASK.search(prompt)
    assert found is not None
    return found[1], found[2], found[3]


def _proportional_memory(pid: int) -> int:
    """Bytes, with shared ones by the number of processes that share them."""
    with suppress(OSError, StopIteration):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return int(next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1]) << 10
    return 0


def _answer(request: RecordedRequest) -> Reply:
    messages: list[dict[str, Any]] = request.body["messages"]
    customer, lamp, url = _customer(str(next(each["content"] for each in messages if each["role"] == "user")))
    step = _next(messages, customer, lamp, url)
    if isinstance(step, str):
        return chat_response(step, reasoning="It is there.")
    name, arguments = step
    function = {"name": f"browser_{name}", "arguments": arguments}
    call = {"id": f"call_{len(messages)}", "type": "function", "function": {**function, "arguments": _json(arguments)}}
    answer = chat_response(None, tool_calls=[call], reasoning="I go on.")
    answer["choices"][0]["finish_reason"] = "tool_calls"
    return answer


def _json(arguments: dict[str, str]) -> str:
    return "{" + ", ".join(f'"{name}": "{value}"' for name, value in arguments.items()) + "}"


def _next(messages: list[dict[str, Any]], customer: str, lamp: str, url: str) -> str | tuple[str, dict[str, str]]:
    """The next call, or the answer."""
    last = messages[-1]
    if last["role"] != "tool":
        return "navigate", {"url": f"{url}/login"}
    call = messages[-2]["tool_calls"][-1]["function"]
    name, result = call["name"].removeprefix("browser_"), loads(last["content"])
    if not result["success"] or name not in ("snapshot", "type"):
        return "snapshot", {}
    if name == "type":
        page = next(
            loads(each["content"])["snapshot"] for each in reversed(messages) if '"snapshot"' in str(each["content"])
        )
        password = _ref(page, 'textbox "Password')
        return (
            ("press", {"key": "Enter"})
            if result["element"] == password
            else ("type", {"ref": password, "text": "light"})
        )
    page = result["snapshot"]
    if 'textbox "Password' in page:
        return "type", {"ref": _ref(page, 'textbox "Name'), "text": customer}
    if f"Buy lamp {lamp}" in page:
        return "click", {"ref": _ref(page, f'button "Buy lamp {lamp}')}
    if f"Cart of {customer}" not in page:
        return "navigate", {"url": f"{url}/login"}
    if re.search(rf"In it:.*lamp {lamp}\b", page):
        return f"{customer} has lamp {lamp}"
    return "navigate", {"url": f"{url}/goods/{lamp}"}


def _ref(page: str, what: str) -> str:
    found = re.search(re.escape(what) + _REF, page)
    assert found is not None, page
    return found[1]
