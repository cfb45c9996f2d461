"""The settings of a run of the memory benchmark, and which key goes to which endpoint: each to its own, and nowhere else.

The first six are those of the GoodAI LTM Benchmark's ``run_benchmark.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from manyhands.agents.options import ConversationSettings
from manyhands.agents.run_settings import API_KEY, headers_for, key_secrets, usable_keys, with_endpoint
from manyhands.core.settings import (
    Checked,
    Flag,
    OptionalPath,
    OptionalText,
    Path,
    Text,
    number,
    optional_whole,
    setting,
    whole,
)
from manyhands.models.addresses import Addresses, OptionalAddresses
from manyhands.models.headers import as_secrets
from manyhands.models.settings import OF_AGENTS, OF_ONE_MODEL, CallSettings, ModelSettings
from manyhands.runs.options import (
    LIMITS,
    MODEL,
    OUTPUT,
    RESUME,
    SPEED,
    BaseRunOptions,
    ClusterSettings,
    FileSettings,
    ResumeSettings,
    TerminalSettings,
    ViewSettings,
)
from manyhands.runs.progress import Notice
from manyhands.sandboxes.settings import SandboxSettings
from manyhands.tools.settings import ToolSettings
from manyhands.workloads.memory.agents.choice import WITH_MODELS, AgentChoice, choose_agent

BENCHMARK = "Benchmark"
AGENTS = "Agents"


def _moment(value: Any) -> str | None:
    """A moment as ISO 8601 has it, of this machine's time zone if it names none; the zone is kept with it."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        found = datetime.fromisoformat(str(value).strip())
        return (found if found.tzinfo is not None else found.astimezone()).isoformat()
    except (ValueError, OverflowError, OSError):
        raise ValueError("must be a moment, as 2024-05-17T09:00:00") from None


def _agents(value: Any) -> Any:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError("must name at least one agent")
    for text in texts:
        choose_agent(text)  # raises UserError
    return tuple(dict.fromkeys(text.strip() for text in texts))


class BenchmarkSettings(CallSettings, BaseRunOptions, TerminalSettings, ResumeSettings):
    """What can be set for all runs of the benchmark: how its own model is called, and how long all may take."""

    instead: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys((*ToolSettings.fields, *SandboxSettings.fields), "agents have no tools here"),
        **dict.fromkeys(ConversationSettings.fields, "agents are asked message by message; --agent_name chooses them"),
        "model": "--agent_name names the model to test, --judge_model the one that judges",
    }
    retired: ClassVar[frozenset[str]] = frozenset((*instead, "log_prefix_chars"))
    listed: ClassVar[tuple[str, ...]] = ("judge_base_url",)

    judge_model: OptionalText = setting(
        None,
        "Model that judges answers and writes tests; without it tests that need one are not scored.",
        group=MODEL,
        identity=True,
        value="MODEL",
    )
    judge_base_url: OptionalAddresses = setting(
        None, "Endpoint of the judge (default: --base_url).", group=MODEL, value="URL", repeated=True
    )
    concurrency: Annotated[int, whole(1, 10_000)] = setting(20, "Maximum concurrent conversations.", group=SPEED)
    item_timeout: Annotated[float, number(above=0)] = setting(
        30 * 24 * 3600.0, "Timeout of one conversation, in seconds.", group=LIMITS
    )
    on_divergence: Literal["fresh", "stop"] = setting(
        "stop", "Action when recorded steps no longer match: start a fresh attempt, or stop.", group=RESUME
    )
    verbose: Flag = setting(False, "Print full tracebacks of errors.", group=OUTPUT)

    @property
    def judge(self) -> ModelSettings | None:
        """How the judge is called; None if there is none."""
        if self.judge_model is None:
            return None
        return self.for_model(self.judge_model, self.judge_base_url).changed(OF_AGENTS | OF_ONE_MODEL)


class DefinitionSettings(FileSettings):
    """Which tests there are, and what they are made of."""

    paths: ClassVar[tuple[str, ...]] = ("configuration",)

    configuration: Path = setting(..., "Benchmark configuration (YAML).", group=BENCHMARK, value="FILE")
    isolated: Flag = setting(
        False,
        "Run tests one at a time without filler; the agent is reset between them.",
        group=BENCHMARK,
        identity=True,
    )
    regenerate: Flag = setting(
        False, "Generate new test definitions; old ones and their results are renamed.", group=RESUME, recorded=False
    )
    tokenizer: Text = setting(
        "auto",
        "Token counter: auto (cl100k where tiktoken has it on this machine, else an estimate), cl100k, or estimate.",
        group=BENCHMARK,
        identity=True,
        value="NAME",
    )


class MemorySpec(DefinitionSettings, BenchmarkSettings, ClusterSettings, ViewSettings):
    """Everything that can be set for a run of the memory benchmark: one configuration, and one conversation for each agent."""

    headings: ClassVar[tuple[str, ...]] = (BENCHMARK, AGENTS, MODEL, SPEED, LIMITS, RESUME, OUTPUT)
    files: ClassVar[tuple[str, ...]] = ("filler", "wording")
    listed: ClassVar[tuple[str, ...]] = ("embedding_base_url",)

    agent_name: Annotated[tuple[str, ...], Checked(_agents)] = setting(
        ...,
        "Agent to test (repeatable): a model, retrieval(MODEL), scratchpad(MODEL), command:…, http://…, python:MODULE:CLASS, …",
        group=AGENTS,
        value="AGENT",
    )
    max_prompt_size: Annotated[int | None, optional_whole(1)] = setting(
        None, "Context size of the agent in tokens (default: unlimited).", group=AGENTS, value="TOKENS"
    )
    yes: Flag = setting(False, "Reuse test definitions and resume, without asking.", group=RESUME, recorded=False)
    # Of the conversations that are begun now, not of the run: each keeps its own.
    local: Flag = setting(False, "Do not count the agents' costs.", group=AGENTS, recorded=False)
    reuse: Flag = setting(False, "Use existing test definitions.", group=RESUME, recorded=False)
    resume: Flag = setting(False, "Continue existing conversations.", group=RESUME, recorded=False)
    restart: Flag = setting(
        False,
        "Restart the agents' conversations; old results are renamed.",
        group=RESUME,
        recorded=False,
    )
    filler: OptionalPath = setting(
        None,
        "File of filler questions and answers (TriviaQA's format) (default: the built-in ones).",
        group=BENCHMARK,
        identity=True,
        value="FILE",
    )
    wording: OptionalPath = setting(
        None,
        "File with the benchmark's own messages (default: the built-in ones).",
        group=BENCHMARK,
        identity=True,
        value="FILE",
    )
    max_message_size: Annotated[int, whole(64)] = setting(
        4096, "Maximum tokens of a message to an agent.", group=AGENTS, identity=True
    )
    max_response_tokens: Annotated[int, whole(1)] = setting(
        4096,
        "Context tokens reserved for a reply; at most a quarter of the context.",
        group=AGENTS,
        identity=True,
    )
    message_timeout: Annotated[float, number(above=0)] = setting(
        600.0, "Timeout of one reply, in seconds.", group=LIMITS
    )
    time_travel: Literal["virtual", "process", "real"] = setting(
        "virtual",
        "How time passes: virtual (agents get that time), process (the clock of the agent's own process jumps), real (actual waits).",
        group=BENCHMARK,
        identity=True,
    )
    embedding_model: Text = setting(
        "text-embedding-3-small",
        "Embedding model of agents that search by embeddings.",
        group=MODEL,
        identity=True,
        value="MODEL",
    )
    embedding_base_url: OptionalAddresses = setting(
        None, "Endpoint for embeddings (default: --base_url).", group=MODEL, value="URL", repeated=True
    )
    executor: Literal["processes", "local", "ray"] = setting(
        "local",
        "Where conversations run: processes (worker processes), local (this process), or ray (worker processes on the nodes of a Ray "
        "cluster).",
        group=SPEED,
    )
    num_workers: Annotated[int, whole(1, 1000)] = setting(
        4, "Number of worker processes (with --time_travel=process: one for each conversation).", group=SPEED
    )
    start_time: Annotated[str | None, Checked(_moment)] = setting(
        None,
        "Start of the conversation in virtual time (ISO 8601), such as 2024-05-17T09:00:00 (default: now).",
        group=BENCHMARK,
        value="TIME",
    )

    @property
    def embedding(self) -> ModelSettings:
        """How the embedding model is called."""
        return self.for_model(self.embedding_model, self.embedding_base_url)


_OF_AGENTS = frozenset(MemorySpec.fields).difference(DefinitionSettings.fields, BenchmarkSettings.fields)
"""Settings of those that are tested, and of their conversations."""
BenchmarkT = TypeVar("BenchmarkT", bound=BenchmarkSettings)


class GenerationSpec(DefinitionSettings, BenchmarkSettings):
    """Everything that can be set for making the tests of a configuration."""

    instead: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(_OF_AGENTS, "no agent is tested here, see manyhands memory run"),
        **BenchmarkSettings.instead,
    }

    headings: ClassVar[tuple[str, ...]] = MemorySpec.headings
    retired: ClassVar[frozenset[str]] = BenchmarkSettings.retired | frozenset(MemorySpec.fields)


class ScoresSpec(BenchmarkSettings):
    """Everything that can be set for judging results again."""

    retired: ClassVar[frozenset[str]] = GenerationSpec.retired


_ENDPOINTS = ("base_url", "judge_base_url", "embedding_base_url", "recorded_headers")


def with_endpoints(
    options: BenchmarkT, choices: Iterable[AgentChoice], environ: Mapping[str, str], notice: Notice
) -> BenchmarkT:
    """The settings with the endpoints of models that were named without one (see ``with_endpoint``): that of the agents' models, which is
    one for all, and those of the judge and of embeddings if they are others."""
    models = dict.fromkeys(choice.model for choice in choices if choice.kind in WITH_MODELS)
    others = {"judge_base_url": options.judge_model}
    if any(choice.kind == "embeddings" for choice in choices):
        others["embedding_base_url"] = getattr(options, "embedding_model", None)
    homes = {with_endpoint(options, model, environ, lambda text: None).base_url for model in models}
    first = next(iter([*models, *filter(None, others.values())]), None)
    if first is None or len(homes) > 1:
        return options
    found = with_endpoint(options, first, environ, notice)
    changes: dict[str, Addresses] = {}
    for name, model in others.items():
        if model is None or getattr(options, name, None) is not None or "base_url" in options.given:
            continue
        url = with_endpoint(options, model, environ, lambda text: None).base_url
        if url != found.base_url:
            notice(f"{model} is called at {url}; --{name} names another endpoint")
            changes[name] = url
    return found.changed(changes)


def with_recorded_endpoints(options: BenchmarkT, recorded: Mapping[str, Any]) -> BenchmarkT:
    """The settings with the endpoints that a run was made with, unless others were given. ``recorded``: the run's settings."""
    kept = [name for name in _ENDPOINTS if name in type(options).fields and name in recorded]
    return options.changed({name: recorded[name] for name in kept if name not in options.given})


JUDGE_KEY = "judge_api_key"
"""The name of the judge's key among a workload's secrets."""
EMBEDDING_KEY = "embedding_api_key"
"""The name of the key for embeddings among a workload's secrets."""


def keys_of(options: MemorySpec, choices: Iterable[AgentChoice], environ: Mapping[str, str]) -> dict[str, str]:
    """The keys of all endpoints that will be called, by the names of the secrets. Raises UserError for one that is missing."""
    chosen = list(choices)
    models = [(API_KEY, options.for_model(choice.model)) for choice in chosen if choice.kind in WITH_MODELS]
    if any(choice.kind == "embeddings" for choice in chosen):
        models.append((EMBEDDING_KEY, options.embedding))
    return {**_secrets(models, environ), **judge_keys(options, environ)}


def judge_keys(options: BenchmarkSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """The keys of the judge's endpoint, by the names of the secrets, if there is a judge that needs some. Raises UserError if one is
    missing."""
    return {} if options.judge is None else _secrets([(JUDGE_KEY, options.judge)], environ)


def _secrets(models: Iterable[tuple[str, ModelSettings]], environ: Mapping[str, str]) -> dict[str, str]:
    """Keys and headers of models, by the names of their keys. Raises UserError for what is missing."""
    found: dict[str, str] = {}
    for name, model in models:
        found |= key_secrets(name, usable_keys(model, environ)) | as_secrets(headers_for(model, environ), name)
    return found
