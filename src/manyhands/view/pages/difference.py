"""The page of two items side by side: attempts or samples of a prompt, two targets, the same item in two runs, or any others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

from manyhands.core.errors import ManyhandsError
from manyhands.core.messages import Message
from manyhands.core.text import counted
from manyhands.engine.contract import ItemRow
from manyhands.engine.journal.browsing import JournalBrowser
from manyhands.runs.listing import item_details
from manyhands.runs.shown.blocks import Block, Cell, Column, Fold, Link, Table
from manyhands.runs.summaries import ItemSummary
from manyhands.view.conversation import ConversationReader, ShownMessage, ShownStep, ShownText, digest_of
from manyhands.view.difference import Op, Pair, Spans, difference, message_parts
from manyhands.view.pages.item import Described
from manyhands.view.pages.item_table import ShownItem, all_columns, shown_items
from manyhands.view.pages.page import Page, Query, Site, view_for, whole_number
from manyhands.view.rendering import money
from manyhands.view.source import NotFound, ShownRun

Kind: TypeAlias = Literal["equal", "changed", "unknown", "only-left", "only-right"]
"""How two turns are to each other. Unknown: what was read of both is equal, but of one at least that was not all."""
MAX_STEPS = 300
"""Steps at the beginning of an attempt that are compared, about: pages of them are read as a whole, and the results of tools stand with
their calls."""
MAX_TEXT = 8_000
"""Characters of a part of a message that are shown."""
MAX_PAIRS = 60
"""Turns of a page."""
MAX_SHOWN = 60_000
"""Characters of a page's messages, about: a turn for which there is no room begins the next page. Of one for which a page is too small the
beginning is shown."""
_MIN_TEXT = 200
_AROUND = 160
"""Characters that are shown at either end of a long stretch that both sides have, where only differences are shown."""
_MAX_PROPOSED = 20
_MAX_RUNS_LOOKED_AT = 30
_SECONDS = 5.0
_KINDS: Mapping[Kind, str] = {
    "equal": "equal",
    "changed": "with differences",
    "unknown": "not compared whole",
    "only-left": "only at the left",
    "only-right": "only at the right",
}
_LEFT_OUT = frozenset({"input", "outcome", "item", "label"})
"""Columns of the table of items that say nothing where two items are compared."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A message, and where it is from."""

    message: Message
    scope: str = ""
    step: int | None = None
    """The id of the step that holds it, if one does."""
    texts: Mapping[str, ShownText] = field(default_factory=dict)
    """Of its parts that come from a step, by their names as ``message_parts`` has them, what was read: of long ones the beginning, which is
    what the message holds."""

    @property
    def is_cut(self) -> bool:
        """Whether there is more of it."""
        return any(text.left_out for text in self.texts.values())


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two items."""

    run: ShownRun
    summary: ItemSummary
    attempt: int
    columns: Sequence[Column]
    cells: Mapping[str, Cell]
    placed: Sequence[Placed]
    """Its messages, in order."""
    steps: int
    """Steps of the attempt."""
    left_out: int
    """Of these, how many are not compared."""

    @property
    def name(self) -> str:
        """What it is called in an address."""
        return f"{self.run.id}:{self.summary['item']}"

    @property
    def messages(self) -> list[Message]:
        """What is lined up."""
        return [each.message for each in self.placed]


@dataclass(frozen=True, slots=True)
class ShownPart:
    """A part of a message: its name and its stretches, of which some may be left out."""

    name: str
    spans: Sequence[tuple[Op | None, str]]
    """Stretches with what they are; None: a remark on what is left out."""


@dataclass(frozen=True, slots=True)
class ShownSide:
    """A message of one side."""

    role: str
    scope: str
    step: int | None
    parts: Sequence[ShownPart]


@dataclass(frozen=True, slots=True)
class ShownPair:
    """Two messages beside each other."""

    kind: Kind
    left: ShownSide | None
    right: ShownSide | None


async def difference_page(site: Site, query: Query) -> Page:
    """Two items: ``a`` and ``b``, each as RUN:NUMBER. ``attempt_a``, ``attempt_b``: which attempts, by default the latest ones;
    ``only=changed``: without turns that are equal; ``turn``: the number of the one that the page begins with, from 1. With ``a`` alone,
    what it may be compared with."""
    left = await _side(site, query, "a")
    if not query.get("b"):
        return await _choice(site, left)
    right = await _side(site, query, "b")
    found = await difference(left.messages, right.messages)
    only_changed = query.get("only") == "changed"
    asked = {name: query[name] for name in ("a", "b", "attempt_a", "attempt_b") if query.get(name)}
    judged = [(pair, _kind(pair, left, right)) for pair in found.pairs]
    counts = Counter(kind for _, kind in judged)
    note = " ".join(filter(None, (found.note, _not_compared(counts["unknown"]))))
    chosen = [(pair, kind) for pair, kind in judged if not (only_changed and kind == "equal")]
    first = max(1, whole_number(query.get("turn")) or 1)
    rest = chosen[first - 1 :]
    pairs = await site.runs.in_thread(lambda: _shown_pairs(left, right, rest, only_changed=only_changed))
    behind = first + len(pairs)
    shown = {"first": first if pairs else 0, "last": behind - 1, "count": len(chosen)}
    following = behind if len(pairs) < len(rest) else None
    figures = _figures(left, right)
    values = {
        "left": left,
        "right": right,
        "figures": figures,
        "pairs": pairs,
        "shown": shown,
        "following": following,
        "counts": [(label, counts[kind]) for kind, label in _KINDS.items() if counts[kind]],
        "note": note,
        "asked": asked,
        "only_changed": only_changed,
        "swapped": _swapped(asked),
    }
    data = {
        "left": _side_json(left),
        "right": _side_json(right),
        "figures": figures,
        "note": note,
        "counts": {kind: counts[kind] for kind in _KINDS},
        "pairs": pairs,
        "shown": shown,
        "next": following,
    }
    title = f"{left.summary['label']} and {right.summary['label']}"
    return Page(title, "difference.html", values, data)


# --- What is compared


async def _side(site: Site, query: Query, which: str) -> Side:
    run_id, _, number = query.get(which, "").rpartition(":")
    item = whole_number(number)
    if not run_id or item is None:
        raise NotFound(f"{which} must name an item, as RUN:NUMBER")
    run = await site.runs.in_thread(lambda: site.runs.shown(run_id))
    attempt = whole_number(query.get(f"attempt_{which}"))
    return await site.runs.read(run_id, lambda reader: _read_side(reader, run, item, attempt), seconds=_SECONDS)


def _read_side(reader: JournalBrowser, run: ShownRun, number: int, wanted: int | None) -> Side:
    row = next(iter(reader.items_of([number])), None)
    if row is None:
        raise NotFound(f"the run has no item {number}")
    view = view_for(reader)
    item = shown_items(reader, view, [row])[0]
    attempt = min(wanted or row.attempt, row.attempt)
    described = Described(reader)
    steps, count, left_out = _steps(reader, row, attempt, described)
    placed = [*_before_steps(reader, row, attempt, described), *_in_order(steps)]
    cells = {**item.cells, **_of_attempt(steps, count, left_out, item)}
    return Side(
        run,
        item.summary,
        attempt,
        [*all_columns(view), *_OF_ATTEMPT],
        cells,
        placed,
        count,
        left_out,
    )


def _steps(
    reader: JournalBrowser, row: ItemRow, attempt: int, described: Described
) -> tuple[list[ShownStep], int, int]:
    """The first steps of an attempt, without readings of the clock; how many steps it has; and how many of these are not looked at."""
    pages = ConversationReader(reader, row.number, attempt, described)
    page = pages.page()
    steps = list(page.steps)
    while page.behind is not None and len(steps) < MAX_STEPS:
        page = pages.page(page.behind)
        steps += page.steps
    return steps, page.count, pages.left_out(page)


def _before_steps(reader: JournalBrowser, row: ItemRow, attempt: int, described: Described) -> Iterator[Placed]:
    """What an item holds that no step shows."""
    if attempt == row.attempt and (prompt := item_details(reader, row).system_prompt):
        yield Placed(_said("system", prompt))
    for label, text in described.item(row):
        yield Placed(_said(label, text))


def _in_order(steps: Sequence[ShownStep]) -> Iterator[Placed]:
    """The messages of steps: those of one scope together, in the order in which the scopes begin."""
    scopes = {step.scope: None for step in steps}
    ordered = sorted(scopes, key=lambda scope: scope != "")
    for scope in ordered:
        for step in steps:
            if step.scope == scope:
                yield from _messages(step)


def _messages(step: ShownStep) -> Iterator[Placed]:
    for shown in step.messages:
        if shown.role != "tool" or shown.text:
            calls = {f"call {number}": call.arguments for number, call in enumerate(shown.calls, 1)}
            parts = {"reasoning": shown.reasoning, "content": shown.text, **calls}
            yield Placed(_message(shown), step.scope, step.id, parts)
        for call in shown.calls:
            if call.result is not None:
                yield _whole("tool", call.result.text, step)
    for label, text in step.labelled:
        yield _whole(label, text, step)


def _whole(role: str, text: ShownText, step: ShownStep) -> Placed:
    """A message that is one text."""
    return Placed(_said(role, text.text), step.scope, step.id, {"content": text})


def _message(shown: ShownMessage) -> Message:
    message: dict[str, Any] = {"role": shown.role, "content": shown.text.text, "reasoning": shown.reasoning.text}
    if shown.calls:
        message["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments.text}}
            for call in shown.calls
        ]
    return cast(Message, message)


def _said(role: str, text: str) -> Message:
    """Something of a role, which here may be any label."""
    return cast(Message, {"role": role, "content": text})


# --- Figures

_OF_ATTEMPT = (
    Column("steps", "steps", is_number=True, about="Of the attempt that is shown."),
    Column("attempt_tokens", "tokens of the attempt", is_number=True, about="Input and output."),
    Column("attempt_cost", "cost of the attempt", is_number=True, about="US dollars."),
    Column("tools", "tool calls by name", about="Of the steps that are compared."),
    Column("failed_calls", "failed tool calls", is_number=True, about="Of the steps that are compared."),
)


def _of_attempt(steps: Sequence[ShownStep], count: int, left_out: int, item: ShownItem) -> dict[str, Cell]:
    calls = [call for step in steps for message in step.messages for call in message.calls]
    names = Counter(call.name for call in calls)
    failed = sum(call.result is not None and call.result.failed for call in calls)
    found = {
        "steps": Cell(f"{count:,}", count),
        "tools": Cell(", ".join(f"{name} × {times}" if times > 1 else name for name, times in names.most_common(12))),
        "failed_calls": Cell(str(failed) if calls else "", failed, tone="bad" if failed else ""),
    }
    if item.summary["attempt"] > 1 and not left_out:
        tokens = sum(step.usage.get("input_tokens", 0) + step.usage.get("output_tokens", 0) for step in steps)
        cost = sum(step.usage.get("cost", 0.0) for step in steps)
        found |= {"attempt_tokens": Cell(f"{tokens:,}", tokens), "attempt_cost": Cell(money(cost), cost)}
    return found


_ALWAYS = frozenset({"state", "score", "verdict", "tokens", "cost", "seconds", "tools"})
"""Figures that are shown in any case. Others that are equal are folded away."""


def _figures(left: Side, right: Side) -> list[Block]:
    """Every figure that one of the two has: first those that differ."""
    columns = {column.name: column for side in (left, right) for column in side.columns if column.name not in _LEFT_OUT}
    shown: list[Sequence[Cell]] = []
    equal: list[Sequence[Cell]] = []
    for column in columns.values():
        one, other = (side.cells.get(column.name, Cell("")) for side in (left, right))
        if one.text or other.text:
            label = column.label[:1].upper() + column.label[1:]
            row = [Cell(label, about=column.about), one, other, _changed(column, one, other)]
            (shown if column.name in _ALWAYS or one.text != other.text else equal).append(row)
    found: list[Block] = [Table((*_SIDES, Column("difference", "difference", is_number=True)), shown)]
    if equal:
        title = f"{len(equal)} more that {'is' if len(equal) == 1 else 'are'} equal"
        found.append(Fold(title, [Table(_SIDES, [row[:3] for row in equal])]))
    return found


_SIDES = (Column("figure", "figure"), Column("left", "left"), Column("right", "right"))


def _changed(column: Column, left: Cell, right: Cell) -> Cell:
    if left.text == right.text:
        return Cell("=", 0.0, "muted")
    if column.is_number and isinstance(left.value, (int, float)) and isinstance(right.value, (int, float)):
        change = right.value - left.value
        return Cell(f"{change:+,}" if isinstance(change, int) else f"{change:+,.3g}", change)
    return Cell("differs")


# --- Turns


def _kind(pair: Pair, left: Side, right: Side) -> Kind:
    """How two turns are to each other, of which maybe only the beginnings were lined up."""
    if pair.left is None or pair.right is None:
        return pair.kind
    one, other = left.placed[pair.left], right.placed[pair.right]
    if not one.is_cut and not other.is_cut:
        return pair.kind
    if _frame(one.message) != _frame(other.message):
        return "changed"
    parts, other_parts = message_parts(one.message), message_parts(other.message)
    kinds = set[Kind]()
    for name in {*one.texts, *other.texts}:
        text, other_text = one.texts.get(name, ShownText("")), other.texts.get(name, ShownText(""))
        if text.left_out or other_text.left_out:
            kinds.add(_kind_of_cut(text, other_text))
        else:
            kinds.add("equal" if parts.get(name) == other_parts.get(name) else "changed")
    return "changed" if "changed" in kinds else "unknown" if "unknown" in kinds else "equal"


def _frame(message: Message) -> tuple[object, list[str]]:
    """What a message is besides its texts: its role, and the names of the tools that it calls."""
    return message.get("role"), [call["function"]["name"] for call in message.get("tool_calls") or ()]


def _kind_of_cut(one: ShownText, other: ShownText) -> Kind:
    """Whether two texts are equal, of either of which maybe only the beginning is known."""
    digests = [text.digest if text.left_out else digest_of(text.text) for text in (one, other)]
    if all(digests):
        return "equal" if digests[0] == digests[1] else "changed"
    common = min(len(one.text), len(other.text))
    is_known_to_differ = one.text[:common] != other.text[:common] or any(
        not text.left_out and len(text.text) < len(another.text) for text, another in ((one, other), (other, one))
    )
    return "changed" if is_known_to_differ else "unknown"


def _not_compared(count: int) -> str:
    """What to say of pairs of which not all was read."""
    if not count:
        return ""
    return f"{counted(count, 'pair')} of turns {'is' if count == 1 else 'are'} not compared whole: parts of them are too large, or damaged."


class _Room:
    """How much of the texts still has room on the page."""

    def __init__(self) -> None:
        self._left = MAX_SHOWN

    @property
    def is_over(self) -> bool:
        """Whether more was given than there is room for."""
        return self._left < 0

    def spans(self, spans: Spans, *, only_changed: bool) -> list[tuple[Op | None, str]]:
        """Stretches cut to what there is room for."""
        room = min(MAX_TEXT, max(_MIN_TEXT, self._left))
        shown: list[tuple[Op | None, str]] = []
        for op, text in spans:
            is_long = op == "equal" and only_changed and len(spans) > 1
            shown += _shortened(text[:room]) if is_long else [(op, text[:room])]
            room -= len(text)
            if room < 0:
                shown.append((None, "the rest is not shown here"))
                break
        self._left -= sum(len(text) for _, text in shown)
        return shown


def _shortened(text: str) -> list[tuple[Op | None, str]]:
    """A stretch that both sides have: of a long one, its ends."""
    if len(text) <= 3 * _AROUND:
        return [("equal", text)]
    between = len(text) - 2 * _AROUND
    return [("equal", text[:_AROUND]), (None, f"{between:,} equal characters"), ("equal", text[-_AROUND:])]


def _shown_pairs(left: Side, right: Side, pairs: Sequence[tuple[Pair, Kind]], *, only_changed: bool) -> list[ShownPair]:
    """As many as there is room for, but one at least."""
    room, found = _Room(), list[ShownPair]()
    for pair, kind in pairs[:MAX_PAIRS]:
        marked = pair.parts if kind == "changed" else ()  # of others no more than where they are cut may differ
        one = None if pair.left is None else left.placed[pair.left]
        other = None if pair.right is None else right.placed[pair.right]
        sides = (
            _shown_side(one, other, {part.name: part.left for part in marked}, room, only_changed=only_changed),
            _shown_side(other, one, {part.name: part.right for part in marked}, room, only_changed=only_changed),
        )
        if found and room.is_over:
            break
        found.append(ShownPair(kind, *sides))
    return found


def _shown_side(
    placed: Placed | None, other: Placed | None, marked: Mapping[str, Spans], room: _Room, *, only_changed: bool
) -> ShownSide | None:
    """A message. ``other``: the one beside it; ``marked``: its parts, where words were compared."""
    if placed is None:
        return None
    spans = marked or {name: (("equal", text),) for name, text in message_parts(placed.message).items()}
    found = []
    for name in dict.fromkeys([*spans, *placed.texts]):
        shown = room.spans(spans.get(name, ()), only_changed=only_changed)
        if (text := placed.texts.get(name)) is not None and text.left_out:
            shown.append((None, _behind(text, None if other is None else other.texts.get(name))))
        if shown:
            found.append(ShownPart(name, shown))
    return ShownSide(str(placed.message.get("role")), placed.scope, placed.step, found)


def _behind(text: ShownText, other: ShownText | None) -> str:
    """What is to be said of the part of a text that was not lined up. ``other``: the text beside it."""
    more = f"{text.left_out:,} more characters" if text.left_out > 0 else "there is more, or it is damaged"
    if other is None:
        return more
    kind = _kind_of_cut(text, other)
    if kind == "changed":
        return f"{more}: {'different' if text.text == other.text else 'not compared word by word'}"
    return f"{more}: {'equal' if kind == 'equal' else 'not compared'}"


def _swapped(asked: Mapping[str, str]) -> dict[str, str]:
    others = {"a": "b", "b": "a", "attempt_a": "attempt_b", "attempt_b": "attempt_a"}
    return {others[name]: value for name, value in asked.items()}


def _side_json(side: Side) -> dict[str, Any]:
    return {
        "run": side.run.id,
        **side.summary,
        "attempt_shown": side.attempt,
        "steps": side.steps,
        "steps_left_out": side.left_out,
    }


# --- What an item may be compared with


async def _choice(site: Site, side: Side) -> Page:
    """What an item may be compared with: its other attempts, other samples of it, and the same item in other runs."""
    found = await site.runs.read(side.run.id, lambda reader: list(_in_run(reader, side)), seconds=_SECONDS)
    runs = [run for run in await site.runs.in_thread(site.runs.listed) if _is_like(run, side.run)]
    for run in runs[:_MAX_RUNS_LOOKED_AT]:
        try:
            row = await site.runs.read(run.id, lambda reader: reader.item_by_key(side.summary["key"]))
        except ManyhandsError:
            continue
        if row is not None:
            found.append(_proposal(side, run.id, row, f"in {run.folder.name}"))
    columns = (Column("what", "compare with"), Column("state", "state"))
    table = Table(columns, found[:_MAX_PROPOSED])
    values = {"side": side, "found": table}
    return Page(side.summary["label"], "difference_choice.html", values, {"left": _side_json(side), "found": table})


def _is_like(run: ShownRun, other: ShownRun) -> bool:
    return (
        run.summary is not None
        and other.summary is not None
        and run.id != other.id
        and run.summary["workload"] == other.summary["workload"]
    )


def _in_run(reader: JournalBrowser, side: Side) -> Iterator[Sequence[Cell]]:
    number, latest = side.summary["item"], side.summary["attempt"]
    for attempt in range(max(1, latest - _MAX_PROPOSED), latest + 1):
        if attempt != side.attempt:
            query = {"attempt_a": str(side.attempt), "attempt_b": str(attempt)}
            yield Cell(f"attempt {attempt}", link=Link(item=number, versus=number, query=query)), Cell("")
    content, mark, _ = side.summary["key"].rpartition("#")
    if mark:
        for sample in range(_MAX_PROPOSED):
            with suppress(ManyhandsError):  # one that is damaged
                row = reader.item_by_key(f"{content}#{sample}")
                if row is not None and row.number != number:
                    yield _proposal(side, side.run.id, row, f"sample {sample + 1}")


def _proposal(side: Side, run: str, row: ItemRow, label: str) -> Sequence[Cell]:
    query = {"attempt_a": str(side.attempt)} if side.attempt != side.summary["attempt"] else {}
    link = Link(item=side.summary["item"], run=side.run.id, versus=row.number, versus_run=run, query=query)
    return Cell(label, link=link), Cell(row.state.value)
