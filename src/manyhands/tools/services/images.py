"""Making pictures: a service draws what a prompt says, and the picture becomes an artifact, and a file in the agent's workspace."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any

from pydantic import Field

from manyhands.core.errors import ToolError, UserError
from manyhands.core.jsonio import Json
from manyhands.io.picture_headers import MAX_BYTES
from manyhands.models.addresses import read_address
from manyhands.models.factory import DEFAULT_BASE_URL, require_key, resolve_api_key
from manyhands.models.pricing import PriceTable, load_price_table
from manyhands.network.rules import NetworkRules
from manyhands.tools.files.content import exists, file_lock
from manyhands.tools.protocol import ToolEnvironment
from manyhands.tools.registry import tool
from manyhands.tools.services.artifacts import ArtifactStore
from manyhands.tools.services.picture_services import SIMULATED, Order, Shape, Studio
from manyhands.tools.services.pictures import MISSING, can_read
from manyhands.tools.services.registry import ServiceOpening

FOLDER = "images"
"""In the workspace."""
_BASE_URLS = {"openai": "https://api.openai.com/v1", "fal": "https://queue.fal.run", "chat": DEFAULT_BASE_URL}
_FAL_KEY = "FAL_KEY"
_MAX_FILES = 1000


class StudioService:
    """What ``image_generate`` needs."""

    def chosen(self, options: Any, environ: Mapping[str, str]) -> Json:
        provider, model, base_url = options.image_provider, options.image_model, options.image_base_url
        if provider is None:
            for name in ("image_model", "image_base_url", "image_quality"):
                if getattr(options, name) is not None:
                    raise UserError(f"--{name} needs --image_provider, which says what kind of service makes pictures")
            return None
        if not can_read():
            raise UserError(f"--image_provider: {MISSING}")
        if provider == SIMULATED:
            return {"provider": SIMULATED, "model": SIMULATED, "base_url": None}
        if model is None:
            raise UserError(f"--image_provider {provider} needs --image_model, the model that makes pictures there")
        try:
            url = read_address(base_url or _BASE_URLS[provider]).rstrip("/")
        except ValueError as error:
            raise UserError(f"--image_base_url {error}") from None
        self._check_price(provider, model, options)
        quality = {} if options.image_quality is None else {"quality": options.image_quality}
        return {"provider": provider, "model": model, "base_url": url, **quality}

    @staticmethod
    def _check_price(provider: str, model: str, options: Any) -> None:
        """Raises UserError if a budget can't be kept, as nobody says what a picture costs. (Chat completions may say it themselves.)"""
        if provider == "chat" or getattr(options, "max_cost", None) is None:
            return
        table = load_price_table(options.prices) if options.prices is not None else PriceTable()
        if table.price(model) is None:
            raise UserError(
                f"--max_cost needs the price of a picture of {model}: give --prices FILE with a line "
                f"'{model}: {{request: 0.04}}', in US dollars"
            )

    def secrets(self, record: Json, options: Any, environ: Mapping[str, str]) -> Mapping[str, str]:
        provider, url = record["provider"], record["base_url"]
        if provider == SIMULATED:
            return {}
        if provider == "fal":
            key = (environ.get(_FAL_KEY) or "").strip() or None
            if key is None and url == _BASE_URLS["fal"]:
                raise UserError(f"--image_provider fal needs a key: set {_FAL_KEY}")
        else:
            given = options.api_key[0].text if options.api_key and options.base_url == url else None
            key = resolve_api_key(given, url, environ)
            require_key(url, key, environ=environ)
        return {} if key is None else {"key": key}

    @asynccontextmanager
    async def opened(self, record: Json, opening: ServiceOpening) -> AsyncIterator[Studio]:
        artifacts = ArtifactStore(opening.run_folder)
        if record["provider"] == SIMULATED:
            yield Studio(record, None, None, artifacts, opening.prices, None)
            return
        from manyhands.models.openai.http import EndpointConnections
        from manyhands.models.openai.request import Endpoint
        from manyhands.tools.services.web.fetching import DirectFetcher  # these take long to import

        key = opening.secrets.get("key")
        fal = {"Authorization": f"Key {key}"} if record["provider"] == "fal" and key else None
        endpoint = Endpoint.of(record["base_url"])
        connections = EndpointConnections(endpoint, None if fal else key, headers=fal)
        files = EndpointConnections(endpoint)
        rules = NetworkRules.web(private=False)
        fetcher = DirectFetcher(rules, ignore_robots=True, courtesy=opening.courtesy, max_body=MAX_BYTES)
        async with AsyncExitStack() as stack:
            for each in (connections, files, fetcher):
                stack.push_async_callback(each.close)
            yield Studio(record, connections, files, artifacts, opening.prices, fetcher)


SERVICE = StudioService()


@tool(changes_world=True)
async def image_generate(
    environment: ToolEnvironment,
    prompt: Annotated[
        str, "What the picture shows, in detail: subject, style, colours, composition.", Field(min_length=1)
    ],
    aspect_ratio: Annotated[Shape, "The picture's format."] = "landscape",
) -> dict[str, Any]:
    """Make a picture from a description.

    The picture is written into the workspace, and kept as an artifact; the result says where. It costs something, so don't make more
    than are needed.
    """
    studio, steps = environment.service(Studio), environment.own_steps
    made = await studio.make(steps, Order(prompt, aspect_ratio, environment.timeout))
    path = await _written(environment, made)
    known = {name: made[name] for name in ("artifact", "width", "height")}
    simulated = {"simulated": True} if made.get("simulated") else {}
    return {"success": True, "image": path, **known, "model": studio.model, **simulated}


async def _written(environment: ToolEnvironment, made: Mapping[str, Any]) -> str | None:
    """Write a picture into the workspace, under the first number that is free; its path. None where there is no sandbox."""
    assert environment.services is not None  # as it has the service
    data = await environment.services.artifacts.get(made["artifact"])
    try:
        sandbox = await environment.sandbox()
    except ToolError:
        return None
    ending = "." + made["artifact"].rpartition(".")[2]
    async with file_lock(environment):
        for number in range(1, _MAX_FILES):
            path = f"{sandbox.workspace}/{FOLDER}/{number}{ending}"
            if not await exists(sandbox, path):
                await sandbox.write_file(path, data)
                return path
    raise ToolError(f"the folder {FOLDER} is full; the picture is the artifact {made['artifact']}")
