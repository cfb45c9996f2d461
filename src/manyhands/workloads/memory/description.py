"""What the tests of a configuration are, and what a conversation with them would come to, before anything is spent.

To see how its tests would be interleaved, a conversation is simulated without an agent, an engine or a file: an agent that remembers
nothing replies, and rules judge in place of a model; a reply takes no time. So it is as long as can be expected of an agent with short
replies, and a test that stops where it is answered wrong is at its shortest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.usage import Usage
from manyhands.models.pricing import Price, PriceTable, load_price_table
from manyhands.runs.folders import is_made, open_reader
from manyhands.workloads.memory.agents.choice import AgentChoice
from manyhands.workloads.memory.agents.simulated import NOTHING, CostEstimator
from manyhands.workloads.memory.conversation.agent import Incoming
from manyhands.workloads.memory.conversation.definitions import Definition, Evaluation
from manyhands.workloads.memory.conversation.filler import builtin_facts, read_facts
from manyhands.workloads.memory.conversation.schedule import AskModel, Done, Evaluate, ResetAgent, Send, Travel
from manyhands.workloads.memory.conversation.scheduler import Scheduler
from manyhands.workloads.memory.conversation.tokens import TokenCounter, counter_named
from manyhands.workloads.memory.conversation.wording import default_wording, read_wording
from manyhands.workloads.memory.datasets.base import BaseDataset
from manyhands.workloads.memory.datasets.benchmark import Benchmark, datasets_of
from manyhands.workloads.memory.datasets.configuration import Configuration, read_configuration
from manyhands.workloads.memory.datasets.definition_files import read_definitions
from manyhands.workloads.memory.datasets.rule_judge import rule_judge
from manyhands.workloads.memory.folders import CONFIGURATION, DEFINITIONS
from manyhands.workloads.memory.results.timeline import Timeline, timeline_of

_RECORDED = ("isolated", "tokenizer", "filler", "wording", "max_message_size", "max_response_tokens")


@dataclass(frozen=True, slots=True)
class ConversationSettings:
    """What of a run's settings decides how its sessions go. ``limit``: tokens of the agent's context, None for no limit."""

    isolated: bool = False
    tokenizer: str = "auto"
    filler: str | None = None
    wording: str | None = None
    max_message_size: int = 4096
    max_response_tokens: int = 4096
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class DatasetDescription:
    """``tests``: how many there are, or will be; ``messages``, ``questions``, ``needles``, ``script_tokens``: of all its tests together,
    and None for tests that decide from the replies what they say, or that are not written yet; ``seconds``: of virtual time that its
    tests wait; ``written``: whether its tests are made, or a model has yet to write them; ``judged``: of how many tests a model is asked
    something when nothing is remembered."""

    id: str
    name: str
    description: str
    memory_span: int
    tests: int
    messages: int | None
    questions: int | None
    needles: int | None
    script_tokens: int | None
    seconds: float
    written: bool
    judged: int
    uses_callback: bool
    is_temporal: bool


@dataclass(frozen=True, slots=True)
class Description:
    """A configuration described. ``timeline``, ``session``: of the simulated session, None if no test is written; ``tokens``: of its
    conversation; ``counted_by``: how tokens are counted."""

    run_name: str
    memory_span: int
    scoring: str
    isolated: bool
    counted_by: str
    counted_exactly: bool
    datasets: tuple[DatasetDescription, ...]
    benchmark: Benchmark
    timeline: Timeline | None
    session: SimulatedConversation | None

    @property
    def tests(self) -> int:
        return sum(each.tests for each in self.datasets)

    @property
    def filler_tokens(self) -> int:
        """Tokens of filler and the replies to it, the introduction with them."""
        return 0 if self.timeline is None else sum(last - first for first, last in self.timeline.filler)


def describe_configuration(path: Path, settings: ConversationSettings) -> Description:
    """A configuration whose tests are made for this, but for those that a model has to write. Raises UserError."""
    configuration = read_configuration(path)
    datasets = datasets_of(configuration, counter_named(settings.tokenizer))
    made, unwritten = _made(configuration, datasets)
    return _outlook(configuration, datasets, made, unwritten, settings)


def describe_run(folder: Path, settings: ConversationSettings) -> Description:
    """The tests of a run, as its definitions have them. Raises UserError."""
    configuration = read_configuration(folder / DEFINITIONS / CONFIGURATION)
    datasets = datasets_of(configuration, counter_named(settings.tokenizer))
    definitions = [each for each in read_definitions(folder / DEFINITIONS) if each.dataset in datasets]
    return _outlook(configuration, datasets, definitions, set(), settings)


def recorded_settings(folder: Path) -> dict[str, Any]:
    """What a run was made with, by the names of ``ConversationSettings``; empty for a folder without a journal."""
    if not is_made(folder):
        return {}
    with closing(open_reader(folder)) as reader:
        options = reader.meta("spec").get("options", {})
    return {name: options[name] for name in _RECORDED if options.get(name) is not None}


def price_of(choice: AgentChoice, prices: Path | None) -> Price | None:
    """What an agent's model costs; None where that is not known, or the agent asks more than the message. Raises UserError for a price
    table that can't be read."""
    if choice.kind == "cost":
        return Price(1000 * choice.prices[0], 1000 * choice.prices[1])
    if choice.kind not in ("chat", "timestamps"):
        return None
    table = PriceTable() if prices is None else load_price_table(prices)
    return table.price(choice.model)


def expected_cost(outlook: Description, settings: ConversationSettings, price: Price) -> Usage:
    """What one session would use and cost, as the agent ``cost(…)`` estimates it; what the judge costs is not in it."""
    limit, reserve = settings.limit, settings.max_response_tokens
    estimator = CostEstimator(
        "cost",
        outlook.benchmark.tokens,
        input_price=price.input / 1000,
        output_price=price.output / 1000,
        limit=limit,
        reserve=reserve if limit is None else min(reserve, limit // 4),
    )
    scheduler = outlook.benchmark.scheduler(isolated=settings.isolated, max_message_size=settings.max_message_size)
    return estimated_cost(scheduler, estimator)


def _made(configuration: Configuration, datasets: dict[str, BaseDataset]) -> tuple[list[Definition], set[str]]:
    """The tests that no model has to write, and the ids of datasets of the others."""
    by_id = {dataset.id: dataset for dataset in datasets.values()}
    made: list[Definition] = []
    unwritten = set()
    for entry in configuration.datasets:
        dataset = by_id.pop(entry.id, None)
        if dataset is None:
            continue
        making = dataset.generate(entry.examples, entry.seed, entry.memory_span)
        try:
            next(making)
        except StopIteration as end:
            made += end.value
        else:
            making.close()
            unwritten.add(entry.id)
    return sorted(made, key=lambda definition: definition.unique_id), unwritten


def _outlook(
    configuration: Configuration,
    datasets: dict[str, BaseDataset],
    definitions: Sequence[Definition],
    unwritten: set[str],
    settings: ConversationSettings,
) -> Description:
    tokens = counter_named(settings.tokenizer)
    benchmark = Benchmark(
        configuration,
        datasets,
        tuple(definitions),
        default_wording() if settings.wording is None else read_wording(Path(settings.wording)),
        builtin_facts() if settings.filler is None else read_facts(Path(settings.filler)),
        tokens,
    )
    session = None
    if definitions:
        session = simulate(benchmark.scheduler(isolated=settings.isolated, max_message_size=settings.max_message_size))
    return Description(
        configuration.run_name,
        configuration.memory_span,
        configuration.scoring,
        settings.isolated,
        tokens.name,
        tokens.exact,
        tuple(_descriptions(benchmark, unwritten, {} if session is None else session.judged)),
        benchmark,
        None if session is None else session.timeline(tokens),
        session,
    )


def _descriptions(benchmark: Benchmark, unwritten: set[str], judged: dict[str, int]) -> list[DatasetDescription]:
    entries = {entry.id: entry for entry in reversed(benchmark.configuration.datasets)}
    found = []
    for name, dataset in benchmark.datasets.items():
        own = [each for each in benchmark.definitions if each.dataset == name]
        entry = entries[dataset.id]
        known = bool(own) and all(each.is_question for each in own)
        messages = sum(len(each.is_question) for each in own)
        questions = sum(each.number_of_questions for each in own)
        found.append(
            DatasetDescription(
                dataset.id,
                name,
                dataset.description,
                entry.memory_span,
                entry.examples if dataset.id in unwritten else len(own),
                messages if known else None,
                questions if known else None,
                messages - questions if known else None,
                sum(benchmark.tokens(line) for each in own for line in each.script) if known else None,
                sum(wait.seconds for each in own for wait in each.waits),
                dataset.id not in unwritten,
                sum(each.unique_id in judged for each in own),
                any(each.uses_callback for each in own),
                any(each.is_temporal for each in own),
            )
        )
    return found


MAX_ACTIONS = 2_000_000
"""After which a session counts as one without an end."""
START = 1_704_103_200.0
"""When sessions begin, in virtual time: seconds since 1970 UTC."""
Reply = Callable[[Incoming], str]


@dataclass(slots=True)
class SimulatedConversation:
    """``judged``: how often the judge was asked, by test; ``messages``: how many the agent was sent; ``answered``: to how many of these it
    had to reply itself."""

    scheduler: Scheduler
    judged: dict[str, int] = field(default_factory=dict)
    messages: int = 0
    answered: int = 0
    now: float = START

    def timeline(self, tokens: TokenCounter) -> Timeline:
        return timeline_of(self.scheduler.events, tokens)


def forgetful(incoming: Incoming) -> str:
    """Remembers nothing."""
    return NOTHING if incoming.expected_reply is None else incoming.expected_reply


def simulate(
    scheduler: Scheduler,
    reply: Reply = forgetful,
    reset: Callable[[], None] = lambda: None,
    *,
    most_actions: int = MAX_ACTIONS,
) -> SimulatedConversation:
    """Hold a session to its end. Raises UserError if it has none."""
    session = SimulatedConversation(scheduler)
    for _ in range(most_actions):
        action = scheduler.next(session.now)
        match action:
            case Send():
                _send(session, action, reply)
            case AskModel():
                _note(session, action.test_id)
                scheduler.answered(rule_judge(action.ask), session.now)
            case Evaluate():
                scheduler.evaluated(_evaluated(session, action))
            case Travel():
                session.now = action.to
            case ResetAgent():
                reset()
            case Done():
                return session
            case _:
                pass
    raise UserError(f"the session has no end: after {most_actions:,} actions there are tests left")


def estimated_cost(scheduler: Scheduler, estimator: CostEstimator) -> Usage:
    """What a model would use in a session, as the agent ``cost(…)`` has it. Raises UserError if the session has no end."""
    simulate(scheduler, lambda incoming: estimator.answer(incoming).text, estimator.forget)
    return estimator.spent


def _send(session: SimulatedConversation, send: Send, reply: Reply) -> None:
    session.messages += 1
    session.answered += send.expected_reply is None
    text = reply(Incoming(session.messages, send.message, session.now, send.expected_reply))
    session.scheduler.replied(text, session.now, session.now)


def _note(session: SimulatedConversation, test_id: str) -> None:
    session.judged[test_id] = session.judged.get(test_id, 0) + 1


def _evaluated(session: SimulatedConversation, action: Evaluate) -> Evaluation:
    scoring = session.scheduler.runs[action.test_id].test.dataset.evaluate(action.exchange)
    try:
        ask = next(scoring)
        while True:
            _note(session, action.test_id)
            ask = scoring.send(rule_judge(ask))
    except StopIteration as end:
        evaluation: Evaluation = end.value
        return evaluation
