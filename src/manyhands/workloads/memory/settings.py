"""The settings of a run of the memory benchmark, and which key goes to which endpoint: each to its own, and nowhere else.

The first six are those of the GoodAI LTM Benchmark's ``run_benchmark.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator

from manyhands.agents.options import AgentOptions
from manyhands.agents.run_settings import API_KEY, usable_key
from manyhands.core.settings import (
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
from manyhands.runs.options import LIMITS, MODEL, OUTPUT, RESUME, SPEED
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


class MemorySpec(AgentOptions):
    """Everything that can be set for a run of the memory benchmark: one configuration, and one session for each agent."""

    headings: ClassVar[tuple[str, ...]] = (BENCHMARK, AGENTS, MODEL, SPEED, LIMITS, RESUME, OUTPUT)
    files: ClassVar[tuple[str, ...]] = ("prices", "filler", "wording")

    configuration: Path = setting(..., "Benchmark configuration (YAML).", group=BENCHMARK, value="FILE")
    agent_name: Annotated[tuple[str, ...], BeforeValidator(_agents)] = setting(
        ...,
        "Agent to test (repeatable): a model, retrieval(MODEL), scratchpad(MODEL), command:…, http://…, python:MODULE:CLASS, …",
        group=AGENTS,
        value="AGENT",
    )
    max_prompt_size: Annotated[int | None, optional_whole(1)] = setting(
        None, "Context size of the agent in tokens; without it there is no limit.", group=AGENTS, value="TOKENS"
    )
    yes: Flag = setting(False, "Reuse test definitions and resume, without asking.", group=RESUME, recorded=False)
    # Of the sessions that are begun now, not of the run: each session keeps its own.
    local: Flag = setting(False, "Do not count the agents' costs.", group=AGENTS, recorded=False)
    isolated: Flag = setting(
        False,
        "Run tests one at a time without filler; the agent is reset between them.",
        group=BENCHMARK,
        identity=True,
    )
    reuse: Flag = setting(False, "Use existing test definitions.", group=RESUME, recorded=False)
    regenerate: Flag = setting(
        False, "Generate new test definitions; old ones and their results are renamed.", group=RESUME, recorded=False
    )
    resume: Flag = setting(False, "Continue existing conversations.", group=RESUME, recorded=False)
    restart: Flag = setting(
        False,
        "Restart the agents' conversations; old results are renamed.",
        group=RESUME,
        recorded=False,
    )
    filler: OptionalPath = setting(
        None,
        "File of filler questions and answers (TriviaQA's format); without it the built-in ones.",
        group=BENCHMARK,
        identity=True,
        value="FILE",
    )
    wording: OptionalPath = setting(
        None,
        "File with the benchmark's own messages; without it the built-in ones.",
        group=BENCHMARK,
        identity=True,
        value="FILE",
    )
    tokenizer: Text = setting(
        "auto",
        "Token counter: auto (cl100k where tiktoken has it on this machine, else an estimate), cl100k, or estimate.",
        group=BENCHMARK,
        identity=True,
        value="NAME",
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
        "How time passes: virtual (agents are told), process (the clock of the agent's own process jumps), real (actual waits).",
        group=BENCHMARK,
        identity=True,
    )
    judge_model: OptionalText = setting(
        None,
        "Model that judges answers and writes tests; without it tests that need one are not scored.",
        group=MODEL,
        identity=True,
    )
    judge_base_url: OptionalText = setting(
        None, "Endpoint of the judge; without it that of --base_url.", group=MODEL, value="URL"
    )
    embedding_model: Text = setting(
        "text-embedding-3-small", "Embedding model of agents that search by embeddings.", group=MODEL, identity=True
    )
    embedding_base_url: OptionalText = setting(
        None, "Endpoint for embeddings; without it that of --base_url.", group=MODEL, value="URL"
    )
    concurrency: Annotated[int, whole(1, 10_000)] = setting(20, "Maximum concurrent conversations.", group=SPEED)
    item_timeout: Annotated[float, number(above=0)] = setting(
        30 * 24 * 3600.0, "Timeout of one conversation, in seconds.", group=LIMITS
    )
    on_divergence: Literal["fresh", "stop"] = setting(
        "stop", "Action when recorded steps no longer match: start a fresh attempt, or stop.", group=RESUME
    )
    executor: Literal["processes", "local"] = setting(
        "local", "Where conversations run: processes (worker processes) or local (this process).", group=SPEED
    )
    start_time: Annotated[str | None, BeforeValidator(_moment)] = setting(
        None,
        "Start of the conversation in virtual time (ISO 8601), as 2024-05-17T09:00:00; without it now.",
        group=BENCHMARK,
        value="TIME",
    )

    # What an agent with tools has, and none of these agents.
    model: Text = setting("simulated", "Each agent names its own.", typed=False)
    max_turns: int = setting(1, "A message is answered once.", typed=False)
    ephemeral_system_prompt: OptionalText = setting(None, "", typed=False)
    prefill_messages_file: OptionalPath = setting(None, "", typed=False, recorded=False)
    log_prefix_chars: int = setting(100, "", typed=False)
    sandbox: Text = setting("auto", "", typed=False)
    network: Flag = setting(False, "", typed=False)
    mcp_config: OptionalPath = setting(None, "", typed=False)
    sequential_tools: Flag = setting(False, "", typed=False)
    keep_workspaces: Flag = setting(False, "", typed=False)
    tool_timeout: float = setting(180.0, "", typed=False)
    verbose: Flag = setting(False, "Full tracebacks of errors.", group=OUTPUT)

    def resolved(self) -> Self:
        """As of the base class; the configuration is found, too."""
        spec = super().resolved()
        return spec.model_copy(update={"configuration": str(FilePath(self.configuration).expanduser().absolute())})


JUDGE_KEY = "judge_api_key"
"""The name of the judge's key among a workload's secrets."""
EMBEDDING_KEY = "embedding_api_key"
"""The name of the key for embeddings among a workload's secrets."""


def keys_of(options: MemorySpec, choices: Iterable[AgentChoice], environ: Mapping[str, str]) -> dict[str, str]:
    """The keys of all endpoints that will be asked, by the names of the secrets. Raises UserError for one that is missing."""
    chosen = list(choices)
    asked = [(API_KEY, choice.model, options.base_url) for choice in chosen if choice.kind in WITH_MODELS]
    if options.judge_model is not None:
        asked.append((JUDGE_KEY, options.judge_model, options.judge_base_url or options.base_url))
    if any(choice.kind == "embeddings" for choice in chosen):
        asked.append((EMBEDDING_KEY, options.embedding_model, options.embedding_base_url or options.base_url))
    keys = {}
    for name, model, url in asked:
        changes: dict[str, Any] = {"model": model, "base_url": url}
        if url != options.base_url:
            changes["api_key"] = None  # what was typed is for --base_url
        key = usable_key(options.model_copy(update=changes), environ)
        if key is not None:
            keys[name] = key
    return keys
