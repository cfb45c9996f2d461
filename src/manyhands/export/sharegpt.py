"""Conversations as ShareGPT turns: the layout of the original batch runner, to the byte.

Mended on purpose:

- Reasoning that a server leaves at the beginning of the content and also reports by itself is written once.
- A tool result takes its tool's name from the call with its id, not from the call in the same position.
- ``<think>`` in the arguments of a call does not count as the turn's reasoning, so such a turn gets its empty think
  block too.
- A tool result that says NaN or Infinity, which is not JSON, stays text.
- Turns that this program wrote are left out (see ``as_trained``).
- Image parts of a prompt become ``<image>``: a value is always text.
- Tags inside values are escaped (see below), so that whoever looks for tags finds the turn's own and no others. For the same reason
  only whole scratchpad blocks become think blocks.

Tags inside the values of ShareGPT turns: escaped, so that every tag that stands in a turn is one of its structure.

What counts as a tag: ``<think>``, ``<tool_call>``, ``<tool_response>`` and ``<tools>``, opening or closing, and the control tokens of chat
templates: ``<|…|>`` (also with the full-width bars of some models) without white space in it, ``<start_of_turn>`` and ``<end_of_turn>``.

In plain text an escaped tag has a backslash behind its first character: ``<\think>``; one that has backslashes there already gets one
more, so that ``unescape(escape(text)) == text`` for every text. In JSON the first character is ``\u003c``, which every parser of
JSON undoes.

The wordings of the saved system turn are here, too: those that come with this program, and those of files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from manyhands.agents.toolbox import Toolbox
from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.messages import Message, ToolCall, text_of
from manyhands.export.conversations import joined_messages
from manyhands.models.reasoning import SCRATCHPAD, blocks, gather, standing_in
from manyhands.runs.options import read_text
from manyhands.tools.protocol import Tool

Turn = dict[str, str]
"""``{"from": "system" | "human" | "gpt" | "tool", "value": text}``"""

PLACEHOLDER = "{tools}"
"""What a template has where the tools go, as one line of JSON."""

TEMPLATE = """\
You can call functions. Their signatures are listed in JSON between the tags <tools> and </tools>. For each request of \
the user, call as many of them as the task takes, one or several at a time. If none of them helps, answer in plain \
words. Never invent the value of an argument. What a call returns is given to you between the tags <tool_response> and \
</tool_response>. These functions are on offer:
<tools>
{tools}
</tools>
Write each call as one JSON object that fits this schema:
{'title': 'FunctionCall', 'type': 'object', 'properties': {'name': {'title': 'Name', 'type': 'string'}, \
'arguments': {'title': 'Arguments', 'type': 'object'}}, 'required': ['name', 'arguments']}
Put every call between the tags <tool_call> and </tool_call>.
Example:
<tool_call>
{'name': <name of the function>, 'arguments': <object with its arguments>}
</tool_call>"""

EMPTY_THINK = "<think>\n</think>\n"
_OPENING = re.compile(r"<(think)>")
_OPENING_BLOCK = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)
_SCRATCHPADS = re.compile(f"<({SCRATCHPAD})>")
_BLANK = re.compile(r"\s*")


def check_template(template: str, name: str) -> str:
    """The template, if it can be used. ``name``: the file or option it came from.

    Raises UserError if it does not say where the tools go.
    """
    if PLACEHOLDER not in template:
        raise UserError(f"{name}: the system template has no {PLACEHOLDER}, so the tools have no place in it")
    return template


class SystemTurns:
    """The system turns of saved trajectories, each set of tools written once.

    ``template``: the text to use instead of this program's own; ``{tools}`` in it stands for the tools, all other
    braces for themselves. ``escape_tags``: escape those in the tools' descriptions.
    """

    def __init__(self, template: str | None = None, *, escape_tags: bool = True) -> None:
        self._template = TEMPLATE if template is None else check_template(template, "system_template")
        self._escape_tags = escape_tags
        self._texts: dict[str, tuple[str, int]] = {}
        self._last: tuple[Sequence[Mapping[str, Any]], tuple[str, int]] | None = None

    def text(self, tools: Sequence[Tool] | Toolbox, own: str | None = None) -> str:
        """The system turn for these tools. ``own``: the system prompt of the row, which stands before them."""
        text = self._made(tools)[0]
        return f"{own}\n\n{text}" if own else text

    def tags(self, tools: Sequence[Tool] | Toolbox) -> int:
        """How many tags are escaped in it."""
        return self._made(tools)[1]

    def of_definitions(self, definitions: Sequence[Mapping[str, Any]]) -> tuple[str, int]:
        """The same for tools of which only the chat-completions objects are there, and how many tags are escaped in it."""
        if self._last is None or self._last[0] != definitions:
            self._last = (definitions, self._written(definitions))
        return self._last[1]

    def _made(self, tools: Sequence[Tool] | Toolbox) -> tuple[str, int]:
        box = Toolbox.of(tools)
        made = self._texts.get(box.digest)
        if made is None:
            made = self._texts[box.digest] = self._written(box.definitions)
        return made

    def _written(self, definitions: Sequence[Mapping[str, Any]]) -> tuple[str, int]:
        escaping = Escaping(active=self._escape_tags)
        text = self._template.replace(PLACEHOLDER, escaping.json(tools_json(definitions)))
        return text, escaping.count


_NOTHING: Mapping[str, Json] = {"name": "", "description": "", "parameters": {}}
"""What a tool from elsewhere is described by that says nothing of itself."""


def tools_json(definitions: Sequence[Mapping[str, Any]]) -> str:
    """Chat-completions tool objects as the one-line array of the system turn, sorted by name."""
    functions = sorted(
        (definition["function"] for definition in definitions), key=lambda function: str(function["name"])
    )
    keys = ("name", "description", "parameters")
    entries = [{**{key: function.get(key, _NOTHING[key]) for key in keys}, "required": None} for function in functions]
    return json.dumps(entries, ensure_ascii=False)


def to_sharegpt(
    messages: Sequence[Message], system: str, *, keep_synthetic: bool = False, escaping: Escaping | None = None
) -> list[Turn]:
    """A conversation (from the prompt on) as turns, with ``system`` as the first.

    ``keep_synthetic``: keep turns that this program wrote, as the original does, where they can't be distinguished from real
    ones. ``escaping``: escapes and counts the tags in values; without it they are escaped.
    """
    escaping = escaping or Escaping()
    kept = messages if keep_synthetic else as_trained(messages)
    turns: list[Turn] = [{"from": "system", "value": system}]
    calls: Sequence[ToolCall] = ()
    results: list[Message] = []
    for message in kept:
        role = message.get("role")
        if role == "tool":
            if calls:  # a result that follows no call has nowhere to go
                results.append(message)
            continue
        _add_results(turns, calls, results, escaping)
        calls, results = (), []
        if role == "user":
            turns.append({"from": "human", "value": escaping.text(text_of(message.get("content")))})
        elif role == "assistant":
            calls = message.get("tool_calls") or ()
            turns.append({"from": "gpt", "value": _gpt_value(_with_reasoning_apart(message), calls, escaping)})
    _add_results(turns, calls, results, escaping)
    return turns


def as_trained(messages: Sequence[Message]) -> list[Message]:
    """The conversation without the turns that this program wrote, as it should have gone.

    A request to go on with a cut-off answer disappears, and the pieces become one answer; its reasoning is that of the
    first piece that has any, because later pieces reason about the request. A request for a summary disappears together
    with the summary. Without such turns the messages come back as they are.
    """
    if not any("_synthetic" in message for message in messages):
        return list(messages)
    kept: list[Message] = []
    joining = False
    for message in messages:
        synthetic = message.get("_synthetic")
        if synthetic is not None:
            joining = synthetic == "continue"
        elif joining and message.get("role") == "assistant" and kept and kept[-1].get("role") == "assistant":
            kept[-1] = joined_messages(kept[-1], message)
            joining = False
        else:
            kept.append(message)
            joining = False
    return kept


def _with_reasoning_apart(message: Message) -> Message:
    """An answer that a row brought, read as if a server had sent it: what this run's model answered was read when it came."""
    if "_given" not in message:
        return message
    gathered = gather(message)
    return cast(Message, {**message, "content": gathered.content, "reasoning": gathered.reasoning})


def _gpt_value(message: Message, calls: Sequence[ToolCall], escaping: Escaping | None = None) -> str:
    escaping = escaping or Escaping()
    reasoning = message.get("reasoning") or ""
    content = _content(text_of(message.get("content")), reasoning, escaping)
    value = f"<think>\n{escaping.text(reasoning)}\n</think>\n" if reasoning.strip() else ""
    if not calls:
        value = (value + content).strip()
    elif content.strip():
        value += content + "\n"
    if "<think>" not in value:
        value = EMPTY_THINK + value
    if not calls:
        return value
    written = (escaping.json(_call_json(call)) for call in calls)
    return (value + "".join(f"<tool_call>\n{call}\n</tool_call>\n" for call in written)).rstrip()


def _content(content: str, reasoning: str, escaping: Escaping) -> str:
    """The content with whole scratchpad blocks as think blocks and all other tags escaped, and without a think block that opens it and
    says what the reasoning says."""
    if not escaping.active:
        return _own_content(content, reasoning)
    if "<" not in content:
        return content
    found = _OPENING_BLOCK.match(content)
    if found is not None and found[1].strip() == reasoning.strip() != "":
        content = content[found.end() :]
    kept: list[str] = []
    behind = 0
    for start, end, inside in blocks(content, _SCRATCHPADS):
        kept += (escaping.text(content[behind:start]), "<think>", escaping.text(inside), "</think>")
        behind = end
    return "".join(kept) + escaping.text(content[behind:])


def _own_content(content: str, reasoning: str) -> str:
    """The same as the original does it: scratchpad tags as think tags, and without think blocks that the reasoning holds already."""
    if "<" not in content:
        return content
    if reasoning.strip():
        content = _without_repeated(content, reasoning)
    return content.replace(f"<{SCRATCHPAD}>", "<think>").replace(f"</{SCRATCHPAD}>", "</think>")


def _without_repeated(content: str, reasoning: str) -> str:
    """Without the think blocks that the reasoning holds, and the white space behind them."""
    found = list(blocks(content, _OPENING))
    kept: list[str] = []
    behind = 0
    repeated = standing_in([inside.strip() for _, _, inside in found], reasoning)
    for (start, end, _), drop in zip(found, repeated, strict=True):
        if drop:
            kept.append(content[behind:start])
            blank = _BLANK.match(content, end)
            behind = end if blank is None else blank.end()
    return "".join(kept) + content[behind:]


def _call_json(call: ToolCall) -> str:
    function = call["function"]
    arguments: Json = function["arguments"]
    if isinstance(arguments, str):
        arguments = next(_parsed(arguments), {})
    return json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)


def _add_results(turns: list[Turn], calls: Sequence[ToolCall], results: Sequence[Message], escaping: Escaping) -> None:
    if results:
        names = {call["id"]: call["function"]["name"] for call in calls}
        blocks_of = (escaping.json(_result_json(result, names)) for result in results)
        value = "\n".join(f"<tool_response>\n{block}\n</tool_response>" for block in blocks_of)
        turns.append({"from": "tool", "value": value})


def _result_json(result: Message, names: Mapping[str, str]) -> str:
    call_id = result.get("tool_call_id", "")
    content: Json = text_of(result.get("content"))
    if content.lstrip()[:1] in ("{", "["):
        content = next(_parsed(content), content)
    name = names.get(call_id) or result.get("name") or "unknown"
    answer = {"tool_call_id": call_id, "name": name, "content": content}
    return json.dumps(answer, ensure_ascii=False)


def _parsed(text: str) -> Iterator[Json]:
    """The value of a JSON text, or nothing. Python's own parser: whole numbers of any length must survive."""
    try:
        value = json.loads(text, parse_constant=_refuse)
        json.dumps(value, allow_nan=False)  # 1e999 is read as Infinity
    except (ValueError, RecursionError):
        return
    yield value


def _refuse(constant: str) -> Json:
    raise ValueError(constant)


_TAG = r'/?(?:think|tool_call|tool_response|tools)>|[|\uff5c][^\s<>|\uff5c"\\]{1,100}[|\uff5c]>|(?:start|end)_of_turn>'
_IN_TEXT = re.compile(rf"<(?=\\*(?:{_TAG}))")
_ESCAPED = re.compile(rf"<\\(?=\\*(?:{_TAG}))")
_IN_JSON = re.compile(rf"<(?={_TAG})")


def escape(text: str) -> str:
    """The text with its tags escaped."""
    return escaped(text)[0]


def unescape(text: str) -> str:
    """The reverse of ``escape``."""
    return _ESCAPED.sub("<", text)


def escaped(text: str) -> tuple[str, int]:
    """The text with its tags escaped, and how many there were."""
    return _IN_TEXT.subn("<\\\\", text) if "<" in text else (text, 0)


def escaped_json(document: str) -> tuple[str, int]:
    """A JSON document with the tags in its strings escaped, and how many there were. It says the same as before."""
    return _IN_JSON.subn(r"\\u003c", document) if "<" in document else (document, 0)


class Escaping:
    """Escapes tags and counts them. ``active``: false to leave all texts as they are."""

    __slots__ = ("active", "count")

    def __init__(self, *, active: bool = True) -> None:
        self.active = active
        self.count = 0

    def text(self, text: str) -> str:
        """Plain text."""
        return self._counted(escaped(text)) if self.active else text

    def json(self, document: str) -> str:
        """A JSON document."""
        return self._counted(escaped_json(document)) if self.active else document

    def _counted(self, found: tuple[str, int]) -> str:
        self.count += found[1]
        return found[0]


HERMES_NAME = "hermes"
"""What ``--system_template`` calls the original's wording."""
OWN, FILE, OTHER = "own", "file", "other"

HERMES = """\
You are a function calling AI model. You are provided with function signatures within <tools> </tools> XML tags. You may \
call one or more functions to assist with the user query. If available tools are not relevant in assisting with user \
query, just respond in natural conversational language. Don't make assumptions about what values to plug into functions. \
After calling & executing the functions, you will be provided with function results within <tool_response> \
</tool_response> XML tags. Here are the available tools:
<tools>
{tools}
</tools>
For each function call return a JSON object, with the following pydantic model json schema for each:
{'title': 'FunctionCall', 'type': 'object', 'properties': {'name': {'title': 'Name', 'type': 'string'}, \
'arguments': {'title': 'Arguments', 'type': 'object'}}, 'required': ['name', 'arguments']}
Each function call should be enclosed within <tool_call> </tool_call> XML tags.
Example:
<tool_call>
{'name': <function-name>,'arguments': <args-dict>}
</tool_call>"""
"""The function-calling prompt of the Hermes models, which the original writes: datasets in its format have it to the letter."""


def load_template(name: str) -> str:
    """The text of a built-in wording, or of a file. Raises UserError naming the file that can't be read."""
    if name == HERMES_NAME:
        return HERMES
    try:
        return read_text(name)
    except UserError as error:
        raise UserError(f"{error} (a wording that is built in: {HERMES_NAME})") from error


def template_name(text: str | None) -> str:
    """What ``metadata.system_template`` says of a run's wording; None is this program's own."""
    if text is None or text == TEMPLATE:
        return OWN
    return HERMES_NAME if text == HERMES else FILE


def wording_of(turn: str) -> str:
    """The same of a saved system turn whose template nobody recorded."""
    return next((name for name, text in ((HERMES_NAME, HERMES), (OWN, TEMPLATE)) if _is_made_of(turn, text)), OTHER)


def _is_made_of(turn: str, template: str) -> bool:
    before, _, behind = template.partition(PLACEHOLDER)
    return len(turn) >= len(before) + len(behind) and turn.startswith(before) and turn.endswith(behind)
