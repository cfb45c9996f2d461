"""Replaying published results: the scheduler must do what the log of a session shows.

The replies of the log are fed to the scheduler over the session's definitions; the log's own times are its clock. What then happens is
compared event for event, and at the end the counters and the state of the filler's generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from manyhands.core.errors import UserError
from manyhands.io.json_files import read_object
from manyhands.workloads.memory.conversation.definitions import Dataset, Definition, Json
from manyhands.workloads.memory.conversation.events import MESSAGES, Event, EventType, read_master_log
from manyhands.workloads.memory.conversation.filler import Fact, Wording
from manyhands.workloads.memory.conversation.schedule import Counters, ScheduledTest, SchedulerSettings
from manyhands.workloads.memory.conversation.tokens import TokenCounter, estimate
from manyhands.workloads.memory.datasets.benchmark import read_definitions
from manyhands.workloads.memory.datasets.configuration import recorded_configuration
from manyhands.workloads.memory.folders import ISOLATED
from manyhands.workloads.memory.results.files import RunStats, read_runstats
from tests.memory.replay.logged import LoggedDataset, LoggedFiller, PublishedFiller, follows
from tests.memory.replay.player import Log, Played, Player
from tests.memory.replay.result import Difference, ReplayResult
from tests.memory.replay.resuming import ResumableScheduler

DatasetOf = Callable[[str], Dataset | None]
"""The dataset of a name; None where there is none, whose tests then do what the log shows."""


@dataclass(frozen=True, slots=True)
class PublishedSession:
    """A folder ``<run>/results/<agent>`` with the definitions beside it. ``arguments``: of each dataset in the configuration, by id."""

    run: str
    agent: str
    log: Sequence[Event]
    definitions: Sequence[Definition]
    runstats: RunStats | None
    memory_span: int | None
    incompatibilities: Sequence[frozenset[str]]
    arguments: Mapping[str, Mapping[str, Json]]

    @property
    def is_older(self) -> bool:
        """Whether the log is of the second version, none of whose BEGIN have a count of tokens."""
        begun = [event for event in self.log if event.type is EventType.BEGIN]
        return bool(begun) and not any("tokens" in event.data for event in begun)

    @property
    def is_complete(self) -> bool:
        """Whether all tests ended."""
        ended = {event.test_id for event in self.log if event.type is EventType.END}
        return all(definition.unique_id in ended for definition in self.definitions)

    @property
    def is_isolated(self) -> bool:
        return self.run.endswith(ISOLATED) or self.log[0].type is EventType.BEGIN


def read_session(folder: Path) -> PublishedSession:
    """A session from its folder of results. Raises UserError that names what is missing or wrong."""
    log = read_master_log(folder / "master_log.jsonl")
    if not log:
        raise UserError(f"{folder / 'master_log.jsonl'}: is empty")
    run = folder.parent.parent
    configuration = recorded_configuration(run / "definitions" / "config.yml")
    stats = folder / "runstats.json"
    return PublishedSession(
        run.name,
        folder.name,
        log,
        read_definitions(run / "definitions"),
        read_runstats(stats) if stats.exists() else None,
        configuration.memory_span,
        configuration.incompatibilities,
        dict(reversed(configuration.datasets)),
    )


def replay(
    folder: Path,
    *,
    filler: Sequence[Fact],
    wording: Wording,
    token_lengths: Mapping[int, int] | TokenCounter | None,
    dataset_of: DatasetOf = lambda name: None,
    or_else: DatasetOf | None = None,
    max_message_size: int = 4096,
) -> ReplayResult:
    """Compare a session's log with what the scheduler does.

    ``filler``: the facts that the session's filler was drawn from; filler of sessions whose generator had no seed is accepted as it is.
    ``token_lengths``: by index of the event, or a tokenizer, which also checks how long filler is made (``max_message_size`` tokens at
    most); None: lengths are estimated, so that published logs differ. ``or_else``: the datasets by other rules, which are tried where
    those of ``dataset_of`` don't agree with the log. Raises UserError for a folder that can't be read.
    """
    session = read_session(folder)
    if session.is_older:
        raise UserError(f"{folder}: logs of the format's second version can't be replayed")
    if session.memory_span is None:
        raise UserError(f"{folder.parent.parent / 'definitions' / 'config.yml'}: datasets.args.memory_span: is missing")
    count = _counter(session.log, token_lengths)
    result = _Replay(session, filler, wording, count, dataset_of, max_message_size).result()
    if result.is_exact or or_else is None:
        return result
    other = _Replay(session, filler, wording, count, or_else, max_message_size).result()
    return other if other.is_exact or other.agreeing > result.agreeing else result


def _counter(log: Sequence[Event], lengths: Mapping[int, int] | TokenCounter | None) -> TokenCounter:
    if isinstance(lengths, TokenCounter):
        return lengths
    if lengths is None:
        return estimate()
    texts = ((at, event.message) for at, event in enumerate(log) if event.type in MESSAGES)
    return counted_before(texts, lengths, "lengths from a file")


def read_token_lengths(path: Path) -> dict[str, dict[int, int]]:
    """Token lengths of a log's messages: by ``<run>/<agent>``, then by the index of the event. Raises UserError that names the field."""
    return {run: _lengths(lengths, f"{path}: {run}") for run, lengths in read_object(path).items()}


def _lengths(lengths: Json, place: str) -> dict[int, int]:
    if not isinstance(lengths, dict):
        raise UserError(f"{place}: not an object")
    for index, length in lengths.items():
        if not index.isdecimal() or isinstance(length, bool) or not isinstance(length, int) or length < 0:
            raise UserError(f"{place}: {index}: not the index of an event with its number of tokens")
    return {int(index): length for index, length in lengths.items()}


def counted_before(texts: Iterable[tuple[int, str]], lengths: Mapping[int, int], name: str) -> TokenCounter:
    """A counter that looks up lengths. ``texts``: a log's messages by the index of their event. A text that has no length counts as
    estimated."""
    known = {text: lengths[index] for index, text in texts if index in lengths}
    fallback = estimate()
    return TokenCounter(name, lambda text: known[text] if text in known else fallback(text), exact=False)


class _Replay:
    def __init__(
        self,
        session: PublishedSession,
        facts: Sequence[Fact],
        wording: Wording,
        count: TokenCounter,
        dataset_of: DatasetOf,
        max_message_size: int,
    ) -> None:
        self._session = session
        self._facts = facts
        self._wording = wording
        self._count = count
        self._dataset_of = dataset_of
        self._log = Log(session.log)
        self._fillers: list[LoggedFiller] = []
        self._datasets = {each.unique_id: self._find_dataset(each) for each in session.definitions}
        self._settings = SchedulerSettings(
            memory_span=session.memory_span or 0,
            introduction=wording.intro_message,
            reset_messages=wording.reset_messages,
            incompatibilities=session.incompatibilities,
            isolated=session.is_isolated,
            max_message_size=max_message_size,
        )

    def result(self) -> ReplayResult:
        session = self._session
        player = Player(self._log, self._scheduler, self._ends_well, session.is_isolated)
        played = player.play()
        counters = player.saved(played.part)
        difference = played.part.difference or self._final_difference(counters) or self._filler_difference()
        fills = sum(event.type is EventType.SEND_FILL for event in session.log)
        return ReplayResult(
            run=session.run,
            agent=session.agent,
            verdict="exact" if difference is None else "differs",
            difference=difference,
            events=len(session.log),
            agreeing=played.part.agreeing,
            is_complete=session.is_complete,
            resumes=played.resumes,
            tokens_lost=played.tokens_lost,
            fillers=fills if session.is_isolated else max(0, fills - 1),
            other_fillers=len({text for each in self._fillers for text in each.others}),
            token_counter=self._count.name,
            counters=counters,
            runstats=session.runstats,
            notes=tuple(self._notes(played)),
        )

    def _scheduler(self) -> ResumableScheduler:
        facts = PublishedFiller(self._facts, self._wording, self._count)
        filler = LoggedFiller(facts, self._wording.filler_preamble, self._log.upcoming, by_size=self._count.exact)
        self._fillers.append(filler)
        return ResumableScheduler(
            [self._test(each) for each in self._session.definitions], self._settings, filler, self._count
        )

    def _test(self, definition: Definition) -> ScheduledTest:
        dataset = self._datasets[definition.unique_id]
        arguments = self._session.arguments.get(dataset.id, {})
        return ScheduledTest(definition, dataset, arguments.get("memory_span"), arguments.get("reset_message"))

    def _find_dataset(self, definition: Definition) -> Dataset:
        """The dataset of the test's name; what does as the log shows, if there is none, or if it has a dynamic test say something else
        than the log, as published ones do whose wording and menu are not ours."""
        name = definition.dataset
        dataset = self._dataset_of(name)
        reset = self._wording.reset_messages.get(name, "")
        logged = LoggedDataset(name, self._session.log, self._log.upcoming, reset)
        if dataset is None or definition.is_question:
            return dataset or logged
        own = [event for event in self._session.log if event.test_id == definition.unique_id]
        play = dataset.play(definition)
        return dataset if play is not None and follows(play, own, reset) else logged

    def _ends_well(self, counters: Counters) -> bool:
        return self._final_difference(counters) is None

    def _final_difference(self, counters: Counters) -> Difference | None:
        stats = self._session.runstats
        if stats is None:
            return None
        sides = [("total_tokens", stats.total_tokens, counters.total_tokens)]
        if stats.agent_tokens is not None:
            sides.append(("agent_tokens", stats.agent_tokens, counters.agent_tokens))
        for name, saved, replayed in sides:
            if saved != replayed:
                return Difference(None, "", f"runstats.json {name}", saved, replayed)
        if stats.rnd_state is not None and _state(stats.rnd_state) != _state(counters.filler_state):
            position = [_position(state) for state in (stats.rnd_state, counters.filler_state)]
            return Difference(None, "", "runstats.json rnd_state", *position)
        return None

    def _filler_difference(self) -> Difference | None:
        """The first filler message that a generator with a seed did not draw. After a resume it may have drawn anew, so that only
        its state tells."""
        stats = self._session.runstats
        if stats is None or stats.rnd_state is None or len(self._fillers) != 1:
            return None
        for text, drawn in self._fillers[0].others.items():
            if text != drawn:
                index = next(at for at, each in enumerate(self._session.log) if each.message == text)
                return Difference(index, "", "SEND_FILL message", text, drawn)
        return None

    def _notes(self, played: Played) -> list[str]:
        notes = []
        stats = self._session.runstats
        if stats is None:
            notes.append("there is no runstats.json: the final counters are not compared")
        elif stats.rnd_state is None:
            notes.append("the filler's generator had no seed: its state is not compared, filler is accepted as it is")
        dynamic = [each.unique_id for each in self._session.definitions if not each.is_question]
        followed = sum(isinstance(self._datasets[test_id], LoggedDataset) for test_id in dynamic)
        if followed:
            notes.append(
                f"{followed} of {len(dynamic)} dynamic tests do as the log shows, not as their dataset's rules have it"
            )
        if not self._count.exact:
            notes.append(f"filler is as long as the log's: token lengths come from {self._count.name}")
        if played.part.difference is None and not played.part.is_done:
            notes.append("the session was not finished")
        return notes


def _state(state: Json) -> Json:
    version, numbers, gauss = state
    return version, tuple(numbers), gauss


def _position(state: Json) -> str:
    numbers = tuple(state[1])
    return f"{hash(numbers[:-1]) & 0xFFFFFFFF:08x} at {numbers[-1]}"
