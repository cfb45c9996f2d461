"""From the agent that was chosen to one that can be talked to, for one session."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.processes.templates import CommandTemplate
from manyhands.workloads.memory.agents.chat import ChatAgent, TokenLength
from manyhands.workloads.memory.agents.choice import AgentChoice
from manyhands.workloads.memory.agents.external.agent import AgentConnection, ExternalAgent, OwnClock
from manyhands.workloads.memory.agents.external.http import KEY_VARIABLE, HttpConnection
from manyhands.workloads.memory.agents.external.program import ProgramConnection
from manyhands.workloads.memory.agents.external.python_class import ClassConnection, OwnClass
from manyhands.workloads.memory.agents.external.terminal import TerminalConnection
from manyhands.workloads.memory.agents.model_calls import EndpointEmbedder, ModelCaller
from manyhands.workloads.memory.agents.retrieval import EmbeddingIndex, RetrievalAgent, TextIndex
from manyhands.workloads.memory.agents.scratchpad import ScratchpadAgent
from manyhands.workloads.memory.agents.simulated import CostEstimator
from manyhands.workloads.memory.conversation.agent import MemoryAgent
from manyhands.workloads.memory.conversation.tokens import TokenCounter

DEFAULT_LIMIT = 32_000
"""Tokens of context of agents that need a limit where none is given."""


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """What agents of a session are made with. ``folder``: the agent's own, for what it keeps; ``session``: names the session;
    ``mark``: what marks the run's processes; ``caller``: makes what asks a model; ``embedder`` likewise; ``limit``, ``reserve``: tokens
    of the context, and of these for the reply; ``seconds``: for one reply; ``started_at``: virtual time; ``clock``: see ``ExternalAgent``;
    ``name``: what results call the agent; ``isolated``: whether it must forget between tests; ``asks_class``: whether a class's own
    ``token_len`` and ``max_message_size`` count, by which sessions of earlier versions did not go."""

    session: str
    folder: Path
    mark: str
    token_length: TokenLength
    limit: int | None
    reserve: int
    max_message_size: int
    seconds: float
    started_at: float
    clock: OwnClock | None
    caller: Callable[[str], ModelCaller]
    embedder: Callable[[], EndpointEmbedder]
    name: str | None = None
    isolated: bool = False
    asks_class: bool = True


def make_agent(choice: AgentChoice, setup: AgentSetup) -> MemoryAgent:
    """Raises UserError for one that can't be used."""
    name = setup.name or choice.name(setup.limit)
    match choice.kind:
        case "chat" | "timestamps" | "retrieval" | "embeddings" | "scratchpad":
            return _of_model(name, choice, setup)
        case "cost":
            return CostEstimator(
                name,
                setup.token_length,
                input_price=choice.prices[0],
                output_price=choice.prices[1],
                limit=setup.limit,
                reserve=setup.reserve,
                max_message_size=setup.max_message_size,
            )
        case "command":
            return _outside(name, _program(choice, setup), setup, setup.max_message_size)
        case "http":
            server = HttpConnection(choice.target, seconds=setup.seconds, key=os.environ.get(KEY_VARIABLE))
            return _outside(name, server, setup, setup.max_message_size)
        case "python":
            return _of_class(name, choice, setup)
        case "human":
            return ExternalAgent(name, TerminalConnection(), session=setup.session, max_message_size=1 << 30)
        case _:
            raise UserError(f"--agent_name: {choice.id} can't be made here")


def _of_model(name: str, choice: AgentChoice, setup: AgentSetup) -> MemoryAgent:
    model, limit = setup.caller(choice.model), setup.limit or DEFAULT_LIMIT
    more: dict[str, Any] = {"reserve": setup.reserve, "max_message_size": setup.max_message_size}
    if choice.kind in ("chat", "timestamps"):
        timestamps = choice.kind == "timestamps"
        return ChatAgent(name, model, setup.token_length, limit=setup.limit, timestamps=timestamps, **more)
    if choice.kind == "scratchpad":
        return ScratchpadAgent(name, model, setup.token_length, limit=limit, **more)
    index = TextIndex() if choice.kind == "retrieval" else EmbeddingIndex(setup.embedder())
    return RetrievalAgent(name, model, index, setup.token_length, limit=limit, **more)


def _program(choice: AgentChoice, setup: AgentSetup) -> ProgramConnection:
    return ProgramConnection(
        CommandTemplate.split(choice.target, name="--agent_name").words,
        folder=Path.cwd(),
        mark=setup.mark,
        seconds=setup.seconds,
        errors=setup.folder / "stderr.txt",
        started_at=setup.started_at,
    )


def _outside(
    name: str, line: AgentConnection, setup: AgentSetup, size: int, tokens: TokenCounter | None = None
) -> ExternalAgent:
    return ExternalAgent(
        name,
        line,
        session=setup.session,
        max_message_size=size,
        clock=setup.clock,
        isolated=setup.isolated,
        tokens=tokens,
    )


def _of_class(name: str, choice: AgentChoice, setup: AgentSetup) -> ExternalAgent:
    made = class_of(choice.target)
    own = OwnClass(made, choice, setup.seconds)
    make = own.maker(
        {
            "run_name": setup.session,
            "save_path": setup.folder,
            "max_prompt_size": setup.limit,
            "max_message_size": setup.max_message_size,
        }
    )
    line = ClassConnection(make, folder=setup.folder, seconds=setup.seconds)
    if not setup.asks_class:
        size = getattr(made, "max_message_size", None)
        return _outside(name, line, setup, size if isinstance(size, int) else setup.max_message_size)
    return _outside(name, line, setup, own.message_size(make) or setup.max_message_size, own.counter(make))


def session_name(choice: AgentChoice, limit: int | None, run_name: str, seconds: float) -> str:
    """What results call an agent, also one whose class says so. ``seconds``: for making that class. Raises UserError
    for one that can't be made."""
    if choice.kind != "python":
        return choice.name(limit)
    return OwnClass(class_of(choice.target), choice, seconds).name(limit, run_name)


def check_agent(choice: AgentChoice, *, isolated: bool = False) -> None:
    """Raises UserError for an agent that is not there. ``isolated``: whether it has to forget between tests."""
    if choice.kind == "python":
        OwnClass(class_of(choice.target), choice, seconds=60).check(isolated=isolated)
    if choice.kind == "command":
        CommandTemplate.split(choice.target, name="--agent_name").check(Path.cwd(), os.environ, name="--agent_name")


def class_of(target: str) -> Callable[..., Any]:
    """The class that ``MODULE:CLASS`` (on Python's path, which the current folder is not) or ``FILE.py:CLASS`` names. Raises UserError."""
    where, _, name = target.rpartition(":")
    try:
        if where.endswith(".py"):
            spec = spec_from_file_location(Path(where).stem, where)
            if spec is None or spec.loader is None or not Path(where).is_file():
                raise UserError(f"--agent_name: there is no file {where}")
            module = module_from_spec(spec)
            sys.modules.setdefault(spec.name, module)
            spec.loader.exec_module(module)
        else:
            module = import_module(where)
    except UserError:
        raise
    except ModuleNotFoundError as error:
        hint = f"; a file is named by its path: python:{where}.py:{name}" if Path(f"{where}.py").is_file() else ""
        raise UserError(f"--agent_name: {where} can't be loaded: {error}{hint}") from error
    except Exception as error:
        raise UserError(f"--agent_name: {where} can't be loaded: {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if not callable(found):
        raise UserError(f"--agent_name: {where} has no class {name}")
    made: Callable[..., Any] = found
    return made
