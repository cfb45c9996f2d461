"""The memory workload: an agent's memory is tested in one long conversation (one agent, one configuration), which is an item.

The clock of this process can show the virtual time, for agents that read it (the package ``time-machine``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from manyhands.agents.run_settings import API_KEY, chat_settings, execution_of, model_of
from manyhands.agents.task import moment
from manyhands.core.digests import digest
from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import (
    Context,
    Execution,
    FinishedItem,
    Item,
    PlannedItem,
    RecordedStep,
    RunReader,
    Workload,
)
from manyhands.engine.journal.reader import run_id_of
from manyhands.models.factory import is_simulated
from manyhands.models.pricing import load_price_table
from manyhands.models.protocol import ChatModel
from manyhands.processes.strays import process_mark
from manyhands.runs.making import kept_file
from manyhands.workloads.memory.agents.choice import choose_agent
from manyhands.workloads.memory.agents.factory import AgentSetup, make_agent
from manyhands.workloads.memory.agents.model_calls import EndpointEmbedder, ModelCaller
from manyhands.workloads.memory.agents.simulated import (
    CostEstimator,
    ForgetfulAgent,
    Insight,
    PerfectAgent,
    ReadingModel,
)
from manyhands.workloads.memory.conversation.agent import MemoryAgent
from manyhands.workloads.memory.conversation.driver import Conversation
from manyhands.workloads.memory.conversation.tokens import TokenCounter
from manyhands.workloads.memory.datasets.benchmark import Benchmark, load_benchmark
from manyhands.workloads.memory.datasets.configuration import read_configuration
from manyhands.workloads.memory.folders import CONFIGURATION, ResultPaths, move_aside, persistence_folder
from manyhands.workloads.memory.judge import ModelJudge, RuleJudge, judge_of
from manyhands.workloads.memory.results.files import ConversationFiles
from manyhands.workloads.memory.results.records import session_record
from manyhands.workloads.memory.results.steps import LoggedExchanges
from manyhands.workloads.memory.settings import EMBEDDING_KEY, MemorySpec

TRIES = 5
"""How often a session is performed in all whose agent fails, if nothing else was said."""


class MemoryWorkload(Workload):
    """Sessions become scores. ``spec``: ``{"options": …, "sessions": [{"agent", "name", "limit", "round",
    "start_time", "local", "asks_class"}, …]}``; sessions with ``"performed": false`` were begun earlier and are left alone."""

    name = "memory"
    plans_in_parts = True
    """The sessions that are held now need not be all of the run's."""

    def __init__(self, spec: dict[str, Any], run_folder: Path) -> None:
        self.spec = spec
        self._folder = run_folder
        # data/tests/RUN
        self._options = MemorySpec(**spec["options"], data_dir=str(run_folder.absolute().parent.parent))
        self._secrets: dict[str, str] = {}
        self._benchmark: Benchmark | None = None
        self._exchanges = LoggedExchanges(run_folder)
        self.watching: list[Conversation] = []
        """The sessions that are held in this process, for whoever shows them."""

    @property
    def options(self) -> MemorySpec:
        return self._options

    @property
    def benchmark(self) -> Benchmark:
        """Read when it is first needed. Raises UserError."""
        if self._benchmark is None:
            definitions = self._folder / "definitions"
            self._benchmark = load_benchmark(
                read_configuration(definitions / CONFIGURATION),
                definitions,
                wording=self._options.wording,
                filler=self._options.filler,
                tokenizer=self._options.tokenizer,
            )
        return self._benchmark

    @property
    def execution(self) -> Execution:
        options = self._options
        apart = options.time_travel == "process"  # a process has but one clock
        return execution_of(
            options.model_copy(update={"executor": "processes"}) if apart else options,
            workers=min(options.concurrency, max(1, len(self._performed))) if apart else 1,
            concurrency=1 if apart else options.concurrency,
            item_timeout=options.item_timeout,
        )

    def max_attempts(self, item: Item, failure: ItemError) -> int | None:
        """An agent that fails is tried again, from where the session was."""
        return (self._options.max_attempts or TRIES) if failure.cause is Cause.TARGET_ERROR else None

    @property
    def _performed(self) -> list[dict[str, Any]]:
        """The sessions that are held now; others of the run stay as they are."""
        return [each for each in self.spec["sessions"] if each.get("performed", True)]

    def input_identity(self) -> str | None:
        return digest("sessions", [self._performed, self.benchmark.digest]).hex()

    def plan(self) -> Iterable[PlannedItem]:
        for session in self._performed:
            number = session["round"]
            key = session["name"] if number == 0 else f"{session['name']} #{number + 1}"
            yield PlannedItem(key, {**session, "tests": self.benchmark.digest})

    def secrets(self) -> dict[str, str]:
        return self._secrets

    def set_secrets(self, secrets: Mapping[str, str]) -> None:
        self._secrets = dict(secrets)

    @asynccontextmanager
    async def opened(self, *, replay: bool = False) -> AsyncIterator[None]:
        _ = self.benchmark  # whatever is wrong with it is found before anything is asked
        yield
        self.watching.clear()

    async def run(self, context: Context) -> Outcome:
        payload = context.item.payload
        options, benchmark = self._options, self.benchmark
        start = await self._start(context)
        sessions: list[Conversation] = []
        agent = self._agent(context, start, sessions)
        # An agent may have a limit of its own.
        size = agent.max_message_size
        tokens: TokenCounter | None = getattr(agent, "tokens", None)
        scheduler = benchmark.scheduler(isolated=options.isolated, max_message_size=size, tokens=tokens)
        is_estimate = isinstance(agent, CostEstimator)
        judge = None if is_estimate else judge_of(options, self._secrets, self._folder)
        places = ResultPaths.of(self._folder, payload["name"])
        files = ConversationFiles(
            places, self._about(agent, judge, tokens or benchmark.tokens), is_replaying=lambda: context.replaying
        )
        session = Conversation(
            scheduler,
            agent,
            judge,
            start,
            files,
            options.time_travel,
            is_free=payload.get("local", False),
            is_estimate=is_estimate,
        )
        sessions.append(session)
        async with AsyncExitStack() as closing:
            if judge is not None:
                closing.push_async_callback(judge.close)
            closing.push_async_callback(agent.close)
            closing.callback(self.watching.remove, session)
            closing.callback(files.close, session)
            self.watching.append(session)
            await session.run(context)
        return Outcome(ItemState.COMPLETED, session_record(session, payload["name"]))

    def describe_step(self, step: RecordedStep) -> Iterable[tuple[str, str]]:
        return self._exchanges.describe(step)

    def render(self, finished: FinishedItem, steps: Sequence[RecordedStep]) -> tuple[str, str] | None:
        return None

    def export(self, reader: RunReader) -> None:
        """Each session keeps its files up itself."""

    async def _start(self, context: Context) -> float:
        """When the conversation begins, in virtual time."""
        named = context.item.payload["start_time"]
        return await moment(context) if named is None else datetime.fromisoformat(named).timestamp()

    def _agent(self, context: Context, start: float, sessions: list[Conversation]) -> MemoryAgent:
        payload: Mapping[str, Any] = context.item.payload
        options, choice = self._options, choose_agent(payload["agent"])
        if choice.kind == "perfect":
            return PerfectAgent(lambda: _insight(sessions[0]), options.max_message_size)
        if choice.kind == "forgetful":
            return ForgetfulAgent(options.max_message_size)
        run_name, run_id = self._folder.name, run_id_of(self._folder)
        folder = persistence_folder(Path(options.data_dir), run_name, payload["name"]).absolute()
        if not context.resumed and folder.is_dir():
            move_aside(folder)  # what an earlier session kept is nothing that this one's agent knows
        setup = AgentSetup(
            session=f"{run_name} - {payload['name']} ({run_id[:8]}-{context.item.number}-{context.attempt})",
            folder=folder,
            mark=process_mark(run_id),
            token_length=self.benchmark.tokens,
            limit=payload["limit"],
            reserve=_reserve(options.max_response_tokens, payload["limit"]),
            max_message_size=options.max_message_size,
            seconds=options.message_timeout,
            started_at=start,
            clock=clock_of_process() if options.time_travel == "process" else None,
            name=payload["name"],
            isolated=options.isolated,
            asks_class=payload.get("asks_class", False),
            caller=self._caller,
            embedder=lambda: EndpointEmbedder(
                options.embedding_base_url or options.base_url,
                options.embedding_model,
                self._secrets.get(EMBEDDING_KEY),
                prices=None if options.prices is None else load_price_table(kept_file(self._folder, options.prices)),
            ),
        )
        return make_agent(choice, setup)

    def _caller(self, model: str) -> ModelCaller:
        options = self._options.model_copy(update={"model": model})
        settings = chat_settings(options)
        if is_simulated(model, options.base_url):
            tests = [(test.definition, test.dataset) for test in self.benchmark.tests]
            chat_model: ChatModel = ReadingModel(tests, options.simulated_latency)  # type: ignore[arg-type]
        else:
            chat_model = model_of(options, self._secrets.get(API_KEY), self._folder)
        return ModelCaller(chat_model, settings)

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


def _reserve(wanted: int, limit: int | None) -> int:
    """Tokens that are kept free for a reply: at most a quarter of a context."""
    return wanted if limit is None else min(wanted, limit // 4)


def _insight(session: Conversation) -> Insight:
    scheduler = session.scheduler
    sent = session.sending
    runs = scheduler.runs
    test = runs[sent.test_id].test if sent is not None and sent.test_id else None
    unfinished = [run.test for run in runs.values() if run.test.id in scheduler.tests]
    return Insight(
        None if test is None else (test.definition, test.dataset),  # type: ignore[arg-type]
        scheduler.conversation.messages,
        [(each.definition, each.dataset) for each in unfinished],  # type: ignore[misc]
    )


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
