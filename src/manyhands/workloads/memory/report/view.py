"""What there is to see of a memory benchmark besides what all runs have.

An item is a whole conversation with an agent, in which the tests lie. All pages show what is recorded so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, ClassVar

from manyhands.core.errors import UserError
from manyhands.core.text import counted
from manyhands.engine.contract import ItemRow, RecordedStep
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.shown.blocks import Block, Cell, Column, Fact, Facts, Fold, Link, Note, Section, Table
from manyhands.runs.shown.cells import SHOW, SHOWN
from manyhands.runs.shown.pairs import ids_of
from manyhands.runs.shown.run_view import PageInfo, RunView
from manyhands.runs.summaries import ItemSummary
from manyhands.workloads.memory.conversation.tokens import TokenCounter
from manyhands.workloads.memory.datasets.configuration import RecordedConfiguration, recorded_configuration
from manyhands.workloads.memory.folders import CONFIGURATION, DEFINITIONS
from manyhands.workloads.memory.report.comparison import comparison_sections
from manyhands.workloads.memory.report.formatting import NOTHING, TextBudget, brief, duration, whole
from manyhands.workloads.memory.report.log_pages import first_events, log_blocks, message_blocks
from manyhands.workloads.memory.report.recorded import (
    Recorded,
    conversations_of,
    is_replaced,
    judges_of,
    unlisted_conversations,
)
from manyhands.workloads.memory.report.recorded_cells import (
    COLUMNS,
    agents_table,
    conversation_cells,
    conversation_fact,
)
from manyhands.workloads.memory.report.reported_agents import Reported, test_name
from manyhands.workloads.memory.report.schedule import MAX_LANES, LinkOf, schedule_lanes, schedule_table, score_cell
from manyhands.workloads.memory.report.sections import dataset_blocks, fold_of_test, result_blocks, span_blocks
from manyhands.workloads.memory.report.views import AgentView, agent_view, view_of_test
from manyhands.workloads.memory.results.figures import TestFigures
from manyhands.workloads.memory.results.timeline import Timeline

RESULTS = "results"
SCHEDULE = "schedule"
CONVERSATION = "conversation"
COMPARISON = "comparison"
TESTS_PAGE = 100
"""Tests of a page, with their answers."""
MAX_ANSWERS_BYTES = 150_000
"""Bytes of the answers of a page, about; each test gets its share of them."""
MAX_TEST_BYTES = 2_000_000
"""Bytes of the texts of a test that is shown by itself."""
MAX_TESTS = 1_000
"""Tests of a table."""
MAX_DATASETS = 40
"""Datasets that have a column."""
_MAX_OTHERS = 20
_MAX_DIGITS = 12
_PAGES = {
    RESULTS: PageInfo(
        RESULTS,
        "Results",
        "Scores by dataset and by memory span, and every answer with its score and the reason for it.",
    ),
    SCHEDULE: PageInfo(
        SCHEDULE, "Schedule", "When each test told something, waited, and asked, over the tokens of the conversation."
    ),
    CONVERSATION: PageInfo(CONVERSATION, "Conversation", "All that was said, in order, by test."),
    COMPARISON: PageInfo(COMPARISON, "Agents", "The agents of this run side by side."),
}


class MemoryView(RunView):
    """The pages, columns and parts of a memory benchmark."""

    columns: ClassVar[Sequence[Column]] = COLUMNS
    item_tab: ClassVar[str] = "Scores"

    def __init__(self, reader: JournalReader) -> None:
        super().__init__(reader)
        self._pages: Mapping[str, Callable[[Mapping[str, str]], Iterator[Section]]] = {
            RESULTS: self._results,
            SCHEDULE: self._schedule,
            CONVERSATION: self._conversation,
            COMPARISON: lambda query: self.compared((), query),
        }

    # --- Items

    def run_columns(self) -> Sequence[Column]:
        about = "mean score of the tests of this dataset"
        names = self._datasets()[:MAX_DATASETS]
        datasets = [Column(f"dataset {name}", brief(name), is_number=True, about=about) for name in names]
        return [*self.columns, *datasets]

    def _datasets(self) -> list[str]:
        """The datasets of the run, as results call them."""
        folder = self.reader.folder / DEFINITIONS
        return sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else []

    def cells(self, rows: Sequence[ItemRow], summaries: Sequence[ItemSummary]) -> list[Mapping[str, Cell]]:
        return [conversation_cells(Recorded(self.reader.folder, row)) for row in rows]

    def item_blocks(self, row: ItemRow, steps: Sequence[RecordedStep]) -> Iterable[Block]:
        found = Recorded(self.reader.folder, row)
        if is_replaced(found, conversations_of(self.reader)):
            yield _REPLACED
            return
        try:
            view = agent_view("agent", found.reported(), 0)
        except UserError as error:
            yield Note(str(error), "muted")
            return
        yield from result_blocks(view)
        yield from dataset_blocks(view)
        yield _test_table(view.reported, found)

    # --- Pages

    def pages(self) -> Sequence[PageInfo]:
        is_alone = len(list(islice(self.reader.items(), 2))) < 2
        return [each for each in _PAGES.values() if each.name != COMPARISON or not is_alone]

    def page(self, name: str, query: Mapping[str, str]) -> Iterator[Section]:
        return self._pages[name](query)

    def head(self) -> Iterable[Section]:
        found = conversations_of(self.reader)
        configured, datasets = _configuration(self.reader), len(self._datasets())
        unshown = (
            f"The first {MAX_DATASETS} of them have a column in the table of items." if datasets > MAX_DATASETS else ""
        )
        facts = [
            Fact(
                "memory span", Cell(NOTHING if configured.memory_span is None else f"{configured.memory_span:,} tokens")
            ),
            Fact("datasets", Cell(f"{datasets:,}", datasets), unshown),
            *(Fact(words, Cell(brief(said))) for words, said in self._options()),
        ]
        yield Section("Memory benchmark", [Facts(facts)])
        if found:
            table = agents_table(found, (RESULTS, SCHEDULE, CONVERSATION))
            yield Section("Agents", [table, *_unlisted(self.reader)])

    def _options(self) -> Iterator[tuple[str, Any]]:
        options = self.spec.get("options") if isinstance(self.spec, Mapping) else None
        for name, words in (("judge_model", "judge"), ("tokenizer", "tokens counted by"), ("isolated", "isolated")):
            if isinstance(options, Mapping) and options.get(name):
                yield words, "yes" if options[name] is True else options[name]

    def _chosen(self, query: Mapping[str, str], page: str) -> tuple[Recorded | None, list[Block]]:
        """The conversation that a page is about, which is the first one if none is named, and what leads to the others."""
        found = conversations_of(self.reader)
        number = query.get("item", "")
        row = self.reader.item(number) if number.isascii() and number.isdecimal() else None
        chosen = next(iter(found), None) if row is None else Recorded(self.reader.folder, row)
        if chosen is None:
            return None, [Note("There are no conversations yet.", "muted")]
        blocks: list[Block] = []
        if len(found) > 1:
            links = [conversation_fact(each, page, is_chosen=each.row.number == chosen.row.number) for each in found]
            blocks += [Facts(links, "Conversation"), *_unlisted(self.reader)]
        if is_replaced(chosen, found):
            return None, [*blocks, _REPLACED]
        if problem := chosen.log[1]:
            blocks.append(Note(f"The log can be read up to here only: {brief(problem)}", "warn"))
        return chosen, blocks

    # --- Schedule

    def _schedule(self, query: Mapping[str, str]) -> Iterator[Section]:
        chosen, blocks = self._chosen(query, SCHEDULE)
        timeline = None if chosen is None else chosen.timeline
        if chosen is None or timeline is None:
            yield Section("Schedule", [*blocks, *_nothing_said(chosen)])
            return
        reported = _reported(chosen, blocks)
        scores = {} if reported is None else {test_name(test): test.score for test in reported.figures.tests}
        link_of = _test_links(chosen)
        blocks.append(Facts(list(_timeline_facts(timeline, chosen.counter))))
        blocks.append(schedule_lanes(timeline, scores, f"Tests of {brief(chosen.name)}", link_of))
        if left := max(0, len(timeline.courses) - MAX_LANES):
            blocks.append(Note(f"{left:,} more tests are in the table only.", "muted"))
        yield Section("Schedule", blocks)
        yield Section("Tests", list(_first_tests(timeline, scores, link_of)))

    # --- Conversation

    def _conversation(self, query: Mapping[str, str]) -> Iterator[Section]:
        chosen, blocks = self._chosen(query, CONVERSATION)
        timeline = None if chosen is None else chosen.timeline
        if chosen is None or timeline is None:
            yield Section("Conversation", [*blocks, *_nothing_said(chosen)])
            return
        events, kept = chosen.log[0], {"item": str(chosen.row.number)}
        number = _number(query.get("message"))
        if number is not None and number < len(events):
            back = Link(page=CONVERSATION, query={**kept, "after": str(number)})
            leading = Facts([Fact("conversation", Cell("from here", link=back))])
            yield Section("One message", [leading, *message_blocks(events[number])])
            return
        blocks += log_blocks(events, chosen.counter, _number(query.get("after")) or 0, kept)
        yield Section("Conversation", blocks, "Times are virtual; tokens are those said before.")
        places = list(_first_tests(timeline, {}, _test_links(chosen)))
        yield Section("Tests", [Fold("Where each test begins", places)])

    # --- Results

    def _results(self, query: Mapping[str, str]) -> Iterator[Section]:
        chosen, blocks = self._chosen(query, RESULTS)
        judges = judges_of(self.reader.folder)
        judge = query.get("judge") if query.get("judge") in judges else None
        reported = None if chosen is None else _reported(chosen, blocks, judge)
        if chosen is None or reported is None:
            yield Section("Results", blocks)
            return
        kept = {"item": str(chosen.row.number), **({} if judge is None else {"judge": judge})}
        test = next((each for each in reported.figures.tests if test_name(each) == query.get("test")), None)
        if test is not None:
            yield self._one_test(chosen, reported, test, kept)
            return
        if judges:
            blocks.append(_judge_facts(judges, judge, chosen))
        first = _number(query.get("after")) or 0
        tests = reported.figures.tests
        first = first if first < len(tests) else 0
        shown = tests[first : first + TESTS_PAGE]
        view = agent_view("agent", reported, 0)
        yield Section("Results", [*blocks, *result_blocks(view)])
        yield Section("Scores by dataset", list(dataset_blocks(view)))
        yield Section("Memory span and score", list(span_blocks(view)))
        budget = MAX_ANSWERS_BYTES // max(1, len(shown))
        link_of = _test_links(chosen)
        folds: list[Block] = [
            _answers_fold(reported, each, budget, _links_of_test(each, link_of, kept)) for each in shown
        ]
        if len(tests) > TESTS_PAGE:
            folds.insert(0, _tests_around(first, len(tests), kept))
        yield Section("Tests", folds, "Each with its answers; its link leads to all that was said in it.", "tests")

    def _one_test(self, chosen: Recorded, reported: Reported, test: TestFigures, kept: Mapping[str, str]) -> Section:
        shown = view_of_test(reported, test, TextBudget(MAX_TEST_BYTES))
        links = _links_of_test(test, _test_links(chosen), kept, is_alone=True)
        fold = fold_of_test(shown, "test", more=[links])
        return Section(shown.name, [replace(fold, is_open=True, filters={})])

    # --- Comparison

    def compared(self, others: Sequence[JournalReader], query: Mapping[str, str]) -> Iterator[Section]:
        """The agents of this run and of others side by side."""
        notes: list[Block] = []
        views: list[AgentView] = []
        links: dict[str, Link] = {}
        ids = ids_of(self.reader, others, query)
        for reader, run in zip((self.reader, *others[:_MAX_OTHERS]), (None, *ids[1:]), strict=False):
            for each in self._comparable(reader, notes):
                label = f"{brief(each.name)} · {brief(reader.folder.name)}" if others else brief(each.name)
                try:
                    reported = replace(each.reported(with_log=False), label=label)
                except UserError as error:
                    notes.append(Note(f"{label}: {brief(error)}", "muted"))
                    continue
                view = agent_view(f"agent-{len(views) + 1}", reported, 0)
                views.append(view)
                links[view.key] = Link(page=RESULTS, query={"item": str(each.row.number)}, run=run)
        if (left := len(others) - _MAX_OTHERS) > 0:
            notes.append(Note(counted(left, "more run"), "warn"))
        if views:
            yield from comparison_sections(views, lambda view: links[view.key])
        if notes or not views:
            yield Section("Left out", notes or [Note("There are no conversations yet.", "muted")])

    def _comparable(self, reader: JournalReader, notes: list[Block]) -> list[Recorded]:
        """The conversations of a run whose files are theirs."""
        if reader.meta("workload") != self.reader.meta("workload"):
            notes.append(Note(f"{brief(reader.folder.name)} is no run of the memory benchmark.", "warn"))
            return []
        found = conversations_of(reader)
        notes += _unlisted(reader)
        return [each for each in found if not is_replaced(each, found)]


_REPLACED = Note(
    "A later conversation with this agent was begun, and the files of this one were put aside: results/AGENT (earlier …). Its steps are "
    "in the journal.",
    "muted",
)


def _unlisted(reader: JournalReader) -> Iterator[Note]:
    """That a run has more conversations than are listed, if it has."""
    if more := unlisted_conversations(reader):
        name = brief(reader.folder.name)
        yield Note(
            f"{counted(more, 'more conversation')} of {name}: each is on its page, from the table of items.", "muted"
        )


def _number(text: str | None) -> int | None:
    """A number of a query; None for anything else."""
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else None


def _reported(conversation: Recorded, blocks: list[Block], judge: str | None = None) -> Reported | None:
    """Its figures; None if there are none, which ``blocks`` are told."""
    try:
        return conversation.reported(judge)
    except UserError as error:
        blocks.append(Note(brief(error), "muted"))
        return None


def _configuration(reader: JournalReader) -> RecordedConfiguration:
    try:
        return recorded_configuration(reader.folder / DEFINITIONS / CONFIGURATION)
    except UserError:
        return RecordedConfiguration()


def _nothing_said(conversation: Recorded | None) -> list[Note]:
    return [] if conversation is None else [Note("Nothing has been said yet.", "muted")]


def _first_tests(timeline: Timeline, scores: Mapping[str, float | None], link_of: LinkOf) -> Iterator[Block]:
    """The tests that a conversation has begun, up to ``MAX_TESTS``, and how many more there are."""
    yield schedule_table(timeline.courses[:MAX_TESTS], scores, link_of)
    if (more := len(timeline.courses) - MAX_TESTS) > 0:
        yield Note(f"{counted(more, 'more test')} of this conversation: on its page of results.", "muted")


def _timeline_facts(timeline: Timeline, counter: TokenCounter) -> Iterator[Fact]:
    yield Fact("tokens", Cell(whole(timeline.tokens)), counter.name if counter.exact else "an estimate")
    yield Fact("tests", Cell(str(len(timeline.courses))), "that have begun")
    open_tests = sum(course.end is None for course in timeline.courses)
    yield Fact("going on", Cell(str(open_tests), tone="active" if open_tests else ""), "tests that have not ended")
    yield Fact("filler", Cell(whole(timeline.fillers)), "messages")
    yield Fact("virtual time", Cell(duration(timeline.seconds)), f"{len(timeline.jumps)} jumps of 10 minutes or more")
    yield Fact("resumed", Cell(str(timeline.resumes)), "times")


# --- Tests


def _test_links(conversation: Recorded) -> LinkOf:
    """Where the tests begin in the pages of the conversation."""
    places = first_events(conversation.log[0])
    item = str(conversation.row.number)

    def link_of(name: str) -> Link | None:
        place = places.get(name)
        return None if place is None else Link(page=CONVERSATION, query={"item": item, "after": str(place)})

    return link_of


def _links_of_test(test: TestFigures, link_of: LinkOf, kept: Mapping[str, str], *, is_alone: bool = False) -> Facts:
    """``is_alone``: whether it is shown by itself."""
    name = test_name(test)
    link = link_of(name)
    facts = [] if link is None else [Fact("conversation", Cell("from its beginning", link=link))]
    if is_alone:
        facts.append(Fact("results", Cell("all tests", link=Link(page=RESULTS, query=kept))))
    else:
        facts.append(Fact("test", Cell("all that was said", link=Link(page=RESULTS, query={**kept, "test": name}))))
    return Facts(facts)


def _answers_fold(reported: Reported, test: TestFigures, budget: int, links: Facts) -> Fold:
    """A test with its answers, and without the conversation."""
    said = replace(test, result={name: value for name, value in test.result.items() if name != "task_log"})
    return fold_of_test(view_of_test(reported, said, TextBudget(budget)), "", more=[links])


def _tests_around(first: int, tests: int, kept: Mapping[str, str]) -> Facts:
    last = min(tests, first + TESTS_PAGE)
    facts = [Fact("tests", Cell(f"{first + 1:,} to {last:,} of {tests:,}"))]
    for words, place in (("earlier", first - TESTS_PAGE), ("later", last)):
        if 0 <= place < tests:
            facts.append(
                Fact(words, Cell(f"from {place + 1:,}", link=Link(page=RESULTS, query={**kept, "after": str(place)})))
            )
    return Facts(facts)


_TESTS = (
    Column("test", "test"),
    Column("score", "score", is_number=True),
    Column("tokens", "memory span", is_number=True, about="tokens from its first message to its evaluation"),
    Column("distance", "distance", is_number=True, about="tokens from its first message to its last question"),
    Column("needles", "needles", is_number=True, about="messages that are no questions"),
)


def _test_table(reported: Reported, conversation: Recorded) -> Table:
    """All tests of a conversation in figures."""
    item = str(conversation.row.number)
    rows = []
    for test in reported.figures.tests[:MAX_TESTS]:
        name, distance = test_name(test), reported.distance(test)
        link = Link(page=RESULTS, query={"item": item, "test": name})
        rows.append(
            [
                Cell(brief(name), link=link),
                score_cell(test.score) if test.score is not None else Cell("no score", tone="muted"),
                Cell(whole(test.tokens), test.tokens),
                Cell(whole(distance), distance),
                Cell(str(test.needles), test.needles),
            ]
        )
    left = len(reported.figures.tests) - len(rows)
    return Table(_TESTS, rows, "Tests", f"{left:,} more are on the page of results." if left else "")


def _judge_facts(judges: Sequence[str], chosen: str | None, conversation: Recorded) -> Facts:
    """Whose scores are shown, and whose else there are."""
    facts = []
    for judge in (None, *judges):
        query = {"item": str(conversation.row.number), **({} if judge is None else {"judge": judge})}
        link = None if judge == chosen else Link(page=RESULTS, query=query)
        facts.append(
            Fact(
                "as the run has them" if judge is None else brief(judge),
                Cell(SHOWN if link is None else SHOW, link=link),
            )
        )
    return Facts(facts, "Scores by")
