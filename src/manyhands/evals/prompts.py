"""What is asked and expected, as text."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyhands.core.jsonio import Json
from manyhands.evals.messages import TEXT, file_value, parts

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
