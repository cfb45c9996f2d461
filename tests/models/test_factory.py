"""From options to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.models.addresses import read_address
from manyhands.models.factory import (
    DEFAULT_BASE_URL,
    EFFORTS,
    is_simulated,
    make_model,
    reasoning_settings,
    resolve_api_key,
)
from manyhands.models.openai.client import OpenAIChatModel
from manyhands.models.simulated.model import SimulatedModel

KEYS = {
    "OPENROUTER_API_KEY": "router",
    "OPENAI_API_KEY": "openai",
    "ANTHROPIC_API_KEY": "anthropic",
    "NOUS_API_KEY": "nous",
    "MANYHANDS_API_KEY": "own",
}


@pytest.mark.parametrize(
    ("base_url", "key"),
    [
        (None, "router"),
        (DEFAULT_BASE_URL, "router"),
        ("https://api.openai.com/v1", "openai"),
        ("https://api.anthropic.com/v1", "anthropic"),
        ("https://inference-api.nousresearch.com/v1", "nous"),
        ("http://localhost:8000/v1", "own"),
        ("https://openrouter.ai.evil.example/v1", "own"),
        ("https://notopenrouter.ai/v1", "own"),
        ("https://evil.example/openrouter.ai", "own"),
    ],
)
def test_a_key_goes_to_its_own_provider_only(base_url: str | None, key: str) -> None:
    assert resolve_api_key(None, base_url, KEYS) == key
    assert resolve_api_key("given", base_url, KEYS) == "given"
    others = {name: value for name, value in KEYS.items() if value != key}
    assert resolve_api_key(" ", base_url, others) is None


@pytest.mark.parametrize("model", ["simulated", "simulated/quick"])
def test_the_simulated_model(model: str) -> None:
    assert isinstance(make_model(model=model), SimulatedModel)
    assert isinstance(make_model(model=model, base_url=DEFAULT_BASE_URL), SimulatedModel)
    served = make_model(model=model, base_url="http://localhost:1/v1")
    assert isinstance(served, OpenAIChatModel)
    assert served.simulated
    assert not is_simulated("simulated-annealing")


def test_a_given_base_url_needs_no_key() -> None:
    model = make_model(model="m", base_url="http://localhost:1/v1")
    assert isinstance(model, OpenAIChatModel)
    assert model.endpoint.base_url == "http://localhost:1/v1"
    assert not model.simulated


def test_openrouter_without_a_key_is_one_line_with_the_choices() -> None:
    with pytest.raises(UserError) as caught:
        make_model(model="anthropic/claude-sonnet-4.6")
    message = str(caught.value)
    assert "\n" not in message
    for name in ("OPENROUTER_API_KEY", "--api_key", "--model simulated"):
        assert name in message
    assert make_model(model="anthropic/claude-sonnet-4.6", api_key="k")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": " "}, "--model"),
        ({"model": "m", "base_url": "localhost:8000"}, "--base_url"),
        ({"model": "m", "base_url": "ftp://x/"}, "--base_url"),
        ({"model": "m", "base_url": "http://h:99999/"}, "--base_url"),
        ({"model": "m", "base_url": "http://me:password@h/"}, "--base_url: must not hold a name and password"),
        ({"model": "m", "base_url": "http://h/v1?key=k"}, "--base_url: must not hold a key"),
        ({"model": "m", "base_url": "http://h/", "api_key": "a\nb"}, "--api_key"),
        ({"model": "m", "base_url": "http://h/", "prices": "/nonexistent.yaml"}, "price table"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_model(**options)


def test_prices_are_read(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text("m: {input: 1, output: 2}\n")
    assert make_model(model="m", base_url="http://h/", prices=str(path))
    assert read_address(" http://h/v1 ") == "http://h/v1"


def test_reasoning_settings() -> None:
    assert reasoning_settings(None, False) is None
    assert reasoning_settings("", False) is None
    assert reasoning_settings("high", True) == {"effort": "none"}
    assert reasoning_settings("none", False) == {"effort": "none"}
    for effort in EFFORTS[1:]:
        assert reasoning_settings(effort, False) == {"enabled": True, "effort": effort}
    with pytest.raises(UserError, match="none, minimal, low, medium, high, xhigh, max, ultra"):
        reasoning_settings("extreme", False)
