"""The page of an item: its conversation, how it was scored, its time, its attempts, its files, and everything as it is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from manyhands.core.errors import ManyhandsError
from manyhands.core.jsonio import pretty
from manyhands.core.text import are, counted, cut
from manyhands.engine.contract import ItemRow, RecordedStep, Workload
from manyhands.engine.journal.browsing import UNREADABLE, JournalBrowser, StepOutline
from manyhands.runs.folders import load_recorded
from manyhands.runs.listing import ItemDetails, item_contents, item_details
from manyhands.runs.shown.blocks import (
    Cell,
    Column,
    Fact,
    Facts,
    Fold,
    Lane,
    Lanes,
    Link,
    Note,
    Section,
    Span,
    Table,
    Value,
)
from manyhands.runs.shown.run_view import RunView
from manyhands.runs.summaries import ItemSummary, summarizer_of
from manyhands.view.conversation import ConversationPage, ConversationReader
from manyhands.view.pages.damaged import checked, damaged_summary
from manyhands.view.pages.page import Page, Query, Site, view_for, whole_number
from manyhands.view.rendering import duration, moment, money
from manyhands.view.source import NotFound

_MAX_STEPS = 2000
"""Steps that the timeline and the table of all steps show."""
_MAX_READ = 200
"""Steps that the workload's own part is given."""
_MAX_STEP_BYTES, _MAX_READ_BYTES = 1 << 20, 32 << 20
"""Bytes of JSON that one of these may hold, and all of them."""
_MAX_LISTED, _MAX_EARLIER = 200, 10
"""Failures and attempts that are listed, and records of earlier attempts: the latest ones."""
_MAX_MESSAGE = 5_000
"""Characters of a failure's message in a list of them."""
TOGGLES = ("system", "reasoning", "tools", "metadata")
"""What can be hidden of a conversation."""
TABS = ("conversation", "result", "timeline", "attempts", "raw")


async def item_page(site: Site, run_id: str, number: int, query: Query) -> Page:
    """An item. ``tab``: which part; ``attempt``: which attempt, by default that of ``step``, else the latest one; ``step``: the id of the
    step that the page begins with; ``number``: the step's number instead; ``hide``: what is not shown."""
    run = await site.runs.in_thread(lambda: site.runs.shown(run_id))
    if run.summary is None:
        raise NotFound(run.problem or "the run can't be read")
    return await site.runs.read(run_id, lambda reader: _look(run, reader, number, query), seconds=5.0)


def _look(run: Any, reader: JournalBrowser, number: int, query: Query) -> Page:
    row = next(iter(reader.items_of([number])), None)
    if row is None:
        raise NotFound(f"the run has no item {number}")
    view = view_for(reader)
    summary, details = summed_up(reader, row)
    attempt = min(whole_number(query.get("attempt")) or _attempt_of_step(reader, row, query), row.attempt)
    tab = query.get("tab", "") if query.get("tab") in TABS else "conversation"
    hidden = [name for name in TOGGLES if name in query.get("hide", "").split(",")]
    keep = {"hide": ",".join(hidden)} | ({} if attempt == row.attempt else {"attempt": str(attempt)})
    own, page, sections, described = _parts(reader, view, row, attempt, tab, query, details)
    values = {
        "run": run,
        "item": summary,
        "attempt": attempt,
        "seconds": None if row.started_at is None or row.finished_at is None else row.finished_at - row.started_at,
        "neighbours": reader.neighbours(row),
        "tab": tab,
        "tab_names": own,
        "hidden": hidden,
        "keep": keep if tab == "conversation" else {**keep, "tab": tab},
        "page": page,
        "sections": sections,
        "described": described if page.first <= 1 else [],
        "of_tools": details.tools,
        "system_prompt": details.system_prompt if attempt == row.attempt else None,
    }
    data: dict[str, Any] = {"run": run.id, **item_contents(row, summary), "attempt_shown": attempt, "tab": tab}
    data |= {"conversation": page} if tab == "conversation" else {"sections": sections}
    return Page(f"{summary['label']} · {run.summary['run']}", "item.html", values, data)


def _attempt_of_step(reader: JournalBrowser, row: ItemRow, query: Query) -> int:
    """The attempt that the step belongs to which an address names, so that links to steps lead to them after further attempts too; the
    latest one where it names none of the item's."""
    step = whole_number(query.get("step"))
    found = None if step is None else reader.step_outline(step)
    return found[1] if found is not None and found[0] == row.number else row.attempt


def summed_up(reader: JournalBrowser, row: ItemRow) -> tuple[ItemSummary, ItemDetails]:
    """An item's summary and what happened to it; as much as there is of a damaged one."""
    try:
        return summarizer_of(reader).item(checked(row)), item_details(reader, row)
    except UNREADABLE as error:
        nothing = ItemDetails(row.reason or row.cause, row.message, [], reader.failures(row.number), [], None)
        return damaged_summary(row, error), nothing


def _parts(
    reader: JournalBrowser,
    view: RunView,
    row: ItemRow,
    attempt: int,
    tab: str,
    query: Query,
    details: ItemDetails,
) -> tuple[list[tuple[str, str]], ConversationPage, list[Section], list[tuple[str, str]]]:
    """The tabs of an item, a page of its conversation, the sections of another tab, and what no step shows."""
    names = [("conversation", "Conversation"), ("result", view.item_tab), ("timeline", "Timeline")]
    names += [("attempts", _attempts_label(row, details)), ("raw", "Raw")]
    nothing = ConversationPage([], 0, 0, None, None)
    if tab == "conversation":
        described = Described(reader)
        return names, talk(reader, row.number, attempt, query, described), [], described.item(row)
    if tab == "result":
        return names, nothing, [*result_sections(reader, view, row)], []
    if tab == "timeline":
        return names, nothing, [*_timeline(reader, row, attempt)], []
    if tab == "attempts":
        return names, nothing, [*attempt_sections(row, details)], []
    return names, nothing, [*_raw(reader, row, attempt)], []


def talk(
    reader: JournalBrowser,
    item: int,
    attempt: int,
    query: Query,
    describe: Callable[[RecordedStep], Iterable[tuple[str, str]]],
) -> ConversationPage:
    """A page of the conversation of an attempt."""
    start = whole_number(query.get("step")) or 0
    if wanted := whole_number(query.get("number")):
        start = reader.step_numbered(item, attempt, wanted) or start
    return ConversationReader(reader, item, attempt, describe).page(start)


class Described:
    """What a workload says of steps and items. It is loaded when that is first needed; without it they are shown as they are."""

    def __init__(self, reader: JournalBrowser) -> None:
        self._reader = reader
        self._workload: Workload | None = None
        self._failed = False

    def __call__(self, step: RecordedStep) -> Iterable[tuple[str, str]]:
        workload = self._loaded()
        if workload is None:
            return [(f"{step.kind}: request", pretty(step.request)), (f"{step.kind}: output", pretty(step.output))]
        return workload.describe_step(step)

    def item(self, row: ItemRow) -> list[tuple[str, str]]:
        """What an item holds that no step shows."""
        workload = self._loaded()
        try:
            return (
                [("payload", pretty(row.payload))] if workload is None else list(workload.describe_item(checked(row)))
            )
        except UNREADABLE:
            return [] if row.payload is None else [("payload", pretty(row.payload))]

    def _loaded(self) -> Workload | None:
        if self._workload is None and not self._failed:
            try:
                self._workload = load_recorded(self._reader)
            except (ManyhandsError, OSError):
                self._failed = True
        return self._workload


def small_steps(reader: JournalBrowser, row: ItemRow) -> list[RecordedStep]:
    """The first steps of an item's latest attempt, without those that are very large."""
    found: list[RecordedStep] = []
    left = _MAX_READ_BYTES
    for outline in reader.outline(row.number, row.attempt, 0, _MAX_READ):
        size = reader.size_of_step(outline.id, _MAX_STEP_BYTES)
        if size <= min(left, _MAX_STEP_BYTES) and (step := reader.step(outline.id)) is not None:
            found.append(step[1])
            left -= size
    return found


def result_sections(reader: JournalBrowser, view: RunView, row: ItemRow) -> Iterator[Section]:
    """What the workload has to say of an item."""
    try:
        blocks = list(view.item_blocks(checked(row), small_steps(reader, row)))
    except UNREADABLE as error:
        blocks = [Note(f"This can't be shown as what it is ({error!r}).", "bad")]
    if blocks:
        yield Section("", blocks)


def _attempts_label(row: ItemRow, details: ItemDetails) -> str:
    failures = len(details.failures)
    return "Attempts" + (f" ({row.attempt})" if row.attempt > 1 else "") + (f", {failures} failed" if failures else "")


def attempt_sections(row: ItemRow, details: ItemDetails) -> Iterator[Section]:
    """Every attempt, and everything that went wrong."""
    rows: list[Sequence[Cell]] = []
    for ended in details.given_up[-_MAX_LISTED:]:
        is_latest = ended.attempt >= row.attempt  # a fresh one is to follow, but has not begun
        link = Link(item=row.number, query={} if is_latest else {"attempt": str(ended.attempt)})
        rows.append(
            (
                Cell(str(ended.attempt), link=link),
                Cell("given up"),
                Cell(moment(ended.ended_at)),
                _message(ended.reason),
            )
        )
    rows.append(
        (
            Cell(str(row.attempt), link=Link(item=row.number)),
            Cell(row.state.value),
            Cell(moment(row.finished_at)),
            _message(row.message or row.reason or row.cause or ""),
        )
    )
    columns = (Column("attempt", "attempt"), Column("state", "came to"), Column("at", "at (UTC)"), Column("why", "why"))
    about = f"It was executed {row.performances} time{'' if row.performances == 1 else 's'}, resumed attempts included."
    about += _earlier_ones(len(details.given_up) - _MAX_LISTED, "attempt")
    yield Section("Attempts", [Table(columns, rows, about=about)])
    failures = [
        (Cell(str(each.attempt)), Cell(moment(each.at)), Cell(each.cause, tone="bad"), _message(each.message))
        for each in details.failures[-_MAX_LISTED:]
    ]
    if failures:
        columns = (
            Column("attempt", "attempt"),
            Column("at", "at (UTC)"),
            Column("cause", "cause"),
            Column("message", "message"),
        )
        about = _earlier_ones(len(details.failures) - _MAX_LISTED, "failure").strip()
        yield Section("Failures", [Table(columns, failures, about=about)])
    if more := _earlier_ones(len(details.earlier) - _MAX_EARLIER, "record"):
        yield Section("", [Note(more.strip(), "muted")])
    for earlier in details.earlier[-_MAX_EARLIER:]:
        title = f"Attempt {earlier.attempt} had ended as {earlier.state}"
        about = f"{cut(earlier.message or earlier.why or '', _MAX_MESSAGE)} It was executed again {moment(earlier.reopened_at)}.".strip()
        yield Section(title, [Fold("Its record", [Value(earlier.record)])], about)


def _message(text: str) -> Cell:
    return Cell(cut(text, _MAX_MESSAGE))


def _earlier_ones(count: int, noun: str) -> str:
    """A sentence about those that are not listed; nothing if there are none."""
    return f" {counted(count, f'earlier {noun}')} {are(count)} not listed." if count > 0 else ""


def _timeline(reader: JournalBrowser, row: ItemRow, attempt: int) -> Iterator[Section]:
    outlines = reader.outline(row.number, attempt, 0, _MAX_STEPS)
    if not outlines:
        return
    more = reader.step_count(row.number, attempt) - len(outlines)
    origin = min(step.started_at for step in outlines)
    lanes: dict[str, list[Span]] = {}
    for step in outlines:
        name = f"{step.scope} · {step.kind}" if step.scope else step.kind
        lanes.setdefault(name, []).append(_span(row.number, step, origin))
    shown = [Lane(name, spans) for name, spans in lanes.items()]
    about = f"The first {len(outlines):,} steps; {more:,} more are not shown here." if more else ""
    yield Section("", [Lanes("Steps over time", shown, "seconds since the first step began", "seconds", about)])
    yield Section("", [_kinds(outlines)])


def _span(item: int, step: StepOutline, origin: float) -> Span:
    usage = step.usage
    cost = ""
    if usage.get("calls"):
        cached = f" ({usage['cached_tokens']:,} cached)" if usage.get("cached_tokens") else ""
        cost = f", {usage['input_tokens']:,} tokens in{cached}, {usage['output_tokens']:,} out, {money(usage['cost'])}"
    label = f"{step.kind} {step.address}: {duration(step.finished_at - step.started_at)}{cost}"
    link = Link(item=item, query={"step": str(step.id)})
    return Span(step.started_at - origin, max(step.finished_at, step.started_at) - origin, label, step.kind, "", link)


def _kinds(outlines: Sequence[StepOutline]) -> Table:
    kinds: dict[str, list[float]] = {}
    for step in outlines:
        kinds.setdefault(step.kind, []).append(step.finished_at - step.started_at)
    rows = [
        (
            Cell(kind),
            Cell(f"{len(taken):,}", len(taken)),
            Cell(duration(sum(taken)), sum(taken)),
            Cell(duration(sorted(taken)[len(taken) // 2])),
            Cell(duration(max(taken)), max(taken)),
        )
        for kind, taken in kinds.items()
    ]
    columns = (
        Column("kind", "kind"),
        Column("steps", "steps", is_number=True),
        Column("took", "took in all", is_number=True),
        Column("median", "median", is_number=True),
        Column("longest", "longest", is_number=True),
    )
    return Table(columns, rows)


def _raw(reader: JournalBrowser, row: ItemRow, attempt: int) -> Iterator[Section]:
    everything = Link(item=row.number, query={"tab": "raw", "attempt": str(attempt), "format": "json"})
    yield Section("", [Facts([Fact("All of it", Cell("as JSON", link=everything))])])
    yield Section("Record", [Value(row.record)], "What came of the item, in the workload's form.")
    yield Section("Payload", [Value(row.payload)], "What it was planned with.")
    steps = reader.outline(row.number, attempt, 0, _MAX_STEPS)
    rows = [
        (
            Cell(step.address, link=Link(item=row.number, query={"step": str(step.id)})),
            Cell(step.kind),
            Cell(moment(step.started_at), step.started_at),
            Cell(f"{step.request_bytes:,}", step.request_bytes),
            Cell(f"{step.output_bytes:,}", step.output_bytes),
        )
        for step in steps
    ]
    columns = (
        Column("step", "step"),
        Column("kind", "kind"),
        Column("began", "began (UTC)"),
        Column("request", "request, bytes stored", is_number=True),
        Column("output", "output, bytes stored", is_number=True),
    )
    about = "Each step's JSON is linked in the conversation."
    if more := reader.step_count(row.number, attempt) - len(steps):
        about = f"The first {len(steps):,}; {more:,} more are in the conversation. {about}"
    yield Section("Steps", [Table(columns, rows)], about)
