"""What agent programs did in a launch, of the events that they print: their messages and tool calls, and what it took.

========  ==============================================================================
program   events
========  ==============================================================================
Claude    ``claude -p --output-format stream-json --verbose`` (or ``json``: the answer only)
Codex     ``codex exec --json``
Copilot   ``events.jsonl`` of a session, which is also what it prints as JSON
Pi        ``pi --mode json --print``
========  ==============================================================================

Tools that all of them have are called alike, as Claude Code does: ``Read``, ``Edit``, ``Write``, ``Bash``, ``Skill`` (the names that AgentV
gives them); others keep their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from manyhands.agents.programs import Priced, read_account
from manyhands.core.jsonio import Json, as_text, object_or_list
from manyhands.core.usage import Usage, as_cost

Record = dict[str, Any]
"""The record of an answer, as evaluations read it: ``output`` (messages with ``role``, ``content``, ``tool_calls``), and as far as they are
said ``token_usage``, ``cost_usd``, ``duration_ms``, ``error``, ``model`` and ``version`` (of the program)."""
_FILE_KEYS = ("path", "filePath")
_READ, _WRITE, _EDIT, _BASH, _SKILL = "Read", "Write", "Edit", "Bash", "Skill"
_COPILOT_TOOLS = {
    **dict.fromkeys(("Read File", "readFile", "readTextFile"), _READ),
    **dict.fromkeys(("Write File", "writeTextFile"), _WRITE),
    **dict.fromkeys(("Edit File", "editFile"), _EDIT),
    "runTerminalCommand": _BASH,
    "skill": _SKILL,
}
_PI_TOOLS = {"read": _READ, "bash": _BASH}
_COPILOT_BEGINNINGS = {"Using skill: ": _SKILL, "Viewing ": _READ}


def read_launch(text: str, priced: Priced = lambda usage: None) -> Record | None:
    """What a program says that it did in one launch; None if it printed no events that are known here."""
    reading = _Launch()
    for event in _events(text):
        reading.take(event)
    if not reading.known:
        return None
    account = read_account(text, priced)
    tokens, cost = reading.tokens, reading.cost
    if account.usage is not None:
        tokens, cost = _tokens(account.usage), None if account.usage.unpriced_calls else account.usage.cost
    record: Record = {"output": reading.messages, "token_usage": tokens, "cost_usd": cost}
    record |= {"duration_ms": reading.duration_ms, "error": account.error or reading.error}
    record |= {"model": reading.model, "version": reading.version}
    record = {name: value for name, value in record.items() if value is not None}
    if not any("content" in message for message in reading.messages) and reading.result:
        reading.messages.append({"role": "assistant", "content": reading.result})
    return record


def _tokens(usage: Usage) -> dict[str, int] | None:
    if not usage.total_tokens:
        return None
    cached = {"cached": usage.cached_tokens} if usage.cached_tokens else {}
    return {"input": usage.input_tokens, "output": usage.output_tokens, **cached}


def _events(text: str) -> Iterator[Mapping[str, Any]]:
    whole = object_or_list(text.strip().removeprefix("\ufeff"))
    found = whole if isinstance(whole, list) else [whole] if whole is not None else map(object_or_list, _lines(text))
    yield from (event for event in found if isinstance(event, dict))


def _lines(text: str) -> Iterator[str]:
    yield from (line.strip() for line in text.split("\n"))


@dataclass(slots=True)
class _Launch:
    """What was read so far."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    known: bool = False
    """Whether an event was one of these programs'."""
    result: str = ""
    """The answer, where the program says it apart."""
    tokens: dict[str, int] | None = None
    """Used tokens by kind."""
    cost: float | None = None
    duration_ms: float | None = None
    error: str | None = None
    calls: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Tool calls by id."""
    started: Any = None
    """When the session began."""
    model: str | None = None
    """That answered first, as the program calls it."""
    version: str | None = None
    """The program's."""
    answer_id: Json = None
    """Of the last message, where the program prints the parts of one answer apart."""

    def take(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        handler = _HANDLERS.get(kind) if isinstance(kind, str) else None
        if handler is not None:
            handler(self, event)

    def say(self, content: Json, *calls: dict[str, Any], role: str = "assistant", answer_id: Json = None) -> None:
        """Add a message. ``answer_id``: that of the answer which it is a part of; parts that follow each other become one message."""
        if not content and not calls:
            return
        if answer_id is None or answer_id != self.answer_id:
            self.messages.append({"role": role})
        self.answer_id = answer_id
        message = self.messages[-1]
        if content:
            message["content"] = content if "content" not in message else f"{message['content']}\n\n{content}"
        if calls:
            message["tool_calls"] = [*message.get("tool_calls", ()), *calls]

    def answered_by(self, model: Json) -> None:
        """Note the model that is named somewhere."""
        if self.model is None and isinstance(model, str) and model and not model.startswith("<"):  # <synthetic>
            self.model = model

    def call(self, tool: str, given: Json, call_id: Json = None, **more: Any) -> dict[str, Any]:
        """A tool call, which can be found by its id from now on."""
        made = {"tool": tool, "input": given, **more}
        if isinstance(call_id, str) and call_id:
            made["id"] = call_id
            self.calls[call_id] = made
        return made


def _text(content: Json) -> str:
    """The text of a content: a text, or parts of which some are text."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part if isinstance(part, str) else part.get("text") for part in parts if isinstance(part, (str, dict))]
    return "".join(text for text in texts if isinstance(text, str))


def _parts(message: Json, *kinds: str) -> list[dict[str, Any]]:
    content = message.get("content") if isinstance(message, dict) else None
    parts = content if isinstance(content, list) else []
    return [part for part in parts if isinstance(part, dict) and part.get("type") in kinds]


def _number(value: Json) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e15 else None


def _count(value: Json) -> int:
    return int(_number(value) or 0)


def _with_file(given: Json) -> Json:
    """The input of a tool that reads files, with the file as ``file_path``."""
    if not isinstance(given, dict) or "file_path" in given:
        return given
    named = next((given[key] for key in _FILE_KEYS if key in given), None)
    return given if named is None else {**given, "file_path": named}


# --- Claude


def _claude_began(launch: _Launch, event: Mapping[str, Any]) -> None:
    launch.answered_by(event.get("model"))
    version = event.get("claude_code_version")
    launch.version = version if isinstance(version, str) and version else launch.version


def _claude_said(launch: _Launch, event: Mapping[str, Any]) -> None:
    message = event.get("message")
    if not isinstance(message, dict):
        return
    launch.known = True
    launch.answered_by(message.get("model"))
    calls = [
        launch.call(part["name"], part.get("input"), part.get("id"))
        for part in _parts(message, "tool_use")
        if isinstance(part.get("name"), str)
    ]
    launch.say(_text(message.get("content")), *calls, answer_id=message.get("id"))


def _claude_was_told(launch: _Launch, event: Mapping[str, Any]) -> None:
    for part in _parts(event.get("message"), "tool_result"):
        call = launch.calls.get(str(part.get("tool_use_id")))
        if call is not None:
            call["output"] = _text(part.get("content")) or part.get("content")


def _claude_ended(launch: _Launch, event: Mapping[str, Any]) -> None:
    if "result" in event or "total_cost_usd" in event or "num_turns" in event:
        launch.known = True
        launch.answered_by(_main_model(event.get("modelUsage")))
        launch.result = as_text(event["result"]) if event.get("result") else ""
        launch.duration_ms = _number(event.get("duration_ms"))


def _main_model(usages: Json) -> str | None:
    """The model that wrote most."""
    written = {
        name: _count(usage.get("outputTokens"))
        for name, usage in (usages.items() if isinstance(usages, dict) else ())
        if isinstance(usage, dict)
    }
    return max(written, key=written.__getitem__, default=None)


# --- Codex


def _codex_began(launch: _Launch, event: Mapping[str, Any]) -> None:
    launch.known = True


def _codex_did(launch: _Launch, event: Mapping[str, Any]) -> None:
    item = event.get("item")
    if not isinstance(item, dict):
        return
    launch.known = True
    kind = item.get("type", item.get("item_type"))
    if kind in ("agent_message", "assistant_message"):
        launch.say(_text(item.get("text", item.get("content"))))
        return
    made = _CODEX_ITEMS.get(str(kind))
    if made is not None:
        launch.say(None, made(launch, item))


def _codex_tool(launch: _Launch, item: Mapping[str, Any]) -> dict[str, Any]:
    named = f"{item.get('server')}/{item.get('tool')}"
    given = item.get("arguments")
    result = item.get("result") if item.get("result") is not None else item.get("error")
    more = {} if result is None else {"output": result}
    return launch.call(_SKILL, {**(given if isinstance(given, dict) else {}), "skill": named}, item.get("id"), **more)


_CODEX_ITEMS: Mapping[str, Callable[[_Launch, Mapping[str, Any]], dict[str, Any]]] = {
    "command_execution": lambda launch, item: launch.call(
        _BASH, {"command": item.get("command")}, item.get("id"), output=item.get("aggregated_output")
    ),
    "file_change": lambda launch, item: launch.call(_EDIT, item.get("changes"), item.get("id")),
    "web_search": lambda launch, item: launch.call("web_search", {"query": item.get("query")}, item.get("id")),
    "mcp_tool_call": _codex_tool,
}


# --- Pi


def _pi_ended(launch: _Launch, event: Mapping[str, Any]) -> None:
    messages = event.get("messages")
    if not isinstance(messages, list):
        return
    launch.known = True
    seen, launch.messages = launch.calls, []
    launch.calls = {}
    usages = [_pi_message(launch, message) for message in messages if isinstance(message, dict)]
    for call_id, call in seen.items():  # some providers name tools only when they are executed
        if call_id not in launch.calls:
            launch.say(None, call)
        elif "output" in call:
            launch.calls[call_id].setdefault("output", call["output"])
    for tokens, cost in (usage for usage in usages if usage is not None):
        launch.tokens = _added(launch.tokens, tokens)
        launch.cost = cost if launch.cost is None else launch.cost + (cost or 0.0)


def _added(sum_so_far: dict[str, int] | None, tokens: dict[str, int]) -> dict[str, int]:
    return {kind: count + (sum_so_far or {}).get(kind, 0) for kind, count in tokens.items()}


def _pi_message(launch: _Launch, message: Mapping[str, Any]) -> tuple[dict[str, int], float | None] | None:
    """What a message used: tokens, and US dollars."""
    role = message.get("role")
    if role == "toolResult":
        call = launch.calls.get(str(message.get("toolCallId")))
        if call is not None:
            call["output"] = _text(message.get("content")) or message.get("content")
    elif role == "assistant":
        launch.answered_by(message.get("model"))
        calls = [
            launch.call(*_pi_call(part["name"], part.get("arguments", part.get("input"))), part.get("id"))
            for part in _parts(message, "toolCall", "tool_call", "tool_use")
            if isinstance(part.get("name"), str)
        ]
        launch.say(_text(message.get("content")), *calls)
        if message.get("stopReason") == "error":
            launch.error = as_text(message.get("errorMessage") or "the model call failed")
    usage = message.get("usage")
    return _pi_usage(usage) if isinstance(usage, dict) else None


def _pi_call(name: str, given: Json) -> tuple[str, Json]:
    tool = _PI_TOOLS.get(name, name)
    return tool, _with_file(given) if tool == _READ else given


def _pi_usage(usage: Mapping[str, Any]) -> tuple[dict[str, int], float | None]:
    cost = usage.get("cost")
    given = {"input": ("input", "cacheWrite"), "output": ("output",), "cached": ("cacheRead",)}
    tokens = {kind: sum(_count(usage.get(name)) for name in names) for kind, names in given.items()}
    return tokens, as_cost(cost.get("total")) if isinstance(cost, dict) else None


def _pi_tool_began(launch: _Launch, event: Mapping[str, Any]) -> None:
    if isinstance(event.get("toolName"), str):
        launch.known = True
        launch.call(*_pi_call(event["toolName"], event.get("args")), event.get("toolCallId"))


def _pi_tool_ended(launch: _Launch, event: Mapping[str, Any]) -> None:
    call = launch.calls.get(str(event.get("toolCallId")))
    if call is not None and event.get("result") is not None:
        result = event["result"]
        call["output"] = (_text(result.get("content")) if isinstance(result, dict) else "") or result


# --- Copilot


def _data(event: Mapping[str, Any]) -> Mapping[str, Any]:
    data = event.get("data")
    return data if isinstance(data, dict) else {}


def _copilot_call(name: Json, given: Json) -> tuple[str, Json]:
    word = name if isinstance(name, str) else ""
    tool = _COPILOT_TOOLS.get(word, word)
    for beginning, meant in _COPILOT_BEGINNINGS.items():
        if word.startswith(beginning):
            tool, rest = meant, word.removeprefix(beginning)
            given = {**(given if isinstance(given, dict) else {}), "skill": rest} if meant == _SKILL else given
    return tool, _with_file(given) if tool == _READ else given


def _copilot_began(launch: _Launch, event: Mapping[str, Any]) -> None:
    launch.known = True
    launch.started = event.get("timestamp") or _data(event).get("startTime")


def _copilot_was_told(launch: _Launch, event: Mapping[str, Any]) -> None:
    launch.known = True
    launch.say(as_text(_data(event).get("content") or ""), role="user")


def _copilot_said(launch: _Launch, event: Mapping[str, Any]) -> None:
    launch.known = True
    data = _data(event)
    wanted = data.get("toolRequests")
    requests = [each for each in wanted if isinstance(each, dict)] if isinstance(wanted, list) else []
    calls = [
        launch.call(
            *_copilot_call(each.get("name", each.get("toolName")), each.get("arguments")), each.get("toolCallId")
        )
        for each in requests
    ]
    launch.say(_text(data.get("content")), *[call for call in calls if call["tool"]])


def _copilot_skill(launch: _Launch, event: Mapping[str, Any]) -> None:
    launch.known = True
    launch.say(None, launch.call(_SKILL, {"skill": _data(event).get("name")}))


def _copilot_tool_began(launch: _Launch, event: Mapping[str, Any]) -> None:
    data = _data(event)
    call_id = data.get("toolCallId")
    if isinstance(call_id, str) and call_id not in launch.calls and isinstance(data.get("toolName"), str):
        launch.known = True
        launch.say(None, launch.call(*_copilot_call(data["toolName"], data.get("arguments")), call_id))


def _copilot_tool_ended(launch: _Launch, event: Mapping[str, Any]) -> None:
    data = _data(event)
    call = launch.calls.get(str(data.get("toolCallId")))
    if call is not None and data.get("result") is not None:
        call["output"] = data["result"]


def _copilot_ended(launch: _Launch, event: Mapping[str, Any]) -> None:
    metrics = _data(event).get("modelMetrics")
    launch.answered_by(next(iter(metrics), None) if isinstance(metrics, dict) else None)
    parts = (
        [each.get("usage") for each in metrics.values() if isinstance(each, dict)] if isinstance(metrics, dict) else []
    )
    for part in (part for part in parts if isinstance(part, dict)):
        tokens = {"input": _count(part.get("inputTokens")), "output": _count(part.get("outputTokens"))}
        launch.tokens = _added(launch.tokens, tokens)
    launch.duration_ms = _between(launch.started, event.get("timestamp"))


def _between(start: Json, end: Json) -> float | None:
    """Milliseconds between two times."""
    try:
        seconds = (datetime.fromisoformat(str(end)) - datetime.fromisoformat(str(start))).total_seconds()
    except (ValueError, TypeError):
        return None
    return _number(1000 * seconds)


_HANDLERS: Mapping[str, Callable[[_Launch, Mapping[str, Any]], None]] = {
    "system": _claude_began,
    "assistant": _claude_said,
    "user": _claude_was_told,
    "result": _claude_ended,
    "thread.started": _codex_began,
    "item.completed": _codex_did,
    "agent_end": _pi_ended,
    "tool_execution_start": _pi_tool_began,
    "tool_execution_end": _pi_tool_ended,
    "session.start": _copilot_began,
    "user.message": _copilot_was_told,
    "assistant.message": _copilot_said,
    "skill.invoked": _copilot_skill,
    "tool.execution_start": _copilot_tool_began,
    "tool.execution_complete": _copilot_tool_ended,
    "session.shutdown": _copilot_ended,
}
