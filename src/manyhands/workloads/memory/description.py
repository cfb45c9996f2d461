"""What the tests of a configuration are, how they would be interleaved, and what that would cost, before anything is spent.

For the schedule, a conversation is simulated without an engine or a file: an agent that remembers nothing replies, and rules judge in
place of a model; a reply takes no time. So it is as long as can be expected of an agent with short replies, and a test that stops where it
is answered wrong is at its shortest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.usage import Usage
from manyhands.models.pricing import Price, PriceTable, load_price_table
from manyhands.runs.folders import is_made, open_reader
from manyhands.workloads.memory.agents.choice import AgentChoice
from manyhands.workloads.memory.agents.model_agents import ContextSize
from manyhands.workloads.memory.agents.simulated import NOTHING, CostEstimator
from manyhands.workloads.memory.conversation.definitions import Definition, Evaluation
from manyhands.workloads.memory.conversation.driver import Incoming
from manyhands.workloads.memory.conversation.filler import builtin_facts, default_wording, read_facts, read_wording
from manyhands.workloads.memory.conversation.schedule import AskModel, Done, Evaluate, ResetAgent, Send, Travel
from manyhands.workloads.memory.conversation.scheduler import Scheduler
from manyhands.workloads.memory.conversation.tokens import counter_named
from manyhands.workloads.memory.datasets.base import BaseDataset
from manyhands.workloads.memory.datasets.benchmark import Benchmark, datasets_of, read_definitions
from manyhands.workloads.memory.datasets.configuration import Configuration, read_configuration
from manyhands.workloads.memory.datasets.registry import reset_messages, rule_judge
from manyhands.workloads.memory.folders import CONFIGURATION, DEFINITIONS, ISOLATED
from manyhands.workloads.memory.results.timeline import Timeline, timeline_of

_RECORDED = ("isolated", "tokenizer", "filler", "wording", "max_message_size", "max_response_tokens")


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """The settings of a run that decide how its tests are interleaved, and what a conversation costs."""

    isolated: bool = False
    tokenizer: str = "auto"
    filler: str | None = None
    wording: str | None = None
    max_message_size: int = 4096
    max_response_tokens: int = 4096
    limit: int | None = None
    """Tokens of the agent's context; None for no limit."""


@dataclass(frozen=True, slots=True)
class DatasetDescription:
    """The tests of one dataset. Their sums are None where tests decide from the replies what they say, or are not written yet."""

    id: str
    """Its name in configurations."""
    name: str
    """Its name in results and folders."""
    description: str
    memory_span: int
    """In tokens."""
    tests: int
    """How many there are, or will be."""
    messages: int | None
    questions: int | None
    needles: int | None
    """Messages that are no questions."""
    script_tokens: int | None
    seconds: float
    """Virtual time that its tests wait, all together."""
    written: bool
    """Whether its tests are made; else a model has to write them."""
    judged: int
    """Tests for which a model is called when nothing is remembered."""
    uses_callback: bool
    is_temporal: bool


@dataclass(frozen=True, slots=True)
class Description:
    """A configuration described."""

    benchmark: Benchmark
    isolated: bool
    datasets: tuple[DatasetDescription, ...]
    timeline: Timeline | None
    """Of the simulated conversation; None if no test is written."""
    conversation: SimulatedConversation | None
    """None if no test is written."""

    @property
    def tests(self) -> int:
        return sum(each.tests for each in self.datasets)

    @property
    def filler_tokens(self) -> int:
        """Tokens of filler and the replies to it, the introduction with them."""
        return 0 if self.timeline is None else sum(last - first for first, last in self.timeline.filler)


def describe_configuration(path: Path, settings: ScheduleSettings) -> Description:
    """A configuration whose tests are made for this, but for those that a model has to write. Raises UserError."""
    configuration = read_configuration(path)
    datasets = datasets_of(configuration, counter_named(settings.tokenizer))
    made, unwritten = _made(configuration, datasets)
    return _description(configuration, datasets, made, unwritten, settings)


def describe_run(folder: Path, settings: ScheduleSettings) -> Description:
    """The tests of a run, as its definitions have them. Raises UserError."""
    configuration = read_configuration(folder / DEFINITIONS / CONFIGURATION)
    datasets = datasets_of(configuration, counter_named(settings.tokenizer))
    definitions = [each for each in read_definitions(folder / DEFINITIONS) if each.dataset in datasets]
    return _description(configuration, datasets, definitions, set(), settings)


def schedule_settings(folder: Path | None, typed: Mapping[str, Any], *, isolated: bool) -> ScheduleSettings:
    """The settings that were typed, else those that a run was made with. ``folder``: of the run, None if there is none."""
    recorded: dict[str, Any] = {}
    if folder is not None and is_made(folder):
        with closing(open_reader(folder)) as reader:
            options = reader.meta("spec").get("options", {})
        recorded = {name: options[name] for name in _RECORDED if options.get(name) is not None}
    isolated = isolated or (folder is not None and folder.absolute().name.endswith(ISOLATED))
    return ScheduleSettings(**{**recorded, **typed, "isolated": isolated or recorded.get("isolated", False)})


def price_of(choice: AgentChoice, prices: Path | None) -> Price | None:
    """What an agent's model costs; None where that is not known, or the agent asks more than the message. Raises UserError for a price
    table that can't be read."""
    if choice.kind == "cost":
        return Price(1000 * choice.prices[0], 1000 * choice.prices[1])
    if choice.kind not in ("chat", "timestamps"):
        return None
    table = PriceTable() if prices is None else load_price_table(prices)
    return table.price(choice.model)


def expected_cost(description: Description, settings: ScheduleSettings, price: Price) -> Usage:
    """What one conversation would use and cost, as the agent ``cost(…)`` estimates it; what the judge costs is not in it."""
    estimator = CostEstimator(
        "cost",
        description.benchmark.tokens,
        ContextSize.of(settings.limit, settings.max_response_tokens),
        input_price=price.input / 1000,
        output_price=price.output / 1000,
    )
    simulate(
        _scheduler(description.benchmark, settings), lambda incoming: estimator.answer(incoming).text, estimator.forget
    )
    return estimator.spent


def description_json(description: Description, cost: Usage | None) -> dict[str, Any]:
    """A description as plain data. ``cost``: what is expected, None if it is not known."""
    configuration, tokens = description.benchmark.configuration, description.benchmark.tokens
    timeline, conversation = description.timeline, description.conversation
    schedule = None
    if timeline is not None and conversation is not None:
        schedule = {
            "simulated": True,
            "tokens": timeline.tokens,
            "filler_tokens": description.filler_tokens,
            "fillers": timeline.fillers,
            "messages": conversation.messages,
            "replies": conversation.answered,
            "virtual_seconds": timeline.seconds,
            "courses": [asdict(course) for course in timeline.courses],
        }
    return {
        "run_name": configuration.run_name,
        "memory_span": configuration.memory_span,
        "scoring": configuration.scoring,
        "isolated": description.isolated,
        "tokens_counted_by": tokens.name,
        "tokens_are_exact": tokens.exact,
        "tests": description.tests,
        "datasets": [asdict(each) for each in description.datasets],
        "schedule": schedule,
        "expected_cost": None if cost is None else cost.to_json(),
    }


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


def _description(
    configuration: Configuration,
    datasets: dict[str, BaseDataset],
    definitions: Sequence[Definition],
    unwritten: set[str],
    settings: ScheduleSettings,
) -> Description:
    benchmark = Benchmark(
        configuration,
        datasets,
        tuple(definitions),
        default_wording(reset_messages(datasets.values()))
        if settings.wording is None
        else read_wording(Path(settings.wording)),
        builtin_facts() if settings.filler is None else read_facts(Path(settings.filler)),
        counter_named(settings.tokenizer),
    )
    if not definitions:
        return Description(benchmark, settings.isolated, tuple(_of_datasets(benchmark, unwritten, {})), None, None)
    conversation = simulate(_scheduler(benchmark, settings))
    return Description(
        benchmark,
        settings.isolated,
        tuple(_of_datasets(benchmark, unwritten, conversation.judged)),
        timeline_of(conversation.scheduler.events, benchmark.tokens),
        conversation,
    )


def _scheduler(benchmark: Benchmark, settings: ScheduleSettings) -> Scheduler:
    return benchmark.scheduler(isolated=settings.isolated, max_message_size=settings.max_message_size)


def _of_datasets(benchmark: Benchmark, unwritten: set[str], judged: dict[str, int]) -> list[DatasetDescription]:
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
"""After which a conversation counts as one without an end."""
START = 1_704_103_200.0
"""When simulated conversations begin: virtual time, in seconds since 1970 UTC."""
Reply = Callable[[Incoming], str]


@dataclass(slots=True)
class SimulatedConversation:
    """A conversation that was simulated."""

    scheduler: Scheduler
    judged: dict[str, int] = field(default_factory=dict)
    """How often the judge was called, by test."""
    messages: int = 0
    """How many the agent was sent."""
    answered: int = 0
    """To how many of these it had to reply itself."""
    now: float = START


def forgetful(incoming: Incoming) -> str:
    """Remembers nothing."""
    return NOTHING if incoming.expected_reply is None else incoming.expected_reply


def simulate(
    scheduler: Scheduler,
    reply: Reply = forgetful,
    reset: Callable[[], None] = lambda: None,
    *,
    max_actions: int = MAX_ACTIONS,
) -> SimulatedConversation:
    """Simulate a conversation to its end. Raises UserError if it has none."""
    conversation = SimulatedConversation(scheduler)
    for _ in range(max_actions):
        action = scheduler.next(conversation.now)
        match action:
            case Send():
                _send(conversation, action, reply)
            case AskModel():
                _note(conversation, action.test_id)
                scheduler.answered(rule_judge(action.ask), conversation.now)
            case Evaluate():
                scheduler.evaluated(_evaluated(conversation, action))
            case Travel():
                conversation.now = action.to
            case ResetAgent():
                reset()
            case Done():
                return conversation
            case _:
                pass
    raise UserError(f"the conversation has no end: after {max_actions:,} actions there are tests left")


def _send(conversation: SimulatedConversation, send: Send, reply: Reply) -> None:
    conversation.messages += 1
    conversation.answered += send.expected_reply is None
    text = reply(Incoming(conversation.messages, send.message, conversation.now, send.expected_reply))
    conversation.scheduler.replied(text, conversation.now, conversation.now)


def _note(conversation: SimulatedConversation, test_id: str) -> None:
    conversation.judged[test_id] = conversation.judged.get(test_id, 0) + 1


def _evaluated(conversation: SimulatedConversation, action: Evaluate) -> Evaluation:
    scoring = conversation.scheduler.begun[action.test_id].test.dataset.evaluate(action.exchange)
    try:
        ask = next(scoring)
        while True:
            _note(conversation, action.test_id)
            ask = scoring.send(rule_judge(ask))
    except StopIteration as end:
        evaluation: Evaluation = end.value
        return evaluation
