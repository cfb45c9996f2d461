"""The price table."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyhands.core.errors import UserError
from manyhands.core.usage import Usage
from manyhands.models.pricing import FREE, Price, PriceTable, load_price_table


@pytest.mark.parametrize(
    ("model", "same_as"),
    [
        ("anthropic/claude-sonnet-4.6", "claude-sonnet-4-6"),
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4.5"),
        ("openai/gpt-4o-2024-08-06", "gpt-4o"),
        ("openai/gpt-4o:nitro", "gpt-4o"),
        ("GPT-4o", "gpt-4o"),
    ],
)
def test_names_are_found_however_providers_write_them(model: str, same_as: str) -> None:
    table = PriceTable()
    assert table.price(model) is not None
    assert table.price(model) == table.price(same_as)


def test_an_unknown_model_has_no_price_and_a_free_one_costs_nothing() -> None:
    table = PriceTable()
    assert table.price("nobody/nothing") is None
    assert table.price("deepseek/deepseek-r1:free") == FREE
    assert table.priced(Usage(calls=1, input_tokens=5), "nobody/nothing", None).unpriced_calls == 1


def test_cached_and_written_tokens_have_their_own_prices() -> None:
    price = Price(10, 50, 1, 12.5)
    usage = Usage(input_tokens=1_000_000, cached_tokens=500_000, cache_write_tokens=100_000, output_tokens=10_000)
    assert price.cost(usage) == pytest.approx(4 + 0.5 + 1.25 + 0.5)
    assert Price(2, 4).cost(usage) == pytest.approx(2 + 0.04)
    assert price.worst_case(1_000_000, 10_000) >= price.cost(usage)


def test_the_servers_figure_wins() -> None:
    assert PriceTable().priced(Usage(input_tokens=10**6), "gpt-4o", 0.5).cost == 0.5
    assert PriceTable().priced(Usage(input_tokens=10**6), "gpt-4o", 0.0).cost == 0.0
    assert PriceTable().priced(Usage(input_tokens=10**6), "gpt-4o", None).cost == 2.5


@pytest.mark.parametrize("name", ["prices.yaml", "prices.json"])
def test_a_file_adds_and_overrides(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(
        '{"my/model": {"input": 1, "output": 2.5, "cached_input": 0.5}, "gpt-4o": {"input": 9, "output": 9}}'
    )
    table = load_price_table(path)
    assert table.price("my/model") == Price(1, 2.5, 0.5)
    assert table.price("openai/gpt-4o") == Price(9, 9)
    assert table.price("claude-sonnet-4.6") is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n", ", line 1: a price table maps"),
        ("a: 3\n", ", line 1: a: expected input and output"),
        ("a:\n  input: 1\n  output: x\n", r", line 3: a\.output: must be a number"),
        ("a:\n  input: 1\n  output: -1\n", r", line 3: a\.output: must be a number"),
        ("a:\n  input: .nan\n  output: 1\n", r", line 2: \.nan is no number"),
        ("a:\n  input: 1\n", r", line 1: a\.output: missing"),
        ("a:\n  input: 1\n  outptu: 1\n", r", line 3: a\.outptu: unknown field"),
        ("a: {input: 1\nb: [\n", r"prices\.yaml, line \d: not valid YAML"),
    ],
)
def test_a_bad_file_is_refused_naming_line_and_field(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        load_price_table(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"can't read .*none\.yaml: No such file"):
        load_price_table(tmp_path / "none.yaml")
