"""The services that search the web and read its pages: what they are asked, and what they answer.

Sources: the documentation of Firecrawl (API version 2), Exa, Tavily, Brave Search and SearXNG as of November 2026, and the code of their
clients. None of them was called from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from manyhands.core.jsonio import Json
from manyhands.tools.services.steps import ServiceError

MAX_HITS = 20
"""Results that a search may ask for: all services give as many."""
MAX_QUERY = 500
"""Characters of a query: all services take as many."""
DIRECT = "direct"
"""Reading pages without any service."""


@dataclass(frozen=True, slots=True)
class ServiceRequest:
    """A request to a service. ``body``: sent as JSON; None: nothing is sent."""

    method: str
    path: str
    body: Json = None
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hit:
    """One result of a search."""

    title: str
    url: str
    description: str


@dataclass(frozen=True, slots=True)
class ServicePage:
    """A page as a service read it."""

    title: str
    text: str
    final_url: str = ""


@dataclass(frozen=True, slots=True)
class Provider:
    """A service. ``hits`` and ``page`` read its answers; they raise LookupError, TypeError or ServiceError for others."""

    name: str
    title: str
    key_variables: tuple[str, ...]
    url_variable: str
    base_url: str | None
    """Where it is, unless a variable says otherwise; None: it is a server of one's own."""
    auth: Callable[[str], dict[str, str]]
    """The headers that a key is sent in."""
    search: Callable[[str, int], ServiceRequest]
    hits: Callable[[Any], Sequence[Hit]]
    read: Callable[[str], ServiceRequest] | None = None
    """None: it reads no pages."""
    page: Callable[[Any], ServicePage] | None = None
    cost: Callable[[Any], float | None] = lambda answer: None
    """US dollars, where an answer says so."""

    def key(self, environ: Mapping[str, str]) -> str | None:
        """Its key, from the environment."""
        return next((value for name in self.key_variables if (value := environ.get(name, "").strip())), None)

    def is_set_up(self, environ: Mapping[str, str]) -> bool:
        """Whether there is what it needs: a key, or the address of a server of one's own where that does without."""
        own = bool(environ.get(self.url_variable, "").strip()) and self.name in _KEYLESS
        return own or self.key(environ) is not None

    @property
    def needs(self) -> str:
        """What must be set for it."""
        names = [*self.key_variables[:1], *([self.url_variable] if self.name in _KEYLESS else [])]
        return " or ".join(names)


_KEYLESS = ("firecrawl", "searxng")
"""Services that a server of one's own needs no key for."""


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _hits(results: Any, description: str) -> list[Hit]:
    """Results of a list, with their descriptions in the field of that name."""
    if not isinstance(results, list):
        raise TypeError("no list of results")
    return [
        Hit(_text(each.get("title")), each["url"], _text(each.get(description)))
        for each in results
        if isinstance(each, dict) and _text(each.get("url"))
    ]


def _firecrawl_page(answer: Any) -> ServicePage:
    data = answer["data"]
    about = data.get("metadata") or {}
    status = about.get("statusCode")
    if isinstance(status, int) and status >= 400:
        raise ServiceError(f"the page answers HTTP {status}")
    return ServicePage(_text(about.get("title")), data["markdown"], _text(about.get("url") or about.get("sourceURL")))


def _exa_hits(answer: Any) -> list[Hit]:
    hits = _hits(answer["results"], "text")
    highlights = [each.get("highlights") for each in answer["results"] if _text(each.get("url"))]
    return [
        Hit(hit.title, hit.url, " … ".join(map(_text, parts)) if isinstance(parts, list) else hit.description)
        for hit, parts in zip(hits, highlights, strict=True)
    ]


def _exa_page(answer: Any) -> ServicePage:
    if not answer["results"]:
        raise ServiceError("the service could not read the page")
    result = answer["results"][0]
    return ServicePage(_text(result.get("title")), result["text"], _text(result.get("url")))


def _exa_cost(answer: Any) -> float | None:
    costs = answer.get("costDollars") if isinstance(answer, dict) else None
    total = costs.get("total") if isinstance(costs, dict) else None
    return (
        float(total) if isinstance(total, int | float) and not isinstance(total, bool) and 0 <= total < 1000 else None
    )


def _tavily_page(answer: Any) -> ServicePage:
    if not answer["results"]:
        failed = answer.get("failed_results") or [{}]
        raise ServiceError(f"the service could not read the page: {_text(failed[0].get('error')) or 'no reason given'}")
    result = answer["results"][0]
    return ServicePage(_text(result.get("title")), result["raw_content"], _text(result.get("url")))


PROVIDERS: Mapping[str, Provider] = {
    provider.name: provider
    for provider in (
        Provider(
            "firecrawl",
            "Firecrawl",
            ("FIRECRAWL_API_KEY",),
            "FIRECRAWL_API_URL",
            "https://api.firecrawl.dev",
            _bearer,
            lambda query, limit: ServiceRequest("POST", "/v2/search", {"query": query, "limit": limit}),
            lambda answer: _hits(answer["data"].get("web", []), "description"),
            lambda url: ServiceRequest(
                "POST", "/v2/scrape", {"url": url, "formats": ["markdown"], "onlyMainContent": True}
            ),
            _firecrawl_page,
        ),
        Provider(
            "exa",
            "Exa",
            ("EXA_API_KEY",),
            "EXA_API_URL",
            "https://api.exa.ai",
            lambda key: {"x-api-key": key},
            lambda query, limit: ServiceRequest(
                "POST", "/search", {"query": query, "numResults": limit, "contents": {"highlights": True}}
            ),
            _exa_hits,
            lambda url: ServiceRequest("POST", "/contents", {"urls": [url], "text": True}),
            _exa_page,
            _exa_cost,
        ),
        Provider(
            "tavily",
            "Tavily",
            ("TAVILY_API_KEY",),
            "TAVILY_API_URL",
            "https://api.tavily.com",
            _bearer,
            lambda query, limit: ServiceRequest("POST", "/search", {"query": query, "max_results": limit}),
            lambda answer: _hits(answer["results"], "content"),
            lambda url: ServiceRequest("POST", "/extract", {"urls": [url]}),
            _tavily_page,
        ),
        Provider(
            "brave",
            "Brave Search",
            ("BRAVE_API_KEY", "BRAVE_SEARCH_API_KEY"),
            "BRAVE_API_URL",
            "https://api.search.brave.com",
            lambda key: {"X-Subscription-Token": key},
            lambda query, limit: ServiceRequest(
                "GET", "/res/v1/web/search", query={"q": query, "count": str(limit), "text_decorations": "false"}
            ),
            lambda answer: _hits((answer.get("web") or {}).get("results", []), "description"),
        ),
        Provider(
            "searxng",
            "SearXNG",
            (),
            "SEARXNG_URL",
            None,
            lambda key: {},
            lambda query, limit: ServiceRequest("GET", "/search", query={"q": query, "format": "json"}),
            lambda answer: _hits(answer["results"], "content"),
        ),
    )
}
"""All services by name, in the order in which one is chosen."""
READING = tuple(provider.name for provider in PROVIDERS.values() if provider.read is not None)
"""Those that read pages."""
