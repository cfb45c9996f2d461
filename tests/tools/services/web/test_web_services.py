"""Searching and reading by services: what they are asked, what the model gets, what it costs, and what happens when they fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from manyhands.agents.toolbox import Toolbox
from manyhands.core.clock import SystemClock
from manyhands.core.errors import UserError
from manyhands.core.messages import Message
from manyhands.core.usage import Usage
from manyhands.engine.contract import RecordedStep
from manyhands.models.pricing import Price, PriceTable
from manyhands.models.protocol import ChatRequest
from manyhands.testing.agent_doubles import ScriptedModel, assistant, hold, no_sandbox, tool_call
from manyhands.testing.context import Crash, CrashPoint, MemoryContext, MemoryJournal
from manyhands.tools.protocol import ToolEnvironment
from manyhands.tools.services.registry import (
    ModelChoice,
    ToolServices,
    choose_services,
    lacking,
    opened_services,
    service_secrets,
)
from manyhands.tools.services.steps import ToolSteps
from manyhands.tools.services.vision import Vision
from manyhands.tools.services.web.extract import PageReader, Summarizer, web_extract
from manyhands.tools.services.web.search import web_search
from manyhands.workloads.trajectories.spec import BatchSpec
from tests.support.web_fakes import KEYS, FakeServices, LocalSite, page

MILL = "https://mill.example/"
LONG = "https://long.example/"
BOTH = Toolbox((web_extract, web_search))
SEARCHING = ["firecrawl", "exa", "tavily", "brave", "searxng"]
READING = ["firecrawl", "exa", "tavily"]


@pytest.fixture
async def fakes() -> AsyncIterator[FakeServices]:
    results = [("The mill", MILL, "Corn since 1712."), ("A river", "https://river.example/", "Water.")]
    texts = {MILL: "# The mill\n\nCorn since 1712.", LONG: "".join(f"{number:06d}\n" for number in range(10_000))}
    async with FakeServices(results, texts) as services:
        yield services


def options(**given: Any) -> BatchSpec:
    return BatchSpec.make({"dataset_file": "d.jsonl", "run_name": "r", "batch_size": 2, "model": "simulated", **given})


class Conversation:
    """Calls of the web tools, made by an agent, with the services that its settings and environment give it."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.usage = Usage()

    async def services(
        self, environ: Mapping[str, str], *, prices: Mapping[str, float] | None = None, **settings: Any
    ) -> ToolServices:
        given = options(**settings)
        chosen = choose_services(given, environ)
        table = PriceTable({name: Price(0, 0, request=price) for name, price in (prices or {}).items()})
        secrets = service_secrets(chosen, given, environ)
        assert not any(key in json.dumps(chosen) for key in KEYS.values())
        opening = opened_services(chosen, secrets, self.folder, prices=table)
        return await self.stack.enter_async_context(opening)

    async def call(
        self, services: ToolServices, name: str, context: MemoryContext | None = None, **arguments: Any
    ) -> tuple[dict[str, Any], bool]:
        """The result of a call, and whether it failed."""

        def answer(request: ChatRequest) -> Message:
            done = request.messages[-1]["role"] == "tool"
            return assistant("done") if done else assistant(None, tool_call(name, arguments, "c1"))

        result = await hold(ScriptedModel(answer), BOTH, context=context, services=services)  # type: ignore[arg-type]
        self.usage = result.tool_usage
        content: dict[str, Any] = json.loads(result.messages[2]["content"])
        return content, result.tool_uses[0].failed


@pytest.fixture
async def conversation(tmp_path: Path) -> AsyncIterator[Conversation]:
    async with AsyncExitStack() as stack:
        yield Conversation(tmp_path / "run", stack)


@pytest.mark.parametrize("name", SEARCHING)
async def test_each_service_searches(name: str, fakes: FakeServices, conversation: Conversation) -> None:
    services = await conversation.services(fakes.environ(name), prices={f"{name}/search": 0.01})
    result, failed = await conversation.call(services, "web_search", query="old mills", limit=1)
    assert result == {
        "success": True,
        "provider": name,
        "data": {"web": [{"title": "The mill", "url": MILL, "description": "Corn since 1712.", "position": 1}]},
    }
    assert not failed
    assert fakes.seen == ["old mills"]
    expected = {"exa": 0.005, "searxng": 0.0}.get(name, 0.01)  # one says itself what it costs, one is free
    assert conversation.usage == (Usage(calls=1, cost=expected) if expected else Usage())


@pytest.mark.parametrize("name", READING)
async def test_each_service_reads(name: str, fakes: FakeServices, conversation: Conversation) -> None:
    services = await conversation.services(fakes.environ(name))
    result, failed = await conversation.call(services, "web_extract", urls=[MILL, "https://gone.example/"])
    good, bad = result["results"]
    assert (good["content"], good["final_url"], good["error"]) == ("# The mill\n\nCorn since 1712.", MILL, None)
    assert good["truncated"] is False
    assert (bad["content"], bad["url"]) == ("", "https://gone.example/")
    assert bad["error"]
    assert (result["provider"], failed) == (name, False)
    result, failed = await conversation.call(services, "web_extract", urls=["https://gone.example/"])
    assert result["error"] == bad["error"]
    assert failed


async def test_an_unknown_price_is_unpriced(fakes: FakeServices, conversation: Conversation) -> None:
    services = await conversation.services(fakes.environ("tavily"))
    await conversation.call(services, "web_search", query="mills")
    assert conversation.usage == Usage(calls=1, unpriced_calls=1)


async def test_a_long_page_is_read_on_without_another_request(fakes: FakeServices, conversation: Conversation) -> None:
    services = await conversation.services(fakes.environ("exa"))
    read, offset = "", 0
    while True:
        result, _ = await conversation.call(services, "web_extract", urls=[LONG], offset=offset)
        part = result["results"][0]
        read += part["content"]
        if not part["truncated"]:
            break
        offset = part["next_offset"]
        assert part["length"] == len(fakes.texts[LONG])
    assert read == fakes.texts[LONG]
    assert part["cached"] is True
    assert fakes.counts["exa/extract"] == 1
    result, failed = await conversation.call(services, "web_extract", urls=[LONG], offset=10**6)
    assert "nothing is left at offset 1000000" in result["error"]
    assert failed


async def test_five_long_pages_fit_in_a_result(fakes: FakeServices, conversation: Conversation) -> None:
    services = await conversation.services(fakes.environ("exa"))
    fakes.texts |= {f"{LONG}{number}": '"\\\n' * 20_000 for number in range(5)}
    result, _ = await conversation.call(services, "web_extract", urls=[f"{LONG}{number}" for number in range(5)])
    assert len(json.dumps(result)) <= 50_000
    assert all(part["next_offset"] == len(part["content"]) > 3000 for part in result["results"])


async def test_a_summary_is_labelled(fakes: FakeServices, conversation: Conversation) -> None:
    services = await conversation.services(fakes.environ("exa"), web_summary="simulated")
    result, _ = await conversation.call(services, "web_extract", urls=[LONG])
    part = result["results"][0]
    assert part["summary_by"] == "simulated"
    assert "This is a model's summary" in part["note"]
    assert "000123" not in part["content"]
    assert conversation.usage.calls == 2
    result, _ = await conversation.call(services, "web_extract", urls=[LONG], offset=1)
    assert result["results"][0]["content"].startswith("00000\n000001")
    result, _ = await conversation.call(services, "web_extract", urls=[MILL])
    assert "summary_by" not in result["results"][0]


@pytest.mark.parametrize("seconds", [1.2, 2.4])
async def test_a_summary_gets_the_time_that_is_left(
    seconds: float, fakes: FakeServices, conversation: Conversation
) -> None:
    async def answer(request: ChatRequest) -> Message:
        await asyncio.sleep(0 if seconds > 2 else 60)
        return assistant("It counts.")

    model, fakes.pause = ScriptedModel(answer), 0.1
    services = await conversation.services(fakes.environ("exa"))
    services.of(PageReader).summarizer = Summarizer(ModelChoice("m", "http://localhost/v1"), model)
    steps = ToolSteps("web_extract", MemoryContext)
    environment = ToolEnvironment(no_sandbox, SystemClock(), seconds, services=services, steps=steps)
    result = await web_extract.call({"urls": [LONG]}, environment)
    assert isinstance(result.content, dict)
    (part,) = result.content["results"]
    if seconds > 2:
        assert part["content"] == "It counts."
        assert model.requests[0].settings.call_timeout <= seconds * 0.75 - 0.1
    else:
        assert part["error"] is None
        assert "000123" in part["content"]
        assert part["note"] == "The page is not summarized: m gave no answer in time"


async def test_a_shared_cache_costs_nothing(fakes: FakeServices, conversation: Conversation, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"web_cache": str(tmp_path / "cache")}
    for cached in (False, True):
        conversation.folder = tmp_path / f"run-{cached}"
        services = await conversation.services(fakes.environ("tavily"), **settings)
        search, _ = await conversation.call(services, "web_search", query="mills")
        assert search.get("cached", False) is cached
        usage = conversation.usage
        pages, _ = await conversation.call(services, "web_extract", urls=[MILL])
        assert pages["results"][0].get("cached", False) is cached
        assert "Corn since 1712." in pages["results"][0]["content"]
        assert (usage + conversation.usage).calls == (0 if cached else 2)
    assert fakes.counts == {"tavily/search": 1, "tavily/extract": 1}
    for file in (tmp_path / "cache").rglob("*.json"):
        file.write_text("{")
    search, _ = await conversation.call(services, "web_search", query="mills")
    assert "cached" not in search


async def test_runs_that_may_read_other_pages_share_no_answers(conversation: Conversation, tmp_path: Path) -> None:
    cached: dict[str, Any] = {"web_cache": str(tmp_path / "cache")}
    pages = {"/": page("The mill", "It has ground corn since 1712."), "/robots.txt": "User-agent: *\nDisallow: /\n"}
    async with LocalSite(pages) as site:
        for private, ignored, said in (
            (True, True, None),
            (True, False, "asks programs not to read it"),
            (False, True, "is a loopback address"),
        ):
            services = await conversation.services({}, web_allow_private=private, ignore_robots=ignored, **cached)
            result, _ = await conversation.call(services, "web_extract", urls=[site.url])
            error = result["results"][0]["error"]
            assert error is None if said is None else said in error


@pytest.mark.parametrize(
    ("answers", "said", "requests"),
    [
        ([(401, {}, b'{"error": "bad key"}')], "its key is wrong or has no rights", 1),
        ([(402, {}, b"{}")], "refuses the request (HTTP 402", 1),
        ([(429, {"Retry-After": "0"}, b"{}")], None, 2),
        ([(503, {}, b"{}")], None, 2),
        ([(200, {}, b"{")], "gave an answer that can't be read", 1),
        ([(200, {}, b'{"results": 3}')], "gave an answer that can't be read", 1),
        ([(200, {}, b'{"results": [[], {}, {"url": 3}]}')], "nothing", 1),
        ([(302, {"Location": "http://127.0.0.1:1/"}, b"")], "refuses the request (HTTP 302", 1),
        ([(500, {}, b"broken")] * 4, "refuses the request (HTTP 500", 4),
    ],
)
async def test_a_service_that_fails_is_an_error_for_the_model(
    answers: list[Any], said: str | None, requests: int, fakes: FakeServices, conversation: Conversation
) -> None:
    fakes.faults["tavily"] = list(answers)
    services = await conversation.services(fakes.environ("tavily"))
    result, failed = await conversation.call(services, "web_search", context=_quick(), query="mills")
    if said in (None, "nothing"):
        assert len(result["data"]["web"]) == (2 if said is None else 0)
    else:
        assert failed
        assert f"Tavily {said}" in result["error"] or said in result["error"]
        assert KEYS["tavily"] not in result["error"]
    assert fakes.counts["tavily/search"] == requests


async def test_a_service_that_is_down_is_an_error(fakes: FakeServices, conversation: Conversation) -> None:
    services = await conversation.services({**fakes.environ("searxng"), "SEARXNG_URL": "http://127.0.0.1:1"})
    result, failed = await conversation.call(services, "web_search", context=_quick(), query="mills")
    assert "SearXNG can't be reached at http://127.0.0.1:1" in result["error"]
    assert failed


class _NoWaiting:
    """A clock on which pauses take no time."""

    def now(self) -> float:
        return 1_800_000_000.0

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        return


def _quick(journal: MemoryJournal | None = None, crash: CrashPoint | None = None) -> MemoryContext:
    return MemoryContext(journal, clock=_NoWaiting(), crash=crash)


def _is_paid(step: RecordedStep) -> bool:
    return step.kind == "request" and step.request["service"] == "exa/extract"


async def test_a_crash_repeats_at_most_the_requests_in_flight(
    fakes: FakeServices, conversation: Conversation, tmp_path: Path
) -> None:
    pages = [MILL, LONG]
    settings: dict[str, Any] = {"web_cache": str(tmp_path / "cache")}
    services = await conversation.services(fakes.environ("exa"), **settings)
    expected = await conversation.call(services, "web_extract", urls=pages)
    for step in range(1, 8):
        journal: MemoryJournal = {}
        fakes.counts.clear()
        conversation.folder = tmp_path / f"run-{step}"
        settings = {"web_cache": str(tmp_path / f"cache-{step}")}
        services = await conversation.services(fakes.environ("exa"), **settings)
        try:
            context = _quick(journal, CrashPoint(step, "before_recording"))
            await conversation.call(services, "web_extract", context=context, urls=pages)
        except* Crash:
            pass
        before = fakes.counts["exa/extract"]
        recorded = sum(_is_paid(step) for step in journal.values())
        ended = any(step.kind == "tool" for step in journal.values())
        again = _quick(journal)
        services = await conversation.services(fakes.environ("exa"), **settings)
        assert await conversation.call(services, "web_extract", context=again, urls=pages) == expected
        assert again.state.unused() == []
        assert fakes.counts["exa/extract"] - before == (0 if ended else 2 - recorded)


# --- Which service a run has


def test_the_first_service_with_a_key_is_chosen() -> None:
    environ = {
        "EXA_API_KEY": KEYS["exa"],
        "BRAVE_SEARCH_API_KEY": KEYS["brave"],
        "SEARXNG_URL": "http://localhost:8888/",
    }
    chosen = choose_services(options(), environ)
    assert chosen["web_search"] == {"provider": "exa", "base_url": "https://api.exa.ai", "cache": None}
    assert chosen["web_extract"]["provider"] == "exa"
    chosen = choose_services(options(web_search="brave", web_extract="direct"), environ)
    assert chosen["web_search"]["provider"] == "brave"
    assert chosen["web_extract"]["provider"] == "direct"
    only = choose_services(options(web_search="searxng"), environ)
    assert only["web_search"]["base_url"] == "http://localhost:8888"
    own = choose_services(options(), {"FIRECRAWL_API_URL": "http://localhost:3002"})
    assert own["web_extract"]["base_url"] == "http://localhost:3002"
    assert service_secrets(own, options(), {}) == {}


def test_without_any_key_pages_are_read_directly() -> None:
    chosen = choose_services(options(web_allow_private=True), {})
    assert "web_search" not in chosen
    assert chosen["web_extract"] == {
        "provider": "direct",
        "allow_private": True,
        "ignore_robots": False,
        "cache": None,
        "summary": None,
    }
    assert "web_search" in lacking(chosen)
    assert "web_extract" not in lacking(chosen)


@pytest.mark.parametrize(
    ("settings", "environ", "said"),
    [
        ({"web_search": "exa"}, {}, "--web_search exa: Exa needs EXA_API_KEY in the environment"),
        ({"web_search": "searxng"}, {}, "--web_search searxng: SearXNG needs SEARXNG_URL in the environment"),
        ({"web_extract": "firecrawl"}, {}, "Firecrawl needs FIRECRAWL_API_KEY or FIRECRAWL_API_URL in the environment"),
        ({}, {"EXA_API_KEY": "k" * 20, "EXA_API_URL": "localhost"}, "EXA_API_URL must be an address"),
    ],
)
def test_what_is_missing_is_said_before_the_run(settings: dict[str, Any], environ: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        choose_services(options(**settings), environ)


def test_a_key_that_is_gone_is_missed_on_a_resume() -> None:
    chosen = choose_services(options(), {"TAVILY_API_KEY": KEYS["tavily"]})
    with pytest.raises(UserError, match="Tavily needs TAVILY_API_KEY"):
        service_secrets(chosen, options(), {})


async def test_services_of_a_process_treat_hosts_together(conversation: Conversation) -> None:
    pages = {"/mill": page("The mill", "It has ground corn."), "/robots.txt": "User-agent: *\nAllow: /\n"}
    async with LocalSite(pages) as site:
        services = await conversation.services({}, web_allow_private=True, vision_model="simulated")
        assert "ground corn" in str(await conversation.call(services, "web_extract", urls=[f"{site.url}/mill"]))
        assert b"ground corn" in await services.of(Vision).fetch(f"{site.url}/mill")
    assert site.counts == {"/robots.txt": 1, "/mill": 2}


async def test_pages_are_read_directly_by_the_tool(conversation: Conversation) -> None:
    async with LocalSite({"/mill": page("The mill", "It has ground corn since 1712, and is open on Sundays.")}) as site:
        services = await conversation.services({}, web_allow_private=True)
        result, failed = await conversation.call(
            services, "web_extract", urls=[f"{site.url}/mill", "file:///etc/passwd"]
        )
    good, bad = result["results"]
    assert good["title"] == "The mill"
    assert good["content_type"] == "text/html"
    assert "ground corn since 1712" in good["content"]
    assert "give a whole address that starts with http" in bad["error"]
    assert (failed, conversation.usage) == (False, Usage())
