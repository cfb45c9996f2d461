"""The ``prompts`` of a file, each of which is given to the target with the ``vars`` of each test.

A prompt is a text, ``file://PATH``, a list of chat messages, or a mapping with one of ``prompt``, ``raw``, ``messages``, ``file``, and
perhaps ``id`` and ``label``. A text that is a JSON list of messages, as prompt files may hold, stands for these messages.

Where there are several, each makes a test ``ID__prompt_PROMPT``. PROMPT is the prompt's ``id``, else its file's path, else ``prompt-``,
``chat-`` or ``string-`` with a digest of its content, with hyphens for characters that don't belong in names, as AgentV has it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands.core.jsonio import Json
from manyhands.core.settings import shown
from manyhands.io.locations import Findings, Location, Step
from manyhands.io.search_paths import SearchPath, text_of
from manyhands.workloads.evals.evalfile.agentv5.given import Given
from manyhands.workloads.evals.evalfile.agentv5.rendering import Filling, Missing
from manyhands.workloads.evals.evalfile.messages import VARIABLE

SCHEME = "file://"
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")
_MAX_NAME = 48
_DIGITS = 12
_BY_PROGRAMS = ("function", "function_file", "command")
_WAYS = ("prompt", "raw", "messages", "file")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One of the prompts of a file."""

    id: str
    input: Json
    """A text, or a list of messages."""
    location: Location
    label: str | None = None

    @property
    def part_of_id(self) -> str:
        """What it adds to a test's id."""
        return safe(self.id) or digest_of(self.id)

    @property
    def variable(self) -> str | None:
        """The name of the variable that it is nothing but, if it is nothing else."""
        whole = VARIABLE.fullmatch(self.input.strip()) if isinstance(self.input, str) else None
        return None if whole is None else whole[1]

    def filled(self, variables: Mapping[str, Json], missing: Missing, filling: Filling) -> Json:
        """The input of a test: a text, an object, or messages. ``missing``: gives what stands for a name of no variable.
        Raises UserError."""
        found = filling.rendered(self.input, variables, self.location, missing)
        return messages_in(found) or found if isinstance(found, str) else found


def safe(text: str) -> str:
    """A text as part of a name; empty if nothing of it fits."""
    return _UNFIT.sub("-", text.strip()).strip("-")[:_MAX_NAME]


def digest_of(value: Json) -> str:
    """The beginning of the SHA-256 of a value as JSON."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def messages_in(text: str) -> list[Json] | None:
    """The messages that a text lists as JSON; None if it is something else."""
    if not text.lstrip().startswith("["):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if is_chat(found) else None


def is_chat(value: Any) -> bool:
    """Whether a value is a list of chat messages."""
    return isinstance(value, list) and bool(value) and all(_is_message(each) for each in value)


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("role"), str) and "content" in value


def read_prompts(
    value: Json, location: Location, folder: Path, search_path: SearchPath, findings: Findings
) -> tuple[Prompt, ...]:
    """The prompts of a file; what is wrong with them is in ``findings``. ``folder``: the eval file's."""
    reader = _Reader(folder, search_path, findings)
    several = isinstance(value, list) and not is_chat(value)
    entries: Sequence[tuple[Json, tuple[Step, ...]]] = (
        [(entry, (index,)) for index, entry in enumerate(value)] if several else [(value, ())]
    )
    found = list[Prompt]()
    for entry, path in entries:
        with findings.catching():
            found.append(reader.prompt(entry, location.at(*path)))
    if several and not entries:
        findings.problem(location, "must not be empty")
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Reader:
    folder: Path
    search_path: SearchPath
    findings: Findings

    def prompt(self, value: Json, location: Location) -> Prompt:
        """Raises UserError for what is no prompt."""
        if isinstance(value, str) and value.startswith(SCHEME):
            return self._file(value.removeprefix(SCHEME), location, None, None)
        if isinstance(value, str):
            return self._text("prompt", value, location)
        if is_chat(value):
            return Prompt(f"chat-{digest_of(value)}", value, location)
        if not isinstance(value, Mapping):
            raise location.error(f"must be a prompt: a text, a list of messages, or a mapping, not {shown(value)}")
        if _is_message(value):
            return Prompt(f"chat-{digest_of(value)}", [dict(value)], location)
        return self._mapping(Given(value, location, self.findings))

    def _mapping(self, given: Given) -> Prompt:
        name, label = _word(given, "id"), _word(given, "label")
        for key in _BY_PROGRAMS:
            if given.has(key):
                raise given.at(key).error(
                    "is not supported: a prompt is not made by a program here; write its text, or file:// and a file"
                )
        way = next((key for key in _WAYS if given.has(key)), None)
        if way is None:
            raise given.location.error(f"must have one of {', '.join(_WAYS)}")
        value, location = given.take(way), given.at(way)
        given.tell_left("a prompt")
        if way == "file":
            if not isinstance(value, str) or not value.strip():
                raise location.error(f"must be the path of a file, not {shown(value)}")
            return self._file(value.removeprefix(SCHEME), location, name, label)
        if isinstance(value, str) and way != "messages":
            made = self._text("string", value, location)
        elif is_chat(value) and way != "raw":
            made = Prompt(f"chat-{digest_of(value)}", value, location)
        else:
            kind = "a list of messages" if way == "messages" else "a text"
            raise location.error(f"must be {kind}, not {shown(value)}")
        return Prompt(name or made.id, made.input, location, label)

    def _text(self, kind: str, text: str, location: Location) -> Prompt:
        if not text.strip():
            raise location.error("must not be empty")
        return Prompt(f"{kind}-{digest_of(text)}", text, location)

    def _file(self, named: str, location: Location, name: str | None, label: str | None) -> Prompt:
        path = self.search_path.find(named, self.folder)
        if path is None:
            raise location.error(f"there is no file {named} in the eval file's folder or in one above it")
        text = text_of(path, location).replace("\r\n", "\n")
        if not text.strip():
            raise location.error(f"{named} is empty")
        shown_path = named.lstrip("/\\")
        return Prompt(name or shown_path, messages_in(text) or text, location, label or shown_path)


def _word(given: Given, key: str) -> str | None:
    value = given.take(key)
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise given.at(key).error(f"must be a text, not {shown(value)}")
    return None if value is None else value.strip()


def named_prompts(prompts: Sequence[Prompt], wanted: Json, location: Location) -> tuple[Prompt, ...]:
    """Those of the prompts that a test names, by id or label; all, if it names none. Raises UserError for a name of none."""
    if wanted is None:
        return tuple(prompts)
    names = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise location.error("must be the ids or labels of prompts of the file")
    for index, name in enumerate(names):
        if not any(name in (prompt.id, prompt.label) for prompt in prompts):
            at = location.at(index) if isinstance(wanted, list) else location
            raise at.error(f"no prompt of the file is called {shown(name)}")
    return tuple(prompt for prompt in prompts if prompt.id in names or prompt.label in names)
