"""Agent programs that are known here, Claude Code and Codex: what a command line says of them, and what they say of a launch.

Of a command line: whether the program will say what a launch cost, and of which model. Of what was printed: what the launch cost, and
whether it failed. Claude Code (``claude -p --output-format json``, or ``stream-json``) ends with an object of type ``result``: its cost in
US dollars, its tokens, and in ``is_error`` and ``subtype`` whether it failed, also where the program ends with 0. Codex
(``codex exec --json``) prints events: how many tokens a thread has used so far comes with the end of each turn, dollars never.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from manyhands.core.jsonio import Json, object_or_list
from manyhands.core.usage import MAX_COUNT, ZERO, Usage, as_cost
from manyhands.models.pricing import PriceTable

_BEFORE = frozenset(("env", "npx", "-y", "--yes", "nice", "nohup"))
_VARIABLE = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_PACKAGES = {"@anthropic-ai/claude-code": "claude", "@openai/codex": "codex"}
_JSON_FORMATS = ("json", "stream-json")
CLAUDE, CODEX = "claude", "codex"


def program_name(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The name of the program that a command line starts, without folders and what only starts it, and the words behind it."""
    rest = list(words)
    while rest and (rest[0].rpartition("/")[2] in _BEFORE or _VARIABLE.fullmatch(rest[0])):
        rest.pop(0)
    first = rest[0] if rest else ""
    bare = re.sub(r"(?<=.)@[^/@]*$", "", first)
    return _PACKAGES.get(bare, first.rpartition("/")[2]), rest[1:]


@dataclass(frozen=True, slots=True)
class AgentProgram:
    """A command line as far as it is known."""

    name: str | None
    """``claude``, ``codex``, or None for any other program."""
    words: tuple[str, ...]
    """What follows the program's name."""

    @classmethod
    def of(cls, words: Sequence[str]) -> AgentProgram:
        """Of the words of a command line."""
        name, rest = program_name(words)
        return cls(name if name in (CLAUDE, CODEX) else None, tuple(rest))

    @property
    def model(self) -> str | None:
        """The model that the command line names."""
        named = self._value("--model", "-m")
        if named is not None or self.name != CODEX:
            return named
        settings = self._values("--config", "-c")
        return next((text[6:].strip("\"'") for text in reversed(settings) if text.startswith("model=")), None)

    @property
    def max_cost(self) -> float | None:
        """US dollars that Claude Code itself keeps a launch to."""
        text = self._value("--max-budget-usd") if self.name == CLAUDE else None
        try:
            figure = float(text or "")
        except ValueError:
            return None
        return figure if 0 < figure < float("inf") else None

    def why_cost_unknown(self, prices: PriceTable) -> str | None:
        """Why nobody will know what its launches cost in dollars, and what to do about it; None if that may well be known."""
        silent = self.why_silent()
        if silent is not None or self.name != CODEX:
            return silent
        if self.model is None:
            return (
                "codex says no dollars: name its model in the command with --model, so that the price table counts, "
                "or give --max_total_tokens"
            )
        if prices.price(self.model) is None:
            return f"codex says no dollars, and no price is known for {self.model}: give --prices FILE, or --max_total_tokens"
        return None

    def why_silent(self) -> str | None:
        """Why it will not even say how many tokens its launches used."""
        if self.name == CLAUDE and self._value("--output-format") not in _JSON_FORMATS:
            return "claude says what it cost only with --output-format=json: put that into the command"
        if self.name == CODEX and not {"--json", "--experimental-json"} & set(self.words):
            return "codex says what it used only with --json: put that into the command"
        return None

    def _value(self, *names: str) -> str | None:
        values = self._values(*names)
        return values[-1] if values else None

    def _values(self, *names: str) -> list[str]:
        found = []
        for word, following in zip(self.words, (*self.words[1:], None), strict=False):
            name, sign, value = word.partition("=")
            if word in names and following is not None:
                found.append(following)
            elif sign and name in names:
                found.append(value)
        return found


Priced = Callable[[Usage], float | None]
"""What a usage costs in US dollars, where the program does not say; None if nobody knows."""
_MARKS = ('"result"', '"turn.', '"thread.', '"error"', '"token_count"', '"task_complete"')
_RESULT_FIELDS = frozenset(("total_cost_usd", "cost_usd", "is_error", "num_turns", "usage", "modelUsage", "session_id"))
_MAX_ERROR_DEPTH = 6


@dataclass(frozen=True, slots=True)
class Account:
    """What a program says of one launch."""

    usage: Usage | None = None
    """What the launch used; None if nothing is said."""
    error: str | None = None
    """Why it failed."""


def read_account(text: str, priced: Priced) -> Account:
    """The account in what a command printed: one object, a list, or lines of events, perhaps among other lines."""
    reading = _Reading()
    for event in _events(text):
        reading.take(event)
    used = [*reading.results.values(), *(replace(usage, unpriced_calls=1) for usage in reading.threads if usage)]
    if not used:
        return Account(None, reading.error)
    return Account(sum((_with_price(usage, priced) for usage in used), ZERO), reading.error)


def _with_price(usage: Usage, priced: Priced) -> Usage:
    if not usage.unpriced_calls:
        return usage
    cost = priced(usage)
    return usage if cost is None else replace(usage, cost=cost, unpriced_calls=0)


@dataclass(slots=True)
class _Reading:
    """What was read of an account so far."""

    results: dict[str, Usage] = field(default_factory=dict)
    """Usage by session."""
    threads: list[Usage | None] = field(default_factory=list)
    """Usage by thread of Codex, each with what its last turn said of it as a whole."""
    error: str | None = None

    def take(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        if kind == "result" and not _RESULT_FIELDS.isdisjoint(event):
            self._result(event)
        elif kind == "thread.started":
            self.threads.append(None)
        elif kind == "turn.completed":
            self.error = None
            self._used(event.get("usage"))
        elif kind == "turn.failed":
            self.error = _message(event.get("error")) or "the turn failed"
        elif kind == "error" and self.threads:  # on the way also said of what passes by itself
            self.error = _message(event) or "an error"
        elif isinstance(message := event.get("msg"), Mapping):
            self._old_event(message)

    def _result(self, event: Mapping[str, Any]) -> None:
        session = event.get("session_id")
        name = session if isinstance(session, str) else str(len(self.results))
        usage, known = _of_result(event), self.results.get(name)
        if known is None or (usage.cost, usage.total_tokens) >= (known.cost, known.total_tokens):
            self.results[name] = usage
        subtype = event.get("subtype")
        failed = event.get("is_error") is True or (isinstance(subtype, str) and subtype.startswith("error"))
        self.error = _claimed(event, subtype) if failed else None

    def _used(self, usage: Json) -> None:
        if not isinstance(usage, Mapping):
            return
        so_far = Usage(
            calls=1,
            input_tokens=_count(usage, "input_tokens"),
            output_tokens=_count(usage, "output_tokens"),
            cached_tokens=_count(usage, "cached_input_tokens"),
            cache_write_tokens=_count(usage, "cache_write_input_tokens"),
            reasoning_tokens=_count(usage, "reasoning_output_tokens"),
        )
        if not self.threads:
            self.threads.append(None)
        last = self.threads[-1]
        if so_far.total_tokens and (last is None or so_far.total_tokens >= last.total_tokens):
            self.threads[-1] = so_far

    def _old_event(self, message: Mapping[str, Any]) -> None:
        """An event as Codex printed them until 2025."""
        kind, info = message.get("type"), message.get("info")
        if kind == "token_count" and isinstance(info, Mapping):
            self._used(info.get("total_token_usage"))
        elif kind == "task_complete":
            self.error = None
        elif kind == "error":
            self.error = _message(message) or "an error"


def _of_result(event: Mapping[str, Any]) -> Usage:
    """What a closing object of Claude Code says. Its tokens of all models, where it tells them apart, else those of the main one."""
    cost = as_cost(event.get("total_cost_usd", event.get("cost_usd")))
    models, usage = event.get("modelUsage"), event.get("usage")
    if isinstance(models, Mapping) and models:
        parts = [part for part in models.values() if isinstance(part, Mapping)]
        names = ("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens", "outputTokens")
    else:
        parts = [usage] if isinstance(usage, Mapping) else []
        names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
    fresh, cached, written, output = (sum(_count(part, name) for part in parts) for name in names)
    return Usage(
        calls=1,
        input_tokens=fresh + cached + written,
        output_tokens=output,
        cached_tokens=cached,
        cache_write_tokens=written,
        cost=cost or 0.0,
        unpriced_calls=int(cost is None),
    )


def _claimed(event: Mapping[str, Any], subtype: Json) -> str:
    """Why Claude Code failed, in its words."""
    errors = event.get("errors")
    listed = "; ".join(filter(None, map(_message, errors))) if isinstance(errors, list) else ""
    said = _message(event.get("result")) or listed
    kind = subtype if isinstance(subtype, str) and subtype.startswith("error") else ""
    return ": ".join(part for part in (kind, said) if part) or "an error"


def _message(error: Json, depth: int = 0) -> str:
    """The sentence in an error: text, an object with a message, or such an object as text."""
    if isinstance(error, Mapping):
        parts = (error.get(name) for name in ("message", "error"))
        return next((said for part in parts if depth < _MAX_ERROR_DEPTH and (said := _message(part, depth + 1))), "")
    if not isinstance(error, str):
        return ""
    inner = object_or_list(error.strip()) if depth < _MAX_ERROR_DEPTH else None
    return (_message(inner, depth + 1) if isinstance(inner, Mapping) else "") or error.strip()


def _events(text: str) -> Iterator[Mapping[str, Any]]:
    whole = object_or_list(text.strip().removeprefix("\ufeff"))
    if whole is not None:
        yield from _objects(whole)
        return
    for line in text.split("\n"):
        if any(mark in line for mark in _MARKS):
            yield from _objects(object_or_list(line.strip()))


def _objects(value: Json) -> Iterable[Mapping[str, Any]]:
    parts = value if isinstance(value, list) else [value]
    return [part for part in parts if isinstance(part, dict)]


def _count(values: Mapping[str, Any], name: str) -> int:
    value = values.get(name)
    return value if type(value) is int and 0 <= value <= MAX_COUNT else 0
