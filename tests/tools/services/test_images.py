"""``image_generate``: the three kinds of services in their own shapes, where pictures go, and what is paid for once."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.clock import SystemClock
from manyhands.core.errors import ToolError, UserError
from manyhands.models.pricing import Price, PriceTable
from manyhands.sandboxes.protocol import Sandbox
from manyhands.testing.context import Crash, CrashPoint, MemoryContext, When
from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedResponse, ScriptedServer
from manyhands.tools.protocol import ToolEnvironment
from manyhands.tools.services.artifacts import ArtifactStore
from manyhands.tools.services.images import SERVICE, image_generate
from manyhands.tools.services.registry import ServiceOpening, ToolServices, choose_services
from manyhands.tools.services.steps import ToolSteps
from manyhands.workloads.trajectories.spec import BatchSpec
from tests.support.picture_files import huge, picture
from tests.support.picture_services import PictureService

PRICES = PriceTable({"m": Price(0, 0, request=0.04)})
OpenBench = Callable[..., AbstractAsyncContextManager[Any]]


class Desk:
    """A service with its tool, in a sandbox."""

    def __init__(self, services: ToolServices, sandbox: Sandbox, workspace: Path) -> None:
        self.services, self.sandbox, self.workspace = services, sandbox, workspace
        self.steps: ToolSteps | None = None

    async def make(self, context: MemoryContext | None = None, **arguments: Any) -> dict[str, Any]:
        async def sandbox() -> Sandbox:
            return self.sandbox

        context = context or MemoryContext()
        self.steps = ToolSteps("image_generate", lambda: context.scope("call-1"), artifacts=self.services.artifacts)
        environment = ToolEnvironment(sandbox, SystemClock(), 20.0, services=self.services, steps=self.steps)
        result = await image_generate.call({"prompt": "A red house", **arguments}, environment)
        assert isinstance(result.content, dict)
        return result.content


@asynccontextmanager
async def desk(
    open_bench: OpenBench, folder: Path, provider: str, base_url: str | None, prices: PriceTable = PRICES, **record: Any
) -> AsyncIterator[Desk]:
    record |= {"provider": provider, "model": "m", "base_url": base_url}
    opening = ServiceOpening(folder, {"key": "sk-1234567890"}, prices)
    async with open_bench("local", folder / "box") as bench, SERVICE.opened(record, opening) as studio:
        yield Desk(ToolServices(ArtifactStore(folder), [studio]), bench.sandbox, bench.workspace)


@asynccontextmanager
async def served(service: PictureService) -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer(service) as server:
        service.base_url = server.base_url
        yield server


@pytest.mark.parametrize("provider", ["openai", "fal", "chat"])
async def test_a_picture_becomes_an_artifact_and_a_file(open_bench: OpenBench, tmp_path: Path, provider: str) -> None:
    service = PictureService()
    name = hashlib.sha256(service.data).hexdigest() + ".png"
    async with served(service) as server, desk(open_bench, tmp_path, provider, server.base_url) as own:
        found = await own.make(aspect_ratio="square")
        assert found == {
            "success": True,
            "image": f"{own.sandbox.workspace}/images/1.png",
            "artifact": name,
            "width": 48,
            "height": 32,
            "model": "m",
        }
        assert (await own.make())["image"].endswith("images/2.png")
        assert (own.workspace / "images/1.png").read_bytes() == service.data
        assert own.steps is not None
        assert own.steps.usage.cost == pytest.approx(0.04)
    assert (tmp_path / "artifacts" / name).read_bytes() == service.data
    assert service.made == 2
    request = server.requests[0]
    scheme = "Key" if provider == "fal" else "Bearer"
    assert request.headers["Authorization"] == f"{scheme} sk-1234567890"
    expected = {
        "openai": {"model": "m", "prompt": "A red house", "n": 1, "size": "1024x1024"},
        "fal": {"prompt": "A red house", "image_size": "square_hd", "num_images": 1, "output_format": "png"},
        "chat": {"model": "m", "modalities": ["image", "text"]},
    }
    assert request.body | expected[provider] == request.body


@pytest.mark.parametrize("when", ["before_effect", "before_recording", "after_recording"])
async def test_an_order_that_is_recorded_is_not_placed_again(open_bench: OpenBench, tmp_path: Path, when: When) -> None:
    service = PictureService()
    async with served(service) as server, desk(open_bench, tmp_path, "fal", server.base_url) as own:
        for step in (1, 2):
            before = service.made
            context = MemoryContext(crash=CrashPoint(step, when))
            with pytest.raises(Crash):
                await own.make(context)
            again = MemoryContext(context.journal)
            assert (await own.make(again))["success"]
            paid = service.made - before
            assert paid == (2 if step == 1 and when == "before_recording" else 1)


async def test_a_server_may_give_an_address_in_place_of_the_picture(open_bench: OpenBench, tmp_path: Path) -> None:
    def reply(request: RecordedRequest) -> Reply:
        if request.path.endswith(".png"):
            return ScriptedResponse(picture())
        return {"data": [{"url": server.base_url + "/a.png"}]}

    async with ScriptedServer(reply) as server, desk(open_bench, tmp_path, "openai", server.base_url) as own:
        assert (await own.make())["width"] == 30


@pytest.mark.parametrize(
    ("provider", "reply", "reason"),
    [
        ("openai", ScriptedResponse({"error": {"message": "flagged by moderation"}}, 400), "flagged by moderation"),
        ("openai", ScriptedResponse({"error": {"message": "bad key"}}, 401), "its key is wrong"),
        ("openai", {"data": []}, "made no picture"),
        ("openai", {"data": [{"b64_json": "aGVsbG8="}]}, "no picture that can be read"),
        ("openai", {"data": [{"url": "http://169.254.169.254/x"}]}, "can't be read"),
        ("openai", ScriptedResponse(b"not JSON"), "can't be read"),
        ("chat", {"choices": [{"message": {"content": "I can't draw people."}}]}, "but said: I can't draw people"),
        ("chat", {"choices": []}, "can't be read"),
        ("fal", {"detail": "no"}, "without a request_id"),
    ],
)
async def test_failures_name_the_reason(
    open_bench: OpenBench, tmp_path: Path, provider: str, reply: Reply, reason: str
) -> None:
    async with ScriptedServer([reply]) as server, desk(open_bench, tmp_path, provider, server.base_url) as own:
        with pytest.raises(ToolError, match=reason):
            await own.make()
        assert not (own.workspace / "images").exists()


async def test_what_is_billed_by_tokens_costs_what_they_cost(open_bench: OpenBench, tmp_path: Path) -> None:
    prices = PriceTable({"m": Price(5, 40)})
    async with (
        served(PictureService()) as server,
        desk(open_bench, tmp_path, "openai", server.base_url, prices, quality="low") as own,
    ):
        await own.make()
        assert own.steps is not None
        used = own.steps.usage
    assert (used.calls, used.output_tokens) == (1, 1000)
    assert used.cost == pytest.approx((10 * 5 + 1000 * 40) / 1e6)
    assert server.requests[0].body["quality"] == "low"


async def test_the_simulated_service_draws_by_the_prompt(open_bench: OpenBench, tmp_path: Path) -> None:
    async with desk(open_bench, tmp_path, "simulated", None) as own:
        one, same, other = await own.make(), await own.make(), await own.make(prompt="A blue house")
        assert one["artifact"] == same["artifact"] != other["artifact"]
        assert (one["width"], one["height"], one["simulated"]) == (96, 64, True)
        assert own.steps is not None
        assert (own.steps.usage.simulated_calls, own.steps.usage.cost) == (1, 0)


def options(**given: Any) -> BatchSpec:
    return BatchSpec.make({"dataset_file": "d.jsonl", "run_name": "r", "batch_size": 2, **given})


def test_the_service_is_chosen_from_the_settings(tmp_path: Path) -> None:
    assert "images" not in choose_services(options(), {"FAL_KEY": "k"})
    chosen = choose_services(options(image_provider="fal", image_model="fal-ai/flux"), {})["images"]
    assert chosen == {"provider": "fal", "model": "fal-ai/flux", "base_url": "https://queue.fal.run"}
    assert SERVICE.secrets(chosen, options(), {"FAL_KEY": " k "}) == {"key": "k"}
    for given, problem in (
        ({"image_model": "m"}, "--image_model needs --image_provider"),
        ({"image_provider": "openai"}, "needs --image_model"),
        ({"image_provider": "fal", "image_model": "m", "image_base_url": "x"}, "--image_base_url must be an address"),
        ({"image_provider": "fal", "image_model": "m", "max_cost": "1"}, "needs the price of a picture of m"),
    ):
        with pytest.raises(UserError, match=problem):
            choose_services(options(**given), {})
    with pytest.raises(UserError, match="set FAL_KEY"):
        SERVICE.secrets(chosen, options(), {})
    openai = choose_services(options(image_provider="openai", image_model="m"), {})["images"]
    with pytest.raises(UserError, match="OPENAI_API_KEY"):
        SERVICE.secrets(openai, options(), {})
    (tmp_path / "p.yaml").write_text("m: {request: 0.04}\n")
    priced = options(image_provider="fal", image_model="m", max_cost="1", prices=str(tmp_path / "p.yaml"))
    assert choose_services(priced, {})["images"]["model"] == "m"


def _packed() -> bytes:
    """200 MB of zeros in 200 kB."""
    packer = zlib.compressobj(1, wbits=31)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(200)) + packer.flush()


_HOSTILE: dict[str, tuple[Reply, str]] = {
    "a flood": (ScriptedResponse(_packed(), headers={"Content-Encoding": "gzip"}), "larger than 67,108,864 bytes"),
    "a redirect": (
        ScriptedResponse(status=302, headers={"Location": "http://169.254.169.254/"}),
        "refuses the request",
    ),
    "an address of this machine": ({"data": [{"url": "http://127.0.0.2:1/a.png"}]}, "loopback"),
    "a file": ({"data": [{"url": "file:///etc/passwd"}]}, "can't be read"),
    "many pixels": (
        {"data": [{"b64_json": base64.b64encode(huge(10_000, 5_001)).decode()}]},
        "50,005,001|10,000 × 5,001",
    ),
    "a drawing": ({"data": [{"b64_json": base64.b64encode(b"<svg/>").decode()}]}, "SVG is not taken"),
    "no base64": ({"data": [{"b64_json": "%%%"}]}, "no picture|empty"),
}


@pytest.mark.parametrize("kind", _HOSTILE)
async def test_what_a_hostile_service_answers_is_refused(open_bench: OpenBench, tmp_path: Path, kind: str) -> None:
    reply, said = _HOSTILE[kind]
    async with ScriptedServer([reply]) as server, desk(open_bench, tmp_path, "openai", server.base_url) as own:
        with pytest.raises(ToolError, match=said):
            await own.make()
        assert len(server.requests) == 1
    assert not (tmp_path / "artifacts").exists()
