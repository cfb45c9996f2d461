"""What tests say: inputs and expected outputs as messages, messages as text, and values for ``{{ name }}``.

A person may write less than messages: a text, an object, a list. What they wrote becomes the content of a message as it is.

Where a suite or a test has ``vars``, ``{{ name }}`` in its criteria, input, expected output and graders stands for the value of that name.
A text that is nothing else becomes the value itself, of whatever type; within a text, values that are not text are put as
JSON. ``{{ name.field }}`` is a field of an object. Other names stay as they are, since prompts of graders have variables too; so does
everything where there are no ``vars``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyhands.core.jsonio import Json, dumps
from manyhands.core.settings import shown
from manyhands.core.text import closest, suggestion
from manyhands.io.locations import Findings, Location
from manyhands.tools.services.artifacts import picture_places, text_for_people
from manyhands.tools.services.prompt_parts import PICTURES

IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp")
"""Endings of files of which a model is told the name alone."""
ROLES = ("system", "user", "assistant", "tool")
FILE, IMAGE, TEXT = "file", "image", "text"
MessageJson = dict[str, Any]
Messages = tuple[MessageJson, ...]


def input_messages(value: Json, location: Location, findings: Findings) -> Messages:
    """The messages of an input: a text or an object is the content of the user's message; a list is messages."""
    if isinstance(value, str) and not value.strip():
        findings.problem(location, "must not be empty")
        return ()
    if isinstance(value, str) or (isinstance(value, Mapping) and not _is_message(value)):
        return ({"role": "user", "content": value},)
    if isinstance(value, Mapping):
        return _checked([value], [location], findings)
    if not isinstance(value, list) or not value:
        findings.problem(location, f"must be a text, an object, or a list of messages, not {shown(value)}")
        return ()
    return _checked(value, [location.at(index) for index in range(len(value))], findings)


def expected_messages(value: Json, location: Location, findings: Findings) -> Messages:
    """The messages of an expected output: messages, if it has their shape; any other text, object or list is the content of the assistant's
    message."""
    if isinstance(value, Mapping) and _is_message(value):
        return _checked([value], [location], findings)
    if isinstance(value, list) and value and isinstance(value[0], Mapping) and _is_message(value[0]):
        return _checked(value, [location.at(index) for index in range(len(value))], findings)
    if isinstance(value, (str, Mapping, list)):
        return ({"role": "assistant", "content": value},)
    findings.problem(location, f"must be a text, an object or a list, not {shown(value)}")
    return ()


def with_files(messages: Messages, files: Sequence[Json]) -> Messages:
    """The messages with files at the head of the first one of the user; one of files alone before them where the user says nothing."""
    if not files:
        return messages
    for number, message in enumerate(messages):
        if message["role"] == "user":
            content = message.get("content")
            said = [{"type": TEXT, "value": content}] if isinstance(content, str) else list(parts(message))
            return (*messages[:number], {**message, "content": [*files, *said]}, *messages[number + 1 :])
    return ({"role": "user", "content": list(files)}, *messages)


def parts(message: Mapping[str, Any]) -> Iterable[Json]:
    """The parts of a message's content: the items of a list, else the content itself."""
    content = message.get("content")
    if isinstance(content, list):
        return content
    return () if content is None else (content,)


def file_value(part: Json) -> str | None:
    """The path that a part of a message names, if it is a file or an image."""
    if not isinstance(part, Mapping):
        return None
    value = part.get("value")
    return value if part.get("type") == FILE or (part.get("type") == IMAGE and isinstance(value, str)) else None


def is_shown(part: Json) -> bool:
    """Whether a part of a message is a picture that models are shown, in one of the forms that models' interfaces have: ``image_url``,
    ``input_image``, or ``image`` without the path that ``file_value`` gives."""
    return isinstance(part, Mapping) and part.get("type") in PICTURES and "value" not in part


def _is_message(value: Mapping[str, Any]) -> bool:
    """Whether an object is a message: it has a role, and either a known one or content. (A record may have a field called role.)"""
    return "role" in value and (value["role"] in ROLES or "content" in value or "tool_calls" in value)


def _checked(values: Iterable[Json], locations: Iterable[Location], findings: Findings) -> Messages:
    found = []
    for value, location in zip(values, locations, strict=True):
        before = len(findings.problems)
        _check(value, location, findings)
        if len(findings.problems) == before:
            found.append(value)
    return tuple(found)


def _check(value: Json, location: Location, findings: Findings) -> None:
    if not isinstance(value, Mapping):
        findings.problem(location, f"must be a message with role and content, not {shown(value)}")
        return
    role = value.get("role")
    if role not in ROLES:
        _check_role(role, location.at("role"), findings)
    calls = value.get("tool_calls")
    if calls is not None:
        _check_calls(calls, location.at("tool_calls"), findings)
    content = value.get("content")
    if isinstance(content, list):
        for index, part in enumerate(content):
            _check_part(part, location.at("content", index), findings)
    elif content is None and not calls:
        findings.problem(location, "content (or tool_calls) is required")
    elif not isinstance(content, (str, Mapping, type(None))):
        findings.problem(
            location.at("content"), f"must be a text, an object or a list, not {shown(content)}; quote it if it is text"
        )


def _check_role(role: Json, location: Location, findings: Findings) -> None:
    hint = suggestion(role, ROLES) if isinstance(role, str) else ""
    findings.problem(location, f"must be one of {', '.join(ROLES)}, not {shown(role)}{hint}")


def _check_calls(calls: Json, location: Location, findings: Findings) -> None:
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        findings.problem(location, f"must be a list of objects, not {shown(calls)}")


def _check_part(part: Json, location: Location, findings: Findings) -> None:
    if isinstance(part, str):
        return
    if not isinstance(part, Mapping):
        findings.problem(location, f"must be a text or an object, not {shown(part)}")
    elif part.get("type") == FILE and not (isinstance(value := part.get("value"), str) and value.strip()):
        findings.problem(location.at("value"), "the path of a file is required")
    elif part.get("type") == TEXT and not isinstance(part.get("value", part.get("text")), str):
        findings.problem(location.at("value"), "a text is required")


# --- Messages as text

GUIDELINES = "[[ ## Guidelines ## ]]"
_Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Files:
    """How files in an input appear."""

    paths: Mapping[str, Path] = field(default_factory=dict)
    """Of each file as it is written, the path."""
    left_out: Collection[Path] = ()
    """Those that do not appear."""
    inline: bool = False
    """Whether what is in them is shown, where otherwise their paths stand."""

    def text(self, named: str) -> str:
        """The text that stands for a file. Raises OSError if it can't be read."""
        path = self.paths.get(named, Path(named))
        if path in self.left_out:
            return ""
        if not self.inline:
            return f'<file: path="{path}">'
        if path.suffix.lower() in IMAGES:
            return f'<image path="{named}">'
        content = path.read_text(encoding="utf-8-sig", errors="replace").replace("\r\n", "\n")
        return f'<file path="{named}">\n{content}\n</file>'


def question(messages: Sequence[_Message]) -> str:
    """The input as judges get it: the text of all messages, each part trimmed, with a space between; files are left out."""
    texts = (_part(part, None).strip() for message in messages for part in parts(message))
    return " ".join(text for text in texts if text)


def prompt_text(messages: Sequence[_Message], files: Files) -> str:
    """Messages as one text: each below its role if several have text, or one is the assistant's or a tool's; else just the text."""
    said = list(_said(messages, files))
    if len(said) > 1 or any(message["role"] in ("assistant", "tool") for message in messages):
        return "\n\n".join(f"{_header(message)}\n{text}" for message, text in said)
    return "\n\n".join(text for _, text in said)


def chat_messages(messages: Sequence[_Message], guidelines: str, files: Files) -> list[dict[str, Any]]:
    """Messages for a chat model: guidelines and the leading system messages as one system message; later ones, and those of tools, as the
    assistant's, below their role. Contents are text; those of the user with pictures are content parts of chat completions."""
    said = list(_said(messages, files))
    leading = next((location for location, (message, _) in enumerate(said) if message["role"] != "system"), len(said))
    system = [f"{GUIDELINES}\n\n{guidelines}"] if guidelines else []
    system += [text for _, text in said[:leading]]
    chat = [{"role": "system", "content": "\n\n".join(system)}] if system else []
    return chat + [_chat_message(message, text, files) for message, text in said[leading:]]


def indented(value: Json) -> str:
    """A value as indented JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def _chat_message(message: _Message, text: str, files: Files) -> dict[str, Any]:
    if message["role"] == "user" and any(map(_is_kept, parts(message))):
        content = [
            part if _is_kept(part) else {"type": TEXT, "text": said}
            for part in parts(message)
            if _is_kept(part) or (said := _part(part, files))
        ]
        return {"role": "user", "content": content}
    if message["role"] in ("user", "assistant"):
        return {"role": message["role"], "content": text}
    return {"role": "assistant", "content": f"{_header(message)}\n{text}"}


def _said(messages: Sequence[_Message], files: Files) -> Iterator[tuple[_Message, str]]:
    """The messages that have text, each with it."""
    for message in messages:
        texts = [text for part in parts(message) if (text := _part(part, files))]
        if not texts and message.get("tool_calls"):
            texts = [indented(message["tool_calls"])]
        if texts:
            yield message, "\n\n".join(texts)


def _part(part: Json, files: Files | None) -> str:
    """The text of a part of a message. Without ``files``, that of files is empty."""
    if isinstance(part, str):
        return part
    named = file_value(part)
    if named is not None:
        return files.text(named) if files else ""
    if _is_kept(part):
        return text_for_people([part]) if files else ""
    if isinstance(part, Mapping) and part.get("type") == TEXT:
        return str(part.get("value", part.get("text")))
    return indented(part)


def _is_kept(part: Json) -> bool:
    """Whether a part is a picture as tests have it that were read: other parts of the type are those of runs of earlier versions."""
    return is_shown(part) and bool(picture_places([part]))


def _header(message: _Message) -> str:
    return f"@[{message['role'].capitalize()}]:"


# --- Variables

VARIABLE = re.compile(r"\{\{\s*([A-Za-z_][\w-]*(?:\.[\w-]+)*)\s*\}\}")
"""A name in braces."""
NOTHING: Any = object()
"""What stands for the value of a name that is none."""


def filled(value: Json, variables: Mapping[str, Json]) -> Json:
    """The value with its variables replaced. Keys are left alone, and values that were put in are not looked at again."""
    if not variables:
        return value
    if isinstance(value, str):
        return _filled_text(value, variables)
    if isinstance(value, Mapping):
        return {key: filled(entry, variables) for key, entry in value.items()}
    return [filled(entry, variables) for entry in value] if isinstance(value, list) else value


def misspelled(value: Json, variables: Mapping[str, Json]) -> Iterator[str]:
    """A line for each name in braces that is no variable but much like one."""
    if isinstance(value, str):
        for name in VARIABLE.findall(value) if variables and "{{" in value else ():
            near = closest(name.split(".")[0], variables, cutoff=0.7)
            if near and variable_of(name, variables) is NOTHING:
                yield f"{{{{ {name} }}}} is no variable and stays as it is; did you mean {{{{ {near[0]} }}}}?"
    elif isinstance(value, (Mapping, list)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from misspelled(part, variables)


def _filled_text(text: str, variables: Mapping[str, Json]) -> Json:
    whole = VARIABLE.fullmatch(text)
    if whole is not None:
        found = variable_of(whole[1], variables)
        return text if found is NOTHING else found
    return VARIABLE.sub(lambda found: _inserted(found, variables), text)


def _inserted(found: re.Match[str], variables: Mapping[str, Json]) -> str:
    value = variable_of(found[1], variables)
    if value is NOTHING:
        return found[0]
    return value if isinstance(value, str) else dumps(value).decode()


def variable_of(name: str, variables: Mapping[str, Json]) -> Any:
    """The value of a name, or of a field by the names of the objects around it; ``NOTHING`` without one."""
    if name in variables:
        return variables[name]
    found: Any = variables
    for step in name.split("."):
        if not isinstance(found, Mapping) or step not in found:
            return NOTHING
        found = found[step]
    return found
