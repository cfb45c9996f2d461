"""Estimates: what they assume, what they take from earlier runs, and how they are said."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyhands.models.estimate import Assumptions, Estimate, PerItem, Prompts, free, measured, tokens_of
from manyhands.models.pricing import Price, PriceTable
from tests.support.batches import run_command

PRICES = PriceTable({"m": Price(2.0, 10.0)})


def test_prompts_are_counted_by_bytes() -> None:
    assert [tokens_of(text) for text in ("", "abcd", "abcde", "日本")] == [0, 1, 2, 2]
    prompts = Prompts()
    prompts.add("abcdefgh", times=3)
    prompts.add([{"role": "user", "content": "x"}])
    assert (prompts.count, prompts.tokens, Prompts().mean) == (4, 6 + 8, 0.0)


def test_each_call_sends_the_conversation_again() -> None:
    one = Assumptions.of(tools=False, max_turns=30, max_tokens=100).per_item(50, 10)
    assert (one.calls, one.input_tokens, one.output_tokens) == (1, 60, 100)
    several = Assumptions(calls=3, output_tokens=100, seconds=2).per_item(50, 10)
    assert several.input_tokens == 60 + (60 + 700) + (60 + 1400)
    assert (several.output_tokens, several.seconds) == (300, 6)
    assert Assumptions.of(tools=True, max_turns=2).calls == 2


def test_dollars_and_time() -> None:
    each = PerItem(2, 1000, 200, 8.0, ("a guess",))
    found = Estimate.of(10, each, at_once=4, model="m", prices=PRICES)
    assert found.dollars == pytest.approx(10 * (1000 * 2 + 200 * 10) / 1e6)
    assert found.seconds == 20.0
    assert Estimate.of(2, each, at_once=64, model="m", prices=PRICES).seconds == 8.0
    unknown = Estimate.of(10, each, at_once=4, model="nobody/knows", prices=PRICES)
    assert unknown.dollars is None
    assert (found + unknown).dollars is None
    assert (found + found).calls == 40
    assert free(unknown).dollars == 0.0
    assert dict(found.lines()) == {
        "model calls": "about 20",
        "tokens": "about 10,000 in, 2,000 out",
        "dollars": "about $0.04",
        "time": "about 20 seconds",
        "estimated by": "a guess",
    }
    assert dict(unknown.lines())["dollars"] == "not known: no price (--prices)"


def test_an_earlier_run_counts_more_than_assumptions(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": "c"}\n', encoding="utf-8")
    options = ("--dataset_file=p.jsonl", "--batch_size=3", "--model=simulated", "--executor=local")
    estimate = run_command(tmp_path, "batch", *options, "--run_name=y", "--dry_run")
    assert (estimate.code, estimate.err) == (0, "")
    assert "4 bytes a token" in estimate.out
    assert {path.name for path in tmp_path.iterdir()} == {"p.jsonl"}
    assert run_command(tmp_path, "batch", *options, "--run_name=x", "--quiet").code == 0
    assert "what 3 items of the run x took" in run_command(tmp_path, "batch", *options, "--run_name=y", "--dry_run").out
    assert measured(tmp_path / "data", "trajectories", lambda spec: False) is None
    assert measured(tmp_path / "data", "evals", lambda spec: True) is None
    assert measured(tmp_path / "none", "trajectories", lambda spec: True) is None
