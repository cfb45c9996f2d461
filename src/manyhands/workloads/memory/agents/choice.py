"""The agents that ``--agent_name`` can name, and what results call them.

==============================  ======================================================================================
``MODEL``                       a model with as much of the conversation as its context holds
``ts-MODEL``                    the same, and each message says how long ago it was sent
``retrieval(MODEL)``            a model that is shown what a full text search in all earlier messages finds
``embeddings(MODEL)``           the same, searching by embeddings
``scratchpad(MODEL)``           a model that keeps notes
``command:WORDS``               a program: JSON lines on its standard input and output
``http://…``, ``https://…``     a server: JSON objects posted to the address
``python:MODULE:CLASS``         a Python class, with arguments for it if it takes some: ``python:MODULE:CLASS(size=4096)``
``cost(IN,OUT)``                an estimate: US dollars for 1,000 tokens in and out
``human``                       whoever sits at the terminal
``perfect``, ``forgetful``      one that remembers everything, and one that remembers nothing
==============================  ======================================================================================
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from manyhands.core.errors import UserError
from manyhands.core.redaction import without_user_info
from manyhands.io.files import folder_name

Kind = Literal[
    "chat",
    "timestamps",
    "retrieval",
    "embeddings",
    "scratchpad",
    "command",
    "http",
    "python",
    "cost",
    "human",
    "perfect",
    "forgetful",
]
WITH_MODELS: tuple[Kind, ...] = ("chat", "timestamps", "retrieval", "embeddings", "scratchpad")
"""Kinds that ask a model."""
_CALLED = re.compile(r"(retrieval|embeddings|scratchpad)\((.+)\)")
_CLASS = re.compile(r"([^:]+:[^\W\d]\w*)\s*(\(.*\))?", re.DOTALL)
_COST = re.compile(r"cost\(\s*([0-9.eE+-]+)\s*,\s*([0-9.eE+-]+)\s*\)")
_ELSEWHERE = re.compile(r"(gemini|memgpt|length_bias|ltm_agent_[0-9]+(\(.*\))?)")
_ALIASES = {
    "gpt-3.5-turbo": "gpt-3.5-turbo-0125",
    "gpt-4-turbo": "gpt-4-turbo-2024-04-09",
    "gpt-4-1106": "gpt-4-1106-preview",
    "claude-3-haiku": "claude-3-haiku-20240307",
    "claude-3-sonnet": "claude-3-sonnet-20240229",
    "claude-3-opus": "claude-3-opus-20240229",
}
"""Short names of models; results keep the short name."""


@dataclass(frozen=True, slots=True)
class AgentChoice:
    """An agent that was chosen."""

    id: str
    """As it was typed."""
    kind: Kind
    target: str = ""
    """The model, command, URL or class."""
    prices: tuple[float, float] = (0.0, 0.0)
    """Of an estimate: US dollars for 1,000 tokens in and out."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Of a class."""

    @property
    def model(self) -> str:
        """The model that is called."""
        return _ALIASES.get(self.target, self.target)

    @property
    def class_name(self) -> str:
        """The name of a Python class."""
        return self.target.rpartition(":")[2]

    @property
    def module(self) -> str:
        """The module of a Python class, or the path of its file."""
        return self.target.rpartition(":")[0]

    def name(self, limit: int | None) -> str:
        """What results call it, and their folder: its kind, what it is, and the tokens of context that it is given. (A class may have
        a name of its own, see ``OwnClass.name``.)"""
        what, size = folder_name(self.target), limit or 0
        match self.kind:
            case "chat":
                return f"LLMChatSession - {what} - {size}"
            case "timestamps":
                return f"TimestampLLMChatSession - {what} - {size}"
            case "retrieval" | "embeddings" | "scratchpad":
                return f"{self.kind.capitalize()}Agent - {what} - {size}"
            case "cost":
                return f"CostEstimationChatSession - {size} - {self.prices[0]:.2e} - {self.prices[1]:.2e}"
            case "human":
                return "HumanChatSession"
            case "perfect" | "forgetful":
                return f"{self.kind.capitalize()}Agent"
            case "command" | "http":
                return f"{self.kind.capitalize()}Agent - {what}"
            case "python":
                return folder_name(self.class_name)


def choose_agent(text: str) -> AgentChoice:
    """Raises UserError for what can't be meant."""
    text = text.strip()
    if not text:
        raise UserError("--agent_name: must not be empty")
    if text.startswith("huggingface/"):
        raise UserError(f"--agent_name: {text}: give the model without huggingface/, and its endpoint with --base_url")
    if _ELSEWHERE.fullmatch(text):
        raise UserError(
            f"--agent_name: {text} is not built in; run it as a program (command:…), a server (http://…) or a class (python:MODULE:CLASS)"
        )
    if found := _COST.fullmatch(text):
        return AgentChoice(text, "cost", text, (_price(found[1]), _price(found[2])))
    if found := _CALLED.fullmatch(text):
        return AgentChoice(text, cast(Kind, found[1]), found[2].strip())
    if text.startswith(("cost(", "retrieval(", "embeddings(", "scratchpad(")):
        raise UserError(
            f"--agent_name: {text} must be cost(IN,OUT) with US dollars for 1,000 tokens, or a model in brackets, as retrieval(MODEL)"
        )
    if text in ("human", "perfect", "forgetful"):
        return AgentChoice(text, cast(Kind, text))
    for prefix, kind in _PREFIXES:
        if text.startswith(prefix) and kind == "python":
            return _class(text, text.removeprefix(prefix).strip())
        if text.startswith(prefix):
            return AgentChoice(text, kind, _target(text, prefix, kind))
    return AgentChoice(text, "chat", text)


_PREFIXES: tuple[tuple[str, Kind], ...] = (
    ("command:", "command"),
    ("http://", "http"),
    ("https://", "http"),
    ("python:", "python"),
    ("ts-", "timestamps"),
)


def _target(text: str, prefix: str, kind: Kind) -> str:
    target = text if kind == "http" else text.removeprefix(prefix).strip()
    if not target:
        raise UserError(f"--agent_name: nothing stands behind {prefix}")
    if kind == "http":
        parts = urlsplit(text)
        if not parts.hostname or "@" in parts.netloc:
            raise UserError(
                f"--agent_name: {without_user_info(text)} is no address of an agent (names and passwords do not belong in it)"
            )
    return target


def _class(text: str, target: str) -> AgentChoice:
    found = _CLASS.fullmatch(target)
    if found is None:
        raise UserError(
            f"--agent_name: {text} must be python:MODULE:CLASS, or python:FILE.py:CLASS, with arguments as in CLASS(size=4096)"
        )
    return AgentChoice(text, "python", found[1], arguments=_arguments(text, found[2] or "()"))


def _arguments(text: str, written: str) -> dict[str, Any]:
    """The named arguments of a call. Raises UserError."""
    try:
        call = ast.parse(f"f{written}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("that is more than one pair of brackets")
        if call.args or any(each.arg is None for each in call.keywords):
            raise ValueError("each needs its name")
        found = [(str(each.arg), ast.literal_eval(each.value)) for each in call.keywords]
        if len(dict(found)) < len(found):
            raise ValueError("one is named twice")
        if not all(_is_plain(value) for _, value in found):
            raise ValueError("a value is none that JSON has, too")
        return dict(found)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        problem = getattr(error, "msg", None) or str(error)
        raise UserError(
            f"--agent_name: {text}: the arguments must be names with plain values, as in CLASS(size=4096, model='x'): {problem[:100]}"
        ) from None


def _is_plain(value: Any) -> bool:
    """Whether records can hold it as it is."""
    match value:
        case None | bool() | int() | str():
            return True
        case float():
            return isfinite(value)
        case list() | tuple():
            return all(map(_is_plain, value))
        case dict():
            return all(isinstance(key, str) for key in value) and all(map(_is_plain, value.values()))
    return False


def _price(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise UserError(f"--agent_name: {text} is no price (US dollars for 1,000 tokens)")
    return value
