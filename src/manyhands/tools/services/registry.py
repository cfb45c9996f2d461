"""What tools need besides a sandbox: search services, browsers and further models.

Which of them a run has is chosen when it is made, from its settings and the keys in the environment, and recorded with it, so that a
resume offers the same tools. A tool that lacks one of them is not offered.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from manyhands.core.errors import ToolError, UserError
from manyhands.core.jsonio import Json
from manyhands.engine.contract import import_attribute
from manyhands.models.addresses import addresses_of, read_address
from manyhands.models.factory import (
    DEFAULT_BASE_URL,
    home_url,
    is_simulated,
    make_model,
    require_keys,
    resolve_api_keys,
)
from manyhands.models.headers import as_secrets, headers_among, usable_headers
from manyhands.models.pricing import PriceTable, bounded_answer
from manyhands.models.protocol import ChatModel, ChatSettings
from manyhands.models.settings import ModelSettings
from manyhands.tools.services.artifacts import ArtifactStore
from manyhands.tools.services.courtesy import TURNS, Courtesy
from manyhands.tools.toolsets import BROWSER

_ServiceT = TypeVar("_ServiceT")
_OWN_TEMPERATURE = re.compile(r"(openai/)?(o\d|gpt-5(?!-chat))")
"""Models that refuse every temperature but their own."""
_SECRET = "service"
"""Begins the names of services' keys among a workload's secrets."""


@dataclass(frozen=True, slots=True)
class ServiceOpening:
    """What a process of a run has for its services."""

    run_folder: Path
    secrets: Mapping[str, str]
    """What the service's own ``secrets`` gave."""
    prices: PriceTable
    seed: int = 0
    """The run's, for simulated models."""
    bounded: bool = False
    """Whether the run has a budget, which relies on every model call naming a maximum of tokens."""
    courtesy: Courtesy = field(default_factory=Courtesy)
    """One for all services of the process that get files of the web."""

    def model(self, choice: ModelChoice) -> ChatModel:
        """The model, to be closed by whoever opened it."""
        return make_model(
            model=choice.model,
            base_url=choice.base_url,
            api_key=self.secrets.get(choice.model),
            seed=self.seed,
            prices=self.prices,
            max_tokens=bounded_answer(choice.model) if self.bounded else None,
            headers=headers_among(self.secrets, choice.model),
        )


class Service(Protocol):
    """One thing that tools need. A module has one such object, which ``SERVICES`` names."""

    def chosen(self, options: Any, environ: Mapping[str, str]) -> Json:
        """What is recorded of it, without secrets; None if there is none. ``options``: the settings of the run's agents. Raises UserError
        for settings that can't be used."""
        ...

    def secrets(self, record: Json, options: Any, environ: Mapping[str, str]) -> Mapping[str, str]:
        """Its keys, by names of its own. ``record``: what was chosen. Raises UserError for one that is missing."""
        ...

    def opened(self, record: Json, opening: ServiceOpening) -> AbstractAsyncContextManager[object]:
        """Ready for tools, until its process ends. Nothing is connected to before a tool is called."""
        ...


@dataclass(frozen=True, slots=True)
class ServiceEntry:
    """A service that there is."""

    target: str
    """``module:attribute`` of the ``Service``, which is imported when it is needed."""
    tools: tuple[str, ...]
    """The tools that need it."""
    costs: str = ""
    """What calls of its tools cost, as a noun phrase; empty for nothing."""
    samples: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By tool: arguments of a small call that tries it out."""


_RED = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAABAAAAAQAQMAAAAlPW0iAAAAA1BMVEX/AAAZ4gk3AAAADElEQVR42mNgIA0AAAAwAA"
    "EodEl9AAAAAElFTkSuQmCC"
)
"""A red square."""
SERVICES: Mapping[str, ServiceEntry] = {
    "browser": ServiceEntry(
        "manyhands.tools.services.browser.service:SERVICE",
        BROWSER,
        samples={"browser_navigate": {"url": "about:blank"}},
    ),
    "mixture": ServiceEntry(
        "manyhands.tools.services.mixture:SERVICE",
        ("mixture_of_agents",),
        costs="a call of each of its models",
        samples={"mixture_of_agents": {"user_prompt": "What is 17 times 23? Answer with the number."}},
    ),
    "images": ServiceEntry(
        "manyhands.tools.services.images:SERVICE",
        ("image_generate",),
        costs="a picture",
        samples={"image_generate": {"prompt": "A red circle on white ground.", "aspect_ratio": "square"}},
    ),
    "vision": ServiceEntry(
        "manyhands.tools.services.vision:SERVICE",
        ("vision_analyze", "browser_vision"),
        costs="a call of the model that sees",
        samples={"vision_analyze": {"image_url": _RED, "question": "Which colour is it? Answer with one word."}},
    ),
    "web_search": ServiceEntry(
        "manyhands.tools.services.web.search:SERVICE",
        ("web_search",),
        costs="a request to the search service",
        samples={"web_search": {"query": "example domain", "limit": 1}},
    ),
    "web_extract": ServiceEntry(
        "manyhands.tools.services.web.extract:SERVICE",
        ("web_extract",),
        costs="a request for each page, unless pages are read directly",
        samples={"web_extract": {"urls": ["https://example.com/"]}},
    ),
}
"""All services by the names that records have."""


def service(name: str) -> Service:
    """The service of that name."""
    found: Service = import_attribute(SERVICES[name].target)
    return found


def choose_services(options: Any, environ: Mapping[str, str]) -> dict[str, Json]:
    """What a new run has of services, by name, as it is recorded. Raises UserError for settings that can't be used."""
    chosen = {name: service(name).chosen(options, environ) for name in SERVICES}
    return {name: record for name, record in chosen.items() if record is not None}


def usable_services(options: Any, environ: Mapping[str, str]) -> tuple[dict[str, Json], dict[str, str]]:
    """As ``choose_services``, and by their tools what is wrong with settings that can't be used."""
    chosen: dict[str, Json] = {}
    problems: dict[str, str] = {}
    for name, entry in SERVICES.items():
        try:
            record = service(name).chosen(options, environ)
        except UserError as error:
            problems |= dict.fromkeys(entry.tools, str(error))
            continue
        if record is not None:
            chosen[name] = record
    return chosen, problems


def service_secrets(records: Mapping[str, Json], options: Any, environ: Mapping[str, str]) -> dict[str, str]:
    """The keys of a run's services, as secrets of its workload. Raises UserError for one that is missing."""
    return {
        f"{_SECRET} {name} {key}": value
        for name, record in records.items()
        for key, value in service(name).secrets(record, options, environ).items()
    }


def lacking(records: Collection[str]) -> set[str]:
    """The tools that a run with these services alone can't offer. ``records``: names of services."""
    return {tool for name, entry in SERVICES.items() if name not in records for tool in entry.tools}


def costs_of(tool: str, records: Collection[str]) -> str:
    """What a call of a tool costs in a run with these services; empty for nothing. ``records``: names of services."""
    needed = (entry for name, entry in SERVICES.items() if tool in entry.tools and name in records)
    return ", ".join(entry.costs for entry in needed if entry.costs)


class ToolServices:
    """The services of one process of a run, for its tools."""

    def __init__(self, artifacts: ArtifactStore, services: Iterable[object] = ()) -> None:
        self.artifacts = artifacts
        self._services = tuple(services)

    def of(self, kind: type[_ServiceT]) -> _ServiceT:
        """The service of a class. Raises ToolError if the run has none."""
        for each in self._services:
            if isinstance(each, kind):
                return each
        raise ToolError("this tool is not set up in this run")


@asynccontextmanager
async def opened_services(
    records: Mapping[str, Json],
    secrets: Mapping[str, str],
    run_folder: Path,
    *,
    prices: PriceTable | None = None,
    seed: int = 0,
    bounded: bool = False,
) -> AsyncIterator[ToolServices]:
    """A run's services, in one of its processes. ``secrets``: the workload's; ``bounded``: see ``ServiceOpening``."""
    courtesy = Courtesy(turns=run_folder / TURNS)
    async with AsyncExitStack() as stack:
        found = []
        for name, record in records.items():
            begin = f"{_SECRET} {name} "
            own = {key.removeprefix(begin): value for key, value in secrets.items() if key.startswith(begin)}
            opening = ServiceOpening(run_folder, own, prices or PriceTable(), seed, bounded, courtesy)
            found.append(await stack.enter_async_context(service(name).opened(record, opening)))
        yield ToolServices(ArtifactStore(run_folder), found)


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model that a tool asks."""

    model: str
    base_url: str
    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of ``ChatSettings``."""

    @classmethod
    def of(
        cls, model: str, base_url: str | None, options: ModelSettings, environ: Mapping[str, str], setting: str = ""
    ) -> ModelChoice:
        """``base_url``: None means the run's own endpoint if one was given, but for a simulated model, and otherwise the model's own
        provider if there is a key for that. Raises UserError, naming the ``setting`` that has it, for one that is no address."""
        if base_url is not None:
            try:
                base_url = read_address(base_url)
            except ValueError as error:
                raise UserError(f"--{setting} {error}") from None
        in_process = is_simulated(model) and model != options.model  # a run's own simulated model may be a server's
        if base_url is None and "base_url" in options.given and not in_process:
            base_url = _first_of(options)
        return cls(model, base_url or home_url(model, environ) or DEFAULT_BASE_URL)

    @classmethod
    def from_json(cls, record: Json) -> ModelChoice:
        return cls(record["model"], record["base_url"], dict(record.get("settings", {})))

    def to_json(self) -> dict[str, Any]:
        settings = {"settings": self.settings} if self.settings else {}
        return {"model": self.model, "base_url": self.base_url, **settings}

    def secrets(self, options: ModelSettings, environ: Mapping[str, str]) -> dict[str, str]:
        """Its key by the model's name, and its headers; nothing where none is needed. The run's own key and headers are for the run's own
        endpoint alone. Raises UserError if a key is missing."""
        if is_simulated(self.model, self.base_url):
            return {}
        own = self.base_url == _first_of(options)
        given = [key.text for key in options.api_key or ()] if own else []
        headers = usable_headers(options.header, options.recorded_headers, environ) if own else {}
        keys = resolve_api_keys(given, self.base_url, environ)
        try:
            require_keys(self.base_url, keys[:1], model=self.model, headers=headers, environ=environ)
        except UserError as error:
            raise UserError(f"model {self.model}, which a tool asks: {error}") from None
        return ({self.model: keys[0]} if keys else {}) | as_secrets(headers, self.model)

    def chat(self, **settings: Any) -> ChatSettings:
        """How it is called. ``settings``: fields that the choice itself does not have; a temperature only where the model takes one."""
        if _OWN_TEMPERATURE.match(self.model):
            settings.pop("temperature", None)
        return ChatSettings(model=self.model, **{**settings, **self.settings})


def _first_of(options: ModelSettings) -> str:
    """The run's own endpoint; the first of several."""
    return addresses_of(options.base_url)[0]


def every(choices: Iterable[ModelChoice], options: ModelSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """The keys of several models."""
    found: dict[str, str] = {}
    for choice in choices:
        found |= choice.secrets(options, environ)
    return found
