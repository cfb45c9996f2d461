"""A batch's figures as parts of a page: all that ``statistics.json`` and ``checkpoint.json`` hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from manyhands.runs.shown.blocks import (
    Block,
    Cell,
    Chart,
    Column,
    Fact,
    Facts,
    Fold,
    Link,
    Note,
    Section,
    Series,
    Table,
    Text,
)
from manyhands.runs.shown.cells import STATE_TONES, VERDICT_TONES, is_number, number_cell, value_cell

_MAX_ROWS = 200
"""Rows of a table."""
_MAX_BARS = 30
"""Tools in the chart."""
_COUNT = Column("count", "Count", is_number=True)
_TOOLS = (
    Column("tool", "Tool"),
    Column("calls", "Calls", is_number=True),
    Column("success", "Successes", is_number=True),
    Column("failure", "Failures", is_number=True),
    Column("success_rate", "Success rate", is_number=True, about="Percent of its calls."),
    Column("failure_rate", "Failure rate", is_number=True, about="Percent of its calls."),
)
_MAKERS = (
    Column("program", "Program"),
    Column("model", "Model"),
    Column("trajectories", "Trajectories", is_number=True),
    Column("system", "System prompt of"),
    Column("digest", "Its digest"),
)
_BATCHES = (
    Column("batch", "Batch", is_number=True),
    Column("processed", "Processed", is_number=True),
    Column("skipped", "Skipped", is_number=True),
    Column("discarded", "Discarded without reasoning", is_number=True),
)
_GENERAL = {
    "total_prompts": ("Prompts", "Usable rows of the dataset."),
    "total_batches": ("Batches", ""),
    "batch_size": ("Batch size", "Prompts in a batch."),
    "samples": ("Samples", "Trajectories per prompt."),
    "api_calls": ("Model calls", "Of completed trajectories."),
    "adopted": ("Adopted", "Trajectories that the original program made."),
    "skipped_rows": ("Skipped rows", "Rows of the dataset that can't be used."),
    "removed_items": ("Removed items", "Items of rows that the dataset lost."),
    "not_best": ("Not the best", "Trajectories that are not the best of their prompt."),
    "kept_without_reasoning": ("Kept without reasoning", "Trajectories without any reasoning that are kept."),
    "discarded_no_reasoning": ("Discarded without reasoning", "Trajectories in which no turn has any reasoning."),
}
_USAGE = {
    "calls": "Calls",
    "input_tokens": "Tokens in",
    "output_tokens": "Tokens out",
    "cached_tokens": "Cached tokens",
    "cache_write_tokens": "Tokens written to the cache",
    "reasoning_tokens": "Reasoning tokens",
    "unpriced_calls": "Calls without a price",
    "simulated_calls": "Simulated calls",
}
_COUNTED = (
    ("items", "Items", "state", "state"),
    ("discarded", "Discarded, by reason", "reason", "detail"),
    ("failures", "Failures, by cause", "cause", "detail"),
    ("stop_reasons", "Stop reasons of trajectories", "stop reason", "stop"),
)
"""Members that count by name: the title, what the names are, and the filter of the table of items that finds them."""


def statistics_sections(found: Mapping[str, Any]) -> Iterator[Section]:
    """All that ``statistics.json`` holds. What is not as it is written there is left out."""
    yield Section("Batch", list(_general(found)))
    if tools := _object(found.get("tool_statistics")):
        yield Section("Tools", list(_tools(tools)), about="Calls in completed trajectories.")
    else:
        yield Section("Tools", [Note("No tool was called in a completed trajectory.", "muted")])
    yield Section("Reasoning", [_reasoning(_object(found.get("reasoning_statistics")))])
    counts = (_counts(_object(found.get(name)), *rest) for name, *rest in _COUNTED)
    ends = [each for each in counts if each is not None]
    yield Section("Ends", ends or [Note("There are no items.", "muted")])
    if (scores := found.get("scores")) is not None:
        yield Section("Scores", list(_scores(_object(scores))))
    makers = [each for each in _list(found.get("made_by")) if isinstance(each, Mapping)]
    if makers:
        yield Section(
            "Made by", list(_makers(makers)), about="What program, model and system prompt made trajectories."
        )


def checkpoint_section(found: Mapping[str, Any]) -> Section:
    """All that ``checkpoint.json`` holds, of its lists the number of entries or the first ones."""
    batches = _object(found.get("batch_stats"))
    facts = [
        Fact(
            "Completed prompts",
            number_cell(len(_list(found.get("completed_prompts")))),
            "All their samples ended well.",
        ),
        Fact("Batches", number_cell(len(batches))),
        Fact("Last updated", value_cell(found.get("last_updated"))),
    ]
    rows = [
        [value_cell(name), *(number_cell(_object(stats).get(each)) for each in ("processed", "skipped", _NO_REASONING))]
        for name, stats in islice(batches.items(), _MAX_ROWS)
    ]
    blocks: list[Block] = [Facts(facts)]
    if rows:
        blocks.append(Table(_BATCHES, rows, title="Batches", about=_first(len(rows), len(batches))))
    return Section(
        "Checkpoint", blocks, about="For programs that read the original's; to go on with the run it is not needed."
    )


_NO_REASONING = "discarded_no_reasoning"


def _general(found: Mapping[str, Any]) -> Iterator[Block]:
    words = [("run_name", "Run"), ("distribution", "Distribution"), ("model", "Model"), ("completed_at", "Written at")]
    facts = [Fact(label, value_cell(found[name])) for name, label in words if name in found]
    facts += [
        Fact(label, number_cell(found[name]), about) for name, (label, about) in _GENERAL.items() if name in found
    ]
    facts.append(Fact("Seconds of work", number_cell(found.get("duration_seconds"), ",.1f"), "All sessions together."))
    yield Facts(facts)
    usage = _object(found.get("usage"))
    used = [Fact(label, number_cell(usage[name])) for name, label in _USAGE.items() if name in usage]
    used.append(Fact("Cost", _dollars(found.get("cost"))))
    yield Facts(used, title="Used by the whole run")
    if found.get("simulated"):
        yield Note("A simulated model answered.", "warn")
    if tags := _object(found.get("escaped_tags")):
        about = "Tags inside of texts that were escaped."
        yield Facts(
            [
                Fact("Tags", number_cell(tags.get("tags")), about),
                Fact("Trajectories with any", number_cell(tags.get("trajectories"))),
            ],
            title="Escaped tags",
        )


def _dollars(cost: Any) -> Cell:
    return Cell(f"${cost:,.4f}", float(cost)) if is_number(cost) else Cell("")


def _tools(tools: Mapping[str, Any]) -> Iterator[Block]:
    figures = {name: _object(each) for name, each in tools.items()}
    most = sorted(figures.items(), key=lambda each: (-_number(each[1].get("count")), each[0]))
    rows = [
        [
            value_cell(name),
            number_cell(each.get("count")),
            number_cell(each.get("success")),
            number_cell(each.get("failure"), tone="bad" if each.get("failure") else "muted"),
            number_cell(each.get("success_rate"), ".2f"),
            number_cell(each.get("failure_rate"), ".2f"),
        ]
        for name, each in most[:_MAX_ROWS]
    ]
    yield Table(_TOOLS, rows, about=_first(len(rows), len(most)), sort="-calls")
    shown = most[:_MAX_BARS]
    yield Chart(
        "bars",
        "Calls by tool",
        [
            Series("successes", [(name, _number(each.get("success"))) for name, each in shown], tone="good"),
            Series("failures", [(name, _number(each.get("failure"))) for name, each in shown], tone="bad"),
        ],
        "tool",
        "calls",
        x_kind="name",
        about=_first(len(shown), len(most)),
        horizontal=True,
    )


def _reasoning(found: Mapping[str, Any]) -> Block:
    turns, reasoned = found.get("total_assistant_turns"), found.get("turns_with_reasoning")
    facts = [
        Fact("Assistant turns", number_cell(turns)),
        Fact("With reasoning", number_cell(reasoned)),
        Fact("Without", number_cell(found.get("turns_without_reasoning"))),
    ]
    if _number(turns):
        facts.append(Fact("Share with reasoning", number_cell(_number(reasoned) / _number(turns), ".1%")))
    return Facts(facts, title="Turns of completed trajectories")


def _counts(found: Mapping[str, Any], title: str, noun: str, filtered_by: str) -> Table | None:
    """Counts by name, the largest first, each a way to these items."""
    rows = [
        [
            value_cell(name, tone=STATE_TONES.get(name, ""), link=Link(query={filtered_by: name})),
            number_cell(count),
        ]
        for name, count in sorted(found.items(), key=lambda each: -_number(each[1]))[:_MAX_ROWS]
        if count
    ]
    return Table((Column("name", noun.capitalize()), _COUNT), rows, title=title) if rows else None


def _scores(scores: Mapping[str, Any]) -> Iterator[Block]:
    yield Facts(
        [
            Fact("Graded", number_cell(scores.get("graded"))),
            Fact("Mean score", number_cell(scores.get("mean"), ".3f"), "From 0 to 1."),
        ]
    )
    verdicts = _object(scores.get("verdicts"))
    rows = [
        [value_cell(name, tone=VERDICT_TONES.get(name, ""), link=Link(query={"verdict": name})), number_cell(count)]
        for name, count in islice(verdicts.items(), _MAX_ROWS)
    ]
    yield Table((Column("verdict", "Verdict"), _COUNT), rows)


def _makers(makers: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    rows = [
        [
            value_cell(each.get("program")),
            value_cell(each.get("model")),
            number_cell(each.get("trajectories")),
            value_cell(each.get("system_prompt_of")),
            value_cell(each.get("system_prompt_digest")),
        ]
        for each in makers[:_MAX_ROWS]
    ]
    yield Table(_MAKERS, rows)
    for each in makers[:_MAX_ROWS]:
        if isinstance(prompt := each.get("system_prompt"), str) and prompt:
            yield Fold(f"System prompt {each.get('system_prompt_digest', '')}".strip(), [Text(prompt)])


def _first(shown: int, there: int) -> str:
    return "" if shown == there else f"The first {shown:,} of {there:,}."


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> float:
    return float(value) if is_number(value) else 0.0
