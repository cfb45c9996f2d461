"""Command lines of agent programs that are known here: whether such a program says what a launch cost, and of which model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from manyhands.models.pricing import PriceTable

_BEFORE = frozenset(("env", "npx", "-y", "--yes", "nice", "nohup"))
_VARIABLE = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_PACKAGES = {"@anthropic-ai/claude-code": "claude", "@openai/codex": "codex"}
_JSON_FORMATS = ("json", "stream-json")
CLAUDE, CODEX = "claude", "codex"


@dataclass(frozen=True, slots=True)
class AgentProgram:
    """A command line as far as it is known. ``name``: ``claude``, ``codex``, or None for any other program; ``words``: what follows it."""

    name: str | None
    words: tuple[str, ...]

    @classmethod
    def of(cls, words: Sequence[str]) -> AgentProgram:
        """Of the words of a command line."""
        rest = list(words)
        while rest and (rest[0].rpartition("/")[2] in _BEFORE or _VARIABLE.fullmatch(rest[0])):
            rest.pop(0)
        first = rest[0] if rest else ""
        bare = re.sub(r"(?<=.)@[^/@]*$", "", first)
        name = _PACKAGES.get(bare, first.rpartition("/")[2])
        return cls(name if name in (CLAUDE, CODEX) else None, tuple(rest[1:]))

    @property
    def model(self) -> str | None:
        """The model that the command line names."""
        named = self._value("--model", "-m")
        if named is not None or self.name != CODEX:
            return named
        settings = self._values("--config", "-c")
        return next((text[6:].strip("\"'") for text in reversed(settings) if text.startswith("model=")), None)

    @property
    def most(self) -> float | None:
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
