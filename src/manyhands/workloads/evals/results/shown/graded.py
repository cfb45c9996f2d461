"""A test's result as parts of a page: what was asked and expected, what was answered, and what each grader found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

from manyhands.core.jsonio import Json, as_text, pretty
from manyhands.core.messages import Message
from manyhands.core.text import printable
from manyhands.graders.messages import tool_uses_of
from manyhands.graders.protocol import ScoreRecord
from manyhands.runs.shown.blocks import Block, Cell, Column, Fact, Facts, Fold, Link, Messages, Note, Table, Text, Value
from manyhands.runs.shown.collected import collected_blocks
from manyhands.workloads.evals.items import FAILED, PASSED
from manyhands.workloads.evals.results.recorded_output import content_text, turns_of_output
from manyhands.workloads.evals.results.result_lines import TestResult
from manyhands.workloads.evals.results.shown.result_cells import name_text, score_cell, status_cell, tone_of
from manyhands.workloads.evals.targets.answer_figures import FIGURES

MAX_TEXT = 20_000
"""Characters of a text that are shown where there is a budget."""
MIN_TEXT = 200
"""Characters of a text that are shown even where the budget is spent."""
_HITS = (Column("sign", ""), Column("found", "found"))
_TRIALS = (
    Column("trial", "trial", is_number=True),
    Column("status", "status"),
    Column("score", "score", is_number=True),
    Column("said", "answer or error"),
)
_GRADERS = (
    Column("grader", "grader"),
    Column("type", "type"),
    Column("score", "score", is_number=True),
    Column("weight", "weight", is_number=True),
    Column("verdict", "verdict"),
    Column("required", "required", is_number=True, about="the score below which the whole test has 0"),
)
_FIGURES = {"token_usage": "tokens", "cost_usd": "cost", "duration_ms": "time"}
_OF_VERDICTS = {"pass": PASSED, "fail": FAILED}


class TextBudget:
    """How many characters the texts of a test may take, about; None for no limit."""

    def __init__(self, characters: int | None = None) -> None:
        self._left = characters

    @property
    def is_spent(self) -> bool:
        return self._left is not None and self._left <= 0

    def cut(self, value: Json) -> str:
        """A value's text, of anything but a text its JSON; cut where it is too long."""
        text = value if isinstance(value, str) else pretty(value)
        if self._left is None:
            return text
        shown = text[: min(MAX_TEXT, max(MIN_TEXT, self._left))]
        self._left -= len(shown)
        return f"{shown}… ({len(text) - len(shown):,} more characters)" if len(shown) < len(text) else shown


UNLIMITED = TextBudget()


def result_blocks(result: TestResult, budget: TextBudget = UNLIMITED) -> Iterator[Block]:
    """All that is known of a result. What graders found comes first, and has the first share of the budget."""
    yield Facts([*_facts(result, budget)])
    if result.error:
        yield Text(budget.cut(result.error), "Error")
    yield from (Note(budget.cut(notice), "warn") for notice in result.notices or ())
    yield from grader_blocks(result.scores or (), budget)
    yield from trial_blocks(result, budget)
    if result.criteria:
        yield Text(budget.cut(result.criteria), "Criteria")
    yield from _messages("Input", result.input, budget)
    yield from _messages("Expected", result.expected_output or (), budget)
    yield from _answer(result, budget)
    yield from _turns(result, budget)
    if result.file_changes:
        yield Text(budget.cut(result.file_changes), "File changes", "diff")
    yield from collected_blocks({"output": budget.cut(result.collected or ""), "problem": result.collected_problem})
    yield from _surroundings(result, budget)


# --- Facts


def _facts(result: TestResult, budget: TextBudget) -> Iterator[Fact]:
    yield Fact("status", status_cell(result.status))
    yield Fact("score", score_cell(result.score, tone_of(result.status)))
    if result.threshold is not None:
        yield Fact(
            "limit", Cell(f"{result.threshold:g}", result.threshold), "the score from which on the test has passed"
        )
    for label, text in _names(result):
        if text:
            yield Fact(label, Cell(budget.cut(text)))
    for figure in reversed(FIGURES):
        value = getattr(result, figure.name)
        if value is not None and value != {}:
            label = _FIGURES.get(figure.name, figure.name)
            yield Fact(label, Cell(figure.shown(value).removeprefix(f"{label}: ")))
    if (of := result.aggregation) is not None:
        trials = f"{of['passed_attempts']} of {of['total_attempts']} trials passed ({of['strategy'].replace('_', ' ')})"
        yield Fact("trials", Cell(trials, about=_aggregated(of)))
    if result.attempts is not None:
        yield Fact("attempts", Cell(f"{result.attempts:,}", result.attempts), "how often it was attempted")
    for note in (result.simulated_label, result.reroll_label):
        if note is not None:
            yield Fact("note", Cell(note, tone="warn"))


def _aggregated(of: Mapping[str, Any]) -> str:
    """The figures of several trials besides those that everybody wants."""
    known = ("strategy", "passed_attempts", "total_attempts")
    return ", ".join(f"{name.replace('_', ' ')} {_figure(value)}" for name, value in of.items() if name not in known)


def _figure(value: Any) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def _names(result: TestResult) -> Iterator[tuple[str, str]]:
    yield "test", result.test_id or ""
    yield "target", result.target or ""
    yield "dataset", result.dataset
    yield "category", category_of(result.metadata)
    yield "tags", ", ".join(map(str, result.tags or ()))
    yield "group", result.group or ""
    yield "conversation", result.conversation_id or ""
    yield "depends on", ", ".join(result.depends_on or ())
    yield "failed dependencies", ", ".join(result.failed_dependencies or ())
    yield "cause", (result.cause or "").replace("_", " ")
    yield "workspace", result.workspace_path or ""


def category_of(metadata: Mapping[str, Any] | None) -> str:
    """The category that a test's metadata name; empty without one."""
    found = (metadata or {}).get("category")
    return found if isinstance(found, str) else ""


# --- Graders


def grader_blocks(scores: Sequence[ScoreRecord], budget: TextBudget = UNLIMITED) -> Iterator[Block]:
    """What graders found: a table of all, members of composites below their own, and a part for each."""
    if not scores:
        return
    yield Table(_GRADERS, [*_grader_rows(scores, 0, budget)], "Scores")
    yield from (_grader(score, budget) for score in scores)


def _grader_rows(scores: Sequence[ScoreRecord], depth: int, budget: TextBudget) -> Iterator[list[Cell]]:
    for score in scores:
        verdict = _verdict(score)
        yield [
            Cell(f"{'› ' * depth}{name_text(score['name'])}"),
            Cell(name_text(score["type"])),
            score_cell(score["score"], verdict.tone),
            Cell(f"{score['weight']:g}", score["weight"]),
            verdict,
            Cell(f"{score['required']:g}", score["required"]) if "required" in score else Cell(""),
        ]
        yield from _grader_rows(score.get("scores", ()), depth + 1, budget)


def _verdict(score: ScoreRecord) -> Cell:
    verdict = score["verdict"]
    if score.get("error"):
        return Cell("! error", verdict, "warn")
    if score["score"] is None:
        return Cell("– left out", verdict, "muted")
    if verdict in _OF_VERDICTS:
        return Cell(f"{'✓' if verdict == 'pass' else '✗'} {verdict}", verdict, tone_of(_OF_VERDICTS[verdict]))
    return Cell(name_text(verdict or "–"), verdict, "warn" if verdict == "borderline" else "muted")


def _grader(score: ScoreRecord, budget: TextBudget) -> Fold:
    verdict = _verdict(score)
    weight = f"weight {score['weight']:g}"
    cells = (
        verdict,
        score_cell(score["score"], verdict.tone),
        Cell(name_text(score["type"])),
        Cell(weight, tone="muted"),
    )
    blocks = [*_found(score, budget)]
    return Fold(name_text(score["name"]), blocks, cells=cells, is_open=score["verdict"] != "pass" and bool(blocks))


def _found(score: ScoreRecord, budget: TextBudget) -> Iterator[Block]:
    rows = [[Cell("✓", tone="good"), Cell(budget.cut(hit))] for hit in score["hits"]]
    rows += [[Cell("✗", tone="bad"), Cell(budget.cut(miss))] for miss in score["misses"]]
    if rows:
        yield Table(_HITS, rows)
    if score.get("min_score") is not None:
        yield Note(f"passes from {score['min_score']:g} on", "muted")
    if score.get("error"):
        yield Text(budget.cut(score["error"]), "Error")
    if score.get("left_out"):
        yield Note(budget.cut(score["left_out"]), "muted")
    if score.get("reasoning"):
        yield Text(budget.cut(score["reasoning"]), "Reasoning")
    if score.get("simulated"):
        yield Note("a simulated model had a say in it", "warn")
    yield from _value("Evidence", score.get("details"), budget)
    yield from (_grader(member, budget) for member in score.get("scores", ()))


def _value(title: str, value: Any, budget: TextBudget) -> Iterator[Block]:
    """A JSON value; as text, cut, where it does not fit."""
    if not value:
        return
    text = budget.cut(value)
    yield Value(value, title) if text == pretty(value) else Text(text, title)


# --- Trials, conversation


def trial_blocks(
    result: TestResult, budget: TextBudget = UNLIMITED, links: Mapping[int, Link] = MappingProxyType({})
) -> Iterator[Block]:
    """The trials of a test, where it has several. ``links``: where each leads, by its number from 0."""
    if not result.trials:
        return
    rows = [
        [
            Cell(str(trial["attempt"] + 1), trial["attempt"] + 1, link=links.get(trial["attempt"])),
            status_cell(trial["status"]),
            score_cell(trial.get("score"), tone_of(trial["status"])),
            Cell(budget.cut(trial.get("error") or trial.get("answer") or "")),
        ]
        for trial in result.trials
    ]
    yield Table(_TRIALS, rows, "Trials")


def _messages(title: str, messages: Sequence[Mapping[str, Any]], budget: TextBudget) -> Iterator[Block]:
    if not messages:
        return
    every = messages_of(messages)
    found, left = list[Message](), len(every)
    for message in every:
        if budget.is_spent and found:
            break
        found.append(_cut(message, budget))
        left -= 1
    yield Messages(found, title)
    if budget.is_spent and left > 0:
        yield Note(f"… and {left:,} more", "muted")


def messages_of(recorded: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Messages as a test or a target has them, as chat completions have them: tool calls with their results behind them, any content that
    is no text as JSON."""
    found = list(recorded)
    if any(message.get("tool_calls") for message in found):
        return [turn.message for turn in turns_of_output(found)]
    return [
        cast(Message, {"role": str(message.get("role", "")), "content": _content(message.get("content"))})
        for message in found
    ]


def _content(content: Any) -> str:
    text = content_text(content)
    return pretty(content) if isinstance(content, (dict, list)) and text == as_text(content) else text


def _cut(message: Message, budget: TextBudget) -> Message:
    cut = cast(Message, {**message, "content": budget.cut(message.get("content") or "")})
    if calls := message.get("tool_calls"):
        cut["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": budget.cut(call["function"]["arguments"])}}
            for call in calls
        ]
    return cut


def _answer(result: TestResult, budget: TextBudget) -> Iterator[Block]:
    output = result.output or ()
    if len(output) == 1 and not output[0].get("tool_calls") and output[0].get("content") == result.answer:
        output = ()
    if output:
        yield from _messages("Output", output, budget)
        yield from _timed_calls(output)
    elif result.answer:
        yield Text(budget.cut(result.answer), "Answer", "markdown")


def _timed_calls(output: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    """How long tool calls took, where that was measured."""
    timed = [use for use in tool_uses_of(output) if use.duration_ms is not None]
    if timed:
        columns = (Column("tool", "tool"), Column("time", "time", is_number=True))
        rows = [[Cell(name_text(use.tool)), Cell(f"{use.duration_ms:,g} ms", use.duration_ms)] for use in timed]
        yield Table(columns, rows, "Tool calls")


def _turns(result: TestResult, budget: TextBudget) -> Iterator[Block]:
    """Of a conversation, how each turn was scored."""
    for turn in result.turns or ():
        score, verdict = cast("float | None", turn.get("score")), str(turn.get("verdict") or "")
        tone = tone_of(_OF_VERDICTS.get(verdict, ""))
        cells = (Cell(name_text(verdict or "–"), tone=tone), score_cell(score, tone))
        blocks: list[Block] = [*_messages("Input", cast("list[dict[str, Json]]", turn.get("input") or ()), budget)]
        for name, title in (("answer", "Answer"), ("error", "Error")):
            if turn.get(name):
                blocks.append(Text(budget.cut(turn[name]), title))
        yield Fold(f"turn {turn.get('turn')}", blocks, cells=cells)


def _surroundings(result: TestResult, budget: TextBudget) -> Iterator[Block]:
    """What is less often wanted."""
    hooks = ("before_all_output", "before_each_output", "after_each_output", "after_all_output")
    for name in hooks:
        if printed := getattr(result, name):
            yield Text(budget.cut(printable(printed)), f"Printed by the hook {name.removesuffix('_output')}")
    more = [
        block
        for title, value in (("Trace", result.trace), ("Metadata", result.metadata))
        for block in _value(title, value, budget)
    ]
    if more:
        yield Fold("Trace and metadata", more)
