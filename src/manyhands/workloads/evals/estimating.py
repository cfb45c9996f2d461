"""What an evaluation will take, estimated from its tests and the settings of its targets before any target is asked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from manyhands.core.jsonio import Json
from manyhands.core.text import counted, expand_home
from manyhands.models.estimate import Assumptions, Estimate, PerItem, Prompts, free
from manyhands.models.factory import is_simulated
from manyhands.models.pricing import PriceTable, load_price_table
from manyhands.workloads.evals.evalfile.contents import Test, entries_of, judge_needs
from manyhands.workloads.evals.evalfile.messages import question
from manyhands.workloads.evals.items import TestItem, plan_tests
from manyhands.workloads.evals.prepared import PreparedEval, chosen_names, load
from manyhands.workloads.evals.scheduling import slots
from manyhands.workloads.evals.settings import EvalSpec
from manyhands.workloads.evals.targets.definitions import TOOL_KEYS, Target

_OWN_TOKENS = 50
"""Tokens of a target's own system prompt."""
_JUDGING_TOKENS = 400
"""Tokens of what a judge is asked besides the test and its answer."""
_AGENT = "agent"
_MAX_TURNS = 10


@dataclass(slots=True)
class _Asked:
    """What one target is asked, and its judge."""

    prompts: Prompts = field(default_factory=Prompts)
    turns: int = 0
    judged: Prompts = field(default_factory=Prompts)


def estimate_eval(options: EvalSpec, environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """What the evaluation would take if its targets were really asked, in words: pairs of a label and text. Nothing is made, and nobody is
    asked.

    Raises UserError if the evaluation could not be made.
    """
    real = options.resolved().changed({"dry_run": False})
    loaded = load(real, environ, lambda text: None)
    prepared = loaded.prepared
    asked: defaultdict[tuple[int, str], _Asked] = defaultdict(_Asked)
    for planned in plan_tests(loaded.files, chosen_names(prepared), real.trials):
        if planned.outcome is None:
            item = TestItem.from_json(planned.payload)
            _ask(asked[item.file, item.target], item.test, prepared, item.file, item.target)
    lines: list[tuple[str, str]] = []
    total: Estimate | None = None
    prices = PriceTable() if real.prices is None else load_price_table(expand_home(real.prices))
    for (file, name), found in asked.items():
        target = prepared.target_of(file, name)
        lines.append((f"target {name}", f"{target.kind}, {counted(found.prompts.count, 'answer')}"))
        for estimate in _estimates(prepared, file, target, found, prices):
            total = estimate if total is None else total + estimate
    if any(not _is_known(prepared.target_of(file, name)) for file, name in asked):
        lines.append(("not included", "what commands and functions take, which is not known before"))
    return [*lines, *(() if total is None else total.lines())]


def _ask(asked: _Asked, test: Test, prepared: PreparedEval, file: int, name: str) -> None:
    turns = 1 if test.conversation is None else max(1, len(test.conversation.turns))
    turns_said = () if test.conversation is None else [question(turn.input) for turn in test.conversation.turns]
    said: Json = [*test.chat(), *turns_said]
    asked.prompts.add(said)
    asked.turns += turns
    judge = prepared.judge_of(file, prepared.target_of(file, name))
    graders = test.all_graders or entries_of(test, judged=judge is not None)
    for _ in range(sum(need.certain for need in judge_needs(graders))):
        asked.judged.add([test.question, test.criteria, test.reference_answer])


def _estimates(prepared: PreparedEval, file: int, target: Target, asked: _Asked, prices: PriceTable) -> list[Estimate]:
    """Of the answers, if a model gives them, and of their judge."""
    found, at_once = [], slots(prepared)
    if target.facts.calls_models:
        turns = asked.turns / asked.prompts.count
        each = _assumptions(target).per_item(asked.prompts.mean, _OWN_TOKENS)
        found.append(_priced(target, asked.prompts.count, _times(each, turns), at_once, prices))
    judge = prepared.judge_of(file, target)
    if judge is not None and judge.facts.calls_models and asked.judged.count:
        assumptions = Assumptions.of(tools=False, max_turns=1)
        each = assumptions.per_item(asked.judged.mean + assumptions.output_tokens, _JUDGING_TOKENS)
        found.append(_priced(judge, asked.judged.count, each, at_once, prices))
    return found


def _assumptions(target: Target) -> Assumptions:
    settings = target.settings
    turns, tokens = settings.get("max_turns"), settings.get("max_tokens")
    return Assumptions.of(
        tools=target.kind == _AGENT and any(settings.get(name) for name in TOOL_KEYS),
        max_turns=turns if isinstance(turns, int) else _MAX_TURNS,
        max_tokens=tokens if isinstance(tokens, int) else None,
    )


def _times(each: PerItem, turns: float) -> PerItem:
    """Of several turns."""
    return replace(
        each,
        calls=each.calls * turns,
        input_tokens=each.input_tokens * turns,
        output_tokens=each.output_tokens * turns,
        seconds=each.seconds * turns,
    )


def _priced(target: Target, count: int, each: PerItem, at_once: int, prices: PriceTable) -> Estimate:
    settings = target.settings
    model, base_url, named = settings.get("model"), settings.get("base_url"), settings.get("prices")
    if isinstance(named, str):
        prices = load_price_table(Path(target.folder) / expand_home(named))
    estimate = Estimate.of(count, each, at_once=at_once, model=model if isinstance(model, str) else None, prices=prices)
    return free(estimate) if isinstance(model, str) and is_simulated(model, base_url) else estimate


def _is_known(target: Target) -> bool:
    return target.facts.calls_models or target.facts.simulated or target.facts.one_file_for_all
