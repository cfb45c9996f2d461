"""From what a person typed to a model: which one, at which endpoint, with which key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from manyhands.core.errors import UserError
from manyhands.models.addresses import Addresses, addresses_of, paired, read_address
from manyhands.models.hosts import HOSTS, home_of, host_of
from manyhands.models.openai.errors import Retries
from manyhands.models.pricing import PriceTable, load_price_table
from manyhands.models.protocol import ChatModel

DEFAULT_BASE_URL = "https://openrouter.ai/api/v1"
SIMULATED = "simulated"
OWN_KEY_VARIABLE = "MANYHANDS_API_KEY"
"""The key for endpoints that are not in ``KEY_VARIABLES``."""
SEVERAL = "S"
"""Behind a variable's name: the one that holds several keys, with commas between them, and is read first."""
KEY_VARIABLES: dict[str, str] = {name: host.key_variable for name, host in HOSTS.items() if host.key_variable}
"""The variable that holds the key for a host or any host below it. A key goes to its own provider and nowhere else."""
CLIENT = "manyhands.models.openai.client"
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra")


def is_simulated(model: str, base_url: Addresses | None = None) -> bool:
    """Whether the name means the simulated model in this process: ``simulated`` or ``simulated/…``, with no endpoint given."""
    return _simulated_name(model) and (not base_url or _is_default(base_url))


def late_imports(model: str, base_url: Addresses | None = None) -> Sequence[str]:
    """Modules that ``make_model`` imports for such a model."""
    return () if is_simulated(model, base_url) else (CLIENT,)


def make_model(
    *,
    model: str,
    base_url: Addresses | None = None,
    api_key: str | Sequence[str] | None = None,
    seed: int = 0,
    prices: str | Path | PriceTable | None = None,
    latency: float = 0.0,
    retries: Retries | None = None,
    max_tokens: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> ChatModel:
    """The model of a run. ``api_key``: one or several, from ``resolve_api_keys``; ``prices``: a price table or its path; ``seed`` and
    ``latency`` (seconds a call) are for the simulated model; ``retries``: how failed calls are tried again, None: as usual;
    ``max_tokens``: is sent with calls that name none; ``headers``: sent with every request.

    Raises UserError for a base URL that is none, a provider's endpoint without its key, or a bad price table.
    """
    if not model.strip():
        raise UserError("--model: a model name is needed, as anthropic/claude-sonnet-4.6, or simulated")
    table = load_price_table(prices) if isinstance(prices, str | Path) else prices or PriceTable()
    if is_simulated(model, base_url):
        from manyhands.models.simulated.model import SimulatedModel  # here, because most runs have no use for it

        return SimulatedModel(seed, latency)
    url = base_url or DEFAULT_BASE_URL
    keys = (api_key,) if isinstance(api_key, str) else tuple(api_key or ())
    require_keys(url, keys, headers=headers or ())
    from manyhands.models.openai.client import OpenAIChatModel

    return OpenAIChatModel(
        url,
        keys,
        prices=table,
        retries=retries,
        simulated=_simulated_name(model),
        max_tokens=max_tokens,
        headers=headers,
        provider_of=key_variable,
    )


def resolve_api_key(explicit: str | None, base_url: str | None, environ: Mapping[str, str]) -> str | None:
    """The key for an endpoint: the one given, else the one in the variable of its provider, else (for a host that is not a
    known provider's) the one in ``MANYHANDS_API_KEY``; None if there is none."""
    variable = key_variable(base_url or DEFAULT_BASE_URL)
    for value in (explicit, environ.get(variable)):
        if value and value.strip():
            return value.strip()
    return None


def resolve_api_keys(explicit: Sequence[str], base_url: Addresses, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The keys for all addresses (see ``paired``): those given, else those in the variables of their providers. Raises UserError if a file
    of addresses can't be read."""
    given = tuple(key for key in explicit if key.strip())
    if given:
        return given
    addresses = addresses_of(base_url)
    variables = list(dict.fromkeys(map(key_variable, addresses)))
    if len(variables) == 1 and (several := _several(environ.get(variables[0] + SEVERAL))):
        return several
    found = [resolve_api_key(None, address, environ) or "" for address in addresses]
    return tuple(found) if len(set(found)) > 1 else tuple(key for key in found[:1] if key)


def _several(text: str | None) -> tuple[str, ...]:
    return tuple(key for part in (text or "").split(",") if (key := part.strip()))


def key_variable(base_url: str) -> str:
    """The name of the environment variable for an endpoint's key."""
    return host_of(base_url).key_variable or OWN_KEY_VARIABLE


def home_url(model: str, environ: Mapping[str, str]) -> str | None:
    """Where a model is called that was named without an endpoint: at its own provider's, if there is a key for that and none for the usual
    endpoint; None for the usual one."""
    home = home_of(model)
    if home is None or not home.key_variable or resolve_api_keys((), DEFAULT_BASE_URL, environ):
        return None
    return home.base_url if home.base_url and resolve_api_keys((), home.base_url, environ) else None


def require_keys(
    base_url: Addresses,
    keys: Sequence[str],
    *,
    model: str = "",
    headers: Iterable[str] = (),
    environ: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raises UserError for an address that is none, one that lacks a key (see ``require_key``), and keys that don't go with the
    addresses."""
    try:
        addresses = [read_address(address) for address in addresses_of(base_url)]
    except ValueError as error:
        raise UserError(f"--base_url: {error}") from None
    try:
        pairs = paired(addresses, keys)
    except ValueError as error:
        raise UserError(f"--api_key: {error}") from None
    names = tuple(headers)
    for address, key in pairs:
        require_key(address, key, model=model, headers=names, environ=environ)


def require_key(
    base_url: str,
    api_key: str | None,
    *,
    model: str = "",
    headers: Iterable[str] = (),
    environ: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raises UserError if the endpoint is a known provider's and there is no key for it, nor one of the ``headers`` that take its place.
    ``model``: what is to be called there, and ``environ``: where there may be other keys, for the message."""
    if api_key:
        if not (api_key.isascii() and api_key.isprintable()):
            raise UserError("--api_key: the key holds characters that can't be sent in a header")
        return
    variable = key_variable(base_url)
    if variable == OWN_KEY_VARIABLE or any(map(is_key_header, headers)):
        return
    host = urlsplit(base_url).hostname
    elsewhere = _elsewhere(model, environ) if _is_default(base_url) else ""
    raise UserError(
        f"no key for {host}: set {variable}{elsewhere}, or give --api_key, or try --model simulated, which needs none"
    )


def is_key_header(name: str) -> bool:
    """Whether a header takes the place of a key."""
    return name.lower() in ("authorization", "api-key")


def _elsewhere(model: str, environ: Mapping[str, str]) -> str:
    """How the model may be called at its own provider's instead of at OpenRouter."""
    home, name = home_of(model), model.rpartition("/")[2]
    if home is not None and home.base_url:
        return f" (or {home.key_variable}, to call it at {urlsplit(home.base_url).hostname})"
    home = home_of(name)
    if home is None or not home.base_url or not environ.get(home.key_variable or ""):
        return ""
    return f" (as there is {home.key_variable}: {urlsplit(home.base_url).hostname} may have it as --model {name})"


def reasoning_settings(effort: str | None, disabled: bool) -> dict[str, Any] | None:
    """The value of ``ChatSettings.reasoning`` for the two options; ``disabled`` wins. None: nothing was requested.

    Raises UserError for an unknown effort.
    """
    if disabled:
        return {"effort": "none"}
    if effort is None or not effort.strip():
        return None
    chosen = effort.strip().lower()
    if chosen not in EFFORTS:
        raise UserError(f"--reasoning_effort: {effort!r} is none of {', '.join(EFFORTS)}")
    return {"effort": "none"} if chosen == "none" else {"enabled": True, "effort": chosen}


def _simulated_name(model: str) -> bool:
    return model == SIMULATED or model.startswith(f"{SIMULATED}/")


def _is_default(base_url: Addresses) -> bool:
    return isinstance(base_url, str) and base_url.strip().rstrip("/") == DEFAULT_BASE_URL
