"""What can be checked of sessions of the format's second version.

Their scheduler was another one: it waited for absolute counts of tokens and for shares of the tests to be finished, had no introduction,
and its log doesn't say how many tokens filler took. So the order in which tests were picked can't be replayed. What a test said and when it
might go on can be checked against its definition, and filler against its source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from manyhands.workloads.memory.conversation.definitions import Definition, Json, Wait
from manyhands.workloads.memory.conversation.events import RESPONSES, SENDS, Event, EventType
from manyhands.workloads.memory.conversation.filler import Fact
from manyhands.workloads.memory.conversation.running_tests import CALLBACK_WAIT, Compatibility
from manyhands.workloads.memory.conversation.schedule import Counters
from manyhands.workloads.memory.conversation.wording import Wording
from manyhands.workloads.memory.logged_dataset import id_of
from manyhands.workloads.memory.replay_model import Difference, ReplayResult
from manyhands.workloads.memory.results.runstats import RunStats

NOT_CHECKED = (
    "version 2 of the format: the order in which tests were picked is not replayed, as its rules and the tokens of filler are not known",
    "version 2 of the format: times of waits are not compared, as the log has the clock there",
)


class _DifferenceFound(Exception):
    def __init__(self, difference: Difference) -> None:
        super().__init__(str(difference))
        self.difference = difference


@dataclass
class _Test:
    """A test that has begun. ``said``: lines so far; ``target``: what it waits for, in tokens of the session and percent of the tests."""

    definition: Definition
    said: int = 0
    target: tuple[int, float] | None = None


@dataclass
class _Checker:
    log: Sequence[Event]
    definitions: Mapping[str, Definition]
    compatible: Compatibility
    facts: frozenset[str]
    wording: Wording
    running: dict[str, _Test] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    resets: dict[str, str] = field(default_factory=dict)
    tokens: int = 0
    owed: int = 0
    fillers: int = 0
    other_fillers: int = 0

    def check(self, at: int) -> None:
        """Check one event. Raises _DifferenceFound."""
        event = self.log[at]
        checks: Mapping[EventType, Callable[[int, Event], None]] = {
            EventType.BEGIN: self._begin,
            EventType.END: self._end,
            EventType.SEND_MESSAGE: self._say,
            EventType.SEND_FILL: self._fill,
            EventType.WAIT: self._wait,
            EventType.SUITE_RESET: self._resume,
        }
        if event.type in SENDS:
            self._followed_by_reply(at, event)
        elif event.type in RESPONSES and (at == 0 or self.log[at - 1].type not in SENDS):
            self._differs(at, "event", event.type.name, "a message before it")
        if event.type in checks:
            checks[event.type](at, event)

    def _differs(self, at: int, name: str, logged: Json, expected: Json) -> None:
        raise _DifferenceFound(Difference(at, self.log[at].test_id, name, logged, expected))

    def _followed_by_reply(self, at: int, event: Event) -> None:
        reply = self.log[at + 1] if at + 1 < len(self.log) else None
        wanted = RESPONSES[SENDS.index(event.type)]
        if reply is None or reply.type is not wanted or reply.test_id != event.test_id:
            self._differs(at, "event after it", None if reply is None else reply.type.name, wanted.name)

    def _begin(self, at: int, event: Event) -> None:
        definition = self.definitions.get(event.test_id)
        if definition is None or event.test_id in self.running or event.test_id in self.ended:
            self._differs(at, "event", "BEGIN", "a test that is defined and has not begun")
            return
        others = {id_of(test.definition.dataset) for test in self.running.values()}
        if not self.compatible.allows(id_of(definition.dataset), others):
            self._differs(at, "event", "BEGIN", "no test beside it that it excludes")
        self.running[event.test_id] = _Test(definition)

    def _running(self, at: int) -> _Test:
        test = self.running.get(self.log[at].test_id)
        if test is None:
            self._differs(at, "event", self.log[at].type.name, "a BEGIN before it")
            raise AssertionError
        return test

    def _end(self, at: int, event: Event) -> None:
        test = self._running(at)
        if test.said < len(test.definition.is_question):
            self._differs(at, "lines said", test.said, len(test.definition.is_question))
        del self.running[event.test_id]
        self.ended.add(event.test_id)

    def _say(self, at: int, event: Event) -> None:
        test = self._running(at)
        self._may_go_on(at, test)
        definition, line = test.definition, test.said
        test.said += 1
        if line >= len(definition.is_question):
            if definition.is_question:
                known = self.resets.setdefault(definition.dataset, event.message)
                if event.message != known:
                    self._differs(at, "message", event.message, known)
            return
        if event.is_question != definition.is_question[line]:
            self._differs(at, "is_question", event.is_question, definition.is_question[line])
        if line < len(definition.script) and event.message != definition.script[line]:
            self._differs(at, "message", event.message, definition.script[line])

    def _may_go_on(self, at: int, test: _Test) -> None:
        if test.target is None:
            return
        tokens, percentage = test.target
        test.target = None
        finished = 100 * len(self.ended) / len(self.definitions)
        if finished < percentage:
            self._differs(at, "percent of the tests finished", finished, percentage)
        self.owed = max(self.owed, tokens)

    def _wait(self, at: int, event: Event) -> None:
        test = self._running(at)
        wait = self._expected_wait(test)
        tokens, percentage = event.data["tokens"], float(event.data.get("percentage_finished", 0.0))
        if wait is not None and percentage != wait.percentage:
            self._differs(at, "WAIT percentage_finished", percentage, wait.percentage)
        if wait is not None and wait.tokens:
            total = tokens - wait.tokens
            if total < max(self.tokens, self.owed):
                self._differs(at, "WAIT tokens", tokens, f"at least {max(self.tokens, self.owed) + wait.tokens}")
            self.tokens = total
        test.target = (tokens, percentage)

    def _expected_wait(self, test: _Test) -> Wait | None:
        """What the definition has; None for dynamic tests, which have none."""
        definition, line = test.definition, test.said - 1
        if not definition.is_question:
            return None
        if definition.uses_callback and test.said == len(definition.is_question):
            return CALLBACK_WAIT
        return definition.waits[line] if 0 <= line < len(definition.waits) else Wait()

    def _resume(self, at: int, event: Event) -> None:
        """What was spent since the last save was forgotten, so counting begins anew."""
        self.tokens = self.owed = 0

    def _fill(self, at: int, event: Event) -> None:
        self.fillers += 1
        lines = event.message.removeprefix(self.wording.filler_preamble)
        if lines == event.message or not all(line in self.facts for line in _lines(lines, self.facts)):
            self.other_fillers += 1


def _lines(text: str, facts: frozenset[str]) -> Iterator[str]:
    """The lines of filler; a fact may itself hold newlines."""
    held = ""
    for line in text.splitlines(keepends=True):
        held += line
        if held in facts:
            yield held
            held = ""
    if held:
        yield held


def check_older(
    run: str,
    agent: str,
    log: Sequence[Event],
    definitions: Sequence[Definition],
    incompatibilities: Sequence[frozenset[str]],
    runstats: RunStats | None,
    facts: Sequence[Fact],
    wording: Wording,
) -> ReplayResult:
    """Check a session of the second version; ``consistent`` if nothing contradicts its definitions."""
    known = frozenset(wording.filler_line(fact.question, fact.answer) for fact in facts)
    by_id = {definition.unique_id: definition for definition in definitions}
    checker = _Checker(log, by_id, Compatibility(incompatibilities), known, wording)
    difference, agreeing = None, 0
    try:
        for agreeing in range(len(log)):
            checker.check(agreeing)
        agreeing = len(log)
    except _DifferenceFound as found:
        difference = found.difference
    if difference is None and runstats is not None and runstats.total_tokens < checker.tokens:
        difference = Difference(
            None, "", "runstats.json total_tokens", runstats.total_tokens, f"at least {checker.tokens}"
        )
    return ReplayResult(
        run=run,
        agent=agent,
        verdict="consistent" if difference is None else "differs",
        difference=difference,
        events=len(log),
        agreeing=agreeing,
        is_complete=checker.ended == set(by_id),
        resumes=sum(event.type is EventType.SUITE_RESET for event in log),
        tokens_lost=0,
        fillers=checker.fillers,
        other_fillers=checker.other_fillers,
        token_counter="none",
        counters=Counters(total_tokens=checker.tokens),
        runstats=runstats,
        notes=NOT_CHECKED,
    )
