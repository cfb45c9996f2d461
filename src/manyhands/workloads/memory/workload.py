"""The memory workload: an agent's memory is tested in one long conversation (one agent, one configuration), which is an item.

The clock of this process can show the virtual time, for agents that read it (the package ``time-machine``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from datetime import datetime
from math import ceil
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from manyhands.agents.run_settings import API_KEY, chat_settings, check_node, keys_in, model_of
from manyhands.agents.task import moment
from manyhands.core.digests import digest
from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import (
    Context,
    Execution,
    Item,
    PlannedItem,
    RecordedStep,
    Workload,
)
from manyhands.engine.journal.reader import run_id_of
from manyhands.engine.workspaces import STATES
from manyhands.models.factory import is_simulated, key_variable
from manyhands.models.headers import headers_among
from manyhands.models.openai.embeddings import OpenAIEmbeddings
from manyhands.models.pricing import load_price_table
from manyhands.models.protocol import ChatModel
from manyhands.processes.strays import process_mark
from manyhands.runs.making import KEPT, kept_file
from manyhands.workloads.memory.agents.choice import choose_agent
from manyhands.workloads.memory.agents.factory import AgentSetup, make_agent
from manyhands.workloads.memory.agents.model_agents import ContextSize
from manyhands.workloads.memory.agents.model_calls import EmbeddingCaller, ModelCaller
from manyhands.workloads.memory.agents.simulated import (
    CostEstimator,
    ForgetfulAgent,
    Insight,
    PerfectAgent,
    ReadingModel,
)
from manyhands.workloads.memory.conversation.definitions import Definition
from manyhands.workloads.memory.conversation.driver import Conversation, MemoryAgent
from manyhands.workloads.memory.conversation.tokens import TokenCounter, counter_named
from manyhands.workloads.memory.datasets.base import BaseDataset
from manyhands.workloads.memory.datasets.benchmark import Benchmark, load_benchmark
from manyhands.workloads.memory.datasets.configuration import read_configuration
from manyhands.workloads.memory.folders import (
    CONFIGURATION,
    DEFINITIONS,
    PERSISTENCE,
    RESULTS,
    ResultPaths,
    move_aside,
    persistence_folder,
)
from manyhands.workloads.memory.judge import ModelJudge, RuleJudge, judge_of
from manyhands.workloads.memory.results.files import ConversationFiles
from manyhands.workloads.memory.results.records import LoggedExchanges, conversation_record
from manyhands.workloads.memory.settings import EMBEDDING_KEY, MemorySpec

MAX_ATTEMPTS = 5
"""Attempts at a conversation whose agent fails, if nothing else was said."""


OWNER = "owner"
"""The key of the spec for what is as on the owner's machine."""


class ConversationEntry(TypedDict):
    """A conversation, in the spec of its run."""

    agent: str
    """As it was typed."""
    name: str
    """What results call the agent."""
    limit: int | None
    """Tokens of the agent's context; None for no limit."""
    round: int
    """How many conversations with this agent were begun before and given up."""
    start_time: str | None
    """Virtual time of its beginning, as ISO 8601; None: when it is begun."""
    local: NotRequired[bool]
    """The agent's costs are not counted."""
    asks_class: NotRequired[bool]
    """Of a Python class: whether its own ``token_len`` and ``max_message_size`` count."""
    performed: NotRequired[bool]
    """Whether it is executed now (the default), or was begun earlier and is left alone."""


class MemoryWorkload(Workload):
    """Conversations become scores; each keeps up its files itself. ``spec``: ``{"options": …, "sessions": [ConversationEntry, …]}``, and
    ``owner`` (see ``facts_of_owner``) where conversations are executed on other machines."""

    name = "memory"
    concurrency_setting = "concurrency"
    worker_files = (KEPT, DEFINITIONS)
    worker_results = (RESULTS,)
    plans_in_parts = True
    """The conversations that are executed now need not be all of the run's."""

    def __init__(self, spec: dict[str, Any], run_folder: Path) -> None:
        self.spec = spec
        self._folder = run_folder
        # data/tests/RUN
        self._options = MemorySpec.from_record(spec["options"], data_dir=str(run_folder.absolute().parent.parent))
        self._benchmark: Benchmark | None = None
        self._exchanges = LoggedExchanges(run_folder)
        owner = spec.get(OWNER, {})
        self._current = Path(owner.get("folder", Path.cwd()))
        self._tokenizer: str = owner.get("tokenizer", self._options.tokenizer)
        self.watching: list[Conversation] = []
        """The conversations that run in this process, for whoever shows them."""

    @property
    def options(self) -> MemorySpec:
        return self._options

    @property
    def benchmark(self) -> Benchmark:
        """Read when it is first needed. Raises UserError."""
        if self._benchmark is None:
            definitions = self._folder / DEFINITIONS
            self._benchmark = load_benchmark(
                read_configuration(definitions / CONFIGURATION),
                definitions,
                wording=self._options.wording,
                filler=self._options.filler,
                tokenizer=self._tokenizer,
            )
        return self._benchmark

    @property
    def execution(self) -> Execution:
        options = self._options
        apart = options.time_travel == "process"  # a process has but one clock
        at_once = min(options.concurrency, max(1, len(self.executed)))
        workers = at_once if apart else min(options.num_workers, at_once)
        return options.execution(
            executor="processes" if apart and options.executor == "local" else options.executor,
            seed=options.seed or 0,
            workers=workers,
            concurrency=1 if apart else ceil(options.concurrency / workers),
            max_in_flight=options.concurrency,
            one_item_a_process=apart,
            calls_wanted=options.concurrency,
            item_timeout=options.item_timeout,
        )

    def max_attempts(self, item: Item, failure: ItemError) -> int | None:
        """An agent that fails is tried again, from where the conversation was."""
        return (self._options.max_attempts or MAX_ATTEMPTS) if failure.cause is Cause.TARGET_ERROR else None

    @property
    def executed(self) -> list[ConversationEntry]:
        """The conversations that are executed now; others of the run stay as they are."""
        return [each for each in self.spec["sessions"] if each.get("performed", True)]

    def input_identity(self) -> str | None:
        return digest("sessions", [self.executed, self.benchmark.digest]).hex()

    def plan(self) -> Iterable[PlannedItem]:
        for each in self.executed:
            number = each["round"]
            key = each["name"] if number == 0 else f"{each['name']} #{number + 1}"
            yield PlannedItem(key, {**each, "tests": self.benchmark.digest})

    @property
    def modules(self) -> Sequence[tuple[str, Path]]:
        choices = (choose_agent(each["agent"]) for each in self.executed)
        return [(choice.module, self._current) for choice in choices if choice.kind == "python"]

    @asynccontextmanager
    async def opened(self, *, replay: bool = False) -> AsyncIterator[None]:
        _ = self.benchmark  # whatever is wrong with it is found before anything is called
        if self._options.executor == "ray" and not replay:
            started = any(choose_agent(each["agent"]).kind == "command" for each in self.executed)
            check_node({"--agent_name: the current folder": self._current if started else None})
        yield
        self.watching.clear()

    async def run(self, context: Context) -> Outcome:
        payload = context.item.payload
        options, benchmark = self._options, self.benchmark
        start = await self._start(context)
        conversations: list[Conversation] = []
        agent = self._agent(context, start, conversations)
        own_size = agent.max_message_size
        scheduler = benchmark.scheduler(
            isolated=options.isolated,
            max_message_size=options.max_message_size if own_size is None else own_size,
            tokens=agent.tokens,
        )
        is_estimate = isinstance(agent, CostEstimator)
        judge = None if is_estimate else judge_of(options, self._secrets, self._folder)
        paths = ResultPaths.of(self._folder, payload["name"])
        about = self._about(agent, judge, agent.tokens or benchmark.tokens)
        files = ConversationFiles(paths, about, is_replaying=lambda: context.replaying)
        conversation = Conversation(
            scheduler,
            agent,
            judge,
            start,
            files,
            options.time_travel,
            is_free=payload.get("local", False),
            is_estimate=is_estimate,
        )
        conversations.append(conversation)
        async with AsyncExitStack() as closing:
            if judge is not None:
                closing.push_async_callback(judge.close)
            closing.push_async_callback(agent.close)
            closing.callback(self.watching.remove, conversation)
            closing.callback(files.close, conversation)
            self.watching.append(conversation)
            await conversation.run(context)
        return Outcome(ItemState.COMPLETED, conversation_record(conversation, payload["name"]))

    def describe_step(self, step: RecordedStep) -> Iterable[tuple[str, str]]:
        return self._exchanges.describe(step)

    async def _start(self, context: Context) -> float:
        """When the conversation begins, in virtual time."""
        named = context.item.payload["start_time"]
        return await moment(context) if named is None else datetime.fromisoformat(named).timestamp()

    def _agent(self, context: Context, start: float, conversations: list[Conversation]) -> MemoryAgent:
        payload: Mapping[str, Any] = context.item.payload
        options, choice = self._options, choose_agent(payload["agent"])
        if choice.kind == "perfect":
            return PerfectAgent(lambda: self._insight(conversations[0]))
        if choice.kind == "forgetful":
            return ForgetfulAgent()
        run_name, run_id = self._folder.name, run_id_of(self._folder)
        folder = self._kept_by_agent(context).absolute()
        if not context.resumed and folder.is_dir():
            move_aside(folder)  # what an earlier conversation kept is nothing that this one's agent knows
        setup = AgentSetup(
            conversation=f"{run_name} - {payload['name']} ({run_id[:8]}-{context.item.number}-{context.attempt})",
            folder=folder,
            current=self._current,
            mark=process_mark(run_id),
            token_length=self.benchmark.tokens,
            size=ContextSize.of(payload["limit"], options.max_response_tokens),
            max_message_size=options.max_message_size,
            seconds=options.message_timeout,
            started_at=start,
            clock=clock_of_process() if options.time_travel == "process" else None,
            name=payload["name"],
            isolated=options.isolated,
            asks_class=payload.get("asks_class", False),
            caller=self._caller,
            embedder=self._embedder,
        )
        return make_agent(choice, setup)

    def _kept_by_agent(self, context: Context) -> Path:
        """Where an agent keeps what it wants to keep. On another machine that is of one attempt: there may be more there of others, which
        went on elsewhere."""
        if self._options.executor == "ray":
            return self._folder / STATES / f"{context.item.number}-{context.attempt}" / PERSISTENCE
        return persistence_folder(Path(self._options.data_dir), self._folder.name, context.item.payload["name"])

    def _insight(self, conversation: Conversation) -> Insight:
        scheduler, sent = conversation.scheduler, conversation.sending
        asking = scheduler.begun[sent.test_id] if sent is not None and sent.test_id else None
        unfinished = [each for each in scheduler.begun.values() if each.test.id in scheduler.tests]
        return Insight(
            None if asking is None else self._with_dataset(asking.test.definition),
            scheduler.conversation.messages,
            [self._with_dataset(each.test.definition) for each in unfinished],
        )

    def _with_dataset(self, definition: Definition) -> tuple[Definition, BaseDataset]:
        return definition, self.benchmark.datasets[definition.dataset]

    def _caller(self, model: str) -> ModelCaller:
        options = self._options.for_model(model)
        settings = chat_settings(options)
        if is_simulated(model, options.base_url):
            tests = [self._with_dataset(each) for each in self.benchmark.definitions]
            chat_model: ChatModel = ReadingModel(tests, options.simulated_latency)
        else:
            headers = headers_among(self._secrets, API_KEY)
            keys = keys_in(self._secrets, API_KEY)
            chat_model = model_of(options, keys, self._folder, self._options, headers=headers)
        return ModelCaller(chat_model, settings)

    def _embedder(self) -> EmbeddingCaller:
        options = self._options
        prices = None if options.prices is None else load_price_table(kept_file(self._folder, options.prices))
        url, keys = options.embedding_base_url or options.base_url, keys_in(self._secrets, EMBEDDING_KEY)
        headers = headers_among(self._secrets, EMBEDDING_KEY)
        return EmbeddingCaller(
            OpenAIEmbeddings(
                url, options.embedding_model, keys, prices=prices, headers=headers, provider_of=key_variable
            )
        )

    def _about(self, agent: MemoryAgent, judge: ModelJudge | RuleJudge | None, tokens: TokenCounter) -> dict[str, Any]:
        options = self._options
        return {
            "agent": agent.name,
            "simulated": agent.simulated,
            "judge": None if judge is None else judge.name,
            "tokenizer": tokens.name,
            "tokens_are_exact": tokens.exact,
            "scoring": self.benchmark.configuration.scoring,
            "isolated": options.isolated,
            "run": self._folder.name,
        }


def facts_of_owner(options: MemorySpec) -> dict[str, Any]:
    """What conversations on other machines go by, in their spec: where agents start that are programs or files, and how tokens are counted;
    nothing if they are executed on this machine."""
    if options.executor != "ray":
        return {}
    tokens = options.tokenizer
    if tokens == "auto":
        tokens = "cl100k" if counter_named(tokens).exact else "estimate"
    return {OWNER: {"folder": str(Path.cwd()), "tokenizer": tokens}}


def clock_of_process() -> Callable[[float], AbstractContextManager[Any]]:
    """What makes the process's clock go on from a time, in seconds since 1970 UTC, for as long as something runs.

    Raises UserError if the package is not installed.
    """
    try:
        import time_machine
    except ImportError:
        raise UserError(
            "--time_travel=process needs the package time-machine: pip install 'manyhands[time-travel]'"
        ) from None

    def travelled(now: float) -> AbstractContextManager[Any]:
        moved: AbstractContextManager[Any] = time_machine.travel(now, tick=True)
        return moved

    return travelled
