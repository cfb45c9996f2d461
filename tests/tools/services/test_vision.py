"""``vision_analyze``: where pictures come from, what the model is asked, and what is recorded."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from manyhands.agents.trajectory import describe_step
from manyhands.core.clock import SystemClock
from manyhands.core.errors import ToolError, UserError
from manyhands.core.usage import Usage
from manyhands.models.openai.client import OpenAIChatModel
from manyhands.models.simulated.model import SimulatedModel
from manyhands.network.rules import NetworkRules
from manyhands.sandboxes.protocol import Sandbox
from manyhands.testing.agent_doubles import ScriptedModel
from manyhands.testing.context import Crash, CrashPoint, MemoryContext, When
from manyhands.testing.scripted_server import ScriptedResponse, ScriptedServer, chat_response
from manyhands.tools.protocol import ToolEnvironment
from manyhands.tools.services.artifacts import ArtifactStore
from manyhands.tools.services.registry import ModelChoice, ToolServices, choose_services
from manyhands.tools.services.steps import ToolSteps
from manyhands.tools.services.vision import Vision, sees, vision_analyze
from manyhands.tools.services.web.fetching import DirectFetcher
from manyhands.workloads.trajectories.spec import BatchSpec
from tests.support.picture_files import picture
from tests.support.web_fakes import CLOSED, LocalSite

PNG = picture(size=(2000, 1000))


def services(folder: Path, model: Any, *, allow_private: bool = False) -> ToolServices:
    vision = Vision(
        ModelChoice("m", "http://localhost/v1"),
        model,
        DirectFetcher(NetworkRules.web(private=allow_private), ignore_robots=True),
    )
    return ToolServices(ArtifactStore(folder), [vision])


def environment(context: MemoryContext, services: ToolServices, sandbox: Sandbox | None = None) -> ToolEnvironment:
    async def found() -> Sandbox:
        if sandbox is None:
            raise ToolError("there is no sandbox")
        return sandbox

    steps = ToolSteps("vision_analyze", lambda: context.scope("call-1"), artifacts=services.artifacts)
    return ToolEnvironment(found, SystemClock(), services=services, steps=steps)


async def look(environment: ToolEnvironment, source: str) -> dict[str, Any]:
    result = await vision_analyze.call({"image_url": source, "question": "What is red?"}, environment)
    assert isinstance(result.content, dict)
    return result.content


async def test_a_file_of_the_sandbox_is_shown_to_the_model_and_only_its_digest_is_recorded(
    tmp_path: Path, open_bench: Callable[..., AbstractAsyncContextManager[Any]]
) -> None:
    async with (
        ScriptedServer([chat_response("A red square.")]) as server,
        open_bench("local", tmp_path / "box") as bench,
    ):
        model = OpenAIChatModel(server.base_url)
        context = MemoryContext()
        own = environment(context, services(tmp_path, model), bench.sandbox)
        (bench.workspace / "shot.txt").write_bytes(PNG)
        found = await look(own, "shot.txt")
        await model.close()
    assert found["analysis"] == "A red square."
    assert found["picture"]["scale"] == 0.784
    assert found["picture"]["sha256"] == hashlib.sha256(PNG).hexdigest()
    body = server.requests[0].body
    assert (body["max_tokens"], body["temperature"]) == (2000, 0.1)
    text, image = body["messages"][0]["content"]
    assert "What is red?" in text["text"]
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    looked, asked = context.steps
    assert (looked.kind, asked.kind) == ("request", "ask")
    assert asked.request["messages"][0]["content"][1] == {
        "type": "image_url",
        "image_url": {"url": f"artifact:{found['picture']['artifact']}"},
    }
    assert len(json.dumps([looked.output, asked.request])) < 1500
    assert dict(describe_step(looked))["image source is asked"] == '{"image_url": "shot.txt"}'


async def test_an_artifact_is_looked_at_again(tmp_path: Path) -> None:
    own = services(tmp_path, SimulatedModel())
    name = await own.artifacts.put(picture(), "image/png")
    first, second = [await look(environment(MemoryContext(), own), name) for _ in range(2)]
    assert first == second
    assert first["picture"]["artifact"] == name
    other = await own.artifacts.put(picture(colour="blue"), "image/png")
    assert (await look(environment(MemoryContext(), own), other))["analysis"] != first["analysis"]


@pytest.mark.parametrize("when", ["before_effect", "before_recording", "after_recording"])
async def test_a_crash_asks_and_looks_at_most_once_more(tmp_path: Path, when: When) -> None:
    replies = [chat_response("red")]
    async with ScriptedServer(replies) as server:
        for step in (1, 2):
            model = OpenAIChatModel(server.base_url)
            own = services(tmp_path, model)
            name = await own.artifacts.put(picture(), "image/png")
            first = MemoryContext(crash=CrashPoint(step, when))
            with pytest.raises(Crash):
                await look(environment(first, own), name)
            before = len(server.requests)
            recorded = len(first.journal)
            again = MemoryContext(first.journal)
            assert (await look(environment(again, own), name))["analysis"] == "red"
            assert len(server.requests) - before == (0 if recorded == 2 else 1)
            await model.close()


async def test_what_cant_be_looked_at_is_an_error_for_the_model(
    tmp_path: Path, open_bench: Callable[..., AbstractAsyncContextManager[Any]]
) -> None:
    (tmp_path / "secret.png").write_bytes(picture())
    own = services(tmp_path, SimulatedModel())
    async with open_bench("bubblewrap", tmp_path / "box") as bench:
        (bench.workspace / "a.png").write_bytes(b"<svg/>")
        for source, problem in {
            "a.png": "SVG is not taken",
            "missing.png": "no such file",
            "a\0b": "NUL",
            str(tmp_path / "secret.png"): "no such file",
            "0" * 64 + ".png": "can't be read",
        }.items():
            with pytest.raises(ToolError, match=problem):
                await look(environment(MemoryContext(), own, bench.sandbox), source)


async def test_an_address_is_read_unless_it_is_private(tmp_path: Path) -> None:
    async with ScriptedServer([ScriptedResponse(picture())]) as server:
        own = services(tmp_path, SimulatedModel(), allow_private=True)
        seen = await look(environment(MemoryContext(), own), server.base_url + "/a.png")
        assert seen["picture"]["width"] == 30


@pytest.mark.parametrize("address", CLOSED)
async def test_nothing_private_is_reached(tmp_path: Path, address: str) -> None:
    async with LocalSite() as site:
        source = address.format(port=site.port, long="a" * 3000)
        with pytest.raises(ToolError):
            await look(environment(MemoryContext(), services(tmp_path, SimulatedModel())), source)
        assert not site.counts


async def test_the_model_gets_the_time_that_is_left(tmp_path: Path) -> None:
    class SlowSite(LocalSite):
        async def answer(self, request: web.Request) -> web.StreamResponse:
            await asyncio.sleep(0.1)
            return web.Response(body=PNG)

    model = ScriptedModel(lambda request: "red")
    there = replace(environment(MemoryContext(), services(tmp_path, model, allow_private=True)), timeout=20.0)
    async with SlowSite() as site:
        assert (await look(there, site.url))["analysis"] == "red"
    assert model.requests[0].settings.call_timeout <= 19.9


async def test_its_cost_is_the_calls(tmp_path: Path) -> None:
    own = services(tmp_path, SimulatedModel())
    name = await own.artifacts.put(picture(), "image/png")
    there = environment(MemoryContext(), own)
    await look(there, name)
    used = there.own_steps.usage
    assert (used.calls, used.simulated_calls) == (1, 1)
    assert used != Usage()


def options(**given: Any) -> BatchSpec:
    return BatchSpec.make({"dataset_file": "d.jsonl", "run_name": "r", "batch_size": 2, **given})


def test_the_model_is_chosen_from_the_settings() -> None:
    own = choose_services(options(model="gpt-4o", base_url="http://localhost:1/v1"), {})
    assert own["vision"]["model"] == {"model": "gpt-4o", "base_url": "http://localhost:1/v1"}
    assert "vision" not in choose_services(options(model="deepseek-v4-pro"), {})
    other = choose_services(options(vision_model="simulated", vision_base_url="http://localhost:2/v1"), {})
    assert other["vision"]["model"]["base_url"] == "http://localhost:2/v1"
    several = choose_services(options(model="gpt-4o", base_url="http://localhost:1/v1,http://localhost:2/v1"), {})
    assert several["vision"]["model"]["base_url"] == "http://localhost:1/v1"
    with pytest.raises(UserError, match="--vision_model is called, which is not given"):
        choose_services(options(vision_base_url="http://localhost:2/v1"), {})
    with pytest.raises(UserError, match="--vision_base_url must be an address"):
        choose_services(options(vision_model="m", vision_base_url="localhost"), {})


@pytest.mark.parametrize(
    "model", ["anthropic/claude-sonnet-4.6", "gpt-5", "google/gemini-2.5-flash", "qwen/qwen2.5-vl-72b"]
)
def test_models_that_see_are_known_by_their_names(model: str) -> None:
    assert sees(model)


@pytest.mark.parametrize(
    "model", ["simulated", "deepseek/deepseek-v4", "openai/gpt-oss-120b", "o1-mini", "gpt-3.5-turbo"]
)
def test_others_are_not_taken_to_see(model: str) -> None:
    assert not sees(model)


async def test_the_endpoints_own_header_goes_with_the_runs_own_model() -> None:
    given = options(model="gpt-4o", base_url="http://localhost:1/v1", header="X-Team: ours", api_key="sk-1234567890")
    choice = ModelChoice.from_json(choose_services(given, {})["vision"]["model"])
    secrets = choice.secrets(given, {})
    assert secrets["gpt-4o"] == "sk-1234567890"
    assert "ours" in secrets["gpt-4o headers"]
    elsewhere = ModelChoice("gpt-4o", "http://localhost:2/v1")
    assert elsewhere.secrets(given, {}) == {}
