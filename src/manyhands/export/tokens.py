"""How many tokens a conversation has, by a tokenizer of the person's own: from a local file, never from a hub."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from manyhands.core.errors import UserError
from manyhands.core.messages import text_of
from manyhands.core.text import expand_home
from manyhands.export.chat import arguments_of, chat_messages, tool_definitions
from manyhands.export.conversations import Conversation
from manyhands.export.format import Losses
from manyhands.processes.event_loop import run_on_loop
from manyhands.processes.killable import killable
from manyhands.runs.options import read_text

TEMPLATE_SECONDS = 5.0
"""The time limit of a chat template for one conversation."""
_SHOWN = 300
TOKENIZER_FILE, TEMPLATE_FILE, CONFIG_FILE = "tokenizer.json", "chat_template.jinja", "tokenizer_config.json"


class Encoder(Protocol):
    """Counts the tokens of texts."""

    def count(self, text: str) -> int: ...


class ConversationTokens:
    """Counts the tokens of conversations: as the tokenizer's chat template writes them where it has one; else of all texts, names,
    arguments and tool definitions, without what a template puts around them."""

    def __init__(self, name: str) -> None:
        """Raises UserError for a tokenizer that can't be used."""
        path = expand_home(name)
        folder = path if path.is_dir() else path.parent
        self._template: str | None = None
        if path.is_dir() or path.is_file():
            file = path / TOKENIZER_FILE if path.is_dir() else path
            self._encoder: Encoder = _file_encoder(file)
            self._template = _template_in(folder) if path.is_dir() else None
            if self._template is not None:
                self._rendered({}, f"{folder}: its chat template can't be read")
            self.name = str(name)
        else:
            self._encoder = _tiktoken_encoder(name)
            self.name = f"tiktoken {name}"

    @property
    def uses_template(self) -> bool:
        return self._template is not None

    def count(self, conversation: Conversation) -> int:
        """Tokens of a conversation. Raises UserError if the template can't write it."""
        messages = chat_messages(conversation.turns, "field", Losses())
        if self._template is None:
            return sum(self._encoder.count(text) for text in _texts(conversation, messages))
        for message in messages:  # as transformers gives them to templates: texts, and arguments as objects
            message["content"] = message["content"] or ""
            if "reasoning_content" in message:
                message["thinking"] = message["reasoning_content"]
            for call in message.get("tool_calls", ()):
                function = call["function"]
                function["arguments"] = arguments_of(call) or {}
        values = {"messages": messages, "tools": tool_definitions(conversation) or None, "add_generation_prompt": False}
        text = self._rendered(values, f"{self.name}: its chat template can't write {conversation.place}")
        return self._encoder.count(text)

    def _rendered(self, values: dict[str, Any], problem: str) -> str:
        """What the template makes of values; nothing of none. In a process of its own, as a template is a program of others. Raises
        UserError, with ``problem`` before the reason."""
        try:
            text, error = run_on_loop(killable(rendered, self._template, values, seconds=TEMPLATE_SECONDS))
        except TimeoutError:
            error = f"it takes more than {TEMPLATE_SECONDS:g} s, or too much memory"
        if error is not None:
            raise UserError(f"{problem}: {error}")
        return str(text)


def rendered(template: str, values: dict[str, Any]) -> tuple[str, str | None]:
    """What a chat template makes of values (nothing of none: it is only read), and why it can't."""
    try:
        made = _compiled(template)
        return (made.render(values) if values else ""), None
    except (MemoryError, RecursionError) as error:
        return "", type(error).__name__
    except Exception as error:  # noqa: BLE001 - whatever a program of others raises is what is said of it
        return "", " ".join(str(error).split())[:_SHOWN] or type(error).__name__


def nearest_rank(ordered: Sequence[int], percent: int) -> int:
    """Of numbers in ascending order, the first that at least so many percent of them do not exceed. There must be one."""
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]


def _texts(conversation: Conversation, messages: Sequence[dict[str, Any]]) -> list[str]:
    found = [json.dumps(tool, ensure_ascii=False) for tool in conversation.tools]
    for message in messages:
        found += [text_of(message.get("content")), message.get("reasoning_content", "")]
        for call in message.get("tool_calls", ()):
            found += [call["function"]["name"], call["function"]["arguments"]]
    return [text for text in found if text]


class _FileEncoder:
    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False).ids)


def _file_encoder(file: Path) -> Encoder:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UserError(f"--tokenizer {file} needs the extra tokens: pip install 'manyhands[tokens]'") from None
    if file.exists() and not file.is_file():  # a pipe might never end
        raise UserError(f"{file}: no regular file")
    text = read_text(str(file))
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"{file}: no tokenizer that could be read ({' '.join(str(error).split())[:_SHOWN]})") from error
    return _FileEncoder(tokenizer)


def _template_in(folder: Path) -> str | None:
    """The text of the chat template of a tokenizer's folder; None if it has none."""
    text = None
    if (folder / TEMPLATE_FILE).is_file():
        text = read_text(str(folder / TEMPLATE_FILE))
    elif (folder / CONFIG_FILE).is_file():
        try:
            text = json.loads(read_text(str(folder / CONFIG_FILE))).get("chat_template")
        except (ValueError, AttributeError, RecursionError) as error:
            raise UserError(f"{folder / CONFIG_FILE}: not JSON that could be read ({error})") from error
    if isinstance(text, list):  # several, by name
        named = {each.get("name"): each.get("template") for each in text if isinstance(each, dict)}
        text = named.get("tool_use") or named.get("default")
    return text if isinstance(text, str) else None


@lru_cache(maxsize=4)
def _compiled(text: str) -> Any:
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %}``, which marks what a model is trained on and writes nothing."""

        tags = {"generation"}  # noqa: RUF012 - as its base class declares it

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = lambda value, indent=None, **_: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals.update(
        raise_exception=refuse, bos_token="", eos_token="", strftime_now=lambda form: "2000-01-01"
    )
    return environment.from_string(text)


class _TiktokenEncoder:
    def __init__(self, encoding: Any) -> None:
        self._encoding = encoding

    def count(self, text: str) -> int:
        return len(self._encoding.encode(text, disallowed_special=()))


def _tiktoken_encoder(name: str) -> Encoder:
    try:
        import tiktoken
    except ImportError:
        raise UserError(f"--tokenizer {name}: no such file; a name of tiktoken needs the extra tokens") from None
    if name not in tiktoken.list_encoding_names():
        known = ", ".join(tiktoken.list_encoding_names())
        raise UserError(f"--tokenizer {name}: no such file or folder, and no encoding of tiktoken ({known})")
    try:
        return _TiktokenEncoder(tiktoken.get_encoding(name))
    except Exception as error:  # whatever its download raises
        raise UserError(
            f"--tokenizer {name}: tiktoken can't get that encoding ({' '.join(str(error).split())[:_SHOWN]})"
        ) from error
