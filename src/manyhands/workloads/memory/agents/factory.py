"""From the agent that was chosen to one that can be talked to, for one conversation."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from manyhands.core.errors import UserError
from manyhands.processes.templates import CommandTemplate
from manyhands.workloads.memory.agents.choice import AgentChoice
from manyhands.workloads.memory.agents.connections import (
    KEY_VARIABLE,
    HttpConnection,
    ProgramConnection,
    TerminalConnection,
)
from manyhands.workloads.memory.agents.external_agent import AgentConnection, ExternalAgent, OwnClock
from manyhands.workloads.memory.agents.model_agents import (
    ChatAgent,
    ContextSize,
    EmbeddingIndex,
    RetrievalAgent,
    ScratchpadAgent,
    TextIndex,
    TokenLength,
)
from manyhands.workloads.memory.agents.model_calls import EmbeddingCaller, ModelCaller
from manyhands.workloads.memory.agents.python_class import ClassConnection, OwnClass
from manyhands.workloads.memory.agents.simulated import CostEstimator
from manyhands.workloads.memory.conversation.driver import MemoryAgent
from manyhands.workloads.memory.conversation.tokens import TokenCounter

DEFAULT_LIMIT = 32_000
"""Tokens of context of agents that need a limit where none is given."""


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """What the agent of a conversation is made with."""

    conversation: str
    """Names the conversation to the agent."""
    folder: Path
    """The agent's own, for what it keeps."""
    current: Path
    """Where agents start that are programs, and the paths of files with classes."""
    mark: str
    """Marks the run's processes."""
    token_length: TokenLength
    size: ContextSize
    max_message_size: int
    """Maximum tokens of a message, if the agent says nothing else."""
    seconds: float
    """For one reply."""
    started_at: float
    """Virtual time, in seconds since 1970 UTC."""
    clock: OwnClock | None
    """What the process's clock shows to the agent; None for what it is."""
    caller: Callable[[str], ModelCaller]
    """What asks a model, by its name."""
    embedder: Callable[[], EmbeddingCaller]
    """What asks for embeddings."""
    name: str | None = None
    """What results call the agent; None: what its choice says."""
    isolated: bool = False
    """Whether it must forget between tests."""
    asks_class: bool = True
    """Whether a class's own ``token_len`` and ``max_message_size`` count, by which conversations of earlier versions did not go."""


def make_agent(choice: AgentChoice, setup: AgentSetup) -> MemoryAgent:
    """Raises UserError for one that can't be used."""
    name = setup.name or choice.name(setup.size.limit)
    match choice.kind:
        case "chat" | "timestamps" | "retrieval" | "embeddings" | "scratchpad":
            return _of_model(name, choice, setup)
        case "cost":
            input_price, output_price = choice.prices
            return CostEstimator(
                name, setup.token_length, setup.size, input_price=input_price, output_price=output_price
            )
        case "command":
            return _outside(name, _program(choice, setup), setup)
        case "http":
            server = HttpConnection(choice.target, seconds=setup.seconds, key=os.environ.get(KEY_VARIABLE))
            return _outside(name, server, setup)
        case "python":
            return _of_class(name, choice, setup)
        case "human":
            return ExternalAgent(name, TerminalConnection(), conversation=setup.conversation, max_message_size=1 << 30)
        case _:
            raise UserError(f"--agent_name: {choice.id} can't be made here")


def _of_model(name: str, choice: AgentChoice, setup: AgentSetup) -> MemoryAgent:
    model, tokens, size = setup.caller(choice.model), setup.token_length, setup.size
    if choice.kind in ("chat", "timestamps"):
        return ChatAgent(name, model, tokens, size, timestamps=choice.kind == "timestamps")
    size = replace(size, limit=size.limit or DEFAULT_LIMIT)
    if choice.kind == "scratchpad":
        return ScratchpadAgent(name, model, tokens, size)
    index = TextIndex() if choice.kind == "retrieval" else EmbeddingIndex(setup.embedder())
    return RetrievalAgent(name, model, index, tokens, size)


def _program(choice: AgentChoice, setup: AgentSetup) -> ProgramConnection:
    return ProgramConnection(
        CommandTemplate.split(choice.target, name="--agent_name").words,
        folder=setup.current,
        mark=setup.mark,
        seconds=setup.seconds,
        errors=setup.folder / "stderr.txt",
        started_at=setup.started_at,
    )


def _outside(
    name: str,
    connection: AgentConnection,
    setup: AgentSetup,
    max_message_size: int | None = None,
    tokens: TokenCounter | None = None,
) -> ExternalAgent:
    return ExternalAgent(
        name,
        connection,
        conversation=setup.conversation,
        max_message_size=max_message_size,
        clock=setup.clock,
        isolated=setup.isolated,
        tokens=tokens,
    )


def _of_class(name: str, choice: AgentChoice, setup: AgentSetup) -> ExternalAgent:
    own = OwnClass(choice, setup.seconds, setup.current)
    make = own.maker(
        {
            "run_name": setup.conversation,
            "save_path": setup.folder,
            "max_prompt_size": setup.size.limit,
            "max_message_size": setup.max_message_size,
        }
    )
    connection = ClassConnection(make, folder=setup.folder, seconds=setup.seconds)
    if not setup.asks_class:
        return _outside(name, connection, setup, own.declared_message_size)
    return _outside(name, connection, setup, own.message_size(make), own.counter(make))


def agent_name(choice: AgentChoice, limit: int | None, run_name: str, seconds: float) -> str:
    """What results call an agent, also one whose class says so. ``seconds``: for making that class. Raises UserError
    for one that can't be made."""
    if choice.kind != "python":
        return choice.name(limit)
    return OwnClass(choice, seconds).name(limit, run_name)


def check_agent(choice: AgentChoice, *, isolated: bool = False) -> None:
    """Raises UserError for an agent that is not there. ``isolated``: whether it has to forget between tests."""
    if choice.kind == "python":
        OwnClass(choice, seconds=60).check(isolated=isolated)
    if choice.kind == "command":
        CommandTemplate.split(choice.target, name="--agent_name").check(Path.cwd(), os.environ, name="--agent_name")
