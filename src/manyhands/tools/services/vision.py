"""Looking at pictures: a model that sees is asked about one, which comes from the sandbox, an address of the web, or the artifacts.

The request is that of OpenAI chat completions with a content part ``image_url``. The journal has the picture's digest, never its bytes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from manyhands.core.errors import ToolError, UserError
from manyhands.core.jsonio import Json
from manyhands.core.messages import text_of
from manyhands.io.picture_headers import MAX_BYTES
from manyhands.models.protocol import ChatModel
from manyhands.network.rules import NetworkRules
from manyhands.tools.protocol import ToolEnvironment
from manyhands.tools.registry import tool
from manyhands.tools.services.artifacts import ArtifactStore, data_of, is_name, reference
from manyhands.tools.services.pictures import MISSING, Picture, can_read, read_picture
from manyhands.tools.services.registry import ModelChoice, ServiceOpening
from manyhands.tools.services.steps import ServiceAnswer, ToolSteps, within
from manyhands.tools.services.web.reading import INSTALL, missing_packages
from manyhands.tools.terminal import without_nul

if TYPE_CHECKING:
    from manyhands.tools.services.web.fetching import DirectFetcher

MAX_TOKENS, TEMPERATURE = 2000, 0.1
"""Of an answer."""
_SEEING = re.compile(
    r"(.*/)?(gpt-(4o|4\.1|4-turbo|[5-9])|chatgpt-|o[134](?!-mini|-preview)|o4-mini|claude-|gemini-|pixtral|llama-4|gemma-[34]|grok-4"
    r"|mistral-(small|medium|large)-(3|2[5-9])|.*([-_]vl\b|\bvl[-_]|vision|llava|internvl|molmo|minicpm-v|-omni))",
    re.IGNORECASE,
)
"""Names of models that are known to take pictures, with or without a provider."""
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_LOOK = "image source"
_REQUEST = "Describe this picture fully, with all text in it, and then answer this question:\n\n{question}"


class Vision:
    """The model that sees, ready to be asked."""

    def __init__(self, choice: ModelChoice, model: ChatModel, fetcher: DirectFetcher | None = None) -> None:
        self._choice = choice
        self._model = model
        self._fetcher = fetcher
        self._reading = asyncio.Semaphore(1)
        """Pictures are unpacked one at a time, as each takes up to 200 MB meanwhile."""

    async def look(
        self,
        steps: ToolSteps,
        artifacts: ArtifactStore,
        request: Json,
        get: Callable[[], Awaitable[tuple[bytes, dict[str, Any]]]],
    ) -> dict[str, Any]:
        """Get a picture as a step: what is known of it, with ``artifact``, the name of what is shown to the model. ``request``: what says
        which picture it is; ``get``: gets its file, and what else is known of it. Raises ToolError if it is none that can be used."""

        async def send() -> ServiceAnswer:
            data, known = await get()
            picture = await self._read(data)
            name = await artifacts.put(picture.content, picture.media_type)
            return ServiceAnswer({"artifact": name, **picture.about(), **known})

        found: dict[str, Any] = await steps.request(None, request, send, service=_LOOK)
        return found

    async def ask(self, steps: ToolSteps, artifact: str, question: str, seconds: float) -> str:
        """Ask about a picture that is an artifact, as a step; the answer. Raises ToolError."""
        parts = [{"type": "text", "text": question}, reference(artifact)]
        settings = within(self._choice.chat(max_tokens=MAX_TOKENS, temperature=TEMPERATURE), seconds)
        answer = await steps.ask(self._model, settings, [{"role": "user", "content": parts}])
        text = text_of(answer.message.get("content")).strip()
        if not text:
            raise ToolError(f"{self._choice.model} gave an empty answer ({answer.finish_reason}); ask in another way")
        return text

    async def fetch(self, address: str) -> bytes:
        """A file of the web. Raises ToolError if it can't be had."""
        if self._fetcher is None:
            raise ToolError(f"pictures of the web can't be had here: {INSTALL} is needed")
        return (await self._fetcher.fetch(address)).content

    async def _read(self, data: bytes) -> Picture:
        async with self._reading:
            return await asyncio.to_thread(read_picture, data)


@dataclass(frozen=True, slots=True)
class VisionService:
    """What ``vision_analyze`` needs."""

    def chosen(self, options: Any, environ: Mapping[str, str]) -> Json:
        model, base_url = options.vision_model, options.vision_base_url
        if model is None:
            if base_url is not None:
                raise UserError("--vision_base_url says where --vision_model is called, which is not given")
            if not can_read() or not sees(options.model):
                return None
        elif not can_read():
            raise UserError(f"--vision_model: {MISSING}")
        choice = ModelChoice.of(model or options.model, base_url, options, environ, "vision_base_url")
        return {"model": choice.to_json(), "private": options.web_allow_private, "ignore_robots": options.ignore_robots}

    def secrets(self, record: Json, options: Any, environ: Mapping[str, str]) -> Mapping[str, str]:
        return ModelChoice.from_json(record["model"]).secrets(options, environ)

    @asynccontextmanager
    async def opened(self, record: Json, opening: ServiceOpening) -> AsyncIterator[Vision]:
        choice = ModelChoice.from_json(record["model"])
        async with AsyncExitStack() as stack:
            model = opening.model(choice)
            stack.push_async_callback(model.close)
            fetcher = None
            if not missing_packages():
                from manyhands.tools.services.web.fetching import DirectFetcher  # it takes long to import

                rules = NetworkRules.web(private=record.get("private", False))
                ignored = record.get("ignore_robots", False)
                fetcher = DirectFetcher(rules, ignore_robots=ignored, courtesy=opening.courtesy, max_body=MAX_BYTES)
                stack.push_async_callback(fetcher.close)
            yield Vision(choice, model, fetcher)


SERVICE = VisionService()


def sees(model: str) -> bool:
    """Whether a model is known by its name to take pictures."""
    return _SEEING.match(model) is not None


@tool(changes_world=True, reads_world=True)
async def vision_analyze(
    environment: ToolEnvironment,
    image_url: Annotated[
        str,
        "Address of a picture (http or https), or its path in the sandbox, or the name of an artifact, as other tools give it.",
        Field(min_length=1),
    ],
    question: Annotated[str, "What to find out about the picture.", Field(min_length=1)],
) -> dict[str, Any]:
    """Look at a picture: get a full description of it, and the answer to a question about it.

    PNG, JPEG, GIF (its first frame) and WebP can be looked at, up to 20 MB. Large pictures are scaled down first; the result says by how
    much.
    """
    vision, steps = environment.service(Vision), environment.own_steps
    assert environment.services is not None  # as it has the service
    artifacts = environment.services.artifacts

    async def get() -> bytes:
        if is_name(image_url):
            return await artifacts.get(image_url)
        if (data := data_of(image_url)) is not None:
            return data
        if _ADDRESS.match(image_url):
            return await vision.fetch(image_url)
        sandbox = await environment.sandbox()
        return await sandbox.read_file(without_nul("image_url", image_url), max_bytes=MAX_BYTES)

    async def got() -> tuple[bytes, dict[str, Any]]:
        return await get(), {}

    until = environment.clock.monotonic() + environment.timeout
    seen = await vision.look(steps, artifacts, {"image_url": image_url}, got)
    left = until - environment.clock.monotonic()
    answer = await vision.ask(steps, seen["artifact"], _REQUEST.format(question=question), left)
    return {"success": True, "analysis": answer, "picture": seen}
