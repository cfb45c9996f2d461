"""Inputs and expected outputs as messages, and messages as text.

A person may write less than messages: a text, an object, a list. What they wrote becomes the content of a message as it is.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyhands.core.jsonio import Json
from manyhands.core.settings import shown, suggestion
from manyhands.io.findings import Findings
from manyhands.io.locations import Place

ROLES = ("system", "user", "assistant", "tool")
FILE, TEXT = "file", "text"
MessageJson = dict[str, Any]
Messages = tuple[MessageJson, ...]


def input_messages(value: Json, place: Place, findings: Findings) -> Messages:
    """An input: a text or an object is what the user says; a list is messages."""
    if isinstance(value, str) and not value.strip():
        findings.problem(place, "must not be empty")
        return ()
    if isinstance(value, str) or (isinstance(value, Mapping) and not _is_message(value)):
        return ({"role": "user", "content": value},)
    if isinstance(value, Mapping):
        return _checked([value], [place], findings)
    if not isinstance(value, list) or not value:
        findings.problem(place, f"must be a text, an object, or a list of messages, not {shown(value)}")
        return ()
    return _checked(value, [place.at(index) for index in range(len(value))], findings)


def expected_messages(value: Json, place: Place, findings: Findings) -> Messages:
    """An expected output: messages, if it has the shape of them; any other text, object or list is what the assistant says."""
    if isinstance(value, Mapping) and _is_message(value):
        return _checked([value], [place], findings)
    if isinstance(value, list) and value and isinstance(value[0], Mapping) and _is_message(value[0]):
        return _checked(value, [place.at(index) for index in range(len(value))], findings)
    if isinstance(value, (str, Mapping, list)):
        return ({"role": "assistant", "content": value},)
    findings.problem(place, f"must be a text, an object or a list, not {shown(value)}")
    return ()


def parts(message: Mapping[str, Any]) -> Iterable[Json]:
    """The parts of a message's content, which is one part unless it is a list."""
    content = message.get("content")
    if isinstance(content, list):
        return content
    return () if content is None else (content,)


def file_value(part: Json) -> str | None:
    """The path that a part of a message names, if it is a file."""
    return part.get("value") if isinstance(part, Mapping) and part.get("type") == FILE else None


def _is_message(value: Mapping[str, Any]) -> bool:
    """Whether an object is meant as a message: it has a role, and either one that exists or something to say. (A record may have
    a field called role.)"""
    return "role" in value and (value["role"] in ROLES or "content" in value or "tool_calls" in value)


def _checked(values: Iterable[Json], places: Iterable[Place], findings: Findings) -> Messages:
    found = []
    for value, place in zip(values, places, strict=True):
        before = len(findings.problems)
        _check(value, place, findings)
        if len(findings.problems) == before:
            found.append(value)
    return tuple(found)


def _check(value: Json, place: Place, findings: Findings) -> None:
    if not isinstance(value, Mapping):
        findings.problem(place, f"must be a message with role and content, not {shown(value)}")
        return
    role = value.get("role")
    if role not in ROLES:
        _check_role(role, place.at("role"), findings)
    calls = value.get("tool_calls")
    if calls is not None:
        _check_calls(calls, place.at("tool_calls"), findings)
    content = value.get("content")
    if isinstance(content, list):
        for index, part in enumerate(content):
            _check_part(part, place.at("content", index), findings)
    elif content is None and not calls:
        findings.problem(place, "content (or tool_calls) is required")
    elif not isinstance(content, (str, Mapping, type(None))):
        findings.problem(
            place.at("content"), f"must be a text, an object or a list, not {shown(content)}; quote it if it is text"
        )


def _check_role(role: Json, place: Place, findings: Findings) -> None:
    hint = suggestion(role, ROLES) if isinstance(role, str) else ""
    findings.problem(place, f"must be one of {', '.join(ROLES)}, not {shown(role)}{hint}")


def _check_calls(calls: Json, place: Place, findings: Findings) -> None:
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        findings.problem(place, f"must be a list of objects, not {shown(calls)}")


def _check_part(part: Json, place: Place, findings: Findings) -> None:
    if isinstance(part, str):
        return
    if not isinstance(part, Mapping):
        findings.problem(place, f"must be a text or an object, not {shown(part)}")
    elif part.get("type") == FILE and not _filled(part.get("value")):
        findings.problem(place.at("value"), "the path of a file is required")
    elif part.get("type") == TEXT and not isinstance(part.get("value", part.get("text")), str):
        findings.problem(place.at("value"), "a text is required")


def _filled(value: Json) -> bool:
    return isinstance(value, str) and bool(value.strip())


GUIDELINES = "[[ ## Guidelines ## ]]"
_Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Files:
    """How files in an input are shown. ``paths``: of each as it is written; ``left_out``: those that do not appear; ``inline``: show
    what is in them, where otherwise their paths stand."""

    paths: Mapping[str, Path] = field(default_factory=dict)
    left_out: Collection[Path] = ()
    inline: bool = False

    def text(self, named: str) -> str:
        """What stands for a file. Raises OSError if it can't be read."""
        path = self.paths.get(named, Path(named))
        if path in self.left_out:
            return ""
        if not self.inline:
            return f'<file: path="{path}">'
        content = path.read_text(encoding="utf-8-sig", errors="replace").replace("\r\n", "\n")
        return f'<file path="{named}">\n{content}\n</file>'


def question(messages: Sequence[_Message]) -> str:
    """What is asked, for judges: all that messages say, each part trimmed, with a space between; files are left out."""
    texts = (_part(part, None).strip() for message in messages for part in parts(message))
    return " ".join(text for text in texts if text)


def reference_answer(messages: Sequence[_Message]) -> str:
    """What is expected: what the last message says, or which tools it calls. Empty without messages."""
    if not messages:
        return ""
    content = messages[-1].get("content")
    value = messages[-1].get("tool_calls", "") if content is None else content
    return value if isinstance(value, str) else indented(value)


def prompt_text(messages: Sequence[_Message], files: Files) -> str:
    """Messages as one text: if several have something to say, or one is the assistant's or a tool's, each below its role; else just
    what is said."""
    said = list(_said(messages, files))
    if len(said) > 1 or any(message["role"] in ("assistant", "tool") for message in messages):
        return "\n\n".join(f"{_header(message)}\n{text}" for message, text in said)
    return "\n\n".join(text for _, text in said)


def chat_messages(messages: Sequence[_Message], guidelines: str, files: Files) -> list[dict[str, str]]:
    """Messages for a chat model: guidelines and the system messages that stand first as one system message; later ones, and those of
    tools, as the assistant's, below their role."""
    said = list(_said(messages, files))
    leading = next((place for place, (message, _) in enumerate(said) if message["role"] != "system"), len(said))
    system = [f"{GUIDELINES}\n\n{guidelines}"] if guidelines else []
    system += [text for _, text in said[:leading]]
    chat = [{"role": "system", "content": "\n\n".join(system)}] if system else []
    return chat + [_chat_message(message, text) for message, text in said[leading:]]


def indented(value: Json) -> str:
    """A value as JSON that people read."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def _chat_message(message: _Message, text: str) -> dict[str, str]:
    if message["role"] in ("user", "assistant"):
        return {"role": message["role"], "content": text}
    return {"role": "assistant", "content": f"{_header(message)}\n{text}"}


def _said(messages: Sequence[_Message], files: Files) -> Iterator[tuple[_Message, str]]:
    """Messages that have something to say, and what."""
    for message in messages:
        texts = [text for part in parts(message) if (text := _part(part, files))]
        if not texts and message.get("tool_calls"):
            texts = [indented(message["tool_calls"])]
        if texts:
            yield message, "\n\n".join(texts)


def _part(part: Json, files: Files | None) -> str:
    """What a part of a message says. Without ``files``, files say nothing."""
    if isinstance(part, str):
        return part
    named = file_value(part)
    if named is not None:
        return files.text(named) if files else ""
    if isinstance(part, Mapping) and part.get("type") == TEXT:
        return str(part.get("value", part.get("text")))
    return indented(part)


def _header(message: _Message) -> str:
    return f"@[{message['role'].capitalize()}]:"
