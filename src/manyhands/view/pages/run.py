"""The page of a run: where every item is, what was used, why items failed, what was changed, and the pages of its workload."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from time import time
from typing import Any

from manyhands.core.errors import ManyhandsError
from manyhands.core.text import cut, shell_quoted
from manyhands.core.usage import Usage, UsageFigures
from manyhands.engine.journal.browsing import MAX_CAUSES, UNREADABLE, JournalBrowser
from manyhands.runs.ledger import ToolUsage, left_to_do, shares
from manyhands.runs.progress import images_line, sandboxes_text
from manyhands.runs.shown.blocks import (
    Block,
    Cell,
    Chart,
    Column,
    Columns,
    Fact,
    Fold,
    Link,
    Note,
    Section,
    Series,
    Table,
    Value,
)
from manyhands.runs.shown.cells import size_cell
from manyhands.runs.summaries import Figure, RunStatus, run_status
from manyhands.view.index.filters import Filters
from manyhands.view.index.queries import RunIndex
from manyhands.view.index.results import ToolFigures
from manyhands.view.pages.page import Page, Query, Site, Tab, view_for
from manyhands.view.rendering import LEDGER, TONES, duration, moment, money, short
from manyhands.view.source import NotFound, ShownRun

_SESSIONS = 20
_FILES, _MAX_FILES = 50, 10_000
"""Files that are shown, and among how many they are looked for."""
_TOOLS = 50
_REASONS = 100
_MAX_NAME, _MAX_TEXT = 300, 2000
"""Characters of a name or a reason, and of a message."""
_MIN_SECONDS = 2.0
"""Of work, before a rate is told."""


@dataclass(frozen=True, slots=True)
class Command:
    """Something that helps, to be typed in a terminal."""

    about: str
    command: str


async def run_page(site: Site, run_id: str) -> Page:
    """The overview of a run."""
    run = await site.runs.in_thread(lambda: site.runs.shown(run_id))
    if run.summary is None:
        raise NotFound(run.problem or "the run can't be read")

    await site.indexes.wanted(run)

    def look(reader: JournalBrowser) -> tuple[Sequence[Tab], list[Section], RunStatus]:
        view = view_for(reader)
        status = run_status(reader)
        with site.indexes.opened(run, reader) as (index, _):
            over_time = [] if index is None else [*_over_time(index)]
        sections = [*sections_of(view.head), *over_time, *overview_sections(reader, status, sections_of(view.files))]
        return site.tabs(run, view), sections, status

    tabs, sections, status = await site.runs.read(run_id, look)
    values = {
        "run": run,
        "tabs": tabs,
        "sections": sections,
        "notes": [*notes(run)],
        "commands": [*commands(run)],
        "figures": status["figures"],
        **ledger_values(run),
    }
    data = {
        "run": {**run.summary, "run_id": run.id},
        **{name: values[name] for name in ("figures", "notes", "commands", "sections")},
    }
    return Page(run.summary["run"], "run.html", values, data)


def sections_of(part: Callable[[], Iterable[Section]]) -> list[Section]:
    """What the workload has to say of the run (``RunView.head``, ``RunView.files``), or why that can't be shown."""
    try:
        return [*part()]
    except ManyhandsError as error:
        return [Section("", [Note(f"What belongs to its workload can't be shown: {error}", "bad")])]
    except UNREADABLE as error:
        return [Section("", [Note(f"What belongs to its workload can't be shown ({error!r}).", "bad")])]


async def workload_page(site: Site, run_id: str, name: str, query: Query) -> Page:
    """A page of the workload's own about a run."""
    run = await site.runs.in_thread(lambda: site.runs.shown(run_id))
    if run.summary is None:
        raise NotFound(run.problem or "the run can't be read")

    def look(reader: JournalBrowser) -> tuple[Sequence[Tab], list[Section], str, str]:
        view = view_for(reader)
        info = next((info for info in view.pages() if info.name == name), None)
        if info is None:
            raise NotFound("runs of this workload have no such page")
        return site.tabs(run, view), list(view.page(name, query)), info.label, info.about

    tabs, sections, label, about = await site.runs.read(run_id, look, seconds=5.0)
    values = {"run": run, "tabs": tabs, "current": name, "sections": sections, "about": about}
    return Page(f"{label} · {run.summary['run']}", "page.html", values, {"run": run.id, "sections": sections})


def ledger_values(run: ShownRun, figures: Sequence[Figure] = ()) -> Mapping[str, Any]:
    """What the part of the page that changes while the run goes on is made of."""
    assert run.summary is not None
    ledger, running = run.summary["ledger"], run.summary["running"]
    states = [(state, ledger[state]) for state in LEDGER]  # type: ignore[literal-required]
    states[-1] = ("pending", ledger["pending"] - running)
    if running:
        states.insert(-1, ("running", running))
    return {
        "run": run,
        "states": [(state, count) for state, count in states if count or state in ("completed", "failed")],
        "facts": [*(Fact(each["label"], Cell(each["text"])) for each in figures), *_facts(run)],
    }


def _facts(run: ShownRun) -> Iterator[Fact]:
    summary = run.summary
    assert summary is not None
    usage, ledger = summary["usage"], summary["ledger"]
    limit = "" if run.max_cost is None else f"of {money(run.max_cost)}"
    yield Fact("cost", Cell(money(usage["cost"]), about=limit))
    yield Fact(
        "tokens",
        Cell(
            short(usage["total_tokens"]),
            about=f"{short(usage['input_tokens'])} in, {short(usage['output_tokens'])} out",
        ),
    )
    yield Fact("calls", Cell(f"{usage['calls']:,}"), "of models and paid services, those of tools and graders included")
    ended = ledger["items"] - ledger["pending"]
    work = summary["working_seconds"]
    yield Fact("work", Cell(duration(work)), "how long the run was executed, all sessions together")
    if run.is_live and run.started_at is not None:
        yield Fact("this session", Cell(duration(time() - run.started_at)))
    if ended and work >= _MIN_SECONDS:
        rate = ended / work
        yield Fact("rate", Cell(f"{60 * rate:,.1f}", about="items a minute"))
        left = left_to_do(ledger)
        if run.is_live and left:
            yield Fact("left", Cell(f"about {duration(left / rate)}"), "at the rate so far")
    if (lost := summary.get("interruptions")) is not None:
        count = lost["went_on"] + lost["afresh"]
        about = f"{lost['went_on']:,} went on, {lost['afresh']:,} started afresh"
        yield Fact("interrupted", Cell(f"{count:,}", about=about), "executions of items whose workers were lost")
    yield Fact("created", Cell((summary["created_at"] or "").replace("T", " ").removesuffix("Z"), about="UTC"))


def notes(run: ShownRun) -> Iterator[Note]:
    """What must be seen before anything else."""
    assert run.summary is not None
    session, left = run.summary["last_session"], left_to_do(run.summary["ledger"])
    if not run.is_live and left and session is not None and session["ending"] is None:
        yield Note(f"The process that executed this run has died; {left:,} items are left.", "warn")


def commands(run: ShownRun) -> Iterator[Command]:
    """What can be done about the run, as commands to copy."""
    assert run.summary is not None
    folder, ledger = shell_quoted(run.summary["folder"]), run.summary["ledger"]
    if not run.is_live and left_to_do(ledger):
        yield Command("To go on with it:", f"manyhands resume {folder}")
    if ledger["failed"]:
        yield Command("To execute failed items again:", f"manyhands retry {folder}")


def _over_time(index: RunIndex) -> Iterator[Section]:
    """What the index knows of times and tools."""
    series = index.series()
    points = series.points
    if len(points) > 2:
        step = _step(series.seconds)
        ended = [
            Series("completed", [(point.at, float(point.completed)) for point in points], tone="good"),
            Series("failed", [(point.at, float(point.failed)) for point in points], tone="bad"),
        ]
        others = [point.finished - point.completed - point.failed for point in points]
        if any(others):
            pairs = zip(points, others, strict=True)
            ended.append(Series("discarded or cancelled", [(point.at, float(n)) for point, n in pairs], tone="warn"))
        again = Series(
            "failures, with those tried again", [(point.at, float(point.failures)) for point in points], tone="warn"
        )
        tokens = [
            Series("input", [(point.at, float(point.tokens_in)) for point in points]),
            Series("output", [(point.at, float(point.tokens_out)) for point in points]),
        ]
        charts: list[Sequence[Block]] = [
            [Chart("area", f"Items per {step}", ended, "time (UTC)", "items", "time")],
            [Chart("area", f"Tokens per {step}", tokens, "time (UTC)", "tokens", "time", "tokens")],
        ]
        if any(point.cost for point in points):
            cost = Series("cost", [(point.at, point.cost) for point in points])
            charts.append([Chart("area", f"Cost per {step}", [cost], "time (UTC)", "US dollars", "time", "dollars")])
        if any(point.failures for point in points):
            charts.append([Chart("line", f"Failures per {step}", [again], "time (UTC)", "failures", "time")])
        yield Section("Over time", [Columns(charts)])
    scores = index.facets(Filters()).scores
    if sum(scores) > 1:
        width = 1 / len(scores)
        bars = Series("items", [((number + 0.5) * width, float(count)) for number, count in enumerate(scores)])
        yield Section("", [Chart("bars", "Distribution of scores", [bars], "score", "items")])
    if tools := index.tools():
        yield Section("Tools", [_tool_table(tools, index.progress.total)])


def _step(seconds: int) -> str:
    """A stretch of time as what something is counted per."""
    for length, name in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds % length == 0:
            return name if seconds == length else f"{seconds // length} {name}s"
    return f"{seconds} s"


def _tool_table(tools: Sequence[ToolFigures], items: int) -> Table:
    rows = [
        (
            Cell(each.name, link=Link(query={"tool": each.name})),
            Cell(f"{each.calls:,}", each.calls),
            Cell(
                f"{each.failures:,}",
                each.failures,
                tone="bad" if each.failures else "muted",
                link=Link(query={"tool_failed": each.name}) if each.failures else None,
            ),
            Cell(f"{each.items / max(1, items):.0%}", each.items / max(1, items)),
            Cell(duration(each.median_seconds), each.median_seconds),
            Cell(duration(each.p95_seconds), each.p95_seconds),
        )
        for each in tools[:_TOOLS]
    ]
    columns = (
        Column("tool", "tool"),
        Column("calls", "calls", is_number=True, about="Of the latest attempts."),
        Column("failures", "failed", is_number=True),
        Column("items", "of the items", is_number=True, about="How many items called it."),
        Column("median", "median", is_number=True, about="How long calls took, of all attempts."),
        Column("p95", "95 % within", is_number=True),
    )
    return Table(columns, rows, about=_more(len(tools) - len(rows)))


def _shares_table(usage: UsageFigures, tools: Sequence[ToolUsage]) -> Table:
    rows = [
        (
            Cell(cut(name, _MAX_NAME), about=each.remarks),
            Cell(f"{each.calls:,}", each.calls),
            Cell(money(each.cost), each.cost),
            Cell(f"{each.input_tokens:,}", each.input_tokens),
            Cell(f"{each.output_tokens:,}", each.output_tokens),
        )
        for name, each in (*shares(usage, tools), ("in all", Usage.from_json(dict(usage))))
    ]
    columns = (
        Column("tool", "tool"),
        Column("requests", "requests", is_number=True),
        Column("cost", "cost", is_number=True),
        Column("tokens_in", "tokens in", is_number=True),
        Column("tokens_out", "tokens out", is_number=True),
    )
    return Table(columns, rows)


def _more(count: int) -> str:
    return f"… and {count:,} more" if count > 0 else ""


def overview_sections(
    reader: JournalBrowser, status: RunStatus, files: Sequence[Section], *, is_passed_on: bool = False
) -> Iterator[Section]:
    """Why items failed, what was changed, which files there are, the settings. ``files``: what the workload says of its files;
    ``is_passed_on``: nothing is said of the machine and of the folders on it."""
    if status["tools"]:
        about = "Requests to models and services that tools made within their calls, abandoned attempts included."
        yield Section("Paid for by tools", [_shares_table(status["usage"], status["tools"])], about)
    if table := _causes(reader):
        yield Section(
            "Failures", [table], "Every failure, also those after which an item was executed again.", "failures"
        )
    if table := _details(status):
        yield Section("Why items have no result", [table])
    yield from _history(reader, status, is_passed_on=is_passed_on)
    yield from files
    if not files and (listed := [*_files(reader)]):
        columns = (Column("file", "file"), Column("size", "size", is_number=True))
        folder = "" if is_passed_on else str(reader.folder)
        about = " ".join(filter(None, (folder, _more(len(listed) - _FILES))))
        yield Section("Files", [Table(columns, listed[:_FILES], about=about)])
    spec = reader.meta("spec")
    title = "As recorded with the run" + (", without the folders of files" if is_passed_on else "")
    yield Section("Settings", [Fold(title, [Value(_without_folders(spec) if is_passed_on else spec)])])


def _without_folders(value: Any) -> Any:
    """Settings with the names of files in the place of their absolute paths."""
    if isinstance(value, dict):
        return {name: _without_folders(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_folders(each) for each in value]
    is_path = isinstance(value, str) and value.startswith("/") and value.count("/") > 1 and "\n" not in value
    return f"…/{value.rstrip('/').rpartition('/')[2]}" if is_path else value


def _causes(reader: JournalBrowser) -> Table | None:
    rows = []
    for each in reader.failure_causes():
        link = Link(query={"why": each.cause})
        rows.append(
            (
                Cell(cut(each.cause, _MAX_NAME), link=link),
                Cell(f"{each.count:,}", each.count),
                Cell(moment(each.first_at), each.first_at),
                Cell(moment(each.last_at), each.last_at),
                Cell("\n".join(text[:300] for text in each.examples)),
            )
        )
    if not rows:
        return None
    about = f"The {MAX_CAUSES} most frequent causes." if len(rows) == MAX_CAUSES else ""
    columns = (
        Column("cause", "cause"),
        Column("count", "times", is_number=True),
        Column("first", "first (UTC)"),
        Column("last", "last (UTC)"),
        Column("examples", "for example"),
    )
    return Table(columns, rows, about=about)


def _details(status: RunStatus) -> Table | None:
    rows = [
        (
            Cell(state, tone=TONES[state]),
            Cell(cut(why, _MAX_NAME).replace("_", " "), link=_link_to(state, why)),
            Cell(f"{count:,}", count),
        )
        for state, reasons in status["ledger"]["by_cause"].items()
        for why, count in sorted(reasons.items(), key=lambda each: -each[1])
    ]
    columns = (Column("state", "state"), Column("why", "why"), Column("items", "items", is_number=True))
    return Table(columns, rows[:_REASONS], about=_more(len(rows) - _REASONS)) if rows else None


def _link_to(state: str, why: str) -> Link | None:
    """The items of a state that have a reason or cause: none is recorded of those that have not ended."""
    return None if state == "pending" else Link(query={"state": state, "why": why})


def _history(reader: JournalBrowser, status: RunStatus, *, is_passed_on: bool) -> Iterator[Section]:
    sessions = [
        (
            Cell(str(each.number), each.number),
            Cell(moment(each.started_at), each.started_at),
            Cell(duration((each.ended_at or each.heartbeat_at) - each.started_at)),
            Cell(cut(each.ending or "", _MAX_NAME), tone="" if each.ending else "warn")
            if each.ending
            else Cell("no end recorded", tone="muted"),
            Cell(f"process {each.process}" if is_passed_on else f"{each.host}, process {each.process}"),
        )
        for each in reader.sessions(_SESSIONS + 1)
    ]
    if sessions:
        columns = (
            Column("session", "session", is_number=True),
            Column("began", "began (UTC)"),
            Column("took", "took", is_number=True),
            Column("ending", "ended as"),
            Column("where", "where"),
        )
        about = "" if len(sessions) <= _SESSIONS else f"The last {_SESSIONS} sessions."
        yield Section("Sessions", [Table(columns, sessions[:_SESSIONS], about=about)])
    if status["orders"]:
        orders = [
            (
                Cell((each["at"] or "").replace("T", " ").removesuffix("Z")),
                Cell(cut(each["text"], _MAX_TEXT)),
                Cell(cut(each["given_by"].partition("@")[0] if is_passed_on else each["given_by"], _MAX_NAME)),
            )
            for each in status["orders"]
        ]
        yield Section(
            "Changes while it ran",
            [Table((Column("at", "at (UTC)"), Column("what", "what"), Column("by", "by")), orders)],
        )
    if status["images"] or status["sandboxes"]:
        lines = [*sandboxes_text(status["sandboxes"]), *([images_line(status["images"])] if status["images"] else ())]
        yield Section("Sandboxes", [Note(cut(line, _MAX_TEXT)) for line in lines])
    if status["replicas"]:
        replicas = [
            (
                Cell(cut(each["replica"], _MAX_NAME)),
                Cell(f"{each['in_flight']} of {each['window']}"),
                Cell(f"{each['answered']:,}", each["answered"]),
                Cell(f"{each['failed']:,}", each["failed"], tone="bad" if each["failed"] else ""),
                Cell(duration(each["seconds"]), each["seconds"]),
                Cell(cut(each["reason"] or "", _MAX_TEXT)),
            )
            for each in status["replicas"]
        ]
        replica_columns = (
            Column("replica", "replica"),
            Column("calls", "calls in flight"),
            Column("answered", "answered", is_number=True),
            Column("failed", "failed", is_number=True),
            Column("seconds", "a call takes", is_number=True),
            Column("reason", "left out because"),
        )
        yield Section("Replicas", [Table(replica_columns, replicas)])


def _files(reader: JournalBrowser) -> Iterator[Sequence[Cell]]:
    """The files in the run's folder that people look for."""
    found: list[tuple[str, int]] = []
    with suppress(OSError):  # the folder, or a file in it, is gone
        for path in islice(reader.folder.iterdir(), _MAX_FILES):
            if path.is_file() and not path.name.startswith((".", "run.")):
                found += [(path.name, path.stat().st_size)]
    for name, size in sorted(found):
        yield Cell(name), size_cell(size)
