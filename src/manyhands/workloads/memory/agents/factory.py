"""From the agent that was chosen to one that can be talked to, for one session."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from shutil import which
from typing import Any

from manyhands.core.errors import UserError
from manyhands.workloads.memory.agents.chat import ChatAgent, TokenLength
from manyhands.workloads.memory.agents.choice import AgentChoice
from manyhands.workloads.memory.agents.external.agent import Line, OutsideAgent, OwnClock
from manyhands.workloads.memory.agents.external.http import KEY_VARIABLE, HttpLine
from manyhands.workloads.memory.agents.external.program import ProgramLine, command_words
from manyhands.workloads.memory.agents.external.python_class import ClassLine, OwnClass
from manyhands.workloads.memory.agents.external.terminal import HumanLine
from manyhands.workloads.memory.agents.model_calls import EndpointEmbedder, ModelCaller
from manyhands.workloads.memory.agents.retrieval import EmbeddingIndex, RetrievalAgent, TextIndex
from manyhands.workloads.memory.agents.scratchpad import ScratchpadAgent
from manyhands.workloads.memory.agents.simulated import CostEstimator
from manyhands.workloads.memory.conversation.agent import MemoryAgent
from manyhands.workloads.memory.conversation.tokens import TokenCounter

NEEDED_LIMIT = 32_000
"""Tokens of context of agents that need a limit where none is given."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What agents of a session are made with. ``folder``: the agent's own, for what it keeps; ``session``: names the session;
    ``mark``: what marks the run's processes; ``caller``: makes what asks a model; ``embedder`` likewise; ``limit``, ``reserve``: tokens
    of the context, and of these for the reply; ``seconds``: for one reply; ``started_at``: virtual time; ``clock``: see ``outside``;
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


def make_agent(choice: AgentChoice, around: Surroundings) -> MemoryAgent:
    """Raises UserError for one that can't be used."""
    name, size = around.name or choice.name(around.limit), around.max_message_size
    limit = around.limit or NEEDED_LIMIT
    match choice.kind:
        case "chat" | "timestamps":
            return ChatAgent(
                name,
                around.caller(choice.model),
                around.token_length,
                limit=around.limit,
                reserve=around.reserve,
                timestamps=choice.kind == "timestamps",
                max_message_size=size,
            )
        case "retrieval" | "embeddings":
            index = TextIndex() if choice.kind == "retrieval" else EmbeddingIndex(around.embedder())
            return RetrievalAgent(
                name,
                around.caller(choice.model),
                index,
                around.token_length,
                limit=limit,
                reserve=around.reserve,
                max_message_size=size,
            )
        case "scratchpad":
            return ScratchpadAgent(
                name,
                around.caller(choice.model),
                around.token_length,
                limit=limit,
                reserve=around.reserve,
                max_message_size=size,
            )
        case "cost":
            return CostEstimator(
                name,
                around.token_length,
                input_price=choice.prices[0],
                output_price=choice.prices[1],
                limit=around.limit,
                reserve=around.reserve,
                max_message_size=size,
            )
        case "command":
            line = ProgramLine(
                command_words(choice.target),
                folder=Path.cwd(),
                mark=around.mark,
                seconds=around.seconds,
                errors=around.folder / "stderr.txt",
                started_at=around.started_at,
            )
            return _outside(name, line, around, size)
        case "http":
            server = HttpLine(choice.target, seconds=around.seconds, key=os.environ.get(KEY_VARIABLE))
            return _outside(name, server, around, size)
        case "python":
            return _of_class(name, choice, around)
        case "human":
            return OutsideAgent(name, HumanLine(), session=around.session, max_message_size=1 << 30)
        case _:
            raise UserError(f"--agent_name: {choice.id} can't be made here")


def _outside(
    name: str, line: Line, around: Surroundings, size: int, tokens: TokenCounter | None = None
) -> OutsideAgent:
    return OutsideAgent(
        name,
        line,
        session=around.session,
        max_message_size=size,
        clock=around.clock,
        isolated=around.isolated,
        tokens=tokens,
    )


def _of_class(name: str, choice: AgentChoice, around: Surroundings) -> OutsideAgent:
    made = class_of(choice.target)
    own = OwnClass(made, choice, around.seconds)
    make = own.maker(
        {
            "run_name": around.session,
            "save_path": around.folder,
            "max_prompt_size": around.limit,
            "max_message_size": around.max_message_size,
        }
    )
    line = ClassLine(make, folder=around.folder, seconds=around.seconds)
    if not around.asks_class:
        size = getattr(made, "max_message_size", None)
        return _outside(name, line, around, size if isinstance(size, int) else around.max_message_size)
    return _outside(name, line, around, own.message_size(make) or around.max_message_size, own.counter(make))


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
        program = command_words(choice.target)[0]
        if which(program) is None:
            raise UserError(f"--agent_name: there is no program {program}")


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
