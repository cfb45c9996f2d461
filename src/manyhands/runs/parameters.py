"""What the command line calls options, said as the parameters of a Python function: ``sandbox="local"`` for ``--sandbox local``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from manyhands.core.errors import StorageError, UserError
from manyhands.core.settings import FALSE_WORDS, TRUE_WORDS, Settings, bare_type

_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z0-9_-]*)(?:=('[^']*'|[^\s;)']+)|( +)([\w./-]+))?")
_PLACEHOLDER = re.compile(r"[A-Z][A-Z_]*")
_NUMBER = re.compile(r"[+-]?[0-9.]+")
_AFTER_VALUE = ".,:…"
"""What ends a clause rather than a value."""
_BY_WORD = frozenset(("sandbox", "model", "executor", "distribution"))
"""Settings whose values are single words, which may stand behind the option without ``=``."""
_NO_VALUE = re.compile(
    r"and|as|can|counts|for|goes|has|in|is|keeps|must|needs|names|on|or|says|sets|takes|that|to|was|which|with"
)
"""Words that go on with the sentence."""


class PythonWords:
    """Says things as parameters of one function. ``settings``: its parameters; ``others``: what to write for some that are none."""

    def __init__(self, settings: type[Settings], others: Mapping[str, str] | None = None) -> None:
        self._kinds = {name: bare_type(field.annotation) for name, field in settings.fields.items()}
        self._others = others or {}

    def text(self, text: str) -> str:
        """A message with parameters in place of options. What is no option of these settings stays as it is."""
        return _OPTION.sub(self._rendered, text)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Errors for a person that are raised inside say the same in these words."""
        try:
            yield
        except (UserError, StorageError) as error:
            self.put(error)
            raise

    def put(self, error: Exception | None) -> None:
        """Have an error say the same in these words."""
        if isinstance(error, (UserError, StorageError)):
            error.args = (self.text(str(error)),)

    def _rendered(self, found: re.Match[str]) -> str:
        name, value, space, word = found[1].replace("-", "_"), found[2], found[3] or "", found[4]
        negated = name.removeprefix("no_")
        if name not in self._kinds and name not in self._others and self._kinds.get(negated) is bool:
            return f"{negated}=False{space}{word or ''}"
        rest = f"{space}{word or ''}"
        if value is None and word is not None and self._is_value(name, word):
            value, rest = word, ""
        if value is not None:
            kept = value.rstrip(_AFTER_VALUE)
            value, rest = kept, value[len(kept) :] + rest
        if name in self._others:
            return self._others[name] + rest
        if name not in self._kinds:
            return found[0]
        return f"{name}{self._shown(name, value)}{rest}"

    def _is_value(self, name: str, word: str) -> bool:
        """Whether a word behind an option is its value, rather than the next one of the sentence."""
        kind, word = self._kinds.get(name), word.rstrip(_AFTER_VALUE)
        if kind is bool:
            return False
        if kind in (int, float):
            return bool(_NUMBER.fullmatch(word) or _PLACEHOLDER.fullmatch(word))
        return bool(_PLACEHOLDER.fullmatch(word)) or (name in _BY_WORD and not _NO_VALUE.fullmatch(word))

    def _shown(self, name: str, value: str | None) -> str:
        """A value behind a parameter's name, with the sign of equality."""
        kind = self._kinds[name]
        if kind is bool:
            return f"={value is None or value.lower() not in FALSE_WORDS - TRUE_WORDS}"
        if value is None:
            return ""
        value = value.strip("'")
        if _PLACEHOLDER.fullmatch(value) or (kind in (int, float) and _NUMBER.fullmatch(value)):
            return f"={value}"
        return f"={json.dumps(value, ensure_ascii=False)}"
