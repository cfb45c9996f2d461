"""Searching the web by a service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from manyhands.core.clock import Clock
from manyhands.core.jsonio import Json
from manyhands.core.text import shorten
from manyhands.tools.protocol import ToolEnvironment
from manyhands.tools.registry import tool
from manyhands.tools.services.artifacts import ArtifactStore
from manyhands.tools.services.registry import ServiceOpening
from manyhands.tools.services.steps import Charge, ToolSteps
from manyhands.tools.services.web.access import Access, chosen_provider, provider_secrets
from manyhands.tools.services.web.answer_cache import AnswerCache
from manyhands.tools.services.web.providers import MAX_HITS, MAX_QUERY, PROVIDERS, Hit

LIMIT = 5
"""Results, unless more or fewer are requested."""
_OPTION = "web_search"
_MAX_DESCRIPTION = 1000
"""Characters of one result's description."""


class WebSearch:
    """A service that searches. ``charge``: what it bills for one search."""

    def __init__(self, access: Access, charge: Charge, cache: AnswerCache) -> None:
        self._access, self._charge, self._cache = access, charge, cache

    @property
    def provider(self) -> str:
        """Its name."""
        return self._access.provider.name

    async def find(
        self, steps: ToolSteps, query: str, limit: int, artifacts: ArtifactStore, clock: Clock
    ) -> tuple[Json, bool]:
        """Results as objects with ``title``, ``url``, ``description`` and ``position``, and whether they come from the cache. Raises
        ServiceError."""
        request = {"search": self._access.base_url, "query": query, "limit": limit}

        def record(hits: Sequence[Hit]) -> Json:
            return {"hits": [_shown(hit, position) for position, hit in enumerate(hits[:limit], 1)]}

        provider = self._access.provider
        answer, cached = await self._cache.answer(
            steps,
            self._charge,
            request,
            lambda: self._access.answer(provider.search(query, limit), provider.hits, record),
            artifacts=artifacts,
            clock=clock,
        )
        return answer["hits"], cached


def _shown(hit: Hit, position: int) -> Json:
    return {
        "title": hit.title,
        "url": hit.url,
        "description": shorten(" ".join(hit.description.split()), _MAX_DESCRIPTION),
        "position": position,
    }


class WebSearchService:
    """What ``web_search`` needs."""

    def chosen(self, options: Any, environ: Mapping[str, str]) -> Json:
        record = chosen_provider(_OPTION, options.web_search, tuple(PROVIDERS), environ)
        return None if record is None else {**record, "cache": options.web_cache}

    def secrets(self, record: Json, options: Any, environ: Mapping[str, str]) -> Mapping[str, str]:
        return provider_secrets(_OPTION, record, environ)

    @asynccontextmanager
    async def opened(self, record: Json, opening: ServiceOpening) -> AsyncIterator[WebSearch]:
        provider = PROVIDERS[record["provider"]]
        charge = charged(provider.name, "search", opening)
        access = Access(provider, record["base_url"], opening.secrets.get(provider.name))
        try:
            yield WebSearch(access, charge, AnswerCache(record["cache"] and Path(record["cache"])))
        finally:
            await access.close()


SERVICE = WebSearchService()


def charged(provider: str, operation: str, opening: ServiceOpening) -> Charge:
    """What a service bills, by the run's prices."""
    free = provider == "searxng"  # always a server of one's own
    price = 0.0 if free else opening.prices.request_price(f"{provider}/{operation}")
    return Charge(provider, operation, price)


@tool(changes_world=False)
async def web_search(
    environment: ToolEnvironment,
    query: Annotated[str, "What to search for.", Field(min_length=1, max_length=MAX_QUERY)],
    limit: Annotated[int, "Maximum number of results.", Field(ge=1, le=MAX_HITS)] = LIMIT,
) -> dict[str, Any]:
    """Search the web for pages on any topic: the title, address and description of each.

    Read the pages that look useful with web_extract, if you have it.
    """
    search = environment.service(WebSearch)
    hits, cached = await search.find(environment.own_steps, query, limit, environment.artifacts, environment.clock)
    return {
        "success": True,
        "provider": search.provider,
        **({"cached": True} if cached else {}),
        "data": {"web": hits},
    }
