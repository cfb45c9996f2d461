"""Variables of the environment in what a person wrote in eval files.

``${{ NAME }}``, as a whole text or within one, stands for the variable of that name, and ``${{ NAME:-text }}`` for one with a default. What
is put in is not looked at again. A variable that is not set is empty text, and a note names it. Anything else in such braces stays as it
is, since tests may be about files in which it means something. Within data (metadata, arguments, objects that are expected), a text
that is one variable and nothing else becomes the number or truth value that its value spells, as AgentV has it; everywhere else it
stays text.

What is recorded of a run is made with the values, so that a resumed run has the same. Only values of variables that are secrets
by their names are never recorded: references stand in their place (``hidden``), and they are put in again (``revealed``) where a test is
executed, from the environment of that session.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.redaction import is_secret, protect
from manyhands.io.locations import Findings, Location
from manyhands.io.locations import Path as FieldPath

REFERENCE = re.compile(r"\$\{\{((?:(?!\$\{\{).)*?)\}\}", re.DOTALL)
"""From the last opening before a closing: many that nothing closes cost no more than their length."""
MEANING = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*(?::-(.*))?", re.DOTALL)
SECRET_NAME = re.compile(r"key|token|secret|passw|auth(?!or)|credential|cookie", re.IGNORECASE)
_HIDDEN = re.compile(r"\$\{\{ ([A-Za-z_][A-Za-z0-9_]*) \}\}")
_PLAIN_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
_DATA = frozenset(
    ("metadata", "governance", "vars", "args", "config", "input", "output", "expected_output", "expectedOutput")
)
"""Keys below which there may be data."""
_TEXTS = frozenset(("content", "value", "text", "role", "type"))
"""Keys of messages and their parts, which are text."""
_GRADERS = frozenset(("assert", "assertions", "evaluators", "rubrics", "expected_output"))
_MAX_NAMED = 10


def has_reference(value: Json) -> bool:
    """Whether there may be a variable anywhere in a value."""
    if isinstance(value, str):
        return "${{" in value
    if isinstance(value, Mapping):
        return any(map(has_reference, value.values()))
    return isinstance(value, (list, tuple)) and any(map(has_reference, value))


@dataclass(slots=True)
class Environment:
    """Puts values of the environment's variables in."""

    variables: Callable[[], Mapping[str, str]]
    """Reads the variables, when the first is needed. Raises UserError."""
    findings: Findings
    secrets: dict[str, str] = field(default_factory=dict)
    """The values that were put in and are secrets, by the variables' names."""
    missing: dict[str, dict[str, None]] = field(default_factory=dict)
    """Of each file, the variables that are not set."""
    _known: Mapping[str, str] | None = None

    def filled(self, value: Json, location: Location, keep: frozenset[str] = frozenset()) -> Json:
        """The value with its variables replaced; keys are left alone, and so are the values of the keys ``keep`` at its top."""
        if not has_reference(value):
            return value
        if self._known is None:
            self._known = self.variables()
        if isinstance(value, Mapping) and keep:
            return {
                key: entry if key in keep else self._filled(entry, location, (key,)) for key, entry in value.items()
            }
        return self._filled(value, location, ())

    def tell(self) -> None:
        """Name the variables that are not set, in one notice for each file."""
        for file, names in self.missing.items():
            named = list(names)[:_MAX_NAMED]
            more = f" … and {len(names) - len(named)} more" if len(names) > len(named) else ""
            verb, noun = ("is", "variable") if len(names) == 1 else ("are", "variables")
            self.findings.notice(
                f"{file}: environment {noun} {', '.join(named)}{more} {verb} not set, and taken as empty text"
            )

    def _filled(self, value: Json, location: Location, path: FieldPath) -> Json:
        if isinstance(value, str):
            return self._text(value, location, path) if "${{" in value else value
        if isinstance(value, Mapping):
            return {key: self._filled(entry, location, (*path, key)) for key, entry in value.items()}
        if isinstance(value, list):
            return [self._filled(entry, location, (*path, index)) for index, entry in enumerate(value)]
        return value

    def _text(self, text: str, location: Location, path: FieldPath) -> Json:
        whole = REFERENCE.fullmatch(text.strip())
        if whole is not None and MEANING.fullmatch(whole[1]) is not None:
            found = self._inserted(whole, location, path)
            return _plain(found) if _is_data((*location.path, *path)) else found
        return REFERENCE.sub(lambda found: self._inserted(found, location, path), text)

    def _inserted(self, found: re.Match[str], location: Location, path: FieldPath) -> str:
        meant = MEANING.fullmatch(found[1])
        if meant is None:
            return found[0]
        name, default = meant[1], meant[2]
        value = (self._known or {}).get(name)
        if not value:
            if value is None and default is None:
                self.missing.setdefault(location.file, {})[name] = None
            return "" if default is None else default.strip()
        if SECRET_NAME.search(name) and is_secret(value):
            self._take_secret(name, value, location.at(*path))
        return value

    def _take_secret(self, name: str, value: str, location: Location) -> None:
        if name not in self.secrets:
            protect([value])
            self.secrets[name] = value
        if not _GRADERS.isdisjoint(location.path):
            self.findings.notice(
                location.says(
                    f"{name} is a secret by its name, which is taken out of answers before they are graded: what graders look for needs "
                    "a variable of another name"
                )
            )


def _is_data(path: FieldPath) -> bool:
    return path[-1] not in _TEXTS and any(step in _DATA for step in path[:-1])


def _plain(text: str) -> Json:
    if text in ("true", "false"):
        return text == "true"
    if _PLAIN_NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    return text


# --- What is recorded


def hidden(value: Json, secrets: Mapping[str, str]) -> tuple[Json, list[str]]:
    """The value with references in the place of secrets, and the names of those that it had."""
    found: dict[str, None] = {}
    longest_first = sorted(secrets.items(), key=lambda each: -len(each[1]))

    def replaced(text: str) -> str:
        for name, secret in longest_first:
            if secret in text:
                found[name] = None
                text = text.replace(secret, f"${{{{ {name} }}}}")
        return text

    return _each_text(value, replaced), sorted(found)


def revealed(value: Any, names: Iterator[str] | list[str], environ: Mapping[str, str]) -> Any:
    """The value with the variables of these names put in again, which ``hidden`` named. Raises UserError for one that is not set."""
    wanted = frozenset(names)
    for name in sorted(wanted):
        if not environ.get(name):
            raise UserError(f"the environment variable {name} is not set, which the test had when the run was made")
    protect(environ[name] for name in wanted)

    def replaced(text: str) -> str:
        return _HIDDEN.sub(lambda found: environ[found[1]] if found[1] in wanted else found[0], text)

    return _each_text(value, replaced)


def _each_text(value: Any, replaced: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return replaced(value)
    if isinstance(value, Mapping):
        return {replaced(key): _each_text(entry, replaced) for key, entry in value.items()}
    return [_each_text(entry, replaced) for entry in value] if isinstance(value, (list, tuple)) else value
